// Package e2e tests real processes: the library preloaded in front of the simulated driver.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

var root, worker string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func relative(path string) string { return strings.TrimPrefix(path, root+"/") }

func buildAndRun(m *testing.M) (int, error) {
	join.AnswersWithin = patience
	var err error
	if root, err = filepath.Abs("../.."); err != nil {
		return 0, fmt.Errorf("find the repository: %w", err)
	}
	if err = sanitizer.watch(); err != nil {
		return 0, fmt.Errorf("leave out tests: %w", err)
	}
	dir, err := os.MkdirTemp("", "gpreempt-e2e")
	if err != nil {
		return 0, fmt.Errorf("create build folder: %w", err)
	}
	defer os.RemoveAll(dir)
	worker = filepath.Join(dir, "worker")
	for _, command := range [][]string{
		{"make", "-s", "-C", root, "all", relative(built("libgpreempt.so")), relative(built("sim/libcuda.so.1"))},
		compiler(worker, "testdata/worker.c"),
		compiler(filepath.Join(dir, "chains"), "testdata/chains.c"),
		compiler(filepath.Join(dir, "memory"), "testdata/memory.c", "-O3"),
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return m.Run(), nil
}

// machine is a simulated GPU and a folder for segments, of one test alone.
type machine struct {
	t           *testing.T
	dir, config string
	broker      string   // the directory of its sockets; "": there is none
	brokers     []string // further variables of the broker's environment
	running     *exec.Cmd
	environment []string
	watching    sync.Mutex
	watch       *segment.Watch
}

// folder goes with the test. T.TempDir would name it after the test, which may have a comma in its name: lists of options and of paths name
// files in the folder. The helper of a program that was killed may live a moment longer, and make files there.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpreempt-machine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := os.RemoveAll(dir)
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); err = os.RemoveAll(dir) {
			time.Sleep(2 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newMachine(t *testing.T, settings string, environment ...string) *machine {
	t.Helper()
	m := &machine{t: t, dir: folder(t), environment: environment}
	m.watch = segment.NewWatch(m.dir, "")
	t.Cleanup(m.watch.Close)
	m.config = filepath.Join(m.dir, "gpreempt.toml")
	if err := os.Mkdir(filepath.Join(m.dir, "sim"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sanitizer.reports(t, m.dir) })
	settings += fmt.Sprintf("\n[segment]\ndirectory = %q\n", m.dir)
	if byBroker {
		settings += fmt.Sprintf("broker = %q\n", m.startBroker())
	}
	m.configure(settings)
	return m
}

func (m *machine) configure(text string) {
	m.t.Helper()
	if byBroker && m.broker != "" && !strings.Contains(text, "broker = ") {
		text = strings.Replace(text, "[segment]\n", fmt.Sprintf("[segment]\nbroker = %q\n", m.broker), 1)
	}
	if err := os.WriteFile(m.config, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// command is a program under the preload; role "" leaves GPREEMPT_PRIORITY unset.
func (m *machine) command(role, program string, arguments ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(m.t.Context(), lifetime)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.WaitDelay = patience // what it started may have its output
	cmd.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			m.t.Errorf("%s, process %d, has not ended after %v: %s", program, cmd.Process.Pid, lifetime, threads(cmd.Process.Pid))
		}
		return cmd.Process.Kill()
	}
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "GPREEMPT_") || strings.HasPrefix(s, "SIMCUDA_") || strings.HasPrefix(s, "LD_")
	})
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+filepath.Join(m.dir, "cache"), "GPREEMPT_CONFIG="+m.config, "SIMCUDA_DIR="+filepath.Join(m.dir, "sim"),
		"LD_LIBRARY_PATH="+driverPath(),
		"LD_PRELOAD="+strings.Join(append(sanitizer.runtime(), built("libgpreempt.so"), built("sim/libcuda.so.1")), ":"))
	if role != "" {
		cmd.Env = append(cmd.Env, "GPREEMPT_PRIORITY="+role)
	}
	if often(0, 1) > 0 {
		cmd.Env = append(cmd.Env, "TEST_EVERY_BYTE=1") // testdata/memory_buffers.h
	}
	cmd.Env = append(cmd.Env, sanitizer.options(m.dir)...)
	cmd.Env = append(cmd.Env, m.environment...)
	return cmd
}

