package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// These are the rules of memory that comes and goes, a test for each.

// goesOut has all memory that can leave do so.
func (m *machine) goesOut(p *process) {
	m.t.Helper()
	for _, answer := range m.asksIdle(p, segment.AskedOut) {
		if answer != segment.AnswerDone {
			m.t.Fatalf("asked to go out, answered %d: %+v; stderr %s", answer, m.memory(p), p.stderr.String())
		}
	}
	if memory := m.memory(p); memory.Resident != 0 || memory.Swapped == 0 {
		m.t.Fatalf("it went out: %+v", memory)
	}
}

// Memory that is out comes back by itself when a call needs it, and can be freed while it is out.
func TestEachWayIsFreedWhileOut(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startMemory("be")
	empty, _ := p.free()
	for i, how := range ways {
		p.filled(how, 5_000_000, i)
	}
	m.goesOut(p)
	p.right(len(ways))
	for i := range ways {
		m.goesOut(p)
		p.carriesOut("free %d", i)
		p.right(len(ways) - 1 - i)
		if i == len(ways)-2 {
			break // of the last one there is nothing left to go
		}
		p.carriesOut("step %d 1", i+1)
	}
	p.carriesOut("free %d", len(ways)-1)
	if free, _ := p.free(); free != empty {
		t.Errorf("%d bytes are free, %d were", free, empty)
	}
	m.until("nothing is left", func() bool { memory := m.memory(p); return memory.Resident == 0 && memory.Swapped == 0 })
	p.finish()
}

// A wait for a word in device memory ends only if the program can go on: an eviction gives up, and nothing has changed.
func TestWorkThatDoesNotEndStays(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startFilled("be", 5_000_000, 1)
	var launched int
	if p.ask("blocked 0", "launched %d", &launched); launched != 0 {
		t.Fatalf("launched %d", launched)
	}
	if answers := m.asks(p, segment.AskedOut); !slices.Equal(answers, []segment.Answer{segment.AnswerBusy}) {
		t.Errorf("answers %v", answers)
	}
	p.carriesOut("unblock")
	p.carriesOut("wait")
	p.right(1)
	m.goesOut(p)
	p.right(1)
	p.finish()
}

// A consumer of an EGL stream waits for frames most of the time, within a call that puts work on a stream.
func TestMemoryGoesWhileAFrameIsWaitedFor(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "mechanisms = [\"blp\", \"swap\"]")
	p := m.startFilled("be", 5_000_000, 1)
	var began int
	if p.ask("acquire", "acquiring %d", &began); began != 0 {
		t.Fatalf("acquire: %d", began)
	}
	if answers := m.asks(p, segment.AskedOut); !slices.Equal(answers, []segment.Answer{segment.AnswerDone}) {
		t.Fatalf("answers %v", answers)
	}
	p.carriesOut("acquired")
	if memory := m.memory(p); memory.Resident != 0 || memory.Swapped == 0 {
		t.Errorf("a frame alone brings memory back: %+v", memory)
	}
	p.right(1)
	p.finish()
}

// Nor is it at work meanwhile, so best-effort work goes on.
func TestWindowClosesWhileAFrameIsWaitedFor(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[hold]\nmax_ms = 10000\n[share]\nmin_be = 0\n")
	p, be := m.startFilled("lc", 5_000_000, 1), m.startFilled("be", 5_000_000, 2)
	m.joined(p)
	m.joined(be)
	m.until("a window is worth it", func() bool {
		p.carriesOut("step 0 1")
		return m.peer(p).Counters.Windows > 0
	})
	m.until("that is closed", func() bool { return !m.peer(p).WindowOpen })
	before := m.peer(p).Counters
	var began int
	if p.ask("acquire", "acquiring %d", &began); began != 0 {
		t.Fatalf("acquire: %d", began)
	}
	m.until("the window closes", func() bool { return !m.peer(p).WindowOpen })
	const call = 10e9 // after so long a call that submits counts as over
	if c := m.peer(p).Counters; c.Windows <= before.Windows || c.WindowsCut != 0 || c.WindowNs-before.WindowNs >= call {
		t.Errorf("before %+v, behind %+v", before, c)
	}
	p.carriesOut("acquired")
	p.right(1)
	p.finish()
	be.finish()
}

