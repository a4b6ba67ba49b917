package page

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Mapping is a page in memory. Its methods give views of it, which are invalid after Unmap.
type Mapping struct{ memory unsafe.Pointer }

// Map maps a page. A view of one that is not writable must not be written.
func Map(fd int, writable bool) (Mapping, error) {
	access := unix.PROT_READ
	if writable {
		access |= unix.PROT_WRITE
	}
	memory, err := unix.MmapPtr(fd, 0, nil, uintptr(Size()), access, unix.MAP_SHARED)
	if err != nil {
		return Mapping{}, fmt.Errorf("map page: %w", err)
	}
	return Mapping{memory}, nil
}

// Mapped says whether there is a mapping.
func (m Mapping) Mapped() bool { return m.memory != nil }

// Unmap ends the mapping.
func (m *Mapping) Unmap() {
	if m.memory != nil {
		_ = unix.MunmapPtr(m.memory, uintptr(Size())) // fails for no address of a mapping
		m.memory = nil
	}
}

// Common views a common page.
func (m Mapping) Common() *segment.Header { return segment.HeaderOf(m.memory) }

// State views a client's state.
func (m Mapping) State() *segment.State { return segment.StateOf(m.memory) }

// Line views the line of a client's state, of the slot that the client has.
func (m Mapping) Line(slot int) *segment.Line { return m.State().LineOf(slot) }

// Take gives the mapping to the caller, which unmaps it.
func (m *Mapping) Take() unsafe.Pointer {
	memory := m.memory
	m.memory = nil
	return memory
}

// Bytes views all of the page.
func (m Mapping) Bytes() []byte { return unsafe.Slice((*byte)(m.memory), Size()) }

// Ring counts a change and wakes its waiters. The word is in a page that this process may write.
func Ring(word *atomic.Uint32) {
	const everyone = 1<<31 - 1
	word.Add(1)
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, everyone, 0, 0, 0)
}

// Wait waits until the word is no longer seen, at most for a time. It may return early. The word may be in a page that is
// mapped read-only.
func Wait(word *atomic.Uint32, seen uint32, most time.Duration) {
	if most <= 0 || word.Load() != seen {
		return
	}
	limit := unix.NsecToTimespec(most.Nanoseconds())
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&limit)), 0, 0)
}

// From linux/futex.h; without FUTEX_PRIVATE_FLAG, since pages are shared.
const (
	futexWait = 0
	futexWake = 1
)
