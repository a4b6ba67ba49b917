package agent

// #include "preempt/far/calls.h"
import "C"

import (
	"fmt"
	"math"

	"github.com/gpreempt/gpreempt/configs"
)

// setMemory tells what [memory] says. The helper looks how much the machine has left: in the program a file would take a descriptor.
func setMemory(config configs.Config) {
	m := config.Memory
	host := C.uint64_t(m.HostMB << 20)
	if host == 0 {
		var everywhere C.char
		host = C.gp_host_left(&everywhere) / 2
	}
	C.far_memory_settings(C.uint64_t(m.ReserveMB<<20), host, C.uint64_t(m.WaitMs*1e6), C.bool(config.Mechanisms.Use(configs.Swap)))
}

// startSwap lets memory of this process come and go. The program has none yet.
func startSwap() error {
	var text [C.GP_FAR_TEXT]C.char
	if C.far_start_memory(&text[0]) {
		return fmt.Errorf("look up %s in the driver: not there", C.GoString(&text[0]))
	}
	return nil
}

// countMemory counts memory of this process, which stays where it is.
func countMemory() { C.far_count_memory() }

// memoryCounters is struct gp_bridge_memory.
type memoryCounters struct {
	resident, swapped, pinned, wanted, making, waiting, asking                                          uint64
	waits, waitNs, evictions, restores, outBytes, outNs, inBytes, inNs, failures, takenBytes, host, cap uint64
	cannotGo                                                                                            uint64 // see struct gp_memory
}

func readMemory(gpu int) memoryCounters {
	var m C.struct_gp_bridge_memory
	C.far_read_memory(C.int(gpu), &m)
	return memoryCounters{
		uint64(m.resident), uint64(m.swapped), uint64(m.pinned), uint64(m.wanted), uint64(m.making), uint64(m.waiting),
		uint64(m.asking), uint64(m.waits), uint64(m.wait_ns), uint64(m.evictions), uint64(m.restores), uint64(m.out_bytes), uint64(m.out_ns),
		uint64(m.in_bytes), uint64(m.in_ns), uint64(m.failures), uint64(m.taken_bytes), uint64(m.arena_pinned),
		uint64(m.cap), uint64(m.cannot_go),
	}
}

// claims is what calls have waited for that are not over.
func (c memoryCounters) claims() uint64 { return c.wanted + c.making }

// publishAccounts tells others what this process has, and what its calls claim. stays: of what is resident, what cannot go.
func publishAccounts(gpu int, stays uint64) {
	C.far_publish_memory(C.int(gpu), C.uint64_t(stays))
}

// Bounds of what the contexts of one process take of a GPU: bytes, and a part of all.
const (
	contextsBytes = uint64(C.GP_CONTEXTS_BYTES)
	contextsPart  = uint64(C.GP_CONTEXTS_PART)
)

// setElsewhere tells how much of a GPU's memory others have and never give: answers to the program leave that out.
func setElsewhere(gpu int, bytes uint64) { C.far_elsewhere(C.int(gpu), C.uint64_t(bytes)) }

// besideMPSServer says whether contexts that this process makes are an MPS server's.
func besideMPSServer() bool { return bool(C.far_server_runs()) }

// deviceMemory is what the driver says of the whole GPU; false where this process has no context there.
func deviceMemory(gpu int) (free, total uint64, known bool) {
	var both [2]C.uint64_t
	known = bool(C.far_memory_free(C.int(gpu), &both[0]))
	return uint64(both[0]), uint64(both[1]), known
}

// poolsOf is what pools of this process have, which nobody publishes.
func poolsOf(gpu int) uint64 { return uint64(C.far_memory_pools(C.int(gpu))) }

// pinsOf says why memory of this process cannot go: bits of enum gp_pin, and GP_PIN_DRIVER.
func pinsOf(gpu int) uint64 { return uint64(C.far_memory_pins(C.int(gpu))) }

// unmanaged says whether memory cannot go there at all.
func unmanaged(gpu int) bool { return bool(C.far_memory_unmanaged(C.int(gpu))) }

func deviceTotal(gpu int) uint64 { return uint64(C.far_memory_total(C.int(gpu))) }

// isCap says whether a total that the driver tells is a cap of this process, and not what the GPU has.
func isCap(gpu int, total uint64) bool {
	return bool(C.far_memory_is_cap(C.int(gpu), C.uint64_t(total)))
}

// roomChanged lets calls that wait for room try again; enough: as much is free as they want. A call that wants more than most bytes waits
// in vain. most 0: no call is to wait, now and later.
func roomChanged(gpu int, most uint64, enough bool) {
	C.far_room_changed(C.int(gpu), C.uint64_t(most), C.bool(enough))
}

// allowMemory is how much may be allocated before room has to be asked for.
func allowMemory(gpu int, bytes uint64) { C.far_memory_allow(C.int(gpu), C.uint64_t(bytes)) }

// grantMemory lets memory that comes back go on until restores have taken so many bytes ever.
func grantMemory(gpu int, upto uint64) { C.far_memory_grant(C.int(gpu), C.uint64_t(upto)) }

// hurryMemory makes memory that leaves urgent.
func hurryMemory(gpu int) { C.far_memory_hurry(C.int(gpu)) }

// cutPinning, while on, makes the pinning of host memory, and giving it back, end soon.
func cutPinning(on bool) { C.far_arena_cut(C.bool(on)) }

func ringBell(gpu int) { C.far_ring(C.int(gpu)) }

// setAway says whether hints bring memory back; recalled, told once, that one came.
func setAway(away bool) { C.far_away(C.bool(away)) }
func recalled() bool    { return bool(C.far_recalled()) }

// carryOut carries a move out. It takes as long as that takes.
func carryOut(m move) moveResult {
	gpu := C.int(m.gpu)
	done := true
	switch m.kind {
	case moveOut:
		return moveResult(C.far_evict(gpu, C.uint64_t(m.bytes), C.uint64_t(m.timeout), C.bool(m.urgent)))
	case moveIn:
		return moveResult(C.far_restore(gpu, C.uint64_t(min(m.bytes, math.MaxUint64)), C.bool(m.urgent)))
	case moveHalt:
		done = bool(C.far_suspend(true, C.uint64_t(m.timeout)))
	case moveResume:
		done = bool(C.far_suspend(false, 0))
	case movePin:
		if !bool(C.far_arena_grow(gpu, C.uint64_t(m.bytes))) {
			return movedNoHost
		}
	case moveUnpin:
		C.far_arena_trim(gpu, C.uint64_t(m.bytes))
	}
	if !done {
		return movedBusy
	}
	return moved
}