func TestCapturedMemoryStays(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startFilled("be", 5_000_000, 1)
	p.carriesOut("capture 0")
	if answers := m.asks(p, segment.AskedOut); !slices.Equal(answers, []segment.Answer{segment.AnswerBusy}) {
		t.Errorf("answers %v", answers)
	}
	p.carriesOut("captured")
	p.right(1)
	m.goesOut(p)
	p.right(1)
	p.finish()
}

// Memory that others may use stays where it is. It is counted, with its reason. The rest goes.
func TestSharedMemoryStays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ how, command, answer, reason string }{
		"legacy IPC":       {"memory", "handle 0", "handle", "exported"},
		"shareable handle": {"shareable", "descriptor 0", "descriptor", "exported"},
		"SYNC_MEMOPS":      {"memory", "register 0", "result 0", "registered"},
		"endpoint, handle": {"mapped", "endpoint handle 0", "result 0", "multicast"},
		"endpoint, addr":   {"mapped", "endpoint address 0", "result 0", "multicast"},
		"dma-buf":          {"memory", "dmabuf 0", "result 0", "registered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newSwapping(t, "")
			p := m.startMemory("be")
			for i := range 2 {
				p.filled(c.how, 4<<20, i)
			}
			p.say("%s", c.command)
			if line := p.hear(); !strings.HasPrefix(line, c.answer) || (c.answer != "result 0" && !strings.HasSuffix(line, "result 0")) {
				t.Fatalf("%s: %q", c.command, line)
			}
			m.asksIdle(p, segment.AskedOut)
			m.until("it tells why", func() bool {
				memory := m.memory(p)
				return memory.Pinned >= 4<<20 && memory.Swapped == 4<<20 && slices.Contains(memory.PinnedBy, c.reason)
			})
			p.right(2)
			p.finish()
		})
	}
}

// Cycles leave neither host nor device memory behind.
func TestCyclesLeaveNothing(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startMemory("be")
	for i := range 4 {
		p.filled("memory", 10<<20, i)
	}
	cycle := func() {
		m.goesOut(p)
		p.right(4)
	}
	for range 5 {
		cycle()
	}
	rss, host := resident(t, p), m.memory(p).Host
	free, _ := p.free()
	for range 50 {
		cycle()
	}
	if now := m.memory(p).Host; now != host {
		t.Errorf("%d bytes of host memory are page-locked, after the first cycles %d", now, host)
	}
	if now, _ := p.free(); now != free {
		t.Errorf("%d bytes are free, after the first cycles %d", now, free)
	}
	if now := resident(t, p); now > rss+20<<20 { // one cycle's is 40 MiB
		t.Errorf("%d bytes are resident, after the first cycles %d", now, rss)
	}
	p.finish()
}

// resident is the host memory of a process.
func resident(t *testing.T, p *process) (bytes uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(text), "VmRSS:")
	if at < 0 {
		t.Fatalf("no VmRSS: %s", text)
	}
	if _, err := fmt.Sscanf(string(text)[at:], "VmRSS: %d kB", &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes << 10
}

// The free memory that a process sees does not move with what others do.
func TestFreeDoesNotMoveWithOthers(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	one := m.startMemory("be")
	free, total := one.free()
	one.filled("memory", 100<<20, 1)
	other := m.startFilled("be", 100<<20, 1)
	same := func(when string) {
		t.Helper()
		if now, nowTotal := one.free(); now != free-100<<20 || nowTotal != total {
			t.Errorf("%s: %d of %d bytes are free, want %d of %d", when, now, nowTotal, free-100<<20, total)
		}
	}
	same("beside another")
	m.goesOut(other)
	same("the other's is out")
	other.filled("memory", 150<<20, 2)
	same("the other has more")
	other.finish()
	same("the other has ended")
	one.finish()
}

