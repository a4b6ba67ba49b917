package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// wanted is the objective that an engine's slot says is in force; "": none.
func (e *engine) wanted() string {
	e.m.t.Helper()
	if o := e.m.peer(e.process).Objective; o != nil {
		return o.Wanted
	}
	return ""
}

// slots waits until so many more slots are lent.
func (e *engine) slots(more uint64) {
	e.m.t.Helper()
	from := e.m.peer(e.process).Objective
	e.m.until("slots are lent", func() bool {
		p := e.m.peer(e.process)
		return from == nil && lends(p, more) || from != nil && lends(p, from.Slots+more)
	})
}

// works waits until the engine has made some windows' work, whether its steps are counted or not.
func (e *engine) works() {
	e.m.t.Helper()
	from := e.m.peer(e.process).Counters.WindowNs
	e.m.until("the engine works", func() bool {
		p := e.m.peer(e.process)
		return p.Counters.WindowNs > from || p.WindowOpen && p.RanAtNs > p.WindowOpenedNs+20e6
	})
}

// An objective that people set is in force at once in a program that runs, as is that there is none.
func TestSetObjective(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"file", "broker"} {
		if by == "file" && byBroker {
			continue // all of this run is by brokers
		}
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "", "GPREEMPT_LOG=info")
			if by == "broker" {
				m.police("", "[default]\nlevel = 'lc'\n")
			}
			m.newBestEffort()
			e := m.startEngine("", 2000)
			m.joined(e.process)
			m.until("its window opened", func() bool { return m.peer(e.process).Counters.Windows > 0 })
			if o := m.peer(e.process).Objective; o != nil {
				t.Errorf("without an objective: %+v", o)
			}
			m.does(e.process, " has objective step=1000ms\n", "set", "--objective", "step=1s")
			e.slots(3)
			m.until("top shows it", func() bool { // on a busy machine it may rest
				e.works()
				table := m.gpreempt("top", "--once").stdout
				return strings.Contains(table, "step=1000ms") && strings.Contains(table, "lends what the objective leaves")
			})
			m.does(e.process, "", "set", "--objective", "first=100ms,slowdown=20,p=95")
			m.until("the next one is in force", func() bool { return e.wanted() == "first=100ms,slowdown=20,p=95" })
			m.does(e.process, " has objective none\n", "set", "--objective", "none")
			m.until("there is none", func() bool { return e.wanted() == "" && m.peer(e.process).Objective.State == "none" })
			before := m.peer(e.process).Objective
			e.works()
			if after := m.peer(e.process).Objective; after.Slots > before.Slots+1 || after.Steps != before.Steps || after.ObjectiveNs != 0 {
				t.Errorf("with none: %+v, and then %+v", before, after)
			}
			m.does(e.process, " has objective step=1000ms\n", "set", "--objective", "step=1s")
			e.slots(3)
			stderr := e.until("slots are lent again", func(p segment.Peer) bool { return lends(p, 6) })
			for text, times := range map[string]int{"info another objective ": 4, "objective=step=1000ms": 2, "objective=none": 1, "objective=first=100ms,slowdown=20,p=95": 1} {
				if n := strings.Count(stderr, text); n != times {
					t.Errorf("%q was said %d times, must be %d: %s", text, n, times, stderr)
				}
			}
		})
	}
}

// An objective set by people counts before the program's own from its start, until they take it back. Meanwhile the program's own calls
// have no effect.
func TestSetObjectiveIsTakenBack(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "GPREEMPT_LOG=info")
	m.newBestEffort()
	e := m.startEngine("step=2s", 2000)
	e.slots(1)
	m.does(e.process, " has objective step=1000ms\n", "set", "--objective", "step=1s")
	m.until("it is set", func() bool { return e.wanted() == "step=1000ms" })
	m.does(e.process, "process ", "set", "--clear")
	m.until("it is as before", func() bool { return e.wanted() == "step=2000ms" })
	if stderr := e.until("it works", func(p segment.Peer) bool { return lends(p, 3) }); strings.Count(stderr, "the process's own objective again") != 1 {
		t.Errorf("it said %s", stderr)
	}
}

