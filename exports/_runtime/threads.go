package runtime

import "unsafe"

// C takes this for granted (exports/go_runtime.c, exports/go_memory.c). A Go where it is otherwise does not compile.
var (
	_ [3 * 8]byte        = [unsafe.Sizeof(cgothreadstart{})]byte{}
	_ [0]byte            = [unsafe.Offsetof(g{}.stack)]byte{}
	_ [8]byte            = [unsafe.Offsetof(stack{}.hi)]byte{}
	_ [64 << 20]struct{} = [heapArenaBytes]struct{}{}
)

// idleRuns lets an idle thread run pp, if newm gets no thread for it: then newm has nothing to do. startm, and what starts the world, call newm
// where they find no thread that is idle. A processor without a thread would stand still, with the goroutines in its queue, and with all that
// wait for the world to stop. There are more threads than can run, or wait in calls, at a time (exports/go_runtime.c). So one that has no
// processor any more is about to become idle. It needs sched.lock for that, and no lock of the thread that waits here.
//
//go:nowritebarrierrec
func idleRuns(fn func(), pp *p, id int64) bool {
	if pp == nil { // a thread of the runtime's own
		return false
	}
	gp := getg()
	mayCreate := gp.m.lockedExt == 0 && !gp.m.incgo      // of others, not even their table of descriptors may be Go's
	for wait := uint32(20); ; wait = min(2*wait, 1000) { // microseconds
		lock(&sched.lock)
		mp := mget()
		if mp != nil && id >= 0 {
			sched.nmfreed++ // no thread has the id
		}
		unlock(&sched.lock)
		if mp != nil {
			mp.spinning = fn != nil // it is mspinning
			mp.nextp.set(pp)
			notewakeup(&mp.park)
			return true
		}
		if threadIsGiven(mayCreate) {
			return false
		}
		usleep(wait)
	}
}

// threadIsGiven asks C for a thread, which newm will start. A request to start one that has no g0 is such a question.
//
//go:nowritebarrierrec
func threadIsGiven(mayCreate bool) bool {
	var answer uint64
	if mayCreate {
		answer = 1
	}
	ask := cgothreadstart{tls: &answer}
	asmcgocall(_cgo_thread_start, unsafe.Pointer(&ask))
	return answer != 0
}
