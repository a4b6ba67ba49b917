package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func (m *machine) startCheckpoint(role string) *process {
	m.t.Helper()
	p := m.startAs(m.command(role, compile(m.t, "testdata/checkpoint.c"), simulated("sim.cubin")))
	p.hears("ready")
	return p
}

// does has a process lock, checkpoint, restore or unlock itself ("own"), or be so ("other").
func (p *process) does(who, what string) {
	p.m.t.Helper()
	p.say("%s %s", who, what)
	p.hears(fmt.Sprintf("%s %s 0", who, what))
}

func (m *machine) goesOn(what string, p *process) {
	m.t.Helper()
	before := p.count()
	m.until(what, func() bool { return p.count() > before+3 })
}

func (p *process) runs() {
	p.m.t.Helper()
	p.say("run")
	p.hears("running")
	p.m.goesOn("kernels complete", p)
}

func (m *machine) isLocked(p *process) bool {
	return slices.Contains(m.peer(p).Fallbacks, "locked")
}

// everyCheckpoint runs a test with a program that locks itself, and with one that another process locks. A checkpoint frees the
// channels in one of two ways.
func everyCheckpoint(t *testing.T, test func(t *testing.T, who string, environment ...string)) {
	for _, who := range []string{"own", "other"} {
		for _, closes := range []string{"0", "1"} {
			t.Run(who+"/closes-only-"+closes, func(t *testing.T) {
				t.Parallel()
				test(t, who, "SIMCUDA_CLOSES_ONLY="+closes)
			})
		}
	}
}

// Best effort whose kernels a window has stopped is locked while the window is open, and checkpointed. Restored, it is stopped by windows again,
// and all that was stopped comes out right.
func TestCheckpointOfStoppedKernels(t *testing.T) {
	t.Parallel()
	everyCheckpoint(t, func(t *testing.T, who string, environment ...string) {
		m := newMachine(t, "mechanisms = [\"blp\"]\n[hold]\nmax_ms = 10000\n[share]\nmin_be = 0\n", environment...)
		be, long, lc := m.startCheckpoint("be"), m.start("lc"), m.start("lc")
		m.joined(be, long, lc)
		m.sees(long)
		be.runs()
		long.say("lc 1 2 600000000 0 stream") // until it is killed
		m.until("a window stops it", func() bool { return m.peer(long).WindowOpen && m.stops(be) > 0 })
		be.does(who, "lock")
		if !m.peer(long).WindowOpen {
			t.Error("the window is over")
		}
		be.does(who, "checkpoint")
		// Of another process's checkpoint that closes a file there is nothing to see where no control is sent.
		unseen := who == "other" && slices.Contains(environment, "SIMCUDA_CLOSES_ONLY=1")
		m.until("others see that it is checkpointed", func() bool { return (unseen || m.isLocked(be)) && !m.peer(be).Busy })
		_ = long.cmd.Process.Kill()
		lc.request(5, 3, "stream")
		be.does(who, "restore")
		be.does(who, "unlock")
		m.goesOn("kernels complete again", be)
		m.until("it has joined again", func() bool { return !m.isLocked(be) })
		stops := m.stops(be)
		m.until("windows stop it again", func() bool {
			lc.request(5, 3, "stream")
			return m.stops(be) > stops+3
		})
		be.say("end")
		be.hears("right")
	})
}

// A latency-critical program is locked and checkpointed while its window is open: the window is closed, and best effort goes on. Restored, it
// has windows, holds and its timeslice again.
func TestCheckpointOfAWindow(t *testing.T) {
	t.Parallel()
	everyCheckpoint(t, func(t *testing.T, who string, environment ...string) {
		m := newMachine(t, "mechanisms = [\"timeslice\", \"hold\", \"gate\"]\n[hold]\nmax_ms = 10000\n[share]\nmin_be = 0\n", environment...)
		lc, be := m.startCheckpoint("lc"), m.start("be")
		m.joined(lc, be)
		be.runBestEffort()
		lc.runs()
		var slice uint64
		lc.ask("slice", "slice %d", &slice)
		lc.does(who, "lock") // its thread opens a window meanwhile, and waits in the driver
		m.until("it is locked", func() bool { return m.isLocked(lc) && !m.peer(lc).WindowOpen && !m.peer(lc).Busy })
		m.goesOn("best effort goes on", be)
		lc.does(who, "checkpoint")
		m.goesOn("best effort goes on", be)
		if peer := m.peer(lc); !m.isLocked(lc) || peer.WindowOpen || peer.Busy {
			t.Errorf("checkpointed: %+v", peer)
		}
		lc.does(who, "restore")
		if peer := m.peer(lc); !m.isLocked(lc) || peer.WindowOpen || peer.Busy {
			t.Errorf("restored: %+v", peer)
		}
		before := m.peer(lc).Counters
		lc.does(who, "unlock")
		m.goesOn("kernels complete again", lc)
		m.until("it has windows again", func() bool { return !m.isLocked(lc) && m.peer(lc).Counters.Windows > before.Windows })
		m.until("it has holds again", func() bool { return m.peer(lc).Counters.Holds > before.Holds })
		m.until("it has its timeslice again", func() bool {
			var now uint64
			lc.ask("slice", "slice %d", &now)
			return now == slice
		})
		if peer := m.peer(lc); slices.Contains(peer.Fallbacks, "control_refused") {
			t.Errorf("%+v", peer)
		}
		lc.say("end")
		lc.hears("right")
	})
}

