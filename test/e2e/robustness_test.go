package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	_, hash := newMachine(t, "").start("").request(3, 3, "stream")
	for _, c := range []struct {
		name, role, config string
		want               []string
	}{
		{"priority", "urgent", "", []string{"GPREEMPT_PRIORITY", "urgent"}},
		{"syntax", "lc", "[hold\n", []string{"gpreempt.toml: line "}},
		{"value", "be", "[hold]\nmax_ms = 99999\n", []string{"gpreempt.toml", "hold.max_ms", "99999"}},
		{"key", "lc", "[hold]\nmaximum = 7\n", []string{"gpreempt.toml", "hold.maximum"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, "")
			if c.config != "" {
				m.configure(c.config)
			}
			p := m.start(c.role)
			if _, h := p.request(3, 3, "stream"); h != hash {
				t.Errorf("hash %d, must be %d", h, hash)
			}
			last, stderr := p.finish()
			if last != "count 0" || strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") {
				t.Errorf("last line %q, stderr %q, must be one line", last, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not name %s", stderr, want)
				}
			}
			if peers := m.peers(); len(peers) != 0 {
				t.Errorf("joined in spite of the mistake: %+v", peers)
			}
		})
	}
}

// Root works in a folder of another user, who would switch preemption off and have a file overwritten.
func TestRootInOthersFolder(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	m := newMachine(t, "")
	folder, home := t.TempDir(), t.TempDir()
	log, planted := filepath.Join(m.dir, "log"), filepath.Join(folder, "gpreempt.toml")
	for path, text := range map[string]string{
		planted: fmt.Sprintf("mechanisms = []\n[log]\nfile = %q\n", log),
		filepath.Join(home, "gpreempt", "gpreempt.toml"): fmt.Sprintf("[segment]\ndirectory = %q\n", m.dir),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(planted, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	m.environment = append(m.environment, "GPREEMPT_CONFIG=", "XDG_CONFIG_HOME="+home)
	cmd := m.command("lc", worker)
	cmd.Dir = folder
	p := m.startAs(cmd)
	p.request(2, 2, "stream")
	m.until("it is preempted by root's own configuration", func() bool { return slices.Contains(m.peer(p).Mechanisms, "hold") })
	if last, stderr := p.finish(); last != "count 0" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "gpreempt.toml: owned by user 4711, mode 0600: root passes over what another user owns or can write") {
		t.Errorf("last line %q, stderr %q", last, stderr)
	}
	if _, err := os.Stat(log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log that the other user named: %v", err)
	}
}

func TestFork(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"", "lc", "be"} {
		t.Run("role="+role, func(t *testing.T) {
			m := newMachine(t, "")
			p := m.start(role)
			_, _ = p.request(3, 2, "stream")
			for range 20 {
				var status int
				if p.ask("child", "status %d", &status); status != 0 {
					t.Fatalf("/bin/true in a child: status %#x", status)
				}
			}
			if p50, _ := p.request(3, 2, "stream"); p50 <= 0 {
				t.Errorf("p50 %v after forks", p50)
			}
			p.finish()
		})
	}
}

// A python3 process forks before and after it becomes a CUDA process; the child, a worker of its own, joins.
func TestForkInPython(t *testing.T) {
	t.Parallel()
	const script = `
import ctypes, os, subprocess, sys
def child():
    pid = os.fork()
    if pid == 0: os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(child())
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
print(child(), subprocess.run(["/bin/echo", "spawned"], capture_output=True).stdout, flush=True)
sys.exit(subprocess.run([sys.argv[1]]).returncode)
`
	for _, role := range []string{"lc", "be"} {
		t.Run(role, func(t *testing.T) {
			m := newMachine(t, "")
			cmd := m.command(role, "python3", "-c", script, worker)
			out, stderr := m.runUntil(cmd, "python3 and its child are members", func() bool {
				var names []string
				for _, p := range m.peers() {
					if p.Alive && p.Role == role {
						names = append(names, p.Name)
					}
				}
				return len(names) == 2 && slices.Contains(names, "worker")
			})
			if want := "7\n0 0 0\n7 b'spawned\\n'\ncount 0\n"; out != want || stderr != "" {
				t.Errorf("stdout %q, want %q; stderr %q", out, want, stderr)
			}
		})
	}
}

