package agent

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A process that is locked, or about to be, hands its turn on and says that it takes none. It is on the runlist with the fair timeslice.
func TestLockedProcessStaysAway(t *testing.T) {
	a, d := withDevice(t)
	a.log = zerolog.Nop()
	if !a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, segment.Now()) {
		t.Fatal("no turn")
	}
	a.schedule(false)
	a.probed, a.turns, d.asks = 1, true, true
	d.locked = true
	if a.stayAway(segment.Now()) <= 0 {
		t.Error("it looks at once again")
	}
	if _, owned := segment.TurnOwner(a.segment.Turn.Load()); owned {
		t.Error("it kept its turn")
	}
	if d.count() != 0 || d.asks || a.turns || a.canTakeTurns() || configs.Mechanism(a.own().Mechanisms.Load())&configs.Turns != 0 {
		t.Errorf("off %v, asks %v, turns %v, in force %b", d.off, d.asks, a.turns, a.own().Mechanisms.Load())
	}
	for handle, us := range d.us {
		if us != a.core.config.Timeslice.FairUs {
			t.Errorf("TSG %d has %d us", handle, us)
		}
	}
	if len(d.us) != ownTSGs || !a.own().Lacks(configs.FallbackLocked) {
		t.Errorf("timeslices %v, lacks %b", d.us, a.own().Fallbacks.Load())
	}
}

// It leaves others their turn.
func TestLockedProcessTakesNoTurn(t *testing.T) {
	a, d := withDevice(t)
	a.log = zerolog.Nop()
	a.segment.MoveTurn(false, a.segment.Turn.Load(), (a.slot+1)%segment.Slots, false, segment.Now())
	turn := a.segment.Turn.Load()
	d.locked = true
	a.stayAway(segment.Now())
	if a.segment.Turn.Load() != turn {
		t.Error("it moved another one's turn")
	}
}

// Channels that are made anew are learnt anew: a refusal of earlier ones does not count.
func TestChannelsAreLearntAnew(t *testing.T) {
	a, d := withDevice(t)
	a.log = zerolog.Nop()
	a.wantUs = 700
	d.refuses = refusesOne("timeslice", 2, refusedForGood)
	a.applyTimeslice()
	if !a.refused || !a.own().Lacks(configs.FallbackControlRefused) {
		t.Fatal("it is not refused")
	}
	a.learnAnew()
	if !a.refused {
		t.Error("nothing is new")
	}
	a.noTurns, a.pace = true, pace{1, 1}
	a.setLacks(configs.FallbackLocked, true)
	d.refuses, d.joins = nil, 1
	a.learnAnew()
	a.applyTimeslice()
	if a.refused || a.noTurns || a.pace != (pace{}) || a.own().Lacks(configs.FallbackControlRefused|configs.FallbackLocked) || d.us[1] != 700 || d.us[2] != 700 {
		t.Errorf("refused %v, no turns %v, lacks %b, timeslices %v", a.refused, a.noTurns, a.own().Fallbacks.Load(), d.us)
	}
}

// Others read that a process is locked.
func TestMemoryViewKnowsLocked(t *testing.T) {
	a, _ := withDevice(t)
	a.setLacks(configs.FallbackLocked, true) // it is seen to be one of others
	a.slot = (a.slot + 1) % segment.Slots
	v := a.view(memoryCounters{}, segment.Now())
	for _, m := range v.all {
		if m.locked != (m.slot != a.slot) || m.silent != m.locked {
			t.Errorf("%+v", m)
		}
	}
	if len(v.all) != 2 {
		t.Errorf("%d processes", len(v.all))
	}
}
