package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// mpsDaemon is an MPS control daemon of our own, with its pipes in a folder of our own.
type mpsDaemon struct {
	cmd         *exec.Cmd
	tool, pipes string
	environment []string
	gone        chan struct{}
}

func (s *session) startMPS(ctx context.Context, folder string) (*mpsDaemon, error) {
	tool, err := s.findTool("nvidia-cuda-mps-control")
	if err != nil {
		return nil, err
	}
	pipes, logs := filepath.Join(folder, "mps"), filepath.Join(folder, "mps-log")
	for _, path := range []string{pipes, logs} {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("start MPS: %w", err)
		}
	}
	m := &mpsDaemon{tool: tool, pipes: pipes, gone: make(chan struct{}),
		environment: append(s.inherited(), "CUDA_MPS_PIPE_DIRECTORY="+pipes, "CUDA_MPS_LOG_DIRECTORY="+logs)}
	stderr := &lastBytes{}
	m.cmd = exec.Command(tool, "-f") // in the foreground: ours to end
	m.cmd.Env, m.cmd.Stderr = m.environment, stderr
	m.cmd.WaitDelay = time.Second // its server has the standard error, too
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start MPS: %w", err)
	}
	go func() {
		defer close(m.gone)
		_ = m.cmd.Wait() // what went wrong is on standard error
	}()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		if _, err := os.Stat(filepath.Join(pipes, "control")); err == nil {
			tick.Stop()
			return m, nil
		}
		select {
		case <-tick.C:
		case <-m.gone:
			return nil, fmt.Errorf("start MPS: the daemon ended: %s", stderr.lastLine())
		case <-ctx.Done():
			m.stop()
			return nil, ctx.Err()
		case <-time.After(10 * time.Second):
			m.stop()
			return nil, fmt.Errorf("start MPS: no control pipe in %s", pipes)
		}
	}
}

// stop ends the daemon and its server, whatever state they are in.
func (m *mpsDaemon) stop() {
	quit := exec.Command(m.tool)
	quit.Env, quit.Stdin = m.environment, strings.NewReader("quit -t 5\n")
	ended := time.AfterFunc(8*time.Second, func() { _ = quit.Process.Kill() })
	_ = quit.Run() // a daemon that does not listen is killed below
	ended.Stop()
	select {
	case <-m.gone:
	case <-time.After(5 * time.Second):
	}
	_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) // the server is in the daemon's group
	<-m.gone
	os.RemoveAll(m.pipes) // another one that is started there is up when it has made its own
}
