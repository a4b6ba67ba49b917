package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mpsDaemon is an MPS control daemon of our own, with its pipes in a folder of our own.
type mpsDaemon struct {
	*daemon
	tool, pipes string
	environment []string
}

const mpsControl = "nvidia-cuda-mps-control"

// Systems of suites whose workers are clients of an MPS server.
const (
	mpsSystem, mpsOrdered = "mps", "mps-priority"
	lowerPriority         = "CUDA_MPS_CLIENT_PRIORITY=1" // of best-effort work
)

// driverTools is where containers have the driver's programs that are not on the PATH.
const driverTools = "/usr/local/nvidia/bin"

func (s *session) findMPS() (string, error) {
	if folder := s.options.tests.tools; folder != "" {
		return filepath.Join(folder, mpsControl), nil
	}
	if path, err := exec.LookPath(mpsControl); err == nil {
		return path, nil
	}
	path := filepath.Join(driverTools, mpsControl)
	if !exists(path) {
		return "", fmt.Errorf("%s is neither on the PATH nor in %s", mpsControl, driverTools)
	}
	return path, nil
}

func (s *session) startMPS(ctx context.Context, folder string) (*mpsDaemon, error) {
	tool, err := s.findMPS()
	if err != nil {
		return nil, err
	}
	pipes, logs := filepath.Join(folder, "mps"), filepath.Join(folder, "mps-log")
	for _, path := range []string{pipes, logs} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("start MPS: %w", err)
		}
	}
	m := &mpsDaemon{tool: tool, pipes: pipes,
		environment: append(s.inherited(), "CUDA_MPS_PIPE_DIRECTORY="+pipes, "CUDA_MPS_LOG_DIRECTORY="+logs)}
	// In the foreground: ours to end.
	m.daemon, err = startDaemon(ctx, []string{tool, "-f"}, m.environment, daemonStarts, func() bool { return exists(filepath.Join(pipes, "control")) })
	if err != nil {
		return nil, fmt.Errorf("start MPS: %w", err)
	}
	return m, nil
}

// tell gives the daemon an order and returns what it answers.
func (m *mpsDaemon) tell(order string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var said bytes.Buffer
	control := exec.CommandContext(ctx, m.tool)
	control.Env, control.Stdin, control.Stdout, control.Stderr = m.environment, strings.NewReader(order+"\n"), &said, &said
	control.WaitDelay = time.Second
	if err := control.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", order, err, lastLine(said.String()))
	}
	return said.String(), nil
}

// stop ends the daemon and its server, whatever state they are in.
func (m *mpsDaemon) stop() {
	_, _ = m.tell("quit -t 5", 8*time.Second) // a daemon that does not listen is ended below
	m.endsWithin(daemonEnds)
	m.daemon.stop()       // the server is in the daemon's group
	os.RemoveAll(m.pipes) // another one that is started there is up when it has made its own
}
