package report

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// figurePlot is a plot of the report.
type figurePlot struct{ file, caption string }

// bars is a group of bars for each workload, one for each system.
type bars struct {
	file, caption, axis string
	workloads           []string
	logarithmic         bool
	headline            bool // shown in the document of the results
	ablation            bool // of the library with some of its mechanisms
	value               func(*result.EvaluationCase) (column, bool)
}

// What the axes of bar plots show.
const (
	timesAlone    = "relative to running alone"
	timesDefault  = "relative to default time slicing"
	withIntervals = " (95 % intervals)"
)

var (
	modelWorkloads = []string{"A", "B", "C", "D", "E", "REAL"}
	otherWorkloads = func() (names []string) {
		for _, w := range workload.All {
			if !slices.Contains(modelWorkloads, w.Name) && !workload.InSweep(w.Name) {
				names = append(names, w.Name)
			}
		}
		return names
	}()
	barPlots = []bars{
		{"latency-models.svg", "Mean LC latency beside other models" + withIntervals, timesAlone, modelWorkloads, true, false, false, meanOfAlone},
		{"p99-models.svg", "LC p99 beside other models" + withIntervals, timesAlone, modelWorkloads, true, true, false, p99OfAlone},
		{"latency-others.svg", "Mean LC latency beside other work" + withIntervals, timesAlone, otherWorkloads, true, false, false, meanOfAlone},
		{"p99-others.svg", "LC p99 beside other work" + withIntervals, timesAlone, otherWorkloads, true, true, false, p99OfAlone},
		{"be.svg", "BE throughput", timesDefault, slices.Concat(modelWorkloads, otherWorkloads), false, false, false, beOfDefault},
		{"total.svg", "Total throughput, LC and BE", timesDefault, slices.Concat(modelWorkloads, otherWorkloads), false, true, false, totalOfDefault},
		{"ablation.svg", "LC p99 with some of the mechanisms" + withIntervals, timesAlone, slices.Concat(modelWorkloads, otherWorkloads), true, false, true, p99OfAlone},
	}
)

// has says whether a case is in the plot.
func (b bars) has(c *result.EvaluationCase) bool {
	if !slices.Contains(b.workloads, c.Case) || workload.Optional(c.System) && !b.ablation {
		return false
	}
	if b.ablation && !workload.Optional(c.System) && c.System != "default" && c.System != "gpreempt" {
		return false
	}
	_, ok := b.value(c)
	return ok
}

func drawBars(e *result.Evaluation, b bars, folder string) (*figurePlot, error) {
	workloads, systems := e.Names(result.CaseName, b.has), e.Names(result.SystemName, b.has)
	if b.ablation {
		workloads = e.Names(result.CaseName, func(c *result.EvaluationCase) bool { return b.has(c) && workload.Optional(c.System) })
	}
	if len(workloads) == 0 {
		return nil, nil
	}
	p := newPlot(b.caption, "", b.axis)
	base := 0.0
	if b.logarithmic {
		base = 1
		logarithmic(&p.Y)
	}
	addColumns(p, workloads, systems, base, func(workload, system string) (column, bool) {
		if c := e.Of(workload, system); c != nil {
			return b.value(c)
		}
		return column{}, false
	})
	acrossWorkloads(p, workloads)
	return save(e, p, b.file, b.caption, folder, vg.Points(max(420, 70+90*float64(len(workloads)))), vg.Points(300))
}

// acrossWorkloads has a place across the plot for each workload.
func acrossWorkloads(p *plot.Plot, workloads []string) {
	across(p, len(workloads), 1)
	var names []string
	for _, workload := range workloads {
		names = append(names, workloadLabel(workload))
	}
	groups(p, names)
	widen(&p.Y)
}

// save writes a plot with its legend on the right; the same results give the same bytes.
func save(e *result.Evaluation, p *plot.Plot, file, caption, folder string, width, height vg.Length) (*figurePlot, error) {
	p.Title.Text += ", " + e.GPU
	if e.Simulated {
		p.Title.Text = "SIMULATED: says nothing about a GPU\n" + p.Title.Text
	}
	text, err := render(p, width, height)
	if err != nil {
		return nil, fmt.Errorf("draw plot %s: %w", file, err)
	}
	if err := os.WriteFile(filepath.Join(folder, file), text, 0o644); err != nil {
		return nil, fmt.Errorf("write plot %s: %w", file, err)
	}
	return &figurePlot{file, caption}, nil
}

