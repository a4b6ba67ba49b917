package report

import (
	"fmt"
	"os"
	"path/filepath"
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
	for i := range rows {
		rows[i].System = "gpreempt"
	}
	table := compatibilityTable(&result.Report{Head: result.Head{Commit: "1111111"}, Cases: rows})
	cells := len(workload.Ways) * len(workload.Programs)
	if same, different, none := strings.Count(table, "| same "), strings.Count(table, "| **different** "), strings.Count(table, "| untested "); same != len(workload.Ways)-1 || different != 1 || same+different+none != cells {
		t.Errorf("%d same, %d different, %d untested of %d:\n%s", same, different, none, cells, table)
	}
	for _, want := range []string{"algorithms: blp: printed \"a/b\"", ": left out: no module\n", " 1111111 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q:\n%s", want, table)
		}
	}
}

// Where a marker's file is not there, nothing was tested.
func TestCompatibilityOfAFile(t *testing.T) {
	document := []byte(tableBegin + "a.json compatibility -->\n" + tableEnd)
	for text, want := range map[string]string{"": "All of them: untested.", "{": "a.json",
		`{"commit": "of-a", "cases": [{"case": "program-training", "system": "gpreempt", "ways": {"be": "same"}}]}`: "| of-a |"} {
		folder := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(folder, "a.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := FillTables(document, folder)
		if (text == "{") != (err != nil) || !strings.Contains(fmt.Sprint(string(got), err), want) {
			t.Errorf("%q: %v\n%s", text, err, got)
		}
	}
	if !shows(document, "a.json") || shows(document, "d.json") {
		t.Error("a place for d.json, or none for a.json")
	}
}
