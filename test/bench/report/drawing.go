package report

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// systemColors are those of Okabe and Ito, which the colour-blind can tell apart.
var systemColors = map[string]color.Color{
	result.LCAlone:   color.RGBA{0, 0, 0, 255},
	"default":        color.RGBA{213, 94, 0, 255},
	"mps":            color.RGBA{230, 159, 0, 255},
	"mps-priority":   color.RGBA{204, 121, 167, 255},
	"mps-50":         color.RGBA{110, 60, 150, 255},
	"mps-25":         color.RGBA{150, 150, 150, 255},
	"gpreempt":       color.RGBA{0, 114, 178, 255},
	"gpreempt-hints": color.RGBA{0, 158, 115, 255},
	"gpreempt-mps":   color.RGBA{120, 80, 40, 255},
}

// systemLabels are what people call the systems; one without a label goes by its name.
var systemLabels = map[string]string{
	result.LCAlone:   "LC alone",
	"default":        "default time slicing",
	"mps":            "MPS",
	"mps-priority":   "MPS with priorities",
	"gpreempt":       "gpreempt",
	"gpreempt-hints": "gpreempt with hints",
	"gpreempt-mps":   "gpreempt under MPS",
}

func systemLabel(name string) string { return cmp.Or(systemLabels[name], name) }

func workloadLabel(name string) string {
	for _, w := range workload.All {
		if w.Name == name {
			return w.Label
		}
	}
	return name
}

const (
	legendWidth, plotMargin = 170, 12 // points
	barsWidth               = 0.8     // of the distance between two groups of bars
)

var gridColor = color.Gray{Y: 220}

// newPlot has a title, labelled axes and lines across. An x axis without a label is one of groups, which need no lines.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	sans := func(style *text.Style, size vg.Length) {
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	sans(&p.Title.TextStyle, vg.Points(12))
	sans(&p.Legend.TextStyle, vg.Points(10))
	p.Legend.Padding = vg.Points(5)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		sans(&axis.Label.TextStyle, vg.Points(10.5))
		sans(&axis.Tick.Label, vg.Points(9))
		axis.Label.Padding = vg.Points(4)
		axis.Tick.Marker = roundSteps{}
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColor, gridColor
	if x == "" {
		grid.Vertical.Color = nil
	}
	p.Add(grid)
	return p
}

// logarithmic makes an axis one of factors, and says so.
func logarithmic(axis *plot.Axis) {
	axis.Scale, axis.Tick.Marker = plot.LogScale{}, factors{}
	axis.Label.Text += ", logarithmic"
}

// drawEach makes an SVG with a plot, so wide, for each file of a pattern.
func drawEach(pattern string, width float64, plotOf func(file string) (*plot.Plot, error)) ([]byte, error) {
	files, _ := filepath.Glob(pattern) // sorted; the pattern is a good one
	if len(files) == 0 {
		return nil, fmt.Errorf("draw results: there is no %s", pattern)
	}
	var plots []*plot.Plot
	for _, file := range files {
		p, err := plotOf(file)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", file, err)
		}
		plots = append(plots, p)
	}
	return renderStack(plots, vg.Points(width), vg.Points(300))
}

// renderStack makes an SVG of plots of equal size below each other, each with its legend on the right. It has a white ground of its own, for
// pages that are dark.
func renderStack(plots []*plot.Plot, width, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width+vg.Points(legendWidth+plotMargin), height*vg.Length(len(plots)))
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	for i, p := range plots {
		drawWithLegend(p, draw.Crop(whole, 0, 0, height*vg.Length(len(plots)-1-i), -height*vg.Length(i)), width)
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;")), nil
}

// drawWithLegend draws a plot of a width, and its legend on its right.
func drawWithLegend(p *plot.Plot, whole draw.Canvas, width vg.Length) {
	area := draw.Crop(whole, vg.Points(4), -vg.Points(legendWidth+plotMargin), vg.Points(4), -vg.Points(6))
	legend, y := p.Legend, p.Y.Label
	p.Legend, p.Y.Label.Text = plot.NewLegend(), ""
	// Plot makes room for the label as if the middle of a logarithmic axis were that of a linear one.
	inner := draw.Crop(area, y.TextStyle.Height(y.Text)+y.Padding, 0, 0, 0)
	p.Draw(inner)
	y.TextStyle.Rotation, y.TextStyle.YAlign = math.Pi/2, text.YTop
	data := p.DataCanvas(inner)
	whole.FillText(y.TextStyle, vg.Point{X: area.Min.X, Y: data.Center().Y}, y.Text)
	legend.Top, legend.Left = true, true
	legend.YOffs = -p.Title.TextStyle.Rectangle(p.Title.Text).Size().Y - p.Title.Padding
	legend.Draw(draw.Crop(whole, width+vg.Points(plotMargin), 0, 0, 0))
}

