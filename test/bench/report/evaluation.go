package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// timesAlone is what an axis says.
const timesAlone = "relative to running alone"

// evaluationTables shows evaluations in a document: for each workload the LC latencies of the systems relative to alone, of all GPUs in one
// table; or a summary of each.
func evaluationTables(files []measured, what string) string {
	if what == summary {
		var summaries []string
		for _, f := range files {
			summaries = append(summaries, summaryTable(f.Report)+origin(f.Head, f.path))
		}
		return strings.Join(summaries, "\n")
	}
	text := p99Table(files) + "\n"
	for _, f := range files {
		text += targets(f.Report)
	}
	return text + "\n" + origins(files)
}

// workloadsOf are the workloads of the suite that a report has: earlier ones had more.
func workloadsOf(r *result.Report) (names []string) {
	for _, w := range workload.All {
		if rowOf(r.Cases, w.Name, result.LCAlone) != nil {
			names = append(names, w.Name)
		}
	}
	return names
}

// targets says what of the targets was reached, and by how much others were missed.
func targets(r *result.Report) string {
	var missed []string
	all := 0
	for i := range r.Cases {
		row := &r.Cases[i]
		if !row.IsClaimed() {
			continue
		}
		all++
		switch {
		case row.Pass == nil || row.LC == nil:
			missed = append(missed, fmt.Sprintf("%s, %s: not measured: %s", row.Case, row.System, plain(row.Note)))
		case !*row.Pass:
			missed = append(missed, fmt.Sprintf("%s, %s: %s", row.Case, row.System, row.Missed))
		}
	}
	text := fmt.Sprintf("- %s: targets reached in %d of %d cases", r.GPU, all-len(missed), all)
	if len(missed) == 0 {
		return text + ".\n"
	}
	return text + ", not in " + strings.Join(missed, "; ") + ".\n"
}

// ofDefault is a row's throughput of BE, relative to that under default time slicing; 0 where there is none.
func ofDefault(row *result.Row) float64 {
	if row == nil || row.Throughput == nil {
		return 0
	}
	return row.Throughput.BEOfDefault
}

// summaryTable compares the systems of the headline over all workloads.
func summaryTable(r *result.Report) string {
	var lines strings.Builder
	most := 0
	for _, system := range headlineSystems {
		var p99, mean, be []float64
		for _, name := range workloadsOf(r) {
			if row := rowOf(r.Cases, name, system); row != nil && row.Ratio != nil && ofDefault(row) > 0 {
				p99, mean, be = append(p99, row.Ratio.P99), append(mean, row.Ratio.Mean), append(be, ofDefault(row))
			}
		}
		if len(p99) == 0 {
			continue
		}
		most = max(most, len(p99))
		fmt.Fprintf(&lines, "| %s | %.2f (%.2f) | %.2f (%.2f) | %.2f (%.2f) |\n", systemLabel(system),
			result.Median(p99), slices.Max(p99), result.Median(mean), slices.Max(mean), result.Median(be), slices.Min(be))
	}
	return fmt.Sprintf("| median of %d workloads (worst) | LC p99, relative to alone | LC mean, relative to alone | BE throughput, relative to default |\n|---|---|---|---|\n", most) + lines.String()
}

// p99Table compares the systems, with a row for each workload; a cell has what each GPU gave.
func p99Table(files []measured) string {
	var systems, workloads, gpus []string
	for _, f := range files {
		for _, row := range f.Cases {
			if row.System != result.LCAlone && row.System != "be-alone" {
				systems = addNew(systems, row.System)
			}
		}
		for _, name := range workloadsOf(f.Report) {
			workloads = addNew(workloads, name)
		}
		gpus = append(gpus, f.GPU)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | LC p99 alone | %s |\n|%s\n", strings.Join(gpus, " / "), strings.Join(systems, " | "), strings.Repeat("---|", len(systems)+2))
	row := func(of func(r *result.Report) string) {
		var cells []string
		for _, f := range files {
			cells = append(cells, of(f.Report))
		}
		text.WriteString(" " + strings.Join(cells, " / ") + " |")
	}
	for _, name := range workloads {
		fmt.Fprintf(&text, "| %s |", name)
		row(func(r *result.Report) string {
			if alone := rowOf(r.Cases, name, result.LCAlone); alone != nil && alone.LC != nil {
				return microseconds(alone.LC.P99Us)
			}
			return "-"
		})
		for _, system := range systems {
			row(func(r *result.Report) string { return p99Cell(rowOf(r.Cases, name, system)) })
		}
		text.WriteString("\n")
	}
	return text.String()
}

func p99Cell(row *result.Row) string {
	switch {
	case row != nil && row.Ratio == nil && row.Note != "":
		return "failed"
	case row == nil || row.Ratio == nil:
		return "-"
	}
	cell := fmt.Sprintf("%.2f", row.Ratio.P99)
	if be := ofDefault(row); be > 0 {
		cell += fmt.Sprintf(" (%.2f)", be)
	}
	if row.Pass != nil && !*row.Pass {
		cell += " **missed**"
	}
	return cell
}
