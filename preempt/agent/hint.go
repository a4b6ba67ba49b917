package agent

// #include "preempt/far/calls.h"
import "C"

import "github.com/gpreempt/gpreempt/configs"

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

func startHints(config configs.Config, sources configs.HintSources) {
	h := config.Hints
	C.far_hint_start(C.double(h.MaxCost), C.uint64_t(h.LingerUs*1000), C.bool(sources.Has(configs.HintCopy)))
}
