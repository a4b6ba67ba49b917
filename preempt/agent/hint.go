package agent

// #include "hints/hints.h"
// #include "preempt/bridge.h"
import "C"

import (
	"runtime"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// HintsWanted says whether a process of this level does anything with hints.
func HintsWanted(config configs.Config, level int) bool {
	returns := config.Mechanisms.Use(configs.Swap) && config.Memory.LC // of memory
	return level < lowestLevel && (holdWanted(config) || returns || besideMPSServer()) && config.Hints.Sources != 0
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

func (c *Core) startHints() {
	h := c.config.Hints
	C.gp_hint_start(C.double(h.MaxCost), C.double(h.MinConfidence), C.uint64_t(h.WaitUs*1000), C.bool(h.Sources.Has(configs.HintCopy)))
	go c.carryOutHints()
}
