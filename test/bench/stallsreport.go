package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Stalls are the requests of a row that took too long.
type Stalls struct {
	LimitUs float64        `json:"limit_us"` // above which a request is one
	Seconds float64        `json:"seconds"`
	RateHz  float64        `json:"rate_hz"`
	Above   int            `json:"above"`
	Causes  map[string]int `json:"causes"`
	// Of all requests the part that saw the same, stalled or not: a cause that half of them saw explains little.
	Seen map[string]float64 `json:"seen_by_all"`
	List []Stall            `json:"list"` // slowest first
}

func (c stallCase) sumUp(p *stallPart, alone *Latency, limitUs float64) *Stalls {
	s := &Stalls{LimitUs: round(limitUs, 1), Seconds: round(p.seconds(), 1), RateHz: p.RateHz, Causes: map[string]int{}, Seen: map[string]float64{}, List: []Stall{}}
	for _, us := range p.latencies() {
		if us > limitUs {
			s.Above++
		}
	}
	for what, count := range p.Seen {
		if what != "requests" {
			s.Seen[what] = round(float64(count)/float64(p.Seen["requests"]), 4)
		}
	}
	for _, stall := range p.Stalls {
		if stall.LatencyUs <= limitUs {
			break
		}
		if alone != nil {
			stall.UsualUs = alone.P50Us
		}
		stall.Cause = stall.cause(limitUs)
		s.Causes[stall.Cause]++
		s.List = append(s.List, stall)
	}
	return s
}

// listed are those in a result file: the slowest, and all whose cause is unknown.
func (s *Stalls) listed() []Stall {
	list := []Stall{}
	for i, stall := range s.List {
		if i < stallsListed || stall.Cause == causeUnknown {
			list = append(list, stall)
		}
	}
	return list
}

// readStalls is what the partial results of a folder give.
func readStalls(folder string) (*Report, error) {
	files, err := filepath.Glob(filepath.Join(folder, StallsSuite+"-*.json")) // sorted
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var report *Report
	parts := map[string][]*stallPart{}
	for _, file := range files {
		p, err := readStallPart(file)
		if err != nil {
			return nil, err
		}
		if report == nil {
			report = &Report{Head: p.Head}
		}
		if p.GPU != report.GPU || p.Driver != report.Driver || p.Commit != report.Commit {
			return nil, fmt.Errorf("read results: %s is of %s, driver %s, commit %s; others of %s, driver %s, commit %s", file,
				p.GPU, p.Driver, p.Commit, report.GPU, report.Driver, report.Commit)
		}
		report.Date, report.Command = max(report.Date, p.Date), addWords(report.Command, p.Command)
		parts[p.Case] = append(parts[p.Case], p)
	}
	if report == nil {
		return nil, fmt.Errorf("%s: %w", folder, errNoParts)
	}
	for _, c := range stallCases {
		report.Cases = append(report.Cases, c.rows(parts[c.name])...)
	}
	if report.Simulated {
		report.withdrawTargets()
	}
	return report, nil
}

// rows are those of a case's partial results.
func (c stallCase) rows(parts []*stallPart) (rows []Row) {
	slices.SortStableFunc(parts, func(a, b *stallPart) int { return systemOrder(a.System) - systemOrder(b.System) })
	var alone *Latency
	for _, p := range parts {
		if p.System == lcAlone {
			alone = p.latency()
		}
	}
	for _, p := range parts {
		row := Row{Case: c.name, System: p.System, LC: p.latency(), Note: p.Note}
		if row.LC != nil {
			limit := c.target.limit(alone)
			if limit == 0 {
				limit = row.LC.P50Us + stallUs
			}
			row.Stalls = c.sumUp(p, alone, limit)
		}
		if p.System != lcAlone && row.LC != nil && alone != nil {
			row.LCAlone, row.Ratio = alone, ratio(row.LC, alone)
			row.Ratio.P999 = round(row.LC.P999Us/alone.P999Us, 3)
		}
		judged := slices.Contains(c.target.judged, p.System)
		switch {
		case row.LC == nil || p.Note != "":
			missed := false
			row.Target, row.Pass = cmp.Or(map[bool]string{true: c.target.text}[judged], measured), &missed
		case judged && alone != nil:
			met := c.target.met(row.LC, alone, row.Stalls)
			row.Target, row.Pass = c.target.text, &met
		}
		rows = append(rows, row)
	}
	return rows
}

