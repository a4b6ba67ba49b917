package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// users is the broker, and what all cases of the suite compare with.
type users struct {
	program, directory, policy string // of the broker
	byBroker, byFile           string // configurations of the workers
	running                    *brokerProcess

	lc      lcResult // alone
	latency *result.Latency
	be      float64 // kernels a second, alone
}

// brokerProcess is a running broker.
type brokerProcess struct {
	cmd    *exec.Cmd
	gone   chan struct{}
	stderr *lastBytes
}

const servesWithin = 30 * time.Second

// serve starts a broker, and waits until clients can join. It does not look for others: in a container the driver's management library may
// tell of processes by numbers that are other processes' here.
func (u *users) serve(ctx context.Context) error {
	b := &brokerProcess{cmd: exec.Command(u.program, "--directory", u.directory, "--policy", u.policy, "--others=false"),
		gone: make(chan struct{}), stderr: &lastBytes{}}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := b.cmd.StderrPipe()
	if err == nil {
		err = startChild(b.cmd)
	}
	if err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	serving := make(chan struct{}, 1)
	go func() {
		defer close(b.gone)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(b.stderr, lines.Text())
			if strings.Contains(lines.Text(), `"serving"`) {
				select {
				case serving <- struct{}{}:
				default: // it says so once
				}
			}
		}
		_, _ = io.Copy(io.Discard, out) // after a line too long for the scanner
		_ = b.cmd.Wait()                // it is killed in the end
	}()
	u.running = b
	select {
	case <-serving:
		return nil
	case <-b.gone:
		return fmt.Errorf("the broker ended: %s", b.stderr.lastLine())
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(servesWithin):
		err = fmt.Errorf("the broker: %w in %s", errNoAnswer, servesWithin)
	}
	b.kill()
	return err
}

func (b *brokerProcess) kill() {
	_ = b.cmd.Process.Kill() // it may have ended
	<-b.gone
}

// ran is how long the broker's threads had a processor (the first word of schedstat, in ns).
func (b *brokerProcess) ran() (total time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", b.cmd.Process.Pid))
	if err == nil && len(threads) == 0 {
		err = errors.New("it has ended, or the kernel does not count that")
	}
	for _, path := range threads {
		text, readErr := os.ReadFile(path)
		word, _, _ := strings.Cut(string(text), " ")
		ns, parseErr := strconv.ParseUint(word, 10, 63)
		if err = errors.Join(err, readErr, parseErr); err == nil {
			total += time.Duration(ns)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("the broker's processor time: %w", err)
	}
	return total, nil
}
