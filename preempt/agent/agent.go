package agent

import (
	"errors"
	"math/bits"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// changed is called when TSGs of the process came or went. It returns how long until the next of them settles, when it is to
// be called again; 0 where all have.
func (a *agent) changed() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.alone {
		return 0
	}
	a.learnAnew()
	a.applyTimeslice()
	a.enforce()
	return settling(a.mine(), segment.Now())
}

// run wakes at every ring of the segment's bell: someone came or went, wants a turn, or gave one up.
func (a *agent) run() {
	for {
		began := time.Now()
		deaf, until := a.hearing.deaf(segment.Now())
		seen := a.segment.Listen(deaf)
		wait := a.step()
		seen.Wait(min(wait, until))
		a.hearing.heard(seen.Rang(), segment.Now())
		// Peers that come and go between idle and busy ring often, and a step takes about 100 us.
		time.Sleep(stepGap - time.Since(began))
	}
}

func (a *agent) step() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if !a.belongs() {
		a.bringBack()
		return heartbeat
	}
	if a.segment.Paged() {
		if level := int(a.segment.Level[a.slot].Load()); level <= lowestLevel && a.segment.Members.Load()&(1<<a.slot) != 0 {
			a.core.setLevel(a.gpu, level)
		}
		if l := a.segment.Limits(); l != a.limits {
			if l.Objective != a.limits.Objective {
				a.core.tellObjective(l.Objective)
			}
			a.limits = l
			setLimits(a.core.config, l)
		}
	} else {
		a.segment.SetLevel(a.core.levelNow())
	}
	heard, says := a.own().HearObjective()
	if heard != 0 {
		a.core.tellObjective(says)
	}
	now := segment.Now()
	onLease := renew(a.gpu) // first: where the lease runs out the heartbeat goes too
	a.own().HeartbeatNs.Store(now)
	if !onLease {
		a.cameBack()
	}
	a.segment.Reap()
	a.suspect(now)
	a.learnAnew()
	p := a.peers()
	if !a.device.joined() {
		a.arm(true) // an operation that the driver takes tells that the process runs
		return a.stayAway(now)
	}
	if left := a.rejoins(p, now); left > 0 {
		setPeers(a.gpu, p, a.before, a.turnPeers)
		return min(left, renewal)
	}
	a.count(p, now)
	turns := a.takesTurns(p)
	a.turns = turns
	turnPeers := 0
	if turns {
		turnPeers = bits.OnesCount64(p.same)
	}
	if turnPeers == 0 && a.mayBeCapped() { // it is off the GPU at times, as by turns: work that it is said to have done must be done
		turnPeers = 1
	}
	a.before, a.turnPeers = p, turnPeers
	setPeers(a.gpu, p, p, turnPeers)
	gated := p.higher != 0 && a.gates()
	a.arm(p.lower != 0 || gated || a.core.countsFromStart() || a.core.levelNow() == lowestLevel && p.higher|p.same != 0)
	rescind(a.gpu)

	wait := heartbeat
	if p.higher != 0 {
		wait = min(wait, a.share(p, now))
	} else {
		a.boostUs = 0
	}
	wait = min(wait, a.swap(now))
	a.noteWindows(p, now)
	a.wantUs = a.timeslice(p, turns, turns && a.doubts(p, now))
	a.applyTimeslice()
	a.setLacks(configs.FallbackOthers, a.besideOthers(p))
	capped, left := a.cap(p, now)
	wait = min(wait, left)
	switch {
	case turns:
		wait = min(wait, a.turn(p, now, capped))
	case capped:
		a.schedule(false)
	case p.higher != 0 && p.lower != 0:
		wait = min(wait, a.giveWay(p, now))
	case a.off:
		a.schedule(true)
	}
	a.enforce()
	a.publish()
	a.tellWanted(heard)
	a.sayObjective()
	if len(a.unsure) > 0 {
		wait = min(wait, askAgain)
	}
	if a.off {
		wait = min(wait, renewal)
	}
	return wait
}

// arm has submissions reported, or not, and says which.
func (a *agent) arm(on bool) { a.own().Uncounted.Store(uint32(bit(!a.core.setArmed(a.gpu, on)))) }

