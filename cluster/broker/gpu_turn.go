package broker

import (
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// mostBars is how often the time doubles for which a member takes no turns after it overstayed one, and overstays the next one again. So one
// that never passes its turn on has it for a 17th of the time at most.
const mostBars = 4

// turn carries out what a member asks of a turn, if that is its right. It gets no answer: it sees the word.
func (g *gpu) turn(c *client, m *wire.Turn, p *policy.Policy) {
	word, since := g.turnWords(m.Which)
	now := segment.Now()
	late := 3*time.Duration(p.QuantumMs)*time.Millisecond + seizeAfter
	if m.Which == wire.TurnMemory {
		late = time.Duration(p.MemoryLateMs) * time.Millisecond
	}
	t := turn{word: word.Load(), sinceNs: since.Load(), lateAfter: late, contenders: g.contenders(m.Which, now)}
	next, seized, changed := t.decide(m, c.slot, now)
	if !changed {
		return
	}
	if seized >= 0 {
		g.slot[seized].overstayed(m.Which, uint64(t.lateAfter), now)
	} else if m.Kind == wire.TurnPass {
		c.inARow[m.Which] = 0
	}
	if owner, owned := segment.TurnOwner(next); owned {
		g.slot[owner].wantsSince[m.Which] = now
	}
	since.Store(now) // first: a new turn is never seen with an older time
	word.Store(next)
	g.changed = true
}

// overstayed bars a client from a turn that was seized from it.
func (c *client) overstayed(which uint8, lateNs, now uint64) {
	c.overstays++
	c.barredNs[which] = now + lateNs<<c.inARow[which]
	c.inARow[which] = min(c.inARow[which]+1, mostBars)
}

// contenders are the members of the lowest level. Their pages state a wish and nothing else.
func (g *gpu) contenders(which uint8, now uint64) (list []contender) {
	for slot, c := range g.slot {
		if c == nil || !c.member || c.inForce.Level != wire.Levels-1 {
			continue
		}
		state := c.view.State()
		wants := state.Memory.WantedSinceNs.Load() != 0
		if which == wire.TurnRun {
			wants = state.Has(configs.Turns) && c.view.Line(slot).Busy.Load() != 0 && state.Capped.Load() == 0
		}
		c.noteWish(which, wants, now)
		list = append(list, contender{slot: slot, wants: wants, sinceNs: c.wantsSince[which], barredNs: c.barredNs[which],
			silent: passed(state.HeartbeatNs.Load(), now) > silentAfter})
	}
	return list
}

// noteWish takes note of since when a client wants a turn.
func (c *client) noteWish(which uint8, wants bool, now uint64) {
	if !wants {
		c.wantsSince[which] = 0
	} else if c.wantsSince[which] == 0 {
		c.wantsSince[which] = now
	}
}
