// Package result is what a benchmark gives: types of result files, statistics, reading and writing, comparing, tables for a
// terminal. It measures nothing and draws nothing.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// StallsSuite is the name of the suite whose tables show the slowest requests.
const StallsSuite = "stalls"

// Head is what every result file begins with.
type Head struct {
	Schema    int    `json:"schema"`
	Benchmark string `json:"benchmark"`
	GPU       string `json:"gpu"`
	Driver    string `json:"driver"`
	CUDA      string `json:"cuda"`
	Date      string `json:"date"`
	Commit    string `json:"commit"`
	Command   string `json:"command"`
	Mode      string `json:"mode"`
	Simulated bool   `json:"simulated,omitempty"` // no GPU: the times are those of the simulated driver
	Raw       string `json:"raw,omitempty"`       // of earlier builds: a file beside it with all samples

	// Cases that were asked for and are not measured, or not to their end: there was no time left for them.
	Left []string `json:"left,omitempty"`
}

// printLeft tells people that the results are not whole.
func (h *Head) printLeft(out io.Writer) error {
	if len(h.Left) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(out, "\nNOT WHOLE, there was no time for %d: %s\n", len(h.Left), strings.Join(h.Left, ", ")); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	return nil
}

// Report is the result file of a benchmark.
type Report struct {
	Head
	Cases []Row `json:"cases"`
}

