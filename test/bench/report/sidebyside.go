package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// measured is a result file that was read.
type measured struct {
	*result.Report
	path string
}

// The systems that tables show beside this library, by their names in result files.
var rivalNames = map[string]string{"default": "default time slicing", "mps": "MPS", "mps-priority": "MPS with priorities", "priority": "stream priorities"}

// line is a row of a table: what each GPU has of a case.
type line struct {
	suite, name, target string
	cells               map[string]string // by GPU
	reached             bool              // on each GPU that has it, and it is a value
	values              map[string][]float64
	unit                string
}

// sideBySide shows result files in tables with a column for each GPU: what LC and BE have of each other, and single values. Many values
// with one target share a line where all reach it.
func sideBySide(files []measured) string {
	var gpus, suites []string
	for _, f := range files {
		gpus, suites = addNew(gpus, f.GPU), addNew(suites, f.Benchmark)
	}
	var pairs, values []*line
	var rivals []string
	for _, f := range files {
		for _, row := range f.Cases {
			if rivalNames[row.System] != "" && row.LC != nil {
				rivals = addNew(rivals, row.System)
			}
		}
	}
	for _, f := range files {
		done := []string{}
		for _, row := range f.Cases {
			switch {
			case slices.Contains(done, row.Case):
			case row.LC != nil && row.System == result.LCAlone:
				done = append(done, row.Case)
				pairs = put(pairs, f, row.Case, targetOf(f.Cases, row.Case), pairCell(f.Cases, row, rivals))
			case row.Target == "":
			case row.LC != nil && rowOf(f.Cases, row.Case, result.LCAlone) == nil:
				name := row.Case
				if row.System != "gpreempt" {
					name += ", " + row.System
				}
				values = put(values, f, name, row.Target, fmt.Sprintf("p99 %s (p50 %s): %s", microseconds(row.LC.P99Us), microseconds(row.LC.P50Us), became(row)))
			case row.Value != nil:
				values = put(values, f, distinct(f.Cases, row), row.Target, fmt.Sprintf("%.4g %s: %s", *row.Value, row.Unit, became(row)))
				l := values[slices.IndexFunc(values, func(l *line) bool {
					return l.suite == f.Benchmark && l.name == distinct(f.Cases, row) && l.target == row.Target
				})]
				l.values[f.GPU], l.unit = append(l.values[f.GPU], *row.Value), row.Unit
				l.reached = l.reached && row.Pass != nil && *row.Pass
			case row.BE != nil:
				values = put(values, f, row.Case, row.Target, fmt.Sprintf("%.3f of alone: %s", row.BE.Share, became(row)))
			}
		}
	}
	var text strings.Builder
	show := func(title string, lines []*line) {
		if len(lines) == 0 {
			return
		}
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "| %s | %s | target |\n|%s\n", title, strings.Join(gpus, " | "), strings.Repeat("---|", len(gpus)+2))
		for _, l := range lines {
			name := l.name
			if len(suites) > 1 {
				name = l.suite + ": " + name
			}
			fmt.Fprintf(&text, "| %s |", name)
			for _, gpu := range gpus {
				text.WriteString(" " + cmp.Or(l.cells[gpu], "-") + " |")
			}
			text.WriteString(strings.TrimRight(" "+l.target, " ") + " |\n")
		}
	}
	var names []string
	for _, rival := range rivals {
		names = append(names, rivalNames[rival])
	}
	show(strings.Join(slices.Concat([]string{"LC p99: alone"}, names, []string{"gpreempt (x alone)"}), " / ")+"; BE of what LC leaves", pairs)
	show("measured", collapsed(values, gpus))
	return text.String() + "\n" + origins(files)
}

// origins says where the figures of a table are from, in a line.
func origins(files []measured) string {
	all := ""
	for _, f := range files {
		all += origin(f.Head, f.path)[1:]
	}
	return oneLine(all)
}

func oneLine(text string) string {
	return strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", " ") + "\n"
}

func addNew(list []string, word string) []string {
	if slices.Contains(list, word) {
		return list
	}
	return append(list, word)
}

// put sets what a file's GPU has of a case.
func put(lines []*line, f measured, name, target, cell string) []*line {
	i := slices.IndexFunc(lines, func(l *line) bool { return l.suite == f.Benchmark && l.name == name && l.target == target })
	if i < 0 {
		i = len(lines)
		lines = append(lines, &line{suite: f.Benchmark, name: name, target: target, cells: map[string]string{}, reached: true, values: map[string][]float64{}})
	}
	lines[i].cells[f.GPU] = cell
	return lines
}

// few lines with one target are shown each for itself.
const few = 3

// collapsed has one line for many values with one target, all of which reach it.
func collapsed(lines []*line, gpus []string) (short []*line) {
	alike := func(a, b *line) bool {
		return a.reached && b.reached && len(a.values) > 0 && len(b.values) > 0 && a.suite == b.suite && a.target == b.target && a.unit == b.unit
	}
	for i, l := range lines {
		if !alike(l, l) {
			short = append(short, l)
			continue
		}
		group := slices.DeleteFunc(slices.Clone(lines), func(other *line) bool { return !alike(l, other) })
		if len(group) <= few {
			short = append(short, l)
			continue
		}
		if slices.Index(lines, group[0]) < i {
			continue // it is in the line of the first
		}
		all := &line{suite: l.suite, name: fmt.Sprintf("%d cases", len(group)), target: l.target, cells: map[string]string{}}
		for _, gpu := range gpus {
			var values []float64
			for _, one := range group {
				values = append(values, one.values[gpu]...)
			}
			if len(values) > 0 {
				all.cells[gpu] = fmt.Sprintf("%d of %d: %.4g to %.4g %s: reached", len(values), len(group), slices.Min(values), slices.Max(values), l.unit)
			}
		}
		short = append(short, all)
	}
	return short
}

func rowOf(rows []result.Row, name, system string) *result.Row {
	for i := range rows {
		if rows[i].Case == name && rows[i].System == system {
			return &rows[i]
		}
	}
	return nil
}

func targetOf(rows []result.Row, name string) string {
	if ours := rowOf(rows, name, "gpreempt"); ours != nil {
		return ours.Target
	}
	return ""
}

// pairCell is the p99 of LC's requests alone, beside BE under other systems, and under the library. Behind it is what BE has of the time
// that LC leaves.
func pairCell(rows []result.Row, alone result.Row, rivals []string) string {
	cell := microseconds(alone.LC.P99Us)
	for _, rival := range rivals {
		cell += " / " + p99(rowOf(rows, alone.Case, rival))
	}
	ours := rowOf(rows, alone.Case, "gpreempt")
	cell += " / " + p99(ours)
	if ours == nil || ours.LC == nil {
		return cell
	}
	cell += fmt.Sprintf(" (%.2f)", ours.LC.P99Us/alone.LC.P99Us)
	if ours.BE != nil {
		cell += fmt.Sprintf("; %.3f", ours.BE.Share)
	}
	if word := became(*ours); word != "" {
		cell += ": " + word
	}
	return cell
}

func p99(r *result.Row) string {
	if r == nil || r.LC == nil {
		return "-"
	}
	return microseconds(r.LC.P99Us)
}

// distinct is the name of a row's case, with the note where several rows have that name.
func distinct(rows []result.Row, row result.Row) string {
	count := 0
	for _, other := range rows {
		if other.Case == row.Case && other.Target != "" {
			count++
		}
	}
	if count < 2 || row.Note == "" {
		return row.Case
	}
	return row.Case + ", " + row.Note
}
