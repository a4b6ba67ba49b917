package broker

import (
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// seizeAfter is how late an owner of a turn may be after three quanta, as among agents (preempt/agent/turn.go).
const seizeAfter = 250 * time.Millisecond

// silentAfter is how old the heartbeat is of a process that is stopped.
const silentAfter = 3 * time.Second

// contender is what is known of a member that may have a turn.
type contender struct {
	slot     int
	wants    bool   // it has work, and takes turns
	sinceNs  uint64 // since when, of those turns; 0: it does not
	silent   bool
	barredNs uint64 // no turn before; 0: it may have one
}

// turn is a turn of a GPU and what there is to decide about it.
type turn struct {
	word, sinceNs uint64
	lateAfter     time.Duration // an owner is late then
	contenders    []contender   // members of the lowest level
}

func (t *turn) of(slot int) *contender {
	for i := range t.contenders {
		if t.contenders[i].slot == slot {
			return &t.contenders[i]
		}
	}
	return nil
}

// first is the member that gets the turn if it changes hands. That is the asker, or the member that has wanted it for longest, if that is
// longer than all contenders should need. The latter need not ask. If it does nothing with its turn, it is late some time, and is barred
// then.
func (t *turn) first(asker *contender, now uint64) *contender {
	if longest := t.starving(now); longest != nil {
		return longest
	}
	return asker
}

// starving is the one of the members without the turn that has waited for too long; nil: no member has.
func (t *turn) starving(now uint64) *contender {
	var longest *contender
	wanting := 0
	owner, owned := segment.TurnOwner(t.word)
	for i := range t.contenders {
		c := &t.contenders[i]
		if !c.wants || c.silent || c.barredNs > now {
			continue
		}
		wanting++
		if owned && c.slot == owner {
			continue
		}
		if longest == nil || c.sinceNs < longest.sinceNs {
			longest = c
		}
	}
	if longest == nil || passed(longest.sinceNs, now) <= time.Duration(wanting+1)*t.lateAfter {
		return nil
	}
	return longest
}

// decide says what becomes of a turn that a member asks to change. seized is the slot that it is taken from by force, -1: none.
func (t *turn) decide(m *wire.Turn, by int, now uint64) (next uint64, seized int, changed bool) {
	asker := t.of(by)
	if asker == nil || m.Seen != t.word {
		return 0, -1, false
	}
	owner, owned := segment.TurnOwner(t.word)
	if owned && t.of(owner) == nil { // it left, or is of a higher level by now
		owned = false
	}
	switch m.Kind {
	case wire.TurnTake:
		if owned || asker.barredNs > now {
			return 0, -1, false
		}
		return segment.NextTurn(t.word, t.first(asker, now).slot, false), -1, true
	case wire.TurnPass:
		if !owned || owner != by {
			return 0, -1, false
		}
		to := t.of(int(m.To))
		if to == asker { // it would never be late
			return 0, -1, false
		}
		if first := t.starving(now); first != nil {
			to = first
		}
		if to == nil || to.barredNs > now {
			return segment.NextTurn(t.word, -1, false), -1, true
		}
		return segment.NextTurn(t.word, to.slot, false), -1, true
	case wire.TurnSeize:
		late := passed(t.sinceNs, now) > t.lateAfter || owned && t.of(owner).silent
		if !owned || owner == by || !late || asker.barredNs > now {
			return 0, -1, false
		}
		return segment.NextTurn(t.word, t.first(asker, now).slot, true), owner, true
	}
	return 0, -1, false
}

// passed is the time since then; 0 for times that lie ahead.
func passed(then, now uint64) time.Duration {
	if then >= now {
		return 0
	}
	return time.Duration(now - then)
}
