// Package learner learns when a process will put work on the GPU: from what announces it (NVTX ranges, data on sockets) and
// from the pattern of earlier requests. Code on the program's threads, and code that carries hints out, is C (hints/).
package learner

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../../build/core.a -lpthread
// #include "preempt/far/calls.h"
import "C"

import (
	"cmp"
	"io"
	"slices"
	"unsafe"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/program"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Options says which sources give hints.
type Options struct {
	Sources configs.HintSources
	MaxCost float64
	Log     io.Writer // gets a line for each request; nil: none
}

// NameRanges tells which NVTX ranges announce work, and which one ends with a step ("": none). To be called once, before Start.
func NameRanges(announcing []string, step string) {
	for i, name := range announcing {
		C.far_nvtx_name(C.uint32_t(i), text(name))
	}
	C.far_nvtx_name_step(text(step))
	C.far_nvtx_named()
}

// text is for one call of C. C.CString would end a process that lacks memory.
func text(name string) *C.char { return (*C.char)(unsafe.Pointer(&append([]byte(name), 0)[0])) }

// Start lets the sources give hints, for as long as the process lives. Socket hooks are installed by the caller.
func Start(o Options) {
	C.far_hints_begin(C.uint32_t(o.Sources))
	const immediate = 1<<configs.HintExplicit | 1<<configs.HintCopy // nothing is learnt for them
	if o.Sources&^immediate != 0 || o.Log != nil {
		go learn(o)
	}
}

func learn(o Options) {
	l := newLearner(o.MaxCost, 0)
	l.publish = func(place uint32, key uint64, e estimate) {
		C.far_estimate_set(C.uint32_t(place), C.uint64_t(key), C.uint64_t(e.delayNs), C.uint64_t(e.validNs), C.uint32_t(e.likely*1e6))
	}
	l.publishFor = func(c connection, likely float64) {
		C.far_connection_likely(C.uint32_t(c.fd), C.uint32_t(c.generation), C.uint32_t(likely*1e6))
	}
	predictor := NewArrivals(o.MaxCost, 0)
	var announcementsRead, arrivalsRead uint32
	for {
		seen := segment.Of.Seen(program.Arrivals)
		l.switchNs = float64(C.far_hint_saves_ns()) // learnt meanwhile, on these GPUs
		predictor.switchNs = l.switchNs
		announced := announcements(&announcementsRead)
		for _, a := range arrivals(&arrivalsRead) {
			write(o.Log, a)
			at := a.AtNs
			for len(announced) > 0 && announced[0].atNs <= at {
				l.announced(announced[0])
				announced = announced[1:]
			}
			l.arrived(at)
			if p, ok := predictor.Arrived(at); ok && o.Sources.Has(configs.HintArrival) {
				C.far_give_arrival(C.uint64_t(p.FromNs), C.uint64_t(p.ToNs-p.FromNs), C.double(p.Confidence))
			}
		}
		for _, a := range announced {
			l.announced(a)
		}
		C.far_sockets_look()
		segment.Of.Wait(program.Arrivals, seen, 0)
	}
}

// latest is from where there is something to read: what came before was overwritten.
func latest(read, end uint32) uint32 {
	const kept = 256 // of both
	if end-read > kept {
		return end - kept
	}
	return read
}

// arrivals reads what came since; what was overwritten meanwhile is lost.
func arrivals(read *uint32) (list []Request) {
	end := uint32(C.far_arrivals_count())
	for *read = latest(*read, end); *read != end; *read++ {
		var a C.struct_gp_arrival_taken
		if C.far_arrivals_take(C.uint32_t(*read), &a); a.at_ns != 0 {
			list = append(list, request(uint64(a.at_ns), uint64(a.held_ns), uint64(a.due_ns), a.ready != 0, int(a.dropped)))
		}
	}
	slices.SortFunc(list, func(a, b Request) int { return cmp.Compare(a.AtNs, b.AtNs) })
	return list
}

func announcements(read *uint32) (list []announcement) {
	end := uint32(C.far_announcements_count())
	for *read = latest(*read, end); *read != end; *read++ {
		var a C.struct_gp_announcement_taken
		if C.far_announcements_take(C.uint32_t(*read), &a); a.at_ns != 0 {
			list = append(list, announcement{uint64(a.at_ns), uint64(a.key), uint32(a.estimate),
				connection{uint32(a.fd), uint32(a.generation)}})
		}
	}
	slices.SortFunc(list, func(a, b announcement) int {
		return int(int64(a.atNs - b.atNs))
	})
	return list
}
