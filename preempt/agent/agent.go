package agent

import (
	"cmp"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	lowestLevel = configs.Levels - 1
	// heartbeat is how often an agent wakes with nothing to do: it shows that it lives, and notices dead peers.
	heartbeat = time.Second
	// renewal is how often an agent wakes whose TSGs are off the runlist: they come back by themselves after 1.5 s.
	renewal = 500 * time.Millisecond
	// shareCheck is how often a process under higher ones looks whether it gets its share.
	shareCheck = 100 * time.Millisecond
	// stepGap bounds how often an agent looks.
	stepGap = 500 * time.Microsecond
	// settleNs is how long after libcuda's last control of a TSG its context counts as complete.
	settleNs = uint64(100 * time.Millisecond)
	// quietNs is how long a young TSG, one not older than youngNs, is left alone after libcuda did something to make it. It sets a timeslice
	// and schedules the TSG itself when the channels are there, which undoes what was set before. A control of ours takes all locks of the
	// GPU in the driver, beside libcuda's.
	quietNs = uint64(5 * time.Millisecond)
	youngNs = uint64(time.Second)
	// passingNs is how long the driver may refuse a control because something is being freed: a context with many
	// allocations takes that long to end. The control is repeated every askAgain.
	passingNs = uint64(2 * time.Second)
	askAgain  = 5 * time.Millisecond
)

// tsgKey names a TSG as libcuda last left it.
type tsgKey struct{ client, handle, resets uint32 }

type subdeviceKey struct{ client, subdevice uint32 }

// agent looks after one GPU for this process.
type agent struct {
	core    *Core
	gpu     int
	uuid    [16]byte
	segment *segment.Segment
	sought  *member.Sought // a broker's, where this one is a file's; nil: none is sought
	slot    int
	log     zerolog.Logger
	mps     bool // one TSG for all processes: no timeslices, no holds, no turns

	stoppable  bool   // kernels are rewritten
	givenUp    uint64 // domains of which that was said
	saidBeside bool

	mutex                      sync.Mutex // what follows: the agent's own goroutine, and changed
	uuids                      map[subdeviceKey][16]byte
	sliceUs                    map[tsgKey]uint64
	suspended                  map[tsgKey]bool
	unsure                     map[tsgKey]uint64 // refused in passing, since when: suspended or not
	wantUs                     uint64            // 0: leave the driver's default
	off                        bool              // channels are disabled: it is another's turn, or a higher level's window is open
	offSince                   uint64
	away                       away   // for windows, of a level between others
	probed                     uint64 // when a turn was asked for without known work; 0: not asked
	probeAfter                 uint64
	limits                     segment.Limits // a broker's
	countedTurn                uint64         // the last turn of its own
	askedTurn                  uint64         // the turn that this process waits for to end, and since when
	askedNs                    uint64
	due                        uint64 // since when this process should hand its turn on; 0: it should not
	alone                      bool   // has no slot: its segment is memory of its own, and it tries to join again
	said                       string // why it could not, last
	refused                    bool   // an RM control was refused: no timeslices, no turns
	noTurns                    bool
	turns                      bool
	boostUs                    uint64 // the raised timeslice while higher levels leave too little; 0: they do not
	reported                   bool
	used                       []usage
	counted                    usage // when the process's part of the GPU was counted last
	countedBusy, countedHigher uint64
	memory                     agentMemory
	beats                      [segment.Slots]segment.Beats // of members of a broker
	hearing                    hearing                      // of run alone
	doubtTo                    uint64
	before                     peers                // as last acted upon
	turnPeers                  int                  // of them
	rejoinTo                   uint64               // until then they may come to this broker too; 0: they need not
	known                      [segment.Slots]claim // of members of a broker
}

// peers is who else is on the GPU.
type peers struct {
	lower, same, higher uint64 // slots
	between             uint64 // lower ones that themselves have lower levels to preempt
	stoppable           uint64 // lower ones whose kernels stop when a window opens
}