// threads is what each thread of a process is called, and where in the kernel it waits.
func threads(pid int) string {
	var all []string
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		name, _ := os.ReadFile(filepath.Join(task, "comm"))
		waits, _ := os.ReadFile(filepath.Join(task, "wchan"))
		all = append(all, fmt.Sprintf("%s %s %s", filepath.Base(task), bytes.TrimSpace(name), waits))
	}
	return strings.Join(all, ", ")
}

// stacks says where the threads of a process are: by the kernel, and where there is gdb, by their stacks.
func stacks(pid int) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := exec.CommandContext(ctx, "gdb", "-p", fmt.Sprint(pid), "-batch", "-nx", "-ex", "thread apply all backtrace 16").Output()
	return fmt.Sprintf("%s\ngdb (%v): %s", threads(pid), err, text)
}

// driverPath is where programs find the driver, and NVML, which no sanitizer watches.
func driverPath() string {
	return filepath.Dir(built("sim/libcuda.so.1")) + ":" + filepath.Join(root, "build", "sim")
}

// traced is the simulated driver's SIMCUDA_TRACE so far, in whole lines: while others write, a reader may see a part of the last line.
func traced(t *testing.T, trace string) string {
	t.Helper()
	text, err := os.ReadFile(trace)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text[:bytes.LastIndexByte(text, '\n')+1])
}

// process is a running worker.
type process struct {
	m       *machine
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string
	stderr  clitest.Output
	slowest time.Duration // of the last requests
	ended   sync.Once
	err     error
}

func (m *machine) start(role string) *process {
	m.t.Helper()
	return m.startAs(m.command(role, worker))
}

// startAs starts a command that becomes a worker.
func (m *machine) startAs(cmd *exec.Cmd) *process {
	m.t.Helper()
	p := &process{m: m, cmd: cmd, lines: make(chan string, 64)}
	if p.cmd.Stderr == nil {
		p.cmd.Stderr = &p.stderr
	}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	m.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.wait()
	})
	return p
}

func (p *process) wait() error {
	p.ended.Do(func() { p.err = p.cmd.Wait() })
	return p.err
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exited says whether it has ended, also before anybody has waited for it.
func (p *process) exited() bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	return err != nil || bytes.Contains(status, []byte(") Z "))
}

const (
	patience = 3 * time.Minute  // for what a loaded machine does in milliseconds when idle
	lifetime = 15 * time.Minute // of a program: five times what the longest takes on two busy cores
)

// often is how often something happens: as usual, or where GPREEMPT_DEEP is set (.ci/run), which finds rarer faults.
func often(usual, deep uint64) uint64 {
	if os.Getenv("GPREEMPT_DEEP") != "" {
		return deep
	}
	return usual
}

func (p *process) say(format string, arguments ...any) {
	p.m.t.Helper()
	if _, err := fmt.Fprintf(p.stdin, format+"\n", arguments...); err != nil {
		p.m.t.Fatalf("say "+format+": %v", append(arguments, err)...)
	}
}

func (p *process) hear() string {
	p.m.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			err := p.wait()
			p.m.t.Fatalf("worker ended: %v; stderr: %s", err, p.stderr.String())
		}
		return line
	case <-time.After(patience):
		p.m.t.Fatalf("worker %d does not answer; stderr %q; %s\n%s", p.pid(), p.stderr.String(), p.m.state(), stacks(p.pid()))
	}
	return ""
}

// hears ends the test unless the program's next line is this one.
func (p *process) hears(want string) {
	p.m.t.Helper()
	if line := p.hear(); line != want {
		p.m.t.Fatalf("%q, want %q; stderr %q", line, want, p.stderr.String())
	}
}

