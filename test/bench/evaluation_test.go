package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestSamplesRoundTrip(t *testing.T) {
	arrivals := []time.Duration{100 * time.Microsecond, 700 * time.Millisecond, 701 * time.Millisecond}
	task := TaskRun{Role: "lc", Offered: 3, Unserved: 1}
	task.set(arrivals, answer{SubmittedNs: []uint64{300_000, 300_050}, DoneNs: []uint64{1_500_000, 2_000_100}})
	read := TaskRun{Role: "lc", Offered: 3, Samples: task.Samples}
	if err := read.decode(); err != nil {
		t.Fatal(err)
	}
	want := samples{arrivals, []time.Duration{300_000, 300_000}, []time.Duration{1_500_000, 2_000_100}}
	if !reflect.DeepEqual(read.samples, want) {
		t.Errorf("read %+v, want %+v", read.samples, want)
	}
	fromArrival, fromSubmission := read.latencies(time.Second)
	// The first is of the warm-up, the last found no end in the second and what the programs waited after it.
	if want := []float64{2000.1, 1_299_000}; !slices.Equal(fromArrival, want) {
		t.Errorf("latencies %v, want %v", fromArrival, want)
	}
	if len(fromSubmission) != 1 || math.Abs(fromSubmission[0]-1700.1) > 1e-9 {
		t.Errorf("latencies from submission %v, want 1700.1", fromSubmission)
	}
	if got := read.queued(); got != 1 {
		t.Errorf("%d queued, want the one that arrived 1 ms after one that took 2", got)
	}
}