func TestOrdinaryProgramsUnchanged(t *testing.T) {
	t.Parallel()
	for _, program := range [][]string{
		{"python3", "-c", "import os, subprocess, sys; print(subprocess.check_output(['echo', 'x'])); sys.exit(3)"},
		{"bash", "-c", "echo $((6*7)); echo piped | cat; exit 5"},
		{"git", "--version"},
		{"git", "no-such-command"},
	} {
		run := func(cmd *exec.Cmd) (stdout, stderr string, status int) {
			var out, errors bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errors
			if err := cmd.Run(); cmd.ProcessState == nil {
				t.Fatalf("%v: %v", program, err)
			}
			return out.String(), errors.String(), cmd.ProcessState.ExitCode()
		}
		wantOut, wantErr, wantStatus := run(exec.Command(program[0], program[1:]...))
		for _, role := range []string{"", "lc", "be"} {
			m := newMachine(t, "")
			stdout, stderr, status := run(m.command(role, program[0], program[1:]...))
			if stdout != wantOut || stderr != wantErr || status != wantStatus {
				t.Errorf("%v as %q: %q, %q, %d; without the library %q, %q, %d", program, role, stdout, stderr, status, wantOut, wantErr, wantStatus)
			}
			if _, err := os.Stat(m.segments()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v as %q made segments: %v", program, role, err)
			}
		}
	}
}

func TestCrashIsTheProgramsOwn(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"", "lc", "be"} {
		p := newMachine(t, "").start(role)
		_, _ = p.request(2, 2, "stream")
		p.say("crash")
		err := p.wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV || p.stderr.String() != "" {
			t.Errorf("role %q: ended with %v, must be SIGSEGV; stderr %q", role, err, p.stderr.String())
		}
	}
}

// throughput counts the kernels that complete on the GPU in a time, by all processes together.
func throughput(span time.Duration, processes ...*process) float64 {
	total := func() (n int) {
		for _, p := range processes {
			n += p.count()
		}
		return n
	}
	from, before := time.Now(), total()
	<-time.After(span) // the measured interval, not a wait for something
	n := total() - before
	return float64(n) / time.Since(from).Seconds()
}

func TestBestEffortPeersShare(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	var be []*process
	for range 4 {
		be = append(be, m.start("be"))
	}
	m.joined(be...)
	be[0].runBestEffort()
	alone := throughput(time.Second, be[0])
	for _, p := range be[1:] {
		p.say("be")
		p.hear()
	}
	turns := func(p *process) uint64 { return m.peer(p).Counters.Turns }
	for _, p := range be {
		n := p.count()
		m.until("every BE takes turns and completes kernels", func() bool { return turns(p) > 0 && p.count() > n })
	}
	m.until("four together complete about as many kernels as one alone", func() bool { // where the machine is not slow
		together := throughput(2*time.Second, be...)
		t.Logf("BE kernels per second: %.0f by one alone, %.0f by four", alone, together)
		return together >= 0.6*alone
	})
	lc := m.start("lc")
	lc.request(20, 5, "stream")
	for _, p := range be {
		n, before := p.count(), turns(p)
		m.until("every BE progresses beside LC", func() bool { return turns(p) > before && p.count() > n })
	}
}

// Two jobs with a process on each of two GPUs start crosswise: most of the time the same job has both GPUs. A job whose
// processes wait for each other gets nowhere with its turn on one GPU only.
func TestJobsTakeTurnsTogether(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_DEVICES=2")
	job := map[int32]string{}
	var all []*process
	for _, w := range []struct{ job, device string }{{"A", "0"}, {"B", "1"}, {"B", "0"}, {"A", "1"}} {
		cmd := m.command("be", worker)
		cmd.Env = append(cmd.Env, "WORKER_DEVICE="+w.device, "MASTER_ADDR=localhost", "MASTER_PORT="+w.job)
		p := m.startAs(cmd)
		job[int32(p.pid())] = w.job
		all = append(all, p)
		m.joined(p)
		p.runBestEffort()
		<-time.After(30 * time.Millisecond) // a part of a quantum
	}
	before := map[*process]int{}
	for _, p := range all {
		before[p] = p.count()
	}
	m.until("the same job has both GPUs, each for some of the time", func() bool { // where the machine is not slow
		same, looks, had := 0, 0, map[string]int{}
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); <-time.After(3 * time.Millisecond) { // samples
			snapshots := m.snapshots()
			if len(snapshots) != 2 {
				t.Fatalf("%+v", snapshots)
			}
			var owner [2]string
			for i, s := range snapshots {
				for _, p := range s.Peers {
					if p.Turn {
						owner[i] = job[p.Pid]
					}
				}
			}
			if owner[0] != "" && owner[1] != "" {
				looks++
				if owner[0] == owner[1] {
					same++
					had[owner[0]]++
				}
			}
		}
		t.Logf("both GPUs are one job's in %d of %d looks, %v", same, looks, had)
		return looks >= 100 && 10*same >= 8*looks && had["A"] >= looks/5 && had["B"] >= looks/5
	})
	for _, p := range all {
		m.until(fmt.Sprintf("process %d of job %s gets on", p.pid(), job[int32(p.pid())]), func() bool { return p.count() > before[p] })
	}
}