// ask sends a command and reads the answer's values.
func (p *process) ask(command, format string, values ...any) {
	p.m.t.Helper()
	p.say("%s", command)
	line := p.hear()
	if n, err := fmt.Sscanf(line, format, values...); err != nil || n != len(values) {
		p.m.t.Fatalf("%s: answer %q: %v", command, line, err)
	}
}

func (p *process) count() (n int) {
	p.m.t.Helper()
	p.ask("count", "count %d", &n)
	return n
}

func (p *process) runBestEffort() {
	p.m.t.Helper()
	var running int
	if p.ask("be", "running %d", &running); running != 1 {
		p.m.t.Fatal("no best-effort thread")
	}
	p.m.until("best-effort kernels complete", func() bool { return p.count() > 1 })
}

// says waits until the process has written a text to stderr a number of times. The library writes most of its log by threads of
// its own, which may be later than the program that they belong to.
func (p *process) says(text string, times int) {
	p.m.t.Helper()
	deadline := time.Now().Add(patience)
	for strings.Count(p.stderr.String(), text) < times {
		if time.Sleep(2 * time.Millisecond); time.Now().After(deadline) {
			p.m.t.Fatalf("stderr %q does not have %q %d times", p.stderr.String(), text, times)
		}
	}
}

// finish ends the worker's input, waits for its end, and returns its last line and what it wrote to stderr.
func (p *process) finish() (last, stderr string) {
	p.m.t.Helper()
	if err := p.stdin.Close(); err != nil {
		p.m.t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	for line := range p.lines {
		last = line
	}
	if err := p.wait(); err != nil {
		p.m.t.Fatalf("worker: %v; stderr: %s", err, p.stderr.String())
	}
	return last, p.stderr.String()
}

// runUntil runs a program until a condition holds, then ends its input. The program has to end with status 0.
func (m *machine) runUntil(cmd *exec.Cmd, what string, condition func() bool) (stdout, stderr string) {
	m.t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	timer := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	m.until(what, condition)
	if err := stdin.Close(); err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		m.t.Fatalf("%s: %v; stderr %s", cmd.Path, err, errors.String())
	}
	return out.String(), errors.String()
}

// pause is how long to wait before the next look at a condition that has not come for so long: each costs time of the processors.
func pause(waited time.Duration) time.Duration {
	return min(max(waited/16, time.Millisecond), 8*time.Millisecond)
}

func (m *machine) until(what string, condition func() bool) {
	m.t.Helper()
	for began := time.Now(); !condition(); time.Sleep(pause(time.Since(began))) {
		if time.Since(began) > patience {
			m.t.Fatalf("never happened: %s; %s", what, m.state())
		}
	}
}

// mostly takes samples until a condition holds in three of the last five: never by one lucky sample, though a loaded machine may spoil some.
func (m *machine) mostly(what string, condition func() bool) {
	m.t.Helper()
	const of, least = 5, 3
	var last []bool
	m.until(fmt.Sprintf("%s, in %d of %d samples", what, least, of), func() bool {
		last = append(last, condition())
		last = last[max(0, len(last)-of):]
		held := 0
		for _, holds := range last {
			if holds {
				held++
			}
		}
		return held >= least
	})
}

// state is the published state of all processes, to be read after a failure.
func (m *machine) state() string {
	text, err := json.Marshal(m.peers())
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *machine) segments() string { return segment.Directory(m.dir, os.Getuid()) }

// snapshots waits for members to answer: on a loaded machine one may get no processor within the time that a reader gives it.
func (m *machine) snapshots() []segment.Snapshot {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		all, err := m.look()
		if err != nil && time.Now().Before(deadline) && m.broker != "" { // it has not answered in time
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		unread := slices.IndexFunc(all, func(s segment.Snapshot) bool { return s.Error != "" })
		if unread < 0 {
			return all
		}
		if time.Now().After(deadline) {
			m.t.Errorf("segment %s: %s", all[unread].Path, all[unread].Error)
			return all
		}
	}
}

