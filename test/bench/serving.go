package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A model server beside best-effort work: alone, as the driver and MPS share a GPU, and under the library without an objective and with several.
// The model is of Llama's shape with 8 thousand million random weights: times do not depend on what they are.

const (
	servedModel        = "m"
	servedLayers       = 32
	servedTokens       = 4096            // of a request, at most
	servedAtOnce       = 64              // requests
	servingStarts      = 8 * time.Minute // of a server whose kernels are compiled
	servingMemory      = 27e9            // bytes of a server, and of best-effort work
	servingCacheMemory = 6 << 30         // of a server's keys and values
	servingCacheTokens = servingCacheMemory >> 17
	servingSeed        = 7
	servingAlone       = 1.05 // p99 without an objective, of alone
	heldAtLeast        = .99  // of the requests
	aloneSeconds       = 8 * time.Second
)

// way is how a server and what runs beside it share the GPU.
type way string

const (
	wayPlain   way = "plain"   // by the driver
	wayMPS     way = "mps"     // as clients of an MPS server
	wayLibrary way = "library" // under this library
	wayBoth    way = "both"    // under this library, as clients of an MPS server
)

// servingSystem is one of those that are compared.
type servingSystem struct {
	name        string
	alone       bool     // nothing runs beside the server
	environment []string // of best-effort work
	slowdown    float64  // the objective: so many times the p99 of the time per token alone; 0: none
	least       float64  // best-effort work is to have, of alone; 0: no target
}

// servingCase is a server under one load beside one kind of best-effort work, in one way. Its rows have the name of the case that measured it alone.
type servingCase struct {
	name, of string // of: the case that measures the server alone, which may be this one
	engine   engine
	way      way
	load     phase
	beside   string // the kind of be.py
	systems  []servingSystem
}

const (
	besideTraining = "train"
	besideEngine   = "offline"
	engineSeconds  = 40 // that it takes to start, about
)

// besideRivals are further kinds. With an objective under MPS each is to have what other ways under MPS leave it, or lie on a line between two.
var besideRivals = []string{"gemmfp16", "elementwise", besideEngine}

var (
	plainSystems = []servingSystem{{name: "alone", alone: true}, {name: "default"}}
	mpsAlone     = servingSystem{name: result.ServingAloneOfMPS, alone: true}
	mpsSystems   = []servingSystem{{name: mpsSystem}, {name: mpsOrdered, environment: []string{lowerPriority}},
		{name: "mps-50", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}}, {name: "mps-25", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}}}
)

func (w way) isLibrary() bool { return w == wayLibrary || w == wayBoth }

func (w way) isMPS() bool { return w == wayMPS || w == wayBoth }

func objectiveSystem(slowdown, least float64) servingSystem {
	return servingSystem{name: fmt.Sprintf("gpreempt-%gx", slowdown), slowdown: slowdown, least: least}
}

func steadyLoad(perSecond float64) phase {
	count := 300
	if perSecond <= 2 {
		count = 100 // longer runs say little more
	}
	return phase{perSecond, count}
}

// allServing are the cases. Their order lets a server start once where there is little memory.
var allServing = func() []servingCase {
	objectives := map[float64][]servingSystem{
		1:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		2:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		6:  {{name: "gpreempt"}, objectiveSystem(1.2, .30), objectiveSystem(1.5, .45), objectiveSystem(2, .60), objectiveSystem(3, .78)},
		12: {{name: "gpreempt"}, objectiveSystem(1.5, 0), objectiveSystem(2, .55), objectiveSystem(3, 0)},
	}
	both := []servingSystem{{name: result.ServingAloneUnderMPS, alone: true}, {name: result.ServingUnderMPS, least: .20}}
	for _, o := range []struct{ slowdown, least float64 }{{1.2, .55}, {1.5, .65}, {2, .78}, {3, .86}} {
		both = append(both, servingSystem{name: fmt.Sprintf("%s-%gx", result.ServingUnderMPS, o.slowdown), slowdown: o.slowdown, least: o.least})
	}
	var plain, mps, library []servingCase
	for _, perSecond := range []float64{6, 12, 2, 1} {
		of, load := fmt.Sprintf("vllm-%g", perSecond), steadyLoad(perSecond)
		plain = append(plain, servingCase{of, of, vllm, wayPlain, load, besideTraining, plainSystems})
		mps = append(mps, servingCase{of + "-mps", of, vllm, wayMPS, load, besideTraining, append([]servingSystem{mpsAlone}, mpsSystems...)})
		library = append(library, servingCase{of + "-objectives", of, vllm, wayLibrary, load, besideTraining, objectives[perSecond]})
	}
	library = append(library, servingCase{"vllm-6-objectives-mps", "vllm-6", vllm, wayBoth, steadyLoad(6), besideTraining, both})
	for _, kind := range besideRivals {
		of, load := "vllm-6-"+kind, phase{6, 100}
		plain = append(plain, servingCase{of, of, vllm, wayPlain, load, kind, plainSystems[:1]})
		mps = append(mps, servingCase{of + "-mps", of, vllm, wayMPS, load, kind, mpsSystems})
		library = append(library, servingCase{of + "-objectives-mps", of, vllm, wayBoth, load, kind, both[2:]})
	}
	plain = append(plain, servingCase{"sglang-6", "sglang-6", sglang, wayPlain, steadyLoad(6), besideTraining, plainSystems})
	library = append(library, servingCase{"sglang-6-objectives", "sglang-6", sglang, wayLibrary, steadyLoad(6), besideTraining,
		[]servingSystem{{name: "gpreempt"}, objectiveSystem(1.5, 0), objectiveSystem(2, 0)}})
	return slices.Concat(plain, mps, library)
}()

