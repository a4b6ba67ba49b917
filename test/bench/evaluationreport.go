package bench

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ReportName is the file of the report.
const ReportName = "evaluation.md"

// WriteReport writes the report and its plots into a folder and returns the report's path.
func (e *Evaluation) WriteReport(folder string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of the report: %w", err)
	}
	plots, err := e.plots(folder)
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, ReportName)
	if err := os.WriteFile(path, []byte(e.markdown(plots)), 0o644); err != nil {
		return "", fmt.Errorf("write the report: %w", err)
	}
	return path, nil
}

const method = `How it was measured:

- Every program is a process of its own. Systems take turns in a new order in each repeat; meanwhile the processes of the other
  systems are idle. The BE programs run without the LC ones in the first repeat only.
- Requests arrive whether or not earlier ones are served: by the clock, with a phase that is drawn anew every quarter of a
  second, unless said otherwise. They are the same under all systems.
- A latency counts from a request's arrival. It includes the preparation on the CPU and the wait for earlier requests. None is
  dropped: a request that is not served within a second after the run counts with the time it had waited, while BE goes on.
- Latencies of several LC programs are taken together. The first %.1f s of a run do not count.
- A system that failed in a run was tried again in the next repeat: the last column says so. The points of sweeps (rate,
  prepare, load, be) are measured under fewer systems.
- Intervals are of 95 %% (bootstrap over runs and requests). A p99 of few requests is little more than their slowest.
- Models have random weights, batch 1, fp32, CUDA graphs; distilbert is a transformer of its size.

Throughput is in requests that ended within a run; the total is LC and BE together. *BE / alone* compares with the BE programs
without the LC ones. *BE / default* and *total / default* compare with the same programs under the driver's time slicing, that is
without preemption. In both of these the driver shares the GPU among several BE programs by time slices, which costs them
throughput if their kernels are short. A system that runs BE programs at once (MPS) or one after another (the lock, this
library's turns) saves that: figures above 1.
`

func (e *Evaluation) markdown(plots []figurePlot) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Evaluation\n\n")
	if e.Simulated {
		text.WriteString("**Simulated: no GPU. These times say nothing about a real one.**\n\n")
	}
	fmt.Fprintf(&text, "%s, driver %s, CUDA %s, %s, commit %s. `%s`\n\n%s\n", e.GPU, e.Driver, e.CUDA, e.Date, e.Commit, e.Command, fmt.Sprintf(method, warmUp.Seconds()))
	text.WriteString("## Published figures\n\n" + e.publishedTable() + "\n")
	text.WriteString("## Targets\n\n" + e.targetTable() + "\n")
	text.WriteString("## Systems\n\n| system | what it is |\n|---|---|\n")
	for _, name := range e.names(systemName, func(*EvaluationCase) bool { return true }) {
		text.WriteString("| " + name + " | " + aboutSystem(name) + " |\n")
	}
	for _, plot := range plots {
		if !strings.HasPrefix(plot.file, "cdf-") {
			fmt.Fprintf(&text, "\n![%s](%s)\n\n%s.\n", plot.caption, plot.file, plot.caption)
		}
	}
	for _, workload := range e.names(caseName, func(*EvaluationCase) bool { return true }) {
		text.WriteString("\n" + e.workloadSection(workload))
		if slices.ContainsFunc(plots, func(p figurePlot) bool { return p.file == "cdf-"+workload+".svg" }) {
			fmt.Fprintf(&text, "\n![Latencies of %s](cdf-%s.svg)\n", workload, workload)
		}
	}
	return text.String()
}

func aboutSystem(name string) string {
	switch name {
	case lcAlone:
		return "the LC programs with the GPU to themselves"
	case beAlone:
		return "the BE programs without the LC ones; where there are several, the driver shares the GPU among them"
	}
	if system, err := Systems([]string{name}); err == nil {
		return system[0].About
	}
	return "described by a file of the user's"
}

// withTargets are the cases for which there are targets.
func (e *Evaluation) withTargets() []*EvaluationCase {
	var all []*EvaluationCase
	for i := range e.Cases {
		if c := &e.Cases[i]; c.Claimed && (c.System == "gpreempt" || c.System == "gpreempt-hints") {
			all = append(all, c)
		}
	}
	return all
}

// unmeasured says why a case has no verdict.
func (c *EvaluationCase) unmeasured() string {
	text := "not measured"
	if len(c.Runs) > 0 {
		text = "nothing to compare with"
	}
	if c.Note != "" {
		text += ": " + inCell(c.Note)
	}
	return text
}

func inCell(text string) string { return strings.NewReplacer("|", "/", "\n", " ").Replace(text) }

