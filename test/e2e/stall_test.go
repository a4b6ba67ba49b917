package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// besideBestEffort starts an LC process beside a BE one that has work and yields to it.
func besideBestEffort(t *testing.T, settings string, environment ...string) (m *machine, lc *process) {
	t.Helper()
	m = newMachine(t, settings, environment...)
	_, lc = m.sharing()
	return m, lc
}

// TestHoldsGiveWay proves that a hold in the way of its own process's work gives way after a millisecond or so, as the probe finds it.
// Neither its limit nor the timeslice would end it for a second, nor a step for 200 ms.
func TestHoldsGiveWay(t *testing.T) {
	t.Parallel()
	const long = "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 1000\nstep_us = 200000\n"
	const most = 40 * time.Millisecond // of a request; a hold that does not give way lasts a step, 200 ms, at each of its 5 kernels
	for _, c := range []struct {
		name, settings, environment string
	}{
		// Behind a single link nothing is left to fetch: the host engine turns away in every hold.
		{"of one link", long + "chain = 1\n", "NONE="},
		// The engine looks between the two links: it has turned away when the second one comes.
		{"that came late", long, "SIMCUDA_DOORBELL_US=500:gpreempt_hold"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, lc := besideBestEffort(t, c.settings, c.environment)
			m.mostly("holds are in the way of requests, all of which are quick", func() bool { // where the machine is not slow
				before := m.peer(lc).Counters
				p50, _ := lc.request(20, 5, "stream")
				counters := m.peer(lc).Counters
				t.Logf("request: p50 %v, max %v; %+v", p50, lc.slowest, counters)
				return counters.HoldsStalled > before.HoldsStalled+10 && p50 <= most && counters.WindowsCut == before.WindowsCut
			})
		})
	}
}

// TestHoldsStepForUnknownCauses proves that a hold gives way now and then while work is unfinished, though nothing tells that it
// stands in the way: the driver refuses the probes, and neither limit nor timeslice would end the hold for a second.
func TestHoldsStepForUnknownCauses(t *testing.T) {
	t.Parallel()
	const step = 20 * time.Millisecond // so long that what the machine loses does not count
	m, lc := besideBestEffort(t, fmt.Sprintf("[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 1000\nchain = 1\nstep_us = %d\n", step.Microseconds()), "SIMCUDA_REFUSE_VALUES=1")
	inTime := 0
	m.until("requests behind single links wait for a step", func() bool { // where the machine is not slow
		before := m.peer(lc).Counters
		lc.request(20, 2, "stream") // of some the second kernel is behind a link that has stalled
		after := m.peer(lc).Counters
		t.Logf("%d holds, the slowest request %v", after.Holds-before.Holds, lc.slowest)
		if after.HoldsStalled != 0 {
			t.Fatalf("something else ended holds: %+v", after)
		}
		if after.WindowsCut == before.WindowsCut && after.Holds > before.Holds+10 && lc.slowest >= step*9/10 && lc.slowest <= step*3/2 {
			inTime++
		}
		return inTime == 10
	})
}

// TestHoldsEndWithTheirLease proves that a hold ends by itself, and soon, where its watcher is late: it waits in the driver here. The
// window closes a second after the last work, and the hold's limit is ten.
func TestHoldsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 10000\n[window]\ngrace_min_us = 1000000\ngrace_max_us = 1000000\n[share]\nmin_be = 0\n",
		"SIMCUDA_CALL_US=cuCtxPushCurrent:100000")
	_, lc := m.sharing()
	m.until("a hold ends by itself", func() bool {
		before := m.peer(lc).Counters
		lc.request(1, 2, "stream")
		m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
		after := m.peer(lc).Counters
		t.Logf("%d holds, of which %d ended by themselves", after.Holds-before.Holds, after.HoldsExpired-before.HoldsExpired)
		return after.HoldsExpired > before.HoldsExpired
	})
}

// TestCallsThatWaitForTheContext is of a thread whose call waits for the whole context, with the driver's lock of it. It proves that the
// call does not meet a hold that another thread is arming. The hold's second link would wait for the lock, and the call for the first link.
func TestCallsThatWaitForTheContext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, hold, environment string }{
		{"free", "", "NONE="}, {"load", "", "NONE="}, {"launch", "", "CUDA_MODULE_LOADING=LAZY"},
		{"synchronize", "while_synchronizing = true\n", "NONE="}, {"synchronize", "while_synchronizing = false\n", "NONE="},
	} {
		t.Run(c.what+" "+strings.TrimSpace(c.hold), func(t *testing.T) {
			t.Parallel()
			// Much time between two doorbells, so that many calls begin in it; neither lease nor step would end a link soon.
			m, lc := besideBestEffort(t, "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 1000\nstep_us = 500000\n"+c.hold+"[share]\nmin_be = 0\n",
				"SIMCUDA_DOORBELL_US=150:gpreempt_hold", c.environment)
			var holds, calls int
			for round := uint64(0); round < often(3, 10) || holds < 100 || calls < 100; round++ {
				var more, behind int
				before := m.peer(lc).Counters.Holds
				lc.ask("beside "+c.what+" 150", "calls %d behind holds %d", &more, &behind)
				if behind != 0 {
					t.Fatalf("%d of %d calls began while a hold was armed", behind, more)
				}
				calls += more
				holds += int(m.peer(lc).Counters.Holds - before)
			}
			t.Logf("%d holds beside %d calls", holds, calls)
		})
	}
}

