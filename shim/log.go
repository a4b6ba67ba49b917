package main

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// stderr is os.Stderr without its way of ending the process by SIGPIPE when nobody reads any more.
type stderr struct{}

func (stderr) Write(p []byte) (int, error) {
	_, _ = unix.Write(unix.Stderr, p)
	return len(p), nil
}

// logFile is a file whose descriptor the program may close at any time, as daemons close all that they do not
// know, and get again for a file of its own.
type logFile struct {
	path  string
	mutex sync.Mutex
	fd    int
	is    unix.Stat_t
}

func (f *logFile) open() error {
	const flags = unix.O_CREAT | unix.O_APPEND | unix.O_WRONLY | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Open(f.path, flags, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", f.path, err)
	}
	if err = unix.Fstat(fd, &f.is); err == nil && f.is.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("must be a regular file")
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.fd = fd
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
	}
	_, _ = unix.Write(f.fd, p)
	return len(p), nil
}
