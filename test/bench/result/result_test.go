package result

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

func TestLatency(t *testing.T) {
	if l := LatencyOf(nil); l != nil {
		t.Errorf("latency of nothing: %+v", l)
	}
	one := LatencyOf([]uint64{1250})
	if want := (Latency{N: 1, P50Us: 1.3, P99Us: 1.3, MaxUs: 1.3}); *one != want {
		t.Errorf("of one request: %+v, want %+v", *one, want)
	}
	var ns []uint64
	for us := uint64(201); us >= 1; us-- { // the order must not matter
		ns = append(ns, us*1000)
	}
	given := slices.Clone(ns)
	if got, want := *LatencyOf(ns), (Latency{N: 201, P50Us: 101, P99Us: 199, MaxUs: 201, P99CIUs: [2]float64{196, 201}}); got != want {
		t.Errorf("of 1 to 201 us: %+v, want %+v", got, want)
	}
	if !slices.Equal(ns, given) {
		t.Error("latency sorted its caller's slice, whose order is the requests'")
	}
}

func TestRatio(t *testing.T) {
	now, alone := &Latency{P50Us: 150, P99Us: 1000}, &Latency{P50Us: 100, P99Us: 300}
	if got := RatioOf(now, alone); *got != (Ratio{P50: 1.5, P99: 3.333}) {
		t.Errorf("ratio %+v", *got)
	}
	now.P99CIUs, alone.P99CIUs = [2]float64{800, 1200}, [2]float64{270, 330}
	now.P999Us, alone.P999Us = 3000, 1000
	// 3.333 over and times exp of the root of ln(1.25)^2 + ln(1.1)^2, and ln(1.2)^2 + ln(1.111)^2.
	if got := RatioOf(now, alone); *got != (Ratio{P50: 1.5, P99: 3.333, P999: 3, P99CI: [2]float64{2.615, 4.115}}) {
		t.Errorf("ratio %+v", *got)
	}
	if RatioOf(nil, alone) != nil || RatioOf(now, nil) != nil {
		t.Error("a ratio with one side missing")
	}
}

func report() *Report {
	reached, missed, ns := true, false, 12.5
	return &Report{Head: Head{Schema: 1, Benchmark: "foundation", GPU: "Test GPU", Driver: "1.2", CUDA: "13.0", Mode: "time-sliced"}, Cases: []Row{
		{Case: "pair", System: "alone", LC: &Latency{N: 10, P50Us: 1, P99Us: 2, MaxUs: 3}},
		{Case: "pair", System: "gpreempt", LC: &Latency{N: 10, P50Us: 4, P99Us: 5, MaxUs: 6}, LCAlone: &Latency{N: 10, P50Us: 1, P99Us: 2, MaxUs: 3}, Ratio: &Ratio{P50: 4, P99: 2.5},
			BE: &Share{Share: 0.75, Alone: 200, Now: 100, Unit: "kernels/s"}, Target: "fast", Pass: &missed},
		{Case: "launch", System: "gpreempt", Value: &ns, Unit: "ns more", Target: "cheap", Pass: &reached, Note: "role lc"},
		{Case: "broken", System: "gpreempt", Target: "works", Pass: &missed, Note: "no such GPU"},
	}}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	if err := report().Print(&out); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"Test GPU, driver 1.2, CUDA 13.0, time-sliced",
		"",
		"case system LC p50 us p99 us max us n p99/alone BE rate of alone of what LC leaves target",
		"pair alone 1.0 2.0 3.0 10 - - - -",
		"gpreempt 4.0 5.0 6.0 10 2.50 100.0 kernels/s 0.500 0.750 MISSED: fast",
		"launch gpreempt 12.5 ns more - - - - - - - reached: cheap (role lc)",
		"broken gpreempt - - - - - - - - MISSED: works (no such GPU)",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	simulated := report()
	simulated.Simulated = true
	out.Reset()
	if err := simulated.Print(&out); err != nil || !strings.Contains(out.String(), "[SIMULATED: no GPU") {
		t.Errorf("simulated times are not marked: %v\n%s", err, &out)
	}
	short := report()
	short.Left = []string{"graphs", "copies"}
	out.Reset()
	if err := short.Print(&out); err != nil || !strings.Contains(out.String(), "\nNOT WHOLE, there was no time for 2: graphs, copies\n") {
		t.Errorf("what was cut short looks whole: %v\n%s", err, &out)
	}
}

func decode(t *testing.T, text []byte) (r Report) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	if err := report().Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := decode(t, text); !reflect.DeepEqual(got, *report()) {
		t.Errorf("read back: %+v", got)
	}
	for _, absent := range []string{"simulated", `"value": null`, `"pass": null`} {
		if bytes.Contains(text, []byte(absent)) {
			t.Errorf("%s in\n%s", absent, text)
		}
	}
	if !bytes.HasSuffix(text, []byte("}\n")) || !bytes.Contains(text, []byte(`"p99_us": 5,`)) {
		t.Errorf("wrote\n%s", text)
	}
	if err := report().Write(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("no error from a path that cannot be written")
	}
}

