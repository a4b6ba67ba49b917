package agent

import (
	"math"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	// drainFor is how long work that was submitted may take to end before memory goes, beside the compute turns of others.
	drainFor = 2 * time.Second
	// busyOver is for how long others pass over a process whose work did not end in time. Its work may take so much longer the next
	// time. Both double each time, up to passedMost and drainMore. A call that waits for memory.wait_ms, 10 s unless set, sees two such
	// attempts, of 2 and 4 s.
	busyOver, drainMore = uint64(2 * time.Second), uint64(8 * time.Second)
	// passedOver is for how long others pass over a process without host memory; twice as long each time, up to passedMost.
	passedOver, passedMost = uint64(10 * time.Second), uint64(80 * time.Second)
	// failedFor is for how long a process is passed over after the driver has refused a call.
	failedFor = uint64(60 * time.Second)
	// moveLook is how often an agent publishes what moves.
	moveLook = 5 * time.Millisecond
	// Bounds of the time without work after which a process of the lowest level counts as idle: as long as a swap takes.
	leastIdle, mostIdle = uint64(50 * time.Millisecond), uint64(time.Second)
	// againSoon, againLater: how often those that wait for room try again while there is enough, or some.
	againSoon, againLater = uint64(5 * time.Millisecond), uint64(100 * time.Millisecond)
	// bringSoon is how long after it found no room a process goes on coming in, while others leave: a chunk takes 5 ms.
	bringSoon = uint64(2 * time.Millisecond)
	// Memory that nobody accounts for is the middle of so many measurements, so far apart.
	otherSamples, otherApart = 5, uint64(20 * time.Millisecond)
	// longestTurn is how many times as long as the shortest memory turn the longest one is: 60 s, unless memory.turn_min_ms is set.
	longestTurn = 30
	// pressurePart of the GPU's memory is needed by all together: then host memory is pinned ahead.
	pressurePart = 0.8
	// unpinAfter is how long after the last pressure host memory is given back.
	unpinAfter = uint64(60 * time.Second)
	// pinLook is how often an agent sees to the next piece of host memory.
	pinLook = 50 * time.Millisecond
	// measurePatience is how long an agent waits for the driver's answer; a later one rings for it.
	measurePatience = 20 * time.Millisecond
)

func (s *swapping) setOut(gpu int, out bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.out[gpu] == out {
		return
	}
	s.out[gpu] = out
	setAway(slices.Contains(s.out[:], true))
}

func init() { inForce[configs.Swap] = (*agent).canSwap }

// canSwap says whether memory of this process can leave this GPU.
func (a *agent) canSwap() bool {
	lacks, moves := a.core.stays, a.core.memory != nil && a.core.memory.moves
	if a.place == placeShared {
		lacks &^= configs.FallbackServer // "auto" does not use it there
	}
	if moves && unmanaged(a.gpu) {
		lacks |= configs.FallbackNoVMM
	}
	for _, one := range []configs.Fallback{configs.FallbackNoVMM, configs.FallbackRegistered, configs.FallbackSeveralGPUs, configs.FallbackServer} {
		a.setLacks(one, lacks&one != 0)
	}
	return moves && lacks == 0 && a.uses(configs.Swap)
}

// registering are devices whose kernel modules let a program register its GPU memory without a call of the driver that is seen here:
// RDMA adapters (ibv_reg_mr; Slingshot and Omni-Path have devices of their own), GPUDirect Storage (cuFileBufRegister) and GDRCopy
// (gdr_pin_buffer).
var registering = []string{"/dev/infiniband/uverbs*", "/dev/cxi*", "/dev/hfi1_*", "/dev/nvidia-fs*", "/dev/gdrdrv"}

// unseenRegistrations says whether memory of this process may be registered where nobody sees it. It must not move then.
func unseenRegistrations() bool {
	return slices.ContainsFunc(registering, func(pattern string) bool {
		found, err := filepath.Glob(pattern)
		return err != nil || len(found) != 0
	})
}

// gpuNodes are the device files of GPUs.
const gpuNodes = "/dev/nvidia[0-9]*"

