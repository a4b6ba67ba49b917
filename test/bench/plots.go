package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// systemColors are those of Okabe and Ito, which the colour-blind can tell apart.
var systemColors = map[string]color.Color{
	lcAlone:          color.RGBA{0, 0, 0, 255},
	"default":        color.RGBA{213, 94, 0, 255},
	"sequential":     color.RGBA{240, 228, 66, 255},
	"mps":            color.RGBA{230, 159, 0, 255},
	"mps-priority":   color.RGBA{204, 121, 167, 255},
	"gpreempt-paper": color.RGBA{86, 180, 233, 255},
	"gpreempt":       color.RGBA{0, 114, 178, 255},
	"gpreempt-hints": color.RGBA{0, 158, 115, 255},
	"gpreempt-mps":   color.RGBA{120, 80, 40, 255},
}

// colors are those of systems in a plot; the ones that have none get shades of grey.
func colors(systems []string) map[string]color.Color {
	all := map[string]color.Color{}
	others := 0
	for _, name := range systems {
		if known, ok := systemColors[name]; ok {
			all[name] = known
			continue
		}
		all[name] = color.Gray{Y: uint8(40 + 20*others%200)}
		others++
	}
	return all
}

// figurePlot is a plot of the report.
type figurePlot struct{ file, caption string }

// names are those of a kind in the order of the results.
func (e *Evaluation) names(of func(*EvaluationCase) string, like func(*EvaluationCase) bool) []string {
	var all []string
	for i := range e.Cases {
		if name := of(&e.Cases[i]); like(&e.Cases[i]) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func caseName(c *EvaluationCase) string   { return c.Case }
func systemName(c *EvaluationCase) string { return c.System }

func (e *Evaluation) of(workload, system string) *EvaluationCase {
	for i := range e.Cases {
		if c := &e.Cases[i]; c.Case == workload && c.System == system {
			return c
		}
	}
	return nil
}

// bars is a group of bars for each workload, one for each system.
type bars struct {
	file, caption, axis string
	workloads           []string
	logarithmic         bool
	line                float64 // across all groups
	headline            bool    // shown in the README
	ablation            bool    // of the library with some of its mechanisms
	value               func(*EvaluationCase) (float64, bool)
}

var (
	modelWorkloads = []string{"A", "B", "C", "D", "E", "REAL"}
	otherWorkloads = []string{"Y", "R", "Z", "two-gpus", "decode", "http", "spin"}
	barPlots       = []bars{
		{"latency-models.svg", "LC latency (mean) beside other models, times alone", "times alone", modelWorkloads, true, 0, false, false, latencyRatio(func(r *Ratios) float64 { return r.Mean })},
		{"p99-models.svg", "LC p99 beside other models, times alone", "times alone", modelWorkloads, true, 0, true, false, latencyRatio(func(r *Ratios) float64 { return r.P99 })},
		{"latency-others.svg", "LC latency (mean) beside other work, times alone", "times alone", otherWorkloads, true, 0, false, false, latencyRatio(func(r *Ratios) float64 { return r.Mean })},
		{"p99-others.svg", "LC p99 beside other work, times alone", "times alone", otherWorkloads, true, 0, true, false, latencyRatio(func(r *Ratios) float64 { return r.P99 })},
		{"be.svg", "BE throughput, of that with default time slicing", "of default", slices.Concat(modelWorkloads, otherWorkloads), false, 1, false, false, beOfDefault},
		{"total.svg", "LC and BE throughput, of that with default time slicing", "of default", slices.Concat(modelWorkloads, otherWorkloads), false, 1, true, false, totalOfDefault},
		{"ablation.svg", "LC p99 with some of the mechanisms, times alone", "times alone", slices.Concat(modelWorkloads, otherWorkloads), true, 0, false, true, latencyRatio(func(r *Ratios) float64 { return r.P99 })},
	}
)

// has says whether a case is in the plot.
func (b bars) has(c *EvaluationCase) bool {
	if !slices.Contains(b.workloads, c.Case) || optional(c.System) && !b.ablation {
		return false
	}
	if b.ablation && !optional(c.System) && c.System != "default" && c.System != "gpreempt" {
		return false
	}
	_, ok := b.value(c)
	return ok
}

func (e *Evaluation) drawBars(b bars, folder string) (*figurePlot, error) {
	workloads, systems := e.names(caseName, b.has), e.names(systemName, b.has)
	if b.ablation {
		workloads = e.names(caseName, func(c *EvaluationCase) bool { return b.has(c) && optional(c.System) })
	}
	if len(workloads) == 0 {
		return nil, nil
	}
	scale := func(v float64) float64 { return v }
	p := plot.New()
	if b.logarithmic {
		scale = math.Log10
		p.Y.Tick.Marker = powersOfTen{}
	}
	p.Y.Label.Text = b.axis
	width, hue := vg.Points(56/float64(len(systems))), colors(systems)
	for i, system := range systems {
		var values plotter.Values
		for _, workload := range workloads {
			value := 0.0
			if b.logarithmic {
				value = 1
			}
			if c := e.of(workload, system); c != nil {
				if v, ok := b.value(c); ok {
					value = v
				}
			}
			values = append(values, scale(value))
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", b.file, err)
		}
		chart.LineStyle.Width = 0
		chart.Color = hue[system]
		chart.Offset = width * vg.Length(float64(i)-float64(len(systems)-1)/2)
		p.Add(chart)
		p.Legend.Add(system, chart)
	}
	if b.line > 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: scale(b.line)}, {X: float64(len(workloads)) - 0.5, Y: scale(b.line)}})
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", b.file, err)
		}
		line.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
	}
	p.NominalX(workloads...)
	p.Y.Max += (p.Y.Max - p.Y.Min) / 20
	return e.save(p, b.file, b.caption, folder, vg.Points(90+70*float64(len(workloads))), vg.Points(260))
}

