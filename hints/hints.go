// Package hints is where hints come from: the program itself, NVTX ranges, sockets and the pattern of
// earlier requests. It knows nothing of how a hint is carried out: it calls the function it is given.
//
// What runs on the program's threads is C (source.c, socket.c, nvtx.c); learning is done by one goroutine.
package hints

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #include <linux/futex.h>
// #include <pthread.h>
// #include <stdlib.h>
// #include <sys/syscall.h>
// #include <unistd.h>
// #include "nvtx.h"
// #include "source.h"
//
// extern _Atomic uint32_t gp_explicit;
//
// // cgo cannot read _Atomic fields.
// // Nobody takes hints in a forked child.
// static void in_child(void) { gp_give = NULL; }
// static void start(void *give, void *arrivals, double least_likely, uint32_t listens)
// {
//	gp_least_likely = least_likely;
//	gp_arrived = arrivals;
//	gp_explicit = listens;
//	pthread_atfork(NULL, NULL, in_child);
//	gp_give = (gp_hint_fn *)give;
// }
// static void give_arrival(uint64_t from, uint64_t valid, double confidence)
// {
//	gp_hint_fn *give = gp_give;
//	give(GP_HINT_ARRIVAL, from, valid, confidence);
// }
// static uint32_t bell(void) { return gp_arrived->bell; }
// static void wait_bell(uint32_t seen)
// {
//	syscall(SYS_futex, &gp_arrived->bell, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
// }
// struct arrived { uint64_t at_ns, held_ns, due_ns; uint32_t ready, dropped; };
// static struct arrived next_arrival(uint32_t i)
// {
//	struct gp_arrival *a = &gp_arrived->arrival[i % 256];
//	uint64_t at = __atomic_exchange_n((uint64_t *)&a->at_ns, 0, __ATOMIC_ACQ_REL);
//	return (struct arrived){at, a->held_ns, a->due_ns, a->ready, a->dropped};
// }
// static uint32_t arrivals_count(void) { return gp_arrived->count; }
// static uint32_t announcements_count(void) { return gp_announcements; }
// struct announced { uint64_t at_ns, key; uint32_t estimate, fd, generation; };
// static struct announced next_announcement(uint32_t i)
// {
//	struct gp_announcement *a = &gp_announcement[i % GP_ANNOUNCEMENTS];
//	uint64_t at = __atomic_exchange_n((uint64_t *)&a->at_ns, 0, __ATOMIC_ACQ_REL);
//	return (struct announced){at, a->key, a->estimate, a->fd, a->generation};
// }
// static void set_estimate(uint32_t i, uint64_t key, uint64_t delay, uint64_t valid, uint32_t likely_ppm)
// {
//	struct gp_estimate *e = &gp_estimate[i % GP_KEYS];
//	if (e->key != key)
//		return; // another's place by now
//	e->delay_ns = delay;
//	e->valid_ns = valid;
//	e->likely_ppm = likely_ppm;
// }
import "C"

import (
	"cmp"
	"io"
	"slices"
	"unsafe"
)

// Options says which sources give hints, and to whom.
type Options struct {
	Give                      unsafe.Pointer // gp_hint_fn of hints.h
	Arrivals                  unsafe.Pointer // struct gp_arrivals of hints.h
	Explicit, Socket, Arrival bool
	NVTX                      []string // names of ranges
	MaxCost, MinConfidence    float64
	Log                       io.Writer // gets a line for each request; nil: none
}

// Start lets the sources give hints, for as long as the process lives. Socket hooks are installed by the caller.
func Start(o Options) {
	listens := C.uint32_t(0)
	if o.Explicit {
		listens = 1
	}
	for i, name := range o.NVTX {
		text := append([]byte(name), 0) // not by C.CString, which ends a process that lacks memory
		C.gp_nvtx_name(C.uint32_t(i), (*C.char)(unsafe.Pointer(&text[0])))
	}
	C.start(o.Give, o.Arrivals, C.double(o.MinConfidence), listens)
	if o.Socket || o.Arrival || len(o.NVTX) > 0 || o.Log != nil {
		go learn(o)
	}
}

// SocketHooks is the const struct gp_socket_hooks * for the interception layer.
func SocketHooks() unsafe.Pointer { return unsafe.Pointer(C.gp_socket_hooks()) }

func learn(o Options) {
	l := newLearner(o.MaxCost)
	l.publish = func(place uint32, key uint64, e estimate) {
		C.set_estimate(C.uint32_t(place), C.uint64_t(key), C.uint64_t(e.delayNs), C.uint64_t(e.validNs), C.uint32_t(e.likely*1e6))
	}
	l.publishFor = func(c connection, likely float64) {
		C.gp_connection_likely(C.uint32_t(c.fd), C.uint32_t(c.generation), C.uint32_t(likely*1e6))
	}
	predictor := NewArrivals(o.MaxCost)
	var announcementsRead, arrivalsRead uint32
	for {
		seen := C.bell()
		announced := announcements(&announcementsRead)
		for _, a := range arrivals(&arrivalsRead) {
			write(o.Log, a)
			at := a.AtNs
			for len(announced) > 0 && announced[0].atNs <= at {
				l.announced(announced[0])
				announced = announced[1:]
			}
			l.arrived(at)
			if p, ok := predictor.Arrived(at); ok && o.Arrival {
				C.give_arrival(C.uint64_t(p.FromNs), C.uint64_t(p.ToNs-p.FromNs), C.double(p.Confidence))
			}
		}
		for _, a := range announced {
			l.announced(a)
		}
		C.wait_bell(seen)
	}
}

// arrivals reads what came since; what was overwritten meanwhile is lost.
func arrivals(read *uint32) (list []Request) {
	for end := uint32(C.arrivals_count()); *read != end; *read++ {
		if a := C.next_arrival(C.uint32_t(*read)); a.at_ns != 0 {
			list = append(list, request(uint64(a.at_ns), uint64(a.held_ns), uint64(a.due_ns), a.ready != 0, int(a.dropped)))
		}
	}
	slices.SortFunc(list, func(a, b Request) int { return cmp.Compare(a.AtNs, b.AtNs) })
	return list
}

func announcements(read *uint32) (list []announcement) {
	for end := uint32(C.announcements_count()); *read != end; *read++ {
		if a := C.next_announcement(C.uint32_t(*read)); a.at_ns != 0 {
			list = append(list, announcement{uint64(a.at_ns), uint64(a.key), uint32(a.estimate),
				connection{uint32(a.fd), uint32(a.generation)}})
		}
	}
	slices.SortFunc(list, func(a, b announcement) int {
		return int(int64(a.atNs - b.atNs))
	})
	return list
}