// gpusVisible says how many GPUs the program can have at most: the driver, which is not initialised yet, can not be asked.
func gpusVisible(devices, nodes string) int {
	found, err := filepath.Glob(nodes)
	if err != nil {
		return 0
	}
	if list := strings.FieldsFunc(devices, func(r rune) bool { return r == ',' }); len(list) != 0 {
		return min(len(list), len(found))
	}
	return len(found)
}

func (a *agent) startMemory() {
	a.memory.toldMost = math.MaxUint64
	roomChanged(a.gpu, a.memory.toldMost, false)
	a.memory.meter = newMeter(func() measured {
		taken := readMemory(a.gpu).takenBytes
		_ = lane(laneOfMeter(a.gpu)) // without its thread another one asks the driver
		free, total, known := deviceMemory(a.gpu)
		return measured{free, total, known, taken, poolsOf(a.gpu)}
	}, func() { ringBell(a.gpu) })
}

// swap decides what this process does with its memory on this GPU, begins it, and returns when to look again.
func (a *agent) swap(now uint64) time.Duration {
	shared := a.core.memory
	if shared == nil {
		return heartbeat
	}
	m, e := &a.memory, shared.mover.take(a.gpu)
	_, moves := shared.mover.moving(a.gpu)
	c := readMemory(a.gpu)        // after the end of the move is known: what it left
	if !moves && c.swapped == 0 { // nothing went, all came back, or the program has freed what was out
		shared.setOut(a.gpu, false)
	}
	a.ended(e, c, now)
	if shared.moves {
		a.hear(now)
	}
	a.noteDemand(c, now)
	a.noteState(c, now)
	v := a.view(c, now)
	a.measure(v, c)
	if m.total == 0 {
		a.tell()
		return againDuration(false)
	}
	p := v.plan()
	a.takeMemoryTurn(p, c, now)
	allowMemory(a.gpu, p.allowed)
	a.sayUnfit(v)
	a.answerWaiters(p, c, now)
	wait := min(p.wait, a.begin(p, c, v, now))
	a.publishMemory(c, p, now)
	a.tell()
	if c.claims() != 0 {
		wait = min(wait, againDuration(p.enough))
	}
	if c.asking != 0 { // the driver could not be asked, or memory moves
		wait = min(wait, time.Duration(againLater))
	}
	return min(wait, a.nextChange(now))
}

// sayUnfit says, once, that all that this process has and asks for never fits beside what others keep.
func (a *agent) sayUnfit(v *memoryView) {
	m, own := &a.memory, v.of(a.slot)
	if m.saidUnfit || own == nil || !own.lowest() || !own.waits() {
		return
	}
	needs, room := saturate(own.resident, own.short(), own.pinned), minus(v.total, v.kept())
	if m.saidUnfit = needs > room; m.saidUnfit {
		a.log.Warn().Uint64("needs_mb", needs>>20).Uint64("room_mb", room>>20).
			Msg("what this process has and asks for never fits beside what other programs keep: it waits for them to end, or is out of memory")
	}
}

// nextChange is how long it is until something is due that nobody rings for.
func (a *agent) nextChange(now uint64) time.Duration {
	m, wait := &a.memory, heartbeat
	if m.idleNs != 0 && now < m.idleNs+a.idleAfter() && a.idleAfter() != 0 {
		wait = min(wait, time.Duration(m.idleNs+a.idleAfter()-now)+time.Millisecond)
	}
	for _, then := range []uint64{m.stuckTo, m.bringAfter} {
		if then > now {
			wait = min(wait, time.Duration(then-now)+time.Millisecond)
		}
	}
	return wait
}

func againDuration(enough bool) time.Duration {
	if enough {
		return time.Duration(againSoon)
	}
	return time.Duration(againLater)
}

// ended takes note of the end of a move.
func (a *agent) ended(e *ended, c memoryCounters, now uint64) {
	m := &a.memory
	if e == nil {
		return
	}
	a.log.Debug().Stringer("move", e.kind).Stringer("result", e.result).Uint64("resident", c.resident).Uint64("swapped", c.swapped).Msg("memory has moved")
	switch e.kind {
	case moveOut:
		a.gone(e, c, now)
	case moveIn:
		a.came(e, c, now)
	case moveHalt:
		m.halted = e.result == moved
		if !m.halted {
			a.refuseRequest(segment.AnswerBusy)
		}
	case moveResume:
		m.halted = e.result != moved
	}
}