// Best-effort programs that do not fit together run together where nothing is configured; latency-critical ones are left alone.
func TestSwapByItself(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[memory]\nturn_ms = 100\n", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	lc := m.startFilled("lc", 20<<20, 1)
	one, other := m.startFilled("be", 200<<20, 2), m.startFilled("be", 200<<20, 3)
	for range 2 {
		for _, p := range []*process{one, other, lc} {
			p.carriesOut("step 0 3")
			p.right(1)
		}
	}
	if peer := m.peer(lc); peer.InForce&configs.Swap != 0 || peer.Memory == nil || peer.Memory.Resident != 0 {
		t.Errorf("the latency-critical process swaps: %+v", peer)
	}
	for _, p := range []*process{one, other} {
		if memory := m.memory(p); memory.Restores == 0 {
			t.Errorf("memory of %d did not go and come back: %+v", p.pid(), memory)
		}
	}
	for _, p := range []*process{one, other, lc} {
		p.finish()
	}
}

// Where memory of latency-critical processes may leave, that is done without naming the mechanism.
func TestSwapOfLCByItself(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[memory]\nlc = true\n", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	lc := m.startFilled("lc", 20<<20, 1)
	m.until("it is in force", func() bool { return m.peer(lc).InForce&configs.Swap != 0 })
	lc.finish()
}

// Under an MPS server, where it has not been measured, "auto" leaves memory alone.
func TestNoSwapByItselfUnderMPS(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MPS=1")
	be := m.startFilled("be", 20<<20, 1)
	m.until("something is in force", func() bool { return m.peer(be).InForce != 0 })
	if peer := m.peer(be); peer.InForce&configs.Swap != 0 {
		t.Errorf("in force: %b", peer.InForce)
	}
	be.right(1)
	be.finish()
}

// The free memory that a process sees is there, also beside processes that give none.
func TestFreeIsWhatOthersLeave(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"lc", ""} { // neither swaps, and the latter is not even a member
		m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
		has := m.startFilled(other, 200<<20, 1)
		p := m.startMemory("be")
		free, total := p.free()
		if free < 100<<20 || free > 200<<20 || total != 400<<20 {
			t.Errorf("beside %q: %d of %d bytes are free", other, free, total)
		}
		p.filled("memory", free, 2)
		p.right(1)
		has.right(1)
		p.finish()
		has.finish()
	}
}

// Memory in pools is not free either. It is free when the pools give it back.
func TestFreeCountsPools(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startMemory("be")
	free, _ := p.free()
	for i, how := range []string{"async", "pool"} {
		p.filled(how, 20<<20, i)
		if now, _ := p.free(); now != free-20<<20 {
			t.Errorf("%s: %d bytes are free, want %d", how, now, free-20<<20)
		}
		p.carriesOut("free %d", i)
		if now, _ := p.free(); now != free {
			t.Errorf("%s, freed: %d bytes are free, want %d", how, now, free)
		}
	}
	p.finish()
}

// Two processes have half of the memory each, and want the other half: both get it. More than there is is refused at once.
func TestBothWantAll(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "[memory]\nturn_ms = 100\n", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	both := []*process{m.startMemory("be"), m.startMemory("be")}
	for _, p := range both {
		p.filled("memory", 150<<20, 1)
	}
	for _, p := range both {
		p.say("alloc memory %d", 150<<20)
	}
	for _, p := range both {
		if line := p.hear(); line != "buffer 1 result 0" {
			t.Fatalf("process %d: %q", p.pid(), line)
		}
	}
	for _, p := range both {
		p.carriesOut("fill 1 2")
		p.right(2)
		if _, result := p.allocate("memory", 500<<20); result != outOfMemory {
			t.Errorf("500 MiB of 400: result %d", result)
		}
	}
	for _, p := range both {
		p.finish()
	}
}

// Where host memory ends, nothing is evicted, and out of memory stays out of memory.
func TestHostMemoryEnds(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "[memory]\nhost_mb = 20\nwait_ms = 100\n", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	be := m.startFilled("be", 300<<20, 1)
	if answers := m.asksIdle(be, segment.AskedOut); !slices.Equal(answers, []segment.Answer{segment.AnswerNoHost}) {
		t.Errorf("answers %v", answers)
	}
	be.right(1)
	lc := m.startMemory("lc")
	if _, result := lc.allocate("memory", 200<<20); result != outOfMemory {
		t.Errorf("result %d", result)
	}
	lc.filled("memory", 20<<20, 2)
	be.carriesOut("step 0 3")
	be.right(1)
	lc.finish()
	be.finish()
}
