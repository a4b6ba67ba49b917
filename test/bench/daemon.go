package bench

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	daemonStarts = 30 * time.Second // until a daemon serves
	daemonEnds   = 5 * time.Second  // from when it is asked to end
)

// daemon is a program that serves others until it is stopped.
type daemon struct{ child }

// startDaemon starts a daemon and waits until it is ready, no longer than a limit.
func startDaemon(ctx context.Context, arguments, environment []string, limit time.Duration, ready func() bool) (*daemon, error) {
	d := &daemon{newChild(context.Background(), arguments, environment)}
	d.cmd.Stdout = d.said
	d.cmd.WaitDelay = time.Second // what it starts has its output, too
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
	_ = d.killGroup() // those of its group that are left
	<-d.gone
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
