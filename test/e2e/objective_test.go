package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// engine is a served model as testdata/engine.c has it.
type engine struct {
	*process
	steps int // that it made, once it has ended
}

// startEngine starts an engine whose steps take so long; options are engine.c's.
func (m *machine) startEngine(objective string, stepUs int, options ...string) *engine {
	m.t.Helper()
	cmd := m.command("lc", compile(m.t, "testdata/engine.c"), append([]string{fmt.Sprint(stepUs)}, options...)...)
	if objective != "" {
		cmd.Env = append(cmd.Env, "GPREEMPT_OBJECTIVE="+objective)
	}
	return &engine{process: m.startAs(cmd)}
}

// until waits for a condition of the engine's slot, then ends the engine. Each of its steps has to have run once.
func (e *engine) until(what string, condition func(segment.Peer) bool) (stderr string) {
	e.m.t.Helper()
	e.m.until(what, func() bool { return condition(e.m.peer(e.process)) })
	last, stderr := e.finish()
	if _, err := fmt.Sscanf(last, "steps %d", &e.steps); err != nil {
		e.m.t.Fatalf("%q: %v; stderr %s", last, err, stderr)
	}
	return stderr
}

func lends(p segment.Peer, slots uint64) bool {
	return p.Objective != nil && p.Objective.Slots >= slots
}

// newBestEffort starts best-effort work that does not end.
func (m *machine) newBestEffort() *process {
	m.t.Helper()
	be := m.start("be")
	be.runBestEffort()
	m.joined(be)
	return be
}

// An engine lends slots out of its objective, however it submits its steps and learns of their results.
func TestObjectiveLends(t *testing.T) {
	t.Parallel()
	// A busy machine makes slots late, which stops lending for a while.
	for _, options := range []string{"", "sync", "kernels", "sync kernels", "says", "sync says"} {
		t.Run(strings.ReplaceAll(options, " ", "-"), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			m.newBestEffort()
			var ran uint64
			var last segment.Peer
			e := m.startEngine("step=1s", 2000, strings.Fields(options)...)
			e.until("slots are lent, and best effort runs in them", func(p segment.Peer) bool {
				for _, peer := range m.peers() {
					if peer.Role == "be" {
						ran = peer.RanNs
					}
				}
				last = p
				return lends(p, 5) && p.Objective.Steps > 20 && ran > 0 && (p.Objective.State == "lends" || p.Objective.State == "late")
			})
			o := last.Objective
			if o.ObjectiveNs != 1e9 || o.LentNs == 0 {
				t.Errorf("%+v", o)
			}
			if o.Steps > uint64(e.steps) {
				t.Errorf("%d steps were found of %d", o.Steps, e.steps)
			}
		})
	}
}

// Under MPS best effort runs beside the engine for as long as its objective allows, and a launch waits only where that leaves credit over. The
// window is published again behind each slot: else nothing would be stopped any more.
func TestObjectiveUnderMPS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		objective string
		held      bool // launches wait, too
	}{{"step=1s", true}, {"step=1ms", false}} {
		t.Run(c.objective, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "", "SIMCUDA_MPS=1", mpsPipe(t))
			be := m.newBestEffort()
			var last segment.Peer
			e := m.startEngine(c.objective, 2000)
			e.until("slots are lent, and best effort waits between them", func(p segment.Peer) bool {
				last = p
				return p.Objective != nil && p.Objective.Steps > 300 && m.peer(be).Counters.GateWaits > 5 && (!c.held || lends(p, 5))
			})
			if o := last.Objective; c.held != (o.Slots > 0) || c.held != (o.LentNs > 0) {
				t.Errorf("%+v", o)
			}
		})
	}
}

// The library finds each step once, while the window stays open: each but the one under way when the first borrower came. On a busy machine the
// engine makes many before its process joins, so it gets further tries.
func TestStepsAreFound(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.newBestEffort()
	m.until("nearly all steps are found", func() bool {
		var first, last uint64
		e := m.startEngine("step=1ms", 2000) // it cannot be held: nothing is lent
		e.until("many steps are found, too long ones", func(p segment.Peer) bool {
			if p.Objective == nil {
				return false
			}
			if last = p.Objective.Steps; first == 0 {
				first = last
			}
			return last >= first+200 && p.Objective.State == "unattainable"
		})
		if int(last) > e.steps {
			t.Errorf("%d steps were found of %d", last, e.steps)
		}
		peer := m.gone(e.pid())
		t.Logf("of %d steps: %+v", e.steps, peer.Objective)
		if peer.Objective == nil || peer.Objective.Slots != 0 {
			t.Error("it says nothing of its steps, or lent slots")
		}
		return peer.Objective != nil && int(peer.Objective.Steps) >= e.steps*9/10
	})
}