func (a *agent) gone(e *ended, c memoryCounters, now uint64) {
	m := &a.memory
	stuck := uint64(0)
	answer := segment.AnswerDone
	switch e.result {
	case moved:
		m.stuckFor, m.pinned = 0, 0
		a.setLacks(configs.FallbackNoHostMemory, false)
		if c.cannotGo != 0 { // what the program allocated meanwhile can go
			m.immovable, m.immovableTo = c.cannotGo, now+passedOver
		}
	case movedNoHost:
		stuck, answer = max(passedOver, min(2*m.stuckFor, passedMost)), segment.AnswerNoHost
		a.setLacks(configs.FallbackNoHostMemory, true)
		if !m.saidNoHost {
			m.saidNoHost = true
			a.log.Warn().Msg("no host memory can be page-locked: memory of this process stays on the GPU")
		}
	case movedFailed:
		stuck, answer = failedFor, segment.AnswerFailed
		if !m.saidFailed {
			m.saidFailed = true
			a.log.Warn().Msg("the driver refused a call while memory went to the host: it is where it was, or whole in the host's memory")
		}
	default:
		stuck, answer = max(busyOver, min(2*m.stuckFor, passedMost)), segment.AnswerBusy
		a.log.Debug().Msg("work did not end in time: memory stays")
	}
	if stuck != 0 {
		m.stuckFor, m.stuckTo = stuck, now+stuck
		a.refuseRequest(answer)
	}
}

func (a *agent) came(e *ended, c memoryCounters, now uint64) {
	m := &a.memory
	switch e.result {
	case moved:
		m.bringPause, m.immovable = 0, 0
	case movedNoRoom:
		m.bringPause = 0
		m.bringAfter = now + bringSoon
	default:
		m.bringPause = min(max(2*m.bringPause, againLater), passedOver)
		m.bringAfter = now + m.bringPause
		if !m.saidFailed {
			m.saidFailed = true
			a.log.Warn().Msg("the driver refused a call while memory came back: this process waits, and it is tried again")
		}
	}
	if c.swapped == 0 {
		m.wanted = false
	}
}

// hear reads what people ask.
func (a *agent) hear(now uint64) {
	m := &a.memory
	if r := a.own().Request(); r != 0 && r != m.request {
		m.request, m.answered, m.asked, m.askedNs = r, false, r.Asked(), now
		switch m.asked {
		case segment.AskedSuspend:
			m.suspended = true
		case segment.AskedResume, segment.AskedIn:
			m.suspended, m.wanted = false, true
		case segment.AskedOut:
			m.wanted = false
		}
		m.stuckTo = 0 // people know why they ask now
	}
}

// answer notes the answer to people's request, which tell tells them.
func (a *agent) answer(answer segment.Answer) {
	if m := &a.memory; m.request != 0 && !m.answered {
		m.reply, m.tells = answer, true
		m.answered, m.asked = true, segment.AskedNothing
	}
}

// tell tells people what became of their request, once what they may look at next is published.
func (a *agent) tell() {
	if m := &a.memory; m.tells {
		m.tells = false
		a.own().Answer(m.request, m.reply)
		a.segment.Ring()
	}
}

// refuseRequest ends a request for memory to go, which did not.
func (a *agent) refuseRequest(answer segment.Answer) {
	if m := &a.memory; m.asked == segment.AskedOut || m.asked == segment.AskedSuspend {
		m.suspended = false
		a.answer(answer)
	}
}

// noteDemand finds out whether the process needs memory, and since when it has no work.
func (a *agent) noteDemand(c memoryCounters, now uint64) {
	m := &a.memory
	if recalled() {
		a.core.memory.recalls.Add(1)
	}
	if n := a.core.memory.recalls.Load(); n != m.recalls {
		m.recalls, m.wanted = n, true
	}
	moving, busyMoving := a.core.memory.mover.moving(a.gpu)
	if c.swapped == 0 && !(busyMoving && moving.kind == moveOut) {
		m.wanted = false
	}
	waits := (c.waiting != 0 || c.claims() != 0 || m.wanted) && !m.suspended
	if !waits {
		m.waitsNs = 0
	} else if m.waitsNs == 0 {
		m.waitsNs = now
	}
	if c.claims() != 0 {
		if m.roomNs == 0 {
			m.roomNs = now
		}
		m.roomSeenNs = now
	} else if now-m.roomSeenNs > 3*againLater {
		m.roomNs = 0
	}
	busyFor := busyNs(a.gpu)
	switch {
	case waits || busy(a.gpu):
		m.idleNs = 0
	case m.idleNs == 0 || busyFor != m.busyNs:
		m.idleNs = now
	}
	m.busyNs = busyFor
}

