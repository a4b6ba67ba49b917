package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A model server beside best-effort work: alone, as the driver and MPS share a GPU, and under the library without an objective and with several.
// The model is of Llama's shape with 8 thousand million random weights: times do not depend on what they are.

const (
	servedModel        = "m"
	servedTokens       = 4096            // of a request, at most
	servedAtOnce       = 64              // requests
	servingStarts      = 8 * time.Minute // of a server whose kernels are compiled
	servingMemory      = 27e9            // bytes of a server, and of best-effort work
	servingCacheMemory = 6 << 30         // of a server's keys and values
	servingCacheTokens = servingCacheMemory >> 17
	servingSeed        = 7
	servingAlone       = 1.05 // p99 without an objective, of alone
	heldAtLeast        = .99  // of the requests
	stepsRight         = .01  // how far the number of steps that are found may be off
	aloneSeconds       = 8 * time.Second
	restingSystem      = "gpreempt-quiet"
	againSystem        = "alone-again"
	noShareSystem      = "gpreempt-no-share"
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

// servingCase is a server under one load beside one kind of work, in one way. Its rows have the name of the case that measured it alone.
type servingCase struct {
	name, of string // of: the case that measures the server alone, which may be this one
	engine   engine
	way      way
	phases   []phase
	beside   string // arguments of be.py
	systems  []servingSystem
	pair     bool // two of these run beside the server, for which there is no room at once
}

var (
	plainSystems = []servingSystem{{name: "alone", alone: true}, {name: "default"}}
	mpsSystems   = []servingSystem{{name: mpsSystem}, {name: mpsOrdered, environment: []string{lowerPriority}},
		{name: "mps-50", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}}, {name: "mps-25", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}}}
)

func (w way) isLibrary() bool { return w == wayLibrary || w == wayBoth }

func (w way) isMPS() bool { return w == wayMPS || w == wayBoth }

func objectiveSystem(slowdown, least float64) servingSystem {
	return servingSystem{name: fmt.Sprintf("gpreempt-%gx", slowdown), slowdown: slowdown, least: least}
}

func steadyLoad(perSecond float64) []phase {
	count := 300
	if perSecond <= 2 {
		count = 100 // longer runs say little more
	}
	return []phase{{perSecond, count}}
}

// allServing are the cases with a server. Their order lets a server start once where there is little memory.
var allServing = func() []servingCase {
	objectives := map[float64][]servingSystem{
		1:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		2:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		6:  {{name: "gpreempt"}, objectiveSystem(1.2, .30), objectiveSystem(1.5, .45), objectiveSystem(2, .60), objectiveSystem(3, .78)},
		12: {{name: "gpreempt"}, objectiveSystem(1.5, 0), objectiveSystem(2, .55), objectiveSystem(3, 0)},
	}
	both := []servingSystem{{name: result.ServingUnderMPS, least: .20}}
	for _, o := range []struct{ slowdown, least float64 }{{1.2, .55}, {1.5, .65}, {2, .78}, {3, .86}} {
		both = append(both, servingSystem{name: fmt.Sprintf("%s-%gx", result.ServingUnderMPS, o.slowdown), slowdown: o.slowdown, least: o.least})
	}
	var plain, mps, library []servingCase
	for _, perSecond := range []float64{6, 12, 2, 1} {
		of, load := fmt.Sprintf("vllm-%g", perSecond), steadyLoad(perSecond)
		plain = append(plain, servingCase{of, of, vllm, wayPlain, load, "train", plainSystems, false})
		mps = append(mps, servingCase{of + "-mps", of, vllm, wayMPS, load, "train", mpsSystems, false})
		library = append(library, servingCase{of + "-objectives", of, vllm, wayLibrary, load, "train", objectives[perSecond], false})
	}
	library = append(library, servingCase{"vllm-6-objectives-mps", "vllm-6", vllm, wayBoth, steadyLoad(6), "train", both, false})
	plain = append(plain, servingCase{"vllm-6-infer", "vllm-6-infer", vllm, wayPlain, steadyLoad(6), "infer --same", plainSystems, false})
	library = append(library,
		servingCase{"vllm-6-infer-objectives", "vllm-6-infer", vllm, wayLibrary, steadyLoad(6), "infer --same", []servingSystem{{name: "gpreempt"}, objectiveSystem(2, .60)}, false},
		servingCase{"vllm-6-pair", "vllm-6-infer", vllm, wayLibrary, steadyLoad(6), "infer --same --ballast 0.45", []servingSystem{objectiveSystem(2, 0)}, true},
		servingCase{"vllm-rise", "vllm-12", vllm, wayLibrary, []phase{{2, 20}, {12, 120}, {4, 40}}, "train", []servingSystem{objectiveSystem(2, 0)}, false})
	plain = append(plain, servingCase{"vllm-6-offline", "vllm-6-offline", vllm, wayPlain, steadyLoad(6), "offline --same", plainSystems, false})
	library = append(library, servingCase{"vllm-6-offline-objectives", "vllm-6-offline", vllm, wayLibrary, steadyLoad(6), "offline --same", []servingSystem{{name: "gpreempt"}, objectiveSystem(2, .60)}, false})
	stepsOf := func(e engine, of string) servingCase {
		return servingCase{e.name + "-steps", of, e, wayLibrary, []phase{{6, 100}}, "train", []servingSystem{objectiveSystem(2, 0)}, false}
	}
	for _, e := range []engine{vllm.variant("sync", "--no-async-scheduling"), vllm.variant("eager", "--enforce-eager"), vllm.variant("chunked", "--max-num-batched-tokens", "256"),
		vllm.variant("ngram", "--speculative-config", `{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}`)} {
		library = append(library, stepsOf(e, "vllm-6"))
	}
	for _, e := range []engine{sglang, llamaCPP} {
		of := e.name + "-6"
		plain = append(plain, servingCase{of, of, e, wayPlain, steadyLoad(6), "train", plainSystems, false})
		library = append(library, servingCase{of + "-objectives", of, e, wayLibrary, steadyLoad(6), "train", []servingSystem{{name: "gpreempt"}, objectiveSystem(1.5, 0), objectiveSystem(2, 0)}, false},
			stepsOf(e, of))
	}
	return slices.Concat(plain, mps, library)
}()

