package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// aServing is a report with a server alone, beside a rival, and under two objectives.
func aServing() *result.Report {
	alone := &result.Latency{N: 300, P50Us: 5200, P99Us: 7000, MaxUs: 7100}
	first := &result.Latency{N: 300, P50Us: 30_000, P99Us: 66_000, MaxUs: 70_000}
	row := func(system string, times, share, bound float64) result.Row {
		lc := &result.Latency{N: 300, P50Us: 5200 * times, P99Us: 7000 * times, MaxUs: 7100 * times}
		r := result.Row{Case: "vllm-6", System: system, LC: lc, LCAlone: alone, Ratio: result.RatioOf(lc, alone), BE: &result.Share{Share: share, Alone: 30, Now: 30 * share, Unit: "steps/s"},
			Serving: &result.Serving{First: first, Between: lc, FirstRatio: result.RatioOf(first, first), BoundMs: bound, Held: .995}}
		if bound > 0 {
			r = r.Judged("held", share > .5)
		}
		return r
	}
	reference := row("alone", 1, 1, 0)
	reference.Ratio, reference.LCAlone, reference.Serving.FirstRatio = nil, nil, nil
	return &result.Report{Head: result.Head{Schema: 1, Benchmark: result.ServingSuite, GPU: "NVIDIA X"}, Cases: []result.Row{
		reference, row("default", 2.5, .67, 0), row("mps-50", 1.2, .5, 0), row("gpreempt-1.2x", 1.15, .31, 8.4), row("gpreempt-2x", 1.9, .62, 14),
	}}
}

func TestServingTable(t *testing.T) {
	whole := servingTable(aServing(), "vllm-6")
	for _, want := range []string{
		"| LC alone, 300 requests | 5.2 ms | 7.0 ms | 66.0 ms | - | - |  |\n",
		"| default time slicing, 300 requests | 13.0 ms | 17.5 ms (2.50) | 66.0 ms (1.00) | - | 0.67 |  |\n",
		"| MPS, BE 50 % of the SMs, 300 requests |",
		"| gpreempt, objective 1.2 x, 300 requests | 6.0 ms | 8.0 ms (1.15) | 66.0 ms (1.00) | 99.5 % within 8.4 ms | 0.31 | **missed**: held |\n",
		"| 0.62 | reached: held |\n",
	} {
		if !strings.Contains(whole, want) {
			t.Errorf("the table lacks %q:\n%s", want, whole)
		}
	}
	two := aServing()
	more := two.Cases[1]
	more.Case = "vllm-12"
	two.Cases = append(two.Cases, more)
	if both := servingTable(two, "vllm-6,vllm-12"); strings.Count(both, "| case | TPOT p50 |") != 1 || !strings.Contains(both, "\n| vllm-12, default time slicing, 300 requests |") {
		t.Errorf("the table of two cases:\n%s", both)
	}
	if none := servingTable(aServing(), "vllm-12"); none != "" {
		t.Errorf("the table of a case that was not measured:\n%s", none)
	}
}

func TestFrontier(t *testing.T) {
	folder := t.TempDir()
	if _, err := Frontier(folder); err == nil {
		t.Error("a figure without results")
	}
	report := aServing()
	path := filepath.Join(folder, "x-serving.json")
	if err := report.Write(path); err != nil {
		t.Fatal(err)
	}
	figure, err := Frontier(folder)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Frontier(folder)
	if err != nil || !bytes.Equal(figure, again) {
		t.Errorf("another figure of the same results: %v", err)
	}
	for _, want := range []string{"<svg", "NVIDIA X", "gpreempt, by objective", "MPS, BE 50 % of the SMs", "default time slicing"} {
		if !bytes.Contains(figure, []byte(want)) {
			t.Errorf("the figure lacks %q", want)
		}
	}
	report.Cases = report.Cases[:3]
	if err := report.Write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Frontier(folder); err == nil {
		t.Error("a figure without this library")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Frontier(folder); err == nil {
		t.Error("a figure of a file that is damaged")
	}
}

// A figure that would look like the limit of its target has a digit more.
func TestFiguresTellTheVerdict(t *testing.T) {
	for _, test := range []struct {
		value  float64
		target string
		want   string
	}{{1.0512, "TTFT and TPOT p99 <= 1.05 x alone", "1.051"}, {1.0612, "TTFT and TPOT p99 <= 1.05 x alone", "1.06"}, {.448, "BE >= 0.45 of alone", "0.448"}, {.5, "", "0.50"}} {
		if got := figure(test.value, test.target); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
