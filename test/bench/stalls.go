package bench

import (
	"cmp"
	"context"
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

// The stalls suite: many requests, to find the few that take much longer than the others, and what each of those waited for. A case is
// measured in rounds under each of its systems.

// stallCase is one LC program beside others.
type stallCase struct {
	name      string
	lc        workload.Task
	prepareUs int
	be        []workload.Task // beside it all the time
	guests    []guest         // that come and go
	systems   []string        // alone, where it is one of them, comes first
	explicit  bool            // the LC program announces its requests, where there are hints
	requests  int             // how many are wanted; 0: as many as come in the time
	seconds   float64
	target    stallTarget
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
	stallUs      = 2000.0                 // above what is usual
	longestUs    = 10_000.0
	stallsP999   = 1.15
	stallsKept   = 4000 // of a system
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

// gemmsCase has five half-precision products 0.3 to 4 ms after the last ones, beside 3 BE and 2 other LC processes that come and go.
func gemmsCase(name string) stallCase {
	c := stallCase{name: name, seconds: 480, target: allExplained, systems: []string{judgedSystem},
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

var stallCases = func() []stallCase {
	all := []stallCase{
		{name: "load-50", lc: workload.Task{Program: "vgg19", Load: .5, Arrival: "poisson"}, prepareUs: workload.PrepareUs, be: workload.Continuous("resnet152"),
			explicit: true, requests: 50_000, target: besideAlone, systems: []string{result.LCAlone, judgedSystem}},
		gemmsCase("gemms"),
		gemmsCase("gemms-apart").apart(),
	}
	spin := stallCase{name: "spin-beside-guests", lc: workload.Task{Program: "spin-short", RateHz: 100, Arrival: "poisson"}, prepareUs: workload.PrepareUs, be: workload.Continuous("spin-long"),
		explicit: true, seconds: 20, target: allExplained, systems: []string{result.LCAlone, judgedSystem}}
	spin.guests = []guest{{"be", workload.Task{Program: "spin-long"}}, {"lc", spin.lc}}
	return append(all, spin)
}()

const stallsRate = 450 // requests a second of load-50 on an H200, for how long it takes

func stallsCases() (cases []Case) {
	for _, c := range stallCases {
		seconds := float64(len(c.systems)) * (15 + c.seconds + float64(c.requests)/stallsRate)
		cases = append(cases, Case{c.name, c.target.text, []string{result.StallsSuite}, seconds, c.measure})
	}
	return cases
}

// measure measures the case under its systems, all at the same rate of requests.
func (c stallCase) measure(ctx context.Context, s *session, _ string) {
	e := newEvaluation(s)
	defer e.close()
	e.systems = must(workload.Systems(c.systems, workload.System{Name: result.LCAlone}))
	e.configure()
	var alone *result.Latency
	rate := c.lc.RateHz
	for _, system := range e.systems {
		m := &stallMeasurement{stallCase: c, e: e, system: system, rateHz: rate}
		during(system.Name, func() { m.measure(ctx) })
		row := m.row(alone)
		s.add(row)
		if rate = m.rateHz; system.Name == result.LCAlone {
			alone = row.LC
		}
		e.keepOnly(nil)
	}
}

// stallMeasurement is a case under a system while it is measured.
type stallMeasurement struct {
	stallCase
	e        *evaluation
	system   workload.System
	measured workload.System // the same, for the LC program that is looked at
	members  []member        // that one and what is beside it all the time
	visits   visits
	rateHz   float64

	rounds []result.RunResult
	stalls []result.Stall // slowest first
	cameMs []float64      // how long each guest took to come, of those that began to in a round
}

func (m *stallMeasurement) measure(ctx context.Context) {
	m.begin(ctx)
	if m.system.Name != result.LCAlone {
		defer m.receiveGuests(ctx)()
	}
	for left := m.left(); left > 0; left = m.left() {
		length := max(min(left, roundSeconds), 2*result.WarmUp.Seconds())
		m.round(ctx, time.Duration(length*float64(time.Second)))
		m.e.session.log("%-14s %-16s %s; about %s left", m.name, m.system.Name, m.rounds[len(m.rounds)-1].Brief(), clock(m.left()))
	}
}

// left is for how many seconds it is to be measured yet.
func (m *stallMeasurement) left() float64 {
	options := m.e.options
	if requests := cmp.Or(options.Requests, m.requests); requests > 0 && options.Seconds == 0 {
		lacks := requests - len(m.latencies())
		if lacks <= 0 {
			return 0
		}
		return float64(lacks)/m.rateHz + result.WarmUp.Seconds()
	}
	left := cmp.Or(options.Seconds, m.stallCase.seconds) - m.seconds()
	if left <= result.WarmUp.Seconds() {
		return 0
	}
	return left
}

// latencies are sorted.
func (m *stallMeasurement) latencies() (all []float64) {
	for _, round := range m.rounds {
		all = append(all, round.Latencies()...)
	}
	slices.Sort(all)
	return all
}

func (m *stallMeasurement) seconds() (total float64) {
	for _, round := range m.rounds {
		total += round.Seconds
	}
	return total
}

// begin starts the programs that are there all the time.
func (m *stallMeasurement) begin(ctx context.Context) {
	m.configure()
	m.members = members(m.workload(), true, m.system.Name != result.LCAlone)
	m.launch(ctx)
	if m.rateHz == 0 {
		m.rateHz = m.calibrate(ctx)
	}
	m.members[0].RateHz, m.members[0].Arrival = m.rateHz, m.lc.Arrival
}

func (m *stallMeasurement) workload() workload.Workload {
	return workload.Workload{Name: m.name, LC: []workload.Task{m.lc}, BE: m.be, PrepareUs: m.prepareUs}
}

// configure has the LC program that is looked at tell more of its requests.
func (m *stallMeasurement) configure() {
	if !m.explicit && m.system.Hints == "given" { // hints are on as they are by default
		m.system.Hints = ""
	}
	m.measured = m.system
	m.measured.LC = map[string]string{traceVariable: "1"}
	maps.Copy(m.measured.LC, m.system.LC)
}

// calibrate is the rate of requests that makes the load.
func (m *stallMeasurement) calibrate(ctx context.Context) (rateHz float64) {
	m.members[0].RateHz, m.members[0].Arrival = 20, ""
	run := m.e.run(ctx, workload.System{}, m.workload(), 0, calibrated, m.members[:1])
	return result.Round(m.lc.Load*1e6/result.Median(run.Latencies()), 1)
}

// launch starts the members that do not run.
func (m *stallMeasurement) launch(ctx context.Context) {
	for i := range m.members {
		system := m.system
		if m.members[i].role == "lc" {
			system = m.measured
		}
		m.e.start(ctx, system, m.members[i:i+1])
	}
	ready(ctx, m.members)
}

// round measures once more.
func (m *stallMeasurement) round(ctx context.Context, length time.Duration) {
	check(m.visits.failed())
	base := filepath.Join(m.e.session.folder, "segment-"+m.system.Name)
	watch := startWatch(segment.Directory(base, os.Getuid()), m.members[0].program.pid())
	var run result.RunResult
	err := caught(func() { run = m.e.run(ctx, m.measured, m.workload(), len(m.rounds)+1, length, m.members) })
	watch.stop()
	check(err)
	if same := run.Tasks[0].Identical; same != nil && !*same { // the LC program, which comes first
		fail("%s: its results differ from those it had at first", m.members[0].program.name)
	}
	m.add(run, m.target.limit(nil), witnesses{watch: watch, visits: m.visits.since(uint64(run.Begin)), prepareUs: m.prepareUs})
}

// add takes a round's requests. Of those that took much longer than usual, or longer than a limit if it is not 0, it keeps what was seen.
func (m *stallMeasurement) add(run result.RunResult, limitUs float64, w witnesses) {
	before := m.seconds()
	m.rounds = append(m.rounds, run)
	t := run.Of("lc")[0]
	m.cameMs = append(m.cameMs, w.came(uint64(run.Begin), uint64(run.Begin+run.Length()))...)
	usual := result.Median(run.Latencies())
	limitUs = min(usual+stallUs, cmp.Or(limitUs, math.Inf(1)))
	for i, arrival := range t.Times.Arrival {
		if arrival < result.WarmUp {
			continue
		}
		r := requestOf(run, t, i)
		seen := w.see(r)
		if seen.LatencyUs > limitUs {
			w.explain(r, &seen)
			seen.AtS = result.Round(before+arrival.Seconds(), 4)
			seen.UsualUs = result.Round(usual, 1)
			m.stalls = append(m.stalls, seen)
		}
	}
	slices.SortStableFunc(m.stalls, func(a, b result.Stall) int { return cmp.Compare(b.LatencyUs, a.LatencyUs) })
	m.stalls = m.stalls[:min(len(m.stalls), stallsKept)]
}

// sumUp are the requests that took longer than a limit. Alone may be nil.
func (m *stallMeasurement) sumUp(alone *result.Latency, limitUs float64) *result.Stalls {
	s := &result.Stalls{LimitUs: result.Round(limitUs, 1), Seconds: result.Round(m.seconds(), 1), RateHz: m.rateHz, Causes: map[string]int{}, List: []result.Stall{}}
	for _, us := range m.latencies() {
		if us > limitUs {
			s.Above++
		}
	}
	for _, stall := range m.stalls {
		if stall.LatencyUs <= limitUs {
			break
		}
		if alone != nil {
			stall.UsualUs = alone.P50Us
		}
		stall.Cause = stall.Explanation(limitUs)
		s.Causes[stall.Cause]++
		s.List = append(s.List, stall)
	}
	if len(m.cameMs) > 0 {
		s.Came, s.CameMs = len(m.cameMs), result.Round(result.Median(m.cameMs), 1)
	}
	return s
}

// row is what was measured. Alone may be nil.
func (m *stallMeasurement) row(alone *result.Latency) result.Row {
	row := result.Row{Case: m.name, System: m.system.Name, LC: result.LatencyOfMany(m.latencies())}
	if row.LC == nil {
		return row.Judged(cmp.Or(m.target.text, measured), false)
	}
	limit := m.target.limit(alone)
	if limit == 0 {
		limit = row.LC.P50Us + stallUs
	}
	row.Stalls = m.sumUp(alone, limit)
	if alone != nil {
		row.LCAlone, row.Ratio = alone, result.RatioOf(row.LC, alone)
	}
	if m.system.Name == judgedSystem && (alone != nil || !m.target.alone) {
		row = row.Judged(m.target.text, m.target.met(row.LC, alone, row.Stalls))
	}
	return row
}
