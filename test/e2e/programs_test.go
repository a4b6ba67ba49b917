package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// result is all that a program shows of itself.
type result struct {
	stdout, stderr string
	status         int
}

func run(cmd *exec.Cmd) (result, error) {
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); cmd.ProcessState == nil {
		return result{}, err
	}
	return result{out.String(), said.String(), cmd.ProcessState.ExitCode()}, nil
}

// Programs that never touch CUDA behave as without the library. They run many times: a fault in their signals and forks
// shows in one run of ten or of a hundred.
func TestProgramsWithoutCUDA(t *testing.T) {
	t.Parallel()
	gpreempt := filepath.Join(root, "build", "gpreempt")
	for _, c := range []struct {
		name    string
		runs    int
		command []string
		want    result
	}{
		{"status of a subshell", 600, []string{"bash", "-c", "(exit 4); echo $? | cat"}, result{"4\n", "", 0}},
		{"pipeline", 150, []string{"bash", "-c", "set -o pipefail; (echo b; echo a) | sort | cat | (cat; exit 3); echo $?"},
			result{"a\nb\n3\n", "", 0}},
		{"background jobs", 100, []string{"bash", "-c", "p=; for i in 1 2 3 4; do (exit $i) & p=\"$p $!\"; done; s=; for i in $p; do wait $i; s=$s$?; done; echo $s"},
			result{"1234\n", "", 0}},
		{"broken pipe", 100, []string{"bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}"}, result{"y\n141\n", "", 0}},
		{"python3", 50, []string{"python3", "-c", `
import os, subprocess
pids = [os.fork() for _ in range(1)]
if pids[0] == 0: os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]), subprocess.run("(exit 6); echo $? | cat", shell=True, capture_output=True).stdout)`},
			result{"9 b'6\\n'\n", "", 0}},
		{"git", 50, []string{"git", "-c", "alias.twice=!f() { git hash-object --stdin </dev/null; git hash-object --stdin </dev/null; }; f", "twice"},
			result{strings.Repeat("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n", 2), "", 0}},
		{"another Go runtime", 600, []string{gpreempt, "run", "--priority", "sideways", "--", "true"},
			result{"", `gpreempt: --priority "sideways": must be lc, be, off, or a level from 0 (highest, lc) to 7 (lowest, be)` + "\n", 2}},
	} {
		for _, role := range []string{"", "lc"} {
			t.Run(c.name+" role="+role, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, "")
				for i := range often(uint64(c.runs/10), uint64(c.runs/2)) {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					cmd := exec.CommandContext(ctx, c.command[0], c.command[1:]...)
					cmd.Env = m.command(role, c.command[0]).Env
					got, err := run(cmd)
					cancel()
					if err != nil || got != c.want {
						t.Fatalf("run %d: %+v, %v; want %+v", i, got, err, c.want)
					}
				}
			})
		}
	}
}

// A Go program under the library has two Go runtimes once it uses CUDA: this one's doctor does, in its probes.
func TestDoctorUnderTheLibrary(t *testing.T) {
	t.Parallel()
	const workers, runs = 2, 15
	want := "ok    picked     \"auto\" picks timeslice, hold, turns, swap: every probe succeeded\n"
	var running sync.WaitGroup
	for range workers {
		m := newMachine(t, "")
		running.Go(func() {
			for i := range runs {
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				cmd := m.command("", filepath.Join(root, "build", "gpreempt"), "doctor")
				bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
				bounded.Env = cmd.Env
				got, err := run(bounded)
				cancel()
				if err != nil || got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, want) {
					t.Errorf("run %d: %+v, %v", i, got, err)
					return
				}
			}
		})
	}
	running.Wait()
}

// A configuration may ask for few mechanisms or none; that is no failure, and nothing waits.
func TestDoctorOfFewMechanisms(t *testing.T) {
	t.Parallel()
	for mechanisms, want := range map[string]string{
		`[]`:       "warn  picked     nothing is configured: mechanisms = []; no program yields the GPU or gets it\n",
		`["gate"]`: "ok    picked     configured gate: every probe succeeded\n",
	} {
		m := newMachine(t, "mechanisms = "+mechanisms)
		got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), "doctor"))
		if err != nil || got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %+v, %v; want %q", mechanisms, got, err, want)
		}
	}
}

