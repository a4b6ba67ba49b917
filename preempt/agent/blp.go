package agent

// #include "preempt/bridge.h"
import "C"

import (
	"fmt"
	"runtime"
)

// stoppable says whether kernels of this process are rewritten as they are loaded. The driver must be initialised.
func stoppable() bool { return bool(C.gp_blp_wanted()) }

// prepareDomains makes the domains of contexts that have none. The error is that of the last context that could not have
// one; later says that a context is not initialised yet.
func prepareDomains() (later bool, err error) {
	for i := range C.GP_CONTEXTS {
		if !bool(C.gp_bridge_blp_missing(C.int(i))) {
			continue
		}
		var call *C.char
		result := C.gp_bridge_prepare_blp(C.int(i), &call)
		if result == contextIsDestroyed {
			C.gp_bridge_prepare_blp_later(C.int(i))
			later = true
		} else if result != 0 && !bool(C.gp_bridge_is_gone(result)) { // it ends meanwhile, or the process does
			err = fmt.Errorf("%s: CUDA error %d", C.GoString(call), int(result))
		}
	}
	return later, err
}

// watchWindows stops and resumes this process's kernels on a GPU, for as long as the process lives.
func watchWindows(gpu int) {
	runtime.LockOSThread()
	C.gp_bridge_watch_windows(C.int(gpu)) // for good in C: a goroutine would wait for a processor of the scheduler's
}