// A window, and so the hold, stays for a second after the last work; nothing else ends it sooner.
const keptHold = "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 2000\nstep_us = 1000000\n[window]\ngrace_min_us = 1000000\ngrace_max_us = 1000000\n[share]\nmin_be = 0\n"

// TestFreeOfAnotherContextsMemory proves that a call releases the hold of the context that it waits for, not of the one
// that is current.
func TestFreeOfAnotherContextsMemory(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, keptHold)
	m.mostly("a free releases a hold at once", func() bool { // where the machine is not slow
		before := m.peer(lc).Counters
		var us int
		lc.ask("free_other", "took_us %d", &us)
		after := m.peer(lc).Counters
		t.Logf("%d us; %+v", us, after)
		return us <= 500_000 && after.Holds > before.Holds && after.HoldsReleased > before.HoldsReleased
	})
}

// TestFirstLaunchAtAnOldAddress proves that the first launch of a kernel counts as one where another kernel, since
// unloaded, had its handle: the driver waits for the context while it loads the code.
func TestFirstLaunchAtAnOldAddress(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, keptHold, "CUDA_MODULE_LOADING=LAZY")
	lc.request(3, 2, "stream")
	m.until("handles are used again, and all launches beside holds are quick", func() bool { // where the machine is not slow
		before := m.peer(lc).Counters.Holds
		var again, us int
		lc.ask("reload 10", "again %d slowest_us %d", &again, &us)
		holds := m.peer(lc).Counters.Holds - before
		t.Logf("%d handles were used again, %d holds, the slowest launch %d us", again, holds, us)
		return again > 0 && holds > 0 && us <= 500_000
	})
}

// TestContextInAnothersPlace is of a call that may wait for a context, and ends when another context has its place in the library. It
// proves that the call does not keep that context from holds.
func TestContextInAnothersPlace(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, "")
	var beside, done int
	if lc.ask("replace", "beside %d", &beside); beside != 1 {
		t.Fatal("nothing was tested: the call ended before the other context came")
	}
	before := m.peer(lc).Counters.Holds
	const enough = 20 // a guess of when work comes may hold the first context
	m.until("the other context has holds", func() bool {
		lc.ask("replaced", "done %d", &done)
		return m.peer(lc).Counters.Holds >= before+enough
	})
}

// TestContextsEndUnderHolds proves that a context may end while it has a hold that is being looked after.
func TestContextsEndUnderHolds(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, "")
	var done int
	lc.ask("contexts 30", "done %d", &done)
	before := m.peer(lc).Counters
	if before.Holds == 0 {
		t.Errorf("nothing was tested: %+v", before)
	}
	m.until("its windows close", func() bool { return !m.peer(lc).WindowOpen && !m.peer(lc).Busy })
	m.until("windows open again", func() bool {
		lc.request(3, 2, "stream")
		return m.peer(lc).Counters.Windows > before.Windows
	})
}

// TestHoldsWithoutProbes proves that a hold whose probes the driver refuses is not taken for one that stands in the way.
func TestHoldsWithoutProbes(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, "", "SIMCUDA_REFUSE_VALUES=1")
	lc.request(20, 20, "stream")
	if c := m.peer(lc).Counters; c.Holds == 0 || c.HoldsStalled != 0 {
		t.Errorf("%d of %d holds were found in the way", c.HoldsStalled, c.Holds)
	}
}

// TestShortLease proves that a hold whose lease is the shortest that may be configured is renewed in time while nothing runs.
func TestShortLease(t *testing.T) {
	t.Parallel()
	m, lc := besideBestEffort(t, "[hold]\nstep_us = 500\n[window]\ngrace_min_us = 2000\ngrace_max_us = 2000\n")
	m.until("two in three holds stay", func() bool { // the watcher may lose the CPU
		before := m.peer(lc).Counters
		lc.request(50, 2, "stream")
		after := m.peer(lc).Counters
		holds, expired := after.Holds-before.Holds, after.HoldsExpired-before.HoldsExpired
		t.Logf("%d of %d holds expired", expired, holds)
		return holds >= 50 && expired <= holds/3
	})
}

// TestNoHold proves that a process whose launches would wait for the hold, or whose streams would, has none and says so.
func TestNoHold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		environment string
		holds       bool
	}{
		{"CUDA_LAUNCH_BLOCKING=1", false}, {"CUDA_LAUNCH_BLOCKING=0", true},
		{"CUDA_DEVICE_MAX_CONNECTIONS=1", false}, {"CUDA_DEVICE_MAX_CONNECTIONS=7", false},
		{"CUDA_DEVICE_MAX_CONNECTIONS=8", true}, {"CUDA_DEVICE_MAX_CONNECTIONS=32", true},
	} {
		t.Run(c.environment, func(t *testing.T) {
			name, _, _ := strings.Cut(c.environment, "=")
			m, lc := besideBestEffort(t, "", c.environment)
			var p segment.Peer
			m.until("there are holds where there may be", func() bool {
				lc.request(5, 3, "stream")
				p = m.peer(lc)
				return p.Counters.Holds > 0 || !c.holds
			})
			if (p.Counters.Holds > 0) != c.holds || slices.Contains(p.Mechanisms, "hold") != c.holds || slices.Contains(p.Fallbacks, "no_hold") == c.holds {
				t.Errorf("%d holds, mechanisms %v, fallbacks %v", p.Counters.Holds, p.Mechanisms, p.Fallbacks)
			}
			if !c.holds {
				lc.says(name, 1)
			}
			if _, stderr := lc.finish(); strings.Contains(stderr, name) == c.holds || strings.Count(stderr, "\n") > 1 {
				t.Errorf("said: %q", stderr)
			}
		})
	}
}
