package agent

import "github.com/gpreempt/gpreempt/configs"

func init() { inForce[configs.Spatial] = (*agent).isSpatial }

// isSpatial says whether this process leaves SMs to lower levels, or at the lowest level goes on beside windows on those that they leave.
func (a *agent) isSpatial() bool {
	if !a.uses(configs.Spatial) {
		return false
	}
	blp := a.uses(configs.BLP)
	if a.core.levelNow() == lowestLevel {
		blp = inForce[configs.BLP](a)
	}
	a.setLacks(configs.FallbackNoBLP, !blp)
	return blp
}

// goesOn says whether a process goes on beside windows of higher levels, on the SMs that they leave.
func goesOn(in configs.Mechanism) bool {
	const both = configs.BLP | configs.Spatial
	return in&both == both
}
