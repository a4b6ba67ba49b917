package agent

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// This file decides which processes have the memory of a GPU. Each process publishes what it has, and evaluates the same function of what
// all publish: plan. It then acts on its own memory alone. Only the word of the memory turn is written by several, by compare-and-swap.
//
// A process runs only if all of its memory is in. The ones that may be in, best first: processes above the lowest level; the
// one with the memory turn; those that are in already; those that wait; idle ones. Each that fits beside those before it is among them. A
// process that is not among them gives as much as is missing, and asks for the turn when it has work.

const (
	// memoryPiece is what is brought back at least at once, if there is so much: a chunk.
	memoryPiece = 256 << 20
	// memoryMargin is freed beside what is missing, so that the next small allocation finds room: a part of the device's
	// memory, and the most, in bytes.
	memoryMarginPart, memoryMarginMost = 64, 512 << 20
	// memoryAheadMost bounds what a process that is out already gives a higher level ahead: as much again as it has given. It
	// cannot run anyway, and a program that grows step by step would wait for each step.
	memoryAheadMost = 4 << 30
	// swapShare is the part of the time that swapping may take.
	swapShare = 0.1
	// slowestSwap is a rate, bytes a second, below which an owner that brings its memory in counts as late.
	slowestSwap = 500 << 20
	// settleVain is how long memory that no process accounts for must have been taken before an allocation is refused for it.
	settleVain = uint64(5 * time.Second)
	// claimVain is how long a call leaves free memory to processes that lack it, where nobody gives them more: twice as long as their
	// calls wait (memory.wait_ms, 10 s unless set).
	claimVain = uint64(20 * time.Second)
	// stuckVain is how long a process must have been passed over without a break until nobody counts on its memory. That comes after the
	// fifth attempt that failed (passedMost).
	stuckVain = uint64(20 * time.Second)
	// stoodStill is how old a heartbeat is of a process that is stopped.
	stoodStill = 3 * uint64(heartbeat)
	// takeAnyway is after how long a process takes a turn that nobody has, if the one that comes first does not.
	takeAnyway = uint64(50 * time.Millisecond)
)

// memoryOf is what one process publishes of its memory on a GPU: bytes, and nanoseconds of CLOCK_MONOTONIC.
type memoryOf struct {
	slot, level int
	job         uint64
	startedNs   uint64
	silent      bool // stopped: it has not been heard of for long, or it is locked
	locked      bool // the driver has it locked or checkpointed: what it has stays until that ends
	swaps       bool // its memory can go
	noHost      bool // it has no host memory to go to
	state       memoryState
	stateNs     uint64 // since when

	resident, swapped, pinned uint64
	wanted                    uint64 // by calls that wait for room, and are not in resident or pinned
	making                    uint64 // of these two, what such calls ask the driver for now: it may not have it yet
	other                     uint64 // taken by nobody who publishes, as this process measured it
	reserve                   uint64 // that it leaves free for levels above the lowest

	idleNs    uint64 // since when it has no work; 0: it has
	idleAfter uint64 // it is idle after so long without work; 0: never
	waitsNs   uint64 // since when it waits for memory; 0: it does not
	swapNs    uint64 // what its last switch took, of others out and of itself in
}

// memoryTurns are the settings of memory turns.
type memoryTurns struct {
	fixedNs, minNs, maxNs uint64  // fixedNs 0: learnt
	share                 float64 // of the time that swapping may take
}

// memoryView is all that a process decides from.
type memoryView struct {
	own         int // slot
	all         []memoryOf
	total, free uint64 // of the device, as the driver says
	other       uint64 // the least of late that nobody accounted for
	now         uint64
	turn        int // slot that has the memory turn; -1: none
	turnNs      uint64
	turns       memoryTurns
	out         bool   // people asked this process out
	roomNs      uint64 // since when its calls have waited for room, though they tried again meanwhile; 0: they do not
	giverNs     uint64 // when another process was last there that may ever give memory, or this one began; 0: not known
}

// memoryPlan is what a process does now.
type memoryPlan struct {
	give    uint64 // Evict at least so many bytes.
	all     bool   // Evict everything, as people asked.
	bring   uint64 // Bring back at most so many bytes.
	room    uint64 // So many more bytes may come where some come already, however few.
	urgent  bool   // The move: a higher level waits for it, or this is one.
	again   bool   // Calls that wait for room try again: there is some.
	enough  bool   // There is enough for all of these calls.
	most    uint64 // Calls that ask for more bytes wait in vain.
	allowed uint64 // Bytes that may be allocated before a call has to ask for room, though there is some.
	turn    turnMove
	to      int           // Where the turn is passed to; -1: nobody.
	wait    time.Duration // Until it looks again, if nothing changes.
	quantum uint64        // Of memory turns, nanoseconds.
}

