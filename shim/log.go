package main

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

// stderr is os.Stderr without its way of ending the process by SIGPIPE when nobody reads any more.
type stderr struct{}

func (stderr) Write(p []byte) (int, error) {
	_, _ = unix.Write(unix.Stderr, p)
	return len(p), nil
}

// logFile is a file whose descriptor the program may close at any time, and get again for a file of its own: daemons close
// all descriptors that they do not know.
//
// Any number of processes may write to it. One that is longer than the limit, if there is one, is renamed by whoever
// notices, to a name that ends in .1.
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

func (f *logFile) Write(p []byte) (int, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	var now unix.Stat_t
	if err := unix.Fstat(f.fd, &now); err != nil || now.Dev != f.is.Dev || now.Ino != f.is.Ino {
		if err := f.open(); err != nil {
			return len(p), nil // nobody to tell
		}
		now = f.is
	}
	if f.limit > 0 && now.Size+int64(len(p)) > f.limit && now.Size > 0 && !f.rename() && now.Size > 2*f.limit {
		return len(p), nil // no line is worth more than the bound
	}
	_, _ = unix.Write(f.fd, p)
	return len(p), nil
}

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