func servingCases() (cases []Case) {
	for _, c := range allServing {
		seconds := 20.0
		for _, p := range c.phases {
			seconds += float64(len(c.systems)) * (float64(p.count)/p.perSecond + 5)
		}
		cases = append(cases, Case{c.name, "", []string{result.ServingSuite}, seconds, c.measure})
	}
	for _, p := range stepPrograms {
		cases = append(cases, Case{p.name, stepsTarget, []string{result.ServingSuite}, 40, p.measure})
	}
	cases = append(cases, Case{"http-service", serviceTarget, []string{result.ServingSuite}, 110, measureService})
	cases = append(cases, Case{strictName, strictTarget, []string{result.ServingSuite}, 200, measureStrict})
	return append(cases, Case{"vllm-cost", fmt.Sprintf("an objective that lends nothing costs <= %g %% of TPOT", servingCost), []string{result.ServingSuite}, 150, measureServingCost})
}

// reference is a server alone, as the case measured it that others are compared with.
func (s *session) reference(name string) (*result.Row, error) {
	for _, row := range s.report.Cases { // this case has measured it
		if row.Case == name && row.System == "alone" {
			return &row, nil
		}
	}
	parts, err := caseSuite{name: result.ServingSuite}.readParts(s.options.Folder)
	if err != nil {
		return nil, err
	}
	if p := parts[name]; p != nil {
		for _, row := range p.Cases {
			if row.System == "alone" && row.Serving != nil && row.BE != nil {
				return &row, nil
			}
		}
	}
	return nil, fmt.Errorf("%s is what this is compared with, and is not measured yet", name)
}

// limited are phases with as many requests as the options say.
func (s *session) limited(phases []phase) []phase {
	if s.options.Requests == 0 {
		return phases
	}
	phases = slices.Clone(phases)
	for i := range phases {
		phases[i].count = s.options.Requests
	}
	return phases
}

func (c servingCase) measure(ctx context.Context, s *session, _ string) error {
	c.phases = s.limited(c.phases)
	var be []*worker
	defer func() { s.finishAll(be) }()
	for i, system := range c.systems {
		server, err := s.models.server(ctx, s, c.engine, c.way)
		if err != nil {
			return err
		}
		if c.pair { // other servers would leave it too little memory
			s.models.stopOthers(server)
		}
		if be == nil || !slices.Equal(system.environment, c.systems[i-1].environment) {
			s.finishAll(be)
			if be, err = c.startBE(ctx, s, system); err != nil {
				return err
			}
		}
		err = c.measureSystem(ctx, s, server, be, system)
		switch {
		case errors.Is(err, errServerEnded) && !c.way.isLibrary() && !system.alone: // no fault of the library's
			s.log("%s: %s: %v", c.name, system.name, err)
			s.add(result.Row{Case: c.row(), System: system.name, Note: errServerEnded.Error()})
			s.finishAll(be) // they have not stopped
			be = nil
		case err != nil:
			return fmt.Errorf("%s: %w", system.name, err)
		}
	}
	return nil
}

var errServerEnded = errors.New("the model server ended")

// row is the name of the rows: those of the same load beside the same work have one.
func (c servingCase) row() string {
	if of := strings.TrimSuffix(strings.TrimSuffix(c.name, "-mps"), "-objectives"); of == c.of {
		return of
	}
	return c.name
}

