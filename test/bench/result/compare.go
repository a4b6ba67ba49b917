package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
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
	Again                string // what a second measurement of what looked worse gave
	row                  string // the case's name in the file
}

// Tolerance is the difference up to which a figure is the same, unless the caller has another one.
const Tolerance = 0.1

// figure is one ratio; with an interval of what it may really be, where the file tells.
type figure struct {
	name, system, what string
	value              float64
	interval           [2]float64
	moreIsBetter       bool
	row                string
}

// between is the figure's interval. One without gets that of the other file, in proportion: the same was measured in the same way.
func (f figure) between(other figure) [2]float64 {
	switch none := [2]float64{}; {
	case f.interval != none:
		return f.interval
	case other.interval != none && other.value > 0:
		return [2]float64{f.value * other.interval[0] / other.value, f.value * other.interval[1] / other.value}
	}
	return [2]float64{f.value, f.value}
}

// differs says whether the interval of the ratio of two figures leaves out 1.
func (f figure) differs(other figure) bool {
	ratio := ratioInterval(f.value, other.value, f.between(other), other.between(f))
	return ratio == [2]float64{} || ratio[0] > 1 || ratio[1] < 1 // some are 0, and have no ratio
}

// Errors about files that say nothing of each other.
var (
	errSimulated       = errors.New("one is of the simulated driver, the other of a GPU")
	ErrNothingCompared = errors.New("nothing was compared: they share no figure")
)

// resultFigures are the figures of a file.
type resultFigures struct {
	figures   []figure
	failed    map[[2]string]bool // cases, by system, that could not be measured
	simulated bool
}

// Compare compares the LC latencies and BE shares. A difference of less than the tolerance is noise, and so is one that the figures'
// intervals explain. What can not be measured any more is worse. It is an error where there is nothing to compare.
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
				Committed: was.value, New: math.NaN(), Worse: true, row: was.row})
			continue
		}
		if !found {
			comparison.Missing = append(comparison.Missing, fmt.Sprintf("%s under %s: %s", was.name, was.system, was.what))
			continue
		}
		d := Difference{Case: was.name, System: was.system, Figure: was.what, Committed: was.value, New: now.value, row: was.row}
		up := now.value > was.value*(1+tolerance) && now.differs(was)
		down := now.value < was.value*(1-tolerance) && now.differs(was)
		d.Worse, d.Better = up, down
		if was.moreIsBetter {
			d.Worse, d.Better = down, up
		}
		comparison.Lines = append(comparison.Lines, d)
	}
	if len(comparison.Lines) == 0 {
		return nil, fmt.Errorf("compare %s and %s: %w", committed, new, ErrNothingCompared)
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
	row := ""
	add := func(name, system, what string, value float64, interval [2]float64, moreIsBetter bool) {
		switch system {
		case "alone", "be-alone", "default", "mps", "mps-priority", "sequential", "gpreempt-paper":
			return
		}
		read.figures = append(read.figures, figure{name, system, what, value, interval, moreIsBetter, row})
	}
	if workload.IsEvaluation(head.Benchmark) {
		var e Evaluation
		if err := json.Unmarshal(text, &e); err != nil {
			return read, fmt.Errorf("read results %s: %w", path, err)
		}
		for _, c := range e.Cases {
			row = c.Case
			read.failed[[2]string{c.Case, c.System}] = c.failed()
			if c.Ratio != nil {
				add(c.Case, c.System, "LC p99 of alone", c.Ratio.P99, c.Ratio.P99CI, false)
			}
			if c.Throughput != nil && c.Throughput.BEOfDefault > 0 {
				add(c.Case, c.System, "BE of default", c.Throughput.BEOfDefault, [2]float64{}, true)
			}
			if c.Left != nil {
				add(c.Case, c.System, "BE of what LC leaves", c.Left.BE, [2]float64{}, true)
			}
		}
		return read, nil
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return read, fmt.Errorf("read results %s: %w", path, err)
	}
	for _, c := range r.Cases {
		row = c.Case
		name := c.Case
		if strings.HasPrefix(c.Note, "role ") { // a case that is measured in each role has a row for each
			name += ", " + c.Note
		}
		key := [2]string{name, c.System}
		read.failed[key] = read.failed[key] || c.Failed()
		if c.Ratio != nil {
			add(name, c.System, "LC p50 of alone", c.Ratio.P50, c.Ratio.P50CI, false)
			add(name, c.System, "LC p99 of alone", c.Ratio.P99, c.Ratio.P99CI, false)
			if c.Ratio.P999 != 0 {
				add(name, c.System, "LC p99.9 of alone", c.Ratio.P999, c.Ratio.P999CI, false)
			}
		}
		if c.Value != nil && c.Pass != nil {
			// What counts most of them is not better for being more: whether the target is reached is compared, and parts.
			reached := 0.0
			if *c.Pass {
				reached = 1
			}
			add(name, c.System, "target reached", reached, [2]float64{}, true)
			if strings.HasPrefix(c.Unit, "of ") {
				add(name, c.System, c.Unit, *c.Value, [2]float64{}, true)
			}
		}
		if c.BE != nil {
			add(name, c.System, "BE share", c.BE.Share, [2]float64{}, true)
		}
	}
	return read, nil
}

// WorseRows names the cases that have a figure which got worse, as their rows are called.
func (c *Comparison) WorseRows() (rows []string) {
	for _, line := range c.Lines {
		if line.Worse && !slices.Contains(rows, line.row) {
			rows = append(rows, line.row)
		}
	}
	return rows
}

// Confirm takes in a second measurement of what looked worse: only what looks so again is. It counts what that did not measure.
func (c *Comparison) Confirm(again *Comparison) (unconfirmed int) {
	for i := range c.Lines {
		line := &c.Lines[i]
		if !line.Worse {
			continue
		}
		second := slices.IndexFunc(again.Lines, func(d Difference) bool {
			return d.Case == line.Case && d.System == line.System && d.Figure == line.Figure
		})
		if second < 0 {
			line.Worse, line.Again = false, "looks worse, was not measured again"
			unconfirmed++
			continue
		}
		line.Worse = again.Lines[second].Worse
		line.Again = fmt.Sprintf("measured again: %.3f", again.Lines[second].New)
	}
	return unconfirmed
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
		if d.Again != "" {
			verdict = strings.TrimSpace(verdict + " (" + d.Again + ")")
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
