package report

import (
	"fmt"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// HeadlineFile is the README's first figure, in the folder of results.
const HeadlineFile = "headline.svg"

// headlineResults are the result files that it shows, each of a GPU.
const headlineResults = "*-paper.json"

var (
	headlineSystems   = []string{"default", "mps", "mps-priority", "gpreempt", "gpreempt-hints"}
	headlineWorkloads = []string{"A", "B", "C", "D", "E", "REAL"}
)

// Headline draws what the slowest of a hundred requests takes relative to running alone, under the driver's time slicing, MPS and this
// library. It is an SVG with a plot for each GPU. The same results give the same bytes.
func Headline(results string) ([]byte, error) {
	return drawEach(filepath.Join(results, headlineResults), 70+80*float64(len(headlineWorkloads)), func(file string) (*plot.Plot, error) {
		e, err := result.ReadFigures(file)
		if err != nil {
			return nil, err
		}
		return headlinePlot(e)
	})
}

// headlinePlot shows the systems and workloads that were measured; of these none may be missing beside others.
func headlinePlot(e *result.Evaluation) (*plot.Plot, error) {
	measured := func(c *result.EvaluationCase) bool {
		return c.Ratio != nil && slices.Contains(headlineWorkloads, c.Case) && slices.Contains(headlineSystems, c.System)
	}
	pick := func(all, measured []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(measured, name) })
	}
	workloads := pick(headlineWorkloads, e.Names(result.CaseName, measured))
	systems := pick(headlineSystems, e.Names(result.SystemName, measured))
	if len(workloads) == 0 {
		return nil, fmt.Errorf("none of the workloads %v", headlineWorkloads)
	}
	p := newPlot("99th percentile of latency-critical requests beside best-effort work, "+e.GPU+withIntervals, "", timesAlone)
	logarithmic(&p.Y)
	missing := ""
	addColumns(p, workloads, systems, 1, func(workload, system string) (column, bool) {
		c := e.Of(workload, system)
		if c == nil || c.Ratio == nil {
			missing = workload + " under " + system
			return column{}, false
		}
		return column{c.Ratio.P99, c.Ratio.P99CI}, true
	})
	if missing != "" {
		return nil, fmt.Errorf("no %s", missing)
	}
	acrossWorkloads(p, workloads)
	return p, nil
}
