package bench

import (
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

func (s *session) startMPS(ctx context.Context, folder string) (m *mpsDaemon) {
	during("start MPS", func() {
		m = &mpsDaemon{tool: must(s.findMPS()), pipes: filepath.Join(folder, "mps")}
		logs := filepath.Join(folder, "mps-log")
		check(os.MkdirAll(m.pipes, 0o700))
		check(os.MkdirAll(logs, 0o700))
		m.environment = append(s.inherited(), "CUDA_MPS_PIPE_DIRECTORY="+m.pipes, "CUDA_MPS_LOG_DIRECTORY="+logs)
		// In the foreground: ours to end.
		m.daemon = must(startDaemon(ctx, []string{m.tool, "-f"}, m.environment, daemonStarts, func() bool { return exists(filepath.Join(m.pipes, "control")) }))
	})
	return m
}

// stop ends the daemon and its server, whatever state they are in.
func (m *mpsDaemon) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	control := exec.CommandContext(ctx, m.tool)
	control.Env, control.Stdin = m.environment, strings.NewReader("quit -t 5\n")
	control.WaitDelay = time.Second
	_ = control.Run() // a daemon that does not listen is ended below
	m.endsWithin(daemonEnds)
	m.daemon.stop()       // the server is in the daemon's group
	os.RemoveAll(m.pipes) // another one that is started there is up when it has made its own
}
