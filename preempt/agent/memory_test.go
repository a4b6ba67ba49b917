// One goroutine computes.
//go:build !race

package agent

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// Simulated machines: GPUs whose processes look at what others published at their last look, and whose memory moves at a rate.

const (
	simTick  = uint64(20 * time.Millisecond)
	simRate  = uint64(50) // bytes a nanosecond, both ways
	simTotal = uint64(80) << 30
	simOther = uint64(1) << 30
)

type simMachine struct {
	now  uint64
	gpus []*simGPU
	rand *rand.Rand
}

type simGPU struct {
	m      *simMachine
	turn   int
	turnNs uint64
	turns  memoryTurns
	all    []*simProcess
	seen   []memoryOf
	passes int
}

// simProcess is a process on one GPU. It publishes a copy from its last look.
type simProcess struct {
	memoryOf  // as of now
	published memoryOf
	dead      bool
	stopped   bool
	stopNs    uint64
	away      bool // people asked it out
	works     func(now uint64) bool
	ran       uint64 // nanoseconds with all its memory in and work
	move      struct {
		left, since uint64
		bring       bool
		drainUntil  uint64
	}
	vain      bool
	allowed   uint64 // as of the last look
	switchNs  uint64 // since when it is being brought in
	gave      uint64 // how often something left, after all was in
	gaveUp    uint64 // how often something left, but because people asked
	brought   uint64
	gaveBytes uint64
	drainNs   uint64
	sticks    float64 // how likely a drain does not end
	stuckTo   uint64
	want      uint64 // what its program asks for
	waited    uint64 // the longest wait of its program for memory
}

func newSim(seed uint64, gpus int) *simMachine {
	m := &simMachine{now: 1e15, rand: rand.New(rand.NewPCG(seed, 1))}
	for range gpus {
		m.gpus = append(m.gpus, &simGPU{m: m, turn: -1, turns: memoryTurns{minNs: 2e9, maxNs: 60e9, share: 0.1}})
	}
	return m
}

func always(uint64) bool { return true }

func (g *simGPU) add(level int, asks uint64, works func(uint64) bool) *simProcess {
	p := &simProcess{works: works, want: asks, drainNs: 20e6, allowed: math.MaxUint64}
	p.slot, p.level, p.job, p.startedNs, p.stateNs = len(g.all), level, uint64(len(g.all)), g.m.now+uint64(len(g.all)), g.m.now
	p.swaps, p.other, p.idleAfter = level == lowestLevel, simOther, uint64(time.Second)
	if level != lowestLevel {
		p.idleAfter = 0
	}
	p.published = p.memoryOf
	g.all = append(g.all, p)
	return p
}

func (g *simGPU) free() uint64 {
	used := simOther
	for _, p := range g.all {
		if !p.dead {
			used += p.resident + p.pinned
		}
	}
	if used > simTotal {
		panic("more is resident than the device has")
	}
	return simTotal - used
}

func (g *simGPU) view(p *simProcess) *memoryView {
	v := &memoryView{own: p.slot, total: simTotal, free: g.free(), other: simOther, now: g.m.now, turn: g.turn, turnNs: g.turnNs, turns: g.turns, out: p.away}
	v.all = g.seen[:0] // no view outlives the next
	for _, other := range g.all {
		if other.dead {
			continue
		}
		seen := other.published
		seen.silent = other.stopped && g.m.now-other.stopNs > stoodStill
		v.all = append(v.all, seen)
	}
	g.seen = v.all
	return v
}

// program lets the process work, ask for memory, and wait.
func (g *simGPU) program(p *simProcess) {
	now := g.m.now
	works := p.waitsNs != 0 || p.works(now) // a thread that waits goes on waiting
	running := p.swapped == 0 && p.state == memoryRunning || p.state == memoryStuck
	switch {
	case p.want > 0 && works && running && g.free() >= p.want && p.allowed >= p.want && p.wanted == 0: // the driver asks no more
		p.resident, p.allowed, p.want = p.resident+p.want, p.allowed-p.want, 0
	case p.want > 0 && works && running:
		p.wanted = p.want
	}
	blocked := works && (!running || p.wanted > 0)
	switch {
	case blocked && p.waitsNs == 0:
		p.waitsNs = now
	case !blocked:
		p.waitsNs = 0
	}
	if p.waitsNs != 0 && !p.vain {
		p.waited = max(p.waited, now-p.waitsNs)
	}
	if works && running {
		p.idleNs = 0
		if !blocked {
			p.ran += simTick
		}
	} else if p.idleNs == 0 {
		p.idleNs = now
	}
}

