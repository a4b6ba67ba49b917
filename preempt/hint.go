package preempt

// #include <sys/prctl.h>
// #include "core.h"
//
// // cgo cannot write _Atomic fields.
// static void set_hints(double max_cost, double min_confidence, uint64_t wait_ns, uint32_t copy)
// {
//	gp_settings.hint_max_cost = max_cost;
//	gp_settings.hint_min_confidence = min_confidence;
//	gp_settings.hint_wait_ns = wait_ns;
//	gp_settings.hint_copy = copy;
//	gp_hint_start();
// }
// static void wake_to_the_microsecond(void) { prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); }
// static void *hint_function(void) { return (void *)gp_hint; }
// static void *arrivals(void) { return (void *)&gp_arrivals; }
import "C"

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// HintsWanted says whether a process of this level does anything with hints.
func HintsWanted(config configs.Config, level int) bool {
	h := config.Hints
	return level < lowestLevel && holdWanted(config) && (h.Explicit || h.Copy || h.Socket || h.Arrival || h.NVTX[0] != "")
}

// HintFunction is the gp_hint_fn of hints.h.
func HintFunction() unsafe.Pointer { return C.hint_function() }

// Arrivals is the struct gp_arrivals of hints.h.
func Arrivals() unsafe.Pointer { return C.arrivals() }

// carryOutHints does so for as long as the process lives.
func (c *Core) carryOutHints() {
	runtime.LockOSThread()
	C.wake_to_the_microsecond()
	said := [segment.HintSources]bool{}
	for {
		var source C.uint32_t
		off := time.Duration(C.gp_hint_run(&source))
		event := c.log.Debug()
		if !said[source] {
			said[source] = true
			event = c.log.Warn()
		}
		event.Str("source", segment.HintNames[source]).Dur("for", off).
			Msg("hints were wrong or early too often: the source is off for a while")
	}
}

func (c *Core) startHints() {
	h := c.config.Hints
	C.set_hints(C.double(h.MaxCost), C.double(h.MinConfidence), C.uint64_t(h.WaitUs*1000), C.uint32_t(bit(h.Copy)))
	go c.carryOutHints()
}