// A driver refuses the controls that timeslices and turns need: doctor says so of each mechanism, and nowhere the opposite.
func TestDoctorDoesNotContradictItself(t *testing.T) {
	t.Parallel()
	for environment, wants := range map[string]map[string]bool{ // which are in force
		"NONE=":                    {"timeslice": true, "turns": true, "hold": true, "gate": false},
		"SIMCUDA_REFUSE_CONTROL=1": {"timeslice": false, "turns": false, "gate": false},
	} {
		t.Run(environment, func(t *testing.T) {
			m := newMachine(t, "", environment)
			got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), "doctor"))
			if err != nil || got.status != 0 || got.stderr != "" {
				t.Fatalf("%+v, %v", got, err)
			}
			inForce, picked := map[string]bool{}, "" // by the mechanism's own line
			of := map[string]string{}                // what is in force in programs of a role
			for line := range strings.Lines(got.stdout) {
				fields := strings.Fields(line)
				if len(fields) == 0 { // the verdict is behind it
					break
				}
				if len(fields) < 3 {
					t.Fatalf("line %q", line)
				}
				says := strings.TrimSpace(strings.SplitN(line, fields[1], 2)[1])
				switch {
				case fields[1] == "picked":
					picked = says
				case fields[1] == "preempt":
					of[strings.TrimSuffix(fields[2], ":")] = says
				case slices.ContainsFunc(configs.MechanismRows[:], func(row configs.MechanismRow) bool { return row.Name == fields[1] }):
					if _, twice := inForce[fields[1]]; twice {
						t.Errorf("%s has two lines", fields[1])
					}
					inForce[fields[1]] = strings.HasPrefix(says, "in force in ")
				}
			}
			list := func(text, before string) []string { // the words behind before, to the end of the list
				_, text, _ = strings.Cut(text, before)
				text, _, _ = strings.Cut(strings.NewReplacer(";", ":", ", ", ",").Replace(text), ":")
				return strings.Split(strings.TrimSpace(text), ",")
			}
			if len(inForce) != len(configs.MechanismRows) || len(of) != 2 {
				t.Fatalf("mechanisms %v, roles %v in\n%s", inForce, of, got.stdout)
			}
			for name, is := range inForce {
				anywhere := slices.Contains(list(of["be"], "in force: "), name) || slices.Contains(list(of["lc"], "in force: "), name)
				if picks := slices.Contains(list(picked, "picks "), name); is != anywhere || is != picks {
					t.Errorf("%s: in force %v, in a program %v, picked %v", name, is, anywhere, picks)
				}
				if want, wanted := wants[name]; wanted && is != want {
					t.Errorf("%s: in force %v, want %v", name, is, want)
				}
			}
			if refused := strings.Contains(got.stdout, "refuse"); refused != (environment == "SIMCUDA_REFUSE_CONTROL=1") {
				t.Errorf("it says of a refusal: %v", refused)
			}
			if t.Failed() {
				t.Log(got.stdout)
			}
		})
	}
}

// threads counts the threads of a program under the library, as it prints them itself.
func (m *machine) threads(role, code string) string {
	m.t.Helper()
	got, err := run(m.command(role, "python3", "-c", code+`
import os
print(len(os.listdir("/proc/self/task")))`))
	if err != nil || got.stderr != "" || got.status != 0 {
		m.t.Fatalf("python3: %+v, %v", got, err)
	}
	return got.stdout
}

const initialise = `
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
`

func TestNothingStartsWithoutCUDA(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	for _, role := range []string{"", "off", "lc", "be"} {
		if n := m.threads(role, ""); n != "1\n" {
			t.Errorf("role %q: %s threads in a program without CUDA", role, n)
		}
	}
	if without, off := m.threads("", initialise), m.threads("off", initialise); without != off {
		t.Errorf("threads of a CUDA program: %s with role off, %s without", off, without)
	}
}

