package bench

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the README's tables from the committed results")

const readme = "../../README.md"

func TestReadmeShowsTheResults(t *testing.T) {
	is, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	want, err := FillTables(is, "results")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(is, []byte(tableBegin)) || !bytes.Contains(is, []byte("results/"+HeadlineFile)) {
		t.Fatalf("%s lacks tables of results or the first figure", readme)
	}
	figure, err := Headline("results")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(readme, want, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("results", HeadlineFile), figure, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawn, err := os.ReadFile(filepath.Join("results", HeadlineFile)); err != nil || !bytes.Equal(drawn, figure) {
		t.Errorf("results/%s does not show the committed results; run: make readme", HeadlineFile)
	}
	if !bytes.Equal(is, want) {
		t.Errorf("%s does not show the committed results; run: make readme", readme)
	}
}

func TestFillTablesRefusesBrokenMarks(t *testing.T) {
	for _, document := range []string{
		tableBegin + "h200-foundation.json -->\n| no end",
		tableBegin + "h200-foundation.json",
		tableBegin + "missing.json -->\n" + tableEnd,
		tableBegin + "h200-missing.json -->\n" + tableEnd,
	} {
		if out, err := FillTables([]byte(document), "results"); err == nil {
			t.Errorf("%q gives %q", document, out)
		}
	}
}

// The report of the evaluation, with its plots, is that of the committed results.
func TestReportIsOfTheResults(t *testing.T) {
	const folder = "results/evaluation"
	results, err := ReadEvaluation("results")
	if errors.Is(err, ErrNoEvaluation) {
		if *update {
			if err := os.RemoveAll(folder); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(folder); err == nil {
			t.Errorf("%s is of no results", folder)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	made := folder
	if *update {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	} else {
		made = t.TempDir()
	}
	if _, err := results.WriteReport(made); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(made)
	if err != nil {
		t.Fatal(err)
	}
	if is, err := os.ReadDir(folder); err != nil || len(is) != len(names) {
		t.Errorf("%s has files that are not of the committed results, or lacks some; run: make readme (%v)", folder, err)
	}
	for _, name := range names {
		want, err := os.ReadFile(filepath.Join(made, name.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if is, err := os.ReadFile(filepath.Join(folder, name.Name())); err != nil || !bytes.Equal(is, want) {
			t.Errorf("%s does not show the committed results; run: make readme", filepath.Join(folder, name.Name()))
		}
	}
}
