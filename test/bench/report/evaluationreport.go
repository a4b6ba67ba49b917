// Package report shows results: the report of an evaluation, its plots, the headline, and the tables of the documents.
package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// ReportName is the file of the report.
const ReportName = "evaluation.md"

// Write writes the report and its plots into a folder and returns the report's path.
func Write(e *result.Evaluation, folder string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the report: %w", err)
	}
	plots, err := drawPlots(e, folder)
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, ReportName)
	if err := os.WriteFile(path, []byte(markdown(e, plots)), 0o644); err != nil {
		return "", fmt.Errorf("write the report: %w", err)
	}
	return path, nil
}

const method = `How it was measured:

- Every program is a process of its own. Systems take turns in a new order in each repeat; meanwhile the processes of the other
  systems are idle. The BE programs run without the LC ones in the first repeat only. Repeats may be of several calls.
- Requests arrive whether or not earlier ones are served: by the clock, with a phase that is drawn anew every quarter of a
  second, unless said otherwise. They are the same under all systems.
- A latency counts from a request's arrival. It includes the preparation on the CPU and the wait for earlier requests. None is
  dropped: a request that is not served within a second after the run counts with the time it had waited, while BE goes on.
- Latencies of several LC programs are taken together. The first %.1f s of a run do not count.
- A system that failed in a run was tried again in the next repeat: the last column says so. It also says where a system cannot
  take a workload, or was skipped because the machine lacks a part of it. The points of sweeps (rate,
  prepare, load, be) are measured under fewer systems.
- Intervals are of 95 %% (bootstrap over runs and requests). A p99 of few requests is little more than their slowest.
- Models have random weights, batch 1, fp32, CUDA graphs; distilbert is a transformer of its size.

Throughput is in requests that ended within a run; the total is LC and BE together. *BE / alone* compares with the BE programs
without the LC ones. *BE / default* and *total / default* compare with the same programs under the driver's time slicing, that is
without preemption. Without the LC programs, and under default time slicing, the driver shares the GPU among several BE programs by
time slices, which costs them throughput if their kernels are short. A system that runs BE programs at once (MPS) or one after another (the lock, this
library's turns) saves that: figures above 1.

*BE of what LC leaves* is *BE / alone* divided by the part of the time that the LC programs' own work leaves. Under a system that work
cannot be told from waiting for BE. So it is taken to be the requests that ended, each with the median time, from submission to
end, that those of its program take alone. What the CPU does between submission and end counts as LC's, so LC leaves a little more
than that, and the figure is a little too high, the more so the higher the load. Switches of the GPU between LC and BE come out
of BE's part. Where BE requests come by the clock and all are served, the figure is above 1 and says only that.
`

func markdown(e *result.Evaluation, plots []figurePlot) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Evaluation\n\n")
	if e.Simulated {
		text.WriteString("**Simulated: no GPU. These times say nothing about a real one.**\n\n")
	}
	fmt.Fprintf(&text, "%s, driver %s, CUDA %s, %s, commit %s. `%s`\n\n%s\n", e.GPU, e.Driver, e.CUDA, e.Date, e.Commit, e.Command, fmt.Sprintf(method, result.WarmUp.Seconds()))
	text.WriteString("## Published figures\n\n" + publishedTable(e) + "\n")
	text.WriteString("## Targets\n\n" + targetTable(e) + "\n")
	text.WriteString("## Systems\n\n| system | what it is |\n|---|---|\n")
	for _, name := range e.Names(result.SystemName, func(*result.EvaluationCase) bool { return true }) {
		text.WriteString("| " + name + " | " + aboutSystem(name) + " |\n")
	}
	for _, plot := range plots {
		if !strings.HasPrefix(plot.file, "cdf-") {
			fmt.Fprintf(&text, "\n![%s](%s)\n\n%s.\n", plot.caption, plot.file, plot.caption)
		}
	}
	for _, workload := range e.Names(result.CaseName, func(*result.EvaluationCase) bool { return true }) {
		text.WriteString("\n" + workloadSection(e, workload))
		if slices.ContainsFunc(plots, func(p figurePlot) bool { return p.file == "cdf-"+workload+".svg" }) {
			fmt.Fprintf(&text, "\n![Latencies of %s](cdf-%s.svg)\n", workload, workload)
		}
	}
	return text.String()
}

