package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// The stalls suite: many requests, to find the few that take much longer than the others, and what each of those waited
// for. A case under a system is measured in rounds; what they gave lies in a file of the folder of partial results, where
// another call goes on.

// stallCase is one LC program beside others.
type stallCase struct {
	name, about string
	lc          workload.Task
	prepareUs   int
	be          []workload.Task // beside it all the time
	guests      []guest         // that come and go
	systems     []string        // where none are asked for
	explicit    bool            // the LC program announces its requests, where there are hints
	requests    int             // how many are wanted; 0: as many as come in the time
	seconds     float64
	target      stallTarget
}

// guest is a program that comes and goes.
type guest struct {
	role string
	task workload.Task
}

// stallTarget judges the library with hints, some with the LC program alone.
type stallTarget struct {
	text  string
	alone bool
	met   func(lc, alone *result.Latency, s *result.Stalls) bool
}

const judgedSystem = "gpreempt-hints"

// limit is that of a request that is no stall, in microseconds: 0 where that is not known yet. Alone may be nil.
func (t stallTarget) limit(alone *result.Latency) float64 {
	switch {
	case !t.alone:
		return stallUs
	case alone == nil:
		return 0
	}
	return alone.MaxUs + stallUs
}

const (
	roundSeconds = 30.0
	calibrated   = 700 * time.Millisecond // a run that tells how long a request takes
	tries        = 2                      // of a round that fails
	stallUs      = 2000.0                 // above what is usual
	longestUs    = 10_000.0
	stallsP999   = 1.15
	stallsKept   = 4000 // in a partial result
	gemmsMeanUs  = 2150.0
)

var besideAlone = stallTarget{
	text:  "lc p99.9 <= 1.15 x alone, max <= alone max + 2 ms",
	alone: true,
	met: func(lc, alone *result.Latency, _ *result.Stalls) bool {
		return lc.P999Us <= stallsP999*alone.P999Us && lc.MaxUs <= alone.MaxUs+stallUs
	},
}

var allExplained = stallTarget{
	text: "max <= 10 ms, the cause of everything above 2 ms known",
	met: func(lc, _ *result.Latency, s *result.Stalls) bool {
		return lc.MaxUs <= longestUs && s.Causes[result.CauseUnknown] == 0
	},
}

// The systems of a case with guests.
var besideGuests = []string{result.LCAlone, judgedSystem}

func gemmsCase(name, about string) stallCase {
	c := stallCase{name: name, about: about, seconds: 600, target: allExplained, systems: besideGuests,
		lc: workload.Task{Program: "gemms", RateHz: 1e6 / gemmsMeanUs, Arrival: "uniform"}}
	c.guests = []guest{{"lc", c.lc}, {"lc", c.lc}}
	for _, task := range workload.Continuous("spin-long", "spin-long", "spin-many") {
		c.guests = append(c.guests, guest{"be", task})
	}
	return c
}

// apart keeps those that come and go off the processors of the program that is measured.
func (c stallCase) apart() stallCase {
	c.lc.Place = workload.OwnPlace
	for i := range c.guests {
		c.guests[i].task.Place = workload.TheRest
	}
	return c
}

// testedCase needs no PyTorch. Tests have it, and who names it.
const testedCase = "spin"

var stallCases = func() []stallCase {
	const others = "beside 3 BE and 2 other LC processes that come and go"
	all := []stallCase{
		{name: "load-50", about: "VGG-19 at 50 % load, Poisson, beside ResNet-152 without pause",
			lc: workload.Task{Program: "vgg19", Load: .5, Arrival: "poisson"}, prepareUs: workload.PrepareUs, be: workload.Continuous("resnet152"),
			explicit: true, requests: 50_000, target: besideAlone, systems: []string{result.LCAlone, "gpreempt", judgedSystem}},
		gemmsCase("gemms", "five half-precision products 0.3 to 4 ms after the last ones, "+others),
		gemmsCase("gemms-apart", "gemms with two processors that no other program gets").apart(),
	}
	spin := stallCase{name: testedCase, about: "ten short kernels, 100 times a second, beside long ones, all the time and at times",
		lc: workload.Task{Program: "spin-short", RateHz: 100, Arrival: "poisson"}, prepareUs: workload.PrepareUs, be: workload.Continuous("spin-long"),
		explicit: true, seconds: 60, target: allExplained, systems: besideGuests}
	spin.guests = []guest{{"be", workload.Task{Program: "spin-long"}}, {"lc", spin.lc}}
	return append(all, spin)
}()