func (c servingCase) startBE(ctx context.Context, s *session, system servingSystem) ([]*worker, error) {
	one := script{name: "be.py", arguments: strings.Fields(c.beside),
		environment: append(slices.Clone(system.environment), "GPREEMPT_BENCH_MODEL="+s.models.folder)}
	if strings.HasPrefix(c.beside, "offline") {
		one.environment = append(one.environment, c.engine.environment()...)
		one.limits = limits{start: servingStarts, answer: answerLimit}
	}
	if c.way.isLibrary() {
		one.role, one.config = "be", s.models.config
	}
	if c.way.isMPS() {
		one.environment = append(one.environment, clientOfMPS(s.models.mps.pipes, os.Getenv(visibleDevicesVariable))...)
	}
	all := []script{one}
	if c.pair {
		all = append(all, one)
	}
	return s.startScripts(ctx, all...)
}

// allBeside serves requests beside all workers. rate is of all together, different how many of their results were.
func allBeside(ctx context.Context, workers []*worker, serve func() (lcResult, error)) (r lcResult, rate float64, different int, err error) {
	if len(workers) == 0 {
		r, err = serve()
		return r, 0, 0, err
	}
	r, own, err := workers[0].beside(ctx, func() (r lcResult, err error) {
		r, rate, different, err = allBeside(ctx, workers[1:], serve)
		return r, err
	})
	return r, rate + own, different + workers[0].different, err
}

func (c servingCase) measureSystem(ctx context.Context, s *session, server *modelServer, be []*worker, system servingSystem) error {
	var reference *result.Row
	var err error
	if !system.alone {
		if reference, err = s.reference(c.of); err != nil {
			return err
		}
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
		if err := s.models.setObjective(ctx, s, objective); err != nil {
			return err
		}
	}
	row, different := result.Row{Case: c.row(), System: system.name}, 0
	var all []generated
	var steps *result.Steps
	serve := func() (r lcResult, err error) {
		var before, now result.Steps
		if c.way.isLibrary() {
			if before, err = s.models.counted(ctx, s, server); err != nil {
				return r, err
			}
		}
		all, r, err = sendTimed(ctx, server.url, c.phases, servingSeed)
		failed := slices.ContainsFunc(all, func(g generated) bool { return g.err != nil })
		if ctx.Err() == nil && (server.hasEnded() || failed && server.endsWithin(daemonEnds)) { // its connections end before it does
			return r, fmt.Errorf("%w: %s", errServerEnded, reason(server.said.all()))
		}
		if err == nil && c.way.isLibrary() {
			if now, err = s.models.counted(ctx, s, server); err == nil {
				steps, err = since(before, now)
			}
		}
		return r, err
	}
	switch {
	case system.alone:
		alone := cmp.Or(s.options.tests.beAlone, aloneSeconds)
		rate, err := be[0].rateAlone(ctx, alone)
		if err != nil {
			return err
		}
		if _, err := serve(); err != nil {
			return err
		}
		again, err := be[0].rateAlone(ctx, alone) // once it was 14 % slower at first
		if err != nil {
			return err
		}
		rate = max(rate, again)
		row.BE = rateOf(rate, rate, stepsPerSecond)
		if be[0].different > 0 {
			return fmt.Errorf("be.py %s computes something else each time, without the library too", c.beside)
		}
	default:
		var rate float64
		if _, rate, different, err = allBeside(ctx, be, serve); err != nil {
			return err
		}
		row.BE = rateOf(rate, reference.BE.Alone, stepsPerSecond)
	}
	serving, perToken, failed, why := sumUpGenerated(all)
	if perToken == nil {
		return fmt.Errorf("no request was answered: %w", why)
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
	s.add(c.judged(row, system, different))
	return nil
}

// judged is the row with the target of its system, where it has one. Different: so many of BE's results were.
func (c servingCase) judged(row result.Row, system servingSystem, different int) result.Row {
	switch {
	case different > 0:
		return row.Judged("BE's results are the same", false)
	case row.Note != "" && c.way.isLibrary():
		return row.Judged("all requests are answered", false)
	case system.least > 0 && system.slowdown == 0:
		return row.Judged(fmt.Sprintf("%s, BE >= %g of alone", strictTarget, system.least), isStrict(row) && row.BE.Share >= system.least)
	case system.least > 0:
		return row.Judged(fmt.Sprintf("TPOT held by >= %g %% of requests, BE >= %g of alone", 100*heldAtLeast, system.least), row.Serving.Held >= heldAtLeast && row.BE.Share >= system.least)
	case c.way.isLibrary() && system.slowdown == 0:
		return row.Judged(strictTarget, isStrict(row))
	case strings.HasSuffix(c.name, "-steps"):
		return row.Judged(stepsTarget, stepsAreRight(row.Serving.Steps.Found, row.Serving.Steps.Made))
	case system.slowdown > 0:
		return row.Judged(fmt.Sprintf("TPOT held by >= %g %% of requests", 100*heldAtLeast), row.Serving.Held >= heldAtLeast)
	}
	return row
}