// carry moves memory.
func (g *simGPU) carry(p *simProcess) {
	now, step := g.m.now, simRate*simTick
	if p.state == memoryStuck && now >= p.stuckTo {
		p.state, p.stateNs = memoryRunning, now
	}
	switch {
	case p.state == memoryLeaving && now < p.move.drainUntil:
	case p.state == memoryLeaving:
		if p.move.drainUntil != 0 && p.swapped == 0 && g.m.rand.Float64() < p.sticks {
			p.state, p.stateNs, p.stuckTo = memoryStuck, now, now+10e9
			return
		}
		p.move.drainUntil = 0
		n := min(step, p.move.left, p.resident)
		p.resident, p.swapped, p.move.left = p.resident-n, p.swapped+n, p.move.left-n
		p.gaveBytes += n
		if p.move.left == 0 || p.resident == 0 {
			p.state, p.stateNs = memoryOut, now
			if p.swapped == 0 {
				p.state = memoryRunning
			}
		}
	case p.state == memoryComing:
		n := min(step, p.move.left, p.swapped, g.free())
		p.resident, p.swapped, p.move.left = p.resident+n, p.swapped-n, p.move.left-n
		switch {
		case p.swapped == 0:
			p.state, p.stateNs = memoryRunning, now
			p.brought++
		case n == 0:
			p.state, p.stateNs = memoryOut, now
		}
	}
}

// publishAccounts says at once what changes without a look of the agent.
func (p *simProcess) publishAccounts() {
	q := &p.published
	q.resident, q.swapped, q.pinned, q.wanted = p.resident, p.swapped, p.pinned, p.wanted
}

// look lets the agent decide.
func (g *simGPU) look(p *simProcess) {
	now := g.m.now
	if p.switchNs != 0 && p.in() {
		p.swapNs, p.switchNs = now-p.switchNs, 0
	}
	p.published = p.memoryOf
	plan := g.view(p).plan()
	switch plan.turn {
	case turnTaken, turnSeizedFrom:
		g.turn, g.turnNs = p.slot, now
		p.switchNs = now
		g.passes++
	case turnPassed:
		g.turn, g.turnNs = plan.to, now
		g.passes++
		if plan.to >= 0 {
			g.all[plan.to].switchNs = now
		}
	}
	p.allowed = plan.allowed
	if p.wanted > plan.most {
		p.vain = true
	}
	if plan.again && g.free() >= p.wanted {
		p.resident, p.wanted, p.want = p.resident+p.wanted, 0, 0
	}
	still := p.state != memoryLeaving && p.state != memoryComing && p.state != memoryStuck
	switch {
	case !still:
	case (plan.give > 0 || plan.all) && p.resident > 0:
		p.state, p.stateNs = memoryLeaving, now
		p.move.left, p.move.drainUntil = plan.give, now+p.drainNs
		if plan.all {
			p.move.left = p.resident
		}
		if p.swapped > 0 {
			p.move.drainUntil = 0
		}
		if p.swapped == 0 {
			p.gave++
		}
		if !plan.all {
			p.gaveUp++
		}
	case plan.bring > 0 && p.swapped > 0:
		if p.switchNs == 0 {
			p.switchNs = now
		}
		p.state, p.stateNs = memoryComing, now
		p.move.left = plan.bring
	}
}

// run lets time pass. Agents look in random order, at two of three ticks.
func (m *simMachine) run(span time.Duration, each func()) {
	for end := m.now + uint64(span); m.now < end; m.now += simTick {
		for _, g := range m.gpus {
			for _, i := range m.rand.Perm(len(g.all)) {
				p := g.all[i]
				if p.dead || p.stopped {
					continue
				}
				g.program(p)
				g.carry(p)
				p.publishAccounts()
				if m.rand.IntN(3) != 0 {
					g.look(p)
				}
			}
			g.free() // checks that it all fits
		}
		if each != nil {
			each()
		}
	}
}

func (g *simGPU) given() (times uint64) {
	for _, p := range g.all {
		times += p.gave
	}
	return times
}

// Two that do not fit together both get on, and swapping takes at most its share of the time.
func TestMemoryTurns(t *testing.T) {
	for _, c := range []struct {
		name  string
		asks  []uint64
		turns memoryTurns
		share float64 // of the time in which somebody runs, at least
	}{
		{"two of 0.7", []uint64{56, 56}, memoryTurns{minNs: 2e9, maxNs: 60e9, share: 0.1}, 0.9},
		{"one large, one small", []uint64{70, 20}, memoryTurns{minNs: 2e9, maxNs: 60e9, share: 0.1}, 0.9},
		{"three of 0.9", []uint64{70, 70, 70}, memoryTurns{minNs: 2e9, maxNs: 60e9, share: 0.1}, 0.9},
		{"a small share", []uint64{60, 60}, memoryTurns{minNs: 2e9, maxNs: 200e9, share: 0.02}, 0.97},
		{"a fixed turn", []uint64{60, 60}, memoryTurns{fixedNs: 30e9, minNs: 2e9, maxNs: 60e9, share: 0.1}, 0.9},
	} {
		for seed := range uint64(3) {
			m := newSim(seed, 1)
			g := m.gpus[0]
			g.turns = c.turns
			for _, asks := range c.asks {
				g.add(lowestLevel, asks*gigabyte, always)
			}
			const span = 1000 * time.Second
			m.run(span, nil)
			sum := 0.0
			for _, p := range g.all {
				part := float64(p.ran) / float64(span)
				if sum += part; part < 0.6*c.share/float64(len(c.asks)) {
					t.Errorf("%s: process %d runs for %.2f of the time", c.name, p.slot, part)
				}
			}
			if sum < c.share {
				t.Errorf("%s: somebody runs for %.3f of the time, not for %.2f", c.name, sum, c.share)
			}
		}
	}
}