// sharesOver are the parts of the GPU that processes had in a time, as top shows them.
func (m *machine) sharesOver(span time.Duration, all ...*process) (shares []float64) {
	m.t.Helper()
	var before []segment.Peer
	for _, p := range all {
		before = append(before, m.peer(p))
	}
	<-time.After(span) // the measured interval
	for i, p := range all {
		var now segment.Peer
		m.until("it is counted", func() bool {
			now = m.peer(p)
			return now.RanAtNs >= before[i].RanAtNs+uint64(span)
		})
		shares = append(shares, float64(now.RanNs-before[i].RanNs)/float64(now.RanAtNs-before[i].RanAtNs))
	}
	return shares
}

// top shows which part of the GPU BE got: all of it alone, half of it each where two take turns, none while it idles, and
// none of LC's time.
func TestShares(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	share := m.sharesOver
	one, idle := m.start("be"), m.start("be")
	m.joined(one, idle)
	one.runBestEffort()
	m.until("one alone has all, an idle one nothing", func() bool { // where the machine is not slow, here and below
		s := share(2*time.Second, one, idle)
		t.Logf("one alone and an idle one: %v", s)
		return s[0] >= 0.8 && s[0] <= 1.001 && s[1] <= 0.05
	})
	two := idle
	two.runBestEffort()
	m.until("two in turns have half each", func() bool {
		s := share(4*time.Second, one, two)
		t.Logf("two in turns: %v", s)
		return s[0] >= 0.25 && s[0] <= 0.75 && s[0]+s[1] >= 0.7 && s[0]+s[1] <= 1.05
	})
	two.finish()
	lc := m.start("lc")
	m.joined(lc)
	m.until("BE has what LC leaves", func() bool {
		before, began := m.peer(lc), time.Now()
		lc.say("lc 60 10 4000 20000 stream") // 40 ms of 60
		s := share(2*time.Second, one)
		took := float64(m.peer(lc).Counters.WindowNs-before.Counters.WindowNs) / float64(time.Since(began))
		lc.hear()
		t.Logf("beside LC with %.2f of the time: %v", took, s)
		return took >= 0.2 && s[0] <= 1.2-took && s[0] >= 0.7-took
	})
}

