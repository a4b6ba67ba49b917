package bench

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

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
	Raw       string `json:"raw,omitempty"`       // the file beside it with what is too much for people
}

func newHead(i info, options Options, mode string) Head {
	h := Head{
		Schema: 1, Benchmark: options.Suite, GPU: i.Name, Driver: driverVersion(),
		CUDA: fmt.Sprintf("%d.%d", i.CUDA/1000, i.CUDA%1000/10), Date: time.Now().UTC().Format(time.DateOnly),
		Commit: options.Version, Command: options.Command, Mode: mode,
		Simulated: strings.HasPrefix(i.Name, "Simulated"),
	}
	if h.Simulated {
		h.Driver = "simulated"
	}
	return h
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
	Hints   *Hints   `json:"hints,omitempty"`
	Value   *float64 `json:"value,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	Target  string   `json:"target,omitempty"`
	Pass    *bool    `json:"pass,omitempty"`
	Note    string   `json:"note,omitempty"`

	BLP    *Counted `json:"blp,omitempty"`    // what the library counted in the BE process
	Paired *Paired  `json:"paired,omitempty"` // of the suite of that name
	Stalls *Stalls  `json:"stalls,omitempty"` // of the suite of that name
}

// Latency sums up the latencies of the LC process's requests.
type Latency struct {
	N      int     `json:"n"`
	P50Us  float64 `json:"p50_us"`
	P99Us  float64 `json:"p99_us"`
	P999Us float64 `json:"p999_us,omitempty"` // where there are requests enough for it
	MaxUs  float64 `json:"max_us"`
}

// Hints is what became of the LC process's hints, warm-up included, and what the library learnt and spent for them.
type Hints struct {
	SwitchUs uint32          `json:"switch_us"`
	SpunNs   uint64          `json:"spun_ns"`
	Sources  []segment.Hints `json:"sources"`
	// Of the requests that count: how many found the GPU how, and the slowest.
	Requests map[string]int `json:"requests,omitempty"`
	Slowest  []SlowRequest  `json:"slowest,omitempty"`
}

// Request is what became of the hints for a request: a line of the file that the setting hints.log names.
type Request struct {
	AtNs    uint64 `json:"at_ns,omitempty"`
	HeldUs  int64  `json:"held_us,omitempty"`
	Ready   bool   `json:"ready,omitempty"`
	DueUs   *int64 `json:"due_us,omitempty"`
	Dropped string `json:"dropped,omitempty"`
}

// SlowRequest is the n-th request that counts.
type SlowRequest struct {
	N         int     `json:"n"`
	LatencyUs float64 `json:"latency_us"`
	Request
}

// Ratio compares with the same LC process alone.
type Ratio struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999,omitempty"`
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

func latency(ns []uint64) *Latency {
	return latencyOf(sortedFloats(ns, 1000))
}

// latencyOf sums up sorted latencies in microseconds; nil where there are none.
func latencyOf(sorted []float64) *Latency {
	if len(sorted) == 0 {
		return nil
	}
	us := func(q float64) float64 { return round(quantile(sorted, q), 1) }
	return &Latency{N: len(sorted), P50Us: us(.5), P99Us: us(.99), MaxUs: us(1)}
}

func ratio(now, alone *Latency) *Ratio {
	if now == nil || alone == nil {
		return nil
	}
	return &Ratio{P50: round(now.P50Us/alone.P50Us, 3), P99: round(now.P99Us/alone.P99Us, 3)}
}

// Write writes the result file. Of long lists of stalls it has a part, and its raw form all.
func (r *Report) Write(path string) error {
	short := *r
	short.Cases = slices.Clone(r.Cases)
	for i := range short.Cases {
		row := &short.Cases[i]
		if row.Stalls == nil {
			continue
		}
		stalls := *row.Stalls
		stalls.List = stalls.listed()
		if len(stalls.List) < len(row.Stalls.List) {
			short.Raw = filepath.Base(rawPath(path))
		}
		row.Stalls = &stalls
	}
	if short.Raw != "" {
		if err := writeRaw(path, r); err != nil {
			return err
		}
	}
	return writeJSON(path, short, "  ")
}

// withdrawTargets leaves a row only the failures that are none of times: those that say why in a note.
// Targets are for GPUs.
func (r *Report) withdrawTargets() {
	for i := range r.Cases {
		row := &r.Cases[i]
		if !row.failed() {
			row.Target, row.Pass = "", nil
		}
	}
}

// failed says whether the row tells why a case could not be measured, or not to its end.
func (row Row) failed() bool {
	return row.Pass != nil && !*row.Pass && row.Note != "" && (row.LC == nil && row.Value == nil && row.BE == nil || row.Stalls != nil)
}

// Failed names what could not be measured.
func (r *Report) Failed() (names []string) {
	for _, row := range r.Cases {
		if row.failed() {
			names = append(names, row.Case+" under "+row.System)
		}
	}
	return names
}

// Missed counts the targets that were not reached.
func (r *Report) Missed() int {
	missed := 0
	for _, row := range r.Cases {
		if row.Pass != nil && !*row.Pass {
			missed++
		}
	}
	return missed
}

// title is the first lines of what people read.
func (r *Report) title() string {
	kind := ""
	if r.Simulated {
		kind = " [SIMULATED: no GPU, these times mean nothing for a real one]"
	}
	return fmt.Sprintf("%s, driver %s, CUDA %s, %s%s\n", r.GPU, r.Driver, r.CUDA, r.Mode, kind)
}

// verdict is a row's target, whether it was reached, and the note.
func (row Row) verdict() string {
	text := row.Target
	if row.Pass != nil {
		text = map[bool]string{true: "reached: ", false: "MISSED: "}[*row.Pass] + text
	}
	if row.Note != "" {
		text = strings.TrimSpace(text + " (" + row.Note + ")")
	}
	return text
}

// Print writes the table for people.
func (r *Report) Print(out io.Writer) error {
	if r.Benchmark == StallsSuite {
		return r.printStalls(out)
	}
	fmt.Fprintln(out, r.title())
	t := newTable(out, "case", "system", "LC p50 us", "p99 us", "max us", "n", "p99/alone", "BE rate", "of alone", "of what LC leaves", "target")
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
		t.row(append(append([]string{name, row.System}, cells...), row.verdict())...)
	}
	if err := t.end(); err != nil {
		return err
	}
	return nil
}
