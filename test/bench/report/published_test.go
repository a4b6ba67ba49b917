package report

import (
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// REEF's figures stand beside those of best effort that goes on beside requests.
func TestPublishedOfREEF(t *testing.T) {
	of := func(system string, be float64) result.EvaluationCase {
		return result.EvaluationCase{Case: "A", System: system, Ratio: &result.Ratios{Mean: 1.015}, Throughput: &result.Throughput{LC: 100, BE: be, OfDefault: 1}}
	}
	e := &result.Evaluation{Cases: []result.EvaluationCase{of(result.LCAlone, 0), of("gpreempt-hints", 50), of(besideSystem, 230)}}
	for _, want := range []string{"up to 7.7 x (AMD MI50) | REEF, USENIX OSDI 2022 | 3.30 x (A) |", "at most 2 % (AMD MI50) | REEF, USENIX OSDI 2022 | +1.5 % (A) |"} {
		if table := publishedTable(e); !strings.Contains(table, want) {
			t.Errorf("lacks %q:\n%s", want, table)
		}
	}
	e.Cases = e.Cases[:2]
	if table := publishedTable(e); strings.Count(table, "| REEF, USENIX OSDI 2022 | not measured |") != 2 {
		t.Errorf("not measured:\n%s", table)
	}
}