// column is a value and its interval, which is empty where there is none.
type column struct {
	value    float64
	interval [2]float64
}

// columns are the bars of one system, one in each group that has a value for it.
type columns struct {
	values        map[int]column // by group
	base          float64        // where bars begin
	offset, width float64        // in distances between groups
	color         color.Color
}

func (c columns) bar(group int) (left, right float64) {
	middle := float64(group) + c.offset
	return middle - c.width/2, middle + c.width/2
}

// Plot implements plot.Plotter.
func (c columns) Plot(canvas draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&canvas)
	for _, group := range slices.Sorted(maps.Keys(c.values)) { // the same bytes each time
		v := c.values[group]
		left, right := c.bar(group)
		corners := []vg.Point{{X: x(left), Y: y(c.base)}, {X: x(left), Y: y(v.value)}, {X: x(right), Y: y(v.value)}, {X: x(right), Y: y(c.base)}}
		canvas.FillPolygon(c.color, corners)
		if v.interval[1] > v.interval[0] {
			whisker(canvas, x((left+right)/2), y(v.interval[0]), y(v.interval[1]))
		}
	}
}

// whisker draws an interval, white around black, so that it shows on any colour.
func whisker(canvas draw.Canvas, x, low, high vg.Length) {
	const half = 2 // points
	strokes := func(style draw.LineStyle) {
		canvas.StrokeLine2(style, x, low, x, high)
		canvas.StrokeLine2(style, x-half, low, x+half, low)
		canvas.StrokeLine2(style, x-half, high, x+half, high)
	}
	strokes(draw.LineStyle{Color: color.White, Width: vg.Points(1.8)})
	strokes(draw.LineStyle{Color: color.Black, Width: vg.Points(.8)})
}

// DataRange implements plot.DataRanger.
func (c columns) DataRange() (left, right, low, high float64) {
	left, right, low, high = math.Inf(1), math.Inf(-1), c.base, c.base
	for group, v := range c.values {
		l, r := c.bar(group)
		left, right = min(left, l), max(right, r)
		low, high = min(low, v.value), max(high, v.value)
		if v.interval[1] > v.interval[0] {
			low, high = min(low, v.interval[0]), max(high, v.interval[1])
		}
	}
	return left, right, low, high
}

// Thumbnail implements plot.Thumbnailer.
func (c columns) Thumbnail(canvas *draw.Canvas) {
	canvas.FillPolygon(c.color, []vg.Point{canvas.Min, {X: canvas.Min.X, Y: canvas.Max.Y}, canvas.Max, {X: canvas.Max.X, Y: canvas.Min.Y}})
}

// addColumns adds the bars of systems, a group for each name, to a plot. Bars begin at base.
func addColumns(p *plot.Plot, names, systems []string, base float64, of func(name, system string) (column, bool)) {
	width := barsWidth / float64(len(systems))
	for i, system := range systems {
		bars := columns{values: map[int]column{}, base: base, width: width, color: systemColors[system], offset: width * (float64(i) - float64(len(systems)-1)/2)}
		for group, name := range names {
			if v, ok := of(name, system); ok {
				bars.values[group] = v
			}
		}
		p.Add(bars)
		p.Legend.Add(systemLabel(system), bars)
	}
}

// factors are the ticks of a logarithmic axis. The fewer powers of ten it has, the more of them are between those.
type factors struct{}

// Ticks implements plot.Ticker.
func (factors) Ticks(low, high float64) []plot.Tick {
	digits := []float64{1, 2, 5}
	switch {
	case high/low < 10:
		digits = []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}
	case high/low < 100:
		digits = []float64{1, 1.5, 2, 3, 5, 7}
	}
	var ticks []plot.Tick
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for _, digit := range digits {
			if at := digit * math.Pow(10, power); at >= low && at <= high {
				ticks = append(ticks, tick(at))
			}
		}
	}
	return ticks
}

// tick is labelled with its value, which is one of a few digits.
func tick(at float64) plot.Tick {
	at = result.Round(at, 6) + 0 // not -0
	return plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'f', -1, 64)}
}

// roundSteps are the ticks of a linear axis: about five to ten, at multiples of 1, 2 or 5 of a power of ten.
type roundSteps struct{}

// Ticks implements plot.Ticker.
func (roundSteps) Ticks(low, high float64) []plot.Tick {
	const most = 10
	power := math.Pow(10, math.Floor(math.Log10((high-low)/most)))
	step := 10 * power
	for _, digit := range []float64{5, 2, 1} {
		if (high-low)/(digit*power) <= most {
			step = digit * power
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		ticks = append(ticks, tick(i*step))
	}
	return ticks
}
