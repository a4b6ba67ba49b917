package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// police gives the machine a broker with a policy.
func (m *machine) police(settings, policy string) {
	m.t.Helper()
	if m.broker == "" {
		m.configure(fmt.Sprintf("%s[segment]\ndirectory = %q\nbroker = %q\n", settings, m.dir, m.startBroker()))
	}
	if err := os.WriteFile(filepath.Join(m.broker, "policy.toml"), []byte(policy), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.runBroker()
}

// inFile waits until the file has this process and no other, at a level.
func (m *machine) inFile(p *process, level uint32) {
	m.t.Helper()
	m.until(fmt.Sprintf("the file has it at level %d", level), func() bool {
		all, err := segment.SnapshotsIn(m.segments())
		return err == nil && len(all) == 1 && len(all[0].Peers) == 1 && int(all[0].Peers[0].Owner) == p.pid() && all[0].Peers[0].Level == level
	})
}

// policyLine is what `gpreempt policy` says of a process.
func (m *machine) policyLine(p *process) (words []string) {
	m.t.Helper()
	for line := range strings.Lines(m.gpreempt("policy").stdout) {
		if words := strings.Fields(line); len(words) > 1 && words[1] == fmt.Sprint(p.pid()) {
			return words
		}
	}
	return nil
}

// policySays waits until `gpreempt policy` begins what it says of a process with these words; "" is any word. On a loaded machine a broker
// may take longer to answer than the command waits.
func (m *machine) policySays(p *process, want ...string) {
	m.t.Helper()
	m.until(fmt.Sprintf("the policy is shown as %q", want), func() bool {
		got := m.policyLine(p)
		for i, word := range want {
			if i >= len(got) || word != "" && got[i] != word {
				return false
			}
		}
		return true
	})
}

// policyHas waits until what `gpreempt policy` says of a process has these words in it.
func (m *machine) policyHas(p *process, want string) {
	m.t.Helper()
	m.until(fmt.Sprintf("the policy is shown with %q", want), func() bool {
		return strings.Contains(strings.Join(m.policyLine(p), " "), want)
	})
}

// Whom the policy refuses is best effort among the programs of its user, also where it was latency-critical before there was a broker.
func TestRefusedIsBestEffort(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			m.police("", "[[rule]]\nname = 'strangers'\nwhen = 'true'\nadmit = false\n")
			if late {
				if err := m.running.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = m.running.Wait()
			}
			p := m.start("lc")
			p.request(1, 1, "stream")
			if late {
				m.inFile(p, 0)
				m.runBroker()
			} else {
				p.says("the broker gives this process another level", 1)
			}
			m.inFile(p, 7)
			p.says("the broker does not take this process for now: it shares the GPU with programs of this user only", 1)
			p.says("the policy does not admit it", 1)
			m.policySays(p, "", "", "", "worker", "strangers", "be", "refused")
			if _, said := p.finish(); strings.Count(said, "does not admit it") != 1 {
				t.Errorf("it said %s", said)
			}
		})
	}
}

// Whom the next broker refuses is best effort from then on: the level that the one before gave it does not come back.
func TestRefusedByTheNextBroker(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "GPREEMPT_LOG=info")
	m.police("", "[default]\nlevel = 'lc'\n")
	p := m.start("lc")
	p.request(1, 1, "stream")
	m.joined(p)
	m.police("", "[[rule]]\nname = 'strangers'\nwhen = 'true'\nadmit = false\n")
	p.says("the next broker does not take this process: it is best effort", 1)
	p.says("the policy does not admit it", 1)
	p.request(1, 1, "stream")
	m.policySays(p, "", "", "", "", "strangers", "", "refused")
	if _, said := p.finish(); strings.Count(said, "another level") != 1 || !regexp.MustCompile(`warn the broker gives this process another level .*priority=7`).MatchString(said) {
		t.Errorf("it said %s", said)
	}
}

// A program that the policy gives no role runs as without the library, which says so once. Others and people see that it has none.
func TestRefusedIsOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.brokers = []string{"LD_LIBRARY_PATH=" + driverPath(), "SIMCUDA_DIR=" + filepath.Join(m.dir, "sim")}
	m.police("", "[default]\nlevel = 'lc'\n[[rule]]\nname = 'strangers'\nwhen = 'wanted == 3'\nadmit = false\nrefused = 'off'\n")
	be, lc := m.sharing()
	off := m.start("3")
	off.runBestEffort()
	m.until("it works", func() bool { return off.count() > 0 })
	off.says("the policy gives it no role: it runs as without gpreempt", 1)
	m.until("the broker takes it for what it is", func() bool { return m.peer(be).Lacks&configs.FallbackOthers != 0 })
	if m.peer(off).Alive || len(m.peers()) != 2 {
		t.Errorf("%+v", m.peers())
	}
	if _, err := os.Stat(m.segments()); !os.IsNotExist(err) {
		t.Errorf("it made a file: %v", err)
	}
	m.policySays(off, "-", "", "", "worker", "strangers", "off", "refused")
	const why = `off, as the rule "strangers" of the broker says`
	m.until("top says it", func() bool { return strings.Contains(m.gpreempt("top", "--once").stdout, why) })
	counted := m.gpreempt("top", "--prometheus").stdout
	for _, want := range []string{`gpreempt_broker_up 1`, `gpreempt_broker_members 2`, `gpreempt_broker_joins_total 2`, `gpreempt_broker_refusals_total{reason="policy"} 0`} {
		if !strings.Contains(counted, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, counted)
		}
	}
	// The program asks twice where it has to wait.
	if !regexp.MustCompile(`\ngpreempt_broker_refusals_total\{reason="off"\} [12]\n`).MatchString(counted) {
		t.Errorf("nobody is counted as off:\n%s", counted)
	}
	if said := m.gpreempt("doctor"); !strings.Contains(said.stdout, why) {
		t.Errorf("doctor says\n%s", said.stdout)
	}
	m.runBroker() // the next broker knows of it what anybody can see
	m.joined(be, lc)
	n := off.count()
	m.until("it gets on", func() bool { return off.count() > n })
	if _, said := off.finish(); strings.Count(said, "no role") != 1 || strings.Count(said, "\n") != 1 {
		t.Errorf("it said %s", said)
	}
	if left := member.Off(m.broker); len(left) != 0 {
		t.Errorf("when it has ended the broker still says %v", left)
	}
}