// killed runs rounds of a worker that is killed soon after its first work, at any instruction.
func killed(m *machine, rounds int, random *rand.Rand) error {
	for i := range rounds {
		role, command := "lc", "lc 100000 3 40 100 stream\n"
		if i%2 == 1 {
			role, command = "be", "be\n"
		}
		cmd := m.command(role, worker)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		if i%4 < 2 { // else it is killed while it starts
			deadline := time.Now().Add(patience)
			for joined := false; !joined; time.Sleep(200 * time.Microsecond) {
				all, err := m.look()
				if err != nil {
					return fmt.Errorf("round %d: %w", i, err)
				}
				for _, s := range all {
					joined = joined || slices.ContainsFunc(s.Peers, func(p segment.Peer) bool {
						return int(p.Pid) == cmd.Process.Pid && p.Alive
					})
				}
				if time.Now().After(deadline) {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					return fmt.Errorf("round %d: %s %d never joins", i, role, cmd.Process.Pid)
				}
			}
		}
		if _, err := stdin.Write([]byte(command)); err != nil {
			return fmt.Errorf("round %d: write: %w", i, err)
		}
		<-time.After(time.Duration(random.Int64N(int64(20 * time.Millisecond)))) // the random point
		if err := cmd.Process.Kill(); err != nil {
			return fmt.Errorf("round %d: kill: %w", i, err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			return fmt.Errorf("round %d: %s ended by itself: %w", i, role, err)
		}
	}
	return nil
}

func TestKilledPeers(t *testing.T) {
	t.Parallel()
	const groups, rounds = 4, 50
	m := newMachine(t, "")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	be.runBestEffort()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	failures := make([]error, groups)
	var running sync.WaitGroup
	for g := range groups {
		running.Go(func() { failures[g] = killed(m, rounds, rand.New(rand.NewPCG(seed, uint64(g)))) })
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	batches := uint32(0)
	survive := func() {
		t.Helper()
		const requests = 10
		batches++
		p50, hash := lc.request(requests, 3, "stream")
		if p50 > time.Second {
			t.Errorf("the surviving LC waits %v for a request", p50)
		}
		if want := sums(batches * requests * (requests + 1) / 2); hash != want {
			t.Errorf("batch %d of the surviving LC: hash %d, must be %d", batches, hash, want)
		}
		n := be.count()
		m.until("the surviving BE progresses", func() bool { return be.count() > n })
	}
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		default:
		}
		survive()
	}
	if err := errors.Join(failures...); err != nil {
		t.Error(err)
	}
	m.until("only survivors are members", func() bool {
		peers := m.peers()
		return len(peers) == 2 && m.peer(be).Alive && m.peer(lc).Alive
	})
	survive()
	m.until("the surviving BE yields", func() bool { return m.peer(be).TimesliceUs == 1 })
	lc.finish()
	m.until("the surviving BE gets its timeslice back", func() bool { return m.peer(be).TimesliceUs == 2048 })
	be.finish()
}

func (p *process) signal(s syscall.Signal) {
	p.m.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.m.t.Fatal(err)
	}
}

func (p *process) stop() {
	p.m.t.Helper()
	stop(p.m.t, p.cmd)
}

// stop returns once no thread of a program runs. kill returns earlier: one of them takes the signal and then tells the others, which on a
// loaded machine may be much later.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED, nil); err != nil {
		t.Fatalf("wait until process %d is stopped: %v", cmd.Process.Pid, err)
	}
}

func TestStoppedPeers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	first, second, lc, other := m.start("be"), m.start("be"), m.start("lc"), m.start("lc")
	m.joined(first, second, lc, other)
	first.runBestEffort()
	second.runBestEffort()

	first.stop()
	lc.request(10, 3, "stream")
	n := second.count()
	m.until("a BE progresses beside a stopped one", func() bool { return second.count() > n+20 })
	first.signal(syscall.SIGCONT)
	n = first.count()
	m.until("the BE resumes", func() bool { return first.count() > n })

	lc.say("lc 500 20 40 0 stream") // so that a window is open nearly always
	m.until("LC stops with its window open", func() bool {
		lc.stop()
		if m.peer(lc).WindowOpen {
			return true
		}
		lc.signal(syscall.SIGCONT)
		return false
	})
	other.request(10, 3, "stream")
	for _, p := range []*process{first, second} {
		n := p.count()
		m.until("BE progresses beside a stopped LC", func() bool { return p.count() > n })
	}
	lc.signal(syscall.SIGCONT)
	if line := lc.hear(); !strings.HasPrefix(line, "p50_us ") {
		t.Errorf("the resumed LC answers %q", line)
	}
	for _, p := range []*process{lc, other, first, second} {
		p.finish()
	}
}

// Processes are stopped at any instruction, until the others have shown that they go on without them.
func TestStoppedAnywhere(t *testing.T) {
	t.Parallel()
	const rounds = 60
	m := newMachine(t, "")
	victims := []*process{m.start("be"), m.start("lc")}
	be, lc := m.start("be"), m.start("lc")
	m.joined(victims[0], victims[1], be, lc)
	victims[0].runBestEffort()
	be.runBestEffort()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const requests = 3
	for i := range uint32(rounds) {
		victim := victims[i%2]
		if victim == victims[1] {
			victim.say("lc 20 3 40 0 stream")
		}
		<-time.After(time.Duration(random.Int64N(int64(3 * time.Millisecond)))) // the random point
		victim.stop()
		p50, hash := lc.request(requests, 3, "stream")
		if p50 > time.Second {
			t.Errorf("round %d: LC waits %v for a request", i, p50)
		}
		if want := sums((i + 1) * requests * (requests + 1) / 2); hash != want {
			t.Fatalf("round %d: hash %d of LC, must be %d", i, hash, want)
		}
		n := be.count()
		m.until("BE progresses beside a stopped process", func() bool { return be.count() > n })
		victim.signal(syscall.SIGCONT)
		if victim == victims[1] {
			victim.hear()
		}
	}
	n := victims[0].count()
	m.until("the BE that was stopped goes on", func() bool { return victims[0].count() > n })
	for _, p := range []*process{victims[1], lc, victims[0], be} {
		p.finish()
	}
}

