package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

const (
	daemonStarts = 30 * time.Second // until a daemon serves
	daemonEnds   = 5 * time.Second  // from when it is asked to end
)

// server is what processes of a system need while they run.
type server interface {
	stop()
	hasEnded() bool
}

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
			return nil, fmt.Errorf("the daemon ended: %s", d.said.reason())
		case <-ctx.Done():
			d.stop()
			return nil, ctx.Err()
		case <-late:
			d.stop()
			return nil, fmt.Errorf("the daemon does not serve after %s: %s", limit, d.said.reason())
		}
	}
	return d, nil
}

func (d *daemon) hasEnded() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}

// stop ends the daemon and what it started.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-d.gone:
	case <-time.After(daemonEnds):
	}
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL) // those of its group that are left
	<-d.gone
}

// rivalDaemon is the daemon of a rival.
type rivalDaemon struct {
	*daemon
	made []string // what it made in the file system, innermost first
}

func (r *rivalDaemon) stop() {
	r.daemon.stop()
	for _, path := range r.made {
		_ = os.Remove(path) // it may have done so itself; a folder stays if it is not empty
	}
}

// startRival starts a rival's daemon. One that somebody else started is left alone: it would not be ours to set up or to stop.
func (s *session) startRival(ctx context.Context, d workload.Daemon) (server, error) {
	program := filepath.Join(s.rivals, d.Command[0])
	fail := func(err error) (server, error) { return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err) }
	r := &rivalDaemon{}
	network, address := "unix", d.Ready
	if port, tcp := d.Port(); tcp {
		network, address = "tcp", net.JoinHostPort("127.0.0.1", port)
	}
	answers := func() bool {
		connection, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return false
		}
		connection.Close()
		return true
	}
	if answers() || network == "unix" && listens(address) {
		return fail(fmt.Errorf("something serves at %s already", d.Ready))
	}
	ready := answers
	if network == "unix" {
		// What nobody serves was left by one that was killed.
		if info, err := os.Lstat(address); err == nil && info.Mode().Type() != os.ModeSocket {
			return fail(fmt.Errorf("%s is there and is no socket", address))
		}
		if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail(err)
		}
		r.made = []string{address}
		if folder := filepath.Dir(address); !exists(folder) {
			r.made = append(r.made, folder)
		}
		ready = func() bool { return listens(address) } // a connection would count as a client
	}
	var err error
	if r.daemon, err = startDaemon(ctx, append([]string{program}, d.Command[1:]...), s.inherited(), daemonStarts, ready); err != nil {
		for _, path := range r.made {
			_ = os.Remove(path) // as above
		}
		return fail(err)
	}
	if len(d.Then) == 0 {
		return r, nil
	}
	limited, cancel := context.WithTimeout(ctx, daemonStarts)
	defer cancel()
	then := exec.CommandContext(limited, filepath.Join(s.rivals, d.Then[0]), d.Then[1:]...)
	then.Env, then.WaitDelay = s.inherited(), time.Second
	if text, err := then.CombinedOutput(); err != nil {
		r.stop()
		return fail(fmt.Errorf("%s: %w: %s", filepath.Base(d.Then[0]), err, lastLine(string(text))))
	}
	return r, nil
}

// listens says whether a process listens at the path of a socket, from the kernel's list of them. That names sockets as their
// processes do, so that folders may differ by links.
func listens(path string) bool {
	const acceptsConnections = "00010000" // __SO_ACCEPTCON, the only flag that unix(7) shows
	list, err := os.ReadFile("/proc/net/unix")
	if err != nil || !exists(path) {
		return false
	}
	for line := range strings.Lines(string(list)) {
		if field := strings.Fields(line); len(field) == 8 && field[3] == acceptsConnections && filepath.Base(field[7]) == filepath.Base(path) {
			return true
		}
	}
	return false
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