// An idle program has few threads of the library; where memory moves there are more.
func TestThreadsOfAnIdleProgram(t *testing.T) {
	t.Parallel()
	const driver = 2 // the simulated one's
	for _, c := range []struct {
		role, settings string
		threads        int
	}{{"lc", "", 4}, {"be", `mechanisms = ["timeslice", "gate", "turns", "blp"]`, 7}, {"be", "", 8}, {"be", `mechanisms = ["timeslice", "gate", "turns", "blp", "swap"]`, 9}} {
		t.Run(c.role+" "+c.settings, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.settings)
			p := m.start(c.role)
			m.joined(p)
			p.request(10, 10, "stream")
			for range 3 { // its agent starts some at its second look
				age := m.peer(p).HeartbeatAgeNs
				m.until("its agent looks", func() bool { before := age; age = m.peer(p).HeartbeatAgeNs; return age < before })
			}
			if _, _, threads, _ := has(t, p.pid()); threads-driver-1 != c.threads {
				t.Errorf("%d threads of the library, must be %d", threads-driver-1, c.threads)
			}
		})
	}
}

// The library's threads take no signal that the program's own threads block, and its handlers are not seen.
func TestSignalsStayWithTheProgram(t *testing.T) {
	t.Parallel()
	const code = `
import ctypes, os, signal
got = []
blocked = [signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD, signal.SIGPROF, signal.SIGURG, 16, signal.SIGRTMIN] # 16: SIGSTKFLT
signal.signal(signal.SIGUSR2, lambda *_: got.append("SIGUSR2"))
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
def caught():
    lines = dict(l.split(":\t") for l in open("/proc/self/status").read().splitlines() if ":\t" in l)
    return int(lines["SigCgt"], 16) & ~(3 << 31) # but for the two of glibc
def stack():
    buffer = (ctypes.c_size_t * 3)() # stack_t
    assert ctypes.CDLL(None).sigaltstack(None, buffer) == 0
    return list(buffer)
before = caught(), stack(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
` + initialise + `
after = caught(), stack(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(before == after)
for s in blocked:
    for _ in range(2000 if s == signal.SIGRTMIN else 20): # a thread of ours that ends meanwhile is to block it to its end
        os.kill(os.getpid(), s)
        assert signal.sigtimedwait([s], 5).si_signo == s
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR2)
print(len(got))
`
	for _, role := range []string{"", "lc", "be"} {
		m := newMachine(t, "")
		got, err := run(m.command(role, "python3", "-c", code))
		if want := (result{"True\n20\n", "", 0}); err != nil || got != want {
			t.Errorf("role %q: %+v, %v; want %+v", role, got, err, want)
		}
	}
}