// Every process of this test has the same number, 1, in a namespace of its own.
func TestPIDNamespaces(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	apart := []string{"--user", "--map-current-user", "--pid", "--fork", "--kill-child"}
	if out, err := exec.Command("unshare", append(apart, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let this user make PID namespaces: unshare: %v: %s", err, bytes.TrimSpace(out))
	}
	m := newMachine(t, "")
	start := func(role string) *process {
		return m.startAs(m.command(role, "unshare", append(apart, worker)...))
	}
	only := func(role string) (found segment.Peer) {
		for _, p := range m.peers() {
			if p.Alive && p.Role == role {
				found = p
			}
		}
		return found
	}
	be, lc := start("be"), start("lc")
	m.until("both join", func() bool { return only("be").Published && only("lc").Published })
	if b, l := only("be"), only("lc"); b.Pid != 1 || l.Pid != 1 || b.Slot == l.Slot {
		t.Errorf("BE %+v, LC %+v: must be process 1 both, in two slots", b, l)
	}
	be.runBestEffort()
	m.until("BE yields", func() bool { return only("be").TimesliceUs == 1 })
	m.until("LC preempts", func() bool { return only("lc").TimesliceUs > 10_000 }) // the fair slice is 2048 us
	if _, hash := lc.request(10, 5, "stream"); hash != sums(55) {
		t.Errorf("hash %d of LC, must be %d", hash, sums(55))
	}
	if c := only("lc").Counters; c.Windows == 0 || c.Holds == 0 {
		t.Errorf("counters of LC: %+v", c)
	}
	lc.signal(syscall.SIGKILL) // its child dies with it
	m.until("BE gets its timeslice back", func() bool { return only("be").TimesliceUs == 2048 && !only("lc").Alive })
	lc = start("lc")
	m.until("BE yields to the next LC", func() bool { return only("be").TimesliceUs == 1 })
	be.signal(syscall.SIGKILL)
	m.until("the dead BE is no member", func() bool { return len(m.peers()) == 1 && only("lc").Alive })
	if _, hash := lc.request(10, 5, "stream"); hash != sums(55) {
		t.Errorf("hash %d of LC after BE died, must be %d", hash, sums(55))
	}
	lc.finish()
}

// A process has its own name where /proc is another PID namespace's, in which its number is another process's.
func TestNameWhereProcIsOfOthers(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	apart := []string{"--pid", "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		apart = append(apart, "--user", "--map-current-user")
	}
	if out, err := exec.Command("unshare", append(apart, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let this user make PID namespaces: unshare: %v: %s", err, bytes.TrimSpace(out))
	}
	m := newMachine(t, "")
	const number = `echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; exec 3<&0; "$2" <&3 & wait $!` // root may choose that of the next process
	p := m.startAs(m.command("be", "unshare", append(apart, "sh", "-c", number, "sh", fmt.Sprint(os.Getpid()), worker)...))
	m.until("it joins", func() bool { return len(m.peers()) == 1 && m.peers()[0].Published })
	if peer := m.peers()[0]; peer.Name != "worker" {
		t.Errorf("process %d, name %q", peer.Pid, peer.Name)
	}
	p.finish()
}

func TestManyPeers(t *testing.T) {
	t.Parallel()
	roles := []string{"lc", "be", "3", "be", "lc", "6", "be", "1"}
	levels := map[string]uint32{"lc": 0, "be": 7, "1": 1, "3": 3, "6": 6}
	for n := 2; n <= len(roles); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := newMachine(t, "")
			var all, bestEffort []*process
			for _, role := range roles[:n] {
				all = append(all, m.start(role))
			}
			m.joined(all...)
			slots := map[int]bool{}
			for i, p := range all {
				peer := m.peer(p)
				if peer.Level != levels[roles[i]] {
					t.Errorf("%s has level %d", roles[i], peer.Level)
				}
				slots[peer.Slot] = true
				if roles[i] == "be" {
					p.runBestEffort()
					bestEffort = append(bestEffort, p)
				}
			}
			if len(slots) != n {
				t.Errorf("%d processes are in %d slots", n, len(slots))
			}
			for _, p := range all {
				p.say("lc 5 3 40 1000 stream") // all together
			}
			for i, p := range all {
				var us, most int
				var hash uint32
				if line := p.hear(); !scan(line, "p50_us %d max_us %d hash %d", &us, &most, &hash) || hash != sums(15) {
					t.Errorf("%s: %q, must have hash %d", roles[i], line, sums(15))
				}
			}
			all[0].signal(syscall.SIGKILL) // one LC, whatever it holds
			m.until("it is no member", func() bool { return len(m.peers()) == n-1 })
			for _, p := range bestEffort {
				before := p.count()
				m.until("every BE progresses", func() bool { return p.count() > before })
			}
			for _, p := range all[1:] {
				p.finish()
			}
			// The last one's record stays until the next process comes.
			if left := m.peers(); slices.ContainsFunc(left, func(p segment.Peer) bool { return p.Alive }) {
				t.Errorf("members after the end of all: %+v", left)
			}
		})
	}
}

