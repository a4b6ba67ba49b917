package agent

import (
	"cmp"
	"math/bits"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A best-effort process gets at most a part of the GPU's time: share.max. All of a GPU together get at most another one: share.max_be.
// Counted is what share.min_be counts: RanNs of each. A process that has used its part up leaves the runlist until enough is
// there again for a stretch. So it comes and goes some times in share.period_ms, and not at each look.

const (
	// A stretch is a part of what share.period_ms allows, between these: coming and going take some hundred microseconds each.
	stretches     = 8
	leastStretch  = 2e6
	mostStretch   = 50e6
	unlimitedPart = 1
)

// stretchOf is how long the GPU may be used at once, in nanoseconds.
func stretchOf(part, overNs float64) float64 {
	return max(leastStretch, min(part*overNs/stretches, mostStretch))
}

// use counts some time, and what was used in it. A rest is kept for one stretch. A debt is paid in share.period_ms at most; but one that is
// no longer than the longest stretch is paid whole, since looks may be late.
func (b *budget) use(part, overNs, passedNs, usedNs float64) {
	if part >= unlimitedPart {
		*b = budget{}
		return
	}
	stretch := stretchOf(part, overNs)
	b.ns = max(-max(part*overNs, mostStretch), min(b.ns+part*passedNs-usedNs, stretch))
	b.spent = b.ns <= 0 || b.spent && b.ns < stretch
}

// wait is the least time until it changes.
func (b *budget) wait(part, overNs float64) float64 {
	switch {
	case part >= unlimitedPart:
		return float64(heartbeat)
	case b.spent:
		return (stretchOf(part, overNs) - b.ns) / part
	}
	return b.ns / (1 - part)
}

// partOf is the part of one process beside others; without a limit that is one too.
func partOf(all float64, others int) float64 {
	if all >= unlimitedPart {
		return all
	}
	return all / float64(1+others)
}

// used is for how long the owner of a slot had the GPU since the last look. It says so late: until then it is believed to run where it has work
// and is on the runlist, and what was too much is taken back. In the long run it had no more than the time that passed.
func (c *caps) used(slot int, of *segment.Slot, works bool, now uint64) float64 {
	was := c.seen[slot]
	is := ran{started: of.StartedNs.Load(), ns: of.RanNs.Load(), atNs: now}
	if at := of.RanAtNs.Load(); works && of.Suspended.Load() == 0 && at < now {
		is.ns += min(now-at, uint64(heartbeat))
	}
	room := min(was.roomNs+float64(now-min(now, was.atNs)), float64(heartbeat))
	used := min(float64(int64(is.ns-was.ns)), room)
	if was.started != is.started {
		used, room = 0, 0
	}
	is.roomNs = min(room-used, float64(heartbeat))
	c.seen[slot] = is
	return max(used, -float64(heartbeat))
}

// maxOf is the most of the GPU's time that this process gets: the least of what the settings and a broker say.
func maxOf(config configs.Config, l segment.Limits) float64 {
	return min(config.Share.Max, cmp.Or(l.ShareMax, unlimitedPart))
}

// canCap says whether this process can leave the GPU.
func (a *agent) canCap() bool { return a.place != placeShared && !a.noTurns }

// mayBeCapped says whether a maximum is in force for this process.
func (a *agent) mayBeCapped() bool {
	limited := maxOf(a.core.config, a.segment.Limits()) < unlimitedPart || a.core.config.Share.MaxBE < unlimitedPart
	return limited && a.core.levelNow() == lowestLevel && a.canCap()
}

// cap says whether this process is to be off the GPU, since it or all best effort had its part, and when to look again.
func (a *agent) cap(p peers, now uint64) (off bool, wait time.Duration) {
	c, own, all := &a.caps, maxOf(a.core.config, a.segment.Limits()), a.core.config.Share.MaxBE
	over := float64(a.core.config.Share.PeriodMs) * 1e6
	if !a.mayBeCapped() {
		a.setCapped(p, false)
		c.atNs = 0
		return false, heartbeat
	}
	said := saidOf{mine: c.used(a.slot, a.own(), false, now)} // it has just been counted
	for m := p.same; m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		peer, works := a.segment.Slot(slot), a.segment.Line(slot).Busy.Load() == segment.BusyWorks
		said.others += c.used(slot, peer, works, now)
		said.peers++
		if works {
			said.working++
			said.wants = said.wants || peer.Capped.Load() == 0
		}
	}
	passed, busyNs := now-c.atNs, a.counted.busyNs
	if c.atNs == 0 { // it begins with a stretch
		passed, said.mine, said.others = uint64(over), 0, 0
		c.own, c.all, c.least, c.fair = budget{}, budget{}, budget{}, budget{}
	} else if c.on {
		a.own().CappedNs.Add(min(passed, busyNs-min(busyNs, c.busyNs)))
	}
	c.atNs, c.busyNs = now, busyNs
	spent, changes := c.use(own, all, over, float64(passed), said)
	on := spent && !a.drains()
	if on != c.on && !a.drains() && a.segment.WindowsOpen(p.higher) != 0 {
		// Putting TSGs onto the runlist, or taking them off, would cost the higher level's request a switch.
		if c.dueNs == 0 {
			c.dueNs = now
		}
		if now-c.dueNs < a.quantumMs()*uint64(time.Millisecond) {
			return c.on, windowPoll
		}
	}
	c.dueNs = 0
	return a.setCapped(p, on), a.capWait(changes, over)
}

// use counts some time. It returns whether the process is to be off the GPU, and when that may change.
func (c *caps) use(own, all, over, passed float64, said saidOf) (spent bool, changes float64) {
	changes = float64(heartbeat)
	for _, of := range []struct {
		*budget
		part, used float64
	}{
		{&c.own, own, said.mine},
		{&c.all, all, said.mine + said.others},
		{&c.least, partOf(all, said.peers), said.mine},
		{&c.fair, partOf(all, said.working), said.mine},
	} {
		of.use(of.part, over, passed, of.used)
		changes = min(changes, of.wait(of.part, over))
	}
	return c.own.spent || c.least.spent && (c.all.spent || c.fair.spent && said.wants), changes
}

// capWait is how long until the next look. A process that is alone is not woken when it has work again.
func (a *agent) capWait(ns, over float64) time.Duration {
	if !a.caps.on && !a.device.busy() {
		ns = max(ns, min(float64(shareCheck), over/2))
	}
	return time.Duration(max(float64(stepGap), min(ns, float64(heartbeat))))
}

// setCapped tells the others whether this process is kept off the GPU. It gets no turn then, and wants none.
func (a *agent) setCapped(p peers, on bool) bool {
	if a.caps.on == on {
		return on
	}
	a.caps.on = on
	a.own().Capped.Store(uint32(bit(on)))
	if on && a.probed != 0 {
		a.probed = 0
		a.device.probe(false)
	}
	if p.same != 0 {
		a.segment.Ring()
	}
	return on
}
