package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A table has a column for each GPU, and one line for many values that all reach their target.
func TestSideBySide(t *testing.T) {
	reached, missed := true, false
	value := func(name string, v float64, pass *bool) result.Row {
		return result.Row{Case: name, System: "gpreempt", Value: &v, Unit: "stops", Target: ">= 1000 stops", Pass: pass}
	}
	of := func(gpu string, rows ...result.Row) measured {
		return measured{&result.Report{Head: result.Head{Benchmark: "blp-fire", GPU: gpu, Commit: "of-" + gpu}, Cases: rows}, gpu + "-blp-fire.json"}
	}
	latency := func(us float64) *result.Latency { return &result.Latency{P50Us: us, P99Us: us} }
	first := of("First", result.Row{Case: "pair", System: "alone", LC: latency(100)}, result.Row{Case: "pair", System: "default", LC: latency(1000)},
		result.Row{Case: "pair", System: "gpreempt", LC: latency(150), BE: &result.Share{Share: .9}, Target: "lc p99 <= 1.3 x alone", Pass: &missed})
	second := of("Second", value("slow", 999, &missed), value("late", 1200, &reached))
	for i := range few + 1 {
		first.Cases = append(first.Cases, value(fmt.Sprint("case-", i), float64(1000+i), &reached))
	}
	second.Cases = append(second.Cases, value("case-0", 2000, &reached), value("case-1", 1500, &missed))
	first.Cases = append(first.Cases, value("late", 900, &missed))
	text := sideBySide([]measured{first, second})
	for _, want := range []string{
		"| LC p99: alone / default time slicing / gpreempt (x alone); BE of what LC leaves | First | Second | target |\n|---|---|---|---|\n",
		"| pair | 100 us / 1000 us / 150 us (1.50); 0.900: **missed** | - | lc p99 <= 1.3 x alone |\n",
		"| case-0 | 1000 stops: reached | 2000 stops: reached | >= 1000 stops |\n", // three alike are few
		"| case-1 | 1001 stops: reached | 1500 stops: **missed** | >= 1000 stops |\n",
		"| late | 900 stops: **missed** | 1200 stops: reached | >= 1000 stops |\n",
		"| slow | - | 999 stops: **missed** | >= 1000 stops |\n",
		"commit of-First, First-blp-fire.json. Second, ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	second.Cases = second.Cases[:3]
	if text := sideBySide([]measured{first, second}); !strings.Contains(text, "| late | 900 ") || !strings.Contains(text, fmt.Sprintf("| %d cases | %d of %d: 1000 to 1003 stops: reached | 1 of %d: 2000 to 2000 stops: reached |", few+1, few+1, few+1, few+1)) {
		t.Errorf("many alike:\n%s", text)
	}
	second.Benchmark = "blp-cost"
	if text := sideBySide([]measured{first, second}); !strings.Contains(text, "| blp-fire: 4 cases |") || !strings.Contains(text, "| blp-cost: slow | - |") {
		t.Errorf("two suites:\n%s", text)
	}
}
