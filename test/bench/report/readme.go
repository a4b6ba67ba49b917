package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Tables in a document stand between these lines. The first one names the result file, or with a * the files of all GPUs, each of
// which gets a table; and, where it is not gpreempt, the system to show beside alone and default, summary for the evaluation's systems in a line each, or compatibility for what became
// of programs in each way to run them. That may name several files, with commas, for one table: of a program that several have, the first counts.
const (
	tableBegin = "<!-- results "
	tableEnd   = "<!-- end of results -->"
)

// Documents are those that show results, and where they find the folder of results.
var Documents = []struct{ Path, Results string }{
	{"README.md", "test/bench/results"},
	{"docs/results.md", "../test/bench/results"},
	{"docs/compatibility.md", "../test/bench/results"},
}

const summary = "summary"

// mayBeMissing says whether a document may show a suite's table before anything is measured.
func mayBeMissing(suite string) bool {
	return workload.IsEvaluation(suite) || slices.Contains([]string{"tvm"}, suite)
}

// FillTables returns a document with each of its tables made anew from the result files of a folder, which the document's
// links find at the second path.
func FillTables(document []byte, results, links string) ([]byte, error) {
	var out bytes.Buffer
	rest := document
	for {
		before, marked, found := bytes.Cut(rest, []byte(tableBegin))
		out.Write(before)
		if !found {
			return out.Bytes(), nil
		}
		name, body, closed := bytes.Cut(marked, []byte(" -->\n"))
		_, after, ended := bytes.Cut(body, []byte(tableEnd))
		if !closed || !ended {
			return nil, fmt.Errorf("table %.40q: no %q", marked, tableEnd)
		}
		file, system, named := strings.Cut(string(name), " ")
		if !named {
			system = "gpreempt"
		}
		tables, err := tablesOf(results, file, system, links)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s%s -->\n%s%s", tableBegin, name, tables, tableEnd)
		rest = after
	}
}

func tablesOf(results, file, system, links string) (string, error) {
	if system != compatibility {
		return markdownTables(filepath.Join(results, file), system, links)
	}
	var paths []string
	for _, name := range patternsOf(file) {
		if strings.ContainsAny(name, "*?[") {
			return "", fmt.Errorf("table of %s: %s: a table of programs names its files, the newest first", compatibility, name)
		}
		paths = append(paths, filepath.Join(results, name))
	}
	return compatibilityTables(paths)
}

// markdownTables shows the result files that a pattern stands for. What is longer than a summary is below the name of its GPU where
// there are several.
func markdownTables(pattern, system, links string) (string, error) {
	files, err := filepath.Glob(pattern) // sorted
	if err != nil {
		return "", fmt.Errorf("read results %s: %w", pattern, err)
	}
	if len(files) == 0 {
		files = []string{pattern} // which says what there may not be yet
	}
	var tables []string
	for _, file := range files {
		table, err := markdownTable(file, system, links)
		if err != nil {
			return "", err
		}
		if len(files) > 1 && system != summary {
			gpu, err := gpuOf(file)
			if err != nil {
				return "", err
			}
			table = "### " + gpu + "\n\n" + table
		}
		tables = append(tables, table)
	}
	return strings.Join(tables, "\n"), nil
}

func gpuOf(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read results: %w", err)
	}
	var head result.Head
	if err := json.Unmarshal(data, &head); err != nil {
		return "", fmt.Errorf("read results %s: %w", path, err)
	}
	return head.GPU, nil
}

// patternsOf are the names, or patterns, of result files in the first line of a table.
func patternsOf(marker string) []string {
	files, _, _ := strings.Cut(marker, " ")
	return strings.Split(files, ",")
}

// shows says whether a document has a place for a result file.
func shows(document []byte, file string) bool {
	for _, marked := range bytes.Split(document, []byte(tableBegin))[1:] {
		name, _, _ := bytes.Cut(marked, []byte(" -->\n"))
		for _, pattern := range patternsOf(string(name)) {
			if matches, err := filepath.Match(pattern, file); matches && err == nil {
				return true
			}
		}
	}
	return false
}

