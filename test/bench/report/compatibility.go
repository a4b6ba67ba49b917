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

// compatibilityTables shows what became of programs by the result files of a marker, in one table. Files that are not there are left out.
func compatibilityTables(paths []string) (string, error) {
	var reports []*result.Report
	origins := ""
	for _, path := range paths {
		report, err := result.ReadReport(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		reports = append(reports, report)
		origins += origin(report.Head, path)
	}
	if len(reports) == 0 {
		return "All of them: " + untested + ".\n", nil
	}
	return compatibilityTable(reports) + origins, nil
}

// ofProgram is what the first of the reports in which a program ran says of it, and the commit that was measured; where it ran in none, why not.
func ofProgram(reports []*result.Report, program string) (found result.Row, commit string) {
	for _, report := range reports {
		for _, row := range report.Cases {
			switch {
			case row.Case != "program-"+program:
			case len(row.Ways) > 0:
				return row, report.Commit
			case found.Case == "":
				found, commit = row, report.Commit
			}
		}
	}
	return found, commit
}

// compatibilityTable says what became of each program in each way to run it. Programs and ways that nobody ran are there too.
func compatibilityTable(reports []*result.Report) string {
	var text strings.Builder
	text.WriteString("| program |")
	for _, way := range workload.Ways {
		text.WriteString(" " + way.Title + " |")
	}
	text.WriteString(" commit |\n|---|" + strings.Repeat("---|", len(workload.Ways)+1) + "\n")
	var notes strings.Builder
	for _, program := range workload.Programs {
		row, commit := ofProgram(reports, program.Name)
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