// While everything fits, nothing moves.
func TestMemoryThatFitsStays(t *testing.T) {
	for seed := range uint64(20) {
		m := newSim(seed, 1)
		g := m.gpus[0]
		for left := 76 * gigabyte; left > gigabyte && len(g.all) < 10; {
			n := 1 + m.rand.Uint64N(left)
			left -= n
			level := lowestLevel
			if m.rand.IntN(3) == 0 {
				level = m.rand.IntN(lowestLevel)
			}
			phase := m.rand.Uint64N(5e9)
			p := g.add(level, n/2, func(now uint64) bool { return (now+phase)/1e9%4 != 0 })
			if level != lowestLevel { // it may go
				p.swaps, p.idleAfter = true, 5e8
			}
		}
		m.run(20*time.Second, nil)
		for _, p := range g.all {
			p.want = p.resident / 2
		}
		m.run(20*time.Second, nil)
		if n := g.given(); n != 0 {
			t.Errorf("seed %d: %d evictions", seed, n)
		}
		for _, p := range g.all {
			if p.vain || p.waited != 0 {
				t.Errorf("seed %d: process %d waited for %d ns, in vain: %t", seed, p.slot, p.waited, p.vain)
			}
		}
	}
}

// Two that hold half each and want all: neither waits for the other for ever.
func TestMemoryHeldByHalves(t *testing.T) {
	for seed := range uint64(10) {
		m := newSim(seed, 1)
		g := m.gpus[0]
		a, b := g.add(lowestLevel, 35*gigabyte, always), g.add(lowestLevel, 35*gigabyte, always)
		m.run(time.Second, nil)
		a.want, b.want = 35*gigabyte, 35*gigabyte
		m.run(60*time.Second, nil)
		a.ran, b.ran = 0, 0
		m.run(100*time.Second, nil)
		if a.resident+a.swapped != 70*gigabyte || b.resident+b.swapped != 70*gigabyte || a.ran < 30e9 || b.ran < 30e9 {
			t.Errorf("seed %d: they have %d and %d, and ran for %d and %d ns", seed, a.resident+a.swapped, b.resident+b.swapped, a.ran, b.ran)
		}
	}
}

// Of three, two fit: at each turn one gives its place, and each runs for two thirds of the time.
func TestMemoryPairsStay(t *testing.T) {
	m := newSim(1, 1)
	g := m.gpus[0]
	for range 3 {
		g.add(lowestLevel, 30*gigabyte, always)
	}
	const span = 1000 * time.Second
	m.run(span, nil)
	for _, p := range g.all {
		if part := float64(p.ran) / float64(span); part < 0.5 || part > 0.75 {
			t.Errorf("process %d runs for %.2f of the time", p.slot, part)
		}
	}
	if given, passes := g.given(), uint64(g.passes); given > passes+2 {
		t.Errorf("%d evictions in %d turns", given, passes)
	}
}

// A process of a higher level that asks for more has it as soon as the bus allows, and keeps what it has. It does not wait for memory
// within the reserve.
func TestMemoryOfHigherLevels(t *testing.T) {
	for seed := range uint64(10) {
		for _, reserve := range []uint64{0, 10 * gigabyte} {
			m := newSim(seed, 1)
			g := m.gpus[0]
			lc := g.add(0, 5*gigabyte, always)
			m.run(time.Second, nil)
			for _, asks := range []uint64{30, 30, 40} {
				p := g.add(lowestLevel, asks*gigabyte, always)
				p.reserve = reserve
			}
			m.run(30*time.Second, nil)
			lc.waited = 0
			for range 3 {
				if lc.want = 8 * gigabyte; reserve == 0 {
					lc.want = 15 * gigabyte
				}
				m.run(20*time.Second, nil)
			}
			// Drains, looks of each agent, and the bus: the margin is freed too.
			bound := (15*gigabyte+2*memoryMarginMost)/simRate + uint64(100*time.Millisecond)
			if reserve != 0 {
				bound = 0
			}
			if lc.gave != 0 || lc.waited > bound || lc.want != 0 {
				t.Errorf("seed %d, reserve %d: it waited for %d ns, gave %d times, lacks %d", seed, reserve, lc.waited, lc.gave, lc.want)
			}
		}
	}
}

// Services that are used rarely have their memory when they work, though they do not fit together. They wait for the bus.
func TestMemoryOfIdleServices(t *testing.T) {
	m := newSim(3, 1)
	g := m.gpus[0]
	for i := range uint64(8) {
		p := g.add(0, 15*gigabyte, func(now uint64) bool { return (now/1e9+7*i)%60 < 3 })
		p.swaps, p.idleAfter = true, 2e9
	}
	m.run(180*time.Second, nil)
	for _, p := range g.all {
		p.waited = 0
	}
	m.run(300*time.Second, nil)
	for _, p := range g.all {
		if bound := 2*15*gigabyte/simRate + uint64(100*time.Millisecond); p.brought < 4 || p.waited > bound {
			t.Errorf("service %d was brought back %d times, and waited for %d ns", p.slot, p.brought, p.waited)
		}
	}
	busy := g.add(lowestLevel, 30*gigabyte, always)
	m.run(120*time.Second, nil)
	if busy.ran < 30e9 {
		t.Errorf("a process beside them ran for %d ns", busy.ran)
	}
}