// stalledUnder is a case under a system.
type stalledUnder struct {
	stallCase
	system workload.System
}

// pickStalls picks cases and the systems that each is measured under.
func pickStalls(options Options) (picked []stalledUnder, err error) {
	cases, err := workload.Pick(result.StallsSuite, "case", stallCases, func(c stallCase) string { return c.name }, options.Only)
	if err != nil {
		return nil, err
	}
	for _, c := range cases {
		if c.name == testedCase && len(options.Only) == 0 {
			continue
		}
		names := options.Systems
		if len(names) == 0 {
			names = c.systems
		}
		systems, err := stallSystems(names)
		if err != nil {
			return nil, err
		}
		for _, system := range systems {
			picked = append(picked, stalledUnder{c, system})
		}
	}
	return picked, nil
}

// stallSystems are those of names; alone is one without the other programs.
func stallSystems(names []string) (systems []workload.System, err error) {
	for _, name := range names {
		if name == result.LCAlone {
			systems = append(systems, workload.System{Name: result.LCAlone})
			continue
		}
		one, err := workload.Systems([]string{name})
		if err != nil {
			return nil, err
		}
		if one[0].MPS {
			return nil, fmt.Errorf("system %s: suite %q measures no systems with MPS", name, result.StallsSuite)
		}
		systems = append(systems, one[0])
	}
	return systems, nil
}

// length is how long a case is measured under a system, or how many requests are wanted; the other one is 0.
func (c stallCase) length(system workload.System, options Options) (seconds float64, requests int) {
	seconds, requests = c.seconds, c.requests
	if len(c.guests) > 0 && system.Name == result.LCAlone {
		seconds /= 10 // nothing comes and goes
	}
	if options.Seconds > 0 {
		seconds, requests = options.Seconds, 0
	}
	if options.Requests > 0 {
		seconds, requests = 0, options.Requests
	}
	return seconds, requests
}