// noteState finds out in which state the memory is.
func (a *agent) noteState(c memoryCounters, now uint64) {
	m, state := &a.memory, memoryRunning
	moving, busyMoving := a.core.memory.mover.moving(a.gpu)
	switch {
	case busyMoving && moving.kind == moveOut:
		state = memoryLeaving
	case busyMoving && moving.kind == moveIn:
		state = memoryComing
	case m.suspended && (m.halted || c.swapped != 0):
		state = memorySuspended
	case c.swapped != 0:
		state = memoryOut
	case m.stuckTo > now:
		state = memoryStuck
	}
	if now >= m.immovableTo || c.resident < m.immovable {
		m.immovable = 0
	}
	if now >= m.stuckTo && a.lacking&configs.FallbackNoHostMemory != 0 { // there may be some again: it is tried when asked for
		a.setLacks(configs.FallbackNoHostMemory, false)
	}
	if state != m.state {
		m.state, m.stateNs = state, now
	}
	if state == memoryRunning && m.stateNs == 0 {
		m.stateNs = now
	}
}

// movable is what is resident and can go.
func (m *agentMemory) movable(c memoryCounters) uint64 { return minus(c.resident, m.immovable) }

// idleAfter is after how long without work the process counts as idle, and may have to go; 0: never.
func (a *agent) idleAfter() uint64 {
	m := a.core.config.Memory
	switch {
	case a.core.levelNow() == lowestLevel:
		return min(max(a.memory.swapNs, leastIdle), mostIdle)
	case m.LC:
		return m.LCIdleS * 1e9
	}
	return 0
}

// view is what the plan is made from.
func (a *agent) view(c memoryCounters, now uint64) *memoryView {
	m, t := &a.memory, a.core.config.Memory
	v := &memoryView{own: a.slot, now: now, turn: -1, turnNs: a.segment.MemoryTurnSinceNs.Load(),
		out: m.suspended || m.asked == segment.AskedOut, roomNs: m.roomNs,
		turns: memoryTurns{fixedNs: t.TurnMs * 1e6, minNs: t.TurnMinMs * 1e6, maxNs: longestTurn * t.TurnMinMs * 1e6, share: swapShare}}
	if owner, owned := segment.TurnOwner(a.segment.MemoryTurn.Load()); owned {
		v.turn = owner
	}
	for members := a.segment.Members.Load() | 1<<a.slot; members != 0; members &= members - 1 {
		slot := bits.TrailingZeros64(members)
		s := a.segment.Slot(slot)
		job, started := a.claimOf(slot)
		o := memoryOf{
			slot: slot, level: int(a.segment.Level[slot].Load()), job: job, startedNs: started,
			swaps: s.Has(configs.Swap), noHost: s.Lacks(configs.FallbackNoHostMemory),
		}
		if heard := s.HeartbeatNs.Load(); heard < now && now-heard > stoodStill {
			o.silent = true
		}
		if s.Lacks(configs.FallbackLocked) {
			o.silent, o.locked = true, true
		}
		if slot == a.slot {
			o.level, o.swaps, o.silent, o.locked = a.core.levelNow(), a.canSwap(), false, false
			o.state, o.stateNs = m.state, m.stateNs
			o.resident, o.swapped, o.pinned, o.wanted = m.movable(c), c.swapped, c.pinned+c.resident-m.movable(c), c.wanted
			o.making = c.making
			o.other, o.reserve = m.other, a.reserve()
			o.idleNs, o.idleAfter, o.waitsNs, o.swapNs = m.idleNs, a.idleAfter(), m.waitsNs, m.swapNs
		} else {
			p := &s.Memory
			o.state, o.stateNs = memoryState(p.State.Load()), p.StateSinceNs.Load()
			o.resident, o.swapped, o.pinned = p.Resident.Load(), p.Swapped.Load(), p.Pinned.Load()
			o.claim(p.Claimed.Load(), p.Wanted.Load())
			o.other, o.reserve = p.Other.Load(), p.Reserve.Load()
			o.idleNs, o.idleAfter, o.waitsNs, o.swapNs = p.IdleSinceNs.Load(), p.IdleAfterNs.Load(), p.WantedSinceNs.Load(), p.SwapNs.Load()
		}
		if o.level >= 0 && o.level <= lowestLevel {
			v.all = append(v.all, o)
		}
	}
	if m.giverNs == 0 || v.more() {
		m.giverNs = now
	}
	v.giverNs = m.giverNs
	return v
}

