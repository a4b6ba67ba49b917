package segment

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Both are checked against segment.h by a test, and against each other here.
var (
	_ [headerSize - unsafe.Sizeof(Header{})]byte
	_ [unsafe.Sizeof(Header{}) - headerSize]byte
	_ [slotSize - unsafe.Sizeof(Slot{})]byte
	_ [unsafe.Sizeof(Slot{}) - slotSize]byte
)

// header views memory, of memorySize bytes and page-aligned or allocated as words, as a segment.
func header(memory []byte) *Header { return (*Header)(unsafe.Pointer(&memory[:memorySize][0])) }

func slotAt(memory []byte, i int) *Slot {
	return (*Slot)(unsafe.Pointer(&memory[headerSize+uint(i)%Slots*slotSize]))
}

func lineAt(memory []byte, i int) *Line { return slotAt(memory, i).LineOf(i) }

// HeaderOf views a page that begins a segment, StateOf one that begins a slot.
func HeaderOf(page unsafe.Pointer) *Header { return (*Header)(page) }

// StateOf is described with HeaderOf.
func StateOf(page unsafe.Pointer) *State { return (*State)(page) }

// words are the counters of a structure that holds nothing else.
func words[C any](counters *C) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(counters)), unsafe.Sizeof(*counters)/unsafe.Sizeof(atomic.Uint64{}))
}

// load copies counters to a structure with the same fields of type uint64.
func load[Plain, C any](counters *C) (out Plain) {
	to := unsafe.Slice((*uint64)(unsafe.Pointer(&out)), unsafe.Sizeof(out)/8)
	for i, from := 0, words(counters); i < min(len(from), len(to)); i++ {
		to[i] = from[i].Load()
	}
	return out
}

// newImage allocates memory that header and slotAt can view: byte slices need not be aligned.
func newImage() []byte {
	words := make([]uint64, memorySize/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), memorySize)
}

// mapShared maps memory into a range. Not by unix.Mmap, which keeps a list by address: this mapping may be moved.
func mapShared(fd int) ([]byte, error) {
	memory, err := reserve()
	if err != nil {
		return nil, err
	}
	for offset, size := range map[int]uintptr{0: memorySize, ringsAt: headerSize} {
		if _, err = unix.MmapPtr(fd, 0, unsafe.Pointer(&memory[offset]), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			_ = unmap(memory)
			return nil, fmt.Errorf("map memory: %w", err)
		}
	}
	return memory, nil
}

// reserve maps a range of zeros.
func reserve() ([]byte, error) {
	address, err := unix.MmapPtr(-1, 0, nil, rangeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve addresses: %w", err)
	}
	return unsafe.Slice((*byte)(address), rangeSize), nil
}

// mapAgain maps shared memory once more, for moveOwn. mremap with an old length of 0 would do that later, without a descriptor, but qemu
// refuses it.
func mapAgain(fd int) ([]byte, error) {
	address, err := unix.MmapPtr(fd, 0, nil, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory again: %w", err)
	}
	return unsafe.Slice((*byte)(address), memorySize), nil
}

// moveOwn moves a slot of memory that is mapped again to where its owner writes, and gives the rest back: what is before and behind it,
// since the place that the slot has left is free, and another thread's by now.
func moveOwn(memory, again []byte, slot int) error {
	from := headerSize + slot*slotSize
	if _, err := unix.MremapPtr(unsafe.Pointer(&again[from]), slotSize, unsafe.Pointer(&memory[ownAt]), slotSize, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
		return errors.Join(fmt.Errorf("map the own slot: %w", err), unmap(again))
	}
	err := unmap(again[:from])
	if behind := again[from+slotSize:]; len(behind) > 0 {
		err = errors.Join(err, unmap(behind))
	}
	return err
}

func unmap(memory []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(&memory[0]), uintptr(len(memory)))
}

// Pointer is the mapping, for C.
func (s *Segment) Pointer() unsafe.Pointer { return unsafe.Pointer(&s.memory[0]) }

// Own is where this process writes, at the same address for any slot.
func (s *Segment) Own() *Slot { return (*Slot)(unsafe.Pointer(&s.memory[ownAt])) }

