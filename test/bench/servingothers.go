package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The rest of suite serving: the cost of an objective, a service of one step a request, and steps of programs.

const (
	servingCost       = 1.0 // percent
	servingCostRounds = 4   // of each, in turns
	servingCostCount  = 60  // requests of a round
)

// measureServingCost compares a server that has an objective, and nobody to lend to, with itself without one, in turns.
func measureServingCost(ctx context.Context, s *session, name string) error {
	server, err := s.models.server(ctx, s, vllm, wayLibrary)
	if err != nil {
		return err
	}
	all := map[string][]generated{}
	var costs []float64
	for round := range servingCostRounds {
		p50 := map[string]float64{}
		order := []string{"none", "slowdown=1.5"}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, objective := range order {
			if err := s.models.setObjective(ctx, s, objective); err != nil {
				return err
			}
			answers, err := sendLoad(ctx, server.url, []phase{{6, servingCostCount}}, servingSeed)
			if err != nil {
				return err
			}
			_, perToken, _, why := sumUpGenerated(answers)
			if perToken == nil {
				return why
			}
			p50[objective] = perToken.P50Us
			all[objective] = append(all[objective], answers...)
		}
		costs = append(costs, 100*(p50["slowdown=1.5"]/p50["none"]-1))
	}
	_, without, _, _ := sumUpGenerated(all["none"])
	serving, with, _, _ := sumUpGenerated(all["slowdown=1.5"])
	cost := result.Median(costs)
	row := result.Row{Case: name, System: "gpreempt", LC: with, LCAlone: without, Ratio: result.RatioOf(with, without), Serving: serving,
		Note: fmt.Sprintf("%+.2f %%, median of %d rounds, from %+.2f to %+.2f %%", cost, servingCostRounds, slices.Min(costs), slices.Max(costs))}
	s.add(row.Judged(fmt.Sprintf("an objective that lends nothing costs <= %g %% of TPOT", servingCost), cost <= servingCost))
	return nil
}

const (
	serviceSlowdown = 1.5
	serviceBE       = .98 // of what strict priority leaves
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
		r, err := s.load(ctx, workers[1], facts.Port, cmp.Or(s.options.Requests, httpRequests))
		return r.endToEnd, err
	}
	if alone == nil {
		rate, err := s.beAlone(ctx, workers[0], 1)
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
	row := valueRow(name, "gpreempt", result.Round(float64(now-before)/float64(made), 4), "of the steps made", stepsTarget, stepsAreRight(now-before, made),
		fmt.Sprintf("%d found, %d made", now-before, made))
	s.add(row)
	return nil
}