// drawCDF shows which part of the requests took how long at most, under every system.
func drawCDF(e *result.Evaluation, name, folder string) (*figurePlot, error) {
	caption := "Distribution of LC latencies, " + strings.ReplaceAll(workloadLabel(name), "\n", " ")
	p := newPlot(caption, "LC latency from arrival (ms)", "fraction of requests")
	logarithmic(&p.X)
	any := false
	hue := colors(e.Names(result.SystemName, func(c *result.EvaluationCase) bool { return c.Case == name && !workload.Optional(c.System) }))
	for i := range e.Cases {
		c := &e.Cases[i]
		if c.Case != name || c.System == result.BEAlone || workload.Optional(c.System) {
			continue
		}
		sorted := slices.Sorted(slices.Values(slices.Concat(first(c.LCLatencies())...)))
		if len(sorted) == 0 {
			continue
		}
		any = true
		const steps, tail = 100, 20 // the last step has as many again
		var points plotter.XYs
		for step := range steps + tail {
			q := float64(step) / steps
			if step >= steps {
				q = 1 - float64(steps+tail-1-step)/(steps*tail)
			}
			points = append(points, plotter.XY{X: result.Quantile(sorted, q) / 1000, Y: q})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("plot the latencies of %s: %w", name, err)
		}
		line.Color, line.Width = hue[c.System], vg.Points(1.3)
		if c.System == result.LCAlone {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		p.Add(line)
		p.Legend.Add(systemLabel(c.System), line)
	}
	if !any {
		return nil, nil
	}
	return save(e, p, "cdf-"+name+".svg", caption, folder, vg.Points(460), vg.Points(300))
}

// series is the points of one system in a sweep, with their intervals.
type series struct {
	plotter.XYs
	plotter.YErrors
}

// drawSweep shows how the LC p99 follows a number in the workloads' names.
func drawSweep(e *result.Evaluation, along workload.Sweep, axis, file, caption, folder string) (*figurePlot, error) {
	in := func(c *result.EvaluationCase) bool {
		_, there := along.At(c.Case)
		return there && c.LC != nil && c.LC.P99Us > 0
	}
	workloads := e.Names(result.CaseName, in)
	if len(workloads) < 2 {
		return nil, nil
	}
	slices.SortFunc(workloads, func(a, b string) int { return cmp.Compare(first(along.At(a)), first(along.At(b))) })
	p := newPlot(caption, axis, "LC p99 (ms)")
	logarithmic(&p.Y)
	systems := e.Names(result.SystemName, in)
	hue := colors(systems)
	for _, system := range systems {
		var points series
		for _, workload := range workloads {
			if c := e.Of(workload, system); c != nil && in(c) {
				y := c.LC.P99Us
				points.XYs = append(points.XYs, plotter.XY{X: first(along.At(workload)), Y: y / 1000})
				var off struct{ Low, High float64 }
				if ci := c.LC.P99CIUs; ci[0] > 0 {
					off.Low, off.High = (y-ci[0])/1000, (ci[1]-y)/1000
				}
				points.YErrors = append(points.YErrors, off)
			}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", file, err)
		}
		intervals, err := plotter.NewYErrorBars(points)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", file, err)
		}
		line.Color, dots.Color, intervals.Color = hue[system], hue[system], hue[system]
		line.Width = vg.Points(1.3)
		p.Add(line, dots, intervals)
		p.Legend.Add(systemLabel(system), line)
	}
	widen(&p.Y)
	return save(e, p, file, caption, folder, vg.Points(460), vg.Points(320))
}

func meanOfAlone(c *result.EvaluationCase) (column, bool) {
	if c.Ratio == nil {
		return column{}, false
	}
	return column{c.Ratio.Mean, c.Ratio.MeanCI}, true
}

func p99OfAlone(c *result.EvaluationCase) (column, bool) {
	if c.Ratio == nil {
		return column{}, false
	}
	return column{c.Ratio.P99, c.Ratio.P99CI}, true
}

func beOfDefault(c *result.EvaluationCase) (column, bool) {
	if c.Throughput == nil || c.Throughput.BEOfDefault == 0 {
		return column{}, false
	}
	return column{value: c.Throughput.BEOfDefault}, true
}

func totalOfDefault(c *result.EvaluationCase) (column, bool) {
	if c.Throughput == nil || c.Throughput.OfDefault == 0 {
		return column{}, false
	}
	return column{value: c.Throughput.OfDefault}, true
}

// drawPlots draws all that the results have.
func drawPlots(e *result.Evaluation, folder string) ([]figurePlot, error) {
	var drawn []figurePlot
	keep := func(p *figurePlot, err error) error {
		if p != nil {
			drawn = append(drawn, *p)
		}
		return err
	}
	for _, b := range barPlots {
		if err := keep(drawBars(e, b, folder)); err != nil {
			return nil, err
		}
	}
	for _, s := range []struct {
		along               workload.Sweep
		axis, file, caption string
	}{
		{workload.RateSweep, "LC requests per second", "rate.svg", "LC p99 by the rate of requests"},
		{workload.PrepareSweep, "preparation of a request (us)", "prepare.svg", "LC p99 by the time of preparation"},
		{workload.BESweep, "BE processes", "be-processes.svg", "LC p99 by the number of BE processes"},
		{workload.LoadSweep, "LC load (%)", "load.svg", "LC p99 by the load"},
	} {
		if err := keep(drawSweep(e, s.along, s.axis, s.file, s.caption+withIntervals, folder)); err != nil {
			return nil, err
		}
	}
	for _, workload := range e.Names(result.CaseName, func(*result.EvaluationCase) bool { return true }) {
		if err := keep(drawCDF(e, workload, folder)); err != nil {
			return nil, err
		}
	}
	return drawn, nil
}

func first[A, B any](a A, _ B) A { return a }