// belongs checks that this process has a slot in the segment that new processes get too. Otherwise it joins again. The file was removed (logind
// removes a user's files at the last logout), or others could not get this memory and made a new one.
func (a *agent) belongs() bool {
	if next, slot := a.nextByBroker(); next != nil {
		a.adopt(next, slot)
	}
	gone := a.segment.Check()
	if !a.alone {
		a.segment.Restore()
		if !errors.Is(gone, segment.ErrLost) && !errors.Is(gone, segment.ErrOther) {
			return true
		}
	}
	sameFile := !errors.Is(gone, segment.ErrLost)
	if sameFile { // two descriptors of it would drop each other's locks
		a.segment.Leave()
	}
	if segment.Of.HasEnded() { // a segment that it made now would be nobody's
		return false
	}
	next, slot, err := a.core.join(a.gpu)
	if err != nil {
		if a.said != err.Error() {
			a.said = err.Error()
			a.log.Error().Err(err).AnErr("lost", gone).Msg("cannot join the segment again: no preemption with processes that did not share the old one")
		}
		if sameFile && !a.alone {
			a.leave()
		}
		return !a.alone
	}
	if a.memory.suspended {
		next.Slot(slot).Repeat(a.memory.request)
	}
	if !a.replace(next, slot, !a.alone) {
		return false
	}
	a.log.Warn().AnErr("lost", gone).Str("segment", next.Path()).Msg("joined the segment again")
	return true
}

// nextByBroker is what a broker made for this process: the next one, or the first.
func (a *agent) nextByBroker() (next *segment.Segment, slot int) {
	if next, slot = a.segment.Next(); next == nil && a.sought != nil {
		next, slot = a.sought.Next()
	}
	return next, slot
}

// adopt changes to what a broker made, which knows of this process already.
func (a *agent) adopt(next *segment.Segment, slot int) {
	a.sought = nil
	a.core.setRefused(a.gpu, false)
	again := a.segment.Paged()
	if a.memory.suspended {
		next.Slot(slot).Repeat(a.memory.request)
	}
	if !a.replace(next, slot, !a.alone) {
		a.log.Error().Msg("the pages of a broker could not be mapped: no preemption with others for now")
		a.sought = a.core.seekBroker(a.gpu)
		return
	}
	if again {
		a.rejoinTo = segment.Now() + rejoinWithin
	}
	next.Poke() // its bells have not been heard until now
	a.log.Info().Str("segment", next.Path()).Msg("joined the broker")
}

// rejoinWithin is how long clients take to come to the next broker, most of them: they ask again after 0.05 to 0.3 s.
const rejoinWithin = uint64(time.Second)

// rejoins returns for how long this process goes on as if its peers were still there: they may come to the next broker, as it has. It keeps
// its timeslice and its hold, and stays on the runlist or off it. Otherwise a process alone with this broker would take the GPU, until they
// have come, as if nobody else used it.
func (a *agent) rejoins(p peers, now uint64) time.Duration {
	fewer := func(is, was uint64) bool { return bits.OnesCount64(is) < bits.OnesCount64(was) }
	if now >= a.rejoinTo || !fewer(p.lower, a.before.lower) && !fewer(p.same, a.before.same) && !fewer(p.higher, a.before.higher) {
		a.rejoinTo = 0
		return 0
	}
	return time.Duration(a.rejoinTo - now)
}

// replace lets a segment, in which this process has a slot, take the place of the one before. owned says whether it still has a slot
// in that one.
func (a *agent) replace(next *segment.Segment, slot int, owned bool) bool {
	if !next.Replace(a.segment, func() bool {
		view, err := next.View()
		return err == nil && segment.Of.Move(view, a.gpu, slot, next.Paged(), owned)
	}) {
		next.Close()
		return false
	}
	a.segment, a.slot, a.alone, a.said, a.used, a.countedHigher = next, slot, false, "", nil, 0
	a.caps.atNs = 0
	clear(a.known[:]) // another broker gives the same ids again
	a.log = a.core.logOf(a.gpu, slot)
	return true
}

// leave ends all that this process does on the GPU: its slot may be another process's by now.
func (a *agent) leave() {
	a.alone = true
	setPeers(a.gpu, peers{}, peers{}, 0)
	segment.Of.Isolate(a.gpu)
	a.core.setArmed(a.gpu, false)
	for _, t := range a.mine() {
		if err := errors.Join(a.device.schedule(t, true), a.device.setTimeslice(t, a.core.config.Timeslice.FairUs)); err != nil {
			a.log.Warn().Err(err).Msg("the driver's settings could not be restored")
		}
	}
}

