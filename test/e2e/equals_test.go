package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// waited lists when processes had waited for a kernel, in the order in which that was over, from a byte of the driver's trace on.
func waited(t *testing.T, trace string, from int) (pids []int) {
	t.Helper()
	for line := range strings.Lines(traced(t, trace)[from:]) {
		var ns uint64
		var pid, thread int
		var what, name string
		if _, err := fmt.Sscan(line, &ns, &pid, &thread, &what, &name); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if what == "end" && name == "cuStreamSynchronize" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cut is how many of a process's requests, of so many kernels each, another one's work came between.
func cut(pids []int, pid, kernels int) (cuts int) {
	own, others := 0, false
	for _, p := range pids {
		if p != pid {
			others = others || own%kernels != 0
			continue
		}
		if own++; own%kernels == 0 {
			if others {
				cuts++
			}
			others = false
		}
	}
	return cuts
}

// equals waits until processes have holds, and the slice of equals.
func (m *machine) equals(sliceUs int, processes ...*process) {
	m.t.Helper()
	for _, p := range processes {
		m.until("all have holds and the slice of equals", func() bool {
			p.request(2, 2, "stream")
			peer := m.peer(p)
			return peer.Counters.Holds > 0 && peer.TimesliceUs == uint32(sliceUs)
		})
	}
}

// A process's slice is as long as its windows are, and the shortest one while these are not known: others wait for no longer.
func TestSliceOfEqualsIsAsLongAsTheirWindows(t *testing.T) {
	t.Parallel()
	const least, most, enough = 20_000, 80_000, 30 // us, of a slow machine; windows
	m := newMachine(t, fmt.Sprintf("[timeslice]\nequals_min_us = %d\nequals_us = %d\n[hold]\nmax_ms = 1000\n[hints]\ncopy = false\narrival = false\n", least, most))
	_, short := m.sharing()
	long := m.start("lc")
	m.joined(long)
	m.until("a process of short requests has the shortest slice", func() bool { // where the machine is not slow
		short.request(2, 2, "stream")
		peer := m.peer(short)
		return peer.Counters.Windows > enough && peer.TimesliceUs == least
	})
	if us := m.peer(long).TimesliceUs; us != least {
		t.Errorf("a process of which nothing is known has a slice of %d us", us)
	}
	m.until("one of long requests has a long slice", func() bool {
		var us, slowest, hash int
		long.ask("lc 2 4 50000 3000 stream", "p50_us %d max_us %d hash %d", &us, &slowest, &hash) // few kernels: load makes no gaps
		return m.peer(long).TimesliceUs == most
	})
	m.until("that of short requests keeps its own", func() bool {
		short.request(2, 2, "stream")
		return m.peer(short).TimesliceUs == least
	})
}

// Requests of equals that last as long as the slice, or longer, cut each other; shorter ones come one after the other. With a slice as long
// as a request may keep the GPU it is first come, first served.
func TestEqualsAreServedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const requests, kernels, kernelUs, gapUs = 4, 4, 3000, 150_000
	// A slow machine neither closes a window between two kernels nor makes a lease run out. Between two requests the window closes.
	const settings = "[timeslice]\nequals_min_us = %[1]d\nequals_us = %[1]d\n[window]\ngrace_min_us = 50000\ngrace_max_us = 50000\n[hold]\nstep_us = 50000\n[hints]\ncopy = false\narrival = false\n"
	for _, c := range []struct {
		equalsUs    int
		least, most int // requests that are cut
	}{{100_000, 0, 0}, {2048, requests / 2, requests}} {
		t.Run(fmt.Sprintf("slices of %d us", c.equalsUs), func(t *testing.T) {
			trace := filepath.Join(t.TempDir(), "trace")
			m := newMachine(t, fmt.Sprintf(settings, c.equalsUs), "SIMCUDA_TRACE="+trace)
			_, first := m.sharing()
			second := m.start("lc")
			m.joined(second)
			m.equals(c.equalsUs, first, second)
			m.mostly("requests are cut, or not", func() bool { // where the machine is not slow
				from := len(traced(t, trace))
				for _, p := range []*process{first, second} {
					p.say("lc %d %d %d %d stream", requests, kernels, kernelUs, gapUs)
				}
				first.hear()
				second.hear()
				pids := waited(t, trace, from)
				of, us := cut(pids, first.pid(), kernels), cut(pids, second.pid(), kernels)
				t.Logf("of %d requests each, %d and %d were cut", requests, of, us)
				return min(of, us) >= c.least && max(of, us) <= c.most
			})
		})
	}
}

// An equal stopped in the middle of a request keeps the GPU for its hold's lease and its slice, not until it goes on.
func TestStoppedEqualDelaysRequestsForABoundedTime(t *testing.T) {
	t.Parallel()
	const slice = 100 * time.Millisecond
	m := newMachine(t, fmt.Sprintf("[timeslice]\nequals_min_us = %[1]d\nequals_us = %[1]d\n[hints]\ncopy = false\narrival = false\n", slice.Microseconds()))
	be, going := m.sharing()
	stopped := m.start("lc")
	m.joined(stopped)
	m.equals(int(slice.Microseconds()), going, stopped)
	stopped.say("lc 1 100000 1000 1000 stream")
	t.Cleanup(func() { stopped.signal(syscall.SIGCONT) })
	m.mostly("a request waits for a slice at most, whenever the other one is stopped", func() bool { // where the machine is not slow
		stopped.signal(syscall.SIGCONT)
		from := segment.Now()
		m.until("the other one is in the middle of a request", func() bool {
			peer := m.peer(stopped)
			return peer.WindowOpen && peer.HeartbeatAgeNs < segment.Now()-from // it goes on
		})
		stopped.stop()
		took, _ := going.request(1, 3, "stream")
		t.Logf("it takes %v", took)
		return took <= 2*slice && m.peer(stopped).WindowOpen
	})
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
}

// A window that only waits for more work of its process is short where an equal waits for the GPU.
func TestWindowsMakeWayForEquals(t *testing.T) {
	t.Parallel()
	const settings = "[timeslice]\nequals_min_us = 100000\nequals_us = 100000\n[window]\ngrace_min_us = 300000\ngrace_max_us = 300000\ngrace_equals_us = %d\n[hold]\nstep_us = 50000\n[hints]\ncopy = false\narrival = false\n"
	for _, c := range []struct {
		graceUs     int
		least, most time.Duration
	}{{300_000, 40 * time.Millisecond, time.Second}, {1000, 0, 20 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d us", c.graceUs), func(t *testing.T) {
			m := newMachine(t, fmt.Sprintf(settings, c.graceUs))
			_, busy := m.sharing()
			waits := m.start("lc")
			m.joined(waits)
			m.equals(100_000, busy, waits)
			// Mostly: a slow machine takes longer now and then.
			m.mostly("requests beside a window without work take as long as that is open, or a slice", func() bool {
				m.until("the windows are closed", func() bool { return !m.peer(waits).WindowOpen && !m.peer(busy).WindowOpen })
				busy.request(1, 1, "stream")
				took, _ := waits.request(1, 1, "stream")
				t.Logf("%v", took)
				return took >= c.least && took <= c.most
			})
		})
	}
}
