package e2e

import (
	"testing"
	"time"
)

// TestHoldsGiveWay proves that a hold which stands in the way of its own process's work does so for milliseconds, where
// neither its limit nor the timeslice would end it for a second.
func TestHoldsGiveWay(t *testing.T) {
	const long = "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 1000\n"
	for _, c := range []struct{ name, settings, environment string }{
		// Behind a single link nothing is left to fetch: the host engine turns away in every hold.
		{"of one link", long + "chain = 1\n", "NONE="},
		// The engine looks between the two links: it has turned away when the second one comes.
		{"that came late", long, "SIMCUDA_DOORBELL_US=500:gpreempt_hold"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, c.settings, c.environment)
			be, lc := m.start("be"), m.start("lc")
			be.runBestEffort()
			m.joined(be, lc)
			m.until("BE yields", func() bool { return m.peer(be).TimesliceUs == 1 })
			p50, _ := lc.request(20, 5, "stream")
			most := lc.slowest
			counters := m.peer(lc).Counters
			t.Logf("request: p50 %v, max %v; %+v", p50, most, counters)
			if most > 500*time.Millisecond {
				t.Errorf("a request took %v", most)
			}
			if counters.Holds == 0 || counters.HoldsStalled == 0 {
				t.Errorf("nothing was tested: %d holds, %d of them were found in the way", counters.Holds, counters.HoldsStalled)
			}
		})
	}
}
