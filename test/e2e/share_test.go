package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// within says whether a part is another one, as exactly as a loaded machine allows. A test asks until it is.
func within(part, of float64) bool { return part >= 0.8*of && part <= 1.15*of }

// alone is best effort that works with a GPU of its own.
func alone(t *testing.T) *process {
	t.Helper()
	m := newMachine(t, "")
	be := m.start("be")
	be.runBestEffort()
	m.joined(be)
	return be
}

// partDone is how much processes complete together of what one does alone, in the same time: both are as slow as the machine is.
func partDone(alone *process, processes ...*process) float64 {
	total := func() (n int) {
		for _, p := range processes {
			n += p.count()
		}
		return n
	}
	of, before := alone.count(), total()
	<-time.After(4 * time.Second) // the measured interval
	return float64(total()-before) / float64(max(alone.count()-of, 1))
}

// Best effort alone completes the part of its kernels that share.max allows, on a GPU that is idle else, with turns and without. The time
// that it is kept off is counted.
func TestShareMaxAlone(t *testing.T) {
	t.Parallel()
	alone := alone(t)
	for _, settings := range []string{"", "mechanisms = [\"timeslice\"]\n"} {
		m := newMachine(t, settings+"[share]\nmax = 0.25\n")
		be := m.start("be")
		be.runBestEffort()
		m.joined(be)
		m.until("it does a quarter of its work", func() bool {
			done := partDone(alone, be)
			t.Logf("%s%.3f of its work", settings, done)
			return within(done, 0.25)
		})
		before := m.peer(be)
		m.until("it is kept off for three quarters", func() bool {
			now := m.peer(be)
			passed := float64(now.RanAtNs - before.RanAtNs)
			return passed > 3e9 && within(float64(now.Counters.CappedNs-before.Counters.CappedNs)/passed, 0.75)
		})
		m.runs(be)
	}
}

// All best effort of a GPU together does what share.max_be allows. One that idles, and asks for turns now and then, takes nothing of that
// away; one that may have less by its own share.max leaves the rest to the others.
func TestShareMaxOfAll(t *testing.T) {
	t.Parallel()
	alone := alone(t)
	m := newMachine(t, "[share]\nmax_be = 0.5\n")
	one, two, idle := m.start("be"), m.start("be"), m.start("be")
	m.joined(one, two, idle)
	one.runBestEffort()
	m.until("one among idle ones has all of it", func() bool {
		done := partDone(alone, one)
		t.Logf("one: %.3f of its work", done)
		return within(done, 0.5)
	})
	two.runBestEffort()
	m.until("two have it together", func() bool {
		shares := m.sharesOver(4*time.Second, one, two)
		done := partDone(alone, one, two)
		t.Logf("two: %.3f of the work, %v", done, shares)
		return within(done, 0.5) && shares[0] >= 0.15 && shares[1] >= 0.15
	})
	two.finish()
	m.configure(fmt.Sprintf("[share]\nmax_be = 0.5\nmax = 0.1\n[segment]\ndirectory = %q\n", m.dir))
	little := m.start("be")
	little.runBestEffort()
	m.joined(one, little, idle)
	m.until("who may have less leaves the rest", func() bool {
		s := m.sharesOver(4*time.Second, one, little)
		t.Logf("one and one with less: %v", s)
		return within(s[0]+s[1], 0.5) && s[1] <= 0.125 && s[1] >= 0.05
	})
	m.runs(one)
	m.runs(little)
}

// Beside a service that leaves less than the maximum, best effort has the rest, and no less than the minimum. The service is never kept
// off.
func TestShareMaxBesideLC(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[share]\nmin_be = 0.2\nmax = 0.3\n")
	be, lc := m.start("be"), m.start("lc")
	be.runBestEffort()
	m.joined(be, lc)
	lc.say("lc 1000000 10 4000 0 stream") // always
	m.until("it has its minimum", func() bool {
		now := m.peer(be)
		return now.Counters.Boosts > 0 && now.TimesliceUs > 5000
	})
	capped := m.peer(be).Counters.CappedNs
	n := be.count()
	m.until("it gets on", func() bool { return be.count() > n+5 })
	if now := m.peer(lc); now.Capped || now.Suspended || now.Counters.CappedNs != 0 {
		t.Errorf("LC: %+v", now)
	}
	t.Logf("kept off for %d ms beside LC", (m.peer(be).Counters.CappedNs-capped)/1e6)
	if err := lc.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	m.until("without LC it has its maximum", func() bool {
		s := m.sharesOver(4*time.Second, be)
		t.Logf("without LC: %v", s)
		return within(s[0], 0.3)
	})
}

// A policy says the most that a program has, gpreempt set changes it while it runs, and neither gives more than the program's own configuration.
func TestShareMaxOfAPolicy(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.police("", "[default]\nlevel = 'be'\nshare_max = 0.5\n")
	be := m.start("be")
	be.runBestEffort()
	m.joined(be)
	has := func(part float64) {
		t.Helper()
		m.until(fmt.Sprintf("it has %v", part), func() bool {
			s := m.sharesOver(3*time.Second, be)
			t.Logf("%v of %v", s, part)
			return within(s[0], part)
		})
	}
	shown := func(part string) {
		t.Helper()
		if got := strings.Join(m.policyLine(be), " "); !strings.Contains(got, " 0 "+part+" - ") {
			t.Errorf("%q has no %s", got, part)
		}
	}
	has(0.5)
	shown("0.5")
	pid := fmt.Sprint(be.pid())
	if got := m.gpreempt("set", pid, "--share-max", "0.2"); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	has(0.2)
	shown("0.2*")
	for _, wrong := range []string{"0", "-1", "1.1", "NaN"} {
		if got := m.gpreempt("set", pid, "--share-max", wrong); got.status != 2 || !strings.Contains(got.stderr, "--share-max ") {
			t.Errorf("%s: %+v", wrong, got)
		}
	}
	if got := m.gpreempt("set", pid, "--clear"); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	has(0.5)
}