// turnMove is what is done with the memory turn.
type turnMove int

const (
	turnStays turnMove = iota
	turnTaken
	turnSeizedFrom // taken from an owner that did not hand it on
	turnPassed
)

func (m *memoryOf) lowest() bool { return m.level == lowestLevel }
func (m *memoryOf) waits() bool  { return m.waitsNs != 0 }
func (m *memoryOf) short() uint64 {
	return saturate(m.swapped, m.wanted)
}

// claim finds out what another process lacks, once its resident, swapped and pinned are set. One word says what it has and what its calls
// claim. So bytes that are taken, or move, while the words are read count once. See preempt/memory/account.c.
func (m *memoryOf) claim(claimed, calls uint64) {
	short := minus(claimed, saturate(m.resident, m.pinned))
	m.swapped = min(m.swapped, short)
	m.wanted = short - m.swapped
	m.making = minus(calls, m.wanted)
}

func (m *memoryOf) idle(now uint64) bool {
	return !m.waits() && m.idleNs != 0 && m.idleAfter != 0 && now-min(now, m.idleNs) >= m.idleAfter
}

// in says whether it runs, or could.
func (m *memoryOf) in() bool {
	return m.short() == 0 && m.runs()
}

// runs says whether it could have work on the GPU.
func (m *memoryOf) runs() bool { return m.state == memoryRunning || m.state == memoryStuck }

// gives says whether its memory can be taken from it now.
func (m *memoryOf) gives(now uint64) bool {
	switch {
	case m.state == memorySuspended || m.state == memoryLeaving && !m.waits():
		return m.swaps && !m.silent
	case !m.swaps || m.silent || m.noHost || m.state == memoryStuck:
		return false
	}
	return m.lowest() || m.idle(now)
}

// everGives says whether its memory is ever taken from it. A process whose work did not end when its memory was wanted, again and again,
// may never give any: a call that waits for it is refused, as without the library.
func (m *memoryOf) everGives(now uint64) bool {
	if m.state == memoryStuck && now-min(now, m.stateNs) >= stuckVain {
		return false
	}
	return m.swaps && !m.locked && !m.noHost && (m.lowest() || m.idleAfter != 0 || m.state == memorySuspended)
}

// needs is what it must have in addition to what is counted as taken, to run.
func (m *memoryOf) needs(now uint64) uint64 {
	if m.gives(now) {
		return saturate(m.resident, m.short())
	}
	return m.short()
}

// had is needs without what it asks for.
func (m *memoryOf) had(now uint64) uint64 {
	return minus(m.needs(now), m.wanted)
}

// settled is the memory of a GPU as it should be.
type settled struct {
	in       []memoryOf     // Processes that may be in, best first.
	among    map[int]bool   // The same as slots.
	victims  []memoryOf     // Processes that give, in that order.
	lacks    uint64         // Bytes that processes of in have yet to get.
	claims   uint64         // Lacks, and what they ask the driver for now.
	missing  uint64         // The part of lacks and the reserve that is not free.
	doubt    uint64         // So much more would be missing by the driver's answer alone.
	higher   bool           // Some of lacks is for levels above the lowest.
	beside   uint64         // Bytes that the lowest level may have: neither taken, nor needed by higher levels.
	room     uint64         // The rest of beside, without the reserve, for the next process.
	lowest   bool           // A process of the lowest level may be in.
	before   map[int]uint64 // By slot: claims of those before it in the order.
	reserve  uint64         // That stays free of the lowest level.
	promised uint64         // The reserve as configured: it yields.
	view     *memoryView
}

// ranks orders processes that may be in.
type rank int

const (
	rankHigher  rank = iota // a level above the lowest
	rankTurn                // has the memory turn
	rankIn                  // is in, and works
	rankWaits               // waits for memory
	rankIdleLC              // of a higher level, idle for long
	rankIdle                // in and idle
	rankNowhere             // out or on its way there, without need
)

