package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// startWaits starts waits.c and an LC process that fires, as soon as that stops it.
func startWaits(t *testing.T, environment ...string) (m *machine, be *process, end func()) {
	t.Helper()
	m = newStoppable(t, "", environment...)
	be = m.startAs(m.command("be", compile(t, "testdata/waits.c"), simulated("sim.cubin")))
	be.hears("ready")
	lc := m.start("lc")
	m.joined(be, lc)
	done := make(chan struct{})
	ended := fire(lc, done)
	return m, be, func() {
		close(done)
		<-ended
		lc.finish()
	}
}

// runStopped repeats a task until it was stopped often enough.
func (m *machine) runStopped(be *process, enough uint64, work string) {
	m.t.Helper()
	first := m.stops(be)
	for deadline := time.Now().Add(6 * patience); m.stops(be) < first+enough; {
		be.say("%s", work)
		if line := be.hear(); line != "wrong 0" {
			m.t.Fatalf("%s: %s, after %d stops", work, line, m.stops(be)-first)
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: only %d stops: %+v", work, m.stops(be)-first, m.peers())
		}
	}
}

// runLate does the same, until one of the stops has waited in vain too.
func (m *machine) runLate(be *process, enough uint64, work string) {
	m.t.Helper()
	m.runStopped(be, enough, work)
	m.until("a stop waits in vain", func() bool {
		if m.peer(be).BLP.DrainMaxNs >= uint64(100*time.Millisecond) {
			return true
		}
		m.runStopped(be, 1, work)
		return false
	})
}

// Blocks that wait for blocks of their launch that began later, without a cooperative launch: a stop between them would
// never end. All of them fit on the GPU at once, so they are stopped as a whole.
func TestBlocksThatWaitForLaterOnesAreNotParted(t *testing.T) {
	t.Parallel()
	// A launch's blocks take so long to begin that most stops come meanwhile.
	m, be, end := startWaits(t, "SIMCUDA_BLOCK_NS=5000")
	for _, kernel := range []string{"sim_marlin", "sim_lamport", "sim_barrier"} {
		for _, how := range []string{"launch", "graph"} {
			m.runStopped(be, 40, fmt.Sprintf("%s %s 132 256 40", how, kernel))
		}
	}
	if blp := m.peer(be).BLP; blp.Cuts == 0 || blp.GivenUp != 0 || blp.Beside != 0 {
		t.Errorf("%+v", *blp)
	}
	end()
	if _, stderr := be.finish(); stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
}

// Where they do not fit, a stop may part them. The missing blocks are launched beside those that wait, and the kernel is not
// parted again.
func TestBlocksThatAStopHasPartedGoOn(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"launch", "graph"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m, be, end := startWaits(t, "SIMCUDA_BLOCK_NS=2000")
			m.runStopped(be, 60, how+" sim_lamport 1320 1024 20")
			blp := m.peer(be).BLP
			if blp.Beside == 0 || blp.Beside > 2 || blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
			end()
			be.says("wait for later blocks of their launch", 1)
			if _, stderr := be.finish(); strings.Count(stderr, "wait for later blocks of their launch") != 1 {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// Kernels wait for kernels on other streams, and for the program, which waits for other streams. A stop may keep back just the kernels for
// which the others wait.
func TestKernelsThatWaitForOtherStreamsGoOn(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"streams", "program"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m, be, end := startWaits(t)
			m.runStopped(be, 100, how+" sim_barrier 2 256 20")
			if blp := m.peer(be).BLP; blp.Cuts == 0 || blp.GivenUp != 0 || blp.Beside != 0 {
				t.Errorf("%+v", *blp)
			}
			end()
			be.finish()
		})
	}
}

// A launch has not begun, since work that waits for the program takes all hardware channels. The program waits for the stop to end. The
// stop reaches the GPU all the same. Such a launch of a graph is launched again in another way, once.
func TestStopsComeThroughWhereAllChannelsAreTaken(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{1, 8} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			m, be, end := startWaits(t, fmt.Sprintf("CUDA_DEVICE_MAX_CONNECTIONS=%d", connections))
			m.runStopped(be, 60, "behind sim_lamport 132 256 10")
			if blp := m.peer(be).BLP; blp.Cuts == 0 || blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
			end()
			be.finish()
		})
	}
}

// In a graph a stop waits in vain for a kernel that takes long, and that waits for no other. The library launches the kernels behind it one
// by one, and the next launches of the graph can be stopped as before.
func TestGraphsThatDrainLateStayStoppable(t *testing.T) {
	m, be, end := startWaits(t)
	m.runLate(be, 6, "slow sim_lamport 132 256 8")
	// A launch of two kernels that the library has waited for in vain for long is left to the driver: on a loaded machine, some.
	if blp := m.peer(be).BLP; 2*blp.Uncovered > blp.Launches || blp.Beside != 0 || blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
	end()
	be.finish()
}

// A launch that is repeated behind a kernel for which no stop waits cannot be stopped. It comes behind another stream's launch all the
// same, which is stopped again.
func TestLaunchesBehindOtherStreamsStayThere(t *testing.T) {
	m, be, end := startWaits(t)
	m.runLate(be, 30, "other sim_lamport 132 256 2")
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
	end()
	be.finish()
}

// A launch is logged as the stop of its domain begins, behind a kernel that the stop does not wait for. It runs when the stop is over.
func TestLaunchesThatMeetAStopRun(t *testing.T) {
	m, be, end := startWaits(t)
	m.runLate(be, 40, "during sim_lamport 132 256 20")
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
	end()
	be.finish()
}
