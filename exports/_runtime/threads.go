package runtime

import "unsafe"

//go:linkname _cgo_take_thread _cgo_take_thread
var _cgo_take_thread unsafe.Pointer

// idleRuns lets an idle thread run pp, if newm gets no thread for it: then newm has nothing to do. startm, and what starts the world, call newm
// where they find no thread that is idle. A processor without a thread would stand still, with the goroutines in its queue, and with all that
// wait for the world to stop. There are more threads than can run, or wait in calls, at a time (exports/go_runtime.c), so that one that
// has no processor any more is about to become idle. It needs sched.lock for that, and nothing that whoever waits here has.
//
//go:nowritebarrierrec
func idleRuns(fn func(), pp *p, id int64) bool {
	if pp == nil { // a thread of the runtime's own
		return false
	}
	gp := getg()
	ask := struct{ mayCreate, given int32 }{}
	if gp.m.lockedExt == 0 && !gp.m.incgo { // of others, not even their table of descriptors may be Go's
		ask.mayCreate = 1
	}
	for wait := uint32(20); ; wait = min(2*wait, 1000) { // microseconds
		lock(&sched.lock)
		mp := mget()
		if mp != nil && id >= 0 {
			sched.nmfreed++ // nobody has the id
		}
		unlock(&sched.lock)
		if mp != nil {
			mp.spinning = fn != nil // it is mspinning
			mp.nextp.set(pp)
			notewakeup(&mp.park)
			return true
		}
		asmcgocall(_cgo_take_thread, unsafe.Pointer(&ask))
		if ask.given != 0 {
			return false
		}
		usleep(wait)
	}
}