func (v *memoryView) rankOf(m *memoryOf) rank {
	switch {
	case m.state == memorySuspended || m.slot == v.own && v.out:
		return rankNowhere
	case m.silent:
		return rankNowhere
	case !m.lowest() && !m.idle(v.now):
		return rankHigher
	case !m.waits() && (m.state == memoryLeaving || m.swapped != 0):
		return rankNowhere
	case !m.lowest():
		return rankIdleLC
	case m.slot == v.turn && !m.idle(v.now):
		return rankTurn
	case m.waits():
		return rankWaits
	case m.idle(v.now):
		return rankIdle
	}
	return rankIn
}

// settle finds out which processes may be in.
func (v *memoryView) settle() *settled {
	s := &settled{among: map[int]bool{}, before: map[int]uint64{}, view: v}
	taken, other, used := uint64(0), uint64(0), uint64(0)
	ranked := [rankNowhere + 1][]memoryOf{}
	higher, moving := false, false
	for _, m := range v.all {
		moving = moving || m.state == memoryLeaving || m.state == memoryComing
		used = saturate(used, m.pinned, m.resident)
		taken = saturate(taken, m.pinned)
		if !m.gives(v.now) {
			taken = saturate(taken, m.resident)
		}
		if !m.silent {
			other = max(other, m.other)
		}
		if m.lowest() {
			s.reserve = max(s.reserve, m.reserve)
		} else {
			higher = true
		}
		r := v.rankOf(&m)
		ranked[r] = append(ranked[r], m)
	}
	if !higher {
		s.reserve = 0
	}
	s.room = minus(v.total, saturate(taken, other))
	level := func(a, b memoryOf) int { return cmp.Compare(a.level, b.level) }
	oldest := func(a, b memoryOf) int {
		return cmp.Or(cmp.Compare(a.startedNs, b.startedNs), cmp.Compare(a.slot, b.slot))
	}
	order := func(r rank, by ...func(a, b memoryOf) int) []memoryOf {
		slices.SortFunc(ranked[r], func(a, b memoryOf) int {
			for _, f := range append(by, oldest) {
				if c := f(a, b); c != 0 {
					return c
				}
			}
			return 0
		})
		return ranked[r]
	}
	for _, m := range order(rankHigher, level) {
		s.let(m)
	}
	s.promised = s.reserve
	s.beside = s.room
	s.room = minus(s.room, s.reserve)
	s.fit(order(rankTurn))
	// The process that came in first leaves first: its next turn is the furthest.
	s.fit(order(rankIn, func(a, b memoryOf) int { return cmp.Compare(b.stateNs, a.stateNs) }))
	s.fit(order(rankWaits, func(a, b memoryOf) int { return cmp.Compare(a.waitsNs, b.waitsNs) }))
	shortestIdle := func(a, b memoryOf) int { return cmp.Compare(b.idleNs, a.idleNs) }
	s.fit(order(rankIdleLC, level, shortestIdle))
	s.fit(order(rankIdle, shortestIdle))
	for _, m := range s.in {
		s.before[m.slot] = s.claims
		s.lacks = saturate(s.lacks, m.short())
		s.claims = saturate(s.claims, m.short(), m.making)
		s.higher = s.higher || !m.lowest() && m.short() != 0
	}
	// The driver's answer is of another instant than what is published: a call may meanwhile have got what it lacked, or have given it
	// back. The published words agree with each other, but know nothing of new memory of others. So bytes are missing if both miss them.
	s.missing = minus(saturate(s.lacks, s.reserve), v.free)
	if moving || other != 0 {
		published := minus(saturate(s.lacks, s.reserve, used, other), v.total)
		s.doubt = minus(s.missing, published)
		s.missing = min(s.missing, published)
	}
	for _, r := range []rank{rankNowhere, rankIdle, rankIdleLC, rankWaits, rankIn, rankTurn} {
		list := ranked[r]
		slices.Reverse(list) // the last that may be in is the first to give
		for _, m := range list {
			if !s.among[m.slot] && m.resident != 0 && m.gives(v.now) {
				s.victims = append(s.victims, m)
			}
		}
	}
	slices.SortStableFunc(s.victims, func(a, b memoryOf) int { // first those that do not run anyway
		switch {
		case a.runs() == b.runs():
			return 0
		case b.runs():
			return -1
		}
		return 1
	})
	return s
}

// let counts a process among those that are in.
func (s *settled) let(m memoryOf) {
	s.in, s.among[m.slot] = append(s.in, m), true
	s.room = minus(s.room, m.needs(s.view.now))
}