// markdownTable shows a result file: one line a case, alone / default / a system side by side.
func markdownTable(path, system, links string) (string, error) {
	data, err := os.ReadFile(path)
	if _, suite, named := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".json"), "-"); named && mayBeMissing(suite) && errors.Is(err, os.ErrNotExist) {
		return "Not measured yet.\n", nil
	}
	if err != nil {
		return "", fmt.Errorf("read results: %w", err)
	}
	var report result.Report
	if err := json.Unmarshal(data, &report); err != nil {
		return "", fmt.Errorf("read results %s: %w", path, err)
	}
	if workload.IsEvaluation(report.Benchmark) {
		return evaluationTable(path, system, links)
	}
	if len(report.Cases) == 0 {
		return "", fmt.Errorf("read results %s: %w", path, errors.New("no cases"))
	}
	if report.Benchmark == result.StallsSuite {
		if name := report.Raw; name != "" { // it has the whole lists
			report = result.Report{}
			if err := result.ReadRaw(path, name, &report); err != nil {
				return "", err
			}
		}
		return stallsTable(&report) + origin(report.Head, path), nil
	}
	if report.Benchmark == result.ServingSuite {
		only := system
		if only == "gpreempt" { // none is named
			only = ""
		}
		return servingTable(&report, only) + origin(report.Head, path), nil
	}
	rivals := rivalsIn(report.Cases)
	var pairs, values strings.Builder
	var done []string
	for _, row := range report.Cases {
		switch {
		case slices.Contains(done, row.Case):
		case row.LC != nil && row.System == "alone":
			done = append(done, row.Case)
			pairs.WriteString(pairLine(report.Cases, row, rivals, system))
		case row.LC != nil && row.Target != "" && rowOf(report.Cases, row.Case, "alone") == nil:
			fmt.Fprintf(&values, "| %s | p99 %s (p50 %s) | %s |\n", row.Case, microseconds(row.LC.P99Us), microseconds(row.LC.P50Us), verdict(row))
		case row.Value != nil && row.Target != "":
			fmt.Fprintf(&values, "| %s | %.4g %s | %s |\n", distinct(report.Cases, row), *row.Value, row.Unit, verdict(row))
		case row.LC == nil && row.BE != nil && row.Target != "":
			fmt.Fprintf(&values, "| %s | %.3f of alone | %s |\n", row.Case, row.BE.Now/row.BE.Alone, verdict(row))
		}
	}
	var text strings.Builder
	if pairs.Len() > 0 {
		text.WriteString("| LC beside BE | LC p99 alone |")
		for _, rival := range rivals {
			text.WriteString(" " + rivalNames[rival] + " |")
		}
		fmt.Fprintf(&text, " %s (p50) | x alone | BE of what LC leaves", system)
		if len(rivals) > 0 {
			text.WriteString(" (" + strings.Fields(rivalNames[rivals[0]])[0] + ")")
		}
		text.WriteString(" | target |\n|---|---|" + strings.Repeat("---|", len(rivals)) + "---|---|---|---|\n" + pairs.String())
	}
	if values.Len() > 0 {
		if pairs.Len() > 0 {
			text.WriteString("\n")
		}
		text.WriteString("| measured | value | target |\n|---|---|---|\n" + values.String())
	}
	return text.String() + origin(report.Head, path), nil
}

// origin says where a table's figures are from.
func origin(h result.Head, path string) string {
	return fmt.Sprintf("\n%s, driver %s, CUDA %s, %s, commit %s, %s.\n", h.GPU, h.Driver, h.CUDA, h.Date, h.Commit, filepath.Base(path))
}

// What is shown beside this library, by the systems' names in result files.
var rivalNames = map[string]string{
	"default": "default time slicing", "mps": "MPS", "mps-priority": "MPS with priorities", "mps-25": "MPS with 25 % of the SMs", "priority": "stream priorities",
}