func (a *agent) peers() (p peers) {
	ended := a.unseen()
	for members := a.segment.Members.Load() &^ (1 << a.slot) &^ ended; members != 0; members &= members - 1 {
		slot := bits.TrailingZeros64(members)
		bit := uint64(1) << slot
		switch level := int(a.segment.Level[slot].Load()); {
		case level > lowestLevel: // not a level: not a peer
		case level > a.core.levelNow():
			p.lower |= bit
			if level < lowestLevel {
				p.between |= bit
			}
			if a.segment.Slot(slot).Has(configs.BLP) {
				p.stoppable |= bit
			}
		case level < a.core.levelNow():
			p.higher |= bit
		default:
			p.same |= bit
		}
	}
	return p
}

// unseen is which members may have ended, although they are in the header: their broker does not live, and would have said so. Their
// heartbeats have not changed for so long. With a file the lock says so.
func (a *agent) unseen() (slots uint64) {
	if !a.segment.Paged() {
		return 0
	}
	for members := a.segment.Members.Load() &^ (1 << a.slot); members != 0; members &= members - 1 {
		slot := bits.TrailingZeros64(members)
		if a.beats[slot].Silent(a.segment.Slot(slot).HeartbeatNs.Load()) > time.Duration(stoodStill) {
			slots |= 1 << slot
		}
	}
	if a.segment.Attended() {
		return 0
	}
	return slots
}

// giveWay takes this process off the GPU while a higher level's window is open. A short timeslice cannot do that: this
// process has lower levels, against which its timeslice must be long. A window that outlives max_hold leaves it its share.
func (a *agent) giveWay(p peers, now uint64) time.Duration {
	l := a.segment.Limits()
	away, wait := a.away.look(a.segment.WindowsOpen(p.higher) != 0, a.off, now, maxHoldNs(a.core.config, l), shareOf(a.core.config, l))
	if a.off != away {
		a.schedule(!away)
	}
	return min(wait, heartbeat)
}

// takesTurns says whether this process takes turns with others of the lowest level: two processes with short timeslices
// stop each other dead, so only one at a time may be on the runlist.
func (a *agent) takesTurns(p peers) bool {
	return a.canTakeTurns() && p.same != 0
}

// doubtFor is how long a doubt is not forgotten: so pages that change all the time make a process set its timeslice twice in that.
const doubtFor = uint64(time.Second)

// seizedFor is how long a process may be on the runlist after another member of the broker has seized its turn: if it is stopped, its
// heartbeat says so by then.
const seizedFor = stoodStill + uint64(heartbeat)

// doubts says whether a process of the same level may be on the runlist beside the one whose turn it is.
func (a *agent) doubts(p peers, now uint64) bool {
	seized := a.segment.Turn.Load()&segment.TurnSeized != 0
	if since := a.segment.TurnSinceNs.Load(); a.segment.Paged() && now-min(now, since) > seizedFor {
		seized = false // the turn may be kept for as long as nobody else wants one
	}
	if a.crowded(p, now) || seized {
		a.doubtTo = now
		if a.segment.Paged() {
			a.doubtTo += doubtFor
		}
		return true
	}
	return now < a.doubtTo
}

// crowded says whether a process of the same level has work and takes no part in turns, as its page says.
func (a *agent) crowded(p peers, now uint64) bool {
	for m := a.segment.Busy(p.same); m != 0; m &= m - 1 {
		if !a.takesPart(bits.TrailingZeros64(m), now) {
			return true
		}
	}
	return false
}

// publish tells others which mechanisms are in force.
func (a *agent) publish() {
	var in configs.Mechanism
	for _, row := range configs.MechanismRows {
		if is := inForce[row.Bit]; is == nil && a.uses(row.Bit) || is != nil && is(a) {
			in |= row.Bit
		}
	}
	if configs.Mechanism(a.own().Mechanisms.Swap(uint32(in)))&configs.BLP != in&configs.BLP {
		a.segment.Ring() // higher levels tell of their windows from now on
	}
	a.own().Fallbacks.Store(uint32(a.lacking))
	a.own().SwitchUs.Store(uint32(learntSwitch(a.gpu, a.toldSwitch()) / 1000))
	a.own().Job.Store(a.core.job) // last: what is in force is known from here on
	a.tellBLP()
}