func scan(line, format string, values ...any) bool {
	n, err := fmt.Sscanf(line, format, values...)
	return err == nil && n == len(values)
}

func TestCorruptSegment(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	for _, inUse := range []bool{false, true} {
		t.Run(fmt.Sprintf("inUse=%v", inUse), func(t *testing.T) {
			m := newMachine(t, "")
			writer := m.start("be")
			m.joined(writer)
			if inUse {
				writer.stop() // else it repairs the file within a second, maybe before the newcomer looks
			} else {
				writer.finish()
			}
			files, err := filepath.Glob(filepath.Join(m.segments(), "*.seg"))
			if err != nil || len(files) != 1 {
				t.Fatalf("segments %v, %v", files, err)
			}
			header := make([]byte, 192)
			random := rand.New(rand.NewPCG(1, 2))
			for i := range header {
				header[i] = byte(random.Uint32())
			}
			file, err := os.OpenFile(files[0], os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = file.WriteAt(header, 0)
			if err := errors.Join(err, file.Close()); err != nil {
				t.Fatal(err)
			}
			p := m.start("lc")
			p.request(3, 3, "stream")
			if inUse { // nobody may take it from its user: the newcomer does without
				p.says("corrupt segment", 1)
				p.request(20, 3, "stream")
				last, stderr := p.finish()
				if last != "count 0" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "corrupt segment") {
					t.Errorf("last line %q, stderr %q, must say in one line that the segment is corrupt", last, stderr)
				}
				writer.signal(syscall.SIGCONT)
				writer.finish()
				return
			}
			m.joined(p)
			aside, err := filepath.Glob(files[0] + ".corrupt-*")
			if err != nil || len(aside) != 1 {
				t.Fatalf("set aside: %v, %v", aside, err)
			}
			last, stderr := p.finish()
			if want := files[0] + ": corrupt segment"; last != "count 0" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, " warn ") ||
				!strings.Contains(stderr, want) || !strings.Contains(stderr, aside[0]) {
				t.Errorf("last line %q, stderr %q, must warn in one line of %q and name %s", last, stderr, want, aside[0])
			}
		})
	}
}