// targetTable says of every target whether it is reached, and by how much it is missed.
func (e *Evaluation) targetTable() string {
	var table strings.Builder
	table.WriteString("Targets, relative to the LC programs alone and to default time slicing: " + targetsText + ".\n\n")
	table.WriteString("| workload | system | LC p99 / alone (95 %) | LC mean / alone (95 %) | total / default | BE / default | |\n|---|---|---|---|---|---|---|\n")
	any := false
	for _, c := range e.withTargets() {
		any = true
		if c.Pass == nil {
			fmt.Fprintf(&table, "| %s | %s | - | - | - | - | %s |\n", c.Case, c.System, c.unmeasured())
			continue
		}
		fmt.Fprintf(&table, "| %s | %s | %.2f (%s) | %.3f (%s) | %.3f | %.3f | %s |\n", c.Case, c.System, c.Ratio.P99, between(c.Ratio.P99CI, 1, "%.2f"),
			c.Ratio.Mean, between(c.Ratio.MeanCI, 1, "%.3f"), c.Throughput.OfDefault, c.Throughput.BEOfDefault, c.verdict())
	}
	if !any {
		return "None of the workloads with targets was measured.\n"
	}
	return table.String()
}

func (c *EvaluationCase) verdict() string {
	switch {
	case c.Pass == nil:
		return ""
	case *c.Pass:
		return "reached"
	}
	return "**missed**: " + c.Missed
}

func between(interval [2]float64, unit float64, format string) string {
	return fmt.Sprintf(format+" to "+format, interval[0]/unit, interval[1]/unit)
}

func (e *Evaluation) workloadSection(workload string) string {
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
			text.WriteString("\n\n| system | LC n | mean ms | p50 ms | p95 | p99 (95 %) | p99.9 | max | p99 / alone (95 %) | from submission p50 / p99 | LC/s | BE/s | BE / alone | BE / default | total / default | queued | CPU ms/request | |\n")
			text.WriteString("|" + strings.Repeat("---|", 18) + "\n")
			header = true
		}
		fmt.Fprintf(&text, "| %s | %s |\n", c.System, strings.Join(c.cells(), " | "))
	}
	return text.String() + e.bePrograms(workload)
}

