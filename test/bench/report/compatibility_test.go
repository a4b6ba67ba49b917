package report

import (
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Every cell is what was measured, or says that nothing was.
func TestCompatibilityTable(t *testing.T) {
	ways := map[string]string{}
	for _, way := range workload.Ways {
		ways[way.Name] = workload.Same
	}
	ways["blp"] = workload.Different
	rows := []result.Row{
		{Case: "program-training", Ways: ways, Note: "blp: printed \"a|b\""},
		{Case: "program-with_tinygrad", Note: "left out: no module"},
	}
	table := compatibilityTable(rows)
	cells := len(workload.Ways) * len(workload.Programs)
	if same, different, none := strings.Count(table, "| same "), strings.Count(table, "| **different** "), strings.Count(table, "| untested "); same != len(workload.Ways)-1 || different != 1 || same+different+none != cells {
		t.Errorf("%d same, %d different, %d untested of %d:\n%s", same, different, none, cells, table)
	}
	for _, want := range []string{"algorithms: blp: printed \"a/b\"", ": left out: no module\n"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q:\n%s", want, table)
		}
	}
	if none := strings.Count(compatibilityTable(nil), "| untested "); none != cells {
		t.Errorf("%d cells untested before anything is measured, not %d", none, cells)
	}
}
