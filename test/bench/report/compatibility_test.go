package report

import (
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
	earlier := []result.Row{
		{Case: "program-training", Ways: map[string]string{"be": workload.Fails}},
		{Case: "program-links_libcuda", Ways: map[string]string{"be": workload.Same}},
		{Case: "program-with_triton", Ways: map[string]string{"lc": workload.Same}},
	}
	rows = append(rows, result.Row{Case: "program-with_triton", Note: "left out: no triton"})
	table := compatibilityTable([]*result.Report{report("1111111", rows), report("2222222", earlier)})
	cells := len(workload.Ways) * len(workload.Programs)
	if same, different, none := strings.Count(table, "| same "), strings.Count(table, "| **different** "), strings.Count(table, "| untested "); same != len(workload.Ways)+1 || different != 1 || same+different+none != cells {
		t.Errorf("%d same, %d different, %d untested of %d:\n%s", same, different, none, cells, table)
	}
	for _, want := range []string{"algorithms: blp: printed \"a/b\"", ": left out: no module\n", " 1111111 |", " 2222222 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q:\n%s", want, table)
		}
	}
	if strings.Contains(table, "no triton") {
		t.Errorf("a program that ran is shown as left out:\n%s", table)
	}
	if strings.Contains(table, workload.Fails) {
		t.Errorf("what an earlier file says of a program that a later one has is shown:\n%s", table)
	}
}

func report(commit string, rows []result.Row) *result.Report {
	return &result.Report{Head: result.Head{Commit: commit}, Cases: rows}
}

// Files that a marker names are one table; where there is none, nothing was tested.
func TestCompatibilityOfSeveralFiles(t *testing.T) {
	folder := t.TempDir()
	document := []byte(tableBegin + "a.json,b.json,c.json compatibility -->\n" + tableEnd)
	fill := func() string {
		text, err := FillTables(document, folder)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := fill(); !strings.Contains(text, "All of them: untested.") {
		t.Errorf("without a file: %s", text)
	}
	for _, name := range []string{"a", "c"} {
		text := `{"commit": "of-` + name + `", "cases": [{"case": "program-training", "ways": {"be": "same"}}, {"case": "program-` + map[string]string{"a": "graphs", "c": "streams"}[name] + `", "ways": {"be": "same"}}]}`
		if err := os.WriteFile(filepath.Join(folder, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fill()
	if a, c := strings.Count(text, "| of-a |"), strings.Count(text, "| of-c |"); a != 2 || c != 1 || !strings.Contains(text, ", c.json.\n") {
		t.Errorf("%d and %d rows: %s", a, c, text)
	}
	for _, file := range []string{"a.json", "b.json", "c.json"} {
		if !shows(document, file) {
			t.Errorf("no place for %s", file)
		}
	}
	if shows(document, "d.json") {
		t.Error("a place for d.json")
	}
	if _, err := FillTables([]byte(tableBegin+"*.json compatibility -->\n"+tableEnd), folder); err == nil || !strings.Contains(err.Error(), "*.json") {
		t.Errorf("a pattern: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "b.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FillTables(document, folder); err == nil || !strings.Contains(err.Error(), "b.json") {
		t.Errorf("a broken file: %v", err)
	}
}
