package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

var update = flag.Bool("update", false, "write the documents' tables and plots from the committed results")

const (
	root    = "../../.."
	results = "../results"
)

func TestDocumentsShowTheResults(t *testing.T) {
	for _, document := range Documents {
		path := filepath.Join(root, document)
		is, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := FillTables(is, results)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(is, []byte(tableBegin)) {
			t.Fatalf("%s lacks tables of results", document)
		}
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(is, want) {
			t.Errorf("%s does not show the committed results; run: make readme", document)
		}
	}
}

func TestHeadlineShowsTheResults(t *testing.T) {
	for name, draw := range map[string]func(string) ([]byte, error){HeadlineFile: Headline, FrontierFile: Frontier} {
		figure, err := draw(results)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(results, name)
		if *update {
			if err := os.WriteFile(path, figure, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if drawn, err := os.ReadFile(path); err != nil || !bytes.Equal(drawn, figure) {
			t.Errorf("%s does not show the committed results; run: make readme", path)
		}
		if text, err := os.ReadFile(filepath.Join(root, "README.md")); err != nil || !bytes.Contains(text, []byte("results/"+name)) {
			t.Errorf("the README does not show %s", path)
		}
	}
}

// Every result file is shown by a document.
func TestNoResultIsHidden(t *testing.T) {
	var shown []byte
	for _, document := range Documents {
		text, err := os.ReadFile(filepath.Join(root, document))
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
		if !shows(shown, filepath.Base(file)) {
			t.Errorf("no document shows %s", file)
		}
	}
}

func TestFillTablesRefusesBrokenMarks(t *testing.T) {
	for _, document := range []string{
		tableBegin + "h200-foundation.json -->\n| no end",
		tableBegin + "h200-foundation.json",
		tableBegin + "h200-missing.json -->\n" + tableEnd,
	} {
		if out, err := FillTables([]byte(document), results); err == nil {
			t.Errorf("%q gives %q", document, out)
		}
	}
}

// A case that one of two GPUs could not measure is in the table, and no headline passes over it.
func TestHolesInTheDocuments(t *testing.T) {
	folder := t.TempDir()
	write := func(gpu string, without ...string) {
		r := &result.Report{Head: result.Head{Schema: 1, Benchmark: workload.Suite, GPU: "NVIDIA " + gpu}}
		for _, name := range []string{"A", "C", "earlier"} {
			for system, p99 := range map[string]float64{result.LCAlone: 1500, "default": 5000, "gpreempt": 1700, "gpreempt-hints": 1800} {
				row := result.Row{Case: name, System: system, LC: &result.Latency{N: 9, P99Us: p99}, Throughput: &result.Throughput{BEOfDefault: .95, OfDefault: .95}}
				if system != result.LCAlone {
					row.Ratio = &result.Ratio{P99: result.Round(p99/1500, 3), Mean: 1.02}
				}
				if row.JudgePaper(); !slices.Contains(without, name+" under "+system) {
					r.Cases = append(r.Cases, row)
				}
			}
		}
		r.Cases = append(r.Cases, result.Row{Case: "A", System: "mps", Note: "no daemon"})
		if err := r.Write(filepath.Join(folder, gpu+"-paper.json")); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	write("second", "C under gpreempt")
	document, err := FillTables([]byte(tableBegin+"*-paper.json -->\n"+tableEnd), folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" 1.13 (0.95) / - |", " 1.20 (0.95) **missed** / 1.20 (0.95) **missed** |", " failed / failed |",
		"- NVIDIA first: targets reached in 2 of 4 cases, not in A, gpreempt-hints: p99 1.200 x alone (95 %: 0.000 to 0.000), 0.100 above 1.1; C, "} {
		if !strings.Contains(string(document), want) {
			t.Errorf("the table lacks %q:\n%s", want, document)
		}
	}
	if strings.Contains(string(document), "earlier") {
		t.Errorf("a workload that is gone:\n%s", document)
	}
	if _, err := Headline(folder); err == nil || !strings.Contains(err.Error(), "no C under gpreempt") {
		t.Errorf("a headline with a hole: %v", err)
	}
}
