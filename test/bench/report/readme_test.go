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
	"github.com/gpreempt/gpreempt/test/bench/result/resulttest"
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

// Two GPUs are in one set of documents: a table and a plot of the headline.
func TestTwoGPUsInTheDocuments(t *testing.T) {
	folder := t.TempDir()
	gpus := map[string]string{"h100-paper.json": "NVIDIA First", "h200-paper.json": "NVIDIA Second"}
	for file, gpu := range gpus {
		e := resulttest.Evaluation()
		e.GPU, e.Driver, e.Commit = gpu, "of "+gpu, "at "+gpu
		e.Summarise()
		if err := e.Write(filepath.Join(folder, file)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := result.ReadEvaluation(folder); err == nil {
		t.Error("two GPUs are one evaluation")
	}
	const begin, end = tableBegin + "*-paper.json", tableEnd + "\n"
	document, err := FillTables([]byte(begin+" summary -->\n"+end+begin+" -->\n"+end), folder)
	if err != nil {
		t.Fatal(err)
	}
	short, long, _ := strings.Cut(string(document), end)
	for _, gpu := range gpus {
		if strings.Count(short, gpu+", driver of "+gpu) != 1 || strings.Count(long, gpu+", driver of "+gpu) != 1 {
			t.Errorf("%s:\n%s", gpu, document)
		}
	}
	if !strings.Contains(long, "| NVIDIA First / NVIDIA Second | LC p99 alone | default |") {
		t.Errorf("the table:\n%s", long)
	}
	headline, err := Headline(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, gpu := range gpus {
		if bytes.Count(headline, []byte(gpu)) != 1 {
			t.Errorf("the headline does not show %s once", gpu)
		}
	}
	// A workload that one of them lacks under one system is not passed over.
	e := resulttest.Evaluation()
	e.Cases = slices.DeleteFunc(e.Cases, func(c result.EvaluationCase) bool { return c.Case == "C" && c.System == "gpreempt" })
	e.Summarise()
	if err := e.Write(filepath.Join(folder, "h100-paper.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Headline(folder); err == nil || !strings.Contains(err.Error(), "no C under gpreempt") {
		t.Errorf("a headline with a hole: %v", err)
	}
}