// The file through which processes know of each other is removed while they run. logind does that with all of a user's at the last logout.
func TestRemovedSegment(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	for _, mechanisms := range []string{`"auto"`, `["blp"]`} {
		t.Run(mechanisms, func(t *testing.T) {
			m := newMachine(t, "mechanisms = "+mechanisms)
			be, lc := m.start("be"), m.start("lc")
			m.joined(be, lc)
			be.runBestEffort()
			started, batches := m.peer(lc).StartedNs, uint32(0)
			files, err := filepath.Glob(filepath.Join(m.segments(), "*.seg"))
			if err != nil || len(files) != 1 {
				t.Fatalf("segments %v, %v", files, err)
			}
			for _, what := range []string{files[0], m.segments()} {
				gone := filepath.Join(m.dir, "gone") // at once: in a folder that is emptied first, a program may make the next file
				if err := errors.Join(os.Rename(what, gone), os.RemoveAll(gone)); err != nil {
					t.Fatal(err)
				}
				m.until("they have noticed", func() bool { return m.peer(be).Alive && m.peer(lc).Alive }) // after a second where a processor is free
				late := m.start("be")
				m.joined(be, lc, late)
				if mechanisms == `"auto"` {
					m.until("BE yields", func() bool { return m.peer(be).TimesliceUs == 1 && m.peer(late).TimesliceUs == 1 })
				}
				windows := m.peer(lc).Counters.Windows
				m.until("LC opens windows", func() bool {
					batches++
					if _, hash := lc.request(5, 3, "stream"); hash != sums(batches*15) {
						t.Fatalf("hash %d of LC, must be %d", hash, sums(batches*15))
					}
					return m.peer(lc).Counters.Windows > windows
				})
				if peer := m.peer(lc); peer.StartedNs != started {
					t.Errorf("LC, started at %d before: %+v", started, peer)
				}
				n := be.count()
				m.until("BE progresses", func() bool { return be.count() > n })
				late.finish()
			}
			for _, p := range []*process{be, lc} {
				p.says("joined the segment again", 2) // a line of each removal
				p.finish()
			}
		})
	}
}

// A peer cuts the file short, or makes it longer. No process gets SIGBUS, and a later one finds the others.
func TestTruncatedSegment(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	be.runBestEffort()
	files, err := filepath.Glob(filepath.Join(m.segments(), "*.seg"))
	if err != nil || len(files) != 1 {
		t.Fatalf("segments %v, %v", files, err)
	}
	for round, size := range []int64{0, 1, 4096, 70000, 1 << 20} {
		if err := os.Truncate(files[0], size); err != nil {
			t.Fatal(err)
		}
		if _, hash := lc.request(5, 3, "stream"); hash != sums(uint32(round+1)*15) {
			t.Errorf("hash %d of LC, must be %d", hash, sums(uint32(round+1)*15))
		}
		n := be.count()
		m.until("BE progresses", func() bool { return be.count() > n })
		m.until("the file is mended", func() bool {
			info, err := os.Stat(files[0])
			return err == nil && info.Size() < 100 && info.Size() > 1
		})
		late := m.start("be")
		m.joined(be, lc, late)
		late.finish()
	}
	for _, p := range []*process{be, lc} {
		if last, stderr := p.finish(); p == lc && last != "count 0" || stderr != "" {
			t.Errorf("last line %q, stderr %q", last, stderr)
		}
	}
}

// The only process that has the memory is stopped when another comes. Later they find each other.
func TestStoppedMember(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	m := newMachine(t, "")
	be := m.start("be")
	m.joined(be)
	be.runBestEffort()
	be.stop()
	lc := m.start("lc")
	m.until("LC joins without it", func() bool {
		all, err := segment.SnapshotsIn(m.segments()) // an error in it until then: nobody answers
		return err == nil && len(all) == 1 && slices.ContainsFunc(all[0].Peers, func(p segment.Peer) bool { return int(p.Pid) == lc.pid() })
	})
	lc.request(5, 3, "stream")
	be.signal(syscall.SIGCONT)
	m.joined(be, lc)
	m.yields(be)
	n := be.count()
	m.until("BE progresses", func() bool { return be.count() > n })
	lc.finish()
	be.finish()
}