// An objective that cannot be set is refused with a list of what is allowed, and changes nothing.
func TestSetObjectiveRefuses(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be := m.newBestEffort()
	e := m.startEngine("step=2s", 2000)
	m.joined(e.process)
	pid := fmt.Sprint(e.pid())
	for _, value := range []string{"slowdown=0.5", "step=20", "first=1s", "", "p=99", "nonsense", "slowdown=2,step=1ms"} {
		if got := m.gpreempt("set", pid, "--objective", value); got.status != 2 || !strings.Contains(got.stderr, "--objective: objective ") || !strings.Contains(got.stderr, configs.ObjectiveAllowed) {
			t.Errorf("%q: %+v", value, got)
		}
	}
	refused := map[string][]string{"must stand alone": {"set", pid, "--objective", "none", "--clear"}}
	if !byBroker {
		refused["is best effort, must be of a level from 0 (lc) to 6"] = []string{"set", fmt.Sprint(be.pid()), "--objective", "slowdown=2"}
		refused["only --objective and --clear can be set"] = []string{"set", pid, "--objective", "slowdown=2", "--share", "0.5"}
	}
	for want, arguments := range refused {
		if got := m.gpreempt(arguments...); got.status == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: %+v, want %q", arguments, got, want)
		}
	}
	if got := e.wanted(); got != "step=2000ms" {
		t.Errorf("its objective is %q", got)
	}
	e.until("it lends", func(p segment.Peer) bool { return lends(p, 1) })
}

// A request of a process that is stopped stands: it has it as soon as it runs on.
func TestSetObjectiveOfStopped(t *testing.T) {
	t.Parallel()
	if byBroker {
		return // there is nothing to wait for: the broker has it
	}
	m := newMachine(t, "")
	m.newBestEffort()
	e := m.startEngine("", 2000)
	m.joined(e.process)
	e.stop()
	if got := m.gpreempt("set", fmt.Sprint(e.pid()), "--objective", "step=1s"); got.status != 1 || !strings.Contains(got.stderr, "has not answered; the request stands") {
		t.Errorf("%+v", got)
	}
	if err := e.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	e.until("it has it", func(p segment.Peer) bool { return p.Objective != nil && p.Objective.Wanted == "step=1000ms" })
}

// A policy says what objective its services have, at their start and when it changes. They cannot have another one.
func TestPolicyOfObjectives(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "GPREEMPT_LOG=info")
	rule := "[default]\nlevel = 'be'\n[[rule]]\nname = 'services'\nwhen = 'wanted == 0'\nlevel = 'lc'\nobjective = '%s'\n"
	m.police("", fmt.Sprintf(rule, "step=1s"))
	m.newBestEffort()
	e := m.startEngine("none", 2000)
	e.slots(2)
	if got := m.policyLine(e.process); len(got) < 13 || got[4] != "services" || got[12] != "step=1000ms" {
		t.Errorf("the policy is shown as %q", got)
	}
	m.does(e.process, "", "set", "--objective", "slowdown=3") // root may, by the administrator's socket
	m.until("it is set", func() bool { return e.wanted() == "slowdown=3" })
	if got := m.policyLine(e.process); len(got) < 13 || got[12] != "slowdown=3*" {
		t.Errorf("the policy is shown as %q", got)
	}
	m.does(e.process, "process ", "set", "--clear")
	m.until("it is the policy's", func() bool { return e.wanted() == "step=1000ms" })
	e.until("it lends", func(p segment.Peer) bool { return lends(p, 3) })
}

// The range of an objective does not count in a program that begins as best effort, which says so.
func TestStepRangeOfBestEffort(t *testing.T) {
	t.Parallel()
	const said = "this process begins as best effort: its steps do not end with the NVTX range"
	m := newMachine(t, "[objective]\nstep_range = \"decode\"\n", "GPREEMPT_LOG=info")
	for role, times := range map[string]int{"be": 1, "7": 1, "lc": 0, "6": 0} {
		p := m.start(role)
		p.says("preemption is on", 1)
		if _, stderr := p.finish(); strings.Count(stderr, said) != times {
			t.Errorf("%s: not said %d times: %s", role, times, stderr)
		}
	}
}

// A program that a broker raises from best effort has the objective that was set meanwhile, and none below.
func TestObjectiveFollowsTheLevel(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "GPREEMPT_LOG=info")
	m.police("", "[default]\nlevel = 'lc'\n")
	m.newBestEffort()
	e := m.startEngine("step=1s", 2000)
	e.slots(1)
	m.does(e.process, "", "set", "--priority", "be")
	m.until("it is best effort", func() bool { return m.peer(e.process).Level == 7 && e.wanted() == "" })
	m.does(e.process, "", "set", "--objective", "step=2s")
	e.says("another objective, for when this process is no longer best effort", 1)
	m.does(e.process, "", "set", "--priority", "lc")
	m.until("it has its objective", func() bool { return e.wanted() == "step=2000ms" })
	e.slots(1)
	e.until("it goes on", func(p segment.Peer) bool { return p.Alive })
}
