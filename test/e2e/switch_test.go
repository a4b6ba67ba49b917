package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
)

// held lists for how long hints had kept the GPU for requests, of a hints.log from a byte on, in microseconds, sorted.
func held(t *testing.T, log string, from int64) (us []int64) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text[from:])) {
		var r struct {
			HeldUs int64 `json:"held_us"`
		}
		if err := json.Unmarshal([]byte(line), &r); err == nil && r.HeldUs != 0 { // the last line may be half written
			us = append(us, r.HeldUs)
		}
	}
	slices.Sort(us)
	return us
}

// The time of a switch differs from GPU to GPU. The library learns it, and hints take the GPU so much ahead of the work. Not beside other
// tests: where threads wait for processors a switch does take longer.
func TestSwitchesAreLearnt(t *testing.T) {
	slow := often(0, 1) == 0 // the machine may be: then a switch takes longer, as long as threads wait for processors
	for _, c := range []struct{ takesUs, least, most, latest int64 }{{400, 390, 600, 850}, {1000, 980, 1400, 2500}} {
		t.Run(fmt.Sprintf("%d us", c.takesUs), func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "requests")
			m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+fmt.Sprintf("max_cost = 0.4\nlinger_us = 20000\nlog = %q\n", log),
				fmt.Sprintf("SIMCUDA_SWITCH_US=%d", c.takesUs))
			lc, be := m.pair()
			m.until("it is learnt", func() bool {
				lc.request(10, 2, "stream")
				us := int64(m.peer(lc).SwitchUs)
				return us >= c.least && (slow || us <= c.most)
			})
			m.mostly("hints take the GPU so much ahead", func() bool {
				before, err := os.Stat(log)
				if err != nil {
					t.Fatal(err)
				}
				var listened int
				lc.ask("hinted 20 3000 5000", "listened %d", &listened)
				us := held(t, log, before.Size())
				t.Logf("a switch takes %d us; the GPU was held for %v us", m.peer(lc).SwitchUs, us)
				return len(us) >= 10 && us[len(us)/4] >= c.takesUs && (slow || us[len(us)/4] <= c.latest) // work may be late
			})
			m.runs(be)
		})
	}
}
