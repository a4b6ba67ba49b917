package result_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/result/resulttest"
)

func TestSummarise(t *testing.T) {
	e := resulttest.Evaluation()
	e.Summarise()
	c := e.Of("A", "gpreempt")
	if c.LC.N != 200 || c.LC.P50Us != 1749.5 || c.LC.MaxUs != 1799 || c.LCSubmitted.P50Us != 1449.5 {
		t.Errorf("LC %+v, from submission %+v", c.LC, c.LCSubmitted)
	}
	if c.LCAlone.P50Us != 1549.5 || c.Ratio.P50 != 1.129 || c.BE.Share != .95 || c.BE.Now != 95 {
		t.Errorf("alone %+v, ratio %+v, BE %+v", c.LCAlone, c.Ratio, c.BE)
	}
	if c.Throughput.OfDefault != result.Round((50+95)/(50+100.0), 3) || c.Pass == nil || !*c.Pass {
		t.Errorf("throughput %+v, pass %v", c.Throughput, c.Pass)
	}
	if ci := c.Ratio.P99CI; ci[0] > c.Ratio.P99 || ci[1] < c.Ratio.P99 || ci[0] < 1 || ci[1] > 1.3 {
		t.Errorf("p99 ratio %g in %v", c.Ratio.P99, ci)
	}
	if hints := e.Of("A", "gpreempt-hints"); hints.Pass == nil || *hints.Pass { // total (50+75)/150
		t.Errorf("hints reached the target with a throughput of %g", hints.Throughput.OfDefault)
	}
	if e.Of("A", "default").Pass != nil {
		t.Error("default has a target")
	}
	if c.CPU.LCMs != 1 || c.CPU.BECores != .1 {
		t.Errorf("CPU %+v", c.CPU)
	}
}

// A system under which nothing is served has figures that can be written: no division by what it did.
func TestSummariseNothingServed(t *testing.T) {
	idle := func(system string) result.EvaluationCase {
		c := resulttest.Case("A", system, []int{3500}, 0)
		for _, run := range c.Runs {
			run.Tasks[0].Completed = 0
		}
		return c
	}
	e := &result.Evaluation{Cases: []result.EvaluationCase{idle("alone"), idle("default"), resulttest.Case("A", "gpreempt", []int{1700}, 190)}}
	e.Summarise()
	if err := result.WriteJSON(filepath.Join(t.TempDir(), "a.json"), e, " "); err != nil {
		t.Error(err)
	}
	if c := e.Of("A", "gpreempt"); c.Ratio == nil || c.Throughput.OfDefault != 0 || c.Throughput.LCOfAlone != 0 || c.Pass != nil {
		t.Errorf("%+v, throughput %+v", c, c.Throughput)
	}
}

func TestEvaluationsJoin(t *testing.T) {
	folder, left := t.TempDir(), map[string][]string{"1": {"B", "E"}, "2": {"B"}, "3": {"B"}}
	write := func(name string, cases ...result.EvaluationCase) string {
		e := &result.Evaluation{Head: result.Head{Schema: 1, Benchmark: "paper", GPU: "NVIDIA Test", Driver: "1.2", Date: "2026-01-02", Commit: "abc", Command: "gpreempt bench --only " + name,
			Left: left[name]}, Cases: cases}
		path := filepath.Join(folder, name, "results.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := e.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := write("1", resulttest.Case("A", "alone", []int{1500}, 0), resulttest.Case("A", "default", []int{3500}, 200), resulttest.Case("A", "mps", []int{2500}, 200))
	second := write("2", resulttest.Case("E", "alone", []int{1500}, 0))
	third := write("3", resulttest.Case("A", "alone", []int{1000}, 0), resulttest.Case("A", "default", []int{3000}, 100))
	all, err := result.ReadEvaluation(first, filepath.Dir(second), third)
	if err != nil {
		t.Fatal(err)
	}
	if all.Commit != "abc" || strings.Count(all.Command, "; ") != 2 {
		t.Errorf("commit %q, command %q", all.Commit, all.Command)
	}
	if !slices.Equal(all.Left, []string{"B"}) {
		t.Errorf("%v are left, want what no file has", all.Left)
	}
	var names []string
	for _, c := range all.Cases {
		names = append(names, c.Case+" "+c.System)
	}
	if want := []string{"A alone", "A default", "E alone"}; !slices.Equal(names, want) { // the later file's workload
		t.Errorf("%v", names)
	}
	if c := all.Of("A", "default"); c.LC.P50Us != 3049.5 || c.Note != "" {
		t.Errorf("not the later file's: %+v", c)
	}
	if _, err := result.ReadEvaluation(first, filepath.Join(folder, "missing.json")); err == nil {
		t.Error("a file that is missing is accepted")
	}
	untimed := resulttest.Case("A", "alone", []int{1000}, 0)
	untimed.Runs[1].Tasks[0].Times = result.Times{}
	if _, err := result.ReadEvaluation(write("5", untimed)); err == nil || !strings.Contains(err.Error(), "A under alone: times of 0 requests, and 0 of their ends, of 100") {
		t.Errorf("requests without times: %v", err)
	}
}

// Figures of another build, GPU or driver are of another measurement: the error says which file, what of it, and what to do.
func TestOtherMeasurementsDoNotJoin(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, change func(h *result.Head)) string {
		e := resulttest.Evaluation()
		change(&e.Head)
		path := filepath.Join(folder, name)
		if err := e.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := write("first.json", func(*result.Head) {})
	for name, test := range map[string]struct {
		change func(h *result.Head)
		want   string
	}{
		"commit.json": {func(h *result.Head) { h.Commit = "def" }, `commit is "def", and "abc" in `},
		"gpu.json":    {func(h *result.Head) { h.GPU = "NVIDIA Other" }, `gpu is "NVIDIA Other", and "NVIDIA Test" in `},
		"driver.json": {func(h *result.Head) { h.Driver = "1.3" }, `driver is "1.3", and "1.2" in `},
	} {
		path := write(name, test.change)
		want := path + ": " + test.want + first
		if _, err := result.ReadEvaluation(first, path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "read them apart") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if _, err := result.ReadEvaluation(first, write("date.json", func(h *result.Head) { h.Date, h.Command = "2026-01-03", "another" })); err != nil {
		t.Errorf("another day: %v", err)
	}
}