func (m *machine) peers() (peers []segment.Peer) {
	m.t.Helper()
	for _, s := range m.snapshots() {
		peers = append(peers, s.Peers...)
	}
	return peers
}

// peer is the slot of a process; the zero Peer, with Alive false, while it has none.
func (m *machine) peer(p *process) segment.Peer {
	m.t.Helper()
	for _, peer := range m.peers() {
		if int(peer.Pid) == p.pid() {
			return peer
		}
	}
	return segment.Peer{}
}

// times is how many times a histogram counts.
func times(h segment.Histogram[uint64]) (n uint64) {
	for _, count := range h.Buckets {
		n += count
	}
	return n
}

// joined waits until each process takes part: its slot is taken before the segment is mapped in the program, and its heart beats after that.
func (m *machine) joined(processes ...*process) {
	m.t.Helper()
	for _, p := range processes {
		m.joinedOn(1, p)
	}
}

// joinedOn waits until a process takes part on so many GPUs: each has a slot and a heart of its own.
func (m *machine) joinedOn(gpus int, p *process) {
	m.t.Helper()
	m.until(fmt.Sprintf("process %d joins on %d GPUs", p.pid(), gpus), func() bool {
		beating := 0
		for _, s := range m.snapshots() {
			if slices.ContainsFunc(s.Peers, func(peer segment.Peer) bool {
				return int(peer.Pid) == p.pid() && s.TakenNs-peer.HeartbeatAgeNs > peer.StartedNs
			}) {
				beating++
			}
		}
		return beating >= gpus
	})
}

// sees waits until an LC process has seen whom it is to preempt: from then on its work opens windows.
func (m *machine) sees(lc *process) {
	m.t.Helper()
	m.until("LC sees BE", func() bool { return m.peer(lc).Counted })
}

// yields waits until a BE process gives way to higher levels.
func (m *machine) yields(be *process) {
	m.t.Helper()
	m.until("BE yields", func() bool { return m.peer(be).TimesliceUs == 1 })
}

// sharing starts a BE process that has work and yields, and an LC one beside it, which has seen BE: it takes the GPU by holds.
func (m *machine) sharing() (be, lc *process) {
	m.t.Helper()
	be, lc = m.start("be"), m.start("lc")
	be.runBestEffort()
	m.joined(be, lc)
	m.yields(be)
	m.until("LC preempts", func() bool { return m.peer(lc).TimesliceUs > 10_000 }) // the fair slice is 2048 us
	return be, lc
}

func (p *process) request(requests, kernels int, sync string) (p50 time.Duration, hash uint32) {
	p.m.t.Helper()
	var us, slowest int
	p.ask(fmt.Sprintf("lc %d %d 40 3000 %s", requests, kernels, sync), "p50_us %d max_us %d hash %d", &us, &slowest, &hash)
	p.slowest = time.Duration(slowest) * time.Microsecond
	return time.Duration(us) * time.Microsecond, hash
}

// sums is a worker's hash after its additions. It shows an addition that was lost or done twice.
func sums(total uint32) uint32 {
	const words = 64 // of worker.c
	h := uint32(2166136261)
	for range words {
		h = (h ^ total) * 16777619
	}
	return h
}

func TestPassiveWithoutRole(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	p := m.start("")
	_, hash := p.request(5, 3, "stream")
	if last, stderr := p.finish(); last != "count 0" || stderr != "" {
		t.Errorf("last line %q, stderr %q", last, stderr)
	}
	if _, err := os.Stat(m.segments()); !os.IsNotExist(err) {
		t.Errorf("segments of a process without a role: %v", err)
	}
	for _, role := range []string{"lc", "be", "off"} {
		p := m.start(role)
		if _, h := p.request(5, 3, "stream"); h != hash {
			t.Errorf("role %s: hash %d, without %d", role, h, hash)
		}
		if last, stderr := p.finish(); last != "count 0" || stderr != "" {
			t.Errorf("role %s: last line %q, stderr %q", role, last, stderr)
		}
	}
}

