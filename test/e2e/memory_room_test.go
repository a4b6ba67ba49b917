package e2e

import (
	"fmt"
	"testing"
	"time"
)

// A request that no room helps is refused, as without the library: memory of a pool that is larger than the GPU, and calls that are out of
// memory whatever is free.
func TestOutOfMemoryAllTheSame(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "", "SIMCUDA_MEMORY_MB=4096", "SIMCUDA_FAIL=cuMemHostAlloc:1+:2", "SIMCUDA_KILL=cuMemCreate:16")
	m.holding("lc", 1000)
	p := m.holding("be", 20)
	var result int
	if p.ask("pinned 4096", "result %d", &result); result != outOfMemory {
		t.Errorf("host memory that cannot be had: %d", result)
	}
	for _, how := range []string{"async", "pool", "memory", "mapped"} {
		if _, result := p.allocate(how, 5000<<20); result != outOfMemory {
			t.Errorf("%s: more than the GPU has: %d", how, result)
		}
	}
	for _, how := range []string{"memory", "mapped"} { // nothing of what is free is taken meanwhile, chunk by chunk
		if _, result := p.allocate(how, 3500<<20); result != outOfMemory {
			t.Errorf("%s: more than the other leaves: %d", how, result)
		}
	}
	p.works(1)
}

// While a thread frees memory that a kernel uses, another one that the kernel waits for may capture.
func TestCaptureBesideFree(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.startMemory("be")
	used, other := p.filled("memory", 8<<20, 1), p.filled("memory", 8<<20, 2)
	var launched, freeing int
	if p.ask(fmt.Sprintf("blocked %d", used), "launched %d", &launched); launched != 0 {
		t.Fatalf("launch: %d", launched)
	}
	p.ask(fmt.Sprintf("freeing %d", used), "freeing %d", &freeing)
	time.Sleep(50 * time.Millisecond) // it waits for the kernel; if it does not yet, the test asks for less
	p.carriesOut("capture %d", other)
	p.carriesOut("unblock")
	p.carriesOut("captured")
	p.carriesOut("freed")
	p.right(1)
}
