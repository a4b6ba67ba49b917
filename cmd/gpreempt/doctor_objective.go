package main

import (
	"fmt"
	"os"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file says whether objectives are held: those of running programs, and the one that a program started here would have.

func (d *doctor) checkObjectives() {
	if o := d.config.Objective; o.Set() {
		if p, err := configs.ParsePriority(os.Getenv("GPREEMPT_PRIORITY")); err == nil && p.On && p.Level == configs.Levels-1 {
			d.say("objective", warned, o.String()+": a best-effort program has none", "GPREEMPT_PRIORITY must be lc, or a level below 7")
		} else {
			about := o.String() + ", of programs that are not best effort"
			if o.StepRange != "" {
				about += fmt.Sprintf("; steps end with the NVTX range %q", o.StepRange)
			}
			d.say("objective", ok, about, "")
		}
	}
	snapshots, err := d.snapshots()
	if err != nil {
		return // which checkDirectory or checkBroker said
	}
	for _, s := range snapshots {
		for i := range s.Peers {
			d.sayObjective(heading(&s), &s.Peers[i])
		}
	}
}

// sayObjective says of a program that has an objective whether it is held. The program's own words are untrusted.
func (d *doctor) sayObjective(gpu string, p *segment.Peer) {
	o := p.Objective
	if o == nil || o.Wanted == "" {
		return
	}
	about := fmt.Sprintf("%s: %s (%d) has %s", gpu, p.Name, p.Pid, o.Wanted)
	took := func(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)).Round(10 * time.Microsecond) }
	switch {
	case o.State == "unattainable":
		d.say("objective", warned, fmt.Sprintf("%s, and its steps without lent time take longer than the objective allows: %v, where %v are allowed. It goes first", about, took(o.UnlentNs), took(o.ObjectiveNs)),
			"set a longer step, or a larger slowdown: gpreempt set --objective. Is another latency-critical program on that GPU?")
	case o.State == "stepless":
		d.say("objective", warned, about+", and no end of a step was found. It goes first", "call gpreempt_step(), in Python gpreempt.step(), at the end of each step, or name an NVTX range that ends there: objective.step_range")
	case o.State == "late":
		d.say("objective", warned, about+", and slots ended more than 2 ms late. It goes first for a minute", "give the programs more processors: the library's threads wake too late")
	case o.State == "ranks":
		d.say("objective", warned, about+", computes on several GPUs together, and what a step takes alone is not known there. It goes first", "set a step instead of a slowdown: gpreempt set --objective step=25ms")
	case o.State == "rests":
		d.say("objective", ok, about+", and rests after few steps: there is nothing to lend beyond what best effort gets in its pauses. It goes first", "")
	case o.Means == 0:
		d.say("objective", ok, about+", and has made too few steps to be judged", "")
	default:
		held, wanted := 100*o.Attained(), 100.0
		if asked, err := configs.ParseObjective(configs.Objective{}, o.Wanted); err == nil {
			wanted = asked.Percentile
		}
		about = fmt.Sprintf("%s, held for %.2f %% of its steps", about, held)
		if held < wanted {
			d.say("objective", warned, fmt.Sprintf("%s, where %g %% are wanted", about, wanted), "the trim lends less until it is held; does the load come in bursts? A smaller objective.max_slot_ms helps")
			return
		}
		d.say("objective", ok, about, "")
	}
}