func (a *agent) reserve() uint64 {
	if a.core.levelNow() < lowestLevel {
		return 0
	}
	return a.core.config.Memory.ReserveMB << 20
}

// needsMeasuring says whether the driver has to be asked. It may take a lock that launches of the process need: a process of
// a higher level asks only where its program does (c.asking), where it wants memory, or may have to give some.
func (a *agent) needsMeasuring(v *memoryView, c memoryCounters) bool {
	lack := false
	for _, o := range v.all {
		switch {
		case o.slot != a.slot:
			lack = lack || o.short() != 0 || o.reserve != 0
		case o.short() != 0:
			return true
		}
	}
	if c.asking != 0 {
		return true
	}
	if a.core.levelNow() < lowestLevel {
		own := v.of(a.slot)
		return lack && own != nil && own.idle(v.now)
	}
	return lack || a.reserve() != 0 || v.now-min(v.now, a.memory.measuredNs) >= uint64(heartbeat)
}

// measure asks the driver what is free, and finds out how much of the rest nobody accounts for. While memory moves, what is
// published and what is free belong to different times. Where the driver cannot be asked, for want of a context, what is
// published must do.
func (a *agent) measure(v *memoryView, c memoryCounters) {
	m := &a.memory
	used, other, moving := uint64(0), uint64(0), false
	for _, o := range v.all {
		used, other = saturate(used, o.resident, o.pinned), max(other, o.other)
		moving = moving || o.state == memoryLeaving || o.state == memoryComing
	}
	if m.total == 0 {
		m.total = deviceTotal(a.gpu)
	}
	m.free = minus(m.total, saturate(used, other))
	if a.needsMeasuring(v, c) {
		seen, fresh := m.meter.read(measurePatience)
		m.known, m.questions, m.answers = seen.known, m.meter.questions, m.meter.answered
		capped := seen.known && isCap(a.gpu, seen.total)
		if capped { // what the driver says is this process's, not the GPU's: what is published must do
			seen.known, fresh = false, false
			setElsewhere(a.gpu, v.elsewhere(m.total, min(other, m.total), m.total))
		}
		if seen.known { // an old answer: a move in has taken some of it since
			m.free, m.total = minus(seen.free, minus(c.takenBytes, seen.taken)), seen.total
		}
		if seen.known && fresh {
			m.measuredNs = v.now
		}
		if seen.known && fresh && !moving && v.now-min(v.now, m.sampledNs) >= otherApart {
			m.sampledNs = v.now
			m.samples = append(m.samples, sample{v.now, minus(m.total, saturate(m.free, used)), seen.pools})
			m.other = middle(m.samples, func(s sample) uint64 { return s.bytes })
			// The program hears of its pools apart.
			others := middle(m.samples, func(s sample) uint64 { return minus(s.bytes, s.pools) })
			setElsewhere(a.gpu, v.elsewhere(minus(m.total, saturate(m.free, c.resident, c.pinned)), others, m.total))
		}
	}
	if moving && len(m.samples) == 0 && other != 0 { // earlier processes have measured it
		setElsewhere(a.gpu, v.elsewhere(m.total, min(other, m.total), m.total))
	}
	m.samples, v.other = recent(m.samples, v.now)
	v.free, v.total = m.free, m.total
}

// middle is the middle of the last samples: what processes publish may be a little older or newer than what the driver says.
func middle(samples []sample, of func(sample) uint64) uint64 {
	var last []uint64
	for _, s := range samples[max(0, len(samples)-otherSamples):] {
		last = append(last, of(s))
	}
	slices.Sort(last)
	return last[len(last)/2]
}