func rivalsIn(rows []result.Row) (names []string) {
	for _, row := range rows {
		if rivalNames[row.System] != "" && row.LC != nil && !slices.Contains(names, row.System) {
			names = append(names, row.System)
		}
	}
	return names
}

func rowOf(rows []result.Row, name, system string) *result.Row {
	for i := range rows {
		if rows[i].Case == name && rows[i].System == system {
			return &rows[i]
		}
	}
	return nil
}

func pairLine(rows []result.Row, alone result.Row, rivals []string, system string) string {
	ours := rowOf(rows, alone.Case, system)
	var plain *result.Row
	theirs := ""
	for i, rival := range rivals {
		row := rowOf(rows, alone.Case, rival)
		if i == 0 {
			plain = row
		}
		theirs += p99(row) + " | "
	}
	ratio, share, target, mine := "-", "-", "", "-"
	if ours != nil {
		target = verdict(*ours)
		if ours.LC != nil {
			mine = fmt.Sprintf("%s (%s)", p99(ours), microseconds(ours.LC.P50Us))
			ratio = fmt.Sprintf("%.2f", ours.LC.P99Us/alone.LC.P99Us)
		}
		if ours.BE != nil {
			share = fmt.Sprintf("%.3f", ours.BE.Share)
			if plain != nil && plain.BE != nil {
				share += fmt.Sprintf(" (%.3f)", plain.BE.Share)
			}
		}
	}
	return fmt.Sprintf("| %s | %s | %s%s | %s | %s | %s |\n", alone.Case, microseconds(alone.LC.P99Us), theirs, mine, ratio, share, target)
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

func microseconds(us float64) string {
	if us >= 10000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f us", us)
}

func verdict(r result.Row) string {
	switch {
	case r.Undecided != "":
		return strings.TrimSuffix("**undecided**, "+r.Undecided+": "+r.Target, ": ")
	case r.Target == "":
		return ""
	case r.Pass != nil && *r.Pass:
		return "reached: " + r.Target
	}
	return "**missed**: " + r.Target
}

// slowUs is the product's target: no request of those announced takes longer.
const slowUs = 10000

// slowRequests says how many requests took longer than slowUs, and why; "" where none did. The list has to be whole.
func slowRequests(s *result.Stalls) string {
	causes, count := map[string]int{}, 0
	for _, stall := range s.List {
		if stall.LatencyUs > slowUs {
			causes[stall.Cause]++
			count++
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d above %s: %s", count, microseconds(slowUs), (&result.Stalls{Causes: causes}).CauseList())
}

// stallsTable is that of docs/results.md: what is in one line of printStalls, in Markdown.
func stallsTable(r *result.Report) string {
	var text strings.Builder
	text.WriteString("| case | system | requests | LC p50 | p99 | p99.9 (x alone) | max | stalls, and their causes | target |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Cases {
		if row.LC == nil {
			fmt.Fprintf(&text, "| %s | %s | - | - | - | - | - | - | %s |\n", row.Case, row.System, verdict(row))
			continue
		}
		p999 := microseconds(row.LC.P999Us)
		if row.Ratio != nil {
			p999 += fmt.Sprintf(" (%.2f)", row.Ratio.P999)
		}
		stalls := ""
		if row.Stalls != nil {
			stalls = fmt.Sprintf("%d above %s", row.Stalls.Above, microseconds(row.Stalls.LimitUs))
			if row.Stalls.Above > 0 {
				stalls += ": " + row.Stalls.CauseList()
			}
			if slow := slowRequests(row.Stalls); slow != "" {
				stalls += "; **" + slow + "**"
			}
			if guests := row.Stalls.GuestList(); guests != "" {
				stalls += "; " + guests
			}
		}
		fmt.Fprintf(&text, "| %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", row.Case, row.System, row.LC.N, microseconds(row.LC.P50Us),
			microseconds(row.LC.P99Us), p999, microseconds(row.LC.MaxUs), stalls, verdict(row))
	}
	return text.String()
}
