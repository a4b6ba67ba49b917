package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

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
		untested := strings.Count(string(got), "| untested ") // programs and ways that nobody ran
		if (text == "{") != (err != nil) || !strings.Contains(fmt.Sprint(string(got), err), want) || want == "| of-a |" && untested != len(workload.Ways)*len(workload.Programs)-1 {
			t.Errorf("%q: %v\n%s", text, err, got)
		}
	}
	if !shows(document, "a.json") || shows(document, "d.json") {
		t.Error("a place for d.json, or none for a.json")
	}
}
