package report

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Figures are SVG: bars in groups, points and lines.

// systemColors are those of Okabe and Ito, which the colour-blind can tell apart.
var systemColors = map[string]string{"default": "#d55e00", "mps": "#e69f00", "mps-priority": "#cc79a7", "mps-50": "#6e3c96", "mps-25": "#969696",
	"gpreempt": "#0072b2", "gpreempt-hints": "#009e73"}

// systemLabels are what people call the systems; one without a label goes by its name.
var systemLabels = map[string]string{
	result.LCAlone:   "LC alone",
	"default":        "default time slicing",
	"mps":            "MPS",
	"mps-priority":   "MPS with priorities",
	"gpreempt-hints": "gpreempt with hints",
	"gpreempt-mps":   "gpreempt under MPS",
}

func systemLabel(name string) string { return cmp.Or(systemLabels[name], name) }

// Lengths in pixels: what is around the area of a plot, and that of one plot with all of it.
const plotLeft, plotTop, plotBottom, plotHeight, legendWidth = 70, 40, 330, 400, 290

// axis is from a place on the page to another.
type axis struct {
	low, high   float64
	from, to    float64
	logarithmic bool
}

func (a axis) at(value float64) float64 {
	part := (value - a.low) / (a.high - a.low)
	if a.logarithmic {
		part = math.Log(value/a.low) / math.Log(a.high/a.low)
	}
	return a.from + part*(a.to-a.from)
}

// ticks are values of a few digits.
func (a axis) ticks() (ticks []float64) {
	if a.logarithmic {
		for _, value := range []float64{.5, .7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100} {
			if value >= a.low && value <= a.high {
				ticks = append(ticks, value)
			}
		}
		return ticks
	}
	const step = .2
	for i := math.Ceil(a.low/step - 1e-9); i*step <= a.high+1e-9; i++ {
		ticks = append(ticks, result.Round(i*step, 1)+0) // not -0
	}
	return ticks
}

// plot is an SVG that grows.
type plot struct {
	strings.Builder
	x, y   axis
	legend float64 // where its next line is
}

func newPlot(width float64) *plot {
	return &plot{x: axis{from: plotLeft, to: width}, y: axis{from: plotBottom, to: plotTop}, legend: plotTop + 6}
}

func (p *plot) add(format string, arguments ...any) { fmt.Fprintf(p, format+"\n", arguments...) }