func TestPreemption(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.start(""), m.start("")
	be.runBestEffort()
	without, _ := lc.request(41, 1, "stream")
	be.finish()
	lc.finish()

	be, lc = m.sharing()
	var with time.Duration
	m.mostly("requests overtake BE", func() bool {
		with, _ = lc.request(11, 1, "stream")
		return 2*with < without
	})
	t.Logf("p50 of a request beside BE: %v without, %v with", without, with)
	peer := m.peer(lc)
	if peer.Counters.Windows == 0 || peer.Counters.Holds == 0 || peer.Role != "lc" {
		t.Errorf("LC: %+v", peer)
	}
	if us := m.peer(be).TimesliceUs; us != 1 {
		t.Errorf("timeslice of BE is %d us while LC lives", us)
	}
	m.until("windows and switches are timed", func() bool { // the watcher need not see each switch
		lc.request(11, 1, "stream")
		peer = m.peer(lc)
		return times(peer.Times.Windows) > 0 && times(peer.Times.Switches) > 0
	})
	// The copy is not made at once: what ends meanwhile may be in one and not yet in the other.
	m.until("each window that closed is timed", func() bool {
		peer = m.peer(lc)
		return !peer.WindowOpen && times(peer.Times.Windows) == peer.Counters.Windows && peer.Times.Windows.SumNs == peer.Counters.WindowNs
	})
	if n := times(peer.Times.Switches); n > peer.Counters.Switches {
		t.Errorf("%d switches are timed, of %d", n, peer.Counters.Switches)
	}
	lc.finish()
	m.until("BE gets its timeslice back", func() bool { return m.peer(be).TimesliceUs == 2048 })
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
}

func TestHoldInGaps(t *testing.T) {
	t.Parallel()
	const requests = 20
	for _, sync := range []string{"stream", "event", "context", "copy"} {
		t.Run(sync, func(t *testing.T) {
			m := newMachine(t, "[window]\ngrace_max_us = 2000\n") // room to learn, below the time between requests
			be, lc := m.sharing()
			m.mostly("windows last for requests", func() bool { // in gaps that the machine leaves as short as they are meant to be
				before := m.peer(lc).Counters
				var us int
				lc.ask(fmt.Sprintf("lc %d 20 40 3000 %s 300", requests, sync), "p50_us %d", &us)
				after := m.peer(lc).Counters
				windows, holds := after.Windows-before.Windows, after.Holds-before.Holds
				t.Logf("%d requests of 20 kernels: %d windows, %d holds", requests, windows, holds)
				return holds > 0 && windows >= requests/2 && windows <= 4*requests
			})
			n := be.count()
			m.until("BE goes on", func() bool { return be.count() > n })
		})
	}
}

func TestHoldYieldsToContextWaits(t *testing.T) {
	t.Parallel()
	// On a slow machine, too, no lease ends, and the window is still open where the program comes late to what waits.
	m := newMachine(t, "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 5000\nstep_us = 1000000\n[window]\ngrace_min_us = 1000000\ngrace_max_us = 1000000\n")
	_, lc := m.sharing()
	lc.request(5, 3, "stream")
	for _, what := range []string{"synchronize", "free", "load", "unload"} {
		for range 5 {
			m.until("a hold ends before "+what, func() bool { // where the window is still open
				var behind int
				before := m.peer(lc).Counters.HoldsReleased
				if lc.ask("wide "+what, "behind holds %d", &behind); behind != 0 {
					t.Fatalf("%s began while a hold was armed", what)
				}
				return m.peer(lc).Counters.HoldsReleased > before
			})
		}
	}
	if c := m.peer(lc).Counters; c.HoldsExpired != 0 {
		t.Errorf("counters %+v", c)
	}
}