// Slot returns slot i, from 0 to Slots-1.
func (s *Segment) Slot(i int) *Slot {
	if i == s.slot {
		return s.Own()
	}
	return slotAt(s.memory, i)
}

// Line returns the line of slot i, from 0 to Slots-1.
func (s *Segment) Line(i int) *Line { return s.Slot(i).LineOf(i) }

// Ring wakes everyone in Wait.
func (s *Segment) Ring() {
	if s.pages != nil {
		ring(&s.Own().LineOf(s.slot).Rings.Bell)
		return
	}
	ring(&s.Rings.Bell)
}

// WakeGate wakes the launches that wait at the gate, and processes that are stopped, as after a closed window.
func (s *Segment) WakeGate() {
	ring(&s.Rings.Gate)
	ring(&s.Rings.Windows)
}

// From linux/futex.h; without FUTEX_PRIVATE_FLAG, for the memory is shared.
const (
	futexWait   = 0
	futexWake   = 1
	futexSize32 = 2
	futexWaitv  = 449
)

func ring(word *atomic.Uint32) {
	word.Add(1)
	wake(word)
}

// wake wakes the waiters at a word, and returns their number.
func wake(word *atomic.Uint32) (woken int) {
	const everyone = 1<<31 - 1
	n, _, _ := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, everyone, 0, 0, 0)
	return int(n)
}

// waitWord waits until the word is another one, and says whether it was woken.
func waitWord(word *atomic.Uint32, seen uint32, timeout time.Duration) bool {
	limit := unix.NsecToTimespec(timeout.Nanoseconds())
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&limit)), 0, 0)
	return errno == 0
}

// waitWords waits until one of several words is another one, and says whether it was woken. The kernel may not know how to do that.
func waitWords(words []*atomic.Uint32, seen []uint32, timeout time.Duration) (woken, known bool) {
	type waiter struct {
		value, address uint64
		flags, _       uint32
	}
	list := make([]waiter, len(words))
	for i := range words {
		list[i] = waiter{value: uint64(seen[i]), address: uint64(uintptr(unsafe.Pointer(words[i]))), flags: futexSize32}
	}
	until := unix.NsecToTimespec(monotonic() + timeout.Nanoseconds())
	_, _, errno := unix.Syscall6(futexWaitv, uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0, uintptr(unsafe.Pointer(&until)), unix.CLOCK_MONOTONIC, 0)
	return errno == 0, errno == 0 || errno == unix.EAGAIN || errno == unix.ETIMEDOUT || errno == unix.EINTR
}

// Arena is a range of addresses that a paged segment is put together in. All of it reads as zeros at first.
type Arena struct {
	memory []byte
	view   int // in the program
}

// NewArena reserves a range of addresses. Of the segment nothing can be written.
func NewArena() (*Arena, error) {
	memory, err := reserve()
	if err == nil {
		err = unix.Mprotect(memory[:memorySize], unix.PROT_READ)
	}
	if err != nil {
		return nil, err
	}
	return &Arena{memory: memory, view: -1}, nil
}

// In says which view of the program shows the same.
func (a *Arena) In(view int) { a.view = view }

// Free gives the addresses back, if no segment was made of them.
func (a *Arena) Free() { _ = unmap(a.memory) }

// mapAt maps the beginning of a file, or zeros, in place of what is there.
func mapAt(memory []byte, offset, fd, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&memory[offset]), uintptr(os.Getpagesize()), unix.PROT_READ, flags)
	return err
}

// PlaceOwn moves the mappings of this process's pages, state and counters, to their place.
func (a *Arena) PlaceOwn(state, counters unsafe.Pointer) error {
	for i, from := range []unsafe.Pointer{state, counters} {
		to := unsafe.Pointer(&a.memory[ownAt+i*pageSize])
		if _, err := unix.MremapPtr(from, uintptr(os.Getpagesize()), to, uintptr(os.Getpagesize()), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
			return fmt.Errorf("place the own pages: %w", err)
		}
	}
	return nil
}
