package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	daemonStarts = 30 * time.Second // until a daemon serves
	daemonEnds   = 5 * time.Second  // from when it is asked to end
)

// daemon is a program that serves others until it is stopped. It is the first of a process group of its own: what it
// leaves behind ends with it, and what a terminal sends to the command does not reach it.
type daemon struct {
	cmd  *exec.Cmd
	said *lastBytes
	gone chan struct{} // closed when it has been waited for
}

// startDaemon starts a daemon and waits until it is ready, no longer than a limit.
func startDaemon(ctx context.Context, arguments, environment []string, limit time.Duration, ready func() bool) (*daemon, error) {
	d := &daemon{cmd: exec.Command(arguments[0], arguments[1:]...), said: &lastBytes{}, gone: make(chan struct{})}
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = environment, d.said, d.said
	d.cmd.WaitDelay = time.Second // what it starts has its output, too
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := startChild(d.cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(d.gone)
		_ = d.cmd.Wait() // what went wrong is in what it said
	}()
	tick, late := time.NewTicker(50*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-d.gone:
			d.stop()
			return nil, fmt.Errorf("the daemon ended: %s", reason(d.said.all()))
		case <-ctx.Done():
			d.stop()
			return nil, ctx.Err()
		case <-late:
			d.stop()
			return nil, fmt.Errorf("the daemon does not serve after %s: %s", limit, reason(d.said.all()))
		}
	}
	return d, nil
}

func (d *daemon) hasEnded() bool { return isClosed(d.gone) }

// endsWithin waits for its end, no longer than a limit.
func (d *daemon) endsWithin(limit time.Duration) bool {
	select {
	case <-d.gone:
		return true
	case <-time.After(limit):
		return false
	}
}

// stop ends the daemon and what it started.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	_ = d.endsWithin(daemonEnds)
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL) // those of its group that are left
	<-d.gone
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
