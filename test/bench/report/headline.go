package report

import (
	"fmt"
	"path/filepath"

	"gonum.org/v1/plot/vg"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// HeadlineFile is the README's first figure, in the folder of results.
const HeadlineFile = "headline.svg"

const headlineResults = "h200-paper.json"

var (
	headlineSystems   = []string{"default", "mps", "mps-priority", "gpreempt", "gpreempt-hints"}
	headlineWorkloads = []string{"A", "C", "E", "R", "Z", "decode", "http"} // one of each kind
)

// Headline draws what the slowest of a hundred requests takes relative to running alone, under the driver's time slicing,
// MPS and this library, as an SVG. The same results give the same bytes.
func Headline(results string) ([]byte, error) {
	e, err := result.ReadEvaluation(filepath.Join(results, headlineResults))
	if err != nil {
		return nil, fmt.Errorf("draw headline: %w", err)
	}
	p := newPlot("99th percentile of latency-critical requests beside best-effort work, "+e.GPU+withIntervals, "", timesAlone)
	logarithmic(&p.Y)
	missing := ""
	addColumns(p, headlineWorkloads, headlineSystems, 1, func(workload, system string) (column, bool) {
		c := e.Of(workload, system)
		if c == nil || c.Ratio == nil {
			missing = workload + " under " + system
			return column{}, false
		}
		return p99OfAlone(c)
	})
	if missing != "" {
		return nil, fmt.Errorf("draw headline: %s has no %s", headlineResults, missing)
	}
	acrossWorkloads(p, headlineWorkloads)
	return render(p, vg.Points(70+80*float64(len(headlineWorkloads))), vg.Points(300))
}