func (a *agent) own() *segment.Slot { return a.segment.Own() }

func (a *agent) lacks(fallback configs.Fallback) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.own().SetLacks(fallback, true)
}

// changed is called when TSGs of the process came or went. It returns how long until the next of them settles, when it is to
// be called again; 0 where all have.
func (a *agent) changed() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.alone {
		return 0
	}
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
			a.limits = l
			setLimits(a.core.config, l)
		}
	}
	now := segment.Now()
	onLease := renew(a.gpu) // first: where the lease runs out the heartbeat goes too
	a.own().HeartbeatNs.Store(now)
	if !onLease {
		a.cameBack()
	}
	a.segment.Reap()
	p := a.peers()
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
	a.before, a.turnPeers = p, turnPeers
	setPeers(a.gpu, p, p, turnPeers)
	gated := p.higher != 0 && a.gates()
	a.core.setArmed(a.gpu, p.lower != 0 || gated || a.core.countsFromStart())
	rescind(a.gpu)

	wait := heartbeat
	if p.higher != 0 {
		wait = min(wait, a.share(p, now))
	} else {
		a.boostUs = 0
	}
	wait = min(wait, a.swap(now))
	a.wantUs = a.timeslice(p, turns, turns && a.doubts(p, now))
	a.applyTimeslice()
	a.own().SetLacks(configs.FallbackOthers, a.besideOthers(p))
	switch {
	case turns:
		wait = min(wait, a.turn(p, now))
	case p.higher != 0 && p.lower != 0 && guarded():
		wait = min(wait, a.giveWay(p, now))
	case a.off:
		a.schedule(true)
	}
	a.enforce()
	a.publish()
	if len(a.unsure) > 0 {
		wait = min(wait, askAgain)
	}
	if a.off {
		wait = min(wait, renewal)
	}
	return wait
}

// belongs checks that this process owns its slot, in the segment that new processes get too. Otherwise it joins again: the
// file was removed (logind removes a user's files at the last logout), others could not get this memory and made a new
// one, or the application closed our descriptor and another process took the slot.
func (a *agent) belongs() bool {
	if next, slot := a.nextByBroker(); next != nil {
		a.adopt(next, slot)
	}
	gone, lost := a.segment.Check(), error(nil)
	if !a.alone {
		lost = a.segment.Relock()
	}
	owned := !a.alone && !errors.Is(lost, segment.ErrLost)
	if owned && !errors.Is(gone, segment.ErrLost) && !errors.Is(gone, segment.ErrOther) {
		return true
	}
	sameFile := !errors.Is(gone, segment.ErrLost)
	if sameFile { // two descriptors of it would drop each other's locks
		a.segment.Leave()
	}
	next, slot, err := a.core.join(a.gpu)
	if err != nil {
		if a.said != err.Error() {
			a.said = err.Error()
			a.log.Error().Err(err).AnErr("lost", errors.Join(gone, lost)).Msg("cannot join the segment again: no preemption with processes that did not share the old one")
		}
		if (sameFile || !owned) && !a.alone {
			a.leave()
		}
		return !a.alone
	}
	if a.memory.suspended {
		next.Slot(slot).Repeat(a.memory.request)
	}
	if !a.replace(next, slot, owned) {
		return false
	}
	a.log.Warn().AnErr("lost", errors.Join(gone, lost)).Str("segment", next.Path()).Msg("joined the segment again")
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

// rejoins says for how long this process still does as if all were there that were, because they may come to the next broker as it has. It
// keeps its timeslice and its hold, and stays on the runlist or off it: else for as long as they take to come, a process alone with this broker
// would take the GPU as if nobody else used it.
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
	if !next.Replace(a.segment, func(memory unsafe.Pointer) bool { return moveGPU(a.gpu, memory, slot, next.Paged(), owned) }) {
		next.Close()
		return false
	}
	a.segment, a.slot, a.alone, a.said, a.used, a.countedHigher = next, slot, false, "", nil, 0
	clear(a.known[:]) // another broker gives the same ids again
	a.log = a.core.logOf(a.gpu, slot)
	return true
}

