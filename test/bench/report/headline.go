package report

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// HeadlineFile is the README's first figure, in the folder of results.
const HeadlineFile = "headline.svg"

var headlineSystems = []string{"default", "mps", "mps-priority", "gpreempt", "gpreempt-hints"}

// Headline draws what the slowest of a hundred requests takes relative to running alone, under the driver's time slicing, MPS and this
// library. It is an SVG with a plot for each GPU. The same results give the same bytes.
func Headline(results string) ([]byte, error) {
	return drawEach(filepath.Join(results, "*-paper.json"), 800, drawHeadline)
}

// drawHeadline shows the systems and workloads that were measured; of these none may be missing beside others.
func drawHeadline(p *plot, r *result.Report, _ string) error {
	workloads := workloadsOf(r)
	systems := slices.DeleteFunc(slices.Clone(headlineSystems), func(system string) bool {
		return !slices.ContainsFunc(r.Cases, func(row result.Row) bool { return row.System == system && row.Ratio != nil })
	})
	if len(workloads) == 0 {
		return errors.New("no workloads")
	}
	p.y.logarithmic, p.y.low, p.y.high = true, 1, 1
	for _, name := range workloads {
		for _, system := range systems {
			row := rowOf(r.Cases, name, system)
			if row == nil || row.Ratio == nil {
				return fmt.Errorf("no %s under %s", name, system)
			}
			for _, value := range append(row.Ratio.P99CI[:], row.Ratio.P99) {
				if value > 0 { // there may be no interval
					p.y.low, p.y.high = min(p.y.low, value), max(p.y.high, value)
				}
			}
		}
	}
	p.y.low, p.y.high = p.y.low/1.1, p.y.high*1.1
	p.frame("99th percentile of latency-critical requests beside best-effort work, "+r.GPU+" (95 % intervals)", "", timesAlone+", logarithmic")
	var labels []string
	for _, name := range workloads {
		labels = append(labels, workload.Label(name))
	}
	p.groups(workloads, labels, systems, func(name, system string) (float64, [2]float64) {
		ratio := rowOf(r.Cases, name, system).Ratio
		return ratio.P99, ratio.P99CI
	})
	return nil
}