const legendWidth, plotMargin = 150, 12 // points

// save writes a plot with its legend on the right; the same results give the same bytes.
func (e *Evaluation) save(p *plot.Plot, file, caption, folder string, width, height vg.Length) (*figurePlot, error) {
	if e.Simulated {
		p.Title.Text = "SIMULATED: says nothing about a GPU"
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

// render makes an SVG of a plot, with its legend on the right.
func render(p *plot.Plot, width, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width+vg.Points(legendWidth+plotMargin), height)
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	legend := p.Legend
	legend.Top, legend.Left = true, true
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(whole, 0, -vg.Points(legendWidth+plotMargin), 0, 0))
	legend.Draw(draw.Crop(whole, width+vg.Points(plotMargin), 0, 0, 0))
	var text bytes.Buffer
	_, err := canvas.WriteTo(&text)
	return text.Bytes(), err
}

// powersOfTen marks an axis that holds logarithms.
type powersOfTen struct{}

func (powersOfTen) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for power := math.Floor(low); power <= math.Ceil(high); power++ {
		for _, digit := range []float64{1, 2, 5} {
			at := power + math.Log10(digit)
			if at >= low-1e-9 && at <= high+1e-9 {
				ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(digit*math.Pow(10, power), 'g', 3, 64)})
			}
		}
	}
	return ticks
}

// drawCDF shows which part of the requests took how long at most, under every system.
func (e *Evaluation) drawCDF(workload, folder string) (*figurePlot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "LC latency from arrival (ms)", "part of requests"
	p.X.Tick.Marker = powersOfTen{}
	any := false
	hue := colors(e.names(systemName, func(c *EvaluationCase) bool { return c.Case == workload && !optional(c.System) }))
	for i := range e.Cases {
		c := &e.Cases[i]
		if c.Case != workload || c.System == beAlone || optional(c.System) {
			continue
		}
		sorted := slices.Sorted(slices.Values(slices.Concat(first(c.lcLatencies())...)))
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
			points = append(points, plotter.XY{X: math.Log10(quantile(sorted, q) / 1000), Y: q})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, fmt.Errorf("plot the latencies of %s: %w", workload, err)
		}
		line.Color, line.Width = hue[c.System], vg.Points(1.3)
		if c.System == lcAlone {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		}
		p.Add(line)
		p.Legend.Add(c.System, line)
	}
	if !any {
		return nil, nil
	}
	return e.save(p, "cdf-"+workload+".svg", "Distribution of the LC latencies of workload "+workload, folder, vg.Points(420), vg.Points(280))
}