// The reserve yields to what a process had when it began to be kept: it would not run again.
func TestMemoryReserveYields(t *testing.T) {
	m := newSim(4, 1)
	g := m.gpus[0]
	be := g.add(lowestLevel, 60*gigabyte, always)
	be.reserve = 20 * gigabyte
	m.run(time.Second, nil)
	lc := g.add(0, 5*gigabyte, always)
	m.run(10*time.Second, nil)
	if be.gave != 0 || be.ran < 10e9 {
		t.Errorf("it gave %d times, and ran for %d ns", be.gave, be.ran)
	}
	lc.want = 15 * gigabyte // which it has to make room for
	m.run(10*time.Second, nil)
	if lc.resident != 20*gigabyte || be.swapped == 0 {
		t.Errorf("the higher level has %d, and %d is out", lc.resident, be.swapped)
	}
	lc.resident = 5 * gigabyte
	other := g.add(lowestLevel, 40*gigabyte, always)
	be.ran = 0
	m.run(200*time.Second, nil)
	if be.ran < 60e9 || other.ran < 60e9 {
		t.Errorf("two take turns beside it for %d and %d ns", be.ran, other.ran)
	}
	be.want = 10 * gigabyte // but no more is granted
	m.run(100*time.Second, nil)
	if be.resident+be.swapped != 60*gigabyte {
		t.Errorf("it has %d", be.resident+be.swapped)
	}
}

// A call for more than ever fits is refused at once; one that will fit is not.
func TestMemoryInVain(t *testing.T) {
	m := newSim(5, 1)
	g := m.gpus[0]
	pinned := g.add(lowestLevel, 10*gigabyte, always)
	pinned.pinned = 20 * gigabyte
	a := g.add(lowestLevel, 40*gigabyte, always)
	m.run(10*time.Second, nil)
	a.want = 21 * gigabyte
	began := m.now
	m.run(time.Second, func() {
		if a.vain {
			m.now = math.MaxUint64 - 2*simTick
		}
	})
	if !a.vain || m.now < began {
		t.Fatal("an allocation beyond what others have pinned was not refused")
	}
	m.now = began + uint64(time.Second)
	a.vain, a.want, a.wanted = false, 15*gigabyte, 0
	m.run(60*time.Second, nil)
	if a.vain || a.resident+a.swapped != 55*gigabyte {
		t.Errorf("it has %d; refused: %t", a.resident+a.swapped, a.vain)
	}
}

// A process does not wait for ever for memory of another one whose work never ends.
func TestMemoryBesideWorkThatDoesNotEnd(t *testing.T) {
	const began = uint64(1e12)
	v := &memoryView{own: 1, total: simTotal, free: 10 * gigabyte, turn: 1, turnNs: began, turns: memoryTurns{fixedNs: 1e9},
		all: []memoryOf{
			{slot: 0, level: lowestLevel, swaps: true, resident: 60 * gigabyte, state: memoryStuck, stateNs: began, idleAfter: 1e9},
			{slot: 1, level: lowestLevel, swaps: true, wanted: 30 * gigabyte, waitsNs: began, idleAfter: 1e9},
		}}
	for _, c := range []struct {
		seconds uint64
		refused bool // the driver is asked, and says that it is out of memory
	}{{10, false}, {19, false}, {25, true}} {
		v.now = began + c.seconds*1e9
		if p := v.plan(); p.enough != c.refused {
			t.Errorf("after %d s: %+v", c.seconds, p)
		}
	}
	v.all[0].stateNs = v.now - 1e9 // it was tried again meanwhile
	if p := v.plan(); p.enough {
		t.Errorf("a second after another attempt: %+v", p)
	}
}

// A process leaves free memory to a higher level that lacks it, but not for ever: the claim may be a lie, and nobody gives it more.
func TestMemoryThatIsClaimed(t *testing.T) {
	const began = uint64(1e12)
	v := &memoryView{own: 1, total: simTotal, free: 20 * gigabyte, turn: -1, giverNs: began,
		all: []memoryOf{
			{slot: 0, pinned: 50 * gigabyte, wanted: 30 * gigabyte, waitsNs: began},
			{slot: 1, level: lowestLevel, swaps: true, wanted: 5 * gigabyte, waitsNs: began, idleAfter: 1e9},
		}}
	for _, c := range []struct {
		seconds uint64
		asks    bool
	}{{1, false}, {6, false}, {19, false}, {21, true}} {
		v.now = began + c.seconds*1e9
		if p := v.plan(); p.again != c.asks || p.enough != c.asks || (p.allowed >= 5*gigabyte) != c.asks {
			t.Errorf("after %d s: %+v", c.seconds, p)
		}
	}
	v.now, v.all[0].wanted, v.all[0].waitsNs = began+6e9, 0, 0
	if p := v.plan(); !p.again || !p.enough || p.allowed < 5*gigabyte {
		t.Errorf("once nobody lacks it: %+v", p)
	}
}

