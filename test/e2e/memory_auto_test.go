package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file tests "auto" in programs that configured nothing.

// If no process that could give memory has been there for a while, the library passes on the driver's refusal at once. Programs that cache
// memory give it back then, and go on.
func TestNobodyToWaitFor(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"none", "lc", ""} {
		t.Run("beside "+other, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
			p := m.startMemory("be")
			rest := uint64(370)
			if other != "none" {
				m.startFilled(other, 200<<20, 1)
				rest -= 220
			}
			p.filled("memory", rest<<20, 2)
			// Less than what contexts have: nobody publishes that. The first call may wait until it is clear that nobody comes.
			told := func() time.Duration {
				began := time.Now()
				if _, result := p.allocate("memory", 15<<20); result != outOfMemory {
					t.Fatalf("result %d", result)
				}
				return time.Since(began)
			}
			told()
			m.mostly("calls are told at once", func() bool { // where the machine is not slow
				time.Sleep(time.Second) // the next call is no attempt of the same wait
				took := told()
				t.Logf("told after %v", took)
				return took <= 2*time.Second
			})
			p.right(1)
		})
	}
}

// Memory in pools of the process itself is not free. It counts once and not twice, though the process may have filled the pools before it
// asks for the first time.
func TestFreeBesideItsOwnPools(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"async", "pool"} {
		m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
		p := m.startMemory("be")
		buffer := p.filled(how, 150<<20, 1)
		// Others see memory that no process publishes once the agent has measured it.
		m.until("it is measured", func() bool { return m.memory(p).Other >= 150<<20 })
		free, _ := p.free()
		if free < 200<<20 || free > 250<<20 {
			t.Errorf("%s: %d MiB of 400 are free beside 150", how, free>>20)
		}
		p.carriesOut("free %d", buffer)
		if now, _ := p.free(); now != free+150<<20 {
			t.Errorf("%s: %d MiB are free once the pool has given it back, before that %d", how, now>>20, free>>20)
		}
		p.finish()
	}
}

// A process that comes while memory of another one moves cannot measure the memory of processes that give none. Processes that are there
// already have measured it.
func TestFreeWhileMemoryMoves(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_COPY_GBS=0.05")
	m.startFilled("off", 120<<20, 1)
	m.joined(m.startMemory("lc")) // which lets others join while the next one is stopped
	moving := m.startMemory("be")
	if _, result := moving.allocate("memory", 150<<20); result != 0 {
		t.Fatalf("result %d", result)
	}
	m.until("it has measured", func() bool { return m.memory(moving).Other >= 120<<20 && m.memory(moving).Resident >= 150<<20 })
	m.request(moving, segment.AskedOut)
	m.until("its memory leaves", func() bool { return m.memory(moving).State == "leaving" })
	moving.stop() // for as long as the other one asks
	p := m.startMemory("be")
	free, _ := p.free()
	if free < 200<<20 || free > 280<<20 {
		t.Errorf("%d MiB of 400 are free beside 120", free>>20)
	}
	moving.signal(syscall.SIGCONT)
	p.finish()
}

// While the program exits, its runtime ends contexts unseen. The agent asks for no memory of theirs then: tools would report the error.
func TestNoQuestionsWhileTheProgramExits(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_TRACE="+trace)
	p := m.startMemory("be")
	p.filled("memory", 10<<20, 1)
	m.joined(p)
	questions := func() int {
		return strings.Count(traced(t, trace), " begin cuMemGetInfo")
	}
	before := questions()
	m.until("the agent asks now and then", func() bool { return questions() >= before+3 })
	p.say("exit")
	p.hears("exiting")
	before = questions()
	m.beats(p, 3)
	if after := questions(); after > before+1 { // one may have begun before the exit
		t.Errorf("%d questions meanwhile", after-before)
	}
	p.finish()
}

// beats waits for so many heartbeats of an agent.
func (m *machine) beats(p *process, count int) {
	m.t.Helper()
	last := m.peer(p).HeartbeatAgeNs
	m.until("its heart beats", func() bool {
		age := m.peer(p).HeartbeatAgeNs
		if age < last {
			count--
		}
		last = age
		return count <= 0
	})
}

