package e2e

import "testing"

const notThroughWaits = "[hold]\nwhile_synchronizing = false\n"

// A wait for the whole context does not end the hold, where the library waits for each stream instead.
func TestHoldWhileSynchronizing(t *testing.T) {
	t.Parallel()
	for config, stays := range map[string]bool{notThroughWaits: false, "": true} {
		m, lc := besideBestEffort(t, config)
		lc.request(3, 1, "context") // the first launch of a kernel waits for the context, too
		before := m.peer(lc).Counters
		m.until("there were holds", func() bool {
			lc.request(20, 5, "context")
			return m.peer(lc).Counters.Holds >= before.Holds+3
		})
		c := m.peer(lc).Counters
		windows, released := c.Windows-before.Windows, c.HoldsReleased-before.HoldsReleased
		if stays && released != 0 || !stays && released < windows {
			t.Errorf("%q: %d of %d holds were released in %d windows", config, released, c.Holds-before.Holds, windows)
		}
	}
}

// The program synchronize.c: whatever streams there are, who waits for the context finds their work done.
func TestSynchronizeBesideHolds(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/synchronize.c")
	for _, c := range []struct {
		what  string
		stays bool // no hold is released
	}{{"many", true}, {"destroyed", false}, {"own", false}, {"captured", false}, {"refused", true}, {"kept", true}, {"invalid", true}} {
		t.Run(c.what, func(t *testing.T) {
			m := newMachine(t, "")
			m.start("be").runBestEffort()
			lc := m.startAs(m.command("lc", program, simulated("sim.cubin")))
			lc.hears("ready")
			m.until("it has holds", func() bool {
				lc.say("plain 1")
				lc.hears("right")
				return m.peer(lc).Counters.Holds > 0
			})
			lc.say("%s 1", c.what) // what it makes for that is made with calls that wait for the context
			lc.hears("right")
			before := m.peer(lc).Counters
			after := before
			m.until("there was a hold", func() bool {
				lc.say("%s 20", c.what)
				lc.hears("right")
				after = m.peer(lc).Counters
				return after.Holds > before.Holds
			})
			if released := after.HoldsReleased - before.HoldsReleased; c.stays && released != 0 || !c.stays && released == 0 {
				t.Errorf("%d of %d holds were released", released, after.Holds-before.Holds)
			}
		})
	}
}
