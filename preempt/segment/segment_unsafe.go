package segment

import (
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

// lineAt is the line of slot i: which one depends on the slot, so that not all lie in one set of a processor's cache.
func lineAt(memory []byte, i int) *Line { return &slotAt(memory, i).Line[i%lines] }

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

// mapShared maps memory. Not by unix.Mmap, which keeps a list by address: this mapping may be moved.
func mapShared(fd int) ([]byte, error) {
	address, err := unix.MmapPtr(fd, 0, nil, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(address), memorySize), nil
}

func unmap(memory []byte) error { return unix.MunmapPtr(unsafe.Pointer(&memory[0]), memorySize) }

// Pointer is the mapping, for C.
func (s *Segment) Pointer() unsafe.Pointer { return unsafe.Pointer(&s.memory[0]) }

// Slot returns slot i, from 0 to Slots-1.
func (s *Segment) Slot(i int) *Slot { return slotAt(s.memory, i) }

// Line returns the line of slot i, from 0 to Slots-1.
func (s *Segment) Line(i int) *Line { return lineAt(s.memory, i) }

// Ring wakes everyone in WaitBell.
func (s *Segment) Ring() {
	s.Bell.Add(1)
	wake((*uint32)(unsafe.Pointer(&s.Bell)))
}

// WakeGate wakes the launches that wait at the gate, and processes that are stopped, as after a closed window.
func (s *Segment) WakeGate() {
	s.Gate.Add(1)
	wake((*uint32)(unsafe.Pointer(&s.Gate)))
	s.Windows.Add(1)
	wake((*uint32)(unsafe.Pointer(&s.Windows)))
}

// WaitBell waits until the bell is no longer at seen, but not longer than timeout, and returns where it
// is. It may return early.
func (s *Segment) WaitBell(seen uint32, timeout time.Duration) uint32 {
	if timeout > 0 && s.Bell.Load() == seen {
		limit := unix.NsecToTimespec(timeout.Nanoseconds())
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.Bell)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&limit)), 0, 0)
	}
	return s.Bell.Load()
}

// From linux/futex.h; without FUTEX_PRIVATE_FLAG, for the memory is shared.
const (
	futexWait = 0
	futexWake = 1
)

func wake(word *uint32) {
	const everyone = 1<<31 - 1
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, everyone, 0, 0, 0)
}

// Now is CLOCK_MONOTONIC, the clock of the segment's times, in nanoseconds.
func Now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0 // cannot fail for this clock
	}
	return uint64(t.Nano())
}
