package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// probe is a process that runs probe.c.
type probe struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string
	stderr  bytes.Buffer
}

const probeLimit = 60 * time.Second // a first cuInit on eight GPUs without persistence takes long

func startProbe(env []string, arguments ...string) (*probe, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own executable: %w", err)
	}
	p := &probe{command: exec.Command(executable, append([]string{"doctor-probe"}, arguments...)...), lines: make(chan string)}
	p.command.Env, p.command.Stderr = env, &p.stderr
	p.command.WaitDelay = time.Second
	stdin, err := p.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	p.stdin = stdin
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p, nil
}

func (p *probe) pid() int { return p.command.Process.Pid }

// report returns the probe's lines, and an error unless the last one was "ready" and came within a time.
func (p *probe) report(within time.Duration) (lines []string, err error) {
	limit := time.After(within)
	for {
		select {
		case line, more := <-p.lines:
			switch {
			case !more:
				return lines, fmt.Errorf("ended early (%v) %s", p.end(), firstLine(p.stderr.String())) //nolint:errorlint // it may end well
			case line == "ready":
				return lines, nil
			}
			lines = append(lines, line)
		case <-limit:
			return lines, fmt.Errorf("did not answer for %v", within)
		}
	}
}

// end lets the probe go, or kills it. It may be called again.
func (p *probe) end() error {
	if p.command.ProcessState != nil {
		return nil
	}
	p.stdin.Close()
	timer := time.AfterFunc(5*time.Second, func() { p.command.Process.Kill() })
	defer timer.Stop()
	for range p.lines { // until its standard output ends
	}
	return p.command.Wait()
}
