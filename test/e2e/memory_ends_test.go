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

// A program whose memory is out frees it, and ends, without getting it back: it may be suspended for good. What it did not free
// comes back whole.
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
