package dry

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// orderCases says how many cases each section has, those included that it says it had no time for, and checks what each row says of its
// repeats. At least one of each has to have come to pass as the simulated driver does it: on a busy machine some may not.
func orderCases(t *testing.T, found probed) map[string]int {
	t.Helper()
	count, asDriver := map[string]int{}, map[string]int{}
	for _, row := range found.Rows {
		table := fmt.Sprint(row["table"])
		count[table]++
		number := func(name string) int {
			value, ok := row[name].(float64)
			if !ok {
				t.Fatalf("%s is not a number: %v", name, row)
			}
			return int(value)
		}
		n := number("n")
		if strings.HasPrefix(table, "channels") {
			times, done := 1, number("done")
			if number("streams") == 0 {
				times = 3
			}
			full := number("streams") >= 8 && table == "channels" && row["behind"] == "kernel"
			if n != times || done < 0 || done > n || full && row["urgent"] == "write value" && done != 0 {
				t.Errorf("%v", row)
			}
			if full && row["urgent"] == "to 64 rows" && done == 1 {
				asDriver[table]++
			} else if table != "channels" && done == n {
				asDriver[table]++
			}
			continue
		}
		if strings.HasPrefix(table, "copies") {
			if n != 1 || number("done")+number("late") != n || number("begun") > number("streams") {
				t.Errorf("%v", row)
			}
			if number("done") == 1 && number("begun") == number("streams") && number("guard") == 0 {
				asDriver[table]++
			}
			continue
		}
		if n+number("unset") != 1 || number("stuck") > n || number("m_done") > n || number("in") > n {
			t.Errorf("%v", row)
		}
		if row["mode"] != "tiny" && number("tiny") != 0 || number("tiny") > 3 {
			t.Errorf("%v", row)
		}
		if n == 1 && number("kept") == 1 && number("stuck") == 0 && number("m_done") == 1 && number("guard") == 0 {
			asDriver[table]++
		}
	}
	for table := range count {
		if asDriver[table] == 0 {
			t.Errorf("%s: no case came to pass as the simulated driver does it", table)
		}
	}
	for _, f := range found.Facts {
		if table, ok := strings.CutSuffix(f.Name, ": cases that were not asked"); ok {
			var left int
			if _, err := fmt.Sscanf(f.Value, "%d: no time", &left); err != nil {
				t.Errorf("%s: %s", f.Name, f.Value)
			}
			count[table] += left
		}
	}
	return count
}

const (
	blockCases = (1+9*3+14*4)*2*2 + (1+9*3)*2 // none, without and with a green context, by priorities, streams and modes; an urgent S
	copyCases  = 3 * 8 * 10
	wayCases   = (1 + 2*4) * 18 // alone, then with 8 and 32 streams
)

func TestOrderProbeFindsEverything(t *testing.T) {
	found, table, err := probe(t, "order-probe", nil)
	if err != nil || found.Mode != "one process" || len(found.Sections) != 9 {
		t.Fatalf("%v, %+v\n%s", err, found.Sections, table)
	}
	for name, ending := range found.Sections {
		if !strings.HasPrefix(ending, "done in ") {
			t.Errorf("%s: %s", name, ending)
		}
	}
	want := map[string]int{"blocks": blockCases, "copies": copyCases, "copies-1": copyCases, "copies-32": copyCases, "channels": wayCases, "channels-32": wayCases}
	if got := orderCases(t, found); !maps.Equal(got, want) {
		t.Errorf("rows: %v, want %v\n%s", got, want, table)
	}
	found.expectFacts(t, map[string]string{
		"blocks of the spinner":                                       "1056, 8 on an SM",
		"blocks: blocks of S that are there at once, alone":           "1056 of 1056",
		"blocks: priorities, S's process":                             "0 to -5, default stream 0, created with 0: 0, green with 0: 0, with -5: -5",
		"copies-1: priorities":                                        "0 to -5, default stream 0, created with 0: 0",
		"channels: streams that hold up the urgent one, least, early": strings.Repeat(".", 32), // as on a GPU
		"blocks-both": "not here: an MPS server; see --mps",
	})
}

// Under MPS the late launch is a second process's.
func TestOrderProbeUnderMPS(t *testing.T) {
	found, printed := underMPS(t, "order-probe", "--only", "blocks,blocks-both,blocks-spinner,copies")
	want := map[string]int{"blocks": blockCases, "blocks-both": blockCases, "blocks-spinner": blockCases, "copies": copyCases}
	if got := orderCases(t, found); !maps.Equal(got, want) {
		t.Errorf("rows: %v, want %v\n%s", got, want, printed)
	}
	found.expectFacts(t, map[string]string{
		"blocks: MPS client priority":         "S's 0, M's 0",
		"blocks-both: MPS client priority":    "S's 1, M's 1",
		"blocks-spinner: MPS client priority": "S's 1, M's 0",
	})
}