func aboutSystem(name string) string {
	switch name {
	case result.LCAlone:
		return "the LC programs with the GPU to themselves"
	case result.BEAlone:
		return "the BE programs without the LC ones; where there are several, the driver shares the GPU among them"
	}
	if system, err := workload.Systems([]string{name}); err == nil {
		return system[0].About
	}
	return "described by a file of the user's"
}

// withTargets are the cases for which there are targets.
func withTargets(e *result.Evaluation) []*result.EvaluationCase {
	var all []*result.EvaluationCase
	for i := range e.Cases {
		if c := &e.Cases[i]; c.HasTarget() {
			all = append(all, c)
		}
	}
	return all
}

// targetTable says of every target whether it is reached, and by how much it is missed.
func targetTable(e *result.Evaluation) string {
	var table strings.Builder
	table.WriteString("Targets, relative to the LC programs alone and to default time slicing: " + result.TargetsText + ". Of " + strings.Join(result.LeftWorkloads, ", ") + ": " + result.LeftTargetText + ".\n\n")
	table.WriteString("| workload | system | LC p99 / alone (95 %) | LC mean / alone (95 %) | total / default | BE / default | BE of what LC leaves | |\n|---|---|---|---|---|---|---|---|\n")
	any := false
	for _, c := range withTargets(e) {
		any = true
		if c.Pass == nil {
			fmt.Fprintf(&table, "| %s | %s | - | - | - | - | - | %s |\n", c.Case, c.System, c.Unmeasured())
			continue
		}
		left := "-"
		if c.Left != nil {
			left = fmt.Sprintf("%.3f", c.Left.BE)
		}
		fmt.Fprintf(&table, "| %s | %s | %.2f (%s) | %.3f (%s) | %.3f | %.3f | %s | %s |\n", c.Case, c.System, c.Ratio.P99, result.Between(c.Ratio.P99CI, 1, "%.2f"),
			c.Ratio.Mean, result.Between(c.Ratio.MeanCI, 1, "%.3f"), c.Throughput.OfDefault, c.Throughput.BEOfDefault, left, c.Verdict())
	}
	if !any {
		return "None of the workloads with targets was measured.\n"
	}
	return table.String()
}

func workloadSection(e *result.Evaluation, workload string) string {
	var text strings.Builder
	header := false
	for i := range e.Cases {
		c := &e.Cases[i]
		if c.Case != workload {
			continue
		}
		if !header {
			fmt.Fprintf(&text, "## %s\n\n%s.", workload, capitalised(c.About))
			if c.PrepareUs > 0 {
				fmt.Fprintf(&text, " Preparation of a request: %d us.", c.PrepareUs)
			}
			text.WriteString("\n\n| system | LC n | mean ms | p50 ms | p95 | p99 (95 %) | p99.9 | max | p99 / alone (95 %) | from submission p50 / p99 | LC/s | BE/s | BE / alone | BE of what LC leaves | BE / default | total / default | queued | CPU ms/request | |\n")
			text.WriteString("|" + strings.Repeat("---|", 19) + "\n")
			header = true
		}
		fmt.Fprintf(&text, "| %s | %s |\n", c.System, strings.Join(c.Cells(), " | "))
	}
	return text.String() + bePrograms(e, workload)
}

// bePrograms says what each BE program got, where there are different ones.
func bePrograms(e *result.Evaluation, workload string) string {
	var text strings.Builder
	for i := range e.Cases {
		c := &e.Cases[i]
		if c.Case != workload || len(c.Runs) == 0 {
			continue
		}
		var programs, offered []string
		for _, t := range c.Runs[0].Tasks {
			if t.Role != "lc" {
				programs, offered = append(programs, t.Program), append(offered, "without pause")
				if t.RateHz > 0 {
					offered[len(offered)-1] = fmt.Sprintf("%g", t.RateHz)
				}
			}
		}
		if len(slices.Compact(slices.Sorted(slices.Values(programs)))) < 2 {
			continue
		}
		if text.Len() == 0 {
			fmt.Fprintf(&text, "\n| BE requests/s | %s |\n|%s\n", strings.Join(programs, " | "), strings.Repeat("---|", len(programs)+1))
			fmt.Fprintf(&text, "| asked for | %s |\n", strings.Join(offered, " | "))
		}
		fmt.Fprintf(&text, "| %s |", c.System)
		for _, rate := range c.PerSecond("be") {
			fmt.Fprintf(&text, " %.1f |", rate)
		}
		text.WriteString("\n")
	}
	return text.String()
}