// One of two that take turns is locked in the other's turn, without waiting for its own. Locked in its own turn, it hands that on.
// Checkpointed it takes no turns; restored it does, with the shortest timeslice in force.
func TestCheckpointOfTurns(t *testing.T) {
	t.Parallel()
	for _, mine := range []bool{false, true} {
		t.Run(fmt.Sprintf("own-%v", mine), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "[turns]\nquantum_ms = 10000\n") // whose turn it is outlasts the lock, also on a slow machine
			be, other, lc := m.startCheckpoint("be"), m.start("be"), m.start("lc")
			m.joined(be, other, lc)
			other.runBestEffort()
			be.runs()
			m.until("it is whose turn it is to be", func() bool { return m.peer(be).Suspended != mine && m.peer(other).Suspended == mine })
			before, seized := []uint64{m.peer(be).Counters.Turns, m.peer(other).Counters.Turns}, m.peer(other).Counters.TurnsSeized
			be.does("own", "lock")
			if now := m.peer(be).Counters.Turns; now != before[0] {
				t.Errorf("%d turns before, %d after the lock", before[0], now)
			}
			if now := m.peer(other).Counters.Turns; !mine && now != before[1] {
				t.Errorf("it was locked in the other's turn %d, and is in turn %d", before[1], now)
			}
			be.does("own", "checkpoint")
			m.until("the other one has all turns", func() bool { return m.isLocked(be) && !m.peer(be).Busy && !m.peer(other).Suspended })
			m.goesOn("the other one goes on", other)
			if n := m.peer(other).Counters.TurnsSeized - seized; n != 0 {
				t.Errorf("%d turns were seized", n)
			}
			be.does("own", "restore")
			be.does("own", "unlock")
			m.until("it has a turn again", func() bool { return m.peer(be).Counters.Turns > before[0] })
			m.goesOn("kernels complete again", be)
			m.until("it has the shortest timeslice", func() bool {
				var us uint64
				be.ask("slice", "slice %d", &us)
				return us == 1
			})
			be.say("end")
			be.hears("right")
		})
	}
}

// The program locks itself and another process unlocks it, and the other way round: it joins again.
func TestCheckpointEndedByAnother(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.startCheckpoint("be"), m.start("lc")
	m.joined(be, lc)
	be.runs()
	for _, end := range [][2]string{{"own", "other"}, {"other", "own"}} {
		be.does(end[0], "lock")
		m.until("it is locked", func() bool { return m.isLocked(be) })
		be.does(end[1], "unlock")
		m.until("it has joined again", func() bool { return !m.isLocked(be) })
		m.goesOn("kernels complete again", be)
	}
	be.say("own unlock") // which the driver refuses
	be.hears("own unlock 401")
	be.say("own checkpoint")
	be.hears("own checkpoint 401")
	m.goesOn("kernels complete", be)
	be.say("end")
	be.hears("right")
}

// People have moved a program's memory to the host, and its thread waits. It is locked and checkpointed, and goes on once it has been restored
// and resumed.
func TestCheckpointOfASuspendedProgram(t *testing.T) {
	t.Parallel()
	everyCheckpoint(t, func(t *testing.T, who string, environment ...string) {
		m := newSmall(t, "", environment...)
		be := m.startCheckpoint("be")
		m.joined(be)
		m.until("memory is published", func() bool { return m.memory(be).Resident >= 8<<20 })
		be.runs()
		m.does(be, ": is suspended: ", "suspend")
		m.until("its memory is out", func() bool { return m.memory(be).Swapped >= 8<<20 })
		for _, what := range []string{"lock", "checkpoint", "restore", "unlock"} {
			be.does(who, what)
		}
		m.until("it has joined again", func() bool { return !m.isLocked(be) })
		if now := m.memory(be); now.State != "suspended" || now.Swapped < 8<<20 {
			t.Errorf("%+v", now)
		}
		m.does(be, ": goes on: ", "resume")
		m.goesOn("kernels complete again", be)
		be.say("end")
		be.hears("right")
	})
}

