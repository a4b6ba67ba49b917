package bench

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/report"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// The witnesses of a stall are what other processes and the library did at the same time.
func TestWitnesses(t *testing.T) {
	const ms = uint64(time.Millisecond)
	w := &watch{pid: 10}
	look := func(at uint64, holds, expired uint64, other bool) {
		w.note(segment.Look{TakenNs: at, Peers: []segment.Glance{
			{Pid: 10, Level: 0, Open: true, Counters: segment.Counters{Holds: holds, HoldsExpired: expired}},
			{Pid: 11, Level: 0, Open: other, TimesliceUs: 100_000},
			{Pid: 12, Level: segment.Levels - 1, Open: true, Busy: other, TimesliceUs: 1}, // is not of the level
			{Pid: 13, Level: segment.Levels - 1, Busy: at >= 180*ms, TimesliceUs: 3092},
			{Pid: 14, Level: segment.Levels - 1, Busy: at >= 190*ms},
		}})
	}
	for at := 100 * ms; at < 200*ms; at += ms / 4 { // every quarter of a millisecond
		if at >= 160*ms && at < 170*ms { // but for a while
			continue
		}
		look(at, (at-100*ms)/(10*ms), at/(180*ms), at >= 120*ms && at < 130*ms || at >= 155*ms && at < 175*ms)
	}
	if len(w.changes) > 30 {
		t.Errorf("%d changes are kept", len(w.changes))
	}
	for _, test := range []struct{ from, to, low, high float64 }{
		{101, 119, 0, 0}, {115, 140, 9700, 10300}, {121, 122, 1000, 1000}, {0, 1000, 9700 + 10_000, 10300 + 10_500}, {300, 400, 0, 0},
	} {
		if got, _, _ := w.others(uint64(test.from*1e6), uint64(test.to*1e6)); got < test.low || got > test.high {
			t.Errorf("from %g to %g ms another window was open for %g us, want %g to %g", test.from, test.to, got, test.low, test.high)
		}
	}
	for _, test := range []struct {
		from, to   uint64
		open, want uint32
	}{{101, 110, 0, 0}, {121, 125, 100_000, 1}, {171, 179, 100_000, 1}, {170, 182, 100_000, 3092}, {190, 195, 0, 3092}, {300, 400, 0, 0}} {
		if _, open, got := w.others(test.from*ms, test.to*ms); got != test.want || open != test.open {
			t.Errorf("from %d to %d ms: timeslices of %d us and, of the same level, %d us, want %d and %d", test.from, test.to, got, open, test.want, test.open)
		}
	}
	grew, gap := w.between(171*ms, 181*ms)
	if want := map[string]uint64{"holds": 1, "holds_expired": 1}; !maps.Equal(grew, want) || gap > 1000 {
		t.Errorf("counted %v, want %v; gap of %g us", grew, want, gap)
	}
	if _, gap := w.between(161*ms, 162*ms); gap < 9000 {
		t.Errorf("a gap of %g us, want 10 ms", gap)
	}
	if grew, _ := (&watch{}).between(1, 2); grew != nil {
		t.Errorf("counted without a look: %v", grew)
	}

	all := witnesses{watch: w, prepareUs: 300, visits: []visit{{90 * ms, 101 * ms, "be 1 goes"}, {140 * ms, ^uint64(0), "lc 2 comes"}}}
	r := tracedRequest{arrival: 120 * ms, before: 123 * ms, submitted: 125 * ms, queued: 126 * ms, done: 131 * ms, delayNs: ms, switches: 3, served: true}
	s := all.see(r)
	all.explain(r, &s)
	if s.LatencyUs != 11_000 || s.WaitedUs != 3000 || s.LateUs != 1700 || s.SubmitUs != 1000 || s.DelayUs != 1000 || s.Switches != 3 ||
		s.Guests != "be 1 goes" || s.OtherLCUs < 9700 {
		t.Errorf("%+v", s)
	}
	if s := all.see(tracedRequest{arrival: 130 * ms, done: 131 * ms}); s.Guests != "" {
		t.Errorf("%+v, long after one left and before the other came", s)
	}
	if s := all.see(tracedRequest{arrival: 150 * ms, done: 151 * ms}); s.Guests != "lc 2 comes" {
		t.Errorf("%+v, while one is coming", s)
	}
}

