package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Suites are all there are.
var Suites = []Suite{
	{Name: "foundation", About: "synthetic LC and BE processes, and what the library costs", mode: "time-sliced",
		flags: []string{"requests"}, begin: configured(noHints)},
	{Name: "blp-mps", About: "LC beside BE under an MPS server: default, with priorities, and under the library", mode: "MPS",
		flags: []string{"requests"}, begin: clientsOfMPS},
	{Name: "blp-stream", About: "one process: a saturated stream is stopped for urgent work on another", mode: "block-level preemption",
		flags: []string{"requests"}, begin: configured(onlyBLP + noHints)},
	{Name: result.ServingSuite, About: "a model server beside training: alone, by default, under MPS, and with objectives", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: withModels},
	{Name: result.StallsSuite, About: "tens of thousands of requests beside best-effort work: the slowest of a thousand, and of all", mode: "time-sliced",
		flags: []string{"requests", "python"}},
	{Name: "identity", About: "programs print the same without the library and with it in each role", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{Name: programsSuite, About: "programs of public packages print the same in each role, with BLP, evicted and preempted", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{Name: "blp-fire", About: "programs compute the same, bit by bit, while they are preempted a thousand times", mode: "block-level preemption",
		flags: []string{"seconds", "python"}, jobs: 5, begin: firing(onlyStops, false)},
	{Name: "blp-fire-mps", About: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 5, begin: firing(`"auto"`, true)},
	{Name: "blp-cost", About: "what block-level preemption covers, and costs where nobody preempts", mode: "block-level preemption",
		flags: []string{"python"}, begin: knowing(onlyStops)},
	{Name: memorySuite, About: "programs that do not fit together: swap rates, turns, LC beside them, and what it costs where all fit", mode: "time-sliced",
		flags: []string{"seconds", "requests", "python"}, begin: knowing(memoryMechanisms)},
	{Name: memoryEnginesSuite, About: "vLLM beside programs whose memory goes out, in any order of starts; limits of memory", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: knowing(memoryMechanisms)},
	{Name: memoryFireSuite, About: "programs compute the same, bit by bit, while their memory goes out hundreds of times", mode: "time-sliced",
		flags: []string{"seconds", "python"}, jobs: 4, begin: firing(memoryMechanisms, false)},
	{Name: memoryFireMPSSuite, About: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 4, begin: firing(`["gate", "blp", "mps", "swap"]`, true)}, // "auto" leaves memory alone there,
	{Name: workload.Suite, About: "workloads of the GPreempt paper, under each way to share the GPU", mode: "time-sliced and MPS",
		flags: []string{"seconds", "repeats", "requests", "systems", "python"}, begin: withSystems},
}

// configured gives the workers a configuration.
func configured(section string) func(context.Context, *session) func() {
	return func(_ context.Context, s *session) func() { return s.configure(section) }
}

// knowing has the workers know these mechanisms.
func knowing(mechanisms string) func(context.Context, *session) func() {
	return func(_ context.Context, s *session) func() {
		s.mechanisms = mechanisms
		return func() {}
	}
}

func clientsOfMPS(ctx context.Context, s *session) (end func()) {
	s.configure(noHints)
	return s.underMPS(ctx)
}

// FindSuite finds a suite by its name.
func FindSuite(name string) (Suite, error) {
	var names []string
	for _, s := range Suites {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Suite{}, fmt.Errorf("no suite %q; there are %s", name, strings.Join(names, ", "))
}

// ReadParts is what the partial results of folders give, a report for each suite. Where several have the same case, the last one counts.
func ReadParts(folders ...string) (reports []*result.Report, err error) {
	for _, c := range Suites {
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
