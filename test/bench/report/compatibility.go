package report

import (
	"fmt"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

const (
	compatibility = "compatibility"
	untested      = "untested"
)

// compatibilityTable says what became of each program in each way to run it. What nobody ran is there too.
func compatibilityTable(rows []result.Row) string {
	var text strings.Builder
	text.WriteString("| program |")
	for _, way := range workload.Ways {
		text.WriteString(" " + way.Title + " |")
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(workload.Ways)) + "\n")
	var notes strings.Builder
	for _, program := range workload.Programs {
		var row result.Row
		for _, one := range rows {
			if one.Case == "program-"+program.Name {
				row = one
			}
		}
		gpus := ""
		if program.GPUs > 1 {
			gpus = fmt.Sprintf(", %d GPUs", program.GPUs)
		}
		fmt.Fprintf(&text, "| %s%s |", program.About, gpus)
		for _, way := range workload.Ways {
			text.WriteString(" " + cell(row.Ways[way.Name]) + " |")
		}
		text.WriteString("\n")
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
