package main

// #include "shim/shim.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

// sink is where text of the log goes. put does not wait. It returns how much of the text needs no second try; late: the rest can be
// written only by forced, which may wait for ever.
type sink interface {
	put(text []byte) (n int, late bool)
	forced(text []byte) int
}

// stderr is standard error, without os.Stderr's way of ending the process by SIGPIPE when it has no reader any more.
type stderr struct{}

func (stderr) put(text []byte) (n int, late bool) {
	text = text[:min(len(text), C.GP_FAR_DATA)]
	said := C.far_say((*C.char)(unsafe.Pointer(unsafe.SliceData(text))), C.uint64_t(len(text)))
	return max(int(said), 0), said == C.GP_MAY_WAIT
}

func (stderr) forced(text []byte) int {
	if !C.far_lane_open(C.GP_LANE_LOG) {
		return len(text) // no thread of the program may wait
	}
	text = text[:min(len(text), C.GP_FAR_DATA)]
	return int(C.far_write((*C.char)(unsafe.Pointer(unsafe.SliceData(text))), C.uint64_t(len(text))))
}

const (
	mostUnwritten = 64 << 10 // bytes
	firstTry      = 10 * time.Millisecond
	slowestTry    = time.Second
)

// lines is a log for which no thread waits, though its reader may stop or end. Lines that its sink does not take stay here, up to a
// bound, and a goroutine tries them again, as long as there are any. Lines beyond the bound are counted.
type lines struct {
	to        sink
	mutex     sync.Mutex
	unwritten []byte
	lost      int  // lines, since the last that were written
	trying    bool // the goroutine runs: only it takes from unwritten
}

var logged []*lines // to be written before the helper ends by itself

// flush gives lines that could not be written yet a second.
func flush() {
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(firstTry) {
		if !slices.ContainsFunc(logged, (*lines).waits) {
			return
		}
	}
}

func (l *lines) waits() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.trying
}

func (l *lines) Write(line []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	n := 0
	if !l.trying {
		n, _ = l.to.put(line)
	}
	if n == len(line) {
		return n, nil
	}
	if n == 0 && len(l.unwritten)+len(line) > mostUnwritten {
		l.lost++
	} else {
		l.unwritten = append(l.unwritten, line[n:]...)
	}
	if !l.trying {
		l.trying = true
		go l.again()
	}
	return len(line), nil
}

// again tries until all is written.
func (l *lines) again() {
	for wait := firstTry; ; wait = min(2*wait, slowestTry) {
		time.Sleep(wait)
		if l.try() {
			return
		}
	}
}

func (l *lines) try() (done bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for len(l.unwritten) > 0 || l.lost > 0 {
		if len(l.unwritten) == 0 {
			l.unwritten = fmt.Appendf(nil, "gpreempt: %d lines of the log are lost: they could not be written for some time\n", l.lost)
			l.lost = 0
		}
		line := l.unwritten[:bytes.IndexByte(l.unwritten, '\n')+1]
		n, late := l.to.put(line)
		if late {
			line = bytes.Clone(line)
			l.mutex.Unlock()
			n = l.to.forced(line)
			l.mutex.Lock()
		}
		l.unwritten = l.unwritten[n:]
		if n == 0 {
			return false
		}
	}
	l.unwritten, l.trying = nil, false
	return true
}

// logFile is a file to which any number of processes may write. The first that notices a file longer than the limit, if any, renames it to a
// name that ends in .1.
type logFile struct {
	path    string
	limit   int64           // bytes; 0: none
	renamed func(to string) // told after this process has renamed it
	mutex   sync.Mutex
	fd      int
	is      unix.Stat_t
}

func (f *logFile) open() error {
	flags := unix.O_CREAT | unix.O_APPEND | unix.O_WRONLY | unix.O_CLOEXEC | unix.O_NONBLOCK
	if os.Geteuid() == 0 { // a link could be another user's
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(f.path, flags, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", f.path, err)
	}
	var is unix.Stat_t
	if err = unix.Fstat(fd, &is); err == nil && is.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("must be a regular file")
	}
	if err == nil {
		err = configs.OwnedByRoot(&is)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.fd, f.is = fd, is
	return nil
}

// Write is for what is not worth a second try.
func (f *logFile) Write(p []byte) (int, error) {
	f.put(p)
	return len(p), nil
}

func (f *logFile) put(p []byte) (n int, late bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	var now unix.Stat_t
	if f.limit > 0 && unix.Fstat(f.fd, &now) == nil && now.Size+int64(len(p)) > f.limit && now.Size > 0 && !f.rename() && now.Size > 2*f.limit {
		return len(p), false // no line is worth more than the bound
	}
	switch n, err := unix.Write(f.fd, p); {
	case err == nil:
		return n, false
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EINTR):
		return 0, false
	}
	return len(p), false // a limit of file sizes stays
}

func (f *logFile) forced(p []byte) int { return len(p) } // a file is never late

// rename renames the file and begins a new one. If several processes found it too long, one renames it: the one that locks
// it while it still has its name. False: it still has its name, since another one is at it, or since it can not be renamed.
func (f *logFile) rename() bool {
	var named unix.Stat_t
	if unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	before, to := f.fd, f.path+".1"
	defer func() { _ = unix.Flock(before, unix.LOCK_UN) }()
	if unix.Lstat(f.path, &named) == nil && named.Dev == f.is.Dev && named.Ino == f.is.Ino {
		if unix.Rename(f.path, to) != nil {
			return false
		}
		f.renamed(to)
	}
	if f.open() == nil {
		defer unix.Close(before)
	}
	return true
}