func TestSamplesRefused(t *testing.T) {
	task := TaskRun{}
	task.set([]time.Duration{time.Second}, answer{SubmittedNs: []uint64{1000}, DoneNs: []uint64{2000}})
	for name, broken := range map[string]TaskRun{
		"no base64":       {Offered: 1, Samples: "!"},
		"no gzip":         {Offered: 1, Samples: "AAAA"},
		"cut":             {Offered: 1, Samples: task.Samples[:len(task.Samples)/2]},
		"too few":         {Offered: 2, Samples: task.Samples},
		"too many served": {Offered: 0, Samples: task.Samples},
	} {
		if err := broken.decode(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestArrivals(t *testing.T) {
	const length = 200 * time.Second
	for _, arrival := range []string{"", "poisson", "bursty"} {
		task := Task{RateHz: 100, Arrival: arrival}
		times := task.arrivals(length, seed("a"))
		if !slices.Equal(times, task.arrivals(length, seed("a"))) {
			t.Errorf("%q: another sequence from the same seed", arrival)
		}
		if slices.Equal(times, task.arrivals(length, seed("b"))) {
			t.Errorf("%q: the same sequence from another seed", arrival)
		}
		if !slices.IsSorted(times) || times[0] < 0 || times[len(times)-1] >= length {
			t.Errorf("%q: arrivals out of order or out of time", arrival)
		}
		if rate := float64(len(times)) / length.Seconds(); math.Abs(rate-100) > 8 {
			t.Errorf("%q: %.1f requests/s, want 100", arrival, rate)
		}
		var gaps []float64
		for i := range times[1:] {
			gaps = append(gaps, (times[i+1] - times[i]).Seconds())
		}
		average, squares := mean(gaps), 0.0
		for _, gap := range gaps {
			squares += (gap - average) * (gap - average)
		}
		variation := math.Sqrt(squares/float64(len(gaps))) / average
		if low, high := map[string]float64{"": 0, "poisson": .95, "bursty": 1.2}[arrival], map[string]float64{"": .2, "poisson": 1.05, "bursty": 3}[arrival]; variation < low || variation > high {
			t.Errorf("%q: gaps vary by %.2f of their mean, want %g to %g", arrival, variation, low, high)
		}
	}
}

func TestPhasesAreDrawnAnew(t *testing.T) {
	task := Task{RateHz: 100}
	a, b := task.arrivals(time.Minute, seed("lc")), task.arrivals(time.Minute, seed("be"))
	quarters := [4]int{}
	for i := range min(len(a), len(b)) {
		offset := math.Mod(float64(a[i]-b[i])/float64(10*time.Millisecond)+2, 1)
		quarters[int(4*offset)]++
	}
	for quarter, count := range quarters {
		if count < len(a)/8 {
			t.Errorf("tasks of equal rates: offsets of %d/4 of a period in %d of %d requests", quarter, count, len(a))
		}
	}
}

func TestPartsCoverAll(t *testing.T) {
	all, err := Workloads("full", nil)
	if err != nil {
		t.Fatal(err)
	}
	var costs []float64
	for _, w := range all {
		costs = append(costs, float64(1+len(w.BE)))
	}
	for n := 1; n <= 5; n++ {
		var names []string
		for i := 1; i <= n; i++ {
			for _, w := range part(all, costs, i, n) {
				names = append(names, w.Name)
			}
		}
		var want []string
		for _, w := range all {
			want = append(want, w.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%d parts hold %v", n, names)
		}
	}
}

func TestSystems(t *testing.T) {
	all, err := Systems(nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, system := range all {
		names = append(names, system.Name)
	}
	if want := []string{"default", "sequential", "mps", "mps-priority", "gpreempt-paper", "gpreempt", "gpreempt-hints", "gpreempt-mps"}; !slices.Equal(names, want) {
		t.Errorf("systems %v, want %v", names, want)
	}
	if one, err := Systems([]string{"only-timeslice"}); err != nil || len(one) != 1 || !strings.Contains(one[0].Config, `["timeslice"]`) {
		t.Errorf("only-timeslice: %+v, %v", one, err)
	}
	if _, err := Systems([]string{"nvshare"}); err == nil || !strings.Contains(err.Error(), "sequential") {
		t.Errorf("unknown system: %v", err)
	}
	by := map[string]System{}
	for _, system := range all {
		by[system.Name] = system
	}
	if by["default"].processes("be") != by["sequential"].processes("be") || by["default"].processes("be") != (System{}).processes("be") {
		t.Error("processes without the library are not shared")
	}
	if by["mps"].processes("lc") != by["mps-priority"].processes("lc") || by["mps"].processes("be") == by["mps-priority"].processes("be") {
		t.Error("MPS with priorities differs in the BE processes, and only in these")
	}
	if by["gpreempt"].processes("lc") == by["gpreempt-hints"].processes("lc") {
		t.Error("systems with the library share processes")
	}
	for name, text := range map[string]string{
		"unknown key": "about = \"x\"\nmsp = true",
		"no about":    "mps = true",
		"bad config":  "about = \"x\"\nconfig = 'mechanisms = [\"magic\"]'",
		"bad hints":   "about = \"x\"\nconfig = 'mechanisms = \"auto\"'\nhints = \"maybe\"",
	} {
		path := filepath.Join(t.TempDir(), "mine.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Systems([]string{path}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, .5: 2.5, 1: 4, .25: 1.75} {
		if got := quantile([]float64{1, 2, 3, 4}, q); got != want {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	if !math.IsNaN(quantile(nil, .5)) {
		t.Error("a quantile of nothing")
	}
}

func TestBootstrap(t *testing.T) {
	values := []float64{4, 1, 3, 3, 2, 9}
	sorted := slices.Sorted(slices.Values(values))
	for _, q := range []float64{0, .1, .5, .77, .99, 1} {
		// Each of five different values as often as it is there, the equal ones counted at the first of them.
		if got, want := quantileOfCounted(sorted, []int{1, 1, 2, 0, 1, 1}, 6, q), quantile(sorted, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
		if got, want := quantileOfCounted(sorted, []int{0, 2, 0, 0, 3, 0}, 5, q), quantile([]float64{2, 2, 4, 4, 4}, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %g of a resampling: %g, want %g", q, got, want)
		}
	}
	e := bootstrap([][]float64{{1, 2, 3}, {2, 3, 4}}, seed("a"))
	low, high := slices.Min(e.mean), slices.Max(e.mean)
	if len(e.mean) != resamplings || low < 1 || high > 4 || low >= high || math.Abs(mean(e.mean)-2.5) > .1 {
		t.Errorf("%d means from %g to %g, on average %g", len(e.mean), low, high, mean(e.mean))
	}
}

// synthetic results: LC requests of these latencies, BE completing this many, in runs of two seconds.
func synthetic(workload, system string, us []int, be float64) EvaluationCase {
	c := EvaluationCase{Case: workload, System: system, About: "synthetic", Claimed: true, PrepareUs: 300}
	for repeat := 1; repeat <= 2; repeat++ {
		run := RunResult{Repeat: repeat, Seconds: 2}
		if len(us) > 0 {
			task := TaskRun{Task: Task{Program: "vgg19", RateHz: 100}, Role: "lc", Offered: 100, Completed: 100, CPUSeconds: .1}
			var arrivals []time.Duration
			var a answer
			for i := range 100 {
				arrivals = append(arrivals, warmUp+time.Duration(i)*15*time.Millisecond)
				a.SubmittedNs = append(a.SubmittedNs, 300_000)
				a.DoneNs = append(a.DoneNs, uint64(us[i%len(us)]+i)*1000)
			}
			task.set(arrivals, a)
			run.Tasks = append(run.Tasks, task)
		}
		if be > 0 {
			run.Tasks = append(run.Tasks, TaskRun{Task: Task{Program: "resnet152", RateHz: 100}, Role: "be", Offered: 200, Completed: be, CPUSeconds: .2})
		}
		c.Runs = append(c.Runs, run)
	}
	return c
}

func syntheticEvaluation() *Evaluation {
	e := &Evaluation{Head: Head{Schema: 1, Benchmark: "paper", GPU: "NVIDIA Test", Driver: "1.2", CUDA: "13.0", Date: "2026-01-02", Commit: "abc", Command: "gpreempt bench"}}
	for _, workload := range []string{"A", "R", "rate-100", "rate-200"} {
		e.Cases = append(e.Cases,
			synthetic(workload, "alone", []int{1500}, 0), synthetic(workload, "be-alone", nil, 200),
			synthetic(workload, "default", []int{3500, 5000}, 200), synthetic(workload, "gpreempt", []int{1700}, 190),
			synthetic(workload, "gpreempt-hints", []int{1510}, 150))
	}
	e.Cases = append(e.Cases, EvaluationCase{Case: "A", System: "mps", Note: "no daemon | here"},
		synthetic("A", "only-gate", []int{2500}, 190))
	return e
}

func TestSummarise(t *testing.T) {
	e := syntheticEvaluation()
	if err := e.Summarise(); err != nil {
		t.Fatal(err)
	}
	c := e.of("A", "gpreempt")
	if c.LC.N != 200 || c.LC.P50Us != 1749.5 || c.LC.MaxUs != 1799 || c.LCSubmitted.P50Us != 1449.5 {
		t.Errorf("LC %+v, from submission %+v", c.LC, c.LCSubmitted)
	}
	if c.LCAlone.P50Us != 1549.5 || c.Ratio.P50 != 1.129 || c.BE.Share != .95 || c.BE.Now != 95 {
		t.Errorf("alone %+v, ratio %+v, BE %+v", c.LCAlone, c.Ratio, c.BE)
	}
	if c.Throughput.OfDefault != round((50+95)/(50+100.0), 3) || c.Pass == nil || !*c.Pass {
		t.Errorf("throughput %+v, pass %v", c.Throughput, c.Pass)
	}
	if ci := c.Ratio.P99CI; ci[0] > c.Ratio.P99 || ci[1] < c.Ratio.P99 || ci[0] < 1 || ci[1] > 1.3 {
		t.Errorf("p99 ratio %g in %v", c.Ratio.P99, ci)
	}
	if hints := e.of("A", "gpreempt-hints"); hints.Pass == nil || *hints.Pass { // total (50+75)/150
		t.Errorf("hints reached the target with a throughput of %g", hints.Throughput.OfDefault)
	}
	if e.of("A", "default").Pass != nil {
		t.Error("a rival has a target")
	}
	if c.CPU.LCMs != 1 || c.CPU.BECores != .1 {
		t.Errorf("CPU %+v", c.CPU)
	}
}

func TestTargets(t *testing.T) {
	for _, test := range []struct {
		system          string
		p99, mean, left float64
		pass            bool
	}{
		{"gpreempt", 1.25, 1.2, .9, true}, {"gpreempt", 1.26, 1.2, .9, false}, {"gpreempt", 1.25, 1.2, .89, false},
		{"gpreempt-hints", 1.1, 1.024, .9, true}, {"gpreempt-hints", 1.11, 1.024, .9, false},
		{"gpreempt-hints", 1.1, 1.025, .9, false}, {"gpreempt-hints", 1.1, 1.024, .89, false},
	} {
		c := EvaluationCase{System: test.system, Claimed: true, Ratio: &Ratios{P99: test.p99, Mean: test.mean}, Throughput: &Throughput{OfDefault: test.left}}
		if c.judge(); c.Pass == nil || *c.Pass != test.pass || c.Target == "" {
			t.Errorf("%+v: %v", test, c.Pass)
		}
	}
}

func TestEvaluationFiles(t *testing.T) {
	folder, out := t.TempDir(), t.TempDir()
	e := syntheticEvaluation()
	if err := e.Summarise(); err != nil {
		t.Fatal(err)
	}
	one, two := *e, *e
	one.Cases, two.Cases = e.Cases[:5], e.Cases[5:]
	for name, part := range map[string]*Evaluation{"2.json": &one, "1.json": &two} {
		if err := part.Write(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "other.json"), []byte(`{"schema": 1, "benchmark": "foundation", "cases": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := ReadEvaluation(folder)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read.of("rate-200", "gpreempt"), e.of("rate-200", "gpreempt"); !reflect.DeepEqual(got.LC, want.LC) || !reflect.DeepEqual(got.Ratio, want.Ratio) {
		t.Errorf("read %+v %+v, wrote %+v %+v", got.LC, got.Ratio, want.LC, want.Ratio)
	}
	if read.Cases[0].Case != "A" || read.Cases[0].System != "alone" {
		t.Errorf("the first case is %s under %s", read.Cases[0].Case, read.Cases[0].System)
	}
	if err := os.Remove(rawPath(filepath.Join(folder, "1.json"))); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEvaluation(folder); err == nil || !strings.Contains(err.Error(), "read raw results of "+filepath.Join(folder, "1.json")) {
		t.Errorf("without the raw form: %v", err)
	}
	if err := two.Write(filepath.Join(folder, "1.json")); err != nil {
		t.Fatal(err)
	}
	path, err := read.WriteReport(out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NVIDIA Test", "GPreempt, USENIX ATC 2025", "% (A)", "no daemon / here", "cdf-A.svg", "rate.svg", "ablation.svg", "| A | gpreempt | 1.12 (", "| reached |", "**missed**: total 0.833 of default, 0.067 below 0.90", "| BE / alone | BE / default |", "to default time slicing"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if err := read.Write(filepath.Join(folder, "test-paper.json")); err != nil {
		t.Fatal(err)
	}
	document, err := FillTables([]byte(tableBegin+"test-paper.json -->\n"+tableEnd), folder, "test/bench/results")
	for _, want := range []string{"| default |", "1.12 (0.95)", "1.01 (0.75) **missed**", "GPreempt, USENIX ATC 2025", "- A, gpreempt-hints: total 0.833 of default, 0.067 below 0.90\n", "Reached in 4 of 8 cases, not in\n\n", "No row compares like with like", "](test/bench/results/evaluation/p99-models.svg)", "](test/bench/results/evaluation/evaluation.md)",
		"\nThe points of sweeps, under fewer systems:\n\n| workload | LC p99 alone | default | gpreempt |", "| workload | LC p99 alone | only-gate |\n|---|---|---|\n| A | 1598 us | 1.63 (0.95) |\n\n"} {
		if err != nil || !bytes.Contains(document, []byte(want)) {
			t.Errorf("the README's table lacks %q: %v\n%s", want, err, document)
		}
	}
	again := t.TempDir()
	if _, err := read.WriteReport(again); err != nil {
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
	if _, err := ReadEvaluation(t.TempDir()); !errors.Is(err, ErrNoEvaluation) {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestCompare(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, lcUs int, be float64) string {
		e := syntheticEvaluation()
		for i := range e.Cases {
			if e.Cases[i].Case == "A" && e.Cases[i].System == "gpreempt" {
				e.Cases[i] = synthetic("A", "gpreempt", []int{lcUs}, be)
			}
			if e.Cases[i].Case == "A" && e.Cases[i].System == "default" {
				e.Cases[i] = synthetic("A", "default", []int{lcUs * 10}, 200) // a rival's is not ours
			}
		}
		if err := e.Summarise(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, name)
		if err := e.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	committed := write("committed.json", 1700, 190)
	for _, test := range []struct {
		name  string
		lcUs  int
		be    float64
		worse int
	}{{"same", 1700, 190, 0}, {"within", 1780, 185, 0}, {"slower", 3000, 190, 1}, {"both", 3000, 100, 2}, {"better", 1500, 200, 0}} {
		comparison, err := Compare(committed, write(test.name+".json", test.lcUs, test.be), .1)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := comparison.Print(&out); err != nil {
			t.Fatal(err)
		}
		if got := comparison.Worse(); got != test.worse || strings.Count(out.String(), "WORSE") != test.worse {
			t.Errorf("%s: %d worse, want %d\n%s", test.name, got, test.worse, &out)
		}
	}
	foundation := filepath.Join("results", "h200-foundation.json")
	comparison, err := Compare(foundation, foundation, .1)
	if err != nil || comparison.Worse() != 0 || len(comparison.Lines) == 0 {
		t.Errorf("a file against itself: %+v, %v", comparison, err)
	}
	fire := filepath.Join("results", "h200-blp-fire.json")
	text, err := os.ReadFile(fire)
	if err != nil {
		t.Fatal(err)
	}
	failed := filepath.Join(folder, "failed.json")
	if err := os.WriteFile(failed, bytes.Replace(text, []byte(`"pass": true`), []byte(`"pass": false`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if comparison, err := Compare(fire, failed, .1); err != nil || comparison.Worse() != 1 || len(comparison.Lines) < 10 {
		t.Errorf("a target that is no longer reached: %+v, %v", comparison, err)
	}
}

// Files that say nothing of each other are no reason to be content, nor is what could not be measured.
func TestCompareRefuses(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, r Report) string {
		path := filepath.Join(folder, name)
		if err := r.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	head, simulated := Head{Schema: 1, Benchmark: "quick"}, Head{Schema: 1, Benchmark: "quick", Simulated: true}
	row := func(name string, p99 float64) Row {
		return Row{Case: name, System: "gpreempt", LC: &Latency{N: 1}, LCAlone: &Latency{N: 1}, Ratio: &Ratio{P50: 1, P99: p99}}
	}
	missed := false
	broken := Row{Case: "a", System: "gpreempt", Target: measured, Pass: &missed, Note: "it hung"}
	committed := write("committed.json", Report{Head: head, Cases: []Row{row("a", 1), row("b", 1)}})
	for _, test := range []struct {
		name  string
		new   Report
		want  error
		worse int
	}{
		{"same", Report{Head: head, Cases: []Row{row("a", 1)}}, nil, 0},
		{"others", Report{Head: head, Cases: []Row{row("c", 1)}}, errNothingCompared, 0},
		{"nothing", Report{Head: head}, errNothingCompared, 0},
		{"simulated", Report{Head: simulated, Cases: []Row{row("a", 1)}}, errSimulated, 0},
		{"failed", Report{Head: head, Cases: []Row{broken, row("b", 1)}}, nil, 2},
		{"only failed", Report{Head: head, Cases: []Row{broken}}, nil, 2},
	} {
		comparison, err := Compare(committed, write(test.name+".json", test.new), .1)
		if !errors.Is(err, test.want) || err == nil && comparison.Worse() != test.worse {
			t.Errorf("%s: %+v, %v, want %d worse, %v", test.name, comparison, err, test.worse, test.want)
		}
		if err != nil {
			continue
		}
		var out bytes.Buffer
		if err := comparison.Print(&out); err != nil || strings.Count(out.String(), "WORSE") != test.worse {
			t.Errorf("%s: %v\n%s", test.name, err, &out)
		}
	}
	one, two := write("one.json", Report{Head: simulated, Cases: []Row{row("a", 1)}}), write("two.json", Report{Head: simulated, Cases: []Row{row("a", 2)}})
	if comparison, err := Compare(one, two, .1); err != nil || comparison.Worse() != 1 {
		t.Errorf("two of the simulated driver: %+v, %v", comparison, err)
	}
}

// A stand-in for nvidia-smi that answers from files.
func TestGPUBusy(t *testing.T) {
	folder := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *compute-apps*) cat " + folder + "/apps;; *) head -n 1 " + folder + "/used; sed -i 1d " + folder + "/used;; esac\n"
	if err := os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	for _, test := range []struct{ apps, used, want string }{
		{"", "0\n", ""}, {"", "60\n4\n", ""}, {"12, python3\n", "0\n", "processes use it: 12, python3"},
		{"", "60\n70\n80\n", "80 % utilised"}, {"", "[N/A]\n", ""},
	} {
		for name, text := range map[string]string{"apps": test.apps, "used": test.used} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := gpuBusy(context.Background(), 0); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// fakeMPS is a stand-in for the MPS control daemon, in a folder: it ends when it is told to, with a child that does not.
func fakeMPS(t *testing.T, folder string) {
	t.Helper()
	script := "#!/bin/sh\ncd" + ` "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
	sleep 1000 & echo $! > server
	mkfifo quit && : > control && read line < quit && exit 0
fi
read line && echo "$line" > "$(dirname "$0")/told" && echo "$line" > quit

`
	if err := os.WriteFile(filepath.Join(folder, "nvidia-cuda-mps-control"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
}

func TestMPSDaemon(t *testing.T) {
	tools := t.TempDir()
	fakeMPS(t, tools)
	folder := t.TempDir()
	m, err := startMPS(context.Background(), folder)
	if err != nil {
		t.Fatal(err)
	}
	server, err := os.ReadFile(filepath.Join(folder, "mps", "server"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(server)))
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	if told, err := os.ReadFile(filepath.Join(tools, "told")); err != nil || string(told) != "quit -t 5\n" {
		t.Errorf("told %q, %v", told, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || bytes.Contains(status, []byte(") Z ")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server runs on")
		}
	}
	if _, err := os.Stat(m.pipes); err == nil {
		t.Error("its pipes are still there")
	}
	if err := os.WriteFile(filepath.Join(tools, "nvidia-cuda-mps-control"), []byte("#!/bin/sh\necho no GPU >&2; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := startMPS(context.Background(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("a daemon that ends: %v", err)
	}
}

// The smoke workload on the simulated driver, which stops in between and goes on.
func TestEvaluateOnTheSimulatedDriver(t *testing.T) {
	simulate(t)
	var progress bytes.Buffer
	options := Options{Suite: "smoke", Library: builtLibrary(t), Progress: &progress,
		Systems: []string{"default", "sequential", "gpreempt"}, Repeats: 1, Seconds: 1, Folder: t.TempDir(), Python: "python3", Busy: true}
	results, err := evaluate(context.Background(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if !results.Simulated {
		t.Error("not marked as simulated")
	}
	for _, system := range []string{"alone", "default", "sequential", "gpreempt"} {
		c := results.of("spin", system)
		if c == nil || c.Note != "" || c.LC == nil || c.LC.N+c.Unserved < 40 || c.Runs[0].Tasks[0].Offered < 90 {
			t.Errorf("%s: %+v\n%s", system, c, &progress)
		}
	}
	for _, system := range []string{"default", "sequential", "gpreempt"} {
		if c := results.of("spin", system); c != nil && (c.BE == nil || c.BE.Share <= 0) {
			t.Errorf("%s: BE %+v", system, c.BE)
		}
	}
	progress.Reset()
	if _, err := evaluate(context.Background(), options); err != nil || !strings.Contains(progress.String(), "measured already") {
		t.Errorf("again: %v\n%s", err, &progress)
	}
	options.Systems = []string{"only-timeslice"}
	results, err = evaluate(context.Background(), options)
	if err != nil {
		t.Fatalf("another system: %v\n%s", err, &progress)
	}
	if c := results.of("spin", "gpreempt"); c == nil || c.LC == nil || c.Note != anotherRun {
		t.Errorf("what was measured before another system: %+v", c)
	}
	if c := results.of("spin", "only-timeslice"); c == nil || c.LC == nil || c.Note != "" {
		t.Errorf("another system: %+v", c)
	}
	deaf := filepath.Join(t.TempDir(), "deaf.toml")
	if err := os.WriteFile(deaf, []byte("about = \"hints that nobody takes\"\nhints = \"given\""), 0o600); err != nil {
		t.Fatal(err)
	}
	options.Systems, options.Folder = []string{deaf}, t.TempDir()
	if results, err := evaluate(context.Background(), options); err != nil || !strings.Contains(results.of("spin", "deaf").Note, "takes no hints") {
		t.Errorf("hints that nobody takes: %v", err)
	}
	options.Systems = []string{"default", "gpreempt"}
	options.Suite, options.Only, options.Python = "full", []string{"A", "spin"}, "no-such-python"
	if results, err := evaluate(context.Background(), options); err == nil || !strings.Contains(err.Error(), "workload A") || results.of("spin", "gpreempt") == nil {
		t.Errorf("without Python: %v, results %v", err, results)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	options.Folder = t.TempDir()
	if _, err := evaluate(stopped, options); err == nil {
		t.Error("an interrupted evaluation says it is complete")
	}
}

// standInTorch is a Python whose PyTorch is a stand-in that does nothing.
func standInTorch(t *testing.T) (python string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	stub, err := filepath.Abs("testdata/python")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", stub)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	return python
}

// The programs of torch/ serve the protocol, PyTorch itself being a stand-in that does nothing.
func TestTorchProgramsServe(t *testing.T) {
	python := standInTorch(t)
	simulate(t)
	var progress bytes.Buffer
	options := Options{Suite: "paper", Only: []string{"A", "D", "two-gpus", "decode", "http"}, Library: builtLibrary(t), Progress: &progress,
		Systems: []string{"default", "sequential", "gpreempt-hints"}, Repeats: 1, Seconds: 1, Folder: t.TempDir(), Python: python, Busy: true}
	results, err := evaluate(context.Background(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for _, workload := range []string{"A", "D", "decode", "http"} {
		for _, system := range []string{"alone", "default", "sequential", "gpreempt-hints"} {
			c := results.of(workload, system)
			if c == nil || c.Note != "" || c.LC == nil || c.LCSubmitted == nil || c.LC.N < 18 || c.Runs[0].Tasks[0].Offered < 18 {
				t.Fatalf("%s under %s: %+v\n%s", workload, system, c, &progress)
			}
			// A request is prepared, or sent and decoded, before it is submitted.
			if c.LCSubmitted.P50Us <= 0 || c.LCSubmitted.P50Us >= c.LC.P50Us {
				t.Errorf("%s under %s: %g us from submission, %g from arrival", workload, system, c.LCSubmitted.P50Us, c.LC.P50Us)
			}
			if system != "alone" && c.Throughput.BE <= 0 {
				t.Errorf("%s under %s: BE did nothing", workload, system)
			}
		}
	}
	if results.of("two-gpus", "alone") != nil || !strings.Contains(progress.String(), "two-gpus: left out, it needs 2 GPUs and there are 1") {
		t.Errorf("two GPUs where there is one:\n%s", &progress)
	}
}

// What goes wrong in one system is told in its case, and costs the others nothing.
func TestFailuresAreTheirOwn(t *testing.T) {
	python := standInTorch(t)
	simulate(t)
	folder := t.TempDir()
	fakeMPS(t, folder)
	defer func(start, answer time.Duration) { startLimit, answerLimit = start, answer }(startLimit, answerLimit)
	startLimit, answerLimit = 4*time.Second, 100*time.Millisecond
	systems := []string{"default"}
	for name, text := range map[string]string{
		"ends":    "about = \"x\"\nmps = true\n[lc]\nSTUB_FAILS = \"in-run\"\n",
		"beside":  "about = \"x\"\nmps = true\n",
		"waits":   "about = \"x\"\n[lc]\nSTUB_FAILS = \"hangs-in-run\"\n",
		"refuses": "about = \"x\"\n[be]\nSTUB_FAILS = \"at-start\"\n",
		"never":   "about = \"x\"\n[be]\nSTUB_FAILS = \"hangs-at-start\"\n",
	} {
		path := filepath.Join(folder, name+".toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		systems = append(systems, path)
	}
	var progress bytes.Buffer
	options := Options{Suite: "paper", Only: []string{"A", "B"}, Library: builtLibrary(t), Progress: &progress,
		Systems: systems, Repeats: 2, Seconds: 0.4, Folder: t.TempDir(), Python: python, Busy: true}
	results, err := evaluate(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for _, test := range []struct {
		workload, system string
		runs             int
		note             string
	}{
		{"A", "alone", 2, ""}, {"A", "be-alone", 1, ""}, {"A", "default", 2, ""}, {"A", "beside", 2, ""}, {"B", "default", 2, ""}, {"B", "beside", 2, ""},
		{"A", "ends", 0, "repeat 2: lc vgg19 (ends): the program ended: as told"}, {"B", "ends", 0, "as told"},
		{"A", "waits", 0, "repeat 2: lc vgg19 (waits): no answer in"}, {"B", "waits", 0, "not tried: it did not answer in earlier workloads"},
		{"A", "refuses", 0, "be resnet152 (refuses): the program ended: as told"},
		{"A", "never", 0, "be resnet152 (never): no answer in"}, {"B", "never", 0, "be resnet152 (never): no answer in"},
	} {
		c := results.of(test.workload, test.system)
		if c == nil || len(c.Runs) != test.runs || !strings.Contains(c.Note, test.note) || test.note == "" && c.Note != "" {
			t.Errorf("%s under %s: %+v, want %d runs and %q", test.workload, test.system, c, test.runs, test.note)
		}
	}

	// Programs that several systems share are started again for the others.
	once := filepath.Join(folder, "once")
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("STUB_ONCE", once)
	t.Setenv("STUB_FAILS", "in-run")
	options.Systems, options.Only, options.Folder = []string{"default", "sequential"}, []string{"A"}, t.TempDir()
	if results, err = evaluate(t.Context(), options); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	runs, notes := 0, 0
	for _, c := range results.Cases {
		runs += len(c.Runs)
		if strings.Contains(c.Note, "as told") {
			notes++
		}
	}
	if notes != 1 || runs < 6 {
		t.Errorf("a program that failed once: %d runs of at most 7, %d notes\n%s", runs, notes, &progress)
	}

	// A workload whose programs do not even run alone.
	t.Setenv("STUB_ONCE", "")
	t.Setenv("STUB_FAILS", "at-start")
	options.Folder = t.TempDir()
	if results, err = evaluate(t.Context(), options); err == nil || results == nil {
		t.Fatalf("no program starts: %v, %+v", err, results)
	}
	for _, c := range results.Cases {
		if !strings.Contains(c.Note, "the program ended: as told") {
			t.Errorf("A under %s: %q", c.System, c.Note)
		}
	}
	t.Setenv("STUB_FAILS", "")
	if results, err = evaluate(t.Context(), options); err != nil || results.of("A", "default").LC == nil {
		t.Errorf("tried again: %v\n%s", err, &progress)
	}
}

func builtLibrary(t *testing.T) string {
	t.Helper()
	library, err := filepath.Abs("../../build/libgpreempt.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	return library
}

// simulate gives programs the simulated driver.
func simulate(t *testing.T) {
	t.Helper()
	driver, err := filepath.Abs("../../build/sim/libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(driver); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	t.Setenv("LD_PRELOAD", driver)
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(driver))
	t.Setenv("SIMCUDA_DIR", t.TempDir())
}

func TestTwoGPUs(t *testing.T) {
	for _, test := range []struct {
		ours   string
		device int
		mps    bool
		want   string
	}{
		{"", 0, false, ""}, {"", 1, false, "1"}, {"3,5", 0, false, "3"}, {"3,5", 1, false, "5"},
		{"3,5", 1, true, "1"}, {"3,5", 0, true, "0"}, {"GPU-a", 1, false, "1"},
	} {
		if got := visibleDevices(test.ours, test.device, test.mps); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
	picked, err := Workloads("paper", []string{"rate-100", "two-gpus"})
	if err != nil {
		t.Fatal(err)
	}
	one, two := members(picked[0], true, true), members(picked[1], true, true)
	keys := map[string]bool{}
	for _, m := range two {
		keys[m.key(System{})] = true
	}
	if len(keys) != 4 || picked[0].devices() != 1 || picked[1].devices() != 2 {
		t.Errorf("processes %v on %d GPUs, and %d", keys, picked[0].devices(), picked[1].devices())
	}
	for _, m := range one {
		if !keys[m.key(System{})] {
			t.Errorf("%s of the first GPU is started again", m.Program)
		}
	}
}

func TestPlan(t *testing.T) {
	var out bytes.Buffer
	options := Options{Suite: "paper", Repeats: 2, Seconds: 1.5}
	if err := planEvaluation(&out, options); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 runs of 1.5s", "alone, be-alone, default, sequential", "\nA  ", "\nhttp  ", "--part 2/2: ", "two-gpus is left out"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, &out)
		}
	}
	// The first of two workloads with the same programs starts them; sequential needs none of its own.
	e := &evaluation{options: Options{Suite: "paper", Only: []string{"A", "B"}, Systems: []string{"default", "sequential"}, Repeats: 1, Seconds: 1}}
	picked, err := e.pick()
	if err != nil {
		t.Fatal(err)
	}
	running := map[string]bool{}
	first, count := e.starting(picked[0], running)
	if first < importTorch || count != 2 || len(running) != 2 {
		t.Errorf("A: %s, %d processes", first, count)
	}
	if again, count := e.starting(picked[1], running); again != 0 || count != 2 {
		t.Errorf("B after A: %s, %d processes", again, count)
	}
	options.Part = "3/2"
	if err := planEvaluation(&out, options); err == nil {
		t.Error("part 3 of 2 accepted")
	}
}

func TestEvaluationsJoin(t *testing.T) {
	folder := t.TempDir()
	write := func(name, commit string, cases ...EvaluationCase) string {
		e := &Evaluation{Head: Head{Schema: 1, Benchmark: "paper", GPU: "NVIDIA Test", Driver: "1.2", Date: "2026-01-02", Commit: commit, Command: "gpreempt bench --part " + name}, Cases: cases}
		path := filepath.Join(folder, name, "results.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := e.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := write("1", "abc", synthetic("A", "alone", []int{1500}, 0), synthetic("A", "default", []int{3500}, 200), synthetic("A", "mps", []int{2500}, 200))
	second := write("2", "abc", synthetic("Z", "alone", []int{1500}, 0))
	third := write("3", "def", synthetic("A", "alone", []int{1000}, 0), synthetic("A", "default", []int{3000}, 100))
	all, err := ReadEvaluation(first, filepath.Dir(second), third)
	if err != nil {
		t.Fatal(err)
	}
	if all.Commit != "abc; def" || strings.Count(all.Command, "; ") != 2 {
		t.Errorf("commit %q, command %q", all.Commit, all.Command)
	}
	var names []string
	for _, c := range all.Cases {
		names = append(names, c.Case+" "+c.System)
	}
	if want := []string{"A alone", "A default", "A mps", "Z alone"}; !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
	if c := all.of("A", "default"); c.LC.P50Us != 3049.5 || c.Note != "" {
		t.Errorf("not the later file's: %+v", c)
	}
	if c := all.of("A", "mps"); c.Note != anotherRun {
		t.Errorf("compared with another run, and says %q", c.Note)
	}
	if _, err := ReadEvaluation(first, filepath.Join(folder, "missing.json")); err == nil {
		t.Error("a file that is missing is accepted")
	}
}

// Requests that wait at the end of a run are served, unless the run is over for a program because the file is there.
func TestRunsEnd(t *testing.T) {
	simulate(t)
	stub, err := filepath.Abs("testdata/python")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", stub)
	e := newEvaluation(Options{Library: builtLibrary(t), Python: "python3", Progress: io.Discard, Busy: true})
	defer e.close()
	if err := e.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	stop := filepath.Join(e.folder, "stop")
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	arrivals := make([]time.Duration, 3) // all when the run begins and ends
	for _, name := range []string{"spin-short", "vgg19"} {
		if e.session.python == "" && name == "vgg19" {
			t.Skip("no Python")
		}
		p, err := e.startProgram(t.Context(), System{}, "be", Task{Program: name})
		if err != nil {
			t.Fatal(err)
		}
		defer p.end()
		started := []member{{program: p}}
		if err := errors.Join(initialise(started), awaitReady(t.Context(), started)); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			stop     string
			unserved int
		}{{stop, 3}, {"-", 0}, {filepath.Join(e.folder, "none"), 0}} {
			now, err := monotonic()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.send(goOrder(now, now, 0, false, "-", test.stop, arrivals)); err != nil {
				t.Fatal(err)
			}
			a, err := p.answerGo(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.DoneNs) != len(arrivals)-test.unserved || a.Unserved != test.unserved {
				t.Errorf("%s, stop %q: %d done, %d unserved", name, filepath.Base(test.stop), len(a.DoneNs), a.Unserved)
			}
		}
	}
}
