package agent

// #include "preempt/far/calls.h"
import "C"

import "github.com/gpreempt/gpreempt/configs"

func init() { inForce[configs.BLP] = func(a *agent) bool { return a.stoppable && stoppable() } }

// stoppable says whether kernels of this process are rewritten as they are loaded: not where an unknown function of the driver has ended it.
// The driver must be initialised.
func stoppable() bool { return bool(C.far_blp_wanted()) }

// watchWindows starts the thread that stops and resumes this process's kernels on a GPU, once that is attached; false: there is none.
func watchWindows(gpu int) bool { return bool(C.far_watch_windows(C.int(gpu))) }

// tellBLP counts stops of this process's kernels, and says once what a stop found out.
func (a *agent) tellBLP() {
	countBLP(a.gpu)
	stop := &a.own().Stop
	if stop.Beside.Load() > 0 && !a.saidBeside {
		a.saidBeside = true
		a.log.Warn().Msg("blocks of a kernel wait for later blocks of their launch: such kernels are stopped only as a whole from now on")
	}
	if n := stop.GivenUp.Load(); n > a.givenUp {
		a.givenUp = n
		call, result := refused(a.gpu)
		if call == "" { // the mistake is our own, and was said
			return
		}
		a.log.Warn().Str("call", call).Int("result", result).Msg("the driver refused a call that stops or resumes kernels: kernels of that context are not stopped any more")
	}
}
