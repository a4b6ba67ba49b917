package bench

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

func (c stallCase) sumUp(p *stallPart, alone *result.Latency, limitUs float64) *result.Stalls {
	s := &result.Stalls{LimitUs: result.Round(limitUs, 1), Seconds: result.Round(p.seconds(), 1), RateHz: p.RateHz, Causes: map[string]int{}, Seen: map[string]float64{}, List: []result.Stall{}}
	for _, us := range p.latencies() {
		if us > limitUs {
			s.Above++
		}
	}
	for what, count := range p.Seen {
		if what != "requests" {
			s.Seen[what] = result.Round(float64(count)/float64(p.Seen["requests"]), 4)
		}
	}
	for _, stall := range p.Stalls {
		if stall.LatencyUs <= limitUs {
			break
		}
		if alone != nil {
			stall.UsualUs = alone.P50Us
		}
		stall.Cause = stall.Explanation(limitUs)
		s.Causes[stall.Cause]++
		s.List = append(s.List, stall)
	}
	if len(p.CameMs) > 0 {
		s.Came, s.CameMs = len(p.CameMs), result.Round(result.Median(p.CameMs), 1)
	}
	return s
}

// readStalls is what the partial results of folders give.
func readStalls(folders ...string) (*result.Report, error) {
	files, err := partFiles(folders, result.StallsSuite)
	if err != nil {
		return nil, err
	}
	var report *result.Report
	parts := map[string][]*stallPart{}
	for _, file := range files {
		p, err := readStallPart(file)
		if err != nil {
			return nil, err
		}
		if report == nil {
			report = &result.Report{Head: p.Head}
		}
		if err := p.CheckJoin(file, report.Head, files[0]); err != nil {
			return nil, err
		}
		report.Date, report.Command = max(report.Date, p.Date), result.AddWords(report.Command, p.Command)
		parts[p.Case] = append(parts[p.Case], p)
	}
	if report == nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(folders, ", "), errNoParts)
	}
	for _, c := range stallCases {
		report.Cases = append(report.Cases, c.rows(parts[c.name])...)
	}
	if report.Simulated {
		report.WithdrawTargets()
	}
	return report, nil
}

// rows are those of a case's partial results.
func (c stallCase) rows(parts []*stallPart) (rows []result.Row) {
	slices.SortStableFunc(parts, func(a, b *stallPart) int { return result.SystemOrder(a.System) - result.SystemOrder(b.System) })
	var alone *result.Latency
	lacks := ""
	for _, p := range parts {
		if p.System == result.LCAlone {
			alone = p.latency()
			lacks = p.lacks()
		}
	}
	for _, p := range parts {
		row := result.Row{Case: c.name, System: p.System, LC: p.latency(), Note: p.Note, Undecided: p.lacks()}
		if row.LC != nil {
			limit := c.target.limit(alone)
			if limit == 0 {
				limit = row.LC.P50Us + stallUs
			}
			row.Stalls = c.sumUp(p, alone, limit)
		}
		if p.System != result.LCAlone && row.LC != nil && alone != nil {
			row.LCAlone, row.Ratio = alone, result.RatioOf(row.LC, alone)
		}
		judged := p.System == judgedSystem
		switch {
		case row.LC == nil || p.Note != "":
			row = row.Judged(cmp.Or(map[bool]string{true: c.target.text}[judged], measured), false)
		case judged && (alone != nil || !c.target.alone):
			met := c.target.met(row.LC, alone, row.Stalls)
			row.Target = c.target.text
			if c.target.alone && row.Undecided == "" && lacks != "" {
				row.Undecided = result.LCAlone + " is " + lacks
			}
			// A part of the requests can show that the target is missed, and not that it is reached.
			if !met {
				row.Undecided = ""
			}
			if row.Undecided == "" {
				row.Pass = &met
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// partFiles are those with a suite's partial results: sorted, folder by folder. Of one name the last is meant.
func partFiles(folders []string, suite string) (files []string, err error) {
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join(folder, suite+"-*.json"))
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		files = slices.DeleteFunc(files, func(file string) bool {
			return slices.ContainsFunc(found, func(other string) bool { return filepath.Base(file) == filepath.Base(other) })
		})
		files = append(files, found...)
	}
	return files, nil
}

var errNoParts = errors.New("no partial results of any suite")