// Valgrind runs programs without preemption.
func TestValgrind(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"lc", "be"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			p := m.startAs(m.command(role, "valgrind", "-q", "--tool=none", worker))
			if _, hash := p.request(3, 5, "stream"); hash != sums(6) {
				t.Errorf("hash %d, want %d", hash, sums(6))
			}
			if _, stderr := p.finish(); stderr != "gpreempt: valgrind lets no helper process start; running without preemption\n" {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// A program with CUDA sees the same of the system with the library as without it.
func TestProgramsWithCUDA(t *testing.T) {
	t.Parallel()
	const nobodyReads = `
import os, signal, sys
def nobody_reads(fd):
    r, w = os.pipe()
    os.dup2(w, fd)
    os.close(r), os.close(w)
`
	for _, c := range []struct{ name, code, want string }{
		{"error of a socket", initialise + `
import select, socket
for ask in (lambda s: s.recv(1), lambda s: s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
    a, b = socket.socketpair()
    a.send(b"x")
    b.close() # with what it did not read: a reset
    poll = select.poll()
    poll.register(a, select.POLLIN)
    poll.poll()
    try:
        print(ask(a))
    except ConnectionResetError as e:
        print(e.errno)
`, "104\n104\n"},
		{"log that nobody reads", nobodyReads + "nobody_reads(2)" + initialise + `print("alive")`, "alive\n"},
		{"log that nobody reads, default SIGPIPE", nobodyReads + `
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
nobody_reads(2)` + initialise + `print("alive")`, "alive\n"},
		{"own broken pipe", nobodyReads + `
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
nobody_reads(2)
try:
    os.write(2, b"x")
except BrokenPipeError:
    pass` + initialise + `print(signal.sigpending())`, "{<Signals.SIGPIPE: 13>}\n"},
		{"limit of open files", `
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))` + initialise + `
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])`, "256\n"},
		{"descriptors", initialise + `
import os
def target(fd):
    try:
        return os.readlink("/proc/self/fd/" + fd)
    except FileNotFoundError: # of listdir itself
        return ""
print([t for t in map(target, os.listdir("/proc/self/fd")) if "cgroup" in t or "eventpoll" in t])`, "[]\n"},
	} {
		for _, role := range []string{"", "lc"} {
			t.Run(c.name+" role="+role, func(t *testing.T) {
				m := newMachine(t, "", "GPREEMPT_LOG=debug")
				got, err := run(m.command(role, "python3", "-c", c.code))
				if got.stderr = ""; err != nil || got != (result{c.want, "", 0}) { // debug logs
					t.Errorf("%+v, %v; want %q", got, err, c.want)
				}
			})
		}
	}
}

// A daemon closes descriptors that it does not know. The library's log goes on, and never into a file that the program
// has opened since.
func TestProgramClosesEverything(t *testing.T) {
	t.Parallel()
	const code = `
import ctypes, os, sys, tempfile
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
os.closerange(3, 1024)
files = [tempfile.TemporaryFile() for _ in range(16)]
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
sys.stdin.read()
print([f.read() for f in files if f.seek(0, 2)])
`
	log := filepath.Join(t.TempDir(), "log")
	m := newMachine(t, "", "GPREEMPT_LOG=debug:"+log)
	p := m.startAs(m.command("lc", "python3", "-c", code))
	if got := p.hear(); got != "ready" {
		t.Fatalf("got %q", got)
	}
	text := func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	m.until("the log tells of the context", func() bool { return strings.Contains(text(), `"attached"`) })
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if got := p.hear(); got != "[]" {
		t.Errorf("in the program's files: %s", got)
	}
}

// A configuration that is no file must not stop a program that reads it.
func TestConfigurationIsNoFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	fifo := filepath.Join(m.dir, "fifo")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v\n%s", err, out)
	}
	for _, path := range []string{fifo, "/dev/zero"} {
		m.environment = []string{"GPREEMPT_CONFIG=" + path}
		cmd := m.command("lc", "python3", "-c", initialise+"print(1)")
		timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		got, err := run(cmd)
		timer.Stop()
		if err != nil || got.status != 0 || got.stdout != "1\n" || !strings.Contains(got.stderr, fmt.Sprintf("%q", path)+": must be a regular file; running without preemption") {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}

// preloading adds a library of testdata to a command's LD_PRELOAD.
func preloading(t *testing.T, name string, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	library := filepath.Join(t.TempDir(), name+".so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, "testdata/"+name+".c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for i, variable := range cmd.Env {
		if strings.HasPrefix(variable, "LD_PRELOAD=") {
			cmd.Env[i] += ":" + library
		}
	}
	return cmd
}

const (
	noThreads = "gpreempt: no more threads can be started; running without preemption\n"
	noMemory  = "gpreempt: the helper process ended as it started: it may lack address space (ulimit -v); running without preemption\n"
)

// Where no thread can be started Go would end the program.
func TestNoThreads(t *testing.T) {
	t.Parallel()
	for log, want := range map[string]string{"warn": noThreads, "off": ""} {
		m := newMachine(t, "", "GPREEMPT_LOG="+log)
		cmd := m.command("lc", "python3", "-c", "import ctypes; print(ctypes.CDLL(\"libcuda.so.1\").cuInit(0))")
		if got, err := run(preloading(t, "nothreads", cmd)); err != nil || got != (result{"0\n", want, 0}) {
			t.Errorf("log %s: %+v, %v; want %q", log, got, err, want)
		}
	}
}

var (
	noThreadsOfCore = regexp.MustCompile(`^\S+ error running without preemption error="no more threads can be started" app=gpreempt pid=\d+\n$`)
	noMemoryOfGPU   = regexp.MustCompile(`(?m)^\S+ error no preemption on this GPU; it is tried again every second error="[^"]*cannot allocate memory" app=gpreempt pid=\d+\n`)
	noThreadsOfGPU  = regexp.MustCompile(`(?m)^\S+ error no preemption on this GPU; it is tried again every second error="no more threads can be started" app=gpreempt pid=\d+\n`)
)

// saysNoThreads says whether stderr has nothing but the lines that there are no more threads: of the process, or of its GPUs.
func saysNoThreads(stderr string) bool {
	return stderr == noThreads || noThreadsOfCore.MatchString(stderr) || noThreadsOfGPU.ReplaceAllString(stderr, "") == ""
}

// Threads run out after any number of them: the program goes on, with preemption or without.
func TestFewThreads(t *testing.T) {
	t.Parallel()
	without, with := false, false
	for threads := 1; threads <= 14; threads++ { // 9 are enough
		m := newMachine(t, "hints.socket = true\n", fmt.Sprint("THREADS=", threads))
		p := m.startAs(preloading(t, "nothreads", m.command("lc", worker)))
		if _, hash := p.request(10, 3, "stream"); hash != sums(55) {
			t.Errorf("%d threads: hash %d, must be %d", threads, hash, sums(55))
		}
		if last, stderr := p.finish(); last != "count 0" || !saysNoThreads(stderr) {
			t.Errorf("%d threads: last line %q, stderr %q", threads, last, stderr)
		} else {
			with = with || stderr == ""
			without = without || stderr == noThreads
		}
	}
	if !without || !with {
		t.Errorf("without preemption %v, with it %v: must be both", without, with)
	}
}

// Threads run out while the program runs, and come back.
func TestThreadsRunOut(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"lc", "be"} {
		t.Run(role, func(t *testing.T) {
			m := newMachine(t, `mechanisms = ["timeslice", "hold", "turns"]`, "SIMCUDA_DEVICES=4")
			out := filepath.Join(m.dir, "out")
			cmd := m.command(role, worker)
			cmd.Env = append(cmd.Env, "THREADS_RUN_OUT="+out)
			p := m.startAs(preloading(t, "nothreads", cmd))
			m.joined(p)
			if err := os.WriteFile(out, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			before := m.start("be")
			before.runBestEffort()
			for round := range uint32(5) { // the agent has much to do
				peer := m.start("lc")
				m.joined(peer)
				if _, hash := p.request(5, 3, "stream"); hash != sums((round+1)*15) {
					t.Errorf("hash %d, must be %d", hash, sums((round+1)*15))
				}
				peer.finish()
			}
			if err := os.Remove(out); err != nil {
				t.Fatal(err)
			}
			windows := m.peer(p).Counters.BusyNs
			m.until("it is busy for all to see", func() bool {
				p.request(1, 3, "stream")
				return m.peer(p).Counters.BusyNs > windows
			})
			if last, stderr := p.finish(); last != "count 0" || stderr != "" {
				t.Errorf("last line %q, stderr %q", last, stderr)
			}
		})
	}
}

// The program may map only so much memory, from the start or from later on.
func TestLittleMemory(t *testing.T) {
	t.Parallel()
	for megabytes := 100; megabytes < 6000; megabytes += megabytes / 8 {
		m := newMachine(t, "")
		if out, err := m.command("", "prlimit", fmt.Sprintf("--as=%d", megabytes<<20), worker).CombinedOutput(); err != nil {
			t.Logf("%d MB: the program does not run without the library either: %v %s", megabytes, err, out)
			continue
		}
		p := m.startAs(m.command("lc", "prlimit", fmt.Sprintf("--as=%d", megabytes<<20), worker))
		if _, hash := p.request(10, 3, "stream"); hash != sums(55) {
			t.Errorf("%d MB: hash %d, must be %d", megabytes, hash, sums(55))
		}
		last, stderr := p.finish()
		if last != "count 0" || stderr != noMemory && !saysNoThreads(stderr) && noMemoryOfGPU.ReplaceAllString(stderr, "") != "" {
			t.Errorf("%d MB: last line %q, stderr %q", megabytes, last, stderr)
		}
		t.Logf("%d MB: %q", megabytes, stderr)
	}
}

func TestMemoryRunsOut(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"lc", "be"} {
		t.Run(role, func(t *testing.T) {
			m := newMachine(t, "")
			p := m.start(role)
			m.joined(p)
			other := m.start("be")
			other.runBestEffort()
			var starved int
			if p.ask("starve", "starved %d", &starved); starved != 1 {
				t.Fatal("memory can still be mapped")
			}
			for round := range uint32(5) {
				peer := m.start("lc")
				m.joined(peer)
				if _, hash := p.request(5, 3, "stream"); hash != sums((round+1)*15) {
					t.Errorf("hash %d, must be %d", hash, sums((round+1)*15))
				}
				peer.finish()
			}
			if last, stderr := p.finish(); last != "count 0" || stderr != "" {
				t.Errorf("last line %q, stderr %q", last, stderr)
			}
		})
	}
}

// A program that may map no more asks for memory of a GPU that has it. The driver has no addresses for it, and no thread can be started to ask
// what is free: the call is out of memory, as without the library.
func TestAllocationWithoutAddresses(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	p := m.start("be")
	m.joined(p)
	var starved, result int
	if p.ask("starve", "starved %d", &starved); starved != 1 {
		t.Fatal("memory can still be mapped")
	}
	const outOfMemory = 2
	if p.ask("allocate 64", "result %d", &result); result != outOfMemory {
		t.Errorf("result %d", result)
	}
	if last, stderr := p.finish(); last != "count 0" || stderr != "" {
		t.Errorf("last line %q, stderr %q", last, stderr)
	}
}

// A server forks a worker before anything touches CUDA. The worker is a member like any other process. Its environment is the one that the
// server was started with, whatever the server has written over it since.
func TestForkBeforeCUDA(t *testing.T) {
	t.Parallel()
	code := `
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_void_p
for name in (b"GPREEMPT_CONFIG", b"GPREEMPT_PRIORITY"):
    ctypes.memset(libc.getenv(name), ord("x"), 2) # as a title written over it
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:` + strings.ReplaceAll(initialise, "\n", "\n        ") + `
        sys.stdin.read()
        os._exit(0)
    children.append(pid)
sys.stdin.read()
print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in children])
`
	m := newMachine(t, "")
	cmd := m.command("be", "python3", "-c", code)
	out, stderr := m.runUntil(cmd, "both children are members", func() bool {
		n := 0
		for _, p := range m.peers() {
			if p.Alive && p.Role == "be" && int(p.Pid) != cmd.Process.Pid {
				n++
			}
		}
		return n == 2
	})
	if out != "[0, 0]\n" || stderr != "" {
		t.Errorf("stdout %q, stderr %q", out, stderr)
	}
}

// Installed under a prefix, the command finds the library that lies below it. Uninstalled, only files of others are left there. Under a
// DESTDIR the same files are made.
func TestInstall(t *testing.T) {
	t.Parallel()
	prefix, staged := t.TempDir(), t.TempDir()
	before := filepath.Join(prefix, "lib", "libgpreempt.so") // of version 0.1.0, a link since
	foreign := filepath.Join(prefix, "share", "doc", "gpreempt", "notes")
	for _, file := range []string{before, foreign} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	install := func(action string, variables ...string) {
		t.Helper()
		if out, err := exec.Command("make", slices.Concat([]string{"-s", "-C", root, action}, variables)...).CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", action, err, out)
		}
	}
	install("install", "PREFIX="+prefix, "DESTDIR=")
	install("install", "PREFIX=/usr", "DESTDIR="+staged)
	tryInstalled(t, prefix)
	below := ours(t, prefix)
	if staged := slices.Sorted(slices.Values(append(ours(t, staged+"/usr"), "share/doc/gpreempt/notes"))); len(below) < 20 || !slices.Equal(below, staged) {
		t.Errorf("below PREFIX %q, below DESTDIR %q", below, staged)
	}
	install("uninstall", "PREFIX="+prefix, "DESTDIR=")
	install("uninstall", "PREFIX=/usr", "DESTDIR="+staged)
	if left := ours(t, prefix); !slices.Equal(left, []string{"share/doc/gpreempt", "share/doc/gpreempt/notes"}) {
		t.Errorf("left: %q", left)
	}
	if left := ours(t, staged); len(left) > 0 {
		t.Errorf("left below DESTDIR: %q", left)
	}
}

// The script names what it cannot do before it puts or takes anything.
func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	script, list, none := filepath.Join(root, "packaging", "install.sh"), filepath.Join(root, "packaging", "gpreempt.files"), filepath.Join(t.TempDir(), "none")
	for want, arguments := range map[string][]string{
		"usage: ":                       {"remove", none, "build", list},
		"cannot read the list /no/list": {"install", none, "build", list, "/no/list"},
	} {
		out, err := exec.Command(script, arguments...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, %s", arguments, err, out)
		}
	}
	if _, err := os.Stat(none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it began: %v", err)
	}
}

