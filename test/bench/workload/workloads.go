// Package workload is what is measured: the workloads, when their requests arrive, and the systems that share the GPU
// among their programs.
package workload

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// Task is a program of a workload, a process of its own: a model of ../torch/model.py.
type Task struct {
	Program string
	RateHz  float64 // 0: requests back to back
	Arrival string  // "" by the clock, "poisson", "bursty"
}

// Workload is LC tasks beside BE tasks.
type Workload struct {
	Name   string
	Label  string // in plots: a few short lines
	LC, BE []Task
}

// PrepareUs is what a request's data takes the CPU before the GPU gets work: long enough for a hint at its arrival to hide a switch of the GPU.
const PrepareUs = 300

func at(hz float64, arrival string, programs ...string) []Task {
	var tasks []Task
	for _, program := range programs {
		tasks = append(tasks, Task{Program: program, RateHz: hz, Arrival: arrival})
	}
	return tasks
}

var fiveModels = []string{"resnet152", "densenet201", "vgg19", "inception_v3", "distilbert"}

// Suite is the name of the suite that consists of the workloads.
const Suite = "paper"

// All lists the workloads: those of the GPreempt paper that are models alone. REAL has synthetic bursts, since the
// paper's recorded arrivals are not public.
var All = []Workload{
	{"A", "A: one model\nbeside another\n100/s", at(100, "", "vgg19"), at(100, "", "resnet152")},
	{"B", "B: one model\nbeside another\n220/s", at(220, "", "vgg19"), at(220, "", "resnet152")},
	{"C", "C: one model\nbeside five", at(100, "", "vgg19"), at(100, "", fiveModels...)},
	{"D", "D: five models\nbeside five\nby the clock", at(20, "", fiveModels...), at(100, "", fiveModels...)},
	{"E", "E: five models\nbeside five\nPoisson", at(20, "poisson", fiveModels...), at(100, "poisson", fiveModels...)},
	{"REAL", "REAL: five\nbeside five\nin bursts", at(20, "bursty", fiveModels...), at(100, "bursty", fiveModels...)},
}

// Label is a workload's in plots; "" where there is none of that name. Earlier result files have others, too.
func Label(name string) string {
	for _, w := range All {
		if w.Name == name {
			return w.Label
		}
	}
	return ""
}

// Seed makes the same random numbers for the same run in every session.
func Seed(parts ...any) *rand.Rand {
	hash := fnv.New64a()
	fmt.Fprintln(hash, parts...)
	return rand.New(rand.NewPCG(hash.Sum64(), 1))
}

// Arrivals are the times, from the start, at which a task's requests come. By the clock they come with a
// phase that is drawn anew every quarter of a second: tasks of equal rates keep no order among themselves.
func (t Task) Arrivals(length time.Duration, random *rand.Rand) []time.Duration {
	period := float64(time.Second) / t.RateHz
	var times []time.Duration
	now := 0.0
	next := func() float64 { return 0 }
	switch t.Arrival {
	case "":
		each := max(int(t.RateHz/4), 1)
		phase := 0.0
		for i := 0; ; i++ {
			if i%each == 0 {
				phase = random.Float64()
			}
			at := (float64(i) + phase) * period
			if at >= float64(length) {
				break
			}
			times = append(times, time.Duration(at))
		}
		slices.Sort(times)
		return times
	case "poisson":
		next = func() float64 { return random.ExpFloat64() * period }
	case "bursty":
		// Poisson arrivals at two rates in turns: two and a half times the mean for a third of the time, a quarter of the mean
		// otherwise.
		until, factor := 0.0, 2.5
		next = func() float64 {
			at := now
			for {
				if at >= until {
					if factor > 1 {
						factor, until = 0.25, at+random.ExpFloat64()*float64(300*time.Millisecond)
					} else {
						factor, until = 2.5, at+random.ExpFloat64()*float64(150*time.Millisecond)
					}
				}
				gap := random.ExpFloat64() * period / factor
				if at+gap < until {
					return at + gap - now
				}
				at = until
			}
		}
	}
	for now += next(); now < float64(length); now += next() {
		times = append(times, time.Duration(now))
	}
	return times
}