// recent returns the samples of the last settleVain, with one from before, and the least of them. Without one from before the least is 0:
// for how long it was so is not known then.
func recent(samples []sample, now uint64) (kept []sample, least uint64) {
	first := 0
	for first+1 < len(samples) && samples[first+1].atNs+settleVain <= now {
		first++
	}
	samples = samples[first:]
	if len(samples) == 0 || samples[0].atNs+settleVain > now {
		return samples, 0
	}
	least = samples[0].bytes
	for _, s := range samples {
		least = min(least, s.bytes)
	}
	return samples, least
}

// takeMemoryTurn takes or hands on the memory turn, and measures what a switch takes.
func (a *agent) takeMemoryTurn(p memoryPlan, c memoryCounters, now uint64) {
	m, own := &a.memory, a.own()
	turn := a.segment.MemoryTurn.Load()
	owner, owned := segment.TurnOwner(turn)
	switch p.turn {
	case turnTaken, turnSeizedFrom:
		if a.segment.MoveTurn(true, turn, a.slot, p.turn == turnSeizedFrom, now) {
			owner, owned = a.slot, true
			if p.turn == turnSeizedFrom {
				own.Memory.TurnsSeized.Add(1)
			}
			a.segment.Ring()
		}
	case turnPassed:
		if owned && owner == a.slot && a.segment.MoveTurn(true, turn, p.to, false, now) {
			owner, owned = p.to, p.to >= 0
			a.segment.Ring()
		}
	}
	switch has := owned && owner == a.slot; {
	case has && m.turnNs == 0:
		m.turnNs = now
		a.log.Debug().Uint64("quantum", p.quantum).Msg("memory turn")
		own.Memory.Turns.Add(1)
		m.switchNs, m.switchIn = now, c.inBytes
	case !has && m.turnNs != 0:
		own.Memory.TurnNs.Add(now - m.turnNs)
		m.turnNs = 0
	}
	if m.switchNs != 0 && c.swapped == 0 && c.claims() == 0 && m.state == memoryRunning {
		if c.inBytes != m.switchIn {
			m.swapNs = now - m.switchNs
		}
		m.switchNs = 0
	}
}

// answerWaiters tells calls that wait for room to try again, or that they wait in vain.
func (a *agent) answerWaiters(p memoryPlan, c memoryCounters, now uint64) {
	m, every := &a.memory, againLater
	if c.wanted == 0 {
		if m.toldMost != math.MaxUint64 { // the next call is not refused unasked
			m.toldMost = math.MaxUint64
			roomChanged(a.gpu, m.toldMost, false)
		}
		return
	}
	// Memory that was free before the calls tried last may be another process's by now, and published values are not exact. A call that
	// often hears of enough, and is refused, gives up.
	newer := m.known && m.answers > m.toldQuestions
	enough := p.enough && (newer || !m.known && now-min(now, m.enoughNs) >= uint64(heartbeat))
	vain := c.wanted > p.most
	switch {
	case newer && p.enough:
		every = againSoon
	case m.known && !newer && !vain: // the driver takes long
		every = uint64(heartbeat)
	}
	news := vain && m.toldMost == math.MaxUint64 || p.most > m.toldMost
	if news || (p.again || vain) && now-min(now, m.againNs) >= every {
		if enough {
			m.enoughNs = now
		}
		m.againNs, m.toldMost, m.toldQuestions = now, p.most, m.questions
		roomChanged(a.gpu, max(p.most, 1), enough) // calls to come are answered too
	}
}