// synthetic is a case under a system with a round of requests every 10 ms that took so many microseconds.
func synthetic(name, system string, micros ...float64) *stallMeasurement {
	c := stallCases[slices.IndexFunc(stallCases, func(c stallCase) bool { return c.name == name })]
	var arrivals []time.Duration
	var submitted, done []uint64
	for i, us := range micros {
		arrivals = append(arrivals, result.WarmUp+time.Duration(i)*10*time.Millisecond)
		submitted, done = append(submitted, 1000), append(done, uint64(us*1000))
	}
	t := result.TaskRun{Role: "lc"}
	t.Set(arrivals, submitted, done)
	m := &stallMeasurement{stallCase: c, system: workload.System{Name: system}, rateHz: 100}
	m.add(result.RunResult{Seconds: 10, Begin: time.Second, Tasks: []result.TaskRun{t}}, c.target.limit(nil), witnesses{watch: &watch{}})
	return m
}

func TestStallTargets(t *testing.T) {
	usual := slices.Repeat([]float64{1000}, 999)
	for _, test := range []struct {
		name           string
		alone, slowest float64
		pass           bool
		limit          float64
		above          int
	}{
		{"load-50", 5000, 6900, true, 7000, 0}, {"load-50", 5000, 7100, false, 7000, 1},
		{"gemms", 1500, 1900, true, 2000, 0}, {"gemms", 1500, 2500, false, 2000, 1},
	} {
		alone := synthetic(test.name, result.LCAlone, append(slices.Clone(usual), test.alone)...).row(nil)
		row := synthetic(test.name, judgedSystem, append(slices.Clone(usual), test.slowest)...).row(alone.LC)
		if alone.Pass != nil || row.Pass == nil || *row.Pass != test.pass || row.Stalls.LimitUs != test.limit || row.Stalls.Above != test.above || row.LC.MaxUs != test.slowest {
			t.Errorf("%+v: %+v, stalls %+v", test, row, row.Stalls)
		}
		if got := row.Stalls.Causes[result.CauseUnknown]; got != test.above {
			t.Errorf("%+v: %d of unknown cause, want all", test, got)
		}
	}
	if row := synthetic("load-50", judgedSystem, usual...).row(nil); row.Pass != nil || row.Stalls.LimitUs != 3000 {
		t.Errorf("without its comparison: %+v, %+v", row, row.Stalls)
	}
}

