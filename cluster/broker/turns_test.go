package broker

import (
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const lateNs = uint64(time.Second)

// turnOf makes a turn that a slot has had since time 0, among members 0 to 3, which all want it.
func turnOf(owner int) *turn {
	t := &turn{word: segment.NextTurn(41<<16, owner, false), lateAfter: time.Duration(lateNs)}
	for slot := range 4 {
		t.contenders = append(t.contenders, contender{slot: slot, wants: true, sinceNs: 1})
	}
	return t
}

func TestDecisionsAboutTurns(t *testing.T) {
	take, pass, seize := wire.TurnTake, wire.TurnPass, wire.TurnSeize
	now := lateNs / 2
	for name, c := range map[string]struct {
		owner    int
		prepare  func(t *turn)
		kind     uint8
		by, to   int
		now      uint64
		stale    bool
		want     int // owner afterwards; -1: nobody; -2: nothing changes
		wantFrom int // taken from by force; -1: nobody
	}{
		"take a free turn":                {owner: -1, kind: take, by: 2, now: now, want: 2, wantFrom: -1},
		"take another's":                  {owner: 1, kind: take, by: 2, now: now, want: -2, wantFrom: -1},
		"take another's that is late":     {owner: 1, kind: take, by: 2, now: 2 * lateNs, want: -2, wantFrom: -1},
		"take one whose owner left":       {owner: 9, kind: take, by: 2, now: now, want: 2, wantFrom: -1},
		"take as a higher level":          {owner: -1, kind: take, by: 9, now: now, want: -2, wantFrom: -1},
		"take what has changed":           {owner: -1, kind: take, by: 2, now: now, stale: true, want: -2, wantFrom: -1},
		"take while barred":               {owner: -1, kind: take, by: 2, now: now, prepare: func(t *turn) { t.of(2).barredNs = lateNs }, want: -2, wantFrom: -1},
		"take after that":                 {owner: -1, kind: take, by: 2, now: 2 * lateNs, prepare: func(t *turn) { t.of(2).barredNs = lateNs }, want: 2, wantFrom: -1},
		"take while another starves":      {owner: -1, kind: take, by: 2, now: 9 * lateNs, prepare: func(t *turn) { t.of(1).sinceNs = 0 }, want: 1, wantFrom: -1},
		"take as the one who starves":     {owner: -1, kind: take, by: 1, now: 9 * lateNs, prepare: func(t *turn) { t.of(1).sinceNs = 0 }, want: 1, wantFrom: -1},
		"pass":                            {owner: 1, kind: pass, by: 1, to: 3, now: now, want: 3, wantFrom: -1},
		"pass to nobody":                  {owner: 1, kind: pass, by: 1, to: wire.Slots, now: now, want: -1, wantFrom: -1},
		"pass to who is not there":        {owner: 1, kind: pass, by: 1, to: 9, now: now, want: -1, wantFrom: -1},
		"pass to oneself":                 {owner: 1, kind: pass, by: 1, to: 1, now: now, want: -2, wantFrom: -1},
		"pass another's":                  {owner: 1, kind: pass, by: 2, to: 2, now: now, want: -2, wantFrom: -1},
		"pass to who is barred":           {owner: 1, kind: pass, by: 1, to: 3, now: now, prepare: func(t *turn) { t.of(3).barredNs = lateNs }, want: -1, wantFrom: -1},
		"pass past who starves":           {owner: 1, kind: pass, by: 1, to: 3, now: 9 * lateNs, prepare: func(t *turn) { t.of(2).sinceNs = 0 }, want: 2, wantFrom: -1},
		"pass past who is stopped":        {owner: 1, kind: pass, by: 1, to: 3, now: 3 * lateNs, prepare: func(t *turn) { t.of(2).silent = true }, want: 3, wantFrom: -1},
		"seize":                           {owner: 1, kind: seize, by: 2, now: 2 * lateNs, want: 2, wantFrom: 1},
		"seize too early":                 {owner: 1, kind: seize, by: 2, now: now, want: -2, wantFrom: -1},
		"seize from who is stopped":       {owner: 1, kind: seize, by: 2, now: now, prepare: func(t *turn) { t.of(1).silent = true }, want: 2, wantFrom: 1},
		"seize one's own":                 {owner: 2, kind: seize, by: 2, now: 2 * lateNs, want: -2, wantFrom: -1},
		"seize nobody's":                  {owner: -1, kind: seize, by: 2, now: 2 * lateNs, want: -2, wantFrom: -1},
		"seize from a time in the future": {owner: 1, kind: seize, by: 2, now: now, prepare: func(t *turn) { t.sinceNs = 99 * lateNs }, want: -2, wantFrom: -1},
		"seize while another starves":     {owner: 1, kind: seize, by: 2, now: 9 * lateNs, prepare: func(t *turn) { t.of(3).sinceNs = 0 }, want: 3, wantFrom: 1},
		"seize from the longest owner": {owner: 1, kind: seize, by: 2, now: 9 * lateNs, prepare: func(t *turn) {
			t.of(1).sinceNs = 0
			t.of(2).sinceNs = 8 * lateNs
			t.of(0).wants = false
			t.of(3).wants = false
		}, want: 2, wantFrom: 1},
		"a kind that there is not":          {owner: -1, kind: 9, by: 2, now: now, want: -2, wantFrom: -1},
		"who wants nothing does not starve": {owner: 1, kind: pass, by: 1, to: 3, now: 3 * lateNs, prepare: func(t *turn) { t.of(2).wants = false }, want: 3, wantFrom: -1},
	} {
		turn := turnOf(c.owner)
		if c.prepare != nil {
			c.prepare(turn)
		}
		m := &wire.Turn{Kind: c.kind, To: uint8(c.to), Seen: turn.word}
		if c.stale {
			m.Seen -= 1 << 16
		}
		next, from, changed := turn.decide(m, c.by, c.now)
		owner, owned := segment.TurnOwner(next)
		switch {
		case !changed:
			owner = -2
		case !owned:
			owner = -1
		}
		if owner != c.want || from != c.wantFrom || changed && next>>16 != turn.word>>16+1 {
			t.Errorf("%s: %#x after %#x: owner %d, want %d; taken from %d, want %d", name, next, turn.word, owner, c.want, from, c.wantFrom)
		}
	}
}

// The liar always wants a turn, does nothing with those that it gets, and never asks. Each time it keeps the others from theirs for as long
// as it takes to be late, whether they are idle meanwhile or not. It does so less and less often.
func TestWhoOnlyWants(t *testing.T) {
	const liar, honest, quantumMs = 3, 0, 1
	word, since := uint64(0), uint64(0)
	late := 3*quantumMs*uint64(time.Millisecond) + uint64(seizeAfter)
	members := [liar + 1]client{{slot: honest}, {slot: 1}, {slot: 2}, {slot: liar}}
	had, of, waits, longest := uint64(0), uint64(0), uint64(0), uint64(0)
	for now := uint64(1); now < 200*late; now += late / 8 {
		tn := turn{word: word, sinceNs: since, lateAfter: time.Duration(late)}
		idle := now/(8*late)%2 == 1 // for longer than anybody may keep a turn
		for i := range members {
			c := &members[i]
			wants := c.slot == liar || c.slot == honest && !idle
			c.noteWish(wire.TurnRun, wants, now)
			tn.contenders = append(tn.contenders, contender{slot: c.slot, wants: wants, sinceNs: c.wantsSince[0], barredNs: c.barredNs[0]})
		}
		owner, owned := segment.TurnOwner(word)
		kind := map[bool]uint8{false: wire.TurnTake, true: wire.TurnSeize}[owned]
		to := uint8(0)
		switch {
		case owned && owner == honest && idle:
			kind, to = wire.TurnPass, wire.Slots
		case owned && owner == honest:
			kind, to = wire.TurnPass, liar
		case idle:
			continue
		}
		if waits += late / 8; idle || owned && owner == honest {
			waits = 0
		}
		longest = max(longest, waits)
		if !idle {
			of += late / 8
			if owned && owner == liar {
				had += late / 8
			}
		}
		next, seized, changed := tn.decide(&wire.Turn{Kind: kind, To: to, Seen: word}, honest, now)
		if !changed {
			continue
		}
		if seized == liar {
			members[liar].overstayed(wire.TurnRun, late, now)
		}
		if to, is := segment.TurnOwner(next); is {
			members[to].wantsSince[0] = now
		}
		word, since = next, now
	}
	if had == 0 || float64(had) > .2*float64(of) || longest > 4*late {
		t.Errorf("the liar had the turn for %.2f of the time; the honest one waited for %d times what one may keep it", float64(had)/float64(of), longest/late)
	}
}

// Two that pass the turn to each other, or drop it and take it again, do not keep it from a third that wants it.
func TestAccomplicesDoNotStarveAThird(t *testing.T) {
	for name, ask := range map[string]func(turn *turn, owner int) *wire.Turn{
		"pass": func(turn *turn, owner int) *wire.Turn {
			return &wire.Turn{Kind: wire.TurnPass, To: uint8(1 - owner), Seen: turn.word}
		},
		"drop": func(turn *turn, owner int) *wire.Turn {
			return &wire.Turn{Kind: wire.TurnPass, To: wire.Slots, Seen: turn.word}
		},
	} {
		turn, got := turnOf(0), 0
		turn.contenders = turn.contenders[:3]
		for now := lateNs / 2; now < 40*lateNs; now += lateNs / 2 {
			owner, owned := segment.TurnOwner(turn.word)
			m, by := &wire.Turn{Kind: wire.TurnTake, Seen: turn.word}, 0
			if owned {
				m, by = ask(turn, owner), owner
			}
			next, _, changed := turn.decide(m, by, now)
			if !changed {
				t.Fatalf("%s: the turn stands still", name)
			}
			turn.word, turn.sinceNs = next, now
			if owner, owned := segment.TurnOwner(next); owned {
				turn.of(owner).sinceNs = now
				if owner == 2 {
					got++
					turn.word = segment.NextTurn(next, -1, false) // it hands it on
				}
			}
		}
		if got < 5 {
			t.Errorf("%s: the third had %d turns", name, got)
		}
	}
}

// A member wants a turn where its page says so, unless it has had its part.
func TestWhoWantsATurn(t *testing.T) {
	b := start(t, "[default]\nlevel = 'be'")
	p := b.join(1, 7)
	state, line := p.State.State(), p.State.Line(p.slot())
	for _, c := range []struct {
		mechanisms   configs.Mechanism
		busy, capped uint32
		wants        bool
	}{{configs.Turns, 1, 0, true}, {configs.Turns, 2, 0, true}, {configs.Turns, 0, 0, false}, {configs.Turns, 1, 1, false}, {0, 1, 0, false}} {
		state.Mechanisms.Store(uint32(c.mechanisms))
		line.Busy.Store(c.busy)
		state.Capped.Store(c.capped)
		b.do(func(s *Server) {
			for _, client := range s.clients {
				if !client.member {
					continue
				}
				if list := client.gpu.contenders(wire.TurnRun, 1); len(list) != 1 || list[0].wants != c.wants {
					t.Errorf("%+v: %+v", c, list)
				}
			}
		})
	}
}
