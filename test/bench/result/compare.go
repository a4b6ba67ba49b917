package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Comparison is of two result files of the same benchmark.
type Comparison struct {
	Lines   []Difference
	Missing []string // what the new file lacks
}

// Difference is a figure of both files. All are ratios to the same machine's figures alone.
type Difference struct {
	Case, System, Figure string
	Committed, New       float64
	Worse, Better        bool
}

// figure is one ratio; with a low and a high end of what it may really be, where the file tells.
type figure struct {
	name, system, what string
	value, low, high   float64
	moreIsBetter       bool
}

// Errors about files that say nothing of each other.
var (
	errSimulated       = errors.New("one is of the simulated driver, the other of a GPU")
	errNothingCompared = errors.New("nothing was compared: they share no figure")
)

// resultFigures are the figures of a file.
type resultFigures struct {
	figures   []figure
	failed    map[[2]string]bool // cases, by system, that could not be measured
	simulated bool
}

// Compare compares the LC latencies and BE shares, where a difference of less than the tolerance is noise. What can not
// be measured any more is worse. It is an error where there is nothing to compare.
func Compare(committed, new string, tolerance float64) (*Comparison, error) {
	before, err := readFigures(committed)
	if err != nil {
		return nil, err
	}
	after, err := readFigures(new)
	if err != nil {
		return nil, err
	}
	if before.simulated != after.simulated {
		return nil, fmt.Errorf("compare %s and %s: %w", committed, new, errSimulated)
	}
	comparison := &Comparison{}
	for _, was := range before.figures {
		now, found := find(after.figures, was)
		if !found && after.failed[[2]string{was.name, was.system}] {
			comparison.Lines = append(comparison.Lines, Difference{Case: was.name, System: was.system, Figure: was.what,
				Committed: was.value, New: math.NaN(), Worse: true})
			continue
		}
		if !found {
			comparison.Missing = append(comparison.Missing, fmt.Sprintf("%s under %s: %s", was.name, was.system, was.what))
			continue
		}
		d := Difference{Case: was.name, System: was.system, Figure: was.what, Committed: was.value, New: now.value}
		up := now.value > was.value*(1+tolerance) && now.low > was.high
		down := now.value < was.value*(1-tolerance) && now.high < was.low
		d.Worse, d.Better = up, down
		if was.moreIsBetter {
			d.Worse, d.Better = down, up
		}
		comparison.Lines = append(comparison.Lines, d)
	}
	if len(comparison.Lines) == 0 {
		return nil, fmt.Errorf("compare %s and %s: %w", committed, new, errNothingCompared)
	}
	return comparison, nil
}

func find(all []figure, like figure) (figure, bool) {
	for _, f := range all {
		if f.name == like.name && f.system == like.system && f.what == like.what {
			return f, true
		}
	}
	return figure{}, false
}

// readFigures reads a result file of any of the benchmarks. Rivals are not compared: they are not ours to fix.
func readFigures(path string) (read resultFigures, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return read, fmt.Errorf("read results: %w", err)
	}
	var head Head
	if err := json.Unmarshal(text, &head); err != nil {
		return read, fmt.Errorf("read results %s: %w", path, err)
	}
	if head.Schema != 1 {
		return read, fmt.Errorf("read results %s: schema %d, not 1", path, head.Schema)
	}
	read.simulated, read.failed = head.Simulated, map[[2]string]bool{}
	add := func(name, system, what string, value, low, high float64, moreIsBetter bool) {
		switch system {
		case "alone", "be-alone", "default", "mps", "mps-priority", "sequential", "gpreempt-paper":
			return
		}
		read.figures = append(read.figures, figure{name, system, what, value, low, high, moreIsBetter})
	}
	if workload.IsEvaluation(head.Benchmark) {
		var e Evaluation
		if err := json.Unmarshal(text, &e); err != nil {
			return read, fmt.Errorf("read results %s: %w", path, err)
		}
		for _, c := range e.Cases {
			read.failed[[2]string{c.Case, c.System}] = c.failed()
			if c.Ratio != nil {
				add(c.Case, c.System, "LC p99 of alone", c.Ratio.P99, c.Ratio.P99CI[0], c.Ratio.P99CI[1], false)
			}
			if c.Throughput != nil && c.Throughput.BEOfDefault > 0 {
				be := c.Throughput.BEOfDefault
				add(c.Case, c.System, "BE of default", be, be, be, true)
			}
			if c.Left != nil {
				add(c.Case, c.System, "BE of what LC leaves", c.Left.BE, c.Left.BE, c.Left.BE, true)
			}
		}
		return read, nil
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return read, fmt.Errorf("read results %s: %w", path, err)
	}
	for _, row := range r.Cases {
		name := row.Case
		if strings.HasPrefix(row.Note, "role ") { // a case that is measured in each role has a row for each
			name += ", " + row.Note
		}
		key := [2]string{name, row.System}
		read.failed[key] = read.failed[key] || row.Failed()
		if row.Ratio != nil {
			add(name, row.System, "LC p50 of alone", row.Ratio.P50, row.Ratio.P50, row.Ratio.P50, false)
			add(name, row.System, "LC p99 of alone", row.Ratio.P99, row.Ratio.P99, row.Ratio.P99, false)
			if row.Ratio.P999 != 0 {
				add(name, row.System, "LC p99.9 of alone", row.Ratio.P999, row.Ratio.P999, row.Ratio.P999, false)
			}
		}
		if row.Value != nil && row.Pass != nil {
			// What counts most of them is not better for being more: whether the target is reached is compared, and parts.
			reached := 0.0
			if *row.Pass {
				reached = 1
			}
			add(name, row.System, "target reached", reached, reached, reached, true)
			if strings.HasPrefix(row.Unit, "of ") {
				add(name, row.System, row.Unit, *row.Value, *row.Value, *row.Value, true)
			}
		}
		if row.BE != nil {
			add(name, row.System, "BE share", row.BE.Share, row.BE.Share, row.BE.Share, true)
		}
	}
	return read, nil
}

// Worse counts the figures that got worse beyond noise.
func (c *Comparison) Worse() int {
	worse := 0
	for _, line := range c.Lines {
		if line.Worse {
			worse++
		}
	}
	return worse
}

// Print writes all figures, those that got worse marked.
func (c *Comparison) Print(out io.Writer) error {
	t := NewTable(out, "case", "system", "figure", "committed", "new", "new/committed", "")
	for _, d := range c.Lines {
		verdict := ""
		switch {
		case d.Worse:
			verdict = "WORSE"
		case d.Better:
			verdict = "better"
		}
		ratio := "-"
		if d.Committed != 0 {
			ratio = fmt.Sprintf("%.2f", d.New/d.Committed)
		}
		t.Row(d.Case, d.System, d.Figure, fmt.Sprintf("%.3f", d.Committed), fmt.Sprintf("%.3f", d.New), ratio, verdict)
	}
	if err := t.End(); err != nil {
		return err
	}
	for _, missing := range c.Missing {
		fmt.Fprintln(out, "not measured:", missing)
	}
	return nil
}