// Processes of a job on two GPUs have their turns at the same time.
func TestMemoryTurnsOfJobs(t *testing.T) {
	for seed := range uint64(3) {
		m := newSim(seed, 2)
		for i, g := range m.gpus {
			for job := range 2 {
				p := g.add(lowestLevel, (55+5*uint64(i))*gigabyte, always)
				p.job, p.published.job = 1000*seed+uint64(job), 1000*seed+uint64(job)
				if i == 1 { // other slots, another order
					p.startedNs = m.now - uint64(job)
				}
			}
		}
		together, all := 0, 0
		m.run(100*time.Second, nil)
		m.run(1000*time.Second, func() {
			all++
			for job := range 2 {
				if m.gpus[0].all[job].in() && m.gpus[1].all[job].in() {
					together++
				}
			}
		})
		if part := float64(together) / float64(all); part < 0.6 {
			t.Errorf("seed %d: a job has both GPUs for %.2f of the time", seed, part)
		}
	}
}

// Processes go on, and all that can be in come in, whatever happens to others.
func TestMemoryUnderFire(t *testing.T) {
	seeds := uint64(4)
	if os.Getenv("GPREEMPT_DEEP") != "" {
		seeds = 12
	}
	for seed := range seeds {
		m := newSim(seed, 1)
		g := m.gpus[0]
		name := func(p *simProcess) string {
			return fmt.Sprintf("seed %d, process %d of level %d", seed, p.slot, p.level)
		}
		for range 6 * 20 { // ten minutes
			if alive := slices.DeleteFunc(slices.Clone(g.all), func(p *simProcess) bool { return p.dead }); len(alive) < 6 && len(g.all) < 60 && m.rand.IntN(2) == 0 {
				level := lowestLevel
				if m.rand.IntN(4) == 0 {
					level = m.rand.IntN(lowestLevel)
				}
				works, phase, period := always, m.rand.Uint64N(20e9), 1+m.rand.Uint64N(10e9)
				if m.rand.IntN(2) == 0 {
					works = func(now uint64) bool { return (now+phase)/period%3 != 0 }
				}
				asks := m.rand.Uint64N(60 * gigabyte)
				reserve := seed % 2 * 4 * gigabyte
				if level != lowestLevel {
					asks /= 8
				}
				p := g.add(level, asks, works)
				if p.reserve = reserve; level != lowestLevel {
					p.reserve = 0
				}
				p.drainNs, p.sticks = m.rand.Uint64N(300e6), 0.1*m.rand.Float64()
				if level != lowestLevel && m.rand.IntN(2) == 0 {
					p.swaps, p.idleAfter = true, 3e9
				}
			} else if len(alive) > 0 {
				p := alive[m.rand.IntN(len(alive))]
				switch m.rand.IntN(8) {
				case 0:
					p.dead = true
					if g.turn == p.slot { // Reap
						g.turn, g.turnNs = -1, m.now
					}
				case 1:
					p.stopped, p.stopNs = true, m.now
				case 2:
					p.stopped = false
				case 3:
					p.away = !p.away
				case 4:
					if p.want == 0 {
						p.want = m.rand.Uint64N(10 * gigabyte)
					}
				case 5:
					p.want, p.wanted, p.vain = 0, 0, false
				}
			}
			m.run(5*time.Second, nil)
		}
		lc := uint64(0)
		for _, p := range g.all { // the storm is over
			p.stopped, p.away, p.sticks = false, false, 0
			if p.vain {
				p.want, p.wanted, p.vain = 0, 0, false
			}
			if !p.dead && p.level != lowestLevel {
				lc += p.resident + p.swapped + p.want
			}
		}
		m.run(60*time.Second, nil)
		for _, p := range g.all {
			p.ran = 0
		}
		m.run(600*time.Second, nil)
		for _, p := range g.all {
			if p.level != lowestLevel && p.idleAfter == 0 && p.gaveUp != 0 {
				t.Errorf("%s gave memory", name(p))
			}
			need := p.resident + p.swapped + p.want
			if p.dead || p.vain || p.level == lowestLevel && need+lc+simOther > simTotal || lc+simOther > simTotal {
				continue
			}
			if p.ran < 1e9 { // turns are few for work that comes and goes: of 120 seeds, the least is some seconds
				for _, q := range g.all {
					if !q.dead {
						t.Logf("%d level %d R %d O %d P %d W %d want %d state %d waits %t idle %d swap %d ran %d swaps %t", q.slot, q.level, q.resident>>20, q.swapped>>20, q.pinned>>20, q.wanted>>20, q.want>>20, q.state, q.waits(), q.idleNs, q.swapNs/1e6, q.ran/1e6, q.swaps)
					}
				}
				t.Errorf("%s ran for %d ns in 600 s: state %d, has %d, out %d, wants %d; turn %d, free %d, higher levels %d",
					name(p), p.ran, p.state, p.resident, p.swapped, p.want, g.turn, g.free(), lc)
			}
		}
	}
}

