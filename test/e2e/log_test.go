package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// standardError is one whose reader does nothing.
type standardError struct {
	name string
	open func(t *testing.T) (reader, writer *os.File)
}

func pipeOf(t *testing.T) (reader, writer *os.File) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "writer")
}

func socketOf(t *testing.T) (reader, writer *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "writer")
}

func terminalOf(t *testing.T) (reader, writer *os.File) {
	user, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(user, unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(user, unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	program, err := unix.Open(fmt.Sprint("/dev/pts/", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(user), "reader"), os.NewFile(uintptr(program), "writer")
}

var unread = []standardError{{"pipe", pipeOf}, {"socket", socketOf}, {"terminal", terminalOf}}

// full has no room for a byte more. Its description, which the program will share, stays unchanged.
func (s standardError) full(t *testing.T) (reader, writer *os.File) {
	reader, writer = s.open(t)
	t.Cleanup(func() { _ = errors.Join(reader.Close(), writer.Close()) })
	fd := int(writer.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 4095) + "\n")
	for size := len(line); size > 0; {
		_, err := unix.Write(fd, line[len(line)-size:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return reader, writer
}

// A program runs and ends as without the library, whether anybody reads the library's lines or not: those about a mistake in its file, and
// about each thing that it does.
func TestNobodyReadsStandardError(t *testing.T) {
	t.Parallel()
	for _, s := range unread {
		for _, role := range []string{"lc", "be"} {
			for _, config := range []string{"", "mechanisms = \"nonsense\"\n"} {
				t.Run(strings.Join([]string{s.name, role, config}, " "), func(t *testing.T) {
					m := newMachine(t, config, "GPREEMPT_LOG=debug")
					_, writer := s.full(t)
					cmd := m.command(role, worker)
					cmd.Stderr = writer
					p := m.startAs(cmd)
					if _, hash := p.request(5, 3, "stream"); hash != sums(15) {
						t.Errorf("hash %d, must be %d", hash, sums(15))
					}
					if last, _ := p.finish(); last != "count 0" {
						t.Errorf("last line %q", last)
					}
					flags, err := unix.FcntlInt(writer.Fd(), unix.F_GETFL, 0)
					if err != nil || flags&unix.O_NONBLOCK != 0 {
						t.Errorf("the description of standard error has flags %#x, %v", flags, err)
					}
				})
			}
		}
	}
}

// The reader goes on: the lines that had no room come.
func TestStandardErrorIsReadLate(t *testing.T) {
	t.Parallel()
	for _, s := range unread {
		t.Run(s.name, func(t *testing.T) {
			m := newMachine(t, "", "GPREEMPT_LOG=info")
			reader, writer := s.full(t)
			cmd := m.command("lc", worker)
			cmd.Stderr = writer
			p := m.startAs(cmd)
			p.request(2, 2, "stream")
			said := make(chan string)
			go func() {
				defer close(said)
				for scanner := bufio.NewScanner(reader); scanner.Scan(); {
					if strings.Contains(scanner.Text(), "preemption is on") {
						said <- scanner.Text()
						return
					}
				}
			}()
			select {
			case line := <-said:
				if !strings.Contains(line, " info preemption is on ") || strings.Contains(line, "@(#)") {
					t.Errorf("the line is torn: %q", line)
				}
			case <-time.After(patience):
				t.Error("what it said never comes")
			}
			p.finish()
		})
	}
}

// A program without a standard error opens a file, which gets its number: no line of ours goes there.
func TestNoStandardError(t *testing.T) {
	t.Parallel()
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable, end='')").Output() // a script may stand before it
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{"", "mechanisms = \"nonsense\"\n"} {
		m := newMachine(t, config, "GPREEMPT_LOG=debug")
		data := filepath.Join(m.dir, "data")
		cmd := m.command("lc", "sh", "-c", `exec "$0" "$@" 2>&-`, string(python), "-c", `
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
assert fd == 2, fd
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
os.write(fd, b"the program's")
`, data)
		out, err := cmd.Output()
		if err != nil || string(out) != "0 0 0\n" {
			t.Errorf("%q, %v", out, err)
		}
		if text, err := os.ReadFile(data); err != nil || string(text) != "the program's" {
			t.Errorf("its file has %q, %v", text, err)
		}
	}
}

// The disk of the log file is full, and then it is not. And a log file that is a FIFO is none.
func TestLogWithoutRoom(t *testing.T) {
	t.Parallel()
	small := []string{"unshare", "--user", "--map-root-user", "--mount"}
	if out, err := exec.Command(small[0], append(small[1:], "mount", "-t", "tmpfs", "none", "/mnt")...).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let this user mount: %v: %s", err, out)
	}
	m := newMachine(t, "", "GPREEMPT_LOG=debug:"+"/mnt/log")
	cmd := m.command("lc", small[0], append(small[1:], "sh", "-c",
		`mount -t tmpfs -o size=16k,mode=700 none /mnt && { head -c 1000000 /dev/zero > /mnt/ballast; test -s /mnt/ballast; } 2>"$1" && exec "$0"`, worker, filepath.Join(m.dir, "said"))...)
	p := m.startAs(cmd)
	if _, hash := p.request(3, 3, "stream"); hash != sums(6) {
		t.Errorf("hash %d, must be %d", hash, sums(6))
	}
	mnt := fmt.Sprintf("/proc/%d/root/mnt/", p.pid())
	if is, err := os.Stat(mnt + "log"); err != nil || is.Size() != 0 {
		t.Fatalf("nothing is tested: %v, %v", is, err)
	}
	if err := os.Truncate(mnt+"ballast", 0); err != nil {
		t.Fatal(err)
	}
	m.until("it is written", func() bool {
		text, err := os.ReadFile(mnt + "log")
		return err == nil && strings.Contains(string(text), "preemption is on")
	})
	if last, stderr := p.finish(); last != "count 0" || stderr != "" {
		t.Errorf("last line %q, stderr %q", last, stderr)
	}

	fifo := filepath.Join(m.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	m.environment = []string{"GPREEMPT_LOG=warn:" + fifo}
	for range 2 { // the second one has a reader
		p := m.start("lc")
		p.request(2, 2, "stream")
		if last, stderr := p.finish(); last != "count 0" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "open log file: ") {
			t.Errorf("last line %q, stderr %q", last, stderr)
		}
		reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
	}
}
