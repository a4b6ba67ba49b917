package agent

import (
	"math/bits"
	"slices"

	"github.com/gpreempt/gpreempt/configs"
)

func init() { inForce[configs.Hold] = (*agent).canHold }

// canHold says whether this process's holds keep the GPU between its kernels.
func (a *agent) canHold() bool {
	above := a.core.levelNow() < lowestLevel
	if above && a.uses(configs.Hold) && (!holdWanted(a.core.config) || holdFailed(a.gpu)) {
		a.setLacks(configs.FallbackNoHold, true)
	}
	return above && a.uses(configs.Hold) && a.lacking&configs.FallbackNoHold == 0
}

// toldSwitch is what a switch takes as most others on this GPU have learnt it, in nanoseconds; 0: none has. A few that lie move it only
// where few have learnt it. A process publishes only what it has learnt itself. Lower levels are not asked: they would have the GPU more if
// this process thought that a switch takes nothing, and the lowest never learns what one takes.
func (a *agent) toldSwitch() uint64 {
	var learnt []uint32
	for members := a.segment.Members.Load() &^ (1 << a.slot); members != 0; members &= members - 1 {
		slot := bits.TrailingZeros64(members)
		lower := a.segment.Level[slot].Load() > uint32(a.core.levelNow())
		if us := a.segment.Slot(slot).SwitchUs.Load(); us != 0 && !lower {
			learnt = append(learnt, us)
		}
	}
	if len(learnt) == 0 {
		return 0
	}
	slices.Sort(learnt)
	return uint64(learnt[len(learnt)/2]) * 1000
}
