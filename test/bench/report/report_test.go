package report

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/result/resulttest"
)

func TestEvaluationFiles(t *testing.T) {
	folder, out := t.TempDir(), t.TempDir()
	e := resulttest.Evaluation()
	if err := e.Summarise(); err != nil {
		t.Fatal(err)
	}
	one, two := *e, *e
	one.Cases, two.Cases = e.Cases[:5], e.Cases[5:]
	for name, part := range map[string]*result.Evaluation{"2.json": &one, "1.json": &two} {
		if err := part.Write(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "other.json"), []byte(`{"schema": 1, "benchmark": "foundation", "cases": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := result.ReadEvaluation(folder)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read.Of("rate-200", "gpreempt"), e.Of("rate-200", "gpreempt"); !reflect.DeepEqual(got.LC, want.LC) || !reflect.DeepEqual(got.Ratio, want.Ratio) {
		t.Errorf("read %+v %+v, wrote %+v %+v", got.LC, got.Ratio, want.LC, want.Ratio)
	}
	if read.Cases[0].Case != "A" || read.Cases[0].System != "alone" {
		t.Errorf("the first case is %s under %s", read.Cases[0].Case, read.Cases[0].System)
	}
	if err := os.Remove(filepath.Join(folder, "1.raw.json.gz")); err != nil {
		t.Fatal(err)
	}
	if _, err := result.ReadEvaluation(folder); err == nil || !strings.Contains(err.Error(), "read raw results of "+filepath.Join(folder, "1.json")) {
		t.Errorf("without the raw form: %v", err)
	}
	if err := two.Write(filepath.Join(folder, "1.json")); err != nil {
		t.Fatal(err)
	}
	path, err := Write(read, out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NVIDIA Test", "GPreempt, USENIX ATC 2025", "% (A)", "no daemon / here", "cdf-A.svg", "rate.svg", "ablation.svg", "| A | gpreempt | 1.12 (", "| reached |", "**missed**: total 0.833 of default, 0.067 below 0.90", "| BE / alone | BE of what LC leaves | BE / default |", "to default time slicing"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if err := read.Write(filepath.Join(folder, "test-paper.json")); err != nil {
		t.Fatal(err)
	}
	document, err := FillTables([]byte(tableBegin+"test-paper.json -->\n"+tableEnd), folder, "test/bench/results")
	for _, want := range []string{"| default |", "1.12 (0.95)", "1.01 (0.75) **missed**", "GPreempt, USENIX ATC 2025", "- A, gpreempt-hints: total 0.833 of default, 0.067 below 0.90\n", "Reached in 4 of 8 cases, not in\n\n", "No row compares like with like", "](test/bench/results/evaluation/test-paper/p99-models.svg)", "](test/bench/results/evaluation/test-paper/evaluation.md)",
		"\nThe points of sweeps, under fewer systems:\n\n| workload | LC p99 alone | default | gpreempt |", "| workload | LC p99 alone | only-gate |\n|---|---|---|\n| A | 1598 us | 1.63 (0.95) |\n\n"} {
		if err != nil || !bytes.Contains(document, []byte(want)) {
			t.Errorf("the README's table lacks %q: %v\n%s", want, err, document)
		}
	}
	again := t.TempDir()
	if _, err := Write(read, again); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 8 {
		t.Errorf("%d files", len(files))
	}
	for _, file := range files {
		a, err := os.ReadFile(filepath.Join(out, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(again, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs from the same results", file.Name())
		}
		if strings.HasSuffix(file.Name(), ".svg") && !bytes.Contains(a, []byte("</svg>")) {
			t.Errorf("%s is no SVG", file.Name())
		}
	}
	if _, err := result.ReadEvaluation(t.TempDir()); !errors.Is(err, result.ErrNoEvaluation) {
		t.Errorf("an empty folder: %v", err)
	}
}

// Rivals have a table of their own in the documents: what they could not be measured in is there with its reason.
func TestRivalsInTheDocuments(t *testing.T) {
	e := resulttest.Evaluation()
	e.Cases = append(e.Cases, resulttest.Case("A", "nvshare", []int{3100}, 100), result.EvaluationCase{Case: "R", System: "nvshare", Note: "the daemon ended:\nno GPU"},
		result.EvaluationCase{Case: "A", System: "xsched-tsg", Cannot: "default stream"}, result.EvaluationCase{Case: "R", System: "xsched-tsg", Cannot: "default stream"},
		result.EvaluationCase{Case: "A", System: "mps-partition", Skipped: "not there: MPS"})
	path := filepath.Join(t.TempDir(), "results.json")
	if err := e.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := evaluationTable(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	own, rivals, found := strings.Cut(text, "The same under systems of others")
	if !found || strings.Contains(own, "nvshare") {
		t.Fatalf("no table of their own:\n%s", text)
	}
	for _, want := range []string{"| workload | LC p99 alone | mps-partition | xsched-tsg | nvshare |", "| skipped | cannot | 2.00 (0.50) |", "| - | cannot | failed |",
		"\n- A under mps-partition skipped: not there: MPS\n", "\n- A, R under xsched-tsg cannot: default stream\n", "\n- R under nvshare failed: the daemon ended: no GPU\n"} {
		if !strings.Contains(rivals, want) {
			t.Errorf("lacks %q:\n%s", want, rivals)
		}
	}
}