func capitalised(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// reportFolder has the report of a committed result file, in the folder of results: each GPU has its own.
func reportFolder(file string) string {
	return "evaluation/" + strings.TrimSuffix(filepath.Base(file), ".json")
}

// evaluationTable shows a result file in a document: the published figures, the plots of the report and, for each
// workload, the LC latencies of the systems relative to alone; or its summary.
func evaluationTable(path, what, links string) (string, error) {
	e, err := result.ReadEvaluation(path) // makes the figures as the report does
	if err != nil {
		return "", err
	}
	if what == summary {
		return summaryTable(e) + origin(e.Head, path), nil
	}
	links += "/" + reportFolder(path)
	var text strings.Builder
	if e.Simulated {
		text.WriteString("**Simulated: no GPU. These times say nothing about a real one.**\n\n")
	}
	if whole, _ := filepath.Match(headlineResults, filepath.Base(path)); whole {
		text.WriteString(publishedTable(e) + "\n")
	}
	for _, b := range barPlots {
		if b.headline && len(e.Names(result.CaseName, b.has)) > 0 {
			fmt.Fprintf(&text, "![%s](%s/%s)\n\n", b.caption, links, b.file)
		}
	}
	text.WriteString("LC p99 relative to running alone; in brackets BE throughput relative to default time slicing:\n\n")
	usual := func(sweep bool) func(*result.EvaluationCase) bool {
		return func(c *result.EvaluationCase) bool {
			return !workload.Optional(c.System) && !workload.IsRival(c.System) && workload.InSweep(c.Case) == sweep
		}
	}
	text.WriteString(p99Table(e, usual(false)))
	if len(e.Names(result.CaseName, usual(true))) > 0 {
		text.WriteString("\nThe points of sweeps, under fewer systems:\n\n" + p99Table(e, usual(true)))
	}
	rivals := func(c *result.EvaluationCase) bool { return workload.IsRival(c.System) }
	if len(e.Names(result.CaseName, rivals)) > 0 {
		text.WriteString("\nThe same under systems of others, and MPS with limits:\n\n" + p99Table(e, rivals) + marks(e, rivals))
	}
	toggled := func(c *result.EvaluationCase) bool { return workload.Optional(c.System) }
	if len(e.Names(result.CaseName, toggled)) > 0 {
		text.WriteString("\nThe same with these of the mechanisms alone:\n\n" + p99Table(e, toggled))
	}
	var missed strings.Builder
	reached := 0
	for _, c := range withTargets(e) {
		switch {
		case c.Pass == nil:
			fmt.Fprintf(&missed, "- %s, %s: %s\n", c.Case, c.System, c.Unmeasured())
		case *c.Pass:
			reached++
		default:
			fmt.Fprintf(&missed, "- %s, %s: %s\n", c.Case, c.System, c.Missed)
		}
	}
	fmt.Fprintf(&text, "\nTargets of %s: %s. Of %s: %s. Reached in %d of %d cases", strings.Join(claimed, ", "), result.TargetsText,
		strings.Join(result.LeftWorkloads, ", "), result.LeftTargetText, reached, len(withTargets(e)))
	if missed.Len() > 0 {
		text.WriteString(", not in\n\n" + missed.String())
	} else {
		text.WriteString(".\n")
	}
	fmt.Fprintf(&text, "\nWhat the workloads and systems are, all figures and how they were measured: [report](%s/%s).\n", links, ReportName)
	text.WriteString(origin(e.Head, path))
	return text.String(), nil
}

// summaryTable compares the systems of the headline over all workloads that are no points of sweeps.
func summaryTable(e *result.Evaluation) string {
	in := func(c *result.EvaluationCase) bool {
		return slices.Contains(headlineSystems, c.System) && !workload.InSweep(c.Case) && c.Ratio != nil && c.Throughput != nil && c.Throughput.BEOfDefault > 0
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| median of %d workloads (worst) | LC p99, relative to alone | LC mean, relative to alone | BE throughput, relative to default |\n|---|---|---|---|\n", len(e.Names(result.CaseName, in)))
	for _, system := range headlineSystems {
		var p99, mean, be []float64
		for i := range e.Cases {
			if c := &e.Cases[i]; c.System == system && in(c) {
				p99, mean, be = append(p99, c.Ratio.P99), append(mean, c.Ratio.Mean), append(be, c.Throughput.BEOfDefault)
			}
		}
		if len(p99) == 0 {
			continue
		}
		slices.Sort(p99)
		slices.Sort(mean)
		slices.Sort(be)
		fmt.Fprintf(&table, "| %s | %.2f (%.2f) | %.2f (%.2f) | %.2f (%.2f) |\n", systemLabel(system),
			result.Quantile(p99, .5), p99[len(p99)-1], result.Quantile(mean, .5), mean[len(mean)-1], result.Quantile(be, .5), be[0])
	}
	return table.String()
}

// p99Table compares the systems of some cases, with a row for each workload that has such a case.
func p99Table(e *result.Evaluation, of func(*result.EvaluationCase) bool) string {
	in := func(c *result.EvaluationCase) bool {
		return c.System != result.LCAlone && c.System != result.BEAlone && of(c)
	}
	systems := e.Names(result.SystemName, in)
	var text strings.Builder
	fmt.Fprintf(&text, "| workload | LC p99 alone | %s |\n|%s\n", strings.Join(systems, " | "), strings.Repeat("---|", len(systems)+2))
	for _, workload := range e.Names(result.CaseName, in) {
		alone := "-"
		if c := e.Of(workload, result.LCAlone); c != nil && c.LC != nil {
			alone = microseconds(c.LC.P99Us)
		}
		fmt.Fprintf(&text, "| %s | %s |", workload, alone)
		for _, system := range systems {
			cell := "-"
			c := e.Of(workload, system)
			if word, _ := noFigures(c); word != "" {
				cell = word
			}
			if c != nil && c.Ratio != nil {
				cell = fmt.Sprintf("%.2f", c.Ratio.P99)
				if c.Throughput.BEOfDefault > 0 {
					cell += fmt.Sprintf(" (%.2f)", c.Throughput.BEOfDefault)
				}
				if c.Pass != nil && !*c.Pass {
					cell += " **missed**"
				}
			}
			text.WriteString(" " + cell + " |")
		}
		text.WriteString("\n")
	}
	return text.String()
}

// noFigures says in a word and a sentence why a case has no figures; "" where it has, or nothing is known.
func noFigures(c *result.EvaluationCase) (word, why string) {
	switch {
	case c == nil:
	case c.Mark() != "":
		return c.Mark(), c.Skipped + c.Cannot
	case len(c.Runs) == 0 && c.Note != "":
		return "failed", strings.ReplaceAll(c.Note, "\n", " ")
	}
	return "", ""
}

// marks says of each system why some cases of it have no figures.
func marks(e *result.Evaluation, of func(*result.EvaluationCase) bool) string {
	var text strings.Builder
	reason := func(c *result.EvaluationCase) string {
		word, why := noFigures(c)
		return word + ": " + why
	}
	for _, system := range e.Names(result.SystemName, of) {
		marked := func(c *result.EvaluationCase) bool {
			word, _ := noFigures(c)
			return c.System == system && word != ""
		}
		for _, why := range e.Names(reason, marked) {
			workloads := e.Names(result.CaseName, func(c *result.EvaluationCase) bool { return marked(c) && reason(c) == why })
			fmt.Fprintf(&text, "- %s under %s %s\n", strings.Join(workloads, ", "), system, why)
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return "\n" + text.String()
}