// A result lists the slowest stalls, and those without a cause wherever they come. The document's table counts all.
func TestUnknownStallsAreListed(t *testing.T) {
	micros := slices.Repeat([]float64{1000}, 900)
	for i := range 2 * result.StallsListed {
		micros = append(micros, 20_000-float64(i))
	}
	m := synthetic("gemms", judgedSystem, micros...)
	if len(m.stalls) != 2*result.StallsListed {
		t.Fatalf("%d stalls are kept", len(m.stalls))
	}
	for i := range m.stalls {
		m.stalls[i].SubmitUs = m.stalls[i].LatencyUs
	}
	unknown := []int{5, result.StallsListed, 2*result.StallsListed - 1}
	for _, i := range unknown {
		m.stalls[i].SubmitUs = 0
	}
	row := m.row(nil)
	if s := row.Stalls; len(s.List) != 2*result.StallsListed || s.Causes[result.CauseUnknown] != len(unknown) || s.Above != 2*result.StallsListed {
		t.Fatalf("%d of %d, causes %v", len(s.List), s.Above, s.Causes)
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "test-stalls.json")
	r := &result.Report{Head: result.Head{Schema: 1, Benchmark: result.StallsSuite, GPU: "NVIDIA Test"}, Cases: []result.Row{row}}
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	written, err := result.ReadReport(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(row.Stalls.List) != 2*result.StallsListed {
		t.Errorf("%d are left of the measured ones", len(row.Stalls.List))
	}
	s := written.Cases[0].Stalls
	if len(s.List) != result.StallsListed+2 {
		t.Errorf("%d are listed", len(s.List))
	}
	for _, i := range unknown {
		if !slices.ContainsFunc(s.List, func(l result.Stall) bool {
			return l.Cause == result.CauseUnknown && l.LatencyUs == m.stalls[i].LatencyUs
		}) {
			t.Errorf("stall %d, of unknown cause, is not listed", i)
		}
	}
	document, err := report.FillTables([]byte("<!-- results test-stalls.json -->\n<!-- end of results -->"), folder)
	if want := "| gemms | gpreempt-hints | 920 | 1000 us | 20.0 ms | 20.0 ms | 20.0 ms | 20 above 2000 us: submission 17, unknown 3 | **missed**: max <= 10 ms"; err != nil || !strings.Contains(string(document), want) {
		t.Errorf("the table lacks %q: %v\n%s", want, err, document)
	}
}

// A case without PyTorch is measured under its systems, and guests end with it.
func TestStallsOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := simulatedOptions(t, result.StallsSuite, &progress, "spin-beside-guests")
	options.Seconds = .6
	report, err := suiteOfCases(t, result.StallsSuite).Measure(t.Context(), options)
	if err != nil || len(report.Cases) != 2 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for _, row := range report.Cases {
		if row.LC == nil || row.LC.N == 0 || row.LC.P999Us < row.LC.P99Us || row.Stalls.Seconds != .6 || row.Stalls.RateHz != 100 {
			t.Errorf("%+v, %+v\n%s", row, row.Stalls, &progress)
		}
		listed := 0
		for _, count := range row.Stalls.Causes {
			listed += count
		}
		if listed != row.Stalls.Above || len(row.Stalls.List) != listed {
			t.Errorf("%d requests above the limit, causes of %d, %d listed", row.Stalls.Above, listed, len(row.Stalls.List))
		}
	}
	var out bytes.Buffer
	if err := report.Print(&out); err != nil || !strings.Contains(out.String(), "SIMULATED") || !strings.Contains(out.String(), "gpreempt-hints") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// The program with PyTorch tells what the one in C tells, at the rate of its load.
func TestStallsOfATorchProgram(t *testing.T) {
	t.Parallel()
	python, torch := standInTorch(t)
	var progress bytes.Buffer
	options := simulatedOptions(t, result.StallsSuite, &progress, "load-50")
	options.tests.environment = append(options.tests.environment, torch...)
	options.Python, options.Requests = python, 60
	report, err := suiteOfCases(t, result.StallsSuite).Measure(t.Context(), options)
	if err != nil || len(report.Cases) != 2 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for _, row := range report.Cases {
		if row.LC == nil || row.LC.N < 60 || row.Stalls.RateHz <= 0 || row.Stalls.RateHz != report.Cases[0].Stalls.RateHz {
			t.Errorf("%+v, %+v\n%s", row, row.Stalls, &progress)
		}
	}
	m := &stallMeasurement{e: newEvaluation(prepared(t, options)), stallCase: stallCases[0], system: workload.System{Name: result.LCAlone}, rateHz: 50}
	defer m.e.close()
	succeed(t, func() { m.measure(t.Context()) })
	served := m.rounds[0].Of("lc")[0]
	if n := len(served.Times.Done); n == 0 || len(served.Trace.QueuedNs) != n {
		t.Fatalf("%d requests, %d traced", n, len(served.Trace.QueuedNs))
	}
	for i, queued := range served.Trace.QueuedNs {
		if at := time.Duration(queued); at < served.Times.Submitted[i] || at > served.Times.Done[i]+100*time.Nanosecond {
			t.Fatalf("request %d: submitted after %s, queued after %s, done after %s", i, served.Times.Submitted[i], at, served.Times.Done[i])
		}
	}
}
