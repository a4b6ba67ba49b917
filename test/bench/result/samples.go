package result

import (
	"fmt"
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

// RunResult is one run of a workload's tasks.
type RunResult struct {
	Seconds float64
	Tasks   []TaskRun
	Begin   time.Duration // CLOCK_MONOTONIC
}

// TaskRun is what a task did in a run.
type TaskRun struct {
	workload.Task
	Role      string
	Completed float64 // within the run
	Identical *bool   // of work that tells: its results are those that it had at first
	Times     Times   // of every request, the warm-up's too
	Trace     Trace
}

// Times are the times of a run's requests in nanoseconds: arrivals from the run's start, the others from the arrival. The last
// arrivals found no end.
type Times struct {
	Arrival, Submitted, Done []time.Duration
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

// Latencies are those of the requests after the warm-up, from arrival, in microseconds. A request that found no end took at least as long as
// the programs waited for it.
func (t *TaskRun) Latencies(length time.Duration) (us []float64) {
	for i, arrival := range t.Times.Arrival {
		switch {
		case arrival < WarmUp:
		case i < len(t.Times.Done):
			us = append(us, microsecondsOf(t.Times.Done[i]))
		default:
			us = append(us, microsecondsOf(length+Drain-arrival))
		}
	}
	return us
}

func microsecondsOf(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Latencies are those of all LC tasks, sorted.
func (r RunResult) Latencies() (us []float64) {
	for _, t := range r.Of("lc") {
		us = append(us, t.Latencies(r.Length())...)
	}
	slices.Sort(us)
	return us
}

// Completed is how many requests a role's tasks completed together.
func (r RunResult) Completed(role string) (all float64) {
	for _, t := range r.Of(role) {
		all += t.Completed
	}
	return all
}

// Brief says in a few words how a run went.
func (r RunResult) Brief() string {
	var parts []string
	if us := r.Latencies(); len(us) > 0 {
		parts = append(parts, fmt.Sprintf("LC p50 %.0f us, p99 %.0f us", Quantile(us, .5), Quantile(us, .99)))
	}
	if be := r.Completed("be"); be > 0 {
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
