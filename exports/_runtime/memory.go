package runtime

import (
	"internal/runtime/atomic"
	"unsafe"
)

// Addresses put aside as the runtime starts, when the program has not taken all that a limit allows: for one more arena of
// the heap, with what it takes to align it, and for what the runtime needs beside its heap. No memory before they are used.
var spare struct {
	begun         atomic.Bool
	arena         atomic.Uintptr // 0: there is none any more
	memory, taken atomic.Uintptr
}

const (
	spareArena  = 2 * heapArenaBytes
	spareMemory = 16 << 20
)

// mmapOrWait is mmap for the library's Go runtime (see the Makefile), which would end the process where it gets no memory:
// a limit of the address space, or of mappings. It takes what was put aside, and then it waits, with all of the library
// that needs memory, until there is some: the program goes on.
//
//go:nosplit
func mmapOrWait(addr unsafe.Pointer, n uintptr, prot, flags, fd int32, off uint32) (unsafe.Pointer, int) {
	if !spare.begun.Load() { // the first call, by the only thread
		spare.begun.Store(true)
		if p, err := mmap(nil, spareArena, _PROT_NONE, _MAP_ANON|_MAP_PRIVATE, -1, 0); err == 0 {
			spare.arena.Store(uintptr(p))
		}
		if p, err := mmap(nil, spareMemory, _PROT_READ|_PROT_WRITE, _MAP_ANON|_MAP_PRIVATE, -1, 0); err == 0 {
			spare.memory.Store(uintptr(p))
		}
	}
	waits := false
	for wait := uint32(1000); ; wait = min(2*wait, 1e6) { // microseconds
		p, err := mmap(addr, n, prot, flags, fd, off)
		if err != _ENOMEM && err != _EAGAIN {
			if waits {
				tellMemory(-1)
			}
			return p, err
		}
		switch {
		case addr != nil && prot == _PROT_NONE && flags&_MAP_FIXED == 0:
			return nil, err // the runtime asks for a place anywhere then
		case addr == nil && prot == _PROT_NONE && n <= spareArena:
			if p := spare.arena.Swap(0); p != 0 {
				return unsafe.Pointer(p), 0
			}
		case addr == nil && prot != _PROT_NONE && spare.memory.Load() != 0:
			bytes := alignUp(n, physPageSize)
			taken := spare.taken.Load()
			if bytes <= spareMemory-taken {
				if spare.taken.CompareAndSwap(taken, taken+bytes) {
					return unsafe.Pointer(spare.memory.Load() + taken), 0
				}
				continue
			}
		}
		if !waits {
			waits = true
			tellMemory(1)
		}
		usleep(wait)
	}
}

//go:linkname _cgo_memory_waits _cgo_memory_waits
var _cgo_memory_waits *uint32

// tellMemory tells the program's threads how many of the runtime's wait for memory: they do not wait for what these do then
// (preempt/code/request.c).
//
//go:nosplit
func tellMemory(more int32) { atomic.Xadd(_cgo_memory_waits, more) }
