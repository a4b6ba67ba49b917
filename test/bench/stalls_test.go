package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
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

	all := witnesses{watch: w, prepareUs: 300, visits: []visit{{90 * ms, 101 * ms, "be 1 goes"}, {140 * ms, ^uint64(0), "lc 2 comes"}},
		hints: []result.Request{{AtNs: 99 * ms, Ready: true}, {AtNs: 121 * ms, Dropped: "nobody"}, {AtNs: 190 * ms, Ready: true}}}
	r := tracedRequest{arrival: 120 * ms, before: 123 * ms, submitted: 125 * ms, queued: 126 * ms, done: 131 * ms, delayNs: ms, switches: 3, served: true}
	s := all.see(r)
	all.explain(r, &s)
	if s.LatencyUs != 11_000 || s.WaitedUs != 3000 || s.LateUs != 1700 || s.SubmitUs != 1000 || s.DelayUs != 1000 || s.Switches != 3 ||
		s.Guests != "be 1 goes" || s.Hint != "hint: nobody" || s.OtherLCUs < 9700 {
		t.Errorf("%+v", s)
	}
	if s := all.see(tracedRequest{arrival: 130 * ms, done: 131 * ms}); s.Guests != "" {
		t.Errorf("%+v, long after one left and before the other came", s)
	}
	if s := all.see(tracedRequest{arrival: 150 * ms, done: 151 * ms}); s.Guests != "lc 2 comes" {
		t.Errorf("%+v, while one is coming", s)
	}
}

// syntheticPart has a round of requests every 10 ms that took so many microseconds.
func syntheticPart(system string, limitUs float64, micros ...float64) *stallPart {
	var arrivals []time.Duration
	var submitted, done []uint64
	for i, us := range micros {
		arrivals = append(arrivals, result.WarmUp+time.Duration(i)*10*time.Millisecond)
		submitted, done = append(submitted, 1000), append(done, uint64(us*1000))
	}
	t := result.TaskRun{Role: "lc", Offered: len(micros)}
	t.Set(arrivals, submitted, done)
	p := &stallPart{Head: result.Head{Schema: 1, Benchmark: result.StallsSuite, GPU: "NVIDIA Test"}, Case: "load-50", System: system, RateHz: 100, Seen: map[string]int{}}
	p.add(result.RunResult{Seconds: 10, Begin: time.Second, Tasks: []result.TaskRun{t}}, limitUs, witnesses{watch: &watch{}})
	return p
}

func TestStallTargets(t *testing.T) {
	usual := slices.Repeat([]float64{1000}, 999)
	limit := 0.0
	part := func(system string, slowest float64) *stallPart {
		return syntheticPart(system, limit, append(slices.Clone(usual), slowest)...)
	}
	find := func(name string) stallCase {
		return stallCases[slices.IndexFunc(stallCases, func(c stallCase) bool { return c.name == name })]
	}
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
		limit = find(test.name).target.limit(nil)
		rows := find(test.name).rows([]*stallPart{part("gpreempt-hints", test.slowest), part(result.LCAlone, test.alone)})
		if len(rows) != 2 || rows[0].System != result.LCAlone || rows[0].Pass != nil {
			t.Fatalf("%+v", rows)
		}
		row := rows[1]
		if row.Pass == nil || *row.Pass != test.pass || row.Stalls.LimitUs != test.limit || row.Stalls.Above != test.above || row.LC.MaxUs != test.slowest {
			t.Errorf("%+v: %+v, stalls %+v", test, row, row.Stalls)
		}
		if got := row.Stalls.Causes[result.CauseUnknown]; got != test.above {
			t.Errorf("%+v: %d of unknown cause, want all", test, got)
		}
	}
	// A case that could not be measured is no result, nor is one that lacks its comparison.
	limit = 0
	failed := part("gpreempt-hints", 1500)
	failed.Note = "it hung"
	if rows := find("load-50").rows([]*stallPart{failed}); !rows[0].Failed() {
		t.Errorf("%+v", rows[0])
	}
	// Nor is a part of what was asked for, but where it misses the target already.
	short := func(system string, slowest float64) *stallPart {
		p := part(system, slowest)
		p.WantedRequests = 1001
		return p
	}
	for _, test := range []struct {
		alone, hints *stallPart
		undecided    string
		missed       bool
	}{
		{part(result.LCAlone, 1500), short("gpreempt-hints", 1500), "not whole: 1000 of 1001 requests", false},
		{short(result.LCAlone, 1500), part("gpreempt-hints", 1500), "alone is not whole: 1000 of 1001 requests", false},
		{part(result.LCAlone, 1500), short("gpreempt-hints", 9000), "", true},
	} {
		rows := find("load-50").rows([]*stallPart{test.alone, test.hints})
		row := rows[1]
		if row.Undecided != test.undecided || row.Pass == nil == test.missed || row.Target == "" || row.Failed() || rows[0].Undecided != test.alone.lacks() {
			t.Errorf("%+v, want %q, missed %v", row, test.undecided, test.missed)
		}
	}
	if p := part("gpreempt-hints", 1500); p.lacks() != "" {
		t.Errorf("%q is lacking of what nobody asked for", p.lacks())
	}
	if rows := find("load-50").rows([]*stallPart{part("gpreempt-hints", 1500)}); rows[0].Pass != nil || rows[0].Stalls.LimitUs != 3000 {
		t.Errorf("%+v, %+v", rows[0], rows[0].Stalls)
	}
}

