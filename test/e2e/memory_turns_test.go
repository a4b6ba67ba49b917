package e2e

import (
	"slices"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

const swapping = "mechanisms = [\"timeslice\", \"hold\", \"turns\", \"swap\"]\n"

// newSmall is a machine whose GPU has 1 GB, and whose processes swap.
func newSmall(t *testing.T, settings string, environment ...string) *machine {
	t.Helper()
	return newMachine(t, swapping+settings, append([]string{"SIMCUDA_MEMORY_MB=1024", "SIMCUDA_CONTEXT_MB=16", "SIMCUDA_COPY_GBS=4"}, environment...)...)
}

// memory is what a process publishes of its memory.
func (m *machine) memory(p *process) segment.Memory {
	m.t.Helper()
	peer := m.peer(p)
	if peer.Memory == nil {
		m.t.Fatalf("process %d publishes nothing of its memory", p.pid())
	}
	return *peer.Memory
}

// In a process that swaps, the mechanism is in force.
func TestSwapIsInForce(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.startMemory("be")
	p.filled("memory", 100<<20, 1)
	m.joined(p)
	m.until("swap is in force", func() bool { return slices.Contains(m.peer(p).Mechanisms, "swap") })
	p.right(1)
}
