package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// What preemption does to a program, its results do not show: no block is lost, run twice, or overtakes another.
func TestResultsOfBlocks(t *testing.T) {
	program := compile(t, "testdata/blocks.c")
	images := filepath.Join(root, "test", "simcuda", "kernels")
	for _, test := range []struct {
		name, role, image string
		settings          string
		environment       []string
	}{
		{"no role", "", "sim.cubin", "", nil},
		{"timeslices", "be", "sim.fatbin", "", nil},
		{"under MPS", "be", "sim.cubin", "", []string{"SIMCUDA_MPS=1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, test.settings, test.environment...)
			lc := m.start("lc")
			m.joined(lc)
			seed := fmt.Sprint(len(test.name))
			requests := 0
			stdout, stderr := m.runUntil(m.command(test.role, program, filepath.Join(images, test.image), seed), "requests", func() bool {
				lc.request(10, 3, "stream")
				requests += 10
				return requests >= 50 && (test.role == "" || m.peer(lc).Counters.Windows >= 30)
			})
			var rounds int
			if _, err := fmt.Sscanf(stdout, "rounds %d", &rounds); err != nil || rounds == 0 || strings.Contains(stderr, "blocks:") {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
}