// A result lists the slowest stalls, and those without a cause wherever they come.
func TestUnknownStallsAreListed(t *testing.T) {
	micros := slices.Repeat([]float64{1000}, 900)
	for i := range 2 * result.StallsListed {
		micros = append(micros, 20_000-float64(i))
	}
	p := syntheticPart("gpreempt-hints", 2000, micros...)
	if len(p.Stalls) != 2*result.StallsListed {
		t.Fatalf("%d stalls are kept", len(p.Stalls))
	}
	for i := range p.Stalls {
		p.Stalls[i].SubmitUs = p.Stalls[i].LatencyUs
	}
	unknown := []int{5, result.StallsListed, 2*result.StallsListed - 1}
	for _, i := range unknown {
		p.Stalls[i].SubmitUs = 0
	}
	s := stallCase{}.sumUp(p, nil, 2000)
	if len(s.List) != 2*result.StallsListed || s.Causes[result.CauseUnknown] != len(unknown) || s.Above != 2*result.StallsListed {
		t.Fatalf("%d of %d, causes %v", len(s.List), s.Above, s.Causes)
	}
	path := filepath.Join(t.TempDir(), "test-stalls.json")
	r := &result.Report{Head: p.Head, Cases: []result.Row{{Case: "load-50", System: "gpreempt-hints", Stalls: s}}}
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var written result.Report
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	var raw result.Report
	if err := result.ReadRaw(path, written.Raw, &raw); err != nil || !reflect.DeepEqual(raw.Cases[0].Stalls, s) || len(r.Cases[0].Stalls.List) != 2*result.StallsListed {
		t.Errorf("the raw form: %v", err)
	}
	s = written.Cases[0].Stalls
	if len(s.List) != result.StallsListed+2 {
		t.Errorf("%d are listed", len(s.List))
	}
	for _, i := range unknown {
		if !slices.ContainsFunc(s.List, func(l result.Stall) bool {
			return l.Cause == result.CauseUnknown && l.LatencyUs == p.Stalls[i].LatencyUs
		}) {
			t.Errorf("stall %d, of unknown cause, is not listed", i)
		}
	}
}

func TestStallsInTheReadme(t *testing.T) {
	const missed, part = "1 above 7000 us: unknown 1 | **missed**: lc p99.9", "0 above 7000 us | **undecided**, not whole: 1000 of 1200 requests: lc p99.9"
	testStallsInTheReadme(t, 0, 9000, "1008 us (1.00) | 9000 us | "+missed)
	testStallsInTheReadme(t, 1200, 5000, "1004 us (1.00) | 5000 us | "+part)
}

