package report

import (
	"errors"
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

var headlineSystems = []string{"default", "mps", "mps-priority", "gpreempt", "gpreempt-hints"}

// Headline draws what the slowest of a hundred requests takes relative to running alone, under the driver's time slicing, MPS and this
// library. It is an SVG with a plot for each GPU. The same results give the same bytes.
func Headline(results string) ([]byte, error) {
	return drawEach(filepath.Join(results, headlineResults), 70+80*6, func(file string) (*plot.Plot, error) {
		r, err := result.ReadReport(file)
		if err != nil {
			return nil, err
		}
		return headlinePlot(r)
	})
}

// headlinePlot shows the systems and workloads that were measured; of these none may be missing beside others.
func headlinePlot(r *result.Report) (*plot.Plot, error) {
	workloads := workloadsOf(r)
	systems := slices.DeleteFunc(slices.Clone(headlineSystems), func(system string) bool {
		return !slices.ContainsFunc(r.Cases, func(row result.Row) bool { return row.System == system && row.Ratio != nil })
	})
	if len(workloads) == 0 {
		return nil, errors.New("no workloads")
	}
	p := newPlot("99th percentile of latency-critical requests beside best-effort work, "+r.GPU+withIntervals, "", timesAlone)
	logarithmic(&p.Y)
	missing := ""
	addColumns(p, workloads, systems, 1, func(workload, system string) (column, bool) {
		row := rowOf(r.Cases, workload, system)
		if row == nil || row.Ratio == nil {
			missing = workload + " under " + system
			return column{}, false
		}
		return column{row.Ratio.P99, row.Ratio.P99CI}, true
	})
	if missing != "" {
		return nil, fmt.Errorf("no %s", missing)
	}
	acrossWorkloads(p, workloads)
	return p, nil
}
