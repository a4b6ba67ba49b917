package runtime

// The poller of the library's Go runtime, in place of netpoll_epoll.go (overlay.sh): it lets a thread wait for
// the next timer, which is all that the library needs, and has no descriptors. A file or socket cannot be polled and
// is read and written as regular files are.

var poller struct {
	lock    mutex
	note    note
	stopped bool // the note is set
}

func netpollinit() {}

func netpollIsPollDescriptor(uintptr) bool { return false }

func netpollopen(uintptr, *pollDesc) uintptr {
	return 1 // EPERM, which epoll_ctl says of regular files
}

func netpollclose(uintptr) uintptr { return 0 }

func netpollarm(*pollDesc, int) { throw("runtime: nothing can be polled") }

// netpollBreak ends the wait in netpoll, or the next one.
func netpollBreak() {
	lock(&poller.lock)
	if !poller.stopped {
		poller.stopped = true
		notewakeup(&poller.note)
	}
	unlock(&poller.lock)
}

// netpoll waits for delay nanoseconds, or for ever where that is negative. The scheduler lets one thread at a time
// wait.
func netpoll(delay int64) (gList, int32) {
	if delay != 0 {
		notetsleep(&poller.note, delay)
		lock(&poller.lock)
		noteclear(&poller.note)
		poller.stopped = false
		unlock(&poller.lock)
	}
	return gList{}, 0
}
