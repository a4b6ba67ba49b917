package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// The programs and the figures agree on these.
const (
	WarmUp = 200 * time.Millisecond // of a run, in which no request is counted
	Drain  = time.Second            // DRAIN_NS of the programs
)

// Names of what is measured without the other tasks, in result files.
const (
	LCAlone = "alone"
	BEAlone = "be-alone"
)

// Evaluation is the result file of an evaluation, or of a part of one.
type Evaluation struct {
	Head
	Environment map[string]string `json:"environment,omitempty"`
	Cases       []EvaluationCase  `json:"cases"`
}

// EvaluationCase is a workload under a system. Everything but Runs follows from the runs of its workload.
type EvaluationCase struct {
	Case      string `json:"case"`
	System    string `json:"system"`
	About     string `json:"about,omitempty"`
	PrepareUs int    `json:"prepare_us"`
	Claimed   bool   `json:"claimed,omitempty"` // the targets hold for the workload

	LC          *Distribution `json:"lc,omitempty"` // from the arrival of a request
	LCAlone     *Distribution `json:"lc_alone,omitempty"`
	Ratio       *Ratios       `json:"ratio,omitempty"`
	LCSubmitted *Distribution `json:"lc_from_submission,omitempty"` // from when its data was prepared
	// BE.Share is relative to the BE tasks without the LC ones; the driver's time slicing shares the GPU among them.
	BE         *Share      `json:"be,omitempty"`
	Throughput *Throughput `json:"throughput,omitempty"`
	CPU        *CPU        `json:"cpu,omitempty"`
	Queued     int         `json:"queued,omitempty"`    // LC requests that had to wait for earlier ones
	Unserved   int         `json:"unserved,omitempty"`  // LC requests that found no end in time; in LC with the time they waited
	Identical  *bool       `json:"identical,omitempty"` // of work that tells: its results are those that it had at first

	Target string `json:"target,omitempty"`
	Pass   *bool  `json:"pass,omitempty"`
	Missed string `json:"missed,omitempty"` // what of the target, and by how much
	Note   string `json:"note,omitempty"`
	// Why it was not measured, which is no failure: the machine lacks what the system needs.
	Skipped string      `json:"skipped,omitempty"`
	Runs    []RunResult `json:"runs,omitempty"`
}

// Throughput counts requests that ended within the time of a run.
type Throughput struct {
	LC        float64 `json:"lc_per_s"`
	BE        float64 `json:"be_per_s"`
	LCOfAlone float64 `json:"lc_of_alone,omitempty"`
	// Relative to default time slicing, which is no preemption.
	BEOfDefault float64 `json:"be_of_default,omitempty"`
	OfDefault   float64 `json:"total_of_default,omitempty"` // LC and BE requests
}

// CPU is what the programs took of it. They wait actively for arrivals, under all systems alike.
type CPU struct {
	LCMs    float64 `json:"lc_ms_per_request"`
	BECores float64 `json:"be_cores"`
}

// RunResult is one run of a workload's tasks.
type RunResult struct {
	Repeat  int       `json:"repeat"`
	Seconds float64   `json:"seconds"`
	Tasks   []TaskRun `json:"tasks"`

	Begin time.Duration `json:"-"` // CLOCK_MONOTONIC; while it is new
}

// TaskRun is what a task did in a run.
type TaskRun struct {
	workload.Task
	Role       string  `json:"role"`
	Offered    int     `json:"offered,omitempty"`
	Completed  float64 `json:"completed"` // within the run
	Unserved   int     `json:"unserved,omitempty"`
	CPUSeconds float64 `json:"cpu_s"`
	Identical  *bool   `json:"identical,omitempty"`
	Times      Times   `json:"times,omitzero"` // of every request, the warm-up's too
	Trace      Trace   `json:"-"`              // while it is new
}

// Times are the times of a run's requests in nanoseconds: arrivals from the run's start, the others from the arrival. The last
// arrivals found no end.
type Times struct {
	Arrival   []time.Duration `json:"arrival_ns"`
	Submitted []time.Duration `json:"submitted_ns"`
	Done      []time.Duration `json:"done_ns"`
}

// Trace is what a worker tells of each request besides.
type Trace struct {
	QueuedNs []uint64 `json:"queued_ns"` // from arrival until all of it was queued on the GPU; 0: unknown
	DelayNs  []uint64 `json:"delay_ns"`  // since the request before: that its thread waited for a processor
	Switches []uint64 `json:"switches"`  // and how often it lost one
}