// An engine may split its batch, and wait for each part: that is one step, once the library knows how long it looks at results. On a busy
// machine the engine may not go on in time, so it gets further tries.
func TestPartsOfSteps(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_COPY_GBS=1") // so that the copy of the next part's input takes 0.1 ms
	m.newBestEffort()
	m.until("parts end no steps", func() bool {
		e := m.startEngine("step=1ms", 2000, "parts")
		e.until("many steps are found", func(p segment.Peer) bool { return p.Objective != nil && p.Objective.Steps > 600 })
		peer := m.gone(e.pid())
		t.Logf("of %d steps: %+v", e.steps, peer.Objective)
		return peer.Objective != nil && int(peer.Objective.Steps) < e.steps*11/10 && int(peer.Objective.Steps) > e.steps*6/10 // none in the first second
	})
}

// gone is the slot of a process that has ended.
func (m *machine) gone(pid int) segment.Peer {
	m.t.Helper()
	for _, s := range m.snapshots() {
		for _, peer := range append(s.Gone, s.Peers...) {
			if int(peer.Pid) == pid {
				return peer
			}
		}
	}
	return segment.Peer{}
}

// Without an objective nothing is counted or lent; nor does a best-effort process have one.
func TestNoObjective(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.newBestEffort()
	for _, objective := range []string{"", "none"} {
		e := m.startEngine(objective, 1000)
		e.until("windows are open beside best effort", func(p segment.Peer) bool {
			if p.Objective != nil {
				t.Errorf("objective %q: %+v", objective, p.Objective)
			}
			return p.Counters.Windows > 0 && p.Counters.Holds > 0
		})
	}
	cmd := m.command("be", compile(t, "testdata/engine.c"), "1000")
	cmd.Env = append(cmd.Env, "GPREEMPT_OBJECTIVE=step=1s")
	e := &engine{process: m.startAs(cmd)}
	e.until("a best-effort engine has turns", func(p segment.Peer) bool {
		if p.Objective != nil {
			t.Errorf("best effort: %+v", p.Objective)
		}
		return p.Counters.Turns > 3
	})
}

// NVTX ranges with the configured name say where steps end, alone and beside another tool. NVTX may be there before CUDA.
func TestStepsEndWithRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		objective, settings, options string
		beside                       bool // another tool
	}{
		{"step=1s,range=decode", "", "silent pushes", false},
		{"step=1s", "[objective]\nstep_range = \"decode\"\n", "silent starts", false},
		{"range=decode", "[objective]\nstep_ms = 1000\n", "silent domain sync", false},
		{"step=1s,range=decode", "", "silent pushes early", false},
		{"step=1s,range=decode", "", "silent pushes", true},
		{"step=1s", "[objective]\nstep_range = \"decode\"\n", "silent pushes early", true},
	} {
		t.Run(fmt.Sprintf("%s-%s-%t", c.objective, strings.ReplaceAll(c.options, " ", "-"), c.beside), func(t *testing.T) {
			t.Parallel()
			var tool []string
			if c.beside {
				tool = append(tool, "NVTX_INJECTION64_PATH="+compile(t, "testdata/nvtx_tool.c", "-shared", "-fPIC"))
			}
			m := newMachine(t, c.settings, tool...)
			m.newBestEffort()
			e := m.startEngine(c.objective, 2000, strings.Fields(c.options)...)
			var last segment.Peer
			stderr := e.until("slots are lent", func(p segment.Peer) bool {
				last = p
				return lends(p, 5) && p.Objective.Steps > 20 && p.Objective.State == "lends"
			})
			if o := last.Objective; o.Steps > uint64(e.steps) {
				t.Errorf("%d steps were found of %d: %+v", o.Steps, e.steps, o)
			}
			if heard := fmt.Sprintf("tool: begun %d ended %d\n", 3*e.steps, 3*e.steps); strings.Contains(stderr, heard) != c.beside {
				t.Errorf("other tool %t: %s", c.beside, stderr)
			}
		})
	}
}