// One goes rather than three, where one is enough; it gives no more than is missing and the margin.
func TestMemoryOneVictim(t *testing.T) {
	in := func(slot int, has, since uint64) memoryOf {
		return memoryOf{slot: slot, level: lowestLevel, swaps: true, resident: has * gigabyte, stateNs: since, idleAfter: 1e9}
	}
	v := &memoryView{total: 80 * gigabyte, free: 4 * gigabyte, now: 1e12, turn: 4, turnNs: 1e12, turns: memoryTurns{fixedNs: 1e9},
		all: []memoryOf{in(0, 12, 10), in(1, 12, 20), in(2, 12, 30), in(3, 40, 40),
			{slot: 4, level: lowestLevel, swaps: true, swapped: 20 * gigabyte, state: memoryOut, waitsNs: 1e11, idleAfter: 1e9}}}
	for own := range v.all {
		v.own = own
		give := uint64(0)
		if own == 3 {
			give = 16*gigabyte + memoryMarginMost
		}
		if p := v.plan(); p.give != give {
			t.Errorf("process %d gives %d, not %d", own, p.give, give)
		}
	}
}

// While the driver makes memory for a service, its answer is of another instant than what is published. A process gives no more for that,
// and brings nothing back into it.
func TestMemoryThatIsBeingMade(t *testing.T) {
	const asks = 19 * gigabyte
	turns := memoryTurns{minNs: 2e9, maxNs: 60e9, share: 0.1}
	view := func(free uint64, service, own memoryOf) *memoryView {
		service.waitsNs, service.stateNs, service.other = 1e12-1e9, 1e10, gigabyte
		own.slot, own.level, own.swaps, own.stateNs, own.idleAfter, own.other = 1, lowestLevel, true, 1e10, 1e9, gigabyte
		return &memoryView{own: 1, total: 80 * gigabyte, free: free, now: 1e12, turn: -1, turns: turns, all: []memoryOf{service, own}}
	}
	for name, c := range map[string]struct {
		free    uint64
		service memoryOf
		missing uint64
		soon    bool // it is measured anew
	}{
		"it waits":                             {9 * gigabyte, memoryOf{wanted: asks}, 10 * gigabyte, false},
		"its call is made again":               {9 * gigabyte, memoryOf{resident: asks, making: asks}, 0, false},
		"the driver has made a part, since":    {2 * gigabyte, memoryOf{wanted: asks}, 10 * gigabyte, true},
		"the driver has made a part":           {2 * gigabyte, memoryOf{resident: asks, making: asks}, 0, false},
		"the accounts are of later":            {0, memoryOf{resident: asks}, 0, false},
		"it waits beside new memory of others": {5 * gigabyte, memoryOf{wanted: asks}, 10 * gigabyte, true},
	} {
		v := view(c.free, c.service, memoryOf{resident: 70 * gigabyte})
		p, want := v.plan(), uint64(0)
		if c.missing != 0 {
			want = c.missing + memoryMarginMost
		}
		if p.give != want || (p.wait == time.Duration(otherApart)) != c.soon {
			t.Errorf("%s: it gives %d, not %d, and looks again after %s", name, p.give, want, p.wait)
		}
	}
	out := memoryOf{resident: 50 * gigabyte, swapped: 10 * gigabyte, state: memoryOut, waitsNs: 1e12 - 1e9}
	for name, c := range map[string]struct {
		free    uint64
		service memoryOf
		brings  uint64
	}{
		"it waits":               {29 * gigabyte, memoryOf{wanted: asks}, 10 * gigabyte},
		"its call is made again": {29 * gigabyte, memoryOf{resident: asks, making: asks}, 10 * gigabyte},
		"it has its memory":      {10 * gigabyte, memoryOf{resident: asks}, 10 * gigabyte},
		"for it, all is free":    {asks, memoryOf{resident: asks, making: asks}, 0},
	} {
		if p := view(c.free, c.service, out).plan(); p.bring != c.brings {
			t.Errorf("%s: it brings %d, not %d", name, p.bring, c.brings)
		}
	}
}