func servingCases() (cases []Case) {
	for _, c := range allServing {
		seconds := 20 + float64(len(c.systems))*(float64(c.load.count)/c.load.perSecond+5)
		for i := range c.systems {
			if c.beside == besideEngine && c.startsAnew(i) {
				seconds += engineSeconds
			}
		}
		cases = append(cases, Case{c.name, "", []string{result.ServingSuite}, seconds, c.measure})
	}
	return cases
}

// reference is a server alone, as the case measured it that others are compared with.
func (s *session) reference(name string) *result.Row {
	for _, row := range s.rowsOf(name) {
		if row.System == result.LCAlone && row.Serving != nil && row.BE != nil {
			return &row
		}
	}
	fail("%s is what this is compared with, and is not measured yet", name)
	return nil
}

// rowsOf are those of a name that this case, and the ones before it, have measured.
func (s *session) rowsOf(name string) (rows []result.Row) {
	rows = slices.Clone(s.report.Cases)
	for _, p := range must(Suite{Name: result.ServingSuite}.readParts(s.options.Folder)) {
		if p.isDone(s.options) {
			rows = append(rows, p.Cases...)
		}
	}
	return slices.DeleteFunc(rows, func(row result.Row) bool { return row.Case != name })
}

// mostOfRivals is what best-effort work would have by the other ways under MPS, of alone, with a p99 of so many times that alone. Between two
// ways, and between one and rest, a part of the time in each would lie on a line.
func (s *session) mostOfRivals(name string, times float64) (most float64) {
	rows := s.rowsOf(name)
	points := [][2]float64{{1, 0}} // rest
	for _, system := range mpsSystems {
		at := slices.IndexFunc(rows, func(row result.Row) bool { return row.System == system.name })
		if at < 0 {
			fail("%s under %s is what this is compared with, and is not measured yet", name, system.name)
		}
		if row := rows[at]; row.Note == "" { // all requests were answered
			points = append(points, [2]float64{row.Ratio.P99, row.BE.Share})
		}
	}
	for _, a := range points {
		if a[0] > times {
			continue
		}
		most = max(most, a[1])
		for _, b := range points {
			if b[0] > times {
				most = max(most, a[1]+(b[1]-a[1])*(times-a[0])/(b[0]-a[0]))
			}
		}
	}
	return result.Round(most, 3)
}

// limited are phases with no more requests than the options say.
func (s *session) limited(phases ...phase) []phase {
	phases = slices.Clone(phases)
	for i := range phases {
		phases[i].count = min(phases[i].count, cmp.Or(s.options.Requests, phases[i].count))
	}
	return phases
}

// startsAnew says whether best-effort work needs another environment than in the system before.
func (c servingCase) startsAnew(i int) bool {
	return i == 0 || !slices.Equal(c.systems[i].environment, c.systems[i-1].environment)
}

func (c servingCase) measure(ctx context.Context, s *session, _ string) {
	var be *worker
	finish := func() {
		if be != nil {
			s.finish(be)
		}
		be = nil
	}
	defer finish()
	for i, system := range c.systems {
		server := s.models.server(ctx, s, c.engine, c.way)
		if be == nil || c.startsAnew(i) {
			finish()
			be = c.startBE(ctx, s, system)
		}
		err := caught(func() { c.measureSystem(ctx, s, server, be, system) })
		switch {
		case errors.Is(err, errServerEnded) && !c.way.isLibrary() && !system.alone: // no fault of the library's
			s.log("%s: %s: %v", c.name, system.name, err)
			s.add(result.Row{Case: c.of, System: system.name, Note: errServerEnded.Error()})
			finish() // it has not stopped
		case err != nil:
			fail("%s: %w", system.name, err)
		}
	}
}

