// Package program asks the program, whose helper this process is, for what takes its descriptors, its memory or its identity
// (preempt/far/helper.h). A nil *Program is none: tests, and processes that only look.
package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is asked: enum gp_helper_what.
const (
	started = iota
	keep
	closeFile
	lockFile
	connect
	openFile
	view
	mapPart
	attach
	move
	isolate
	free
	memory
)

const (
	socket    = 4     // GP_HELPER_SOCKET
	longest   = 4096  // struct gp_helper_question, bytes
	textAt    = 6 * 8 // in it
	answerLen = 8     // struct gp_helper_answer, bytes
)

// Program is the program, by the socket that it shares with its helper.
type Program struct {
	Pid   int
	Name  string
	mutex sync.Mutex
	fd    int
	page  *page
}

// page begins struct gp_page.
type page struct {
	bell  atomic.Uint32
	bells [3]atomic.Uint32
}

// Bell is one that the program rings: enum gp_helper_bell.
type Bell int

// Bells.
const (
	Events Bell = iota
	Arrivals
	Requests
)

// Seen is what a bell says before its cause is looked for.
func (p *Program) Seen(which Bell) uint32 { return p.page.bells[which].Load() }

// Wait waits until a bell says something else, but not longer than limit (0: without a limit).
func (p *Program) Wait(which Bell, seen uint32, limit time.Duration) {
	var until *unix.Timespec
	if limit > 0 {
		t := unix.NsecToTimespec(limit.Nanoseconds())
		until = &t
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.page.bells[which])), 0, uintptr(seen), uintptr(unsafe.Pointer(until)), 0, 0)
}

// ErrGone says that the program has ended.
var ErrGone = errors.New("the program has ended")

// Of makes the program that has started this helper; shared is struct gp_page.
func Of(pid int, name string, shared unsafe.Pointer) *Program {
	p := &Program{Pid: pid, Name: name, fd: socket, page: (*page)(shared)}
	unix.CloseOnExec(p.fd)
	go p.watch()
	return p
}

// hears waits until the program has ended, up to so many milliseconds; -1: for ever.
func (p *Program) hears(within int) (ended bool, err error) {
	ready := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLRDHUP}}
	_, err = unix.Poll(ready, within)
	return err == nil && ready[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0, err
}

// HasEnded says whether the program has, and this process is about to.
func (p *Program) HasEnded() bool {
	if p == nil {
		return false
	}
	ended, _ := p.hears(0)
	return ended
}

// watch ends the helper with its program.
func (p *Program) watch() {
	for {
		ended, err := p.hears(-1)
		if ended {
			os.Exit(0)
		}
		if err != nil && !errors.Is(err, unix.EINTR) { // as with a limit of 0 descriptors
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (p *Program) ask(question []byte, fd int) (result int64, back int, err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if err := unix.Sendmsg(p.fd, question, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return 0, -1, fmt.Errorf("ask the program: %w", err)
	}
	p.page.bell.Add(1)
	const wake, everyone = 1, 1<<31 - 1 // FUTEX_WAKE
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.page.bell)), wake, everyone, 0, 0, 0)
	answer, control := make([]byte, answerLen), make([]byte, unix.CmsgSpace(4))
	n, controls, _, _, err := unix.Recvmsg(p.fd, answer, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, -1, fmt.Errorf("hear of the program: %w", err)
	}
	if n != answerLen {
		return 0, -1, ErrGone
	}
	back = -1
	if messages, err := unix.ParseSocketControlMessage(control[:controls]); err == nil && len(messages) > 0 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
			back = fds[0]
		}
	}
	if result = int64(binary.NativeEndian.Uint64(answer)); result < 0 {
		return result, back, unix.Errno(-result)
	}
	return result, back, nil
}

func question(what int, of ...uint64) []byte {
	q := binary.NativeEndian.AppendUint64(make([]byte, 0, longest), uint64(what))
	for _, n := range of {
		q = binary.NativeEndian.AppendUint64(q, n)
	}
	return append(q, make([]byte, textAt-len(q))...)
}

func (p *Program) number(what, fd int, of ...uint64) (int64, error) {
	result, _, err := p.ask(question(what, of...), fd)
	return result, err
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Started lets the program go on; on says whether its calls are intercepted.
func (p *Program) Started(on bool) error {
	_, err := p.number(started, -1, bit(on))
	return err
}

// Keep has the program hold a file open, whose record locks it takes by the returned number.
func (p *Program) Keep(fd int) (file int, err error) {
	n, err := p.number(keep, fd)
	return int(n), err
}

// Close closes such a file, which gives up its locks.
func (p *Program) Close(file int) { _, _ = p.number(closeFile, -1, uint64(file)) }

// Lock takes or gives up a record lock as the program, without waiting.
func (p *Program) Lock(file int, kind int16, start, length int) error {
	_, err := p.number(lockFile, -1, uint64(file), uint64(kind), uint64(start), uint64(length))
	return err
}

// Connect connects to a socket of packets as the program.
func (p *Program) Connect(path string) (fd int, err error) { return p.named(connect, path) }

// Open opens a file to read, as the program sees the path.
func (p *Program) Open(path string) (fd int, err error) { return p.named(openFile, path) }

func (p *Program) named(what int, path string) (fd int, err error) {
	if len(path) >= longest-textAt {
		return -1, unix.ENAMETOOLONG
	}
	_, fd, err = p.ask(append(question(what), path+"\x00"...), -1)
	return fd, err
}

// View makes a range of addresses for a segment in the program; readOnly: of the segment nothing can be written.
func (p *Program) View(readOnly bool) (number int, err error) {
	n, err := p.number(view, -1, bit(readOnly))
	return int(n), err
}

// Map maps a part of a file to a place of a view; zeros where fd is -1.
func (p *Program) Map(of, at, length, fd, offset int, writable bool) error {
	_, err := p.number(mapPart, fd, uint64(of), uint64(at), uint64(length), uint64(offset), bit(writable))
	return err
}

// Attach makes a view a GPU's segment.
func (p *Program) Attach(of, gpu, slot int, paged bool) error {
	_, err := p.number(attach, -1, uint64(of), uint64(gpu), uint64(slot), bit(paged))
	return err
}

// Move puts a view in the place of a GPU's segment; owned: the slot in that is still this program's.
func (p *Program) Move(of, gpu, slot int, paged, owned bool) bool {
	n, err := p.number(move, -1, uint64(of), uint64(gpu), uint64(slot), bit(paged)|bit(owned)<<1)
	return err == nil && n == 1
}

// Isolate gives the program a segment of its own.
func (p *Program) Isolate(gpu int) bool {
	n, err := p.number(isolate, -1, uint64(gpu))
	return err == nil && n == 1
}

// Free gives a view up that is no GPU's.
func (p *Program) Free(of int) { _, _ = p.number(free, -1, uint64(of)) }

// Memory maps a private copy of a file in the program, and returns its address there.
func (p *Program) Memory(fd, bytes int) (address uint64, err error) {
	n, err := p.number(memory, fd, uint64(bytes))
	return uint64(n), err
}
