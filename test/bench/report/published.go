package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// claim is a published figure and what it is compared with here.
type claim struct {
	what, source, published string
	here                    func(e *result.Evaluation) string
	caveat                  string
}

// Sources, as the papers name themselves.
const (
	gpreemptPaper = "GPreempt, USENIX ATC 2025"
	xschedPaper   = "XSched, USENIX OSDI 2025"
	reefPaper     = "REEF, USENIX OSDI 2022"
)

// The published figures are of other GPUs, models and ways to count: the caveats say which.
var claims = []claim{
	{"mean LC latency, more than alone", gpreemptPaper, "+2.4 % (A100, patched driver)",
		func(e *result.Evaluation) string {
			return spread(e, claimed, "gpreempt-hints", func(c *result.EvaluationCase) float64 { return 100 * (c.Ratio.Mean - 1) }, "%+.1f %%")
		}, "theirs counts from the launch and drops late requests; ours counts from the arrival, with preparation, and drops none"},
	{"total throughput, relative to no preemption", gpreemptPaper, "88.6 % (A100)",
		func(e *result.Evaluation) string {
			return spread(e, claimed, "gpreempt-hints", func(c *result.EvaluationCase) float64 { return 100 * c.Throughput.OfDefault }, "%.1f %%")
		}, "ours: LC and BE requests, relative to default time slicing"},
	{"preemption without a hint", gpreemptPaper, "about 200 us (A100)",
		func(e *result.Evaluation) string { return spread(e, busyBE, "gpreempt", addedUs, "%+.0f us") },
		"ours: how much the median latency is above alone with BE busy all the time, for whatever cause"},
	{"preemption with a hint", gpreemptPaper, "< 40 us (A100)",
		func(e *result.Evaluation) string { return spread(e, busyBE, "gpreempt-hints", addedUs, "%+.0f us") },
		"as above; the hint comes when the request arrives, whose preparation takes 300 us"},
	{"LC p99 beside non-idempotent BE work (Z), relative to alone", gpreemptPaper, "preempted like any other (A100)",
		func(e *result.Evaluation) string {
			return spread(e, []string{"Z"}, "gpreempt-hints", func(c *result.EvaluationCase) float64 { return c.Ratio.P99 }, "%.2f x")
		}, "ours: graph algorithms of our own on a generated graph, results compared"},
	{"ResNet-152 p99 beside BE, relative to alone", xschedPaper, "1.13 x (7.40 of 6.52 ms; GV100)",
		func(e *result.Evaluation) string {
			return spread(e, []string{"A"}, "gpreempt-hints", func(c *result.EvaluationCase) float64 { return c.Ratio.P99 }, "%.2f x")
		}, "ours is workload A: VGG-19 beside ResNet-152"},
	{"total throughput, relative to LC alone", reefPaper, "up to 7.7 x (AMD MI50)",
		func(e *result.Evaluation) string {
			return spread(e, disb, besideSystem, func(c *result.EvaluationCase) float64 { return ofLCAlone(e, c) }, "%.2f x")
		}, "theirs: kernel sources and an open driver, idempotent kernels, models and arrivals of its own benchmark; ours: LC and BE requests of other " +
			"models, where BE goes on beside requests under MPS"},
	{"LC latency, more than alone", reefPaper, "at most 2 % (AMD MI50)",
		func(e *result.Evaluation) string {
			return spread(e, disb, besideSystem, func(c *result.EvaluationCase) float64 { return 100 * (c.Ratio.Mean - 1) }, "%+.1f %%")
		}, "as above; ours: the mean, from arrival, with preparation"},
}

const notComparable = `
No row compares like with like. The papers' GPUs (A100, GV100, MI50) take other times to switch between contexts than this one, which
has the stock driver. GPreempt's requests of equal rates come in fixed phases, its recorded arrivals (REAL) are not public,
and it gives averages. Systems can be compared with each other within one table.
`

var (
	claimed = []string{"A", "B", "C", "D", "E", "REAL", "Y", "Z"}
	busyBE  = []string{"R", "rate-100"}
	disb    = []string{"A", "B", "C", "D", "E"}
)

// besideSystem is that in which BE goes on beside requests, as REEF pads their kernels with it.
const besideSystem = "only-mps-blp-spatial"

// ofLCAlone is how many requests of LC and BE there are for one of LC alone.
func ofLCAlone(e *result.Evaluation, c *result.EvaluationCase) float64 {
	if alone := e.Of(c.Case, result.LCAlone); alone != nil && alone.Throughput != nil && alone.Throughput.LC > 0 {
		return (c.Throughput.LC + c.Throughput.BE) / alone.Throughput.LC
	}
	return 0
}

func addedUs(c *result.EvaluationCase) float64 { return c.LC.P50Us - c.LCAlone.P50Us }

// spread is from the least to the largest of some workloads under a system, naming those.
func spread(e *result.Evaluation, names []string, system string, value func(*result.EvaluationCase) float64, format string) string {
	type named struct {
		name  string
		value float64
	}
	var all []named
	for i := range e.Cases {
		c := &e.Cases[i]
		if slices.Contains(names, c.Case) && c.System == system && c.Ratio != nil && c.Throughput.OfDefault > 0 {
			all = append(all, named{c.Case, value(c)})
		}
	}
	if len(all) == 0 {
		return "not measured"
	}
	slices.SortFunc(all, func(a, b named) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	text := func(n named) string { return fmt.Sprintf(format+" (%s)", n.value, n.name) }
	if len(all) == 1 {
		return text(all[0])
	}
	return text(all[0]) + " to " + text(all[len(all)-1])
}

func publishedTable(e *result.Evaluation) string {
	var table strings.Builder
	fmt.Fprintf(&table, "| figure | published | source | here (%s) | what differs |\n|---|---|---|---|---|\n", e.GPU)
	for _, c := range claims {
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", c.what, c.published, c.source, c.here(e), c.caveat)
	}
	return table.String() + notComparable
}