// begin begins what the plan says, if nothing moves, and returns when to look again.
func (a *agent) begin(p memoryPlan, c memoryCounters, v *memoryView, now uint64) time.Duration {
	m, mover := &a.memory, a.core.memory.mover
	if !a.core.memory.moves {
		return heartbeat
	}
	if x, busyMoving := mover.moving(a.gpu); busyMoving && x.kind < movePin {
		mover.bring(a.gpu, c.takenBytes, p.room)
		if p.urgent {
			mover.hurry(a.gpu)
		}
		return moveLook
	}
	movable, stuck := m.movable(c), m.stuckTo > now
	if !a.mayLeave() {
		movable = 0
	}
	var begun bool
	switch {
	case v.out && movable != 0 && !stuck:
		begun = a.beginOut(c, math.MaxUint64, p.urgent) // what the driver keeps for the program too
	case m.suspended && !m.halted && !stuck:
		begun = mover.begin(move{gpu: a.gpu, kind: moveHalt, timeout: a.drainFor()})
	case m.halted && !m.suspended:
		begun = mover.begin(move{gpu: a.gpu, kind: moveResume})
	case p.give != 0 && movable != 0 && !stuck:
		begun = a.beginOut(c, p.give, p.urgent)
	case p.bring != 0 && c.swapped != 0 && now >= m.bringAfter:
		if m.switchNs == 0 {
			m.switchNs, m.switchIn = now, c.inBytes
		}
		// A higher level waits for what goes, never for what comes to the lowest one.
		begun = mover.begin(move{gpu: a.gpu, kind: moveIn, bytes: p.bring, urgent: a.core.levelNow() < lowestLevel})
	default:
		a.answerPeople(c, now)
		return a.pinAhead(c, v, now)
	}
	if !begun { // the mover has something else to do
		return moveLook
	}
	a.noteState(c, now)
	x, _ := mover.moving(a.gpu)
	a.log.Debug().Stringer("move", x.kind).Uint64("bytes", x.bytes).Bool("urgent", x.urgent).Uint64("free", v.free).Msg("memory moves")
	return moveLook
}

// drainFor is how long work that was submitted may take to end before memory goes. The GPU goes on with that work meanwhile; what
// the time bounds is how long a program stands that waits for itself.
func (a *agent) drainFor() time.Duration {
	turns := 2 * bits.OnesCount64(a.segment.Members.Load()) * int(a.quantumMs())
	return drainFor + time.Duration(min(a.memory.stuckFor, drainMore)) + time.Duration(turns)*time.Millisecond
}

func (a *agent) beginOut(c memoryCounters, bytes uint64, urgent bool) bool {
	a.core.memory.setOut(a.gpu, true) // first: a hint that comes meanwhile counts
	return a.core.memory.mover.begin(move{gpu: a.gpu, kind: moveOut, bytes: bytes, timeout: a.drainFor(), urgent: urgent, out: c.outBytes})
}

// drains says whether memory is about to leave, for which submitted work must end first.
func (a *agent) drains() bool {
	if a.core.memory == nil {
		return false
	}
	now, moving := a.core.memory.mover.moving(a.gpu)
	return moving && (now.kind == moveHalt || now.kind == moveOut && readMemory(a.gpu).outBytes == now.out)
}

// mayLeave says whether memory of this process may leave at all.
func (a *agent) mayLeave() bool { return a.core.levelNow() == lowestLevel || a.core.config.Memory.LC }

// bringBack brings everything back where there is no slot to agree with others through.
func (a *agent) bringBack() {
	if a.core.memory == nil || !a.alone {
		return
	}
	allowMemory(a.gpu, math.MaxUint64)
	a.core.memory.mover.take(a.gpu)
	c := readMemory(a.gpu)
	if c.swapped != 0 {
		a.core.memory.mover.begin(move{gpu: a.gpu, kind: moveIn, bytes: math.MaxUint64})
	}
	if c.wanted != 0 { // nobody makes room
		a.memory.toldMost = 0
		roomChanged(a.gpu, 0, false)
	}
}

// answerPeople answers a request once nothing is left to do for it.
func (a *agent) answerPeople(c memoryCounters, now uint64) {
	m := &a.memory
	switch m.asked {
	case segment.AskedOut:
		if c.swapped == 0 {
			a.answer(segment.AnswerNothing)
		} else {
			a.answer(segment.AnswerDone)
		}
	case segment.AskedSuspend:
		if m.halted {
			a.answer(segment.AnswerDone)
		}
	case segment.AskedIn, segment.AskedResume:
		if c.swapped == 0 && !m.halted {
			a.answer(segment.AnswerDone)
		} else if now-m.askedNs > uint64(heartbeat) {
			a.answer(segment.AnswerNoRoom)
		}
	}
}