// printStalls writes the table for people.
func (r *Report) printStalls(out io.Writer) error {
	fmt.Fprintln(out, r.title())
	t := newTable(out, "case", "system", "n", "LC p50 us", "p99 us", "p99.9 us", "max us", "p99.9/alone", "stalls", "above us", "causes", "target")
	for _, row := range r.Cases {
		cells := slices.Repeat([]string{"-"}, 9)
		if row.LC != nil {
			cells[0] = fmt.Sprint(row.LC.N)
			for i, us := range []float64{row.LC.P50Us, row.LC.P99Us, row.LC.P999Us, row.LC.MaxUs} {
				cells[1+i] = fmt.Sprintf("%.0f", us)
			}
		}
		if row.Ratio != nil {
			cells[5] = fmt.Sprintf("%.3f", row.Ratio.P999)
		}
		if row.Stalls != nil {
			cells[6], cells[7], cells[8] = fmt.Sprint(row.Stalls.Above), fmt.Sprintf("%.0f", row.Stalls.LimitUs), row.Stalls.causes()
		}
		t.row(append(append([]string{row.Case, row.System}, cells...), row.verdict())...)
	}
	if err := t.end(); err != nil {
		return err
	}
	for _, row := range r.Cases {
		if row.Stalls == nil || len(row.Stalls.List) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s under %s, %d requests above %.1f ms in %.0f s:\n", row.Case, row.System, row.Stalls.Above, row.Stalls.LimitUs/1000, row.Stalls.Seconds)
		for i, stall := range row.Stalls.List {
			if i == stallsListed {
				fmt.Fprintf(out, "  and %d more\n", row.Stalls.Above-stallsListed)
				break
			}
			fmt.Fprintf(out, "  %s\n", stall)
		}
	}
	return nil
}

func (s *Stalls) causes() string {
	var words []string
	for _, cause := range slices.Sorted(maps.Keys(s.Causes)) {
		words = append(words, fmt.Sprintf("%s %d", cause, s.Causes[cause]))
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// slowUs is the product's target: no request of those announced takes longer.
const slowUs = 10000

// slow says how many requests took longer than slowUs, and why; "" where none did. The list has to be whole.
func (s *Stalls) slow() string {
	causes, count := map[string]int{}, 0
	for _, stall := range s.List {
		if stall.LatencyUs > slowUs {
			causes[stall.Cause]++
			count++
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d above %s: %s", count, microseconds(slowUs), (&Stalls{Causes: causes}).causes())
}

// stallsTable is that of docs/results.md: what is in one line of printStalls, in Markdown.
func (r *Report) stallsTable() string {
	var text strings.Builder
	text.WriteString("| case | system | requests | LC p50 | p99 | p99.9 (x alone) | max | stalls, and their causes | target |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Cases {
		if row.LC == nil {
			fmt.Fprintf(&text, "| %s | %s | - | - | - | - | - | - | %s |\n", row.Case, row.System, verdict(row))
			continue
		}
		p999 := microseconds(row.LC.P999Us)
		if row.Ratio != nil {
			p999 += fmt.Sprintf(" (%.2f)", row.Ratio.P999)
		}
		stalls := ""
		if row.Stalls != nil {
			stalls = fmt.Sprintf("%d above %s", row.Stalls.Above, microseconds(row.Stalls.LimitUs))
			if row.Stalls.Above > 0 {
				stalls += ": " + row.Stalls.causes()
			}
			if slow := row.Stalls.slow(); slow != "" {
				stalls += "; **" + slow + "**"
			}
		}
		fmt.Fprintf(&text, "| %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", row.Case, row.System, row.LC.N, microseconds(row.LC.P50Us),
			microseconds(row.LC.P99Us), p999, microseconds(row.LC.MaxUs), stalls, verdict(row))
	}
	return text.String()
}