// A lock that times out changes nothing.
func TestCheckpointLockTimesOut(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	lc := m.start("lc")
	be := m.startAs(m.command("be", compile(t, "testdata/checkpoint.c"), simulated("sim.cubin")))
	be.hears("ready")
	m.joined(be, lc)
	be.runs()
	be.say("busy")
	be.hears("busy")
	be.say("own lock 100")
	be.hears("own lock 600") // CUDA_ERROR_NOT_READY
	m.until("it takes part", func() bool { return !m.isLocked(be) })
	be.say("free")
	be.hears("free")
	m.goesOn("kernels complete", be)
	be.does("own", "lock")
	be.does("own", "unlock")
	be.say("end")
	be.hears("right")
}

// Contexts come and go, also beside a primary one that is not initialised yet: the driver is not asked whether the process is locked.
func TestCheckpointIsNotSuspected(t *testing.T) {
	t.Parallel()
	trace := folder(t) + "/trace"
	m := newMachine(t, "", "SIMCUDA_TRACE="+trace, "SIMCUDA_LATE_CONTEXT=1")
	lc := m.startAs(m.command("lc", compile(t, "testdata/contexts.c"), "beside-primary"))
	for range 6 {
		lc.hear()
	}
	if text := traced(t, trace); !strings.Contains(text, "cuCtxDestroy") || strings.Contains(text, "cuCheckpoint") {
		t.Errorf("trace: %s", text)
	}
}

// A process that the driver could not restore can only end: its log says so once, and others go on without it.
func TestCheckpointThatFails(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[turns]\nquantum_ms = 2000\n")
	be, other, lc := m.startCheckpoint("be"), m.start("be"), m.start("lc")
	m.joined(be, other, lc)
	other.runBestEffort()
	be.runs()
	for _, what := range []string{"lock", "checkpoint", "fail"} {
		be.does("other", what)
	}
	be.says("could not checkpoint or restore this process", 1)
	m.until("the other one has all turns", func() bool { return m.isLocked(be) && !m.peer(be).Busy && !m.peer(other).Suspended })
	m.goesOn("the other one goes on", other)
	_ = be.cmd.Process.Kill()
	m.until("it is gone", func() bool { return len(m.peers()) == 2 })
	m.goesOn("the other one goes on", other)
	if n := strings.Count(be.stderr.String(), "could not checkpoint or restore"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// Another process unlocks the program, and the driver does not say so. The driver's taking the program's work does, also where no process
// needs to know of that work.
func TestCheckpointEndIsSeenByWork(t *testing.T) {
	t.Parallel()
	for _, mechanisms := range []string{"\"timeslice\", \"hold\", \"gate\"", "\"blp\""} {
		for _, others := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/others-%v", mechanisms, others), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, "mechanisms = ["+mechanisms+"]\n", "SIMCUDA_FAIL=cuCheckpointProcessGetState:1+")
				be := m.startCheckpoint("be")
				m.joined(be)
				if others {
					m.joined(be, m.start("lc"))
				}
				be.runs()
				be.does("own", "lock")
				m.until("it is locked", func() bool { return m.isLocked(be) })
				be.does("other", "unlock")
				m.until("it has joined again", func() bool { return !m.isLocked(be) })
				m.goesOn("kernels complete again", be)
				be.say("end")
				be.hears("right")
			})
		}
	}
}

// While best effort is locked its memory cannot go, and who needs it is out of memory at once. A checkpoint frees it.
func TestCheckpointOfMemory(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"own", "other"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			const most = 244 << 20 // more than is free beside the other's 8 MiB
			m := newSmall(t, "wait_ms = 3600000\n")
			be, lc := m.startCheckpoint("be"), m.startMemory("lc")
			m.joined(be, lc)
			m.until("memory is published", func() bool { return m.memory(be).Resident >= 8<<20 })
			be.does(who, "lock")
			if _, result := lc.allocate("memory", most); result != outOfMemory {
				t.Errorf("locked: %d", result)
			}
			be.does(who, "checkpoint")
			m.until("its memory is free", func() bool { return m.memory(be).Resident == 0 })
			if _, result := lc.allocate("memory", most); result != 0 {
				t.Errorf("checkpointed: %d", result)
			}
			lc.finish()
			be.does(who, "restore")
			be.does(who, "unlock")
			be.runs()
			m.until("it has joined again", func() bool { return !m.isLocked(be) && m.memory(be).Resident >= 8<<20 })
			be.say("end")
			be.hears("right")
		})
	}
}
