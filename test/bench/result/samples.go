package result

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The programs and the figures agree on these.
const (
	WarmUp = 200 * time.Millisecond // of a run, in which no request is counted
	Drain  = time.Second            // DRAIN_NS of the programs
)

// LCAlone is the name of what is measured without BE, in result files.
const LCAlone = "alone"

// RunResult is one run of a workload's tasks.
type RunResult struct {
	Length time.Duration
	Tasks  []TaskRun
}

// TaskRun is what a task did in a run. Requests count, the warm-up's too, of LC tasks only: arrivals from the run's start, ends from the
// arrival. The last arrivals found no end.
type TaskRun struct {
	Role      string
	Completed float64 // within the run
	Arrivals  []time.Duration
	DoneNs    []uint64
}

// Latencies are those of the LC tasks' requests after the warm-up, from arrival, in microseconds, sorted. A request that found no end took at
// least as long as the programs waited for it.
func (r RunResult) Latencies() (us []float64) {
	for _, t := range r.Tasks {
		for i, arrival := range t.Arrivals {
			switch {
			case arrival < WarmUp:
			case i < len(t.DoneNs):
				us = append(us, float64(t.DoneNs[i])/1000)
			default:
				us = append(us, float64(r.Length+Drain-arrival)/1000)
			}
		}
	}
	slices.Sort(us)
	return us
}

// Completed is how many requests a role's tasks completed together.
func (r RunResult) Completed(role string) (all float64) {
	for _, t := range r.Tasks {
		if t.Role == role {
			all += t.Completed
		}
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
		parts = append(parts, fmt.Sprintf("BE %.1f/s", be/r.Length.Seconds()))
	}
	return strings.Join(parts, ", ")
}
