package agent

import "github.com/gpreempt/gpreempt/configs"

func init() { inForce[configs.Hold] = (*agent).canHold }

// canHold says whether this process's holds keep the GPU between its kernels.
func (a *agent) canHold() bool {
	above := a.core.levelNow() < lowestLevel
	if above && a.uses(configs.Hold) && (!holdWanted(a.core.config) || holdFailed(a.gpu)) {
		a.setLacks(configs.FallbackNoHold, true)
	}
	return above && a.uses(configs.Hold) && a.lacking&configs.FallbackNoHold == 0
}