// The committed results are what Report describes, were measured on a GPU, and their verdicts are of their figures.
func TestCommittedResults(t *testing.T) {
	files, err := filepath.Glob("../results/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	raws, err := filepath.Glob("../results/*.raw.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range raws {
		text, err := os.ReadFile(strings.TrimSuffix(raw, ".raw.json.gz") + ".json")
		if err != nil || !strings.Contains(string(text), strconv.Quote(filepath.Base(raw))) {
			t.Errorf("%s is no result file's raw form: %v", raw, err)
		}
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := ReadReport(file)
			if err != nil {
				t.Fatal(err)
			}
			if r.Schema != 1 || r.Simulated || r.GPU == "" || r.Driver == "" || r.Commit == "" || r.Command == "" || len(r.Cases) == 0 {
				t.Errorf("%+v, %d rows", r.Head, len(r.Cases))
			}
			for _, row := range r.Cases {
				again := row
				again.Target, again.Pass, again.Missed = "", nil, ""
				if again.JudgePaper(); r.Benchmark == workload.Suite && row.IsClaimed() && !reflect.DeepEqual(again, row) {
					t.Errorf("%+v; judged anew %+v", row, again)
				}
				if (row.Pass != nil) != (row.Target != "") {
					t.Errorf("%s, %s: a verdict without a target, or the reverse", row.Case, row.System)
				}
				if row.Pass != nil && *row.Pass && slices.Contains(r.Left, row.Case+" under "+row.System) {
					t.Errorf("%s, %s: reached, and not measured to its end", row.Case, row.System)
				}
				if l := row.LC; l != nil && (l.N <= 0 || l.P50Us > l.P99Us || l.P99Us > l.MaxUs) {
					t.Errorf("%s, %s: %+v", row.Case, row.System, *l)
				}
				if row.Ratio != nil && math.Abs(row.Ratio.P99-row.LC.P99Us/row.LCAlone.P99Us) > 0.01*row.Ratio.P99 {
					t.Errorf("%s, %s: p99 ratio %g of %g and %g us", row.Case, row.System, row.Ratio.P99, row.LC.P99Us, row.LCAlone.P99Us)
				}
			}
		})
	}
}

func TestTargetsAreNotJudgedOnTheSimulatedDriver(t *testing.T) {
	missed, ns := false, 70.0
	r := Report{Head: Head{Simulated: true}, Cases: []Row{
		{Case: "a", System: "gpreempt", LC: &Latency{N: 1}, Target: "fast", Pass: &missed},
		{Case: "b", System: "gpreempt", Value: &ns, Unit: "ns", Target: "cheap", Pass: &missed, Note: "role lc"},
		{Case: "c", System: "gpreempt", Target: "works", Pass: &missed, Note: "worker: exit status 1"},
	}}
	r.WithdrawTargets()
	if r.Cases[2].Pass == nil || r.Cases[0].Target != "" || r.Cases[1].Pass != nil || r.Cases[1].Target != "" {
		t.Errorf("%+v", r.Cases)
	}
}

// A request that found no end counts with the time that it was waited for; the warm-up's count in nothing.
func TestLatencies(t *testing.T) {
	task := TaskRun{Role: "lc", Arrivals: []time.Duration{100 * time.Microsecond, 700 * time.Millisecond, 701 * time.Millisecond}, DoneNs: []uint64{5000, 2_000_100}}
	run := RunResult{Length: time.Second, Tasks: []TaskRun{task}}
	if us := run.Latencies(); len(us) != 2 || math.Abs(us[0]-2000.1) > 1e-9 || math.Abs(us[1]-1_299_000) > 1e-6 {
		t.Errorf("%v", us)
	}
}

func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, .5: 2.5, 1: 4, .25: 1.75} {
		if got := Quantile([]float64{1, 2, 3, 4}, q); got != want {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	if !math.IsNaN(Quantile(nil, .5)) {
		t.Error("a quantile of nothing")
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
		row := Row{Case: "A", System: test.system, Ratio: &Ratio{P99: test.p99, Mean: test.mean}, Throughput: &Throughput{OfDefault: test.left}}
		if row.JudgePaper(); row.Pass == nil || *row.Pass != test.pass || row.Target == "" || (row.Missed == "") != test.pass {
			t.Errorf("%+v: %+v", test, row)
		}
	}
	for _, row := range []Row{{Case: "A", System: "default"}, {Case: "load-50", System: "gpreempt"}} {
		row.Ratio, row.Throughput = &Ratio{P99: 2}, &Throughput{OfDefault: 1}
		if row.JudgePaper(); row.Pass != nil {
			t.Errorf("a target of %+v", row)
		}
	}
}

// The interval of a quantile holds it in 95 of 100 samples at least, whatever the distribution; at the end of few samples it may be cut off.
func TestOrderInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const rounds = 1000
	for _, test := range []struct {
		n        int
		q, least float64
	}{{6, .5, .95}, {300, .5, .95}, {300, .99, .925}, {1000, .99, .95}, {1000, .999, .6}} {
		held := 0
		for range rounds {
			sample := make([]float64, test.n)
			for i := range sample {
				sample[i] = 1000 * random.Float64() // the quantile is 1000 q
			}
			slices.Sort(sample)
			ci := orderInterval(sample, test.q)
			if ci[0] <= 1000*test.q && 1000*test.q <= ci[1] {
				held++
			}
		}
		if part := float64(held) / rounds; part < test.least-.02 {
			t.Errorf("%g of %d: held in %.3f, want %.3f", test.q, test.n, part, test.least)
		}
	}
	if ci := orderInterval([]float64{1, 2, 3, 4, 5}, .5); ci != [2]float64{} {
		t.Errorf("of five: %v", ci)
	}
	for _, test := range []struct {
		n        int
		p, level float64
		want     int
	}{{10, .5, .025, 2}, {10, .5, .975, 8}, {300, .99, .025, 293}, {300, .99, .975, 300}, {1000000, .5, .5, 500000}} {
		if k := binomialQuantile(test.n, test.p, test.level); k != test.want {
			t.Errorf("%+v: %d", test, k)
		}
	}
}