// fit lets those in that fit, best first. Where all but one fit, only that one is left out: one victim rather than three.
func (s *settled) fit(list []memoryOf) {
	now, sum := s.view.now, uint64(0)
	for _, m := range list {
		sum = saturate(sum, m.needs(now))
	}
	without := -1
	for i := len(list) - 1; i >= 0 && sum > s.room && without < 0; i-- {
		if minus(sum, list[i].needs(now)) <= s.room {
			without = i
		}
	}
	for i, m := range list {
		if i != without && m.needs(now) <= s.room {
			s.let(m)
			s.lowest = s.lowest || m.lowest()
		}
	}
	// The reserve yields to what one process had before: it could never run again.
	for i := 0; i < len(list) && !s.lowest; i++ {
		if had := list[i].had(now); list[i].lowest() && had <= s.beside {
			s.let(list[i])
			s.reserve, s.lowest = min(s.reserve, s.beside-had), true
		}
	}
}

// plan is what the process does now.
func (v *memoryView) plan() memoryPlan {
	v.doubt()
	p := v.decide()
	p.wait = max(p.wait, time.Millisecond)
	return p
}

// doubt bounds what others published, which may be anything: nobody has more than there is, and nothing began in the future. A
// clock read on another processor may be a little ahead.
func (v *memoryView) doubt() {
	past := func(ns *uint64) {
		if *ns > v.now+uint64(heartbeat) {
			*ns = 1
		}
		*ns = min(*ns, v.now)
	}
	past(&v.turnNs)
	for i := range v.all {
		m := &v.all[i]
		if m.slot == v.own {
			continue
		}
		for _, bytes := range []*uint64{&m.resident, &m.pinned, &m.wanted, &m.making, &m.swapped, &m.other, &m.reserve} {
			*bytes = min(*bytes, v.total)
		}
		for _, ns := range []*uint64{&m.stateNs, &m.idleNs, &m.waitsNs} {
			past(ns)
		}
	}
}

func (v *memoryView) decide() memoryPlan {
	s := v.settle()
	p := memoryPlan{to: -1, wait: heartbeat, most: math.MaxUint64, allowed: math.MaxUint64, quantum: v.quantum()}
	own := v.of(v.own)
	if own == nil {
		return p
	}
	p.urgent = !own.lowest() || s.higher
	if v.out {
		p.all = own.resident != 0
	} else if !s.among[own.slot] {
		p.give = s.share(own)
	}
	if s.doubt > s.margin() { // measured anew soon
		p.wait = time.Duration(otherApart)
	}
	if s.among[own.slot] {
		room := minus(v.free, max(s.kept(own), s.before[own.slot]))
		p.room = room
		if own.swapped != 0 && room >= min(own.swapped, memoryPiece) {
			p.bring = room
		}
		p.again = own.wanted != 0 && room >= min(own.wanted, memoryPiece)
		p.enough = p.again && room >= own.wanted
	}
	if own.wanted != 0 {
		p.most = s.most(own)
	}
	if kept := s.kept(own); kept != 0 {
		p.allowed = minus(v.free, kept)
	}
	// Measurements are not exact, so in the end the driver decides: once a call has waited for long and no process can give memory, it
	// goes to the driver. It waits while processes before it claim what is free, but no longer than claimVain, since a claim may be a
	// lie.
	if own.wanted != 0 && v.settled(own) && !v.more() && (s.claimed(own) == 0 || v.waited(own) >= claimVain) {
		p.again, p.enough, p.allowed = true, true, max(p.allowed, p.most)
	}
	s.turn(own, &p)
	return p
}

// elsewhere is what the program is not told that it may have: what members keep, and what nobody accounts for. Of members it believes no
// more than others can have taken: a member may lie, or has ended. Programs without gpreempt and contexts take memory that nobody accounts
// for, also contexts that this process is yet to make.
func (v *memoryView) elsewhere(taken, other, total uint64) uint64 {
	return saturate(min(v.kept(), taken), max(other, min(contextsBytes, total/contextsPart)))
}

// kept is what other members have that is never taken from them.
func (v *memoryView) kept() (bytes uint64) {
	for _, m := range v.all {
		if m.slot == v.own {
			continue
		}
		bytes = saturate(bytes, m.pinned)
		if !m.everGives(v.now) {
			bytes = saturate(bytes, m.resident)
		}
	}
	return bytes
}

func (v *memoryView) of(slot int) *memoryOf {
	for i := range v.all {
		if v.all[i].slot == slot {
			return &v.all[i]
		}
	}
	return nil
}

