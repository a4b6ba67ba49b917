package member

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A broker that starts makes its sockets one after the other. A process that finds none at the first, and one at the second, takes the first.
func TestReachWhileABrokerStarts(t *testing.T) {
	sockets := []string{filepath.Join(t.TempDir(), "0"), filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")}
	listen := func(path string) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			t.Cleanup(func() { unix.Close(fd) })
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var tried []string
	err := reach("directory", sockets, func(path string) error {
		tried = append(tried, path)
		if len(tried) == 1 { // the broker starts behind this try
			listen(sockets[0])
			listen(sockets[1])
			return fmt.Errorf("no listener: %w", unix.ECONNREFUSED)
		}
		return nil
	})
	if want := []string{sockets[0], sockets[0]}; err != nil || !slices.Equal(tried, want) {
		t.Errorf("%v, tried %q, must be %q", err, tried, want)
	}
	tried = nil
	err = reach("directory", sockets[1:], func(path string) error { // the last has no listener
		tried = append(tried, path)
		return fmt.Errorf("not for this user: %w", unix.EACCES)
	})
	if err == nil || !slices.Equal(tried, sockets[1:]) {
		t.Errorf("%v, tried %q", err, tried)
	}
}

// A broker that was lost is asked for often at first, and then less so.
func TestLonger(t *testing.T) {
	wait := firstAgain
	for sought := time.Duration(0); sought < hurry; sought += wait {
		if wait < firstAgain || wait > hurriedAgain {
			t.Fatalf("%v after %v", wait, sought)
		}
		wait = longer(wait, sought)
	}
	for range 10 {
		wait = longer(wait, hurry)
	}
	if wait != lastAgain {
		t.Errorf("%v in the end", wait)
	}
}
