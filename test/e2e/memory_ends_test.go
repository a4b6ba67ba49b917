package e2e

import (
	"path/filepath"
	"strconv"
	"testing"
)

// suspended has gpreempt suspend a process, and returns once that says that it is.
func (m *machine) suspended(p *process) {
	m.t.Helper()
	got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), "suspend", strconv.Itoa(p.pid())))
	if err != nil || got.status != 0 {
		m.t.Fatalf("gpreempt suspend: %v, %+v", err, got)
	}
}

// A program whose memory is out frees it, and ends, without getting it back, since it may stay suspended for ever. Memory that it did not
// free comes back whole.
func TestMemoryIsFreedWhileOut(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.startMemory("be")
	gone, kept := p.filled("memory", 100<<20, 1), p.filled("memory", 60<<20, 2)
	m.joined(p)
	m.suspended(p)
	if got := m.memory(p); got.Swapped < 160<<20 || got.Resident > 8<<20 {
		t.Fatalf("swapped %d, resident %d", got.Swapped, got.Resident)
	}
	p.carriesOut("free %d", gone)
	m.until("the freed memory is not swapped any more", func() bool { return m.memory(p).Swapped < 100<<20 })
	got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), "resume", strconv.Itoa(p.pid())))
	if err != nil || got.status != 0 {
		t.Fatalf("gpreempt resume: %v, %+v", err, got)
	}
	p.carriesOut("step %d 3", kept)
	p.right(1)
	m.suspended(p)
	p.carriesOut("free %d", kept)
	p.finish()
}

// Memory that the program maps itself outlives its contexts. Its last context may end while the memory is out. A call that waits for the
// memory does not wait for ever then, and the contents are there for the next context.
func TestMappedMemoryIsOutAsTheContextEnds(t *testing.T) {
	t.Parallel()
	m := newSwapping(t, "")
	p := m.startMemory("be")
	gone, kept := p.filled("mapped", 5_000_000, 1), p.filled("pieces", 20_000_000, 2)
	m.goesOut(p)
	p.carriesOut("leave")
	p.carriesOut("free_at_once %d", gone)
	var device int
	p.ask("device 0", "device %d", &device)
	p.right(1)
	p.carriesOut("step %d 3", kept)
	p.right(1)
	p.finish()
}

// A context takes memory too. A process that begins on a full GPU waits for room instead of failing.
func TestFullGPU(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"lc", "be"} {
		m := newSmall(t, "reserve_mb = 0\n", "SIMCUDA_CONTEXT_MB=64")
		full := m.startFilled("be", 160<<20, 1)
		m.joined(full)
		late := m.startMemory(role)
		late.filled("memory", 10<<20, 2)
		late.right(1)
		m.until("memory of the first has gone", func() bool { return m.memory(full).Evictions > 0 })
		late.finish()
		full.right(1)
		full.finish()
	}
}
