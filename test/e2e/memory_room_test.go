package e2e

import "testing"

// What no room mends is refused, as without the library: memory of a pool that is larger than the GPU, and calls that are out
// of memory whatever is free.
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
