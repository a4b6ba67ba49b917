package report

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// FrontierFile is the figure of what best-effort work gets beside a model server, in the folder of results.
const FrontierFile = "serving.svg"

// frontierCase is the one that it shows: 6 requests a second.
const frontierCase = "vllm-6"

// servingTable shows cases in one table. They are named, with commas between them.
func servingTable(r *result.Report, names string) string {
	var text strings.Builder
	var done []string
	named := strings.Split(names, ",")
	be := "BE, of alone"
	if slices.ContainsFunc(r.Cases, func(row result.Row) bool { return partOfLeft(row) != "" }) {
		be += " (of the time that LC left)"
	}
	for _, first := range r.Cases {
		if slices.Contains(done, first.Case) || first.Serving == nil || !slices.Contains(named, first.Case) {
			continue
		}
		title, label := first.Case, ""
		if len(named) > 1 {
			title, label = "case", first.Case+", "
		}
		if len(done) == 0 {
			fmt.Fprintf(&text, "| %s | TPOT p50 | TPOT p99 (x alone) | TTFT p99 (x alone) | requests within the objective | %s | target |\n|---|---|---|---|---|---|---|\n", title, be)
		}
		done = append(done, first.Case)
		for _, row := range r.Cases {
			switch {
			case row.Case != first.Case:
			case row.Serving != nil:
				text.WriteString("| " + label + servingLine(row))
			case row.LC == nil && row.Note != "":
				fmt.Fprintf(&text, "| %s%s | - | - | - | - | - | %s |\n", label, servingLabel(row.System), row.Note)
			}
		}
	}
	return text.String()
}

func milliseconds(us float64) string { return fmt.Sprintf("%.1f ms", us/1000) }

// figure has two digits, or three where two would be a number of the target: a reader tells by it whether that is reached.
func figure(value float64, target string) string {
	text := fmt.Sprintf("%.2f", value)
	for word := range strings.FieldsSeq(target) {
		if limit, err := strconv.ParseFloat(strings.TrimRight(word, ","), 64); err == nil && fmt.Sprintf("%.2f", limit) == text {
			return fmt.Sprintf("%.3f", value)
		}
	}
	return text
}

func timesOf(r *result.Ratio, target string) string {
	if r == nil {
		return ""
	}
	return " (" + figure(r.P99, target) + ")"
}

// partOfLeft is what best effort got of the time in which the server had no window open; empty: that was not counted.
func partOfLeft(row result.Row) string {
	if row.BE == nil || row.Serving == nil || row.Serving.Steps == nil || row.Serving.Steps.ServedMs == 0 || row.Serving.Steps.Left() <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%.2f)", row.BE.Share/row.Serving.Steps.Left())
}

func servingLine(row result.Row) string {
	held, share := "-", "-"
	if row.Serving.BoundMs > 0 {
		held = fmt.Sprintf("%.1f %% within %.1f ms", 100*row.Serving.Held, row.Serving.BoundMs)
	}
	if row.BE != nil && row.System != result.LCAlone {
		share = figure(row.BE.Share, row.Target)
		share += partOfLeft(row)
	}
	return fmt.Sprintf("%s, %d requests | %s | %s%s | %s%s | %s | %s | %s |\n", servingLabel(row.System), row.LC.N, milliseconds(row.LC.P50Us), milliseconds(row.LC.P99Us), timesOf(row.Ratio, row.Target),
		milliseconds(row.Serving.First.P99Us), timesOf(row.Serving.FirstRatio, row.Target), held, share, verdict(row))
}

// servingLabel is what people call a system of the suite.
func servingLabel(name string) string {
	switch name {
	case "gpreempt-quiet":
		return "gpreempt, BE rests"
	case "mps-50":
		return "MPS, BE 50 % of the SMs"
	case "mps-25":
		return "MPS, BE 25 % of the SMs"
	case "gpreempt":
		return "gpreempt, no objective"
	case result.ServingAloneOfMPS:
		return "MPS, each alone"
	case result.ServingAloneUnderMPS:
		return "gpreempt under MPS, each alone"
	case result.ServingUnderMPS:
		return "gpreempt under MPS, no objective"
	}
	if times, found := strings.CutPrefix(name, result.ServingUnderMPS+"-"); found {
		return "gpreempt under MPS, objective " + strings.TrimSuffix(times, "x") + " x"
	}
	if times, found := strings.CutPrefix(name, "gpreempt-"); found {
		return "gpreempt, objective " + strings.TrimSuffix(times, "x") + " x"
	}
	return systemLabel(name)
}

// Frontier draws what best-effort work gets against the p99 of the server's time per token, for each GPU, as an SVG. The same results give the
// same bytes.
func Frontier(results string) ([]byte, error) {
	return drawEach(filepath.Join(results, "*-"+result.ServingSuite+".json"), 640, drawFrontier)
}

// drawFrontier draws two runs in one figure: the file, and its sibling -mps, whose server was a client of MPS.
func drawFrontier(p *plot, r *result.Report, file string) error {
	cases := r.Cases
	switch sibling, err := result.ReadReport(strings.TrimSuffix(file, ".json") + "-mps.json"); {
	case err == nil:
		cases = slices.Concat(cases, sibling.Cases)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	var ours, underMPS []point
	var rivals []result.Row
	p.x.low, p.x.high, p.y.high = 1, 1, 1
	for _, row := range cases {
		if row.Case != frontierCase || row.Ratio == nil || row.BE == nil || result.IsServedAlone(row.System) {
			continue
		}
		p.x.high = max(p.x.high, row.Ratio.P99+.05)
		switch at := (point{row.Ratio.P99, row.BE.Share}); {
		case strings.HasPrefix(row.System, result.ServingUnderMPS):
			underMPS = append(underMPS, at)
		case strings.HasPrefix(row.System, "gpreempt"):
			ours = append(ours, at)
		default:
			rivals = append(rivals, row)
		}
	}
	if len(ours) == 0 {
		return fmt.Errorf("no %s under the library", frontierCase)
	}
	p.frame("Training beside vLLM at 6 requests a second, "+r.GPU, "TPOT p99, "+timesAlone, "training, "+timesAlone)
	color := systemColors["gpreempt"]
	for _, curve := range []struct {
		name          string
		points        []point
		shape, dashes string
	}{{"gpreempt, by objective", ours, circle, ""}, {"gpreempt under MPS, by objective", underMPS, square, dashed}} {
		if len(curve.points) == 0 {
			continue
		}
		slices.SortFunc(curve.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		style := fmt.Sprintf(`"%s" stroke-width="2"%s`, color, curve.dashes)
		p.curve(curve.points, style)
		for _, at := range curve.points {
			p.mark(p.x.at(at.x), p.y.at(at.y), curve.shape, color)
		}
		p.explain(curve.name, func(x, y float64) {
			p.line(x-14, y, x+14, y, style)
			p.mark(x, y, curve.shape, color)
		})
	}
	for _, row := range rivals {
		p.mark(p.x.at(row.Ratio.P99), p.y.at(row.BE.Share), triangle, systemColors[row.System])
		p.explain(servingLabel(row.System), func(x, y float64) { p.mark(x, y, triangle, systemColors[row.System]) })
	}
	return nil
}