// share is what a process that may not be in gives of what is missing: what those that give before it have not.
func (s *settled) share(own *memoryOf) uint64 {
	if s.missing == 0 {
		return 0
	}
	left := saturate(s.missing, s.margin())
	for _, m := range s.victims {
		if left == 0 {
			return 0
		}
		if m.slot == own.slot {
			return min(saturate(left, s.ahead(own)), m.resident)
		}
		left = minus(left, m.resident)
	}
	return 0
}

func (s *settled) margin() uint64 { return min(s.view.total/memoryMarginPart, memoryMarginMost) }

// ahead is what a process gives beyond what is missing.
func (s *settled) ahead(m *memoryOf) uint64 {
	if !s.higher || m.runs() {
		return 0
	}
	return min(m.swapped, memoryAheadMost)
}

// kept is what a process of the lowest level leaves free: for those before it, and the reserve.
func (s *settled) kept(own *memoryOf) uint64 {
	if !own.lowest() {
		return 0
	}
	return saturate(s.claimed(own), s.reserve)
}

// claimed is what those claim that come before a process of the lowest level.
func (s *settled) claimed(own *memoryOf) uint64 {
	switch {
	case !own.lowest():
		return 0
	case s.among[own.slot]:
		return s.before[own.slot]
	}
	return s.claims
}

// settled says whether calls of the process have waited for so long that memory that nobody accounts for is there to stay. The calls do not
// wait where for as long no other process could give any. Without the library the driver would refuse them at once, and programs count on
// it (they give back what they have cached, and try again).
func (v *memoryView) settled(own *memoryOf) bool {
	if v.giverNs != 0 && v.now-min(v.now, v.giverNs) >= settleVain {
		return true
	}
	return v.waited(own) >= settleVain
}

// waited is for how long calls of the process have waited.
func (v *memoryView) waited(own *memoryOf) uint64 {
	since := own.waitsNs
	if v.roomNs != 0 {
		since = min(since, v.roomNs)
	}
	return v.now - min(v.now, since)
}

// more says whether another process may ever give memory.
func (v *memoryView) more() bool {
	return slices.ContainsFunc(v.all, func(m memoryOf) bool {
		return m.slot != v.own && saturate(m.resident, m.swapped) != 0 && m.everGives(v.now)
	})
}

// most is what a call of the process may ask for at all: what could be free if everything went that ever can. A call for memory that the
// driver says is free is not in vain, whatever others publish: a call that finds it claimed waits.
func (s *settled) most(own *memoryOf) uint64 {
	v := s.view
	taken, other := saturate(own.resident, own.swapped), uint64(0)
	if own.lowest() {
		taken = saturate(taken, s.promised)
	}
	for _, m := range v.all {
		taken = saturate(taken, m.pinned)
		switch {
		case m.slot == own.slot:
		case m.locked: // nobody knows for how long
			taken = saturate(taken, m.resident)
		case !m.everGives(v.now):
			other = saturate(other, m.resident)
		}
	}
	if v.settled(own) {
		taken = saturate(taken, other, v.other)
	}
	return max(minus(v.total, taken), minus(v.free, saturate(own.swapped, min(own.reserve, s.promised))))
}

// wanting are the processes that need the memory turn. They wait for more than fits beside those that are in, or for what others have to
// give. They would fit if they had the turn.
func (s *settled) wanting() (list []memoryOf) {
	v, room := s.view, s.room
	for _, m := range s.in {
		if v.rankOf(&m) != rankHigher {
			room = saturate(room, m.needs(v.now))
		}
	}
	for _, m := range v.all {
		fits := m.needs(v.now) <= room || m.had(v.now) <= s.beside
		if v.rankOf(&m) == rankWaits && m.short() != 0 && fits && (!s.among[m.slot] || s.missing != 0) {
			list = append(list, m)
		}
	}
	return list
}

// quantum is how long a memory turn lasts, nanoseconds: so long that the switch to it is a small part. Lengths are a power of
// two apart, so that the turns of several GPUs end together.
func (v *memoryView) quantum() uint64 {
	if v.turns.fixedNs != 0 {
		return v.turns.fixedNs
	}
	swap := uint64(0)
	for _, m := range v.all {
		if m.lowest() && !m.silent {
			swap = max(swap, m.swapNs)
		}
	}
	wanted := float64(v.turns.maxNs)
	if v.turns.share > 0 { // a quarter more, since no two switches take the same time
		wanted = 1.25 * float64(swap) / v.turns.share
	}
	quantum := max(v.turns.minNs, 1)
	for quantum < v.turns.maxNs && float64(quantum) < wanted {
		quantum *= 2
	}
	return min(quantum, max(v.turns.maxNs, 1))
}

