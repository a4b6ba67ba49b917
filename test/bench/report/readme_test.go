package report

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

var update = flag.Bool("update", false, "write the documents' tables and plots from the committed results")

const (
	root    = "../../.."
	results = "../results"
)

func TestDocumentsShowTheResults(t *testing.T) {
	for _, document := range Documents {
		path := filepath.Join(root, document.Path)
		is, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := FillTables(is, results, document.Results)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(is, []byte(tableBegin)) {
			t.Fatalf("%s lacks tables of results", document.Path)
		}
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(is, want) {
			t.Errorf("%s does not show the committed results; run: make readme", document.Path)
		}
	}
}

func TestHeadlineShowsTheResults(t *testing.T) {
	figure, err := Headline(results)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(results, HeadlineFile)
	if *update {
		if err := os.WriteFile(path, figure, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawn, err := os.ReadFile(path); err != nil || !bytes.Equal(drawn, figure) {
		t.Errorf("%s does not show the committed results; run: make readme", path)
	}
	if text, err := os.ReadFile(filepath.Join(root, "README.md")); err != nil || !bytes.Contains(text, []byte("results/"+HeadlineFile)) {
		t.Errorf("the README does not show %s", path)
	}
}

// Every result file is shown by a document.
func TestNoResultIsHidden(t *testing.T) {
	var shown []byte
	for _, document := range Documents {
		text, err := os.ReadFile(filepath.Join(root, document.Path))
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, text...)
	}
	files, err := filepath.Glob(results + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no results: %v", err)
	}
	for _, file := range files {
		if !bytes.Contains(shown, []byte(tableBegin+filepath.Base(file))) {
			t.Errorf("no document shows %s", file)
		}
	}
}

func TestFillTablesRefusesBrokenMarks(t *testing.T) {
	for _, document := range []string{
		tableBegin + "h200-foundation.json -->\n| no end",
		tableBegin + "h200-foundation.json",
		tableBegin + "missing.json -->\n" + tableEnd,
		tableBegin + "h200-missing.json -->\n" + tableEnd,
	} {
		if out, err := FillTables([]byte(document), results, "results"); err == nil {
			t.Errorf("%q gives %q", document, out)
		}
	}
}

// The report of the evaluation, with its plots, is that of the committed results.
func TestReportIsOfTheResults(t *testing.T) {
	const folder = results + "/evaluation"
	all, err := result.ReadEvaluation(results)
	if errors.Is(err, result.ErrNoEvaluation) {
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
	if _, err := Write(all, made); err != nil {
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