// Set takes the times of a run's requests: from arrival to submission and to their ends.
func (t *TaskRun) Set(arrivals []time.Duration, submittedNs, doneNs []uint64) {
	s := Times{Arrival: arrivals}
	for i := range doneNs {
		s.Submitted = append(s.Submitted, time.Duration(submittedNs[i]))
		s.Done = append(s.Done, time.Duration(doneNs[i]))
	}
	t.Times = s
}

// CheckTimes is an error where the times of requests are missing: files of earlier builds had them in another form.
func (t *TaskRun) CheckTimes() error {
	if n := len(t.Times.Arrival); n != t.Offered || len(t.Times.Done) > n || len(t.Times.Submitted) != len(t.Times.Done) {
		return fmt.Errorf("times of %d requests, and %d of their ends, of %d", n, len(t.Times.Done), t.Offered)
	}
	return nil
}

// Latencies are those of the requests after the warm-up, in microseconds: from arrival and from submission.
// A request that found no end took at least as long as the programs waited for it.
func (t *TaskRun) Latencies(length time.Duration) (fromArrival, fromSubmission []float64) {
	for i, arrival := range t.Times.Arrival {
		switch {
		case arrival < WarmUp:
		case i < len(t.Times.Done):
			done := t.Times.Done[i]
			fromArrival = append(fromArrival, microsecondsOf(done))
			fromSubmission = append(fromSubmission, microsecondsOf(done-t.Times.Submitted[i]))
		default:
			fromArrival = append(fromArrival, microsecondsOf(length+Drain-arrival))
		}
	}
	return fromArrival, fromSubmission
}

// queued counts the requests that had to wait for earlier ones.
func (t *TaskRun) queued() int {
	count := 0
	for i, arrival := range t.Times.Arrival {
		if arrival < WarmUp || i == 0 {
			continue
		}
		if i >= len(t.Times.Done) || t.Times.Arrival[i-1]+t.Times.Done[i-1] > arrival {
			count++
		}
	}
	return count
}

