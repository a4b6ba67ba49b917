package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// findGpreempt finds the command beside this program, or in the PATH.
func findGpreempt() (string, error) {
	self, err := os.Executable()
	if err == nil {
		for _, path := range []string{"gpreempt", "../bin/gpreempt"} {
			path = filepath.Join(filepath.Dir(self), path)
			if _, err := exec.LookPath(path); err == nil {
				return path, nil
			}
		}
	}
	return exec.LookPath("gpreempt")
}

// Lister is a process that lists the users of GPUs, for programs without C.
type Lister struct {
	command *exec.Cmd
	in      io.WriteCloser
	lines   chan string
	asked   bool
}

// StartLister starts one.
func StartLister() (*Lister, error) {
	path, err := findGpreempt()
	if err != nil {
		return nil, err
	}
	l := &Lister{command: exec.Command(path, "doctor-probe", "processes"), lines: make(chan string)}
	l.command.WaitDelay = time.Second
	var out io.ReadCloser
	l.in, err = l.command.StdinPipe()
	if err == nil {
		out, err = l.command.StdoutPipe()
	}
	if err == nil {
		err = l.command.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		defer close(l.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			l.lines <- in.Text()
		}
	}()
	return l, nil
}

// Ask returns the users of each GPU.
func (l *Lister) Ask() (map[string][]User, error) {
	if l.asked {
		if _, err := l.in.Write([]byte{'\n'}); err != nil {
			return nil, fmt.Errorf("ask gpreempt doctor-probe: %w", err)
		}
	}
	l.asked = true
	var lines []string
	for limit := time.After(UsersLimit); ; {
		select {
		case line, more := <-l.lines:
			if !more {
				return nil, errors.New("gpreempt doctor-probe ended")
			}
			if line == "ready" {
				return ReadUsers(lines)
			}
			lines = append(lines, line)
		case <-limit:
			return nil, fmt.Errorf("gpreempt doctor-probe did not answer for %v", UsersLimit)
		}
	}
}

// End lets the process go. A nil Lister has none.
func (l *Lister) End() {
	if l == nil {
		return
	}
	l.in.Close()
	timer := time.AfterFunc(5*time.Second, func() { _ = l.command.Process.Kill() })
	defer timer.Stop()
	for range l.lines { // until its output ends
	}
	_ = l.command.Wait() // how it ended does not matter
}
