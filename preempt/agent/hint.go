package agent

// #include "hints/hints.h"
// #include "preempt/bridge.h"
import "C"

import (
	"runtime"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// HintSources are those that a process of this level listens to. Without holds, and without memory that hints bring back, that is under an MPS
// server only (carry.c).
func HintSources(config configs.Config, level int) configs.HintSources {
	returns := config.Mechanisms.Use(configs.Swap) && config.Memory.LC // of memory
	switch {
	case level >= lowestLevel:
		return 0
	case holdWanted(config) || returns:
		return config.Hints.Sources
	case besideMPSServer():
		return config.Hints.Sources.Told()
	}
	return 0
}

// carryOutHints sees to hints when they are due, for as long as the process lives, and logs which sources are switched off.
func (c *Core) carryOutHints() {
	runtime.LockOSThread()
	C.gp_bridge_wake_to_the_microsecond()
	said := [len(configs.HintRows)]bool{}
	for {
		var source C.uint32_t
		off := time.Duration(C.gp_hint_run(&source))
		event := c.log.Debug()
		if !said[source] {
			said[source] = true
			event = c.log.Warn()
		}
		event.Str("source", configs.HintRows[source].Name).Dur("for", off).
			Msg("hints were wrong or early too often: the source is off for a while")
	}
}

func (c *Core) startHints(sources configs.HintSources) {
	h := c.config.Hints
	C.gp_hint_start(C.double(h.MaxCost), C.uint64_t(h.LingerUs*1000), C.bool(sources.Has(configs.HintCopy)))
	go c.carryOutHints()
}