// Ranges of other names, and those that nobody named, end no steps.
func TestOtherRangesEndNoSteps(t *testing.T) {
	t.Parallel()
	for _, objective := range []string{"step=1s,range=prefill", "step=1s"} {
		m := newMachine(t, "")
		m.newBestEffort()
		e := m.startEngine(objective, 1000, "silent", "pushes", "starts", "domain", "early")
		e.until("no step is found", func(p segment.Peer) bool {
			return p.Objective != nil && p.Objective.State == "stepless" && p.Objective.Steps == 0
		})
	}
}

// An engine whose steps cannot be found goes first, and says so once in its log.
func TestStepless(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.newBestEffort()
	e := m.startEngine("step=1s", 1000, "silent")
	e.says("no end of a step", 1)
	stderr := e.until("it is counted as such", func(p segment.Peer) bool { return p.Objective != nil && p.Objective.State == "stepless" })
	if n := strings.Count(stderr, "no end of a step"); n != 1 {
		t.Errorf("said %d times: %s", n, stderr)
	}
}

// A service with one request a step lends nothing: its slack is a lack of requests.
func TestObjectiveOfSingleSteps(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.newBestEffort()
	e := m.startEngine("step=1s", 2000, "rests")
	e.until("many steps are found", func(p segment.Peer) bool { return p.Objective != nil && p.Objective.Steps >= 30 })
	if peer := m.gone(e.pid()); peer.Objective == nil || peer.Objective.State != "rests" || peer.Objective.Slots != 0 {
		t.Errorf("%+v", peer.Objective)
	}
}

// A rank of an engine on several GPUs lends with an objective in time, and nothing with a relative one. People may set that later.
func TestObjectiveOfRanks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, options string }{{"slowdown=3", "rank kernels"}, {"none", "rank kernels"}, {"slowdown=3", "rank"}, {"none", "rank"}} {
		t.Run(c.first+"-"+strings.ReplaceAll(c.options, " ", "-"), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			m.newBestEffort()
			e := m.startEngine(c.first, 2000, strings.Fields(c.options)...)
			if c.first == "none" {
				m.until("it is at work", func() bool { return m.peer(e.process).Counters.Windows > 0 })
				m.does(e.process, "", "set", "--objective", "slowdown=3")
			}
			m.until("its steps are found", func() bool {
				o := m.peer(e.process).Objective
				return o != nil && o.State == "ranks" && o.Steps > 50
			})
			if o := m.peer(e.process).Objective; o.Slots != 0 {
				t.Errorf("%+v", o)
			}
			m.does(e.process, "", "set", "--objective", "step=1s")
			e.until("it lends", func(p segment.Peer) bool { return lends(p, 3) })
		})
	}
}

// A slot ends when best effort has no work, and a stopped best-effort process holds nobody up.
func TestObjectiveBesideStopped(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be := m.newBestEffort()
	var steps uint64
	stopped := false
	e := m.startEngine("step=1s", 2000)
	e.until("steps go on beside a stopped process", func(p segment.Peer) bool {
		if !lends(p, 3) {
			return false
		}
		if !stopped {
			be.stop()
			stopped, steps = true, p.Objective.Steps
		}
		return p.Objective.Steps > steps+50
	})
	if err := be.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// Two engines lend at the same time, or best effort gets nothing.
func TestTwoEnginesLend(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.newBestEffort()
	first, second := m.startEngine("step=1s", 2000), m.startEngine("step=1s", 3000)
	first.until("both lend", func(p segment.Peer) bool {
		both := 0
		for _, peer := range m.peers() {
			if lends(peer, 3) {
				both++
			}
		}
		return both == 2 && p.Alive
	})
	second.until("the other one goes on", func(p segment.Peer) bool { return p.Alive })
}

// A value that makes no sense is named in one line, and the program runs on.
func TestObjectiveRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	for _, value := range []string{"slowdown=0.5", "step=20", "first=1s", "slowdown=2,step=1ms", "p=99", "nonsense", "step=1ms,step=2ms", "range=", "step=1ms,range=a,range=b"} {
		e := m.startEngine(value, 100)
		e.says("GPREEMPT_OBJECTIVE", 1)
		_, stderr := e.finish()
		if n := strings.Count(stderr, "GPREEMPT_OBJECTIVE: objective "); n != 1 || !strings.Contains(stderr, "running without preemption") {
			t.Errorf("%s: said %d times: %s", value, n, stderr)
		}
	}
}