// bePrograms says what each BE program got, where there are different ones.
func (e *Evaluation) bePrograms(workload string) string {
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
		for _, rate := range c.perSecond("be") {
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

// cells are the columns of the tables.
func (c *EvaluationCase) cells() []string {
	cells := slices.Repeat([]string{"-"}, 16)
	if d := c.LC; d != nil {
		ms := func(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
		cells[0], cells[1], cells[2], cells[3] = fmt.Sprint(d.N), ms(d.MeanUs), ms(d.P50Us), ms(d.P95Us)
		cells[4] = fmt.Sprintf("%s (%s)", ms(d.P99Us), between(d.P99CIUs, 1000, "%.2f"))
		cells[5], cells[6] = ms(d.P999Us), ms(d.MaxUs)
	}
	if c.Ratio != nil {
		cells[7] = fmt.Sprintf("%.2f (%s)", c.Ratio.P99, between(c.Ratio.P99CI, 1, "%.2f"))
	}
	if c.LCSubmitted != nil {
		cells[8] = fmt.Sprintf("%.2f / %.2f", c.LCSubmitted.P50Us/1000, c.LCSubmitted.P99Us/1000)
	}
	if c.Throughput != nil && c.LC != nil {
		cells[9] = fmt.Sprintf("%.1f", c.Throughput.LC)
	}
	if c.BE != nil {
		cells[10], cells[11] = fmt.Sprintf("%.1f", c.BE.Now), fmt.Sprintf("%.3f", c.BE.Share)
	}
	if c.Throughput != nil && c.Throughput.BEOfDefault > 0 {
		cells[12] = fmt.Sprintf("%.3f", c.Throughput.BEOfDefault)
	}
	if c.Throughput != nil && c.Throughput.OfDefault > 0 {
		cells[13] = fmt.Sprintf("%.3f", c.Throughput.OfDefault)
	}
	if c.LC != nil {
		cells[14] = fmt.Sprint(c.Queued)
		if c.CPU != nil {
			cells[15] = fmt.Sprintf("%.2f", c.CPU.LCMs)
		}
	}
	return append(cells, c.remarks())
}

// enough is the part of the LC requests that end within a run where they do not pile up.
const enough = 0.95

func (c *EvaluationCase) remarks() string {
	var remarks []string
	if c.Pass != nil {
		remarks = append(remarks, c.verdict())
	}
	if c.Throughput != nil && c.Throughput.LCOfAlone > 0 && c.Throughput.LCOfAlone < enough {
		remarks = append(remarks, "LC requests come faster than they are served: their latencies grow for as long as the run lasts")
	}
	if c.Unserved > 0 {
		remarks = append(remarks, fmt.Sprintf("%d requests found no end", c.Unserved))
	}
	if c.Identical != nil && !*c.Identical {
		remarks = append(remarks, "**results differ**")
	}
	if c.Note != "" {
		remarks = append(remarks, inCell(c.Note))
	}
	return strings.Join(remarks, "; ")
}

// Print writes the table for people.
func (e *Evaluation) Print(out io.Writer) error {
	kind := ""
	if e.Simulated {
		kind = " [SIMULATED: no GPU, these times mean nothing for a real one]"
	}
	fmt.Fprintf(out, "%s, driver %s, CUDA %s%s\n\n", e.GPU, e.Driver, e.CUDA, kind)
	t := newTable(out, "workload", "system", "n", "mean ms", "p50", "p95", "p99", "p99.9", "max", "p99/alone", "submitted p50 / p99", "LC/s", "BE/s", "BE/alone", "BE/default", "total/default", "queued", "CPU ms")
	previous := ""
	for i := range e.Cases {
		c := &e.Cases[i]
		name := c.Case
		if name == previous {
			name = ""
		}
		previous = c.Case
		t.row(append([]string{name, c.System}, c.cells()...)...)
	}
	if err := t.end(); err != nil {
		return err
	}
	return nil
}

// reportFolder has the report of the committed results, in their folder.
const reportFolder = "evaluation"

// evaluationTable shows a result file in a document: the published figures, the plots of the report and, for each
// workload, the LC latencies of the systems relative to alone; or its summary.
func evaluationTable(path, what, links string) (string, error) {
	e, err := ReadEvaluation(path) // makes the figures as the report does
	if err != nil {
		return "", err
	}
	if what == summary {
		return e.summaryTable() + e.origin(path), nil
	}
	links += "/" + reportFolder
	var text strings.Builder
	if e.Simulated {
		text.WriteString("**Simulated: no GPU. These times say nothing about a real one.**\n\n")
	}
	text.WriteString(e.publishedTable() + "\n")
	for _, b := range barPlots {
		if b.headline && len(e.names(caseName, b.has)) > 0 {
			fmt.Fprintf(&text, "![%s](%s/%s)\n\n", b.caption, links, b.file)
		}
	}
	text.WriteString("LC p99 relative to running alone; in brackets BE throughput relative to default time slicing:\n\n")
	usual := func(sweep bool) func(*EvaluationCase) bool {
		return func(c *EvaluationCase) bool { return !optional(c.System) && inSweep(c.Case) == sweep }
	}
	text.WriteString(e.p99Table(usual(false)))
	if len(e.names(caseName, usual(true))) > 0 {
		text.WriteString("\nThe points of sweeps, under fewer systems:\n\n" + e.p99Table(usual(true)))
	}
	toggled := func(c *EvaluationCase) bool { return optional(c.System) }
	if len(e.names(caseName, toggled)) > 0 {
		text.WriteString("\nThe same with these of the mechanisms alone:\n\n" + e.p99Table(toggled))
	}
	var missed strings.Builder
	reached := 0
	for _, c := range e.withTargets() {
		switch {
		case c.Pass == nil:
			fmt.Fprintf(&missed, "- %s, %s: %s\n", c.Case, c.System, c.unmeasured())
		case *c.Pass:
			reached++
		default:
			fmt.Fprintf(&missed, "- %s, %s: %s\n", c.Case, c.System, c.Missed)
		}
	}
	fmt.Fprintf(&text, "\nTargets of %s: %s. Reached in %d of %d cases", strings.Join(claimed, ", "), targetsText, reached, len(e.withTargets()))
	if missed.Len() > 0 {
		text.WriteString(", not in\n\n" + missed.String())
	} else {
		text.WriteString(".\n")
	}
	fmt.Fprintf(&text, "\nWhat the workloads and systems are, all figures and how they were measured: [report](%s/%s).\n", links, ReportName)
	text.WriteString(e.origin(path))
	return text.String(), nil
}

// summaryTable compares the systems of the headline over all workloads that are no points of sweeps.
func (e *Evaluation) summaryTable() string {
	in := func(c *EvaluationCase) bool {
		return slices.Contains(headlineSystems, c.System) && !inSweep(c.Case) && c.Ratio != nil && c.Throughput != nil && c.Throughput.BEOfDefault > 0
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| median of %d workloads (worst) | LC p99, relative to alone | LC mean, relative to alone | BE throughput, relative to default |\n|---|---|---|---|\n", len(e.names(caseName, in)))
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
			quantile(p99, .5), p99[len(p99)-1], quantile(mean, .5), mean[len(mean)-1], quantile(be, .5), be[0])
	}
	return table.String()
}

// p99Table compares some systems in all workloads that have one of them.
func (e *Evaluation) p99Table(of func(*EvaluationCase) bool) string {
	in := func(c *EvaluationCase) bool { return c.System != lcAlone && c.System != beAlone && of(c) }
	systems := e.names(systemName, in)
	var text strings.Builder
	fmt.Fprintf(&text, "| workload | LC p99 alone | %s |\n|%s\n", strings.Join(systems, " | "), strings.Repeat("---|", len(systems)+2))
	for _, workload := range e.names(caseName, in) {
		alone := "-"
		if c := e.of(workload, lcAlone); c != nil && c.LC != nil {
			alone = microseconds(c.LC.P99Us)
		}
		fmt.Fprintf(&text, "| %s | %s |", workload, alone)
		for _, system := range systems {
			cell := "-"
			if c := e.of(workload, system); c != nil && c.Ratio != nil {
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