// leave ends all that this process does on the GPU: its slot may be another process's by now.
func (a *agent) leave() {
	a.alone = true
	setPeers(a.gpu, peers{}, peers{}, 0)
	isolateGPU(a.gpu)
	a.core.setArmed(a.gpu, false)
	for _, t := range a.mine() {
		if err := errors.Join(t.schedule(a.gpu, true), t.setTimeslice(a.core.config.Timeslice.FairUs)); err != nil {
			a.log.Warn().Err(err).Msg("the driver's settings could not be restored")
		}
	}
}

// gates says whether launches of this process wait on the host while a higher level's window is open. That only costs time
// where timeslices separate processes; under MPS nothing else does.
func (a *agent) gates() bool {
	return a.core.config.Mechanisms.UseAt(configs.Gate, a.mps) || a.stoppable
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

func (a *agent) canTakeTurns() bool {
	return a.core.config.Mechanisms.UseAt(configs.Turns, a.mps) && a.core.levelNow() == lowestLevel && !a.refused && !a.noTurns && guarded() && a.segment.Attended()
}

// doubtFor is how long a doubt is not forgotten: so pages that change all the time make a process set its timeslice twice in that.
const doubtFor = uint64(time.Second)

// seizedFor is how long after a turn of members of a broker was seized the one that it was taken from may be on the runlist: if it is stopped,
// its heartbeat says so by then.
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

// timeslice is what the process's compute TSGs should have, where turns are taken or not, and another one may be on the runlist in this one's
// turn.
func (a *agent) timeslice(p peers, turns, doubt bool) uint64 {
	t := a.core.config.Timeslice
	t.PreemptingUs = min(t.PreemptingUs, a.core.config.Hold.MaxMs*1000) // where no hold runs, a window has no other end
	yields := p.higher != 0 && p.lower == 0
	switch {
	case a.besideOthers(p):
		return max(t.FairUs, a.boostUs)
	case yields && (p.same == 0 || turns && !doubt):
		return max(t.YieldingUs, a.boostUs)
	case yields && turns && a.segment.Paged():
		// It may be a lie, and a higher level waits for this timeslice. It takes as long as a switch, so beside another one that is
		// short this process still gets on. Once the broker has seen that others work, they are waited for.
		return max(t.YieldingUs, min(leastBoostUs, t.FairUs), a.boostUs)
	case p.lower != 0 && p.same == 0:
		return t.PreemptingUs
	}
	return t.FairUs
}

// besideOthers says whether this process is one that yields, and others that do not know of it have work: beside their timeslices the
// shortest one would be next to nothing. A higher level waits for their timeslices in any case.
func (a *agent) besideOthers(p peers) bool {
	return p.higher != 0 && p.lower == 0 && a.segment.OthersWork()
}

func (a *agent) mine() []TSG {
	var mine []TSG
	for _, t := range tsgs() {
		key := subdeviceKey{t.client, t.subdevice}
		uuid, known := a.uuids[key]
		if !known {
			var err error
			if uuid, err = t.uuid(); err != nil {
				if !gone(t) && !passing(err) {
					a.refuse(err)
				}
				continue
			}
			a.uuids[key] = uuid
		}
		if uuid == a.uuid {
			mine = append(mine, t)
		}
	}
	return mine
}

// settled says whether a TSG may be suspended. While libcuda makes a context it waits for work of its own, which nobody
// counts. So a TSG is not suspended before the process has submitted something, nor soon after libcuda's last control.
func (a *agent) settled(t TSG, now uint64) bool {
	return worked(a.gpu) && now-min(now, t.changedNs) > settleNs
}

// made says until when libcuda is making a TSG, as far as is known; 0: it is not.
func (t TSG) made(now uint64) (until uint64) {
	if until = t.madeNs + quietNs; until < now || now-min(now, t.bornNs) > youngNs {
		return 0
	}
	return until
}

// due says whether a TSG is to get another timeslice than it has. What libcuda is making gets one when it is made.
func (t TSG) due(has, want, now uint64) bool { return has != want && t.made(now) == 0 }

// settling is how long until the next of the TSGs is made, or settles if the process has worked by then; 0 where all have.
func settling(tsgs []TSG, now uint64) (wait time.Duration) {
	for _, t := range tsgs {
		for _, at := range [...]uint64{t.made(now), t.changedNs + settleNs} {
			if at >= now && (wait == 0 || time.Duration(at+1-now) < wait) {
				wait = time.Duration(at + 1 - now)
			}
		}
	}
	return wait
}

// applyTimeslice sets the timeslices of the process's TSGs, and tells others the longest that is in force.
func (a *agent) applyTimeslice() {
	if !a.core.config.Mechanisms.UseAt(configs.Timeslice, a.mps) || a.refused || a.wantUs == 0 {
		return
	}
	mine := a.mine()
	live := make(map[tsgKey]uint64, len(mine))
	now, longest := segment.Now(), uint64(0)
	wantUs := a.wantUs
	if len(mine) > 1 { // contexts of one process run beside each other: two short timeslices stop each other dead
		wantUs = max(wantUs, leastBoostUs)
	}
	for _, t := range mine {
		want := wantUs
		if a.turns && !a.settled(t, now) { // on the runlist beside the one whose turn it is
			want = max(want, a.core.config.Timeslice.FairUs)
		}
		key := tsgKey{t.client, t.handle, t.resets}
		us := a.sliceUs[key]
		if t.due(us, want, now) {
			if err := t.setTimeslice(want); err != nil {
				if gone(t) {
					continue
				}
				if passing(err) { // it is set when the TSG is seen next
					longest = max(longest, us)
					continue
				}
				a.refuse(err)
				return
			}
			us = want
			a.log.Debug().Uint64("us", us).Uint32("tsg", t.handle).Uint32("resets", t.resets).Msg("timeslice set")
			a.own().TimesliceSets.Add(1)
		}
		live[key] = us
		if us == 0 && len(mine) > 1 { // libcuda's own, until it is made
			us = a.core.config.Timeslice.FairUs
		}
		longest = max(longest, us)
	}
	a.sliceUs = live
	if longest > 0 {
		a.own().TimesliceUs.Store(uint32(longest))
	}
	a.own().SetLacks(configs.FallbackNoTSG, len(mine) == 0)
}

func (a *agent) refuse(err error) {
	a.refused = true
	a.own().SetLacks(configs.FallbackControlRefused, true)
	if !a.reported {
		a.reported = true
		a.log.Warn().Err(err).Msg("the driver refuses RM controls: this process cannot be preempted by timeslices")
	}
}

// schedule takes the process's compute TSGs off the runlist or puts them back.
func (a *agent) schedule(on bool) bool {
	if a.off == on {
		a.offSince = segment.Now()
	}
	a.off = !on
	if on {
		a.own().Suspended.Store(0)
	} else {
		a.own().Suspended.Store(1)
	}
	return a.enforce()
}

// cameBack takes note that this agent stood still for so long that its TSGs came back by themselves, with the fair timeslice.
func (a *agent) cameBack() {
	a.log.Info().Msg("the agent stood still: this process came back to the GPU by itself")
	clear(a.sliceUs)
	a.schedule(true) // what is marked as suspended may be, or not
}

// enforce suspends or schedules every settled TSG as schedule wanted. A control takes 220 to 570 us and preempts what runs.
// It returns false if the driver refuses.
func (a *agent) enforce() bool {
	if !a.off && len(a.suspended) == 0 && len(a.unsure) == 0 {
		return true
	}
	now := segment.Now()
	live, unsure := make(map[tsgKey]bool, len(a.suspended)), map[tsgKey]uint64{}
	for _, t := range a.mine() {
		key := tsgKey{t.client, t.handle, t.resets}
		off := a.suspended[key]
		want := a.off && (off || a.settled(t, now))
		if want != off || a.unsure[key] != 0 || !off && a.hasSuspended(t) { // the latter: libcuda scheduled some of its channels meanwhile
			if err := t.schedule(a.gpu, !want); err != nil {
				if gone(t) {
					continue
				}
				if since := cmp.Or(a.unsure[key], now); passing(err) && now-since < passingNs {
					live[key], unsure[key] = true, since // some of its channels may be suspended: asked again, whatever is wanted
					continue
				}
				for k := range a.suspended { // what is suspended must come back
					live[k] = true
				}
				a.suspended = live
				a.noTurns = true
				a.own().SetLacks(configs.FallbackSuspendRefused, true)
				a.log.Warn().Err(err).Msg("the driver refuses to suspend this process: no turns, and no giving way between levels")
				return false
			}
		}
		if want {
			live[key] = true
		}
	}
	a.suspended, a.unsure = live, unsure
	return true
}

// passing says whether a refusal may only mean that libcuda is freeing or making one of the named objects.
func passing(err error) bool {
	var status StatusError
	return errors.As(err, &status) && status.passing()
}

// gone says whether a TSG was freed: controls of it then fail, and nothing is wrong.
func gone(t TSG) bool {
	return !slices.ContainsFunc(tsgs(), func(is TSG) bool { return is.client == t.client && is.handle == t.handle })
}

func (a *agent) hasSuspended(t TSG) bool {
	for key := range a.suspended {
		if key.client == t.client && key.handle == t.handle {
			return true
		}
	}
	return false
}

func (a *agent) publish() {
	own, m := a.own(), a.core.config.Mechanisms
	if a.core.levelNow() < lowestLevel && !a.mps && m.Use(configs.Hold) && !holdWanted(a.core.config) {
		own.SetLacks(configs.FallbackNoHold, true)
	}
	lacksVMM := a.core.noVMM || a.core.memory != nil && unmanaged(a.gpu)
	own.SetLacks(configs.FallbackNoVMM, lacksVMM)
	var in configs.Mechanism
	for _, of := range [...]struct {
		one     configs.Mechanism
		inForce bool
	}{
		{configs.Timeslice, m.UseAt(configs.Timeslice, a.mps) && !a.refused && !own.Lacks(configs.FallbackNoTSG)},
		{configs.Hold, m.UseAt(configs.Hold, a.mps) && a.core.levelNow() < lowestLevel && !own.Lacks(configs.FallbackNoHold)},
		{configs.Gate, a.gates()},
		{configs.Turns, a.canTakeTurns()},
		{configs.MPS, m.UseAt(configs.MPS, a.mps)},
		{configs.Swap, a.core.memory != nil && !lacksVMM},
		{configs.BLP, a.stoppable && stoppable()}, // not where an unknown function of the driver has ended it
	} {
		if of.inForce {
			in |= of.one
		}
	}
	if configs.Mechanism(own.Mechanisms.Swap(uint32(in)))&configs.BLP != in&configs.BLP {
		a.segment.Ring() // higher levels tell of their windows from now on
	}
	own.Job.Store(a.core.job) // last: what is in force is known from here on
	countBLP(a.gpu)
	if a.own().Stop.Beside.Load() > 0 && !a.saidBeside {
		a.saidBeside = true
		a.log.Warn().Msg("blocks of a kernel wait for later blocks of their launch: such kernels are stopped only as a whole from now on")
	}
	if n := a.own().Stop.GivenUp.Load(); n > a.givenUp {
		a.givenUp = n
		call, result := refused(a.gpu)
		a.log.Warn().Str("call", call).Int("result", result).Msg("the driver refused a call that stops or resumes kernels: kernels of that context are not stopped any more")
	}
}
