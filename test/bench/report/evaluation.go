package report

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Words of plots' axes.
const (
	timesAlone    = "relative to running alone"
	withIntervals = " (95 % intervals)"
)

// evaluationTables shows evaluations in a document: for each workload the LC latencies of the systems relative to alone, of all GPUs in one
// table; or a summary of each.
func evaluationTables(paths []string, what string) (string, error) {
	var all []*result.Evaluation
	var summaries []string
	origins := ""
	for _, path := range paths {
		e, err := result.ReadFigures(path)
		if err != nil {
			return "", err
		}
		all, summaries = append(all, e), append(summaries, summaryTable(e)+origin(e.Head, path))
		origins += origin(e.Head, path)[1:]
	}
	if what == summary {
		return strings.Join(summaries, "\n"), nil
	}
	text := p99Table(all) + "\n"
	for _, e := range all {
		text += targets(e)
	}
	return text + "\n" + oneLine(origins), nil
}

// targets says what of the targets was reached, and by how much others were missed.
func targets(e *result.Evaluation) string {
	var missed []string
	all := 0
	for i := range e.Cases {
		c := &e.Cases[i]
		if !c.HasTarget() {
			continue
		}
		all++
		switch {
		case c.Pass == nil:
			missed = append(missed, fmt.Sprintf("%s, %s: %s", c.Case, c.System, c.Unmeasured()))
		case !*c.Pass:
			missed = append(missed, fmt.Sprintf("%s, %s: %s", c.Case, c.System, c.Missed))
		}
	}
	text := fmt.Sprintf("- %s: targets reached in %d of %d cases", e.GPU, all-len(missed), all)
	if len(missed) == 0 {
		return text + ".\n"
	}
	return text + ", not in " + strings.Join(missed, "; ") + ".\n"
}

// summaryTable compares the systems of the headline over all workloads.
func summaryTable(e *result.Evaluation) string {
	in := func(c *result.EvaluationCase) bool {
		return slices.Contains(headlineSystems, c.System) && c.Ratio != nil && c.Throughput != nil && c.Throughput.BEOfDefault > 0
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| median of %d workloads (worst) | LC p99, relative to alone | LC mean, relative to alone | BE throughput, relative to default |\n|---|---|---|---|\n", len(e.Names(result.CaseName, in)))
	for _, system := range headlineSystems {
		var p99, mean, be []float64
		for i := range e.Cases {
			if c := &e.Cases[i]; c.System == system && in(c) {
				p99, mean, be = append(p99, c.Ratio.P99), append(mean, c.Ratio.Mean), append(be, c.Throughput.BEOfDefault)
			}
		}
		if len(p99) == 0 {
			continue
		}
		slices.Sort(p99)
		slices.Sort(mean)
		slices.Sort(be)
		fmt.Fprintf(&table, "| %s | %.2f (%.2f) | %.2f (%.2f) | %.2f (%.2f) |\n", systemLabel(system),
			result.Quantile(p99, .5), p99[len(p99)-1], result.Quantile(mean, .5), mean[len(mean)-1], result.Quantile(be, .5), be[0])
	}
	return table.String()
}

// p99Table compares the systems, with a row for each workload; a cell has what each GPU gave.
func p99Table(all []*result.Evaluation) string {
	var systems, workloads, gpus []string
	for _, e := range all {
		in := func(c *result.EvaluationCase) bool { return c.System != result.LCAlone && c.System != result.BEAlone }
		for _, name := range e.Names(result.SystemName, in) {
			systems = addNew(systems, name)
		}
		for _, name := range e.Names(result.CaseName, in) {
			workloads = addNew(workloads, name)
		}
		gpus = append(gpus, e.GPU)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | LC p99 alone | %s |\n|%s\n", strings.Join(gpus, " / "), strings.Join(systems, " | "), strings.Repeat("---|", len(systems)+2))
	row := func(of func(e *result.Evaluation) string) {
		var cells []string
		for _, e := range all {
			cells = append(cells, of(e))
		}
		text.WriteString(" " + strings.Join(cells, " / ") + " |")
	}
	for _, workload := range workloads {
		fmt.Fprintf(&text, "| %s |", workload)
		row(func(e *result.Evaluation) string {
			if c := e.Of(workload, result.LCAlone); c != nil && c.LC != nil {
				return microseconds(c.LC.P99Us)
			}
			return "-"
		})
		for _, system := range systems {
			row(func(e *result.Evaluation) string { return p99Cell(e.Of(workload, system)) })
		}
		text.WriteString("\n")
	}
	return text.String()
}

func p99Cell(c *result.EvaluationCase) string {
	switch {
	case c == nil:
		return "-"
	case c.Ratio == nil && c.Skipped != "":
		return "skipped"
	case c.Ratio == nil && c.Note != "":
		return "failed"
	case c.Ratio == nil:
		return "-"
	}
	cell := fmt.Sprintf("%.2f", c.Ratio.P99)
	if c.Throughput != nil && c.Throughput.BEOfDefault > 0 {
		cell += fmt.Sprintf(" (%.2f)", c.Throughput.BEOfDefault)
	}
	if c.Pass != nil && !*c.Pass {
		cell += " **missed**"
	}
	return cell
}

// acrossWorkloads has a place across the plot for each workload, and a dashed line where it runs alone.
func acrossWorkloads(p *plot.Plot, workloads []string) {
	end := float64(len(workloads)) - 0.5
	line := &plotter.Line{XYs: plotter.XYs{{X: -0.5, Y: 1}, {X: end, Y: 1}}, LineStyle: plotter.DefaultLineStyle}
	line.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(line)
	var names []string
	for _, workload := range workloads {
		names = append(names, workloadLabel(workload))
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, end
	p.Y.Padding = 0 // NominalX leaves room for half a name
	p.Y.Min, p.Y.Max = p.Y.Min/1.1, p.Y.Max*1.1
}
