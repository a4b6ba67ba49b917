package agent

import (
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// tellObjective puts in force what people or a broker say of the process's objective, on all its GPUs. A word that makes no sense changes
// nothing.
func (c *Core) tellObjective(says configs.ObjectiveWord) {
	o, ok := says.Objective(c.config.Objective)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if says == c.told || says.Says() && !ok {
		return
	}
	c.told = says
	tellObjective(o, ok)
	told := c.log.Info()
	if ok {
		told = told.Stringer("objective", says)
	}
	if ok && c.levelNow() == lowestLevel {
		told.Msg("another objective, for when this process is no longer best effort")
	} else if ok {
		told.Msg("another objective")
	} else {
		told.Str("objective", c.config.Objective.Word().String()).Msg("the process's own objective again")
	}
}

// tellWanted publishes the objective in force, and then which request for one was heard (0: none).
func (a *agent) tellWanted(heard segment.Request) {
	wanted := configs.ObjectiveWord(0)
	if o := readObjective(); o.Set() {
		wanted = o.Word()
	}
	a.own().Objective.Wanted.Store(uint64(wanted))
	if heard != 0 {
		a.own().AnswerObjective(heard)
	}
}

// sayObjective says, once each, why an objective does nothing here.
func (a *agent) sayObjective() {
	state := a.own().Objective.State.Load()
	if state >= uint64(len(a.saidObjective)) || a.saidObjective[state] {
		return
	}
	a.saidObjective[state] = true
	switch state {
	case segment.ObjectiveUnattainable:
		o := &a.own().Objective
		a.log.Warn().Stringer("step_without_lent_time", time.Duration(o.UnlentNs.Load())).Stringer("allowed", time.Duration(o.ObjectiveNs.Load())).
			Msg("steps without lent time take longer than the objective allows: latency-critical work goes first; set a longer step_ms or a larger slowdown")
	case segment.ObjectiveStepless:
		a.log.Warn().Msg("there is an objective, and no end of a step was found in 2 s of work: latency-critical work goes first; call gpreempt_step() at the end of each step, or name an NVTX range that ends there (objective.step_range)")
	case segment.ObjectiveLate:
		a.log.Warn().Msg("slots that were lent ended more than 2 ms late: latency-critical work goes first for a minute; are there too few processors for the programs here?")
	case segment.ObjectiveRanks:
		a.log.Warn().Msg("the program computes on several GPUs together, and what a step takes alone is not known there: latency-critical work goes first; set objective.step_ms instead of slowdown")
	case segment.ObjectiveRests:
		a.log.Info().Msg("fewer than 8 steps follow each other without a rest: a slot would delay the next request for nothing, so latency-critical work goes first")
	}
}