// Programs of one user divide what a rule gives the user. A newcomer finds the memory that the others left, and a program that ends leaves
// its part.
func TestMemoryOfAUser(t *testing.T) {
	t.Parallel()
	m := newMachine(t, swap, "SIMCUDA_CONTEXT_MB=4")
	m.police(swap, "[default]\nmemory_limit = '1000MB'\nshare = 0.5\nper = 'user'\n")
	totals := func(p *process, mib uint64) {
		t.Helper()
		m.until(fmt.Sprintf("it may have %d MiB", mib), func() bool { _, total := p.free(); return total == mib<<20 })
	}
	one := m.startMemory("be")
	totals(one, 1000)
	one.filled("memory", 700<<20, 1)
	m.until("it is published", func() bool { return m.memory(one).Resident >= 700<<20 })
	had := m.memory(one)
	left := 1000 - (had.Resident+had.Swapped+had.Pinned+1<<20-1)>>20
	two := m.startMemory("be")
	totals(two, left)
	totals(one, 1000-left)
	if _, result := one.allocate("memory", 10<<20); result == 0 {
		t.Error("the first has more than is left")
	}
	if _, result := two.allocate("memory", (left+1)<<20); result == 0 {
		t.Error("the second has more than the first has left")
	}
	two.filled("memory", (left-20)<<20, 2)
	m.policyHas(two, fmt.Sprintf("0.25 - %d MiB user", left))
	one.right(1)
	one.finish()
	totals(two, 1000)
	two.right(1)
	two.finish()
}

// A rule may give each program a part of the GPU's memory, also a latency-critical one.
func TestPartOfTheMemory(t *testing.T) {
	t.Parallel()
	m := newMachine(t, swap, "SIMCUDA_CONTEXT_MB=4", "SIMCUDA_MEMORY_MB=2000")
	m.police(swap, "[default]\nlevel = 'lc'\nmemory_limit = '40%'\n")
	for _, role := range []string{"lc", "be"} {
		p := m.startMemory(role)
		m.until("it may have its part", func() bool { _, total := p.free(); return total == 800<<20 })
		if _, result := p.allocate("memory", 801<<20); result == 0 {
			t.Errorf("%s has more than its part", role)
		}
		p.filled("memory", 700<<20, 1)
		if _, result := p.allocate("memory", 100<<20); result == 0 {
			t.Errorf("%s has more than its part in two pieces", role)
		}
		m.policyHas(p, " 40% ")
		p.right(1)
		p.finish()
	}
}

// Two programs of one user, which take turns, have as much in their turns as one alone, beside a service that always has work. So together
// they have the share that a rule gives the user.
func TestShareOfAUser(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.police("", "[default]\nlevel = 'lc'\n[[rule]]\nname = 'be'\nwhen = 'wanted == 7'\nshare = 0.34\nper = 'user'\n")
	one, lc := m.start("be"), m.start("lc")
	one.runBestEffort()
	m.joined(one, lc)
	lc.say("lc 1000000 10 4000 0 stream")
	alone := uint32(0)
	// A timeslice is a power of two: 32.8 ms for 0.34 of the time (19 to 28 are needed, as the service's windows come), 16.4 ms for
	// half of that.
	m.until("it has its share", func() bool { // once the service has work all the time: less than that, where it left some itself before
		alone = m.peer(one).TimesliceUs
		return alone > 20_000 && m.peer(one).Counters.Boosts > 0
	})
	two := m.start("be")
	two.runBestEffort()
	m.joined(two)
	m.until("both have it", func() bool { // the second had half of it, if it had its half of the share in its turns only
		return m.peer(one).TimesliceUs >= alone && m.peer(two).TimesliceUs >= alone && m.peer(two).Counters.Turns > 5
	})
	for _, p := range []*process{one, two} {
		m.policyHas(p, " 0.17 - - user ")
		n := p.count()
		m.until("it gets on", func() bool { return p.count() > n })
	}
}
