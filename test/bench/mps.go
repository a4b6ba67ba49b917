package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mpsDaemon is an MPS control daemon of our own, with its pipes in a folder of our own.
type mpsDaemon struct {
	*daemon
	tool, pipes string
	environment []string
	partitions  map[string]string // of SMs, by role; nil: there are none
}

const mpsControl = "nvidia-cuda-mps-control"

func (s *session) startMPS(ctx context.Context, folder string, options ...string) (*mpsDaemon, error) {
	tool, err := s.findTool(mpsControl)
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
	arguments := append([]string{tool, "-f"}, options...) // in the foreground: ours to end
	m.daemon, err = startDaemon(ctx, arguments, m.environment, daemonStarts, func() bool { return exists(filepath.Join(pipes, "control")) })
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
	select {
	case <-m.gone:
	case <-time.After(daemonEnds):
	}
	m.daemon.stop()       // the server is in the daemon's group
	os.RemoveAll(m.pipes) // another one that is started there is up when it has made its own
}

// madePartition is what the daemon answers when it has made one: its name is the GPU's, a slash and more.
var madePartition = regexp.MustCompile(`GPU-[^\s/]+/\S+`)

// startPartitions starts an MPS daemon with static partitions of a GPU's SMs: so many chunks for BE, the rest for LC.
func (s *session) startPartitions(ctx context.Context, folder string, beChunks int) (*mpsDaemon, error) {
	uuid := s.askGPU(ctx, 0, "--query-gpu=uuid")
	if uuid == "" {
		return nil, errors.New("make partitions: nvidia-smi does not say what the GPU's UUID is")
	}
	m, err := s.startMPS(ctx, folder, "-S")
	if err != nil {
		return nil, err
	}
	add := func(chunks int) (partition string, err error) {
		said, err := m.tell(fmt.Sprintf("sm_partition add %s %d", uuid, chunks), daemonStarts)
		if err == nil {
			if partition = madePartition.FindString(said); partition == "" {
				err = fmt.Errorf("make a partition of %d chunks: %s", chunks, lastLine(said))
			}
		}
		return partition, err
	}
	be, err := add(beChunks)
	lc, refused := "", error(nil)
	// The daemon refuses more than there still are. A chunk is 2 SMs at least.
	for chunks := s.info.Multiprocessors / 2; err == nil && lc == ""; chunks-- {
		if chunks == 0 || ctx.Err() != nil {
			err = errors.Join(errors.New("make partitions: none is left for LC"), refused, ctx.Err())
			break
		}
		lc, refused = add(chunks)
	}
	if err != nil {
		m.stop()
		return nil, err
	}
	m.partitions = map[string]string{"lc": lc, "be": be}
	return m, nil
}
