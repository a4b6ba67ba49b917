package agent

import "github.com/gpreempt/gpreempt/configs"

func init() { inForce[configs.Gate] = (*agent).gates }

// gates says whether launches of this process wait on the host while a higher level's window is open. That only costs time
// where timeslices separate processes; under MPS nothing else does.
func (a *agent) gates() bool {
	return a.uses(configs.Gate) || inForce[configs.BLP](a)
}