func (p *plot) text(x, y float64, anchor, text string) {
	p.add(`<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, text)
}

func (p *plot) line(x1, y1, x2, y2 float64, style string) {
	p.add(`<path d="M%.1f %.1fL%.1f %.1f" stroke=%s/>`, x1, y1, x2, y2, style)
}

const (
	gridStroke = `"#dcdcdc"`
	axisStroke = `"#000"`
	dashed     = ` stroke-dasharray="5 3"`
)

// frame is a plot's title, its axes, and lines at the ticks of these. Without a label the x axis is one of groups.
func (p *plot) frame(title, x, y string) {
	p.add(`<text x="%d" y="22" font-size="15">%s</text>`, plotLeft, title)
	for _, tick := range p.y.ticks() {
		p.line(p.x.from, p.y.at(tick), p.x.to, p.y.at(tick), gridStroke)
		p.text(p.x.from-6, p.y.at(tick)+4, "end", strconv.FormatFloat(tick, 'f', -1, 64))
	}
	if x != "" {
		for _, tick := range p.x.ticks() {
			p.line(p.x.at(tick), p.y.from, p.x.at(tick), p.y.to, gridStroke)
			p.text(p.x.at(tick), p.y.from+18, "middle", strconv.FormatFloat(tick, 'f', -1, 64))
		}
		p.line(p.x.from, p.y.from, p.x.to, p.y.from, axisStroke)
		p.text((p.x.from+p.x.to)/2, p.y.from+42, "middle", x)
	}
	p.line(p.x.from, p.y.from, p.x.from, p.y.to, axisStroke)
	p.add(`<text transform="translate(22 %d) rotate(-90)" text-anchor="middle">%s</text>`, (plotTop+plotBottom)/2, y)
}

// explain adds a line to the legend, whose sign is drawn at a place.
func (p *plot) explain(label string, sign func(x, y float64)) {
	sign(p.x.to+24, p.legend)
	p.text(p.x.to+42, p.legend+4, "start", label)
	p.legend += 19
}

func (p *plot) bar(x, width, from, to float64, color string) {
	p.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x, min(from, to), width, math.Abs(from-to), color)
}

// interval is white around black, so that it shows on any colour.
func (p *plot) interval(x, low, high float64) {
	for _, style := range []string{`"#fff" stroke-width="2.5"`, axisStroke} {
		p.add(`<path d="M%.1f %.1fV%.1fm-3 0h6M%.1f %.1fm-3 0h6" stroke=%s/>`, x, low, high, x, low, style)
	}
}

// curve joins points by a line.
func (p *plot) curve(points []point, style string) {
	var path []string
	for _, at := range points {
		path = append(path, fmt.Sprintf("%.1f %.1f", p.x.at(at.x), p.y.at(at.y)))
	}
	p.add(`<path d="M%s" fill="none" stroke=%s/>`, strings.Join(path, "L"), style)
}

// point is a place by the values of the axes.
type point struct{ x, y float64 }

// mark is a shape, as a path from its middle.
func (p *plot) mark(x, y float64, shape, color string) {
	p.add(`<path d="M%.1f %.1f%s" fill="%s"/>`, x, y, shape, color)
}

const (
	circle   = "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z"
	square   = "m-4-4h8v8h-8z"
	triangle = "m0-5l5.5 9h-11z"
)

// drawEach draws a plot, so wide, for each result file of a pattern, one below the other. Their white ground serves pages that are dark.
func drawEach(pattern string, width float64, draw func(p *plot, r *result.Report, file string) error) ([]byte, error) {
	files, _ := filepath.Glob(pattern) // sorted; the pattern is a good one
	if len(files) == 0 {
		return nil, fmt.Errorf("draw results: there is no %s", pattern)
	}
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="Liberation Sans,Arial,sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="#fff"/>
`, width+legendWidth, plotHeight*len(files))
	for i, file := range files {
		p := newPlot(width)
		r, err := result.ReadReport(file)
		if err == nil {
			err = draw(p, r, file)
		}
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", file, err)
		}
		svg += fmt.Sprintf("<g transform=\"translate(0 %d)\">\n%s</g>\n", i*plotHeight, p)
	}
	return []byte(svg + "</svg>\n"), nil
}

// groups draws the bars of systems, from 1 on a logarithmic axis, in a group for each name. All have a value.
func (p *plot) groups(names, labels, systems []string, of func(name, system string) (value float64, interval [2]float64)) {
	each := (p.x.to - p.x.from) / float64(len(names))
	width := .8 * each / float64(len(systems))
	for group, name := range names {
		left := p.x.from + (float64(group)+.1)*each
		for i, system := range systems {
			value, interval := of(name, system)
			x := left + float64(i)*width
			p.bar(x, width, p.y.at(1), p.y.at(value), systemColors[system])
			if interval[1] > interval[0] {
				p.interval(x+width/2, p.y.at(interval[0]), p.y.at(interval[1]))
			}
		}
		for i, text := range strings.Split(labels[group], "\n") {
			p.text(left+.4*each, p.y.from+18+15*float64(i), "middle", text)
		}
	}
	p.line(p.x.from, p.y.at(1), p.x.to, p.y.at(1), axisStroke+dashed)
	for _, system := range systems {
		p.explain(systemLabel(system), func(x, y float64) { p.bar(x-12, 24, y-6, y+6, systemColors[system]) })
	}
}
