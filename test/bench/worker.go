package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/gpreempt/gpreempt/test/bench/worker" // the workers in C are in our executable
)

// worker is a process that serves orders (PROTOCOL.md).
type worker struct {
	child
	name    string
	orders  io.WriteCloser
	lines   chan []byte // closed at the end of its output
	library string      // that it should have loaded, or ""
	ofMPS   bool        // it is a client of an MPS server
	limits  limits

	starting, initialising bool // it has not answered init; it has been sent it
}

// program is what a worker is started as.
type program struct {
	name        string
	arguments   []string // the path of the program first
	environment []string
	module      []byte // of the workers in C: the code that they load
	onLast      bool   // it runs on the last few processors only
	limits      limits // zero: the usual ones
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	sync.Mutex
	text []byte
}

func (l *lastBytes) Write(text []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	l.text = append(l.text, text...)
	l.text = l.text[max(len(l.text)-16384, 0):]
	return len(text), nil
}

func (l *lastBytes) all() string {
	l.Lock()
	defer l.Unlock()
	return string(l.text)
}

// reason is the last error of Python, which other lines may follow; else the last line.
func reason(text string) string {
	if all := pythonError.FindAllString(text, -1); len(all) > 0 {
		return strings.TrimSpace(all[len(all)-1])
	}
	return lastLine(text)
}

// pythonError is the line of an exception under its traceback, which a server may have put its own prefix before.
var pythonError = regexp.MustCompile(`(?m)^.{0,80}\b[A-Z]\w*(Error|Exception): .{0,400}$`)

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// lastLines are the last three, in one.
func lastLines(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		line = strings.Join(strings.Fields(line), " ")
		lines[i] = line[:min(len(line), 200)]
	}
	return strings.Join(lines[max(len(lines)-3, 0):], " | ")
}

const endLimit = 5 * time.Second // of a worker that is asked to end

// child is a process of ours.
type child struct {
	cmd  *exec.Cmd
	said *lastBytes    // on standard error
	gone chan struct{} // closed when it has been waited for
}

func newChild(ctx context.Context, arguments, environment []string) child {
	c := child{inGroup(ctx, arguments[0], arguments[1:]...), &lastBytes{}, make(chan struct{})}
	c.cmd.Env, c.cmd.Stderr = environment, c.said
	return c
}

// inGroup is a command for startChild. It is the first of a process group: what it leaves behind ends with it, also when the context does, and
// what a terminal sends to us does not reach it.
func inGroup(ctx context.Context, path string, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, path, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = endLimit
	return command
}

func (c child) pid() int { return c.cmd.Process.Pid }

func (c child) killGroup() error { return syscall.Kill(-c.pid(), syscall.SIGKILL) }

// hasEnded says whether the process is gone.
func (c child) hasEnded() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// start starts a worker.
func (p program) start(ctx context.Context) *worker {
	w := &worker{child: newChild(ctx, p.arguments, p.environment), name: p.name, lines: make(chan []byte, 4), starting: true,
		limits: cmp.Or(p.limits, limits{start: startLimit, answer: answerLimit})}
	var stdout io.Reader
	during("start "+p.name, func() {
		w.orders, stdout = must(w.cmd.StdinPipe()), must(w.cmd.StdoutPipe())
		if p.module != nil {
			module := moduleFile(p.module)
			defer module.Close()
			w.cmd.ExtraFiles = []*os.File{module}
		}
		check(startChild(w.cmd))
		if !p.onLast {
			return
		}
		if err := runOnLast(w.pid()); err != nil {
			_ = w.killGroup()
			_ = w.cmd.Wait()
			check(err)
		}
	})
	ended := make(chan struct{})
	go func() { // what it started may hold its output
		defer close(ended)
		for unix.Waitid(unix.P_PID, w.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		_ = w.killGroup() // there may be nobody left
	}()
	go func() {
		defer close(w.gone)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			w.lines <- bytes.Clone(lines.Bytes())
		}
		close(w.lines)
		<-ended
		_ = w.cmd.Wait() // how
	}()
	return w
}

