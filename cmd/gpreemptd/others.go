package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker"
	"github.com/gpreempt/gpreempt/cmd/internal/cli"
)

// Processes on the GPUs that are no clients are found by NVIDIA's management library. This program is without C, so `gpreempt` asks it,
// in a process that lives while there are clients.

// againAfter is when it is tried again after it failed.
const againAfter = time.Minute

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

// watchOthers tells the server again and again who works on the GPUs, until it has ended. It says once why it cannot.
func watchOthers(server *broker.Server, log zerolog.Logger, ended <-chan struct{}) {
	var from *lister
	var next time.Time
	said := ""
	ticker := time.NewTicker(cli.UsersEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			from.end()
			return
		case <-ticker.C:
		}
		if server.InUse() == 0 {
			from.end()
			from = nil
			continue
		}
		if time.Now().Before(next) {
			continue
		}
		users, err := map[string][]cli.User(nil), error(nil)
		if from == nil {
			from, err = startLister()
		}
		if err == nil {
			users, err = from.ask()
		}
		server.SetWorkers(workers(users, "/proc"))
		if err == nil {
			continue
		}
		from.end()
		from, next = nil, time.Now().Add(againAfter)
		if said != err.Error() {
			said = err.Error()
			log.Warn().Err(err).Msg("processes without gpreempt are not looked for: best-effort programs get little beside them")
		}
	}
}

// workers are the PIDs of those that had work, or may have had: where that is not known, all. A process that is not here, since it is in
// another PID namespace or has ended, cannot be told from a client.
func workers(users map[string][]cli.User, proc string) map[string][]int32 {
	all := map[string][]int32{}
	for gpu, on := range users {
		for _, u := range on {
			works := u.Percent == nil || *u.Percent > 0
			if _, err := os.Stat(filepath.Join(proc, strconv.Itoa(u.PID))); works && u.PID > 0 && err == nil {
				all[gpu] = append(all[gpu], int32(u.PID))
			}
		}
	}
	return all
}

// lister is a process that lists the users of GPUs.
type lister struct {
	command *exec.Cmd
	in      io.WriteCloser
	lines   chan string
	asked   bool
}

func startLister() (*lister, error) {
	path, err := findGpreempt()
	if err != nil {
		return nil, err
	}
	l := &lister{command: exec.Command(path, "doctor-probe", "processes"), lines: make(chan string)}
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

// ask returns who is on which GPU.
func (l *lister) ask() (map[string][]cli.User, error) {
	if l.asked {
		if _, err := l.in.Write([]byte{'\n'}); err != nil {
			return nil, fmt.Errorf("ask gpreempt doctor-probe: %w", err)
		}
	}
	l.asked = true
	var lines []string
	for limit := time.After(cli.UsersLimit); ; {
		select {
		case line, more := <-l.lines:
			if !more {
				return nil, errors.New("gpreempt doctor-probe ended")
			}
			if line == "ready" {
				return cli.ReadUsers(lines)
			}
			lines = append(lines, line)
		case <-limit:
			return nil, fmt.Errorf("gpreempt doctor-probe did not answer for %v", cli.UsersLimit)
		}
	}
}

// end lets the process go. A nil lister has none.
func (l *lister) end() {
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
