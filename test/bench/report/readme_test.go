package report

import (
	"bytes"
	"errors"
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
		if !shows(shown, filepath.Base(file)) {
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

// writeReports makes the reports of all evaluations among some results, each in a folder of its own, and returns these.
func writeReports(t *testing.T, results, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(results + "/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		e, err := result.ReadEvaluation(file)
		if errors.Is(err, result.ErrNoEvaluation) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, reportFolder(file))
		if _, err := Write(e, filepath.Join(folder, names[len(names)-1])); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// filesBelow are the contents of a folder's files, by path in it.
func filesBelow(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, folder)] = string(text)
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return files
}

// The reports of the evaluations, with their plots, are those of the committed results.
func TestReportIsOfTheResults(t *testing.T) {
	if *update {
		if err := os.RemoveAll(results + "/evaluation"); err != nil {
			t.Fatal(err)
		}
		writeReports(t, results, results)
		return
	}
	made := t.TempDir()
	writeReports(t, results, made)
	is, want := filesBelow(t, results+"/evaluation"), filesBelow(t, made+"/evaluation")
	for path := range want {
		if is[path] != want[path] {
			t.Errorf("evaluation%s does not show the committed results; run: make readme", path)
		}
	}
	if len(is) != len(want) {
		t.Errorf("%d files in %s, %d of the committed results; run: make readme", len(is), results+"/evaluation", len(want))
	}
}

// Two GPUs are in one set of documents: a table, a plot of the headline and a report for each.
func TestTwoGPUsInTheDocuments(t *testing.T) {
	folder := t.TempDir()
	gpus := map[string]string{"h100-paper.json": "NVIDIA First", "h200-paper.json": "NVIDIA Second"}
	for file, gpu := range gpus {
		e := resulttest.Evaluation()
		e.GPU, e.Driver, e.Commit = gpu, "of "+gpu, "at "+gpu
		if err := e.Write(filepath.Join(folder, file)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := result.ReadEvaluation(folder); err == nil {
		t.Error("two GPUs are one evaluation")
	}
	const begin, end = tableBegin + "*-paper.json", tableEnd + "\n"
	document, err := FillTables([]byte(begin+" summary -->\n"+end+begin+" -->\n"+end), folder, "results")
	if err != nil {
		t.Fatal(err)
	}
	short, long, _ := strings.Cut(string(document), end)
	for _, gpu := range gpus {
		if strings.Count(short, gpu+", driver of "+gpu) != 1 || strings.Contains(short, "###") {
			t.Errorf("the summary of %s:\n%s", gpu, short)
		}
		if !strings.Contains(long, "### "+gpu+"\n\n| figure | published | source | here ("+gpu+")") || !strings.Contains(long, gpu+", driver of "+gpu) {
			t.Errorf("the tables of %s:\n%s", gpu, long)
		}
	}
	if strings.Index(long, "NVIDIA First") > strings.Index(long, "NVIDIA Second") || !strings.Contains(long, "](results/evaluation/h100-paper/p99-models.svg)") ||
		!strings.Contains(long, "](results/evaluation/h200-paper/evaluation.md)") {
		t.Errorf("order, or links:\n%s", long)
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
	reports := writeReports(t, folder, folder)
	if !slices.Equal(reports, []string{"evaluation/h100-paper", "evaluation/h200-paper"}) {
		t.Errorf("reports in %v", reports)
	}
	for file, gpu := range gpus {
		text, err := os.ReadFile(filepath.Join(folder, reportFolder(file), ReportName))
		if err != nil || !bytes.Contains(text, []byte("\n"+gpu+", driver of "+gpu)) {
			t.Errorf("the report of %s: %v", gpu, err)
		}
		if drawn, err := os.ReadFile(filepath.Join(folder, reportFolder(file), "p99-models.svg")); err != nil || !bytes.Contains(drawn, []byte(gpu)) {
			t.Errorf("the plot of %s: %v", gpu, err)
		}
	}
	// What one of them lacks beside what it has is not passed over.
	e := resulttest.Evaluation()
	e.Cases = slices.DeleteFunc(e.Cases, func(c result.EvaluationCase) bool { return c.Case == "R" && c.System == "gpreempt" })
	if err := e.Write(filepath.Join(folder, "h100-paper.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Headline(folder); err == nil || !strings.Contains(err.Error(), "no R under gpreempt") {
		t.Errorf("a headline with a hole: %v", err)
	}
}
