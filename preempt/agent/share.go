package agent

import (
	"math"
	"math/bits"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// A process under higher levels gets its share (share.min_be) by a longer timeslice: the turns that it gets on the GPU
// anyway become as much longer as the share needs.

// leastBoostUs is the shortest raised timeslice: a switch takes about as long.
const leastBoostUs = 50

func (a *agent) usage(p peers, now uint64) usage {
	u := usage{atNs: now, busyNs: busyNs(a.gpu), onNs: a.onFor(now)}
	for m := p.higher; m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		s := a.segment.Slot(slot)
		u.openNs[slot], u.windows[slot] = s.WindowNs.Load(), s.Windows.Load()
		if since := a.segment.Line(slot).WindowOpenedNs.Load(); since != 0 && since < now {
			u.openNs[slot] += now - since
		}
	}
	return u
}

// keepsUs is how long a process of a higher level keeps the GPU in a window before this process gets a turn. Without a hold
// it gives the GPU away between its kernels.
func (a *agent) keepsUs(slot int) uint64 {
	s, fair := a.segment.Slot(slot), a.core.config.Timeslice.FairUs
	us := uint64(s.TimesliceUs.Load())
	if us == 0 || !s.Has(configs.Hold) && us > fair {
		us = fair
	}
	return us
}

// left is the part of the time between two usages without a window. It assumes that windows of several processes overlap by
// chance, as those of independent services do.
func left(from, to usage, higher uint64) float64 {
	part, ns := 1.0, float64(to.atNs-from.atNs)
	for m := higher; m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		if to.openNs[slot] >= from.openNs[slot] && to.windows[slot] >= from.windows[slot] { // else another process's by now
			part *= 1 - min(float64(to.openNs[slot]-from.openNs[slot])/ns, 1)
		}
	}
	return part
}

// count adds the GPU time that the process got since the last call: the time that windows of higher levels left, if it had
// work and was on the runlist.
func (a *agent) count(p peers, now uint64) {
	last, lastBusy := a.counted, a.countedBusy
	a.counted = a.usage(p, now)
	a.countedBusy = a.counted.busyNs
	if last.atNs != 0 && last.atNs < now && !a.off && a.countedBusy > lastBusy {
		busy := min(now-last.atNs, a.countedBusy-lastBusy)
		a.own().RanNs.Add(uint64(left(last, a.counted, p.higher&a.countedHigher) * float64(busy)))
	}
	a.countedHigher = p.higher
	a.own().RanAtNs.Store(now)
}

// boost returns the timeslice, in microseconds, with which the process would have had at least its share (least) between two
// usages; 0 if it had that.
func boost(from, to usage, higher uint64, least float64, keepsUs func(slot int) uint64) uint64 {
	if to.atNs <= from.atNs {
		return 0
	}
	ns := float64(to.atNs - from.atNs)
	left, turns := left(from, to, higher), 1.0
	for m := higher; m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		if to.openNs[slot] < from.openNs[slot] || to.windows[slot] < from.windows[slot] { // another process's by now
			continue
		}
		open := min(float64(to.openNs[slot]-from.openNs[slot]), ns)
		turns += float64(to.windows[slot]-from.windows[slot]) + open/1000/float64(keepsUs(slot))
	}
	if left >= least {
		return 0
	}
	us := uint64((least - left) * ns / 1000 / turns)
	return 1 << bits.Len64(max(us, leastBoostUs)-1) // a power of two: to set it preempts what runs
}

const (
	// mostInTurn bounds what a process may have of its turns.
	mostInTurn = 0.9
	// paceNs is how fast a pace forgets. It is many turns, or the part would be another one in a turn than after it.
	paceNs = 5e9
)

// note takes note of what was between two usages.
func (p *pace) note(from, to usage) {
	keep := math.Exp(-float64(to.atNs-min(to.atNs, from.atNs)) / paceNs)
	p.busyNs = p.busyNs*keep + float64(to.busyNs-min(to.busyNs, from.busyNs))
	p.onNs = p.onNs*keep + float64(to.onNs-min(to.onNs, from.onNs))
}

// inTurn is the part of its turns that a process must have to have its own share of the time in which it has work: in the turns of others
// it has nothing. It goes by the process's own clock, so shares of several processes cost higher levels their sum, whatever others say.
func (p *pace) inTurn(share float64) float64 {
	if p.onNs >= p.busyNs {
		return share
	}
	return max(share, min(share*p.busyNs/p.onNs, mostInTurn))
}

// share raises the timeslice while higher levels leave less than the configured share, and returns when
// to look again.
func (a *agent) share(p peers, now uint64) time.Duration {
	limits := a.segment.Limits()
	least := shareOf(a.core.config, limits)
	if least == 0 {
		a.boostUs = 0
		return heartbeat
	}
	over := a.core.config.Share.PeriodMs * 1e6
	used := a.usage(p, now)
	if len(a.used) > 0 {
		a.pace.note(a.used[len(a.used)-1], used)
	}
	a.used = append(a.used, used)
	for len(a.used) > 2 && now-a.used[1].atNs >= over {
		a.used = a.used[1:]
	}
	if now-a.used[0].atNs < over/2 {
		return shareCheck
	}
	if limits.Share != 0 && a.turns {
		least = a.pace.inTurn(least)
	}
	us := boost(a.used[0], a.used[len(a.used)-1], p.higher, least, a.keepsUs)
	if us != 0 && a.boostUs == 0 {
		a.own().Boosts.Add(1)
	}
	a.boostUs = nextBoost(a.boostUs, us)
	return shareCheck
}

// look says whether the process is to be off the GPU from now on, and when to look again. It was off, or not, since the last look. Of
// the windows that are open none is believed for longer than most (nanoseconds), if it gets a share.
func (w *away) look(open, wasOff bool, now, most uint64, share float64) (off bool, wait time.Duration) {
	rate := share / (1 - share)
	limit, passed := uint64(float64(most)*rate), now-min(now, w.atNs)
	if w.atNs = now; wasOff {
		w.owedNs += uint64(float64(passed) * rate)
	} else {
		w.owedNs -= min(passed, w.owedNs)
	}
	w.paid = limit > 0 && (w.owedNs >= limit || w.paid && w.owedNs > 0)
	switch {
	case w.paid:
		return false, time.Duration(w.owedNs)
	case open && limit > 0:
		return true, time.Duration(float64(limit-w.owedNs)/rate) + time.Microsecond
	}
	return open, heartbeat
}

// nextBoost is the raised timeslice from now on. It goes up at once, since nothing else gives the process its share. It goes down only by
// more than one step, so that a value near the limit of two steps does not go back and forth.
func nextBoost(us, wanted uint64) uint64 {
	if wanted > us || wanted < us/2 {
		return wanted
	}
	return us
}
