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
	folder := t.TempDir()
	e := resulttest.Evaluation()
	e.Summarise()
	one, two := *e, *e
	one.Cases, two.Cases = e.Cases[:7], e.Cases[7:]
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
	if got, want := read.Of("REAL", "gpreempt"), e.Of("REAL", "gpreempt"); !reflect.DeepEqual(got.LC, want.LC) || !reflect.DeepEqual(got.Ratio, want.Ratio) {
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
	if err := read.Write(filepath.Join(folder, "test-paper.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "test-paper.raw.json.gz")); err != nil { // the documents need no samples
		t.Fatal(err)
	}
	document, err := FillTables([]byte(tableBegin+"test-paper.json -->\n"+tableEnd), folder)
	for _, want := range []string{"| NVIDIA Test | LC p99 alone | default | mps | gpreempt | gpreempt-hints | only-timeslice |", "| failed | 1.12 (0.95) |", "1.01 (0.75) **missed**", "- NVIDIA Test: targets reached in 4 of 8 cases, not in A, gpreempt-hints: total 0.833 of default, 0.067 below 0.90; "} {
		if err != nil || !bytes.Contains(document, []byte(want)) {
			t.Errorf("the table lacks %q: %v\n%s", want, err, document)
		}
	}
	if _, err := result.ReadEvaluation(t.TempDir()); !errors.Is(err, result.ErrNoEvaluation) {
		t.Errorf("an empty folder: %v", err)
	}
}
