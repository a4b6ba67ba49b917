package e2e

import "testing"

// The program cancelled.c: a thread that is cancelled in the driver, where it waits, is over. The program has holds as before.
func TestHoldsAfterCancelledWaits(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/cancelled.c")
	for _, what := range []string{"context", "launch"} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t, notThroughWaits, "CUDA_MODULE_LOADING=LAZY")
			m.start("be").runBestEffort()
			lc := m.startAs(m.command("lc", program, simulated("sim.cubin")))
			lc.hears("ready")
			holds := func(when string) {
				before := m.peer(lc).Counters.Holds
				m.until(when, func() bool {
					lc.say("plain 1")
					lc.hears("right")
					return m.peer(lc).Counters.Holds > before
				})
			}
			holds("it has holds")
			lc.say("%s 1", what)
			lc.hears("right")
			holds("it has holds again")
		})
	}
}

// Nor has it anything of a domain: what comes behind it is launched, and stopped.
func TestStopsAfterCancelledRecords(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.startOrdered(compile(t, "testdata/cancelled.c"))
	for _, command := range []string{"plain 8", "record 8", "plain 8"} {
		m.stopped(be, lc, command)
	}
}

// Nor is it demand for a turn any more.
func TestTurnsAfterCancelledWaits(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/cancelled.c")
	for _, what := range []string{"context", "stream"} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t, notThroughWaits)
			other := m.start("be")
			other.runBestEffort()
			be := m.startAs(m.command("be", program, simulated("sim.cubin")))
			be.hears("ready")
			m.until("it has turns", func() bool {
				be.say("plain 1")
				be.hears("right")
				return m.peer(be).Counters.Turns > 0
			})
			be.say("%s 1", what)
			be.hears("right")
			m.until("it has no work", func() bool { return !m.peer(be).Busy })
		})
	}
}
