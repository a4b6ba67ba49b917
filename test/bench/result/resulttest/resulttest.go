// Package resulttest makes results that were not measured, for tests.
package resulttest

import (
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Case is a workload under a system: LC requests of these latencies, BE completing this many, in runs of two seconds.
func Case(name, system string, us []int, be float64) result.EvaluationCase {
	c := result.EvaluationCase{Case: name, System: system, About: "synthetic", Claimed: true, PrepareUs: 300}
	for repeat := 1; repeat <= 2; repeat++ {
		run := result.RunResult{Repeat: repeat, Seconds: 2}
		if len(us) > 0 {
			task := result.TaskRun{Task: workload.Task{Program: "vgg19", RateHz: 100}, Role: "lc", Offered: 100, Completed: 100, CPUSeconds: .1}
			var arrivals []time.Duration
			var submitted, done []uint64
			for i := range 100 {
				arrivals = append(arrivals, result.WarmUp+time.Duration(i)*15*time.Millisecond)
				submitted = append(submitted, 300_000)
				done = append(done, uint64(us[i%len(us)]+i)*1000)
			}
			task.Set(arrivals, submitted, done)
			run.Tasks = append(run.Tasks, task)
		}
		if be > 0 {
			run.Tasks = append(run.Tasks, result.TaskRun{Task: workload.Task{Program: "resnet152", RateHz: 100}, Role: "be", Offered: 200, Completed: be, CPUSeconds: .2})
		}
		c.Runs = append(c.Runs, run)
	}
	return c
}

// Evaluation has a few workloads, under alone, default and gpreempt.
func Evaluation() *result.Evaluation {
	e := &result.Evaluation{Head: result.Head{Schema: 1, Benchmark: "paper", GPU: "NVIDIA Test", Driver: "1.2", CUDA: "13.0", Date: "2026-01-02", Commit: "abc", Command: "gpreempt bench"}}
	for _, name := range []string{"A", "C", "E", "REAL"} {
		e.Cases = append(e.Cases,
			Case(name, "alone", []int{1500}, 0), Case(name, "be-alone", nil, 200),
			Case(name, "default", []int{3500, 5000}, 200), Case(name, "gpreempt", []int{1700}, 190),
			Case(name, "gpreempt-hints", []int{1510}, 150))
		if name == "A" {
			e.Cases = append(e.Cases, result.EvaluationCase{Case: name, System: "mps", Note: "no daemon | here"}, Case(name, "only-timeslice", []int{2500}, 190))
		}
	}
	return e
}