// planStalls says what measureStalls would measure and about how long that takes.
func planStalls(out io.Writer, options Options) error {
	picked, err := pickStalls(options)
	if err != nil {
		return err
	}
	t := result.NewTable(out, "case", "system", "seconds", "what", "target")
	total := 0.0
	for _, c := range picked {
		seconds := c.cost(c.system, options)
		total += seconds
		t.Row(c.name, c.system.Name, fmt.Sprintf("%.0f", seconds), c.about, c.target.text)
	}
	if err := t.End(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAbout %s in all.\n", clock(total))
	return nil
}

// cost is about how many seconds the case takes under a system.
func (c stallCase) cost(system workload.System, options Options) float64 {
	seconds, requests := c.length(system, options)
	if requests > 0 { // of a rate that is not known yet, that of an H200
		seconds = float64(requests) / cmp.Or(c.lc.RateHz, 450)
	}
	return seconds + c.startSeconds()
}

// startSeconds is about how long the programs take to be ready.
func (c stallCase) startSeconds() float64 {
	if _, own := workload.OwnPrograms[c.lc.Program]; own {
		return 3
	}
	return 15
}

// stallPart is the partial result of a case under a system.
type stallPart struct {
	result.Head
	Case   string             `json:"case"`
	System string             `json:"system"`
	RateHz float64            `json:"rate_hz"`
	Rounds []result.RunResult `json:"rounds"`
	Stalls []result.Stall     `json:"stalls"` // slowest first
	// Of all requests: how many saw what requests that stall are looked at for.
	Seen map[string]int `json:"seen"`
	// The last call asked for one of these; the other one is 0.
	WantedRequests int     `json:"wanted_requests,omitempty"`
	WantedSeconds  float64 `json:"wanted_seconds,omitempty"`

	CameMs []float64 `json:"came_ms,omitempty"` // how long each guest took to come, of those that began to in a round
	Note   string    `json:"note,omitempty"`
}

func (p *stallPart) lcRun(round int) *result.TaskRun {
	if all := p.Rounds[round].Of("lc"); len(all) > 0 {
		return all[0]
	}
	return nil
}

// latencies are sorted.
func (p *stallPart) latencies() (all []float64) {
	for i := range p.Rounds {
		if t := p.lcRun(i); t != nil {
			fromArrival, _ := t.Latencies(p.Rounds[i].Length())
			all = append(all, fromArrival...)
		}
	}
	slices.Sort(all)
	return all
}

func (p *stallPart) seconds() (total float64) {
	for _, round := range p.Rounds {
		total += round.Seconds
	}
	return total
}

// lacks says what was asked for and is not measured; "": it is whole.
func (p *stallPart) lacks() string {
	if n := len(p.latencies()); n < p.WantedRequests {
		return fmt.Sprintf("not whole: %d of %d requests", n, p.WantedRequests)
	}
	if p.WantedSeconds-p.seconds() > result.WarmUp.Seconds() {
		return fmt.Sprintf("not whole: %.1f of %.1f s", p.seconds(), p.WantedSeconds)
	}
	return ""
}

func (p *stallPart) write(path string) error { return result.WriteJSON(path, p, "") }

func stallPartPath(folder, name, system string) string {
	return filepath.Join(folder, result.StallsSuite+"-"+name+"-"+system+".json")
}

// readStallPart gives nothing where there is no such file.
func readStallPart(path string) (*stallPart, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	p := &stallPart{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("read results %s: %w", path, err)
	}
	if p.Schema != 1 || p.Benchmark != result.StallsSuite {
		return nil, fmt.Errorf("read results %s: schema %d of %q, not 1 of %q", path, p.Schema, p.Benchmark, result.StallsSuite)
	}
	for i := range p.Rounds {
		t := p.lcRun(i)
		if t == nil {
			return nil, fmt.Errorf("read results %s: round %d has no LC program", path, i+1)
		}
		if err := t.CheckTimes(); err != nil {
			return nil, fmt.Errorf("read results %s: round %d: %w", path, i+1, err)
		}
	}
	return p, nil
}

// measureStalls measures the cases under the systems, going on from what the folder has, and returns the results of all that it has by
// then. An error beside them says what went wrong.
func measureStalls(ctx context.Context, options Options) (*result.Report, error) {
	picked, err := pickStalls(options)
	if err != nil {
		return nil, err
	}
	e := newEvaluation(options)
	total := 0.0
	for _, c := range picked {
		total += c.cost(c.system, options)
		if c.system.Name != result.LCAlone && !slices.ContainsFunc(e.systems, func(s workload.System) bool { return s.Name == c.system.Name }) {
			e.systems = append(e.systems, c.system)
		}
	}
	defer e.close()
	e.session.log("%s: %d measurements, about %s with what is measured already; partial results are in %s", result.StallsSuite, len(picked), clock(total), options.Folder)
	if err := e.prepare(ctx); err != nil {
		return nil, err
	}
	var failed []error
	var left []string // for which there is no time
	began := time.Now()
	timeFor := func(seconds float64) bool {
		limit := options.Minutes * 60
		return limit == 0 || len(left) == 0 && time.Since(began).Seconds()+seconds <= limit
	}
	for _, c := range picked {
		name := c.name + " under " + c.system.Name
		complete, err := e.measureStallCase(ctx, c.stallCase, c.system, timeFor)
		e.keepOnly(nil)
		if ctx.Err() != nil {
			failed = append(failed, ctx.Err())
			break
		}
		switch {
		case err != nil:
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
			e.session.log("%v", failed[len(failed)-1])
		case !complete:
			if left = append(left, name); len(left) == 1 {
				e.session.log("another call with the same --out goes on with %s", name)
			}
		}
	}
	report, err := readStalls(options.Folder)
	if report != nil {
		report.Left = left
	}
	return report, errors.Join(append(failed, err)...)
}

// stallMeasurement is a case under a system while it is measured.
type stallMeasurement struct {
	stallCase
	e        *evaluation
	system   workload.System
	measured workload.System // the same, for the LC program that is looked at
	part     *stallPart
	members  []member // that one and what is beside it all the time
	hintsLog string   // of that one; "": none
	visits   visits
}

// measureStallCase goes on with a case under a system. It is not complete where the time did not suffice.
func (e *evaluation) measureStallCase(ctx context.Context, c stallCase, system workload.System, timeFor func(seconds float64) bool) (complete bool, err error) {
	path := stallPartPath(e.options.Folder, c.name, system.Name)
	m := &stallMeasurement{stallCase: c, e: e, system: system}
	if m.part, err = readStallPart(path); err != nil {
		return false, err
	}
	head := newHead(e.session.info, e.options, "time-sliced")
	if m.part == nil {
		m.part = &stallPart{Head: head, Case: c.name, System: system.Name, Seen: map[string]int{}}
	} else if err := head.CheckGoOn(path, m.part.Head); err != nil {
		return false, err
	}
	m.part.Note = ""
	seconds, requests := c.length(system, e.options)
	if p := m.part; p.WantedSeconds != seconds || p.WantedRequests != requests {
		p.WantedSeconds, p.WantedRequests = seconds, requests
		if len(p.Rounds) > 0 {
			if err := p.write(path); err != nil {
				return false, err
			}
		}
	}
	left := func() float64 { // in seconds
		if requests == 0 {
			return seconds - m.part.seconds()
		}
		rate := cmp.Or(m.part.RateHz, c.lc.RateHz, 100)
		return float64(requests-len(m.part.latencies()))/rate + result.WarmUp.Seconds()
	}
	done := func() bool { return m.part.lacks() == "" }
	if done() {
		e.session.log("%s under %s: measured already, in %s", c.name, system.Name, e.options.Folder)
		return true, nil
	}
	if !timeFor(c.startSeconds() + min(left(), roundSeconds)) {
		return false, nil
	}
	e.session.log("%-14s %-16s starts, takes about %s", c.name, system.Name, clock(c.startSeconds()+left()))
	stop, err := m.begin(ctx)
	defer stop()
	for failures := 0; err == nil && !done(); {
		length := max(min(left(), roundSeconds), 2*result.WarmUp.Seconds())
		if !timeFor(length) {
			return false, nil
		}
		if err = m.round(ctx, time.Duration(length*float64(time.Second))); err == nil {
			failures = 0
			err = m.part.write(path)
			e.session.log("%-14s %-16s %s; about %s left", c.name, system.Name, m.part.Rounds[len(m.part.Rounds)-1].Brief(), clock(max(left(), 0)))
			continue
		}
		if failures++; failures < tries && ctx.Err() == nil {
			e.session.log("%s under %s: %v", c.name, system.Name, err)
			e.forget(m.members, false)
			err = m.launch(ctx)
		}
	}
	if err != nil && ctx.Err() == nil {
		m.part.Note = err.Error()
		err = errors.Join(err, m.part.write(path))
	}
	return err == nil, err
}

// begin starts the programs, until stop.
func (m *stallMeasurement) begin(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	if err := m.configure(); err != nil {
		return stop, err
	}
	w := m.workload()
	if m.part.RateHz > 0 {
		w.LC[0].RateHz, w.LC[0].Load = m.part.RateHz, 0
	}
	m.members = members(w, true, m.system.Name != result.LCAlone)
	if err := m.launch(ctx); err != nil {
		return stop, err
	}
	if m.part.RateHz == 0 {
		alone, err := readStallPart(stallPartPath(m.e.options.Folder, m.name, result.LCAlone))
		if err != nil {
			return stop, err
		}
		if alone != nil && alone.RateHz > 0 {
			w.LC[0].RateHz = alone.RateHz // the same load
		} else if err := m.calibrate(ctx, &w); err != nil {
			return stop, err
		}
		m.part.RateHz = w.LC[0].RateHz
	}
	m.members[0].RateHz, m.members[0].Arrival = m.part.RateHz, m.lc.Arrival
	if m.system.Name == result.LCAlone {
		return stop, nil
	}
	return m.receiveGuests(ctx), nil
}

func (m *stallMeasurement) workload() workload.Workload {
	return workload.Workload{Name: m.name, LC: []workload.Task{m.lc}, BE: m.be, PrepareUs: m.prepareUs}
}

// configure says what the LC program that is looked at has of its own: it tells more of its requests, and the library
// writes a line for each of them to a file.
func (m *stallMeasurement) configure() error {
	if !m.explicit && m.system.Hints == "given" { // hints are on as they are by default
		m.system.Hints = ""
	}
	m.measured = m.system
	m.measured.LC = map[string]string{traceVariable: "1"}
	maps.Copy(m.measured.LC, m.system.LC)
	config := m.e.configs[m.system.Name]
	if config == "" || m.system.Hints == "off" {
		return nil
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	m.hintsLog = filepath.Join(m.e.session.folder, "requests")
	own := filepath.Join(m.e.session.folder, m.system.Name+"-measured.toml")
	text = append(fmt.Appendf(nil, "hints.log = %q\n", m.hintsLog), text...) // before the first table
	if err := os.WriteFile(own, text, 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	m.measured.LC["GPREEMPT_CONFIG"] = own
	return nil
}

// calibrate sets the rate that is given as a load.
func (m *stallMeasurement) calibrate(ctx context.Context, w *workload.Workload) error {
	if w.LC[0].Load == 0 {
		return nil
	}
	m.members[0].RateHz, m.members[0].Arrival = 20, ""
	run, err := m.e.run(ctx, workload.System{}, *w, 0, calibrated, m.members[:1])
	if err != nil {
		return err
	}
	latencies, _ := run.Tasks[0].Latencies(calibrated)
	slices.Sort(latencies)
	w.LC[0].RateHz = result.Round(w.LC[0].Load*1e6/result.Quantile(latencies, .5), 1)
	return nil
}

// launch starts the members that do not run.
func (m *stallMeasurement) launch(ctx context.Context) error {
	for i := range m.members {
		system := m.system
		if m.members[i].role == "lc" {
			system = m.measured
		}
		if err := m.e.start(ctx, system, m.members[i:i+1]); err != nil {
			return err
		}
	}
	return ready(ctx, m.members)
}

// round measures once more.
func (m *stallMeasurement) round(ctx context.Context, length time.Duration) error {
	if err := m.visits.failed(); err != nil {
		return err
	}
	if m.hintsLog != "" {
		if err := os.Truncate(m.hintsLog, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("empty the log of requests: %w", err)
		}
	}
	base := filepath.Join(m.e.session.folder, "segment-"+m.system.Name)
	watch := startWatch(segment.Directory(base, os.Getuid()), m.members[0].program.pid())
	run, err := m.e.run(ctx, m.measured, m.workload(), len(m.part.Rounds)+1, length, m.members)
	watch.stop()
	if err != nil {
		return err
	}
	if same := run.Tasks[0].Identical; same != nil && !*same { // the LC program, which comes first
		return fmt.Errorf("%s: its results differ from those it had at first", m.members[0].program.name)
	}
	requests, err := readRequests(m.hintsLog)
	if err != nil {
		return err
	}
	m.part.add(run, m.target.limit(nil), witnesses{watch: watch, visits: m.visits.since(uint64(run.Begin)), hints: requests, prepareUs: m.prepareUs})
	return nil
}

// add takes a round's requests. Of those that took much longer than usual, or longer than a limit if it is not 0, it keeps what was seen.
func (p *stallPart) add(run result.RunResult, limitUs float64, w witnesses) {
	before := p.seconds()
	p.Rounds = append(p.Rounds, run)
	t := p.lcRun(len(p.Rounds) - 1)
	p.CameMs = append(p.CameMs, w.came(uint64(run.Begin), uint64(run.Begin+run.Length()))...)
	latencies, _ := t.Latencies(run.Length())
	slices.Sort(latencies)
	usual := result.Quantile(latencies, .5)
	limitUs = min(usual+stallUs, cmp.Or(limitUs, math.Inf(1)))
	for i, arrival := range t.Times.Arrival {
		if arrival < result.WarmUp {
			continue
		}
		r := requestOf(run, t, i)
		seen := w.see(r)
		p.Seen["requests"]++
		for _, what := range seen.Kinds() {
			p.Seen[what]++
		}
		if seen.LatencyUs > limitUs {
			w.explain(r, &seen)
			seen.AtS = result.Round(before+arrival.Seconds(), 4)
			seen.UsualUs = result.Round(usual, 1)
			p.Stalls = append(p.Stalls, seen)
		}
	}
	slices.SortStableFunc(p.Stalls, func(a, b result.Stall) int { return cmp.Compare(b.LatencyUs, a.LatencyUs) })
	p.Stalls = p.Stalls[:min(len(p.Stalls), stallsKept)]
}

// latency sums up what was measured so far; nil if that is nothing.
func (p *stallPart) latency() *result.Latency {
	all := p.latencies()
	if len(all) == 0 {
		return nil
	}
	l := result.LatencyOfSorted(all)
	l.AddP999(all)
	return l
}