// pinAhead pins host memory piece by piece while this process could have to go, and gives it back after a while without
// pressure. It returns when to look again.
func (a *agent) pinAhead(c memoryCounters, v *memoryView, now uint64) time.Duration {
	m, mover := &a.memory, a.core.memory.mover
	needed, waiting, others := uint64(0), false, false // others: some could want this process's memory
	for _, o := range v.all {
		others = others || o.slot != a.slot && o.swaps
		needed = saturate(needed, o.resident, o.pinned, o.short())
		waiting = waiting || o.waits()
	}
	refused, less := mover.pinRefused(a.gpu)
	if refused {
		m.pinned, m.pinAfter = 0, now+uint64(heartbeat) // the context may have been in use; the arena remembers refusals
	}
	if less {
		m.pinned = minus(m.pinned, memoryPiece)
		if m.pressureNs == 0 { // the rest is to be given back
			m.pressureNs = now
		}
	}
	mayGo := a.core.levelNow() == lowestLevel || a.idleAfter() != 0
	switch {
	case mayGo && others && (waiting || float64(saturate(needed, m.other)) > pressurePart*float64(m.total)):
		m.pressureNs = now
		if m.pinned >= m.movable(c) || now < m.pinAfter || c.swapped != 0 {
			return heartbeat
		}
		next := min(m.pinned+memoryPiece, m.movable(c))
		if mover.begin(move{gpu: a.gpu, kind: movePin, bytes: next}) {
			m.pinned = next
		}
		return pinLook
	case m.pressureNs != 0 && now-m.pressureNs > unpinAfter && c.swapped == 0:
		if mover.begin(move{gpu: a.gpu, kind: moveUnpin}) {
			m.pressureNs, m.pinned = 0, 0
		}
	}
	return heartbeat
}

// publishMemory tells others, and wakes them where they may wait for it.
func (a *agent) publishMemory(c memoryCounters, p memoryPlan, now uint64) {
	m, own := &a.memory, &a.own().Memory
	rate := func(bytes, ns uint64) uint64 {
		if ns == 0 {
			return 0
		}
		return uint64(float64(bytes) / float64(ns) * 1e9)
	}
	if now-min(now, m.pinsNs) >= uint64(heartbeat) { // all ranges are looked at for it
		m.pins, m.pinsNs = pinsOf(a.gpu), now
	}
	quantum := uint64(0)
	if a.core.levelNow() == lowestLevel {
		quantum = p.quantum
	}
	for _, word := range [...]struct {
		to *atomic.Uint64
		is uint64
	}{
		{&own.Pins, m.pins}, {&own.Waiting, c.waiting}, {&own.Host, c.host}, {&own.Reserve, a.reserve()}, {&own.Other, m.other},
		{&own.State, uint64(m.state)}, {&own.StateSinceNs, m.stateNs}, {&own.IdleSinceNs, m.idleNs}, {&own.IdleAfterNs, a.idleAfter()},
		{&own.WantedSinceNs, m.waitsNs}, {&own.OutRate, rate(c.outBytes, c.outNs)}, {&own.InRate, rate(c.inBytes, c.inNs)},
		{&own.SwapNs, m.swapNs}, {&own.QuantumNs, quantum},
		{&own.Waits, c.waits}, {&own.WaitNs, c.waitNs}, {&own.Evictions, c.evictions}, {&own.Restores, c.restores},
		{&own.OutBytes, c.outBytes}, {&own.OutNs, c.outNs}, {&own.InBytes, c.inBytes}, {&own.InNs, c.inNs}, {&own.Failures, c.failures}, {&own.Cap, c.cap},
	} {
		word.to.Store(word.is)
	}
	publishAccounts(a.gpu, c.resident-m.movable(c))
	idle := m.idleNs != 0 && a.idleAfter() != 0 && now-m.idleNs >= a.idleAfter()
	tells := toldMemory{m.state, m.waitsNs != 0, idle, c.claims(), c.resident}
	was := m.told
	m.told = tells
	freed := tells.resident < was.resident
	if tells.resident >= was.resident { // more is no news
		was.resident = tells.resident
	}
	if (freed || tells != was) && a.segment.Members.Load()&^(1<<a.slot) != 0 {
		a.segment.Ring()
	}
}