// Row is one case under one system.
type Row struct {
	Case    string   `json:"case"`
	System  string   `json:"system"`
	LC      *Latency `json:"lc,omitempty"`
	LCAlone *Latency `json:"lc_alone,omitempty"`
	Ratio   *Ratio   `json:"ratio,omitempty"`
	BE      *Share   `json:"be,omitempty"`
	Value   *float64 `json:"value,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	Target  string   `json:"target,omitempty"`
	Pass    *bool    `json:"pass,omitempty"`
	Note    string   `json:"note,omitempty"`
	Missed  string   `json:"missed,omitempty"` // what of the target, and by how much

	Ways map[string]string `json:"ways,omitempty"` // of suite programs: what became of the program in each

	BLP *Counted `json:"blp,omitempty"` // what the library counted in the BE process

	Serving *Serving `json:"serving,omitempty"` // of the suite of that name

	Throughput *Throughput `json:"throughput,omitempty"` // of suite paper
}

// Figure is the row of a single value under the library.
func Figure(name string, value float64, unit, note string) Row {
	return Row{Case: name, System: "gpreempt", Value: &value, Unit: unit, Note: note}
}

// Judged is the row with a target and whether it was reached.
func (row Row) Judged(target string, pass bool) Row {
	row.Target, row.Pass = target, &pass
	return row
}

// Counted is what the library counted in a process, and how it does its work there.
type Counted struct {
	segment.BLP
	Mechanisms []string `json:"mechanisms,omitempty"`
	Fallbacks  []string `json:"fallbacks,omitempty"`
}

// Latency sums up the latencies of the LC process's requests. Intervals are those of orderInterval.
type Latency struct {
	N        int        `json:"n"`
	P50Us    float64    `json:"p50_us"`
	P99Us    float64    `json:"p99_us"`
	P999Us   float64    `json:"p999_us,omitempty"` // where there are requests enough for it
	MaxUs    float64    `json:"max_us"`
	P99CIUs  [2]float64 `json:"p99_ci_us,omitzero"`
	MeanUs   float64    `json:"mean_us,omitempty"`
	MeanCIUs [2]float64 `json:"mean_ci_us,omitzero"`
}

// Ratio compares with the same LC process alone. Intervals are those of ratioInterval.
type Ratio struct {
	P50    float64    `json:"p50"`
	P99    float64    `json:"p99"`
	P999   float64    `json:"p999,omitempty"`
	P99CI  [2]float64 `json:"p99_ci,omitzero"`
	Mean   float64    `json:"mean,omitempty"`
	MeanCI [2]float64 `json:"mean_ci,omitzero"`
}

// Share is what the BE processes got: the rates alone and now, and Share, their part of what LC left them.
// LC leaves the time in which none of its requests is under way. With the driver's time slicing requests
// mostly wait for BE, so there what they take alone is counted instead.
type Share struct {
	Share float64 `json:"share"`
	Alone float64 `json:"alone"`
	Now   float64 `json:"now"`
	Unit  string  `json:"unit"`
}

// LatencyOf sums up latencies in nanoseconds; nil where there are none.
func LatencyOf(ns []uint64) *Latency {
	return LatencyOfSorted(SortedFloats(ns, 1000))
}

// LatencyOfSorted sums up sorted latencies in microseconds; nil where there are none.
func LatencyOfSorted(sorted []float64) *Latency {
	if len(sorted) == 0 {
		return nil
	}
	us := func(q float64) float64 { return Round(Quantile(sorted, q), 1) }
	return &Latency{N: len(sorted), P50Us: us(.5), P99Us: us(.99), MaxUs: us(1), P99CIUs: orderInterval(sorted, .99)}
}

// LatencyOfMany also has the p99.9 and the mean.
func LatencyOfMany(sorted []float64) *Latency {
	l := LatencyOfSorted(sorted)
	if l != nil {
		l.P999Us = Round(Quantile(sorted, .999), 1)
		l.MeanUs, l.MeanCIUs = Round(mean(sorted), 1), meanInterval(sorted)
	}
	return l
}

// RatioOf compares with alone; nil where one of them is missing.
func RatioOf(now, alone *Latency) *Ratio {
	if now == nil || alone == nil {
		return nil
	}
	r := &Ratio{P50: Round(now.P50Us/alone.P50Us, 3), P99: Round(now.P99Us/alone.P99Us, 3),
		P99CI: ratioInterval(now.P99Us, alone.P99Us, now.P99CIUs, alone.P99CIUs)}
	if now.P999Us > 0 && alone.P999Us > 0 {
		r.P999 = Round(now.P999Us/alone.P999Us, 3)
	}
	if now.MeanUs > 0 && alone.MeanUs > 0 {
		r.Mean, r.MeanCI = Round(now.MeanUs/alone.MeanUs, 3), ratioInterval(now.MeanUs, alone.MeanUs, now.MeanCIUs, alone.MeanCIUs)
	}
	return r
}

// ReadReport reads a result file.
func ReadReport(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read results %s: %w", path, err)
	}
	return r, nil
}

// Write writes the result file.
func (r *Report) Write(path string) error { return WriteJSON(path, r, "  ") }

// WriteJSON writes a file that is complete where it is there.
func WriteJSON(path string, value any, indent string) error {
	text, err := json.MarshalIndent(value, "", indent)
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// WithdrawTargets takes target and verdict from all rows but those whose case failed: targets are for GPUs.
func (r *Report) WithdrawTargets() {
	for i := range r.Cases {
		row := &r.Cases[i]
		if !row.Failed() {
			row.Target, row.Pass, row.Missed = "", nil, ""
		}
	}
}

// Failed says whether the row tells why a case could not be measured, or not to its end.
func (row Row) Failed() bool {
	return row.Pass != nil && !*row.Pass && row.Note != "" && row.LC == nil && row.Value == nil && row.BE == nil
}

// Failed names what could not be measured.
func (r *Report) Failed() (names []string) {
	for _, row := range r.Cases {
		if row.Failed() {
			names = append(names, row.Case+" under "+row.System)
		}
	}
	return names
}

// title is the first lines of what people read.
func (h *Head) title() string {
	kind := ""
	if h.Simulated {
		kind = " [SIMULATED: no GPU, these times mean nothing for a real one]"
	}
	return fmt.Sprintf("%s, driver %s, CUDA %s, %s%s\n", h.GPU, h.Driver, h.CUDA, h.Mode, kind)
}

// verdict is a row's target, whether it was reached, and the note.
func (row Row) verdict() string {
	text := row.Target
	if row.Pass != nil {
		text = map[bool]string{true: "reached: ", false: "MISSED: "}[*row.Pass] + text
	}
	if row.Missed != "" {
		text += ": " + row.Missed
	}
	if more := row.Serving.more(); more != "" {
		text = strings.TrimPrefix(text+"; "+more, "; ")
	}
	if row.Note != "" {
		text = strings.TrimSpace(text + " (" + row.Note + ")")
	}
	return text
}

// Print writes the table for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintln(out, r.title())
	rows := [][]string{{"case", "system", "LC p50 us", "p99 us", "max us", "n", "p99/alone", "BE rate", "of alone", "of what LC leaves", "target"}}
	previous := ""
	for _, row := range r.Cases {
		name := row.Case
		if name == previous {
			name = ""
		}
		previous = row.Case
		cells := slices.Repeat([]string{"-"}, 8)
		if row.LC != nil {
			cells[0] = fmt.Sprintf("%.1f", row.LC.P50Us)
			cells[1] = fmt.Sprintf("%.1f", row.LC.P99Us)
			cells[2] = fmt.Sprintf("%.1f", row.LC.MaxUs)
			cells[3] = fmt.Sprint(row.LC.N)
		}
		if row.Ratio != nil {
			cells[4] = fmt.Sprintf("%.2f", row.Ratio.P99)
		}
		if row.BE != nil {
			cells[5] = fmt.Sprintf("%.1f %s", row.BE.Now, row.BE.Unit)
			cells[6] = fmt.Sprintf("%.3f", row.BE.Now/row.BE.Alone)
			cells[7] = fmt.Sprintf("%.3f", row.BE.Share)
		}
		if row.Value != nil {
			cells[0] = fmt.Sprintf("%g %s", *row.Value, row.Unit)
		}
		rows = append(rows, slices.Concat([]string{name, row.System}, cells, []string{row.verdict()}))
	}
	if err := PrintTable(out, rows); err != nil {
		return err
	}
	return r.printLeft(out)
}

// PrintTable prints rows of cells in columns, whose names come first.
func PrintTable(out io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
