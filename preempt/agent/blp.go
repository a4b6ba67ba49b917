package agent

// #include "preempt/bridge.h"
import "C"

import "runtime"

// stoppable says whether kernels of this process are rewritten as they are loaded. The driver must be initialised.
func stoppable() bool { return bool(C.gp_blp_wanted()) }

// watchWindows stops and resumes this process's kernels on a GPU, for as long as the process lives.
func watchWindows(gpu int) {
	runtime.LockOSThread()
	C.gp_bridge_watch_windows(C.int(gpu)) // for good in C: a goroutine would wait for a processor of the scheduler's
}
