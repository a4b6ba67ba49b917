package result

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Print writes the table for people.
func (e *Evaluation) Print(out io.Writer) error {
	fmt.Fprintln(out, e.title())
	t := NewTable(out, "workload", "system", "n", "mean ms", "p50", "p95", "p99", "p99.9", "max", "p99/alone", "submitted p50 / p99", "LC/s", "BE/s", "BE/alone", "BE/default", "total/default", "queued", "CPU ms")
	previous := ""
	for i := range e.Cases {
		c := &e.Cases[i]
		name := c.Case
		if name == previous {
			name = ""
		}
		previous = c.Case
		t.Row(append([]string{name, c.System}, c.Cells()...)...)
	}
	if err := t.End(); err != nil {
		return err
	}
	return e.printLeft(out)
}

// Cells are the columns of the tables.
func (c *EvaluationCase) Cells() []string {
	cells := slices.Repeat([]string{"-"}, 16)
	if d := c.LC; d != nil {
		ms := func(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
		cells[0], cells[1], cells[2], cells[3] = fmt.Sprint(d.N), ms(d.MeanUs), ms(d.P50Us), ms(d.P95Us)
		cells[4] = fmt.Sprintf("%s (%s)", ms(d.P99Us), Between(d.P99CIUs, 1000, "%.2f"))
		cells[5], cells[6] = ms(d.P999Us), ms(d.MaxUs)
	}
	if c.Ratio != nil {
		cells[7] = fmt.Sprintf("%.2f (%s)", c.Ratio.P99, Between(c.Ratio.P99CI, 1, "%.2f"))
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
		remarks = append(remarks, c.Verdict())
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
	if c.Skipped != "" {
		remarks = append(remarks, inCell("**skipped**: "+c.Skipped))
	}
	if c.Note != "" {
		remarks = append(remarks, inCell(c.Note))
	}
	return strings.Join(remarks, "; ")
}

// Verdict says whether the target was reached, and what was missed; "" without a target.
func (c *EvaluationCase) Verdict() string {
	switch {
	case c.Pass == nil:
		return ""
	case *c.Pass:
		return "reached"
	}
	return "**missed**: " + c.Missed
}

// Unmeasured says why a case has no verdict.
func (c *EvaluationCase) Unmeasured() string {
	text := "not measured"
	if len(c.Runs) > 0 {
		text = "nothing to compare with"
	}
	if why := c.Note + c.Skipped; why != "" {
		text += ": " + inCell(why)
	}
	return text
}

func inCell(text string) string { return strings.NewReplacer("|", "/", "\n", " ").Replace(text) }

// Between is an interval in a unit.
func Between(interval [2]float64, unit float64, format string) string {
	return fmt.Sprintf(format+" to "+format, interval[0]/unit, interval[1]/unit)
}
