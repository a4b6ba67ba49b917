package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// caseSuites are the suites of cases.
var caseSuites = []caseSuite{
	{name: "foundation", about: "synthetic LC and BE processes, what the library costs, that results are the same", mode: "time-sliced",
		flags: []string{"requests"}, begin: configured(noHints)},
	{name: "blp-mps", about: "LC beside BE under an MPS server: default, with priorities, and under the library", mode: "MPS",
		flags: []string{"requests"}, begin: clientsOfMPS},
	{name: "blp-stream", about: "one process: a saturated stream is stopped for urgent work on another", mode: "block-level preemption",
		flags: []string{"requests"}, begin: configured(onlyBLP + noHints)},
	{name: result.ServingSuite, about: "a model server beside training: alone, by default, under MPS, and with objectives", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: withModels},
	{name: result.StallsSuite, about: "tens of thousands of requests, and what the few that take much longer wait for", mode: "time-sliced",
		flags: []string{"seconds", "requests", "python"}},
	{name: "identity", about: "programs print the same without the library and with it in each role", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{name: programsSuite, about: "programs of public packages print the same in each role, with BLP, evicted and preempted", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{name: "blp-fire", about: "programs compute the same, bit by bit, while they are preempted a thousand times", mode: "block-level preemption",
		flags: []string{"seconds", "python"}, jobs: 5, begin: firing(onlyStops, false)},
	{name: "blp-fire-mps", about: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 5, begin: firing(`"auto"`, true)},
	{name: "blp-cost", about: "what block-level preemption covers, and costs where nobody preempts", mode: "block-level preemption",
		flags: []string{"python"}, begin: knowing(onlyStops)},
	{name: memorySuite, about: "programs that do not fit together: swap rates, turns, LC beside them, and what it costs where all fit", mode: "time-sliced",
		flags: []string{"seconds", "requests", "python"}, begin: knowing(memoryMechanisms)},
	{name: memoryFireSuite, about: "programs compute the same, bit by bit, while their memory goes out hundreds of times", mode: "time-sliced",
		flags: []string{"seconds", "python"}, jobs: 4, begin: firing(memoryMechanisms, false)},
	{name: memoryFireMPSSuite, about: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 4, begin: firing(`["gate", "blp", "mps", "swap"]`, true)}, // "auto" leaves memory alone there,
}

// configured gives the workers a configuration.
func configured(section string) func(context.Context, *session) (func(), error) {
	return func(_ context.Context, s *session) (func(), error) { return s.configure(section) }
}

// knowing has the workers know these mechanisms.
func knowing(mechanisms string) func(context.Context, *session) (func(), error) {
	return func(_ context.Context, s *session) (func(), error) {
		s.mechanisms = mechanisms
		return func() {}, nil
	}
}

func clientsOfMPS(ctx context.Context, s *session) (end func(), err error) {
	quit, err := s.underMPS(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.configure(noHints); err != nil {
		quit()
		return nil, err
	}
	return quit, nil
}

// Suites are all there are.
func Suites() []Suite {
	var all []Suite
	for _, c := range caseSuites {
		all = append(all, c.suite())
	}
	return append(all, Suite{Name: workload.Suite, About: "the workloads of the GPreempt paper and more, under each way to share the GPU",
		flags: []string{"seconds", "repeats", "requests", "systems", "python"}, plan: planEvaluation,
		measure: func(ctx context.Context, options Options) (Result, error) { return asResult(evaluate(ctx, options)) }})
}

// FindSuite finds a suite by its name.
func FindSuite(name string) (Suite, error) {
	var names []string
	for _, s := range Suites() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Suite{}, fmt.Errorf("no suite %q; there are %s", name, strings.Join(names, ", "))
}

// ReadParts is what the partial results of folders give, a report for each suite. Where several have the same case, the last one counts.
func ReadParts(folders ...string) (reports []*result.Report, err error) {
	for _, c := range caseSuites {
		parts, err := c.readParts(folders...)
		if err != nil {
			return nil, err
		}
		report, err := c.join(parts)
		if err != nil {
			return nil, err
		}
		if report != nil {
			reports = append(reports, report)
		}
	}
	if reports == nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(folders, ", "), errNoParts)
	}
	return reports, nil
}