// ours lists the files below a folder, and folders named after gpreempt, by path from there.
func ours(t *testing.T, folder string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if name := strings.TrimPrefix(path, folder+"/"); err == nil && (!entry.IsDir() || strings.Contains(name, "/gpreempt")) && path != folder {
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func tryInstalled(t *testing.T, prefix string) {
	t.Helper()
	gpreempt := filepath.Join(prefix, "bin", "gpreempt")
	for _, lib := range []string{"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"} { // $LIB of Arch, Fedora and SUSE, Debian
		if _, err := os.Stat(filepath.Join(prefix, "lib", "gpreempt", lib, "libgpreempt.so")); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"run", "--priority", "be", "--", "true"}, ""},
		{[]string{"run", "--priority", "be", "--", "sh", "-c", `echo "$LD_PRELOAD $GPREEMPT_PRIORITY"`}, filepath.Join(prefix, "lib", "gpreempt", "$LIB", "libgpreempt.so") + " be\n"},
		{[]string{"run", "--priority", "lc", "--", "grep", "-o", "-m", "1", "libgpreempt.so", "/proc/self/maps"}, "libgpreempt.so\n"},
	} {
		cmd := exec.Command(gpreempt, c.arguments...)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, "GPREEMPT_LIBRARY=", "GPREEMPT_CONFIG=", "LD_PRELOAD=")
		if got, err := run(cmd); err != nil || got != (result{c.want, "", 0}) {
			t.Errorf("%v: %+v, %v; want %q", c.arguments, got, err, c.want)
		}
	}
	said, err := exec.Command(gpreempt, "version").Output()
	if library := "\nlibrary   " + filepath.Join(prefix, "lib/gpreempt/lib/libgpreempt.so") + ", "; err != nil || !strings.Contains(string(said), library) || strings.Contains(string(said), "unknown") {
		t.Errorf("version: %v; %s", err, said)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got, err := run(exec.Command(gpreempt, "completion", shell)); err != nil || got.status != 0 || !strings.Contains(got.stdout, "gpreempt") {
			t.Errorf("completion %s: status %d, %v; %s", shell, got.status, err, got.stderr)
		}
	}
	for _, command := range []string{"gpreempt", "gpreempt-bench"} {
		file := filepath.Join(prefix, "share/bash-completion/completions", command)
		if got, err := run(exec.Command("bash", "-c", `. "$0" && complete -p "$1"`, file, command)); err != nil || !strings.HasPrefix(got.stdout, "complete ") || got.stderr != "" {
			t.Errorf("%s in bash: %+v, %v", file, got, err)
		}
	}
	got, err := run(exec.Command(gpreempt, "__complete", "run", "--priority", ""))
	if want := "lc\nbe\noff\n"; err != nil || !strings.HasPrefix(got.stdout, want) {
		t.Errorf("completion of --priority: %+v, %v; want %q", got, err, want)
	}
}
