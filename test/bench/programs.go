package bench

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/kernels"
)

// torchPrograms are written to a folder to be run there.
//
//go:embed torch/protocol.py torch/model.py torch/http_service.py torch/http_server.py torch/http_load.py
var torchPrograms embed.FS

const drain = time.Second // DRAIN_NS of the programs

var ( // variables for tests, which wait for them in vain
	startLimit  = 80 * time.Second // of a program: dozens start at once, each makes a context
	answerLimit = 10 * time.Second // after the drain
)

func writeTorchPrograms(folder string) error {
	entries, err := torchPrograms.ReadDir("torch")
	if err != nil {
		return fmt.Errorf("write the PyTorch programs: %w", err)
	}
	for _, entry := range entries {
		text, err := torchPrograms.ReadFile("torch/" + entry.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, entry.Name()), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the PyTorch programs: %w", err)
		}
	}
	return nil
}

// program is a running task of the evaluation. It serves any number of runs.
type program struct {
	name    string
	cmd     *exec.Cmd
	control *os.File
	lines   chan []byte   // closed at the end of its output
	gone    chan struct{} // closed when it has been waited for
	stderr  *lastBytes
	library string // that it should have loaded, or ""
	mps     bool   // it is a client of the MPS server

	starting, initialising bool // it has not been seen to be ready; it has been let go on to use CUDA
}

// answer is what a program says about a run (evaluate.h).
type answer struct {
	Completed   float64  `json:"completed"`
	Unserved    int      `json:"unserved"`
	CPUNs       uint64   `json:"cpu_ns"`
	ArrivalNs   []uint64 `json:"arrival_ns"` // of programs whose requests wait for those before; the others' are given
	SubmittedNs []uint64 `json:"submitted_ns"`
	DoneNs      []uint64 `json:"done_ns"`
	Identical   *bool    `json:"identical"`
	Hinted      bool     `json:"hinted"` // it was told to give hints, and the library takes them

	trace
}

// trace is what a program with traceVariable in its environment tells of each request besides.
type trace struct {
	QueuedNs []uint64 `json:"queued_ns"` // from arrival until all of it was queued on the GPU; 0: unknown
	DelayNs  []uint64 `json:"delay_ns"`  // since the request before: that its thread waited for a processor
	Switches []uint64 `json:"switches"`  // and how often it lost one
}

const traceVariable = "GPREEMPT_BENCH_TRACE"

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	sync.Mutex
	text []byte
}

func (l *lastBytes) Write(text []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	l.text = append(l.text, text...)
	l.text = l.text[max(len(l.text)-4096, 0):]
	return len(text), nil
}

func (l *lastBytes) all() string {
	l.Lock()
	defer l.Unlock()
	return string(l.text)
}

func (l *lastBytes) lastLine() string { return lastLine(l.all()) }

// startProgram starts a task's process as the system wants it; role is lc or be.
func (e *evaluation) startProgram(ctx context.Context, system System, role string, task Task) (*program, error) {
	p := &program{name: fmt.Sprintf("%s %s (%s)", role, task.Program, system.Name), lines: make(chan []byte, 4),
		gone: make(chan struct{}), stderr: &lastBytes{}}
	if options, own := ownPrograms[task.Program]; own {
		arguments := append([]string{"bench-worker", "evaluate", "--limit", "3600"}, options...)
		p.cmd = exec.CommandContext(ctx, e.session.executable, arguments...)
		p.cmd.Stdin = bytes.NewReader(kernels.Evaluation)
		if strings.HasPrefix(task.Program, "spin") {
			p.cmd.Stdin = bytes.NewReader(kernels.Bench)
		}
	} else {
		script := "model.py"
		if task.Program == httpService {
			script = "http_service.py"
		}
		p.cmd = exec.CommandContext(ctx, e.python, filepath.Join(e.folder, script), task.Program)
	}
	libraryRole, environment := "", system.BE
	if role == "lc" {
		environment = system.LC
	}
	if system.Config != "" {
		libraryRole, p.library = role, e.session.library
	}
	p.cmd.Env = slices.DeleteFunc(e.session.environment(libraryRole), func(entry string) bool {
		return strings.HasPrefix(entry, "GPREEMPT_CONFIG=") || strings.HasPrefix(entry, "CUDA_MPS_")
	})
	p.mps = system.MPS
	pipes := "none" // a server that runs already serves none of this
	if p.mps {
		pipes = "mps"
	}
	p.cmd.Env = append(p.cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(e.folder, pipes), "PYTHONUNBUFFERED=1",
		"OMP_NUM_THREADS=1") // many programs share the processors
	if config := e.configs[system.Name]; config != "" {
		p.cmd.Env = append(p.cmd.Env, "GPREEMPT_CONFIG="+config)
	}
	if visible := visibleDevices(os.Getenv(visibleDevicesVariable), task.Device, system.MPS); visible != "" {
		p.cmd.Env = append(p.cmd.Env, visibleDevicesVariable+"="+visible)
	}
	for name, value := range environment {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd.ExtraFiles = []*os.File{theirs}
	err = p.cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	p.control = ours
	go func() {
		defer close(p.gone)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			p.lines <- bytes.Clone(lines.Bytes())
		}
		close(p.lines)
		_ = p.cmd.Wait() // how it ended is told by its last line on standard error
	}()
	return p, nil
}