func microsecondsOf(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Brief says in a few words how a run went.
func (r RunResult) Brief() string {
	var latencies []float64
	for _, t := range r.Of("lc") {
		fromArrival, _ := t.Latencies(r.Length())
		latencies = append(latencies, fromArrival...)
	}
	be := 0.0
	for _, t := range r.Of("be") {
		be += t.Completed
	}
	var parts []string
	if len(latencies) > 0 {
		slices.Sort(latencies)
		parts = append(parts, fmt.Sprintf("LC p50 %.0f us, p99 %.0f us", Quantile(latencies, .5), Quantile(latencies, .99)))
	}
	if be > 0 {
		parts = append(parts, fmt.Sprintf("BE %.1f/s", be/r.Seconds))
	}
	return strings.Join(parts, ", ")
}

// Of are the tasks of a role, in their order.
func (r RunResult) Of(role string) (tasks []*TaskRun) {
	for i := range r.Tasks {
		if t := &r.Tasks[i]; t.Role == role {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// Length is Seconds as a duration.
func (r RunResult) Length() time.Duration { return time.Duration(r.Seconds * float64(time.Second)) }

// Write writes the result file, and the runs to its raw form.
func (e *Evaluation) Write(path string) error {
	short := *e
	short.Cases = slices.Clone(e.Cases)
	for i := range short.Cases {
		if len(short.Cases[i].Runs) > 0 {
			short.Raw = filepath.Base(rawPath(path))
		}
		short.Cases[i].Runs = nil
	}
	if short.Raw != "" {
		if err := writeRaw(path, e); err != nil {
			return err
		}
	}
	return WriteJSON(path, short, " ")
}

// ErrNoEvaluation is wrapped by errors about files and folders that have no results of an evaluation.
var ErrNoEvaluation = errors.New("no results of an evaluation")

// ReadEvaluation reads results, those of several files as one: a path is a file, or a folder of which all files are read but those of other
// benchmarks. The results of a later file for a workload and a system replace those of an earlier one. The figures are made anew from the
// samples.
func ReadEvaluation(paths ...string) (*Evaluation, error) {
	var all *Evaluation
	first := ""
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files, _ = filepath.Glob(filepath.Join(path, "*.json")) // sorted; the pattern is a good one
		}
		for _, file := range files {
			one, err := readEvaluationFile(file)
			if err != nil {
				return nil, err
			}
			if one == nil {
				if file == path {
					return nil, fmt.Errorf("%s: %w", path, ErrNoEvaluation)
				}
				continue
			}
			if all == nil {
				first = file
			} else if err := one.CheckJoin(file, all.Head, first); err != nil {
				return nil, err
			}
			all = all.With(one)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(paths, ", "), ErrNoEvaluation)
	}
	all.Summarise()
	return all, nil
}

// ReadFigures reads a result file without its raw form, which it need not have. It leaves out workloads that the suite no longer has.
func ReadFigures(path string) (*Evaluation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var e Evaluation
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("read results %s: %w", path, err)
	}
	if e.Schema != 1 || e.Benchmark != workload.Suite {
		return nil, fmt.Errorf("read results %s: %w", path, ErrNoEvaluation)
	}
	e.Cases = slices.DeleteFunc(e.Cases, func(c EvaluationCase) bool { return workloadOrder(c.Case) < 0 })
	return &e, nil
}

// readEvaluationFile gives nothing for what is no result file of an evaluation.
func readEvaluationFile(path string) (*Evaluation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var one Evaluation
	if json.Unmarshal(text, &one) != nil || one.Schema != 1 || one.Benchmark != workload.Suite {
		return nil, nil
	}
	if name := one.Raw; name != "" {
		one = Evaluation{}
		if err := ReadRaw(path, name, &one); err != nil {
			return nil, err
		}
	}
	for _, c := range one.Cases {
		for _, run := range c.Runs {
			for _, t := range run.Of("lc") {
				if err := t.CheckTimes(); err != nil {
					return nil, fmt.Errorf("read results %s: %s under %s: %w", path, c.Case, c.System, err)
				}
			}
		}
	}
	return &one, nil
}

// With returns these results with later ones, whose workloads take the place of those of the same names.
func (e *Evaluation) With(later *Evaluation) *Evaluation {
	if e == nil {
		e = &Evaluation{Head: later.Head, Environment: later.Environment}
	}
	all := *e
	all.Date = max(e.Date, later.Date)
	all.Command = AddWords(e.Command, later.Command)
	has := func(cases []EvaluationCase, name string) bool {
		return slices.ContainsFunc(cases, func(c EvaluationCase) bool { return c.Case == name })
	}
	all.Cases = append(slices.DeleteFunc(slices.Clone(e.Cases), func(c EvaluationCase) bool { return has(later.Cases, c.Case) }), later.Cases...)
	slices.SortStableFunc(all.Cases, func(a, b EvaluationCase) int {
		if by := workloadOrder(a.Case) - workloadOrder(b.Case); by != 0 {
			return by
		}
		return SystemOrder(a.System) - SystemOrder(b.System)
	})
	all.Left = slices.DeleteFunc(slices.Concat(e.Left, later.Left), func(name string) bool { return has(all.Cases, name) })
	slices.Sort(all.Left)
	all.Left = slices.Compact(all.Left)
	return &all
}

// AddWords is a list of different words.
func AddWords(list, more string) string {
	words := strings.Split(list, listed)
	for _, word := range strings.Split(more, listed) {
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, listed)
}

const listed = "; "

// Failed names the cases that could not be measured, or not in all their runs.
func (e *Evaluation) Failed() (names []string) {
	for _, c := range e.Cases {
		if c.Note != "" {
			names = append(names, c.Case+" under "+c.System)
		}
	}
	return names
}

func workloadOrder(name string) int {
	return slices.IndexFunc(workload.All, func(w workload.Workload) bool { return w.Name == name })
}

// SystemOrder is the place of a system among the rows of a workload.
func SystemOrder(name string) int {
	switch name {
	case LCAlone:
		return -2
	case BEAlone:
		return -1
	}
	if system, err := workload.Systems([]string{name}); err == nil {
		return system[0].Order
	}
	return 100 // the user's own
}

// Names lists each name once, in the order of the results: what of says of the cases that like picks.
func (e *Evaluation) Names(of func(*EvaluationCase) string, like func(*EvaluationCase) bool) []string {
	var all []string
	for i := range e.Cases {
		if name := of(&e.Cases[i]); like(&e.Cases[i]) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// CaseName gives Names the workloads.
func CaseName(c *EvaluationCase) string { return c.Case }

// SystemName gives Names the systems.
func SystemName(c *EvaluationCase) string { return c.System }

// Of is the case of a workload under a system, nil where there is none.
func (e *Evaluation) Of(workload, system string) *EvaluationCase {
	for i := range e.Cases {
		if c := &e.Cases[i]; c.Case == workload && c.System == system {
			return c
		}
	}
	return nil
}