// drawSweep shows how a figure follows a number in the workloads' names.
func (e *Evaluation) drawSweep(along sweep, axis, what string, value func(*EvaluationCase) (float64, bool), file, caption, folder string) (*figurePlot, error) {
	in := func(c *EvaluationCase) bool {
		_, ok := value(c)
		_, there := along.at(c.Case)
		return ok && there
	}
	workloads := e.names(caseName, in)
	if len(workloads) < 2 {
		return nil, nil
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = axis, what
	p.Y.Tick.Marker = powersOfTen{}
	systems := e.names(systemName, in)
	hue := colors(systems)
	for _, system := range systems {
		var points plotter.XYs
		for _, workload := range workloads {
			x, _ := along.at(workload)
			if c := e.of(workload, system); c != nil {
				if y, ok := value(c); ok && y > 0 {
					points = append(points, plotter.XY{X: x, Y: math.Log10(y)})
				}
			}
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", file, err)
		}
		line.Color, dots.Color = hue[system], hue[system]
		line.Width = vg.Points(1.3)
		p.Add(line, dots)
		p.Legend.Add(system, line)
	}
	return e.save(p, file, caption, folder, vg.Points(420), vg.Points(300))
}

func latencyRatio(of func(*Ratios) float64) func(*EvaluationCase) (float64, bool) {
	return func(c *EvaluationCase) (float64, bool) {
		if c.Ratio == nil {
			return 0, false
		}
		return of(c.Ratio), true
	}
}

func beOfDefault(c *EvaluationCase) (float64, bool) {
	if c.Throughput == nil || c.Throughput.BEOfDefault == 0 {
		return 0, false
	}
	return c.Throughput.BEOfDefault, true
}

func totalOfDefault(c *EvaluationCase) (float64, bool) {
	if c.Throughput == nil || c.Throughput.OfDefault == 0 {
		return 0, false
	}
	return c.Throughput.OfDefault, true
}

// plots draws all that the results have.
func (e *Evaluation) plots(folder string) ([]figurePlot, error) {
	var drawn []figurePlot
	keep := func(p *figurePlot, err error) error {
		if p != nil {
			drawn = append(drawn, *p)
		}
		return err
	}
	for _, b := range barPlots {
		if err := keep(e.drawBars(b, folder)); err != nil {
			return nil, err
		}
	}
	p99Ms := func(c *EvaluationCase) (float64, bool) {
		if c.LC == nil {
			return 0, false
		}
		return c.LC.P99Us / 1000, true
	}
	for _, s := range []struct {
		along               sweep
		axis, file, caption string
	}{
		{rateSweep, "LC requests per second", "rate.svg", "LC p99 by the rate of requests"},
		{prepareSweep, "preparation of a request (us)", "prepare.svg", "LC p99 by the time that preparation takes"},
		{beSweep, "BE processes", "be-processes.svg", "LC p99 by the number of BE processes"},
		{loadSweep, "LC load (%)", "load.svg", "LC p99 by the load"},
	} {
		if err := keep(e.drawSweep(s.along, s.axis, "LC p99 (ms)", p99Ms, s.file, s.caption, folder)); err != nil {
			return nil, err
		}
	}
	for _, workload := range e.names(caseName, func(*EvaluationCase) bool { return true }) {
		if err := keep(e.drawCDF(workload, folder)); err != nil {
			return nil, err
		}
	}
	return drawn, nil
}
