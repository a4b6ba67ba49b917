package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// HeadlineFile is the README's first figure, in the folder of results.
const HeadlineFile = "headline.svg"

// headlines are the cases that the figure shows, and what it calls them.
var headlines = []struct{ file, name, label string }{
	{"h200-pytorch.json", "resnet50-graph-beside-train", "ResNet-50 beside\ntraining"},
	{"h200-pytorch.json", "resnet50-graph-beside-infer", "ResNet-50 beside\nbatch inference"},
	{"h200-pytorch.json", "resnet50-graph-beside-gemmfp64", "ResNet-50 beside\nfp64 GEMM"},
	{"h200-foundation.json", "1x40us-every-3ms", "a kernel of 40 us\nbeside 5 ms ones"},
	{"h200-foundation.json", "50x10us-synced", "50 kernels, each\nwaited for"},
}

// Headline draws what the slowest of a hundred requests takes, in times of what it takes alone, with the driver's time
// slicing and under the library, as an SVG. The same results give the same bytes.
func Headline(results string) ([]byte, error) {
	reports := map[string]Report{}
	for _, h := range headlines {
		if _, read := reports[h.file]; read {
			continue
		}
		data, err := os.ReadFile(filepath.Join(results, h.file))
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		var report Report
		if err := json.Unmarshal(data, &report); err != nil {
			return nil, fmt.Errorf("read results %s: %w", h.file, err)
		}
		reports[h.file] = report
	}
	p := plot.New()
	p.Y.Label.Text = "LC p99, times alone"
	p.Y.Tick.Marker = powersOfTen{}
	const width = 26 // points
	var labels []string
	for i, system := range []string{"default", "gpreempt"} {
		var values plotter.Values
		for _, h := range headlines {
			rows := reports[h.file].Cases
			now, alone := rowOf(rows, h.name, system), rowOf(rows, h.name, "alone")
			if now == nil || alone == nil || now.LC == nil || alone.LC == nil {
				return nil, fmt.Errorf("results %s have no %s under %s and alone", h.file, h.name, system)
			}
			values = append(values, math.Log10(now.LC.P99Us/alone.LC.P99Us))
			if i == 0 {
				labels = append(labels, h.label)
			}
		}
		chart, err := plotter.NewBarChart(values, vg.Points(width))
		if err != nil {
			return nil, fmt.Errorf("draw headline: %w", err)
		}
		chart.LineStyle.Width = 0
		chart.Color = systemColors[system]
		chart.Offset = vg.Points(width * (float64(i) - 0.5))
		p.Add(chart)
		name := system
		if rival := rivalNames[system]; rival != "" {
			name = rival
		}
		p.Legend.Add(name, chart)
	}
	p.NominalX(labels...)
	p.Y.Max += (p.Y.Max - p.Y.Min) / 20
	return render(p, vg.Points(90+100*float64(len(labels))), vg.Points(260))
}