// A process finds out what another one lacks, which it reads word by word.
func TestMemoryThatOthersLack(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	const slot = 5
	a.segment.Members.Or(1 << slot)
	said := &a.segment.Slot(slot).Memory
	for name, c := range map[string]struct {
		resident, swapped, pinned, wanted, claimed uint64
		lacks, out, making                         uint64
	}{
		"it runs":                                 {resident: 7, pinned: 2, claimed: 9},
		"a call waits":                            {resident: 7, pinned: 2, wanted: 4, claimed: 13, lacks: 4},
		"the call is made again":                  {resident: 11, pinned: 2, wanted: 4, claimed: 13, making: 4},
		"a part of what it claims is taken":       {resident: 10, pinned: 2, wanted: 4, claimed: 13, lacks: 1, making: 3},
		"a part is out":                           {resident: 3, swapped: 4, pinned: 2, claimed: 9, lacks: 4, out: 4},
		"that, and a call waits":                  {resident: 3, swapped: 4, pinned: 2, wanted: 5, claimed: 14, lacks: 9, out: 4},
		"a part has come, and is read as out":     {resident: 7, swapped: 4, pinned: 2, claimed: 9},
		"a part goes, and is read as neither":     {resident: 3, pinned: 2, claimed: 9, lacks: 4},
		"memory is new, and the sum is of before": {resident: 9, pinned: 2, claimed: 9},
	} {
		said.Resident.Store(c.resident)
		said.Swapped.Store(c.swapped)
		said.Pinned.Store(c.pinned)
		said.Wanted.Store(c.wanted)
		said.Claimed.Store(c.claimed)
		m := a.view(memoryCounters{}, 1e12).of(slot)
		if m == nil || m.short() != c.lacks || m.swapped != c.out || m.making != c.making {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// An owner that does not hand its turn on, though it lives, loses it.
func TestMemoryTurnIsSeized(t *testing.T) {
	v := &memoryView{own: 1, total: simTotal, free: 10 * gigabyte, now: 1e12, turn: 0, turnNs: 5e11, turns: memoryTurns{fixedNs: 1e9},
		all: []memoryOf{
			{slot: 0, level: lowestLevel, swaps: true, resident: 60 * gigabyte, stateNs: 5e11, idleAfter: 1e9},
			{slot: 1, level: lowestLevel, swaps: true, swapped: 60 * gigabyte, state: memoryOut, waitsNs: 999e9, idleAfter: 1e9},
		}}
	if p := v.plan(); p.turn != turnStays {
		t.Errorf("a second after it began to wait: %+v", p)
	}
	v.all[1].waitsNs = 6e11
	if p := v.plan(); p.turn != turnSeizedFrom {
		t.Errorf("400 s later: %+v", p)
	}
	v.all[1].waitsNs, v.all[0].silent = 999e9, true
	if p := v.plan(); p.turn != turnStays { // what it holds cannot be had
		t.Errorf("beside a stopped owner with too much memory: %+v", p)
	}
	v.all[0].resident = 10 * gigabyte
	v.all[1].swapped = 69 * gigabyte
	v.free = 69 * gigabyte
	v.all[0].other = 0
	if p := v.plan(); p.bring != 69*gigabyte {
		t.Errorf("what fits beside it: %+v", p)
	}
}

// When the owner of the turn hands it on, and when it is taken from it.
func TestMemoryTurnEnds(t *testing.T) {
	second := uint64(time.Second)
	for _, c := range []struct {
		name string
		edit func(v *memoryView)
		own  int
		turn turnMove
		to   int
	}{
		{"in its quantum", func(*memoryView) {}, 0, turnStays, -1},
		{"in its quantum, in a round of the other", func(v *memoryView) {
			v.now, v.turnNs, v.all[0].stateNs = v.now+16*second, v.turnNs+16*second, v.all[0].stateNs+16*second
		}, 0, turnStays, -1},
		{"after it", func(v *memoryView) { v.now += 20 * second }, 0, turnPassed, 1},
		{"nobody waits", func(v *memoryView) { v.now, v.all[1].waitsNs = v.now+20*second, 0 }, 0, turnStays, -1},
		{"it idles", func(v *memoryView) { v.all[0].idleNs = v.now - 2*second }, 0, turnPassed, 1},
		{"it is asked out", func(v *memoryView) { v.out = true }, 0, turnPassed, 1},
		{"it is there", func(v *memoryView) { v.now += 20 * second }, 1, turnStays, -1},
		{"it is stopped", func(v *memoryView) { v.all[0].silent, v.all[0].resident = true, 10*gigabyte }, 1, turnSeizedFrom, -1},
		{"it never hands on", func(v *memoryView) { v.now += 600 * second }, 1, turnSeizedFrom, -1},
	} {
		now := 16000 * second // a round begins
		v := &memoryView{own: c.own, total: 80 * gigabyte, free: 10 * gigabyte, now: now + 5*second, turn: 0, turnNs: now, turns: memoryTurns{fixedNs: 16 * second},
			all: []memoryOf{ // the third makes that a stopped owner's place is not enough
				{slot: 0, level: lowestLevel, swaps: true, job: 1, resident: 40 * gigabyte, stateNs: now + second, idleAfter: second},
				{slot: 1, level: lowestLevel, swaps: true, job: 1, startedNs: 1, swapped: 60 * gigabyte, state: memoryOut, waitsNs: now, idleAfter: second},
				{slot: 2, level: lowestLevel, swaps: true, job: 1, resident: 30 * gigabyte, stateNs: now, idleAfter: second},
			}}
		c.edit(v)
		if p := v.plan(); p.turn != c.turn || p.to != c.to {
			t.Errorf("%s: process %d does %d with the turn, to %d; want %d, %d", c.name, c.own, p.turn, p.to, c.turn, c.to)
		}
	}
}

// Where one victim is not enough, the second gives the rest.
func TestMemoryTwoVictims(t *testing.T) {
	v := &memoryView{total: 80 * gigabyte, free: 10 * gigabyte, now: 1e12, turn: 2, turnNs: 1e12, turns: memoryTurns{fixedNs: 1e9},
		all: []memoryOf{
			{slot: 0, level: lowestLevel, swaps: true, resident: 35 * gigabyte, stateNs: 10, idleAfter: 1e9},
			{slot: 1, level: lowestLevel, swaps: true, resident: 35 * gigabyte, stateNs: 20, idleAfter: 1e9},
			{slot: 2, level: lowestLevel, swaps: true, swapped: 60 * gigabyte, state: memoryOut, waitsNs: 1e11, idleAfter: 1e9},
		}}
	for own, give := range []uint64{35 * gigabyte, 15*gigabyte + memoryMarginMost, 0} {
		v.own = own
		if p := v.plan(); p.give != give {
			t.Errorf("process %d gives %d, not %d", own, p.give, give)
		}
	}
}

// A process looks again after a while, neither at once nor never, whatever others publish. An owner of the turn that says that it began in
// the future does not keep it for ever.
func TestMemoryPlanDoubtsOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	value := func() uint64 {
		return []uint64{0, 1, 80 * gigabyte, 1 << 63, math.MaxUint64, math.MaxInt64, random.Uint64()}[random.IntN(7)]
	}
	turns := memoryTurns{minNs: 1e8, maxNs: 1e10, share: 0.1}
	for range 20000 {
		v := &memoryView{own: 0, total: 80 * gigabyte, free: gigabyte, now: 1e15, turn: random.IntN(4) - 1, turnNs: value(), turns: turns}
		for slot := range 3 {
			v.all = append(v.all, memoryOf{
				slot: slot, level: random.IntN(lowestLevel + 1), job: value(), startedNs: value(), silent: random.IntN(4) == 0, swaps: true,
				state: memoryState(value()), stateNs: value(), resident: value(), swapped: value(), pinned: value(), wanted: value(), other: value(),
				reserve: value(), idleNs: value(), idleAfter: value(), waitsNs: value(), swapNs: value(),
			})
		}
		v.all[0] = memoryOf{level: lowestLevel, swaps: true, resident: gigabyte, swapped: gigabyte, waitsNs: 1e15 - 1e9}
		if p := v.plan(); p.wait <= 0 || p.wait > heartbeat {
			t.Fatalf("%+v: it looks again after %v", v, p.wait)
		}
		v.free, v.all[0].wanted = 10*gigabyte, 1+random.Uint64N(12*gigabyte)
		if p := v.plan(); p.most < 9*gigabyte { // 1 GiB of its own is to come back
			t.Fatalf("%+v: of what is free only %d may be asked for", v, p.most)
		}
		// A call that hears of enough, and gets none before the driver is asked, gives up.
		v.all[0].waitsNs -= random.Uint64N(3) * claimVain / 2
		v.giverNs = random.Uint64N(2) * (v.now - settleVain)
		if p := v.plan(); p.enough && p.allowed < min(v.all[0].wanted, p.most) {
			t.Fatalf("%+v: there is enough, and %d of it may be allocated", v, p.allowed)
		}
	}
	for _, future := range []uint64{1 << 62, math.MaxUint64} {
		v := &memoryView{own: 0, total: 80 * gigabyte, now: 1e15, turn: 1, turnNs: future, turns: turns, all: []memoryOf{
			{level: lowestLevel, swaps: true, swapped: 60 * gigabyte, state: memoryOut, waitsNs: 1e15 - 9e11},
			{slot: 1, level: lowestLevel, swaps: true, resident: 60 * gigabyte, stateNs: future},
		}}
		if p := v.plan(); p.turn != turnSeizedFrom {
			t.Errorf("the turn that began at %d is not seized: %+v", future, p)
		}
	}
}

// The memory of a process that the driver has locked does not count: a call for it is refused at once, and others give what they have.
func TestMemoryOfALockedProcess(t *testing.T) {
	for _, locked := range []bool{false, true} {
		m := newSim(1, 1)
		g := m.gpus[0]
		service, holder, other := g.add(0, 0, always), g.add(lowestLevel, 0, always), g.add(lowestLevel, 0, always)
		holder.resident, other.resident = 60*gigabyte, 10*gigabyte
		holder.locked, holder.silent = locked, locked
		service.wanted, service.waitsNs = 15*gigabyte, m.now
		for _, p := range g.all {
			p.published = p.memoryOf
		}
		if gives := g.view(other).plan().give; locked && gives == 0 {
			t.Error("the other one gives nothing")
		}
		if vain := g.view(service).plan().most < 15*gigabyte; vain {
			t.Errorf("locked %v: what the other one has is refused", locked)
		}
		service.wanted = 30 * gigabyte
		service.published = service.memoryOf
		if vain := g.view(service).plan().most < service.wanted; vain != locked {
			t.Errorf("locked %v: refused %v", locked, vain)
		}
	}
}