// A CUDA runtime makes its primary context current before the driver has initialised it. The agent asks for no memory of it until then: tools
// would report the error.
func TestNoQuestionsBeforeTheContextIsInitialised(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_TRACE="+trace, "SIMCUDA_LATE_CONTEXT=1")
	stranger := m.startMemory("off") // gives nothing
	stranger.hears("current")
	stranger.say("initialise")
	stranger.hear()
	stranger.say("go on")
	stranger.filled("memory", 120<<20, 1)
	questions := func() int {
		return strings.Count(traced(t, trace), " begin cuMemGetInfo")
	}
	before := questions()
	p := m.startMemory("be")
	p.hears("current")
	m.joined(p)
	m.beats(p, 3)
	if early := questions() - before; early != 0 {
		t.Errorf("%d questions before the context is initialised", early)
	}
	var free uint64
	p.ask("initialise", "free %d", &free)
	if free < 200<<20 || free > 260<<20 {
		t.Errorf("%d MiB of 400 are free beside 120", free>>20)
	}
	m.until("the program's question lets the agent ask, too", func() bool { return questions() >= before+1+3 })
	p.say("go on")
	p.filled("memory", 10<<20, 1)
	p.finish()
}

// The first answer about free memory leaves out the memory of processes that give none, at any level. That holds though the driver's answer
// to the agent takes its time.
func TestFirstQuestionForFreeMemory(t *testing.T) {
	t.Parallel()
	for _, slow := range []string{"", "cuMemGetInfo:200000"} {
		m := newSwapping(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_CALL_US="+slow)
		m.startFilled("off", 120<<20, 1)
		for _, role := range []string{"be", "lc"} {
			p := m.startMemory(role)
			if free, _ := p.free(); free < 200<<20 || free > 260<<20 {
				t.Errorf("%s, %q: %d MiB of 400 are free beside 120", role, slow, free>>20)
			}
			p.finish()
		}
	}
}

// Threads of the library that begin before the driver is initialised ask it only afterwards that a capture elsewhere does not hinder them.
// Before, the driver refuses that, and later calls of theirs would end captures of the program.
func TestThreadsThatBeginBeforeTheDriver(t *testing.T) {
	t.Parallel()
	const call = " begin cuThreadExchangeStreamCaptureMode "
	for _, role := range []string{"be", "lc"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			trace := filepath.Join(t.TempDir(), "trace")
			m := newSwapping(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20", "SIMCUDA_TRACE="+trace)
			p := m.startMemory(role)
			p.filled("memory", 10<<20, 1)
			p.finish()
			lines := traced(t, trace)
			before, after, begun := strings.Cut(lines, " end cuInit ")
			if !begun || !strings.Contains(after, call) {
				t.Fatalf("no thread tells the driver anything: %s", lines)
			}
			if n := strings.Count(before, call); n != 0 {
				t.Errorf("%d threads tell the driver too early", n)
			}
		})
	}
}

// A control pipe that a daemon left is no MPS server, and not all servers share a TSG. The log says that memory stays for it.
func TestPipeThatADaemonLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		environment []string
		says        bool
	}{{[]string{mpsPipe(t)}, true}, {[]string{mpsPipe(t), "SIMCUDA_MPS=1"}, false}, {[]string{mpsPipe(t), "SIMCUDA_MPS=sliced"}, true}, {nil, false}} {
		m := newMachine(t, "", c.environment...)
		p := m.startMemory("be")
		p.filled("memory", 10<<20, 1)
		m.joined(p)
		if _, stderr := p.finish(); strings.Contains(stderr, "a control pipe of an MPS server is there") != c.says {
			t.Errorf("%v: %s", c.environment, stderr)
		}
	}
}

// A best-effort process that people raise waits no longer for memory than others of its level.
func TestWaitOfAProcessThatIsRaised(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MEMORY_MB=400", "SIMCUDA_CONTEXT_MB=20")
	if m.broker == "" {
		m.startBroker()
	}
	m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n[memory]\nwait_ms = 500\n", m.dir, m.broker))
	has, p := m.startFilled("be", 250<<20, 1), m.startFilled("be", 20<<20, 2)
	m.joined(has)
	m.joined(p)
	if out, err := exec.Command(built("gpreempt"), "set", fmt.Sprint(p.pid()), "--priority", "lc", "--config", m.config).CombinedOutput(); err != nil {
		t.Fatalf("set: %v, %s", err, out)
	}
	m.until("it knows", func() bool { return m.memory(p).IdleAfterNs == 0 }) // such a process does not go when it idles
	var launched int
	if has.ask("blocked 0", "launched %d", &launched); launched != 0 { // its memory cannot go
		t.Fatalf("launched %d", launched)
	}
	if _, result := p.allocate("memory", 200<<20); result != outOfMemory {
		t.Errorf("result %d", result)
	}
	has.carriesOut("unblock")
	has.carriesOut("wait")
	has.right(1)
	p.right(1)
}
