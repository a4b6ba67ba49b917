package report

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

const (
	compatibility = "compatibility"
	untested      = "untested"
)

// compatibilityTables shows what became of programs by a result file, which need not be there.
func compatibilityTables(path string) (string, error) {
	report, err := result.ReadReport(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "All of them: " + untested + ".\n", nil
	}
	if err != nil {
		return "", err
	}
	return compatibilityTable(report) + origin(report.Head, path), nil
}

// compatibilityTable says what became of each program in each way to run it. Programs and ways that nobody ran are there too.
func compatibilityTable(report *result.Report) string {
	var text strings.Builder
	text.WriteString("| program |")
	for _, way := range workload.Ways {
		text.WriteString(" " + way.Title + " |")
	}
	text.WriteString(" commit |\n|---|" + strings.Repeat("---|", len(workload.Ways)+1) + "\n")
	var notes strings.Builder
	for _, program := range workload.Programs {
		row, commit := rowOf(report.Cases, "program-"+program.Name, "gpreempt"), report.Commit
		if row == nil {
			row, commit = &result.Row{}, ""
		}
		gpus := ""
		if program.GPUs > 1 {
			gpus = fmt.Sprintf(", %d GPUs", program.GPUs)
		}
		fmt.Fprintf(&text, "| %s%s |", program.About, gpus)
		for _, way := range workload.Ways {
			text.WriteString(" " + cell(row.Ways[way.Name]) + " |")
		}
		text.WriteString(" " + commit + " |\n")
		if row.Note != "" && (row.Pass == nil || !*row.Pass) {
			fmt.Fprintf(&notes, "- %s: %s\n", program.About, plain(row.Note))
		}
	}
	if notes.Len() > 0 {
		text.WriteString("\n" + notes.String())
	}
	return text.String()
}

func cell(what string) string {
	switch what {
	case "":
		return untested
	case workload.Same, workload.NotEvicted, workload.NotStopped:
		return what
	}
	return "**" + what + "**"
}

// plain is a program's text as part of a line of Markdown.
func plain(text string) string {
	return strings.NewReplacer("\n", " ", "|", "/", "<", "(", ">", ")", "`", "'", "*", "").Replace(text)
}
