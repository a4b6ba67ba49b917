package bench

// #cgo LDFLAGS: -ldl -lm -lpthread
import "C" // worker.c runs from a constructor; nothing of it is called from Go

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/kernels"
)

// workerLimit bounds the life of every worker, in the worker itself too.
const workerLimit = 60 * time.Second

// work is the kernel a worker launches.
type work struct {
	us          int // wanted duration, alone on the GPU; with waves: of a block
	blocksPerSM int // at a time
	waves       int // one after another; 0: 1
	sharedBytes int
	cooperative bool
}

type info struct {
	Name            string `json:"name"`
	Devices         int    `json:"devices"`
	CUDA            int    `json:"cuda"`
	Multiprocessors int    `json:"multiprocessors"`
	SharedBytes     int    `json:"shared_bytes"`
}

type lcResult struct {
	StartNs     uint64   `json:"start_ns"`
	EndNs       uint64   `json:"end_ns"`
	LatenciesNs []uint64 `json:"latencies_ns"`
}

type beResult struct {
	TimesNs []uint64 `json:"times_ns"`
	Counts  []uint64 `json:"counts"`
}

type launchResult struct {
	LeastNs  float64 `json:"least_ns"`
	MedianNs float64 `json:"median_ns"`
}

type idleResult struct {
	CPUNs  uint64 `json:"cpu_ns"`
	WallNs uint64 `json:"wall_ns"`
	RSSKb  uint64 `json:"rss_kb"`
}

type mixResult struct {
	Hash string `json:"hash"`
}

// worker is a running worker process.
type worker struct {
	name   string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	ready  chan struct{} // closed at the line "ready", or at the end without one
	failed bool          // it ended without being ready; valid once ready
	done   chan struct{} // closed when the process is gone
	output []byte        // the JSON line; valid once done
	err    error         // valid once done
}

// environment is the worker's: the role decides whether the library is preloaded ("" = not).
func (s *session) environment(role string) []string {
	var environment, preloads []string
	for _, entry := range os.Environ() {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "GPREEMPT_PRIORITY":
		case "GPREEMPT_CONFIG":
			if s.config == "" {
				environment = append(environment, entry)
			}
		case "LD_PRELOAD":
			preloads = slices.DeleteFunc(strings.FieldsFunc(value, isPreloadSeparator),
				func(library string) bool { return strings.HasSuffix(library, "libgpreempt.so") })
		default:
			environment = append(environment, entry)
		}
	}
	if role != "" {
		preloads = append([]string{s.library}, preloads...) // before a simulated driver, whose ioctl it forwards to
		environment = append(environment, "GPREEMPT_PRIORITY="+role)
	}
	if s.config != "" {
		environment = append(environment, "GPREEMPT_CONFIG="+s.config)
	}
	if len(preloads) > 0 {
		environment = append(environment, "LD_PRELOAD="+strings.Join(preloads, ":"))
	}
	return environment
}

func isPreloadSeparator(r rune) bool { return r == ':' || r == ' ' } // ld.so(8)

func (s *session) start(ctx context.Context, role, kind string, options ...string) (*worker, error) {
	ctx, cancel := context.WithTimeout(ctx, workerLimit)
	options = append(options, "--limit", strconv.Itoa(int(workerLimit/time.Second)))
	cmd := exec.CommandContext(ctx, s.executable, append([]string{"bench-worker", kind}, options...)...)
	cmd.Env = append(s.environment(role), s.added[kind]...)
	cmd.Stdin = bytes.NewReader(kernels.Bench)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start %s worker: %w", kind, err)
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s worker: %w", kind, err)
	}
	w := &worker{name: kind, cmd: cmd, cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 16<<20)
		isReady := false
		for lines.Scan() {
			if !isReady && lines.Text() == "ready" {
				isReady = true
				close(w.ready)
				continue
			}
			w.output = append([]byte(nil), lines.Bytes()...)
		}
		w.err = errors.Join(lines.Err(), cmd.Wait())
		if w.err != nil {
			w.err = fmt.Errorf("%s worker: %w: %s", kind, w.err, lastLine(stderr.String()))
		}
		if text := strings.TrimSpace(stderr.String()); text != "" {
			s.log("%s worker (role %q): %s", kind, role, text)
		}
		if !isReady {
			w.failed = true
			close(w.ready)
		}
	}()
	return w, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// awaitReady waits for the line "ready".
func (w *worker) awaitReady() error {
	<-w.ready
	if !w.failed {
		return nil
	}
	<-w.done
	if w.err == nil {
		return fmt.Errorf("%s worker ended before it was ready", w.name)
	}
	return w.err
}

// wait waits for the process and reads what it reported.
func (w *worker) wait(result any) error {
	<-w.done
	w.cancel()
	if w.err != nil {
		return w.err
	}
	if err := json.Unmarshal(w.output, result); err != nil {
		return fmt.Errorf("read what the %s worker reported: %w", w.name, err)
	}
	return nil
}

// stop asks the process to end and waits; one that does not end is killed.
func (w *worker) stop(result any) error {
	_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	killer := time.AfterFunc(10*time.Second, w.cancel)
	defer killer.Stop()
	return w.wait(result)
}

// kill ends the process on the way out of an error.
func (w *worker) kill() {
	w.cancel()
	<-w.done
}

// run starts a worker and waits for what it reports.
func (s *session) run(ctx context.Context, result any, role, kind string, options ...string) error {
	w, err := s.start(ctx, role, kind, options...)
	if err != nil {
		return err
	}
	return w.wait(result)
}

// options describes the kernel to a worker, calibrated on first use. All runs of a session use the same
// iteration counts.
func (s *session) options(ctx context.Context, w work) ([]string, error) {
	waves := max(w.waves, 1)
	w.waves = 0 // a block takes as long in the second wave
	options := []string{
		"--blocks", strconv.Itoa(w.blocksPerSM * s.info.Multiprocessors),
		"--shared", strconv.Itoa(w.sharedBytes),
	}
	if w.cooperative {
		options = append(options, "--cooperative", "1")
	}
	iterations, known := s.iterations[w]
	if !known {
		var calibrated struct {
			Iterations uint64 `json:"iterations"`
		}
		if err := s.run(ctx, &calibrated, "", "calibrate", append(options, "--us", strconv.Itoa(w.us))...); err != nil {
			return nil, fmt.Errorf("calibrate a kernel of %d us: %w", w.us, err)
		}
		iterations = calibrated.Iterations
		s.iterations[w] = iterations
	}
	if waves > 1 {
		options = append(options, "--blocks", strconv.Itoa(waves*w.blocksPerSM*s.info.Multiprocessors))
	}
	return append(options, "--iterations", strconv.FormatUint(iterations, 10)), nil
}