// starter has one thread start all processes that are to end with us. Linux ends them (Pdeathsig) with the thread that started them, not
// with its process. A thread of Go's ends with a goroutine that has locked itself to it.
var starter = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread() // for ever
		for start := range starts {
			start()
		}
	}()
	return starts
})

// startChild starts a process from the thread that never ends.
func startChild(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// moduleFile is a file in memory.
func moduleFile(text []byte) *os.File {
	file := os.NewFile(uintptr(must(unix.MemfdCreate("module", unix.MFD_CLOEXEC))), "module")
	must(file.Write(text))
	must(file.Seek(0, io.SeekStart))
	return file
}

var (
	errEnded    = errors.New("the program ended")
	errNoAnswer = errors.New("no answer")
)

const (
	startLimit  = 80 * time.Second // until init is answered: dozens start at once, each makes a context
	answerLimit = 10 * time.Second // after the drain
)

// limits are how long a worker is waited for.
type limits struct{ start, answer time.Duration }

// line waits for the worker's next line.
func (w *worker) line(ctx context.Context, limit time.Duration) ([]byte, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-w.lines:
		if !ok {
			<-w.gone
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%s: %w: %s", w.name, errEnded, w.how())
		}
		return line, nil
	case <-timer.C:
		return nil, fmt.Errorf("%s: %w in %s", w.name, errNoAnswer, limit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// how says how a worker ended that is gone: by its last line on standard error, or else its status or the signal.
func (w *worker) how() string {
	said := lastLine(w.said.all())
	if !w.hasEnded() {
		return said
	}
	if state := w.cmd.ProcessState; state != nil && (said == "" || state.ExitCode() < 0) {
		return strings.TrimSuffix(state.String()+": "+said, ": ")
	}
	return said
}

// send gives an order.
func (w *worker) send(order string) error {
	if _, err := io.WriteString(w.orders, order+"\n"); err != nil {
		select { // the worker reads no more orders
		case <-w.gone:
		case <-time.After(endLimit):
		}
		return fmt.Errorf("%s: %w: %s", w.name, errEnded, w.how())
	}
	return nil
}

// answer reads what is answered to an order; the result may be nil.
func (w *worker) answer(ctx context.Context, limit time.Duration, result any) error {
	line, err := w.line(ctx, limit)
	if err != nil {
		return err
	}
	if result == nil {
		result = &struct{}{}
	}
	if err := json.Unmarshal(line, result); err != nil {
		return fmt.Errorf("%s: read its answer %.80q: %w", w.name, line, err)
	}
	return nil
}

// ask gives an order and reads the answer.
func (w *worker) ask(ctx context.Context, limit time.Duration, result any, order string) error {
	if err := w.send(order); err != nil {
		return err
	}
	return w.answer(ctx, limit, result)
}

// initialise lets the worker use CUDA.
func (w *worker) initialise() error {
	if !w.starting || w.initialising {
		return nil
	}
	w.initialising = true
	return w.send("init")
}

// awaitReady waits until the worker is set up; facts, which may be nil, is what it says then.
func (w *worker) awaitReady(ctx context.Context, facts any) error {
	if !w.starting {
		return nil
	}
	if err := w.answer(ctx, w.limits.start, facts); err != nil {
		return err
	}
	w.starting = false
	if w.library == "" {
		return nil
	}
	// The loader passes in silence over a library that it cannot load.
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.pid()))
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	if !bytes.Contains(maps, []byte(w.library)) {
		return fmt.Errorf("%s: %s was not loaded into it", w.name, w.library)
	}
	return nil
}

// end asks the worker to end, and kills one that goes on.
func (w *worker) end() {
	w.orders.Close()
	killer := time.AfterFunc(endLimit, func() { _ = w.killGroup() })
	defer killer.Stop()
	w.drain()
}

// kill ends the worker at once.
func (w *worker) kill() {
	if w.hasEnded() {
		return
	}
	_ = w.killGroup() // it may have ended by itself
	w.orders.Close()
	w.drain()
}

func (w *worker) drain() {
	for range w.lines { // it may be writing
	}
	<-w.gone
}