const visibleDevicesVariable = "CUDA_VISIBLE_DEVICES"

// visibleDevices lets a program see one of the GPUs that we may use; "" leaves it as it is. Clients of an MPS server
// count those that the server sees.
func visibleDevices(ours string, device int, mps bool) string {
	list := strings.Split(ours, ",")
	switch {
	case ours == "" && device == 0:
		return ""
	case ours == "" || mps || device >= len(list):
		return strconv.Itoa(device)
	}
	return list[device]
}

var (
	errEnded    = errors.New("the program ended")
	errNoAnswer = errors.New("no answer")
)

// line waits for the program's next line.
func (p *program) line(ctx context.Context, limit time.Duration) ([]byte, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.gone
			return nil, fmt.Errorf("%s: %w: %s", p.name, errEnded, p.stderr.lastLine())
		}
		return line, nil
	case <-timer.C:
		return nil, fmt.Errorf("%s: %w in %s", p.name, errNoAnswer, limit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// end closes the control file and kills a program that goes on.
func (p *program) end() {
	p.control.Close()
	killer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer killer.Stop()
	for range p.lines { // it may be writing
	}
	<-p.gone
}

// order is a run as a control line; without arrivals requests come back to back.
func order(start, end time.Duration, prepareUs int, hint bool, lock, stop string, arrivals []time.Duration) []byte {
	count, hinted := len(arrivals), 0
	if arrivals == nil {
		count = -1
	}
	if hint {
		hinted = 1
	}
	text := fmt.Appendf(nil, "go %d %d %d %d %s %s %d", start, end, prepareUs*1000, hinted, lock, stop, count)
	for _, at := range arrivals {
		text = strconv.AppendInt(append(text, ' '), int64(at), 10)
	}
	return append(text, '\n')
}

func (p *program) send(line []byte) error {
	if _, err := p.control.Write(line); err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, errEnded, p.stderr.lastLine())
	}
	return nil
}

func (p *program) answer(ctx context.Context, limit time.Duration) (answer, error) {
	var a answer
	line, err := p.line(ctx, limit)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("%s: read its answer: %w", p.name, err)
	}
	if len(a.SubmittedNs) != len(a.DoneNs) {
		return a, fmt.Errorf("%s: %d requests submitted, %d done", p.name, len(a.SubmittedNs), len(a.DoneNs))
	}
	if a.ArrivalNs != nil && len(a.ArrivalNs) != len(a.DoneNs) {
		return a, fmt.Errorf("%s: %d requests came, %d done", p.name, len(a.ArrivalNs), len(a.DoneNs))
	}
	for _, list := range [][]uint64{a.QueuedNs, a.DelayNs, a.Switches} {
		if n := len(a.QueuedNs); len(list) != n || n != 0 && n != len(a.DoneNs) {
			return a, fmt.Errorf("%s: %d requests done, traces of %d and %d", p.name, len(a.DoneNs), n, len(list))
		}
	}
	return a, nil
}