// least is how long the owner runs at least after its memory has come in.
func (v *memoryView) least(own *memoryOf, quantum uint64) uint64 {
	if v.turns.fixedNs != 0 || v.turns.share <= 0 {
		return quantum / 2
	}
	return min(uint64(float64(own.swapNs)*(1-v.turns.share)/v.turns.share), v.turns.maxNs)
}

// next is the process that gets the turn in the round of now. Rounds are the same on every GPU, see pick.
func (v *memoryView) next(list []memoryOf, quantum uint64) int {
	contenders := make([]contender, 0, len(list))
	longest := list[0]
	for _, m := range list {
		if m.waits() && (!longest.waits() || m.waitsNs < longest.waitsNs) {
			longest = m
		}
	}
	if bound := 2 * uint64(len(list)) * quantum; longest.waits() && v.now-min(v.now, longest.waitsNs) > bound {
		return longest.slot // the order of rounds is by chance, and favours nobody for ever
	}
	for _, m := range list {
		contenders = append(contenders, contender{m.job, m.startedNs, m.slot})
	}
	if v.turns.fixedNs != 0 {
		return pickOf(contenders, v.now/quantum, v.now/quantum)
	}
	// The order of jobs in a round is that of the first of the short rounds which it consists of.
	base := max(v.turns.minNs, 1)
	round, short := v.now/quantum, quantum/base
	return pickOf(contenders, round/2*2*max(short, 1)+round%2, round)
}

// turn decides what becomes of the memory turn, as far as that is up to this process.
func (s *settled) turn(own *memoryOf, p *memoryPlan) {
	v := s.view
	wanting := s.wanting()
	others := slices.DeleteFunc(slices.Clone(wanting), func(m memoryOf) bool { return m.slot == own.slot })
	wants := len(others) < len(wanting)
	owner := v.of(v.turn)
	switch {
	case v.turn == own.slot:
		s.hold(own, others, p)
	case !wants:
	case owner == nil || !owner.lowest():
		if since := max(own.waitsNs, v.turnNs); v.next(wanting, p.quantum) == own.slot || v.now-min(v.now, since) >= takeAnyway {
			p.turn = turnTaken
		} else {
			p.wait = time.Duration(takeAnyway)
		}
	case owner.silent:
		p.turn = turnSeizedFrom
	default:
		since := max(own.waitsNs, v.turnNs)
		if owner.in() {
			since = max(since, owner.stateNs)
		}
		bound := 3*p.quantum + uint64(seizeAfter) + coming(owner) + coming(own)
		if late := v.now - min(v.now, since); late > bound {
			p.turn = turnSeizedFrom
		} else {
			p.wait = min(p.wait, time.Duration(bound-late)+time.Millisecond)
		}
	}
}

// coming is the most time, nanoseconds, that a process may take to have all its memory in.
func coming(m *memoryOf) uint64 {
	return uint64(float64(saturate(m.resident, m.short())) / slowestSwap * 1e9)
}

// hold decides for the owner of the turn. others want it.
func (s *settled) hold(own *memoryOf, others []memoryOf, p *memoryPlan) {
	v := s.view
	if v.out || own.state == memorySuspended {
		p.turn = turnPassed
		if len(others) != 0 {
			p.to = v.next(others, p.quantum)
		}
		return
	}
	if len(others) == 0 {
		return
	}
	if own.idle(v.now) || !own.in() && !s.among[own.slot] {
		p.turn, p.to = turnPassed, v.next(others, p.quantum)
		return
	}
	if !own.in() {
		until := v.turnNs + p.quantum + coming(own)
		if v.now < until {
			p.wait = min(p.wait, time.Duration(until-v.now))
			return
		}
		p.turn, p.to = turnPassed, v.next(others, p.quantum)
		return
	}
	// It ends with a round: then jobs that share several GPUs change on all of them together.
	since := max(v.turnNs+p.quantum-p.quantum/4, own.stateNs+v.least(own, p.quantum))
	due := (since + p.quantum - 1) / p.quantum * p.quantum
	if v.now < due {
		p.wait = min(p.wait, time.Duration(due-v.now))
		return
	}
	if next := v.next(append(others, *own), p.quantum); next != own.slot {
		p.turn, p.to = turnPassed, next
		return
	}
	p.wait = min(p.wait, time.Duration((v.now/p.quantum+1)*p.quantum-v.now))
}
