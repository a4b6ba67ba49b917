package agent

import (
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// sayObjective says, once each, why an objective does nothing here.
func (a *agent) sayObjective() {
	state := a.own().Objective.State.Load()
	if state >= uint64(len(a.saidObjective)) || a.saidObjective[state] {
		return
	}
	a.saidObjective[state] = true
	switch state {
	case segment.ObjectiveUnattainable:
		a.log.Warn().Dur("objective", time.Duration(a.own().Objective.ObjectiveNs.Load())).Dur("step", time.Duration(a.own().Objective.MeanNs.Load())).
			Msg("steps alone take longer than the objective allows: latency-critical work goes first; set a longer step_ms or a larger slowdown")
	case segment.ObjectiveStepless:
		a.log.Warn().Msg("there is an objective, and no end of a step was found in 2 s of work: latency-critical work goes first; call gpreempt_step() at the end of each step")
	}
}
