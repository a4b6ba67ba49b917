package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The rest of suite serving: what is compared in turns, a service of one step a request, and steps of programs.

const (
	servingCost   = 1.0 // percent
	servingRounds = 4   // of each that is compared in turns
)

// turn is one of those that are compared in turns.
type turn struct {
	system    string
	engine    engine
	way       way
	objective string  // of the server, where it is under the library
	be        *worker // best-effort work that runs beside it; nil: none does
}

// turned is what became of all rounds of a turn.
type turned struct {
	rounds [][]generated
	rates  []float64 // of best-effort work in each, where it runs
}

// inTurns sends the same load in each round to one after the other, and in the next round the other way round: what changes slowly, the clocks
// of the GPU or other tenants of the host, meets all of them.
func (s *session) inTurns(ctx context.Context, turns []turn, load phase) (all []turned, err error) {
	all = make([]turned, len(turns))
	order := make([]int, len(turns))
	for i := range order {
		order[i] = i
	}
	for round := range servingRounds {
		for _, i := range order {
			if err := s.takeTurn(ctx, turns[i], s.limited([]phase{load}), servingSeed+uint64(round), &all[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", turns[i].system, err)
			}
		}
		slices.Reverse(order)
	}
	return all, nil
}

func (s *session) takeTurn(ctx context.Context, t turn, load []phase, seed uint64, all *turned) error {
	server, err := s.models.server(ctx, s, t.engine, t.way)
	if err != nil {
		return err
	}
	if t.way.isLibrary() {
		if err := s.models.setObjective(ctx, s, t.objective); err != nil {
			return err
		}
	}
	var answers []generated
	serve := func() (r lcResult, err error) {
		answers, r, err = sendTimed(ctx, server.url, load, seed)
		return r, err
	}
	if t.be != nil {
		_, rate, err := t.be.beside(ctx, serve)
		if err != nil {
			return err
		}
		all.rates = append(all.rates, rate)
	} else if _, err := serve(); err != nil {
		return err
	}
	if len(answers) == 0 {
		return errors.New("no request was sent")
	}
	all.rounds = append(all.rounds, answers)
	return nil
}

// joined are the requests of all rounds, as if each had begun when the one before it ended.
func joined(rounds [][]generated) (all []generated) {
	var ended time.Time
	for i, round := range rounds {
		shift := time.Duration(0)
		if i > 0 {
			shift = ended.Sub(round[0].arrived)
		}
		for _, g := range round {
			g.arrived = g.arrived.Add(shift)
			end := g.arrived
			if len(g.came) > 0 {
				end = end.Add(g.came[len(g.came)-1])
			}
			if end.After(ended) {
				ended = end
			}
			all = append(all, g)
		}
	}
	return all
}

// measureServingCost compares a server that has an objective, and nobody to lend to, with itself without one, in turns.
func measureServingCost(ctx context.Context, s *session, name string) error {
	all, err := s.inTurns(ctx, []turn{{"none", vllm, wayLibrary, "none", nil}, {"objective", vllm, wayLibrary, "slowdown=1.5", nil}}, phase{6, 60})
	if err != nil {
		return err
	}
	var ratios, costs []float64
	for round := range servingRounds {
		each := eachAgainst(all[1].rounds[round], all[0].rounds[round])
		if len(each) == 0 {
			return errors.New("no request was answered both with an objective and without one")
		}
		ratios, costs = append(ratios, each...), append(costs, 100*(result.Median(each)-1))
	}
	_, without, _, _ := sumUpGenerated(joined(all[0].rounds))
	serving, with, _, _ := sumUpGenerated(joined(all[1].rounds))
	cost := 100 * (result.Median(ratios) - 1)
	row := result.Row{Case: name, System: "gpreempt", LC: with, LCAlone: without, Ratio: result.RatioOf(with, without), Serving: serving,
		Note: fmt.Sprintf("%+.2f %%, median of %d requests, each against the same one without; of rounds from %+.2f to %+.2f %%", cost, len(ratios), slices.Min(costs), slices.Max(costs))}
	s.add(row.Judged(fmt.Sprintf("an objective that lends nothing costs <= %g %% of TPOT", servingCost), cost <= servingCost))
	return nil
}

// eachAgainst is the time per token of each request, relative to that of the request sent at the same time in another turn.
func eachAgainst(now, before []generated) (ratios []float64) {
	for i := range min(len(now), len(before)) {
		if a, b := &now[i], &before[i]; a.err == nil && b.err == nil && b.perToken() > 0 {
			ratios = append(ratios, float64(a.perToken())/float64(b.perToken()))
		}
	}
	return ratios
}

const strictName = "vllm-6-strict"

// measureStrict compares a server alone, without the library, with one under it that has no objective: beside best-effort work that rests, that
// trains, and that trains without a share of its own (share.min_be); in turns. Where there is memory, another server alone shows what only
// another start makes of it.
func measureStrict(ctx context.Context, s *session, name string) error {
	again := vllm.variant("again")
	for _, e := range []engine{vllm, again} { // all have started before best-effort work has
		if e.name != again.name || room(s.info.MemoryBytes) > 2 {
			if _, err := s.models.server(ctx, s, e, wayPlain); err != nil {
				return err
			}
		}
	}
	if _, err := s.models.server(ctx, s, vllm, wayLibrary); err != nil {
		return err
	}
	undo, err := s.configure("[share]\nmin_be = 0\n")
	if err != nil {
		return err
	}
	noShare := s.config
	undo()
	train := func(config string) script {
		return script{name: "be.py", role: "be", config: config, arguments: []string{"train"}}
	}
	all, err := s.startScripts(ctx, train(s.models.config), train(noShare))
	if err != nil {
		return err
	}
	defer s.finishAll(all)
	rate, err := all[0].rateAlone(ctx, cmp.Or(s.options.tests.beAlone, aloneSeconds))
	if err != nil {
		return err
	}
	turns := []turn{{"alone", vllm, wayPlain, "", nil}, {restingSystem, vllm, wayLibrary, "none", nil}, {"gpreempt", vllm, wayLibrary, "none", all[0]},
		{noShareSystem, vllm, wayLibrary, "none", all[1]}}
	if room(s.info.MemoryBytes) > 2 {
		turns = append(turns, turn{againSystem, again, wayPlain, "", nil})
	}
	became, err := s.inTurns(ctx, turns, phase{6, 75})
	if err != nil {
		return err
	}
	var alone result.Row
	for i, t := range turns {
		serving, perToken, failed, why := sumUpGenerated(joined(became[i].rounds))
		if perToken == nil || failed > 0 {
			return fmt.Errorf("%s: %d requests failed: %w", t.system, failed, why)
		}
		row := result.Row{Case: name, System: t.system, LC: perToken, Serving: serving}
		if i == 0 {
			row.BE = rateOf(rate, rate, stepsPerSecond)
			alone = row
		} else {
			row.LCAlone, row.Ratio = alone.LC, result.RatioOf(perToken, alone.LC)
			serving.FirstRatio = result.RatioOf(serving.First, alone.Serving.First)
		}
		if t.be != nil {
			row.BE = rateOf(result.Median(became[i].rates), rate, stepsPerSecond)
			row = row.Judged(strictTarget, isStrict(row))
		}
		s.add(row)
	}
	return nil
}

var strictTarget = fmt.Sprintf("TTFT and TPOT p99 <= %g x alone", servingAlone)

func isStrict(row result.Row) bool {
	return row.Ratio.P99 <= servingAlone && row.Serving.FirstRatio.P99 <= servingAlone
}

const (
	serviceSlowdown = 1.5
	serviceBE       = .98 // of what strict priority leaves
	serviceRequests = 1500
)

var serviceTarget = fmt.Sprintf("p99 <= %g x that of strict priority, BE >= %g of it", serviceSlowdown, serviceBE)

// measureService measures an HTTP service of which each request is one step: alone, under strict priority, and with an objective, which saves no
// more than switches there.
func measureService(ctx context.Context, s *session, name string) error {
	alone, err := s.serviceRow(ctx, name, "alone", nil)
	if err != nil {
		return err
	}
	strict, err := s.serviceRow(ctx, name, "gpreempt", &alone)
	if err != nil {
		return err
	}
	eased, err := s.serviceRow(ctx, name, fmt.Sprintf("gpreempt-%gx", serviceSlowdown), &alone)
	if err != nil {
		return err
	}
	s.add(alone, strict, eased.Judged(serviceTarget, eased.LC.P99Us <= serviceSlowdown*strict.LC.P99Us && eased.BE.Now >= serviceBE*strict.BE.Now))
	return nil
}

// serviceRow is the service alone, without the library, or under it beside training; the last system has an objective.
func (s *session) serviceRow(ctx context.Context, name, system string, alone *result.Row) (row result.Row, err error) {
	row = result.Row{Case: name, System: system}
	server := script{name: "http_server.py"}
	be := script{name: "be.py", arguments: []string{"train"}}
	if alone != nil {
		server.role, server.config, be.role, be.config = "lc", s.models.config, "be", s.models.config
	}
	if strings.HasPrefix(system, "gpreempt-") {
		server.environment = []string{fmt.Sprint("GPREEMPT_OBJECTIVE=slowdown=", serviceSlowdown)}
	}
	var workers []*worker
	defer func() { s.finishAll(workers) }()
	for _, one := range []script{be, server} {
		w, err := s.startScript(ctx, one)
		if err != nil {
			return row, err
		}
		workers = append(workers, w)
	}
	var facts struct {
		Port int `json:"port"`
	}
	if err := errors.Join(workers[0].awaitReady(ctx, nil), workers[1].awaitReady(ctx, &facts)); err != nil {
		return row, err
	}
	serve := func() (lcResult, error) {
		return s.serveByHTTP(ctx, facts.Port, cmp.Or(s.options.Requests, serviceRequests))
	}
	if alone == nil {
		rate, err := workers[0].rateAlone(ctx, cmp.Or(s.options.tests.beAlone, 4*time.Second))
		if err != nil {
			return row, err
		}
		r, err := serve()
		row.LC, row.BE = result.LatencyOf(r.LatenciesNs), rateOf(rate, rate, stepsPerSecond)
		return row, err
	}
	r, rate, err := workers[0].beside(ctx, serve)
	if err != nil {
		return row, err
	}
	row.LC, row.LCAlone, row.BE = result.LatencyOf(r.LatenciesNs), alone.LC, rateOf(rate, alone.BE.Alone, stepsPerSecond)
	row.Ratio = result.RatioOf(row.LC, row.LCAlone)
	return row, nil
}

// serveByHTTP sends so many requests to the service.
func (s *session) serveByHTTP(ctx context.Context, port, count int) (r lcResult, err error) {
	generator, err := s.startScript(ctx, script{name: "http_load.py"})
	if err != nil {
		return r, err
	}
	defer s.finish(generator)
	if err = generator.awaitReady(ctx, nil); err == nil {
		err = generator.ask(ctx, torchAnswer, &r, fmt.Sprintf("run %d %d", count, port))
	}
	if err == nil && len(r.LatenciesNs) == 0 {
		err = errors.New("the service served no request")
	}
	return r, err
}

var stepsTarget = fmt.Sprintf("steps found, of those made: 1 +- %g", stepsRight)

func stepsAreRight(found, made uint64) bool {
	return made > 0 && math.Abs(float64(found)/float64(made)-1) <= stepsRight
}

// stepProgram is a program without a server, each of whose results is a step.
type stepProgram struct {
	name      string
	script    string
	arguments []string
	count     int // of the order to run
}

var stepPrograms = []stepProgram{
	{"transformers-steps", "generate.py", nil, 20},
	{"torch-steps", "lc.py", []string{"--mode", "eager", "--gap-ms", "1", "--warm-up", "0"}, 500},
	{"torch-graph-steps", "lc.py", []string{"--mode", "graph", "--gap-ms", "1", "--warm-up", "0"}, 500},
}

// measure counts the steps that the library finds beside training.
func (p stepProgram) measure(ctx context.Context, s *session, name string) error {
	workers, err := s.startScripts(ctx,
		script{name: p.script, role: "lc", config: s.models.config, arguments: p.arguments, environment: []string{"GPREEMPT_OBJECTIVE=slowdown=2"}},
		script{name: "be.py", role: "be", config: s.models.config, arguments: []string{"train"}})
	if err != nil {
		return err
	}
	defer s.finishAll(workers)
	steps := func() (found uint64, err error) {
		peers, err := s.models.peers(ctx, s)
		for _, one := range peers {
			if int(one.Pid) == workers[0].pid() && one.Objective != nil {
				found = one.Objective.Steps
			}
		}
		return found, err
	}
	before, err := steps()
	if err != nil {
		return err
	}
	r, _, err := workers[1].beside(ctx, func() (lcResult, error) { return workers[0].requests(ctx, p.count) })
	if err != nil {
		return err
	}
	now, err := steps()
	if err != nil {
		return err
	}
	made := uint64(len(r.LatenciesNs))
	row := result.Figure(name, result.Round(float64(now-before)/float64(made), 4), "of the steps made", fmt.Sprintf("%d found, %d made", now-before, made))
	s.add(row.Judged(stepsTarget, stepsAreRight(now-before, made)))
	return nil
}