var errServerEnded = errors.New("the model server ended")

func (c servingCase) startBE(ctx context.Context, s *session, system servingSystem) *worker {
	one := script{name: "be.py", arguments: []string{c.beside}, environment: slices.Clone(system.environment)}
	if c.beside == besideEngine {
		one.starts, one.arguments = servingStarts/2, append(one.arguments, s.models.folder)
		one.environment = append(one.environment, c.engine.environment()...)
	}
	if c.way.isLibrary() {
		one.role, one.config = "be", s.models.config
	}
	if c.way.isMPS() {
		one.environment = append(one.environment, clientOfMPS(s.models.mps.pipes, os.Getenv(visibleDevicesVariable))...)
	}
	return s.startScripts(ctx, one)[0]
}

func (c servingCase) measureSystem(ctx context.Context, s *session, server *modelServer, be *worker, system servingSystem) {
	var reference *result.Row
	if system.name != result.LCAlone {
		reference = s.reference(c.of)
	}
	bound := time.Duration(0)
	if system.slowdown > 0 {
		bound = time.Duration(system.slowdown * reference.LC.P99Us * float64(time.Microsecond))
	}
	if c.way.isLibrary() {
		objective := "none"
		if bound > 0 {
			objective = "step=" + bound.Round(time.Microsecond).String()
		}
		s.models.setObjective(ctx, s, objective)
	}
	row := result.Row{Case: c.of, System: system.name}
	var all []generated
	var steps *result.Steps
	serve := func() lcResult {
		var before result.Steps
		counts := c.way.isLibrary() && !system.alone
		if counts {
			before = s.models.counted(ctx, s, server)
		}
		answers, r, err := sendLoad(ctx, server.url, []phase{{c.load.perSecond, cmp.Or(s.options.Requests, c.load.count)}}, servingSeed)
		failed := slices.ContainsFunc(answers, func(g generated) bool { return g.err != nil })
		if ctx.Err() == nil && (server.hasEnded() || failed && server.endsWithin(daemonEnds)) { // its connections end before it does
			fail("%w: %s", errServerEnded, reason(server.said.all()))
		}
		check(err)
		if all = answers; counts {
			steps = since(before, s.models.counted(ctx, s, server))
		}
		return r
	}
	if system.alone {
		alone := cmp.Or(s.options.tests.beAlone, aloneSeconds)
		rate := be.rateAlone(ctx, alone)
		serve()
		rate = max(rate, be.rateAlone(ctx, alone)) // once it was 14 % slower at first
		of := rate
		if reference != nil {
			of = reference.BE.Alone
		}
		row.BE = rateOf(rate, of, stepsPerSecond)
	} else {
		rate := be.beside(ctx, serve)
		row.BE = rateOf(rate, reference.BE.Alone, stepsPerSecond)
	}
	serving, perToken, failed, why := sumUpGenerated(all)
	if perToken == nil {
		fail("no request was answered: %w", why)
	}
	if failed > 0 {
		row.Note = fmt.Sprintf("%d of %d requests failed: %v", failed, len(all), why)
	}
	row.LC, row.Serving = perToken, serving
	if reference != nil {
		row.LCAlone, row.Ratio = reference.LC, result.RatioOf(row.LC, reference.LC)
		serving.FirstRatio = result.RatioOf(serving.First, reference.Serving.First)
	}
	serving.Steps = steps
	if bound > 0 {
		serving.BoundMs, serving.Held = result.Round(float64(bound)/1e6, 3), result.Round(within(all, bound), 4)
	}
	s.add(c.judged(s, row, system))
}

var strictTarget = fmt.Sprintf("TTFT and TPOT p99 <= %g x alone", servingAlone)

func isStrict(row result.Row) bool {
	return row.Ratio.P99 <= servingAlone && row.Serving.FirstRatio.P99 <= servingAlone
}

// judged is the row with the target of its system, where it has one.
func (c servingCase) judged(s *session, row result.Row, system servingSystem) result.Row {
	if !c.way.isLibrary() || system.alone {
		return row
	}
	if row.Note != "" {
		return row.Judged("all requests are answered", false)
	}
	target, met := strictTarget, isStrict(row)
	if system.slowdown > 0 {
		target, met = fmt.Sprintf("TPOT held by >= %g %% of requests", 100*heldAtLeast), row.Serving.Held >= heldAtLeast
		if slices.Contains(besideRivals, c.beside) {
			system.least = s.mostOfRivals(c.of, row.Ratio.P99)
		}
	}
	if system.least > 0 {
		target, met = fmt.Sprintf("%s, BE >= %g of alone", target, system.least), met && row.BE.Share >= system.least
	}
	return row.Judged(target, met)
}