// Somebody else made the directory. Once it is removed, those who wait for it join.
func TestSquatter(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	m := newMachine(t, "")
	if err := os.Mkdir(m.segments(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(m.segments(), 4711, 4711); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(m.dir, "log")
	m.environment = append(m.environment, "GPREEMPT_LOG=warn:"+log)
	p := m.start("lc")
	p.request(5, 3, "stream")
	said := func() string {
		text, _ := os.ReadFile(log)
		return string(text)
	}
	m.until("it says so", func() bool { return said() != "" })
	if err := os.Remove(m.segments()); err != nil {
		t.Fatal(err)
	}
	m.joined(p)
	p.request(5, 3, "stream")
	if last, stderr := p.finish(); last != "count 0" || stderr != "" {
		t.Errorf("last line %q, stderr %q", last, stderr)
	}
	if text := said(); strings.Count(text, "\n") != 1 || !strings.Contains(text, m.segments()+": unsafe segment: owned by user 4711, must be 0; have it removed") {
		t.Errorf("it says %q", text)
	}
}

// The log and other files of the library reach the limit of file sizes: no process ends by SIGXFSZ. Below what the helper process shares with its
// program there is no helper.
func TestFileSizeLimit(t *testing.T) {
	t.Parallel()
	for _, kilobytes := range []int{0, 8 << 10} {
		t.Run(fmt.Sprint(kilobytes), func(t *testing.T) {
			m := newMachine(t, `mechanisms = ["timeslice", "hold", "blp"]
hints.log = "`+filepath.Join(t.TempDir(), "hints")+`"
`)
			log := filepath.Join(m.dir, "log")
			other := m.start("be") // makes the segment
			m.joined(other)
			if err := os.WriteFile(log, make([]byte, max(0, 1024*kilobytes-1000)), 0o600); err != nil {
				t.Fatal(err)
			}
			m.environment = append(m.environment, "GPREEMPT_LOG=debug:"+log)
			limited := func(role string) *process {
				return m.startAs(m.command(role, "prlimit", fmt.Sprintf("--fsize=%d", 1024*kilobytes), worker))
			}
			lc, be := limited("lc"), limited("be")
			if kilobytes == 0 {
				for _, p := range []*process{lc, be} {
					p.request(2, 2, "stream")
					if _, stderr := p.finish(); stderr != "gpreempt: the limit of file sizes is too low for the helper process (ulimit -f); running without preemption\n" {
						t.Errorf("stderr %q", stderr)
					}
				}
				return
			}
			m.joined(lc, be)
			be.runBestEffort()
			for range 10 { // each request is a line of hints.log
				lc.request(2, 2, "stream")
			}
			for _, p := range []*process{lc, be} {
				p.finish()
			}
			if info, err := os.Stat(log); err != nil || info.Size() != int64(1024*kilobytes) {
				t.Errorf("the log did not meet its limit: %v, %v", info, err)
			}
		})
	}
}

func TestGroupByNumber(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	m := newMachine(t, "")
	m.configure(fmt.Sprintf("[segment]\ndirectory = %q\ngroup = \"%d\"\n", m.dir, os.Getgid()))
	be, lc := m.start("be"), m.start("lc")
	shared := segment.GroupDirectory(m.dir, os.Getgid())
	m.until("both join the group's segment", func() bool {
		all, err := segment.SnapshotsIn(shared)
		return err == nil && len(all) == 1 && len(all[0].Peers) == 2
	})
	for _, p := range []*process{lc, be} {
		if last, stderr := p.finish(); last != "count 0" || stderr != "" {
			t.Errorf("last line %q, stderr %q", last, stderr)
		}
	}
}

func TestCapture(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	_, lc := m.sharing()
	before := m.peer(lc).Counters.Holds
	for n := range 20 {
		var nodes, added int
		if lc.ask(fmt.Sprintf("capture %d", n+1), "nodes %d added %d", &nodes, &added); nodes != n+1 || added != 3*(n+1) {
			t.Errorf("%d kernels captured: graph of %d nodes, three launches added %d", n+1, nodes, added)
		}
	}
	if holds := m.peer(lc).Counters.Holds - before; holds == 0 {
		t.Error("no holds beside the captures")
	}
	lc.finish()
}

func TestControlRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_REFUSE_CONTROL=1")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	be.runBestEffort()
	lc.request(10, 3, "stream")
	for _, p := range []*process{be, lc} {
		m.until("the refusal is published", func() bool { return slices.Contains(m.peer(p).Fallbacks, "control_refused") })
	}
	if us := m.peer(be).TimesliceUs; us == 1 {
		t.Error("BE claims the timeslice that was refused")
	}
	lc.finish()
	be.finish()
}

func TestControlsWrapped(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_WRAP211=1")
	be, lc := m.sharing()
	if fallbacks := slices.Concat(m.peer(be).Fallbacks, m.peer(lc).Fallbacks); len(fallbacks) != 0 {
		t.Errorf("fallbacks %v", fallbacks)
	}
	lc.request(10, 3, "stream")
	lc.finish()
	m.until("BE gets its timeslice back", func() bool { return m.peer(be).TimesliceUs == 2048 })
	be.finish()
}
