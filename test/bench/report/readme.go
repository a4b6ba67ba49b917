package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Tables in a document stand between these lines. The first one names a result file, with a * those of all GPUs. Behind the name stand
// cases of a model server, with commas; summary for the evaluation's systems in a line each; or compatibility for programs of one file.
const (
	tableBegin = "<!-- results "
	tableEnd   = "<!-- end of results -->"
)

// Documents are those that show results.
var Documents = []string{"README.md", "docs/results.md", "docs/compatibility.md"}

const summary = "summary"

// FillTables returns a document with each of its tables made anew from the result files of a folder.
func FillTables(document []byte, results string) ([]byte, error) {
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
		file, what, _ := strings.Cut(string(name), " ")
		tables, err := markdownTables(filepath.Join(results, file), what)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s%s -->\n%s%s", tableBegin, name, tables, tableEnd)
		rest = after
	}
}

// markdownTables shows the result files that a pattern stands for: in one table for all GPUs, but for model servers, each of which has its
// own below the name of its GPU.
func markdownTables(pattern, what string) (string, error) {
	if what == compatibility {
		return compatibilityTables(pattern)
	}
	files, err := filepath.Glob(pattern) // sorted
	if err != nil {
		return "", fmt.Errorf("read results %s: %w", pattern, err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("read results %s: %w", pattern, os.ErrNotExist)
	}
	var all []measured
	for _, file := range files {
		report, err := result.ReadReport(file)
		if err != nil {
			return "", err
		}
		if len(report.Cases) == 0 {
			return "", fmt.Errorf("read results %s: %w", file, errors.New("no cases"))
		}
		all = append(all, measured{report, file})
	}
	switch suite := all[0].Benchmark; {
	case suite == workload.Suite:
		return evaluationTables(all, what), nil
	case suite == result.StallsSuite:
		return stallsTable(all), nil
	case suite != result.ServingSuite:
		return sideBySide(all), nil
	}
	var tables []string
	for _, f := range all {
		table := servingTable(f.Report, what) + origin(f.Head, f.path)
		if len(files) > 1 {
			table = "### " + f.GPU + "\n\n" + table
		}
		tables = append(tables, table)
	}
	return strings.Join(tables, "\n"), nil
}

// shows says whether a document has a place for a result file.
func shows(document []byte, file string) bool {
	for _, marked := range bytes.Split(document, []byte(tableBegin))[1:] {
		pattern, _, _ := bytes.Cut(marked, []byte(" "))
		if matches, err := filepath.Match(string(pattern), file); matches && err == nil {
			return true
		}
	}
	return false
}

// origin says where a table's figures are from.
func origin(h result.Head, path string) string {
	return fmt.Sprintf("\n%s, driver %s, CUDA %s, %s, commit %s, %s.\n", h.GPU, h.Driver, h.CUDA, h.Date, h.Commit, filepath.Base(path))
}

func microseconds(us float64) string {
	if us >= 10000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f us", us)
}

// became says whether the target of a row was reached; "" where it has none.
func became(r result.Row) string {
	switch {
	case r.Target == "":
		return ""
	case r.Pass != nil && *r.Pass:
		return "reached"
	}
	return "**missed**"
}

func verdict(r result.Row) string {
	if r.Target == "" {
		return ""
	}
	return became(r) + ": " + r.Target
}

// stallsTable shows the slowest requests.
func stallsTable(files []measured) string {
	var text strings.Builder
	text.WriteString("| case | system | requests | LC p50 | p99 | p99.9 (x alone) | max | target |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range files {
		for _, row := range f.Cases {
			name := row.Case
			if len(files) > 1 {
				name += ", " + f.GPU
			}
			if row.LC == nil {
				fmt.Fprintf(&text, "| %s | %s | - | - | - | - | - | %s |\n", name, row.System, verdict(row))
				continue
			}
			p999 := microseconds(row.LC.P999Us)
			if row.Ratio != nil {
				p999 += fmt.Sprintf(" (%.2f)", row.Ratio.P999)
			}
			fmt.Fprintf(&text, "| %s | %s | %d | %s | %s | %s | %s | %s |\n", name, row.System, row.LC.N, microseconds(row.LC.P50Us),
				microseconds(row.LC.P99Us), p999, microseconds(row.LC.MaxUs), verdict(row))
		}
	}
	return text.String() + "\n" + origins(files)
}