func testStallsInTheReadme(t *testing.T, wanted int, slowest float64, says string) {
	t.Helper()
	folder := t.TempDir()
	for system, slowest := range map[string]float64{result.LCAlone: 5000, "gpreempt-hints": slowest} {
		p := syntheticPart(system, 0, append(slices.Repeat([]float64{1000}, 999), slowest)...)
		p.WantedRequests = wanted
		if err := p.write(stallPartPath(folder, "load-50", system)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := readStalls(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(filepath.Join(folder, "test-stalls.json")); err != nil {
		t.Fatal(err)
	}
	document, err := report.FillTables([]byte("<!-- results test-stalls.json -->\n<!-- end of results -->"), folder)
	for _, want := range []string{"| load-50 | alone | 1000 | 1000 us | 1000 us | 1004 us | 5000 us | 0 above 7000 us | ",
		"| load-50 | gpreempt-hints | 1000 | 1000 us | 1000 us | " + says, "\nNVIDIA Test, driver "} {
		if err != nil || !strings.Contains(string(document), want) {
			t.Errorf("the table lacks %q: %v\n%s", want, err, document)
		}
	}
}

func stallOptions(t *testing.T, progress *bytes.Buffer, only string) Options {
	return Options{Suite: result.StallsSuite, Only: []string{only}, Library: builtLibrary(t), Version: "test", Progress: progress,
		Folder: t.TempDir(), Python: "python3", tests: forTests{environment: simulated(t)}}
}

// Results are of all calls with the same folder, and what is complete is not measured again.
func TestStallsOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := stallOptions(t, &progress, "spin")
	options.Seconds = .6
	report, err := measureStalls(context.Background(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if !report.Simulated || len(report.Cases) != 2 {
		t.Fatalf("%+v\n%s", report, &progress)
	}
	before := report.Cases[1]
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
	progress.Reset()
	if _, err := measureStalls(context.Background(), options); err != nil || strings.Count(progress.String(), ": measured already") != 2 {
		t.Errorf("again: %v\n%s", err, &progress)
	}
	progress.Reset()
	options.Seconds, options.Systems = 1.2, []string{"gpreempt-hints"}
	report, err = measureStalls(context.Background(), options)
	if err != nil || len(report.Cases) != 2 || report.Cases[1].LC.N <= before.LC.N || report.Cases[1].Stalls.Seconds != 1.2 {
		t.Errorf("longer: %v, %+v\n%s", err, report, &progress)
	}
	var out bytes.Buffer
	if err := report.Print(&out); err != nil || !strings.Contains(out.String(), "SIMULATED") || !strings.Contains(out.String(), "gpreempt-hints") {
		t.Errorf("%v\n%s", err, &out)
	}
	if left := report.Unmeasured(); len(left) != 0 {
		t.Errorf("%v are left of what is measured", left)
	}
	options.Seconds, options.Minutes, options.Systems = 1.2, .01, []string{"default", "gpreempt", "gpreempt-hints"}
	progress.Reset()
	if report, err = measureStalls(context.Background(), options); err != nil || report.Cases[1].Stalls.Seconds != 1.2 || strings.Count(progress.String(), "another call") != 1 ||
		!slices.Equal(report.Unmeasured(), []string{"spin under default", "spin under gpreempt"}) {
		t.Errorf("no time: %v\n%s", err, &progress)
	}
	// A case that was cut short says so from then on, in its file too.
	options.Seconds, options.Systems = 60, []string{"gpreempt-hints"}
	if _, err := measureStalls(context.Background(), options); err != nil {
		t.Errorf("no time for the rest: %v\n%s", err, &progress)
	}
	if p, err := readStallPart(stallPartPath(options.Folder, "spin", "gpreempt-hints")); err != nil || p.lacks() != "not whole: 1.2 of 60.0 s" {
		t.Errorf("%v, lacks %q", err, p.lacks())
	}
	options.Version, options.Minutes = "another", 0
	if _, err := measureStalls(context.Background(), options); err == nil || !strings.Contains(err.Error(), "another folder") {
		t.Errorf("went on from another build's results: %v", err)
	}
}

// An interruption leaves what there was, and guests end with the case.
func TestStallsInterrupted(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := stallOptions(t, &progress, "spin")
	options.Systems, options.Seconds = []string{"gpreempt"}, .6
	if _, err := measureStalls(context.Background(), options); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	options.Seconds = 60
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	report, err := measureStalls(ctx, options)
	if err == nil || report == nil || report.Cases[0].LC == nil || report.Cases[0].Stalls.Seconds != .6 {
		t.Errorf("%v, %+v", err, report)
	}
}

// The program with PyTorch tells what the one in C tells.
func TestStallsOfATorchProgram(t *testing.T) {
	t.Parallel()
	python, torch := standInTorch(t)
	var progress bytes.Buffer
	options := stallOptions(t, &progress, "load-50")
	options.tests.environment = append(options.tests.environment, torch...)
	options.Python, options.Requests, options.Systems = python, 60, []string{result.LCAlone, "gpreempt-hints"}
	report, err := measureStalls(context.Background(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for _, row := range report.Cases {
		if row.LC == nil || row.LC.N < 60 || row.Stalls.RateHz <= 0 || row.Stalls.RateHz != report.Cases[0].Stalls.RateHz {
			t.Errorf("%+v, %+v\n%s", row, row.Stalls, &progress)
		}
	}
	e := newEvaluation(options)
	defer e.close()
	if err := e.prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	m := &stallMeasurement{e: e, stallCase: stallCases[0], system: workload.System{Name: result.LCAlone}, part: &stallPart{Seen: map[string]int{}, RateHz: 50}}
	stop, err := m.begin(context.Background())
	defer stop()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.round(context.Background(), time.Second); err != nil {
		t.Fatal(err)
	}
	served := m.part.lcRun(0)
	if n := len(served.Times.Done); n == 0 || len(served.Trace.QueuedNs) != n {
		t.Fatalf("%d requests, %d traced", n, len(served.Trace.QueuedNs))
	}
	for i, queued := range served.Trace.QueuedNs {
		if at := time.Duration(queued); at < served.Times.Submitted[i] || at > served.Times.Done[i]+100*time.Nanosecond {
			t.Fatalf("request %d: submitted after %s, queued after %s, done after %s", i, served.Times.Submitted[i], at, served.Times.Done[i])
		}
	}
}

func TestStallCasesArePicked(t *testing.T) {
	var out bytes.Buffer
	if err := planStalls(&out, Options{}); err != nil || !strings.Contains(out.String(), "gemms-apart") || strings.Contains(out.String(), "spin") {
		t.Errorf("%v\n%s", err, &out)
	}
	for options, want := range map[string]string{
		"":        "load-50 alone, load-50 gpreempt, load-50 gpreempt-hints, gemms alone, gemms gpreempt-hints",
		"default": "load-50 default, gemms default",
	} {
		o := Options{Only: []string{"load-50", "gemms"}}
		if options != "" {
			o.Systems = []string{options}
		}
		picked, err := pickStalls(o)
		var names []string
		for _, c := range picked {
			names = append(names, c.name+" "+c.system.Name)
		}
		if got := strings.Join(names, ", "); err != nil || got != want {
			t.Errorf("%q: %v, %s", options, err, got)
		}
	}
	if err := planStalls(&out, Options{Only: []string{"load-51"}}); err == nil || !strings.Contains(err.Error(), `no case "load-51"`) {
		t.Errorf("a case that there is not: %v", err)
	}
	if _, err := stallSystems([]string{"mps"}); err == nil {
		t.Error("a system with MPS is accepted")
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, result.StallsSuite+"-x-y.json"), []byte(`{"schema": 1, "benchmark": "paper"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readStalls(folder); err == nil || !strings.Contains(err.Error(), `not 1 of "stalls"`) {
		t.Errorf("a file of another benchmark: %v", err)
	}
	if _, err := readStalls(t.TempDir()); !errors.Is(err, errNoParts) {
		t.Errorf("a report of nothing: %v", err)
	}
}
