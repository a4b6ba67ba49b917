package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// parentOf is the parent of a process, and whether it runs; 0: there is no such process.
func parentOf(pid int) (parent int, name string, runs bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", false
	}
	text := string(stat)
	name, rest := text[strings.IndexByte(text, '(')+1:strings.LastIndexByte(text, ')')], text[strings.LastIndexByte(text, ')')+2:]
	fields := strings.Fields(rest)
	_, _ = fmt.Sscan(fields[1], &parent)
	return parent, name, fields[0] != "Z" && fields[0] != "X"
}

// helper is the helper of a process, once it has its name, or 0.
func helper(pid int) int {
	candidate := helperFrom(pid)
	if _, name, runs := parentOf(candidate); !runs || name != "gpreempt-helper" {
		return 0
	}
	return candidate
}

// oftenKilled shortens the time after which a program has another helper.
const oftenKilled = "GPREEMPT_TEST_AGAIN_US=1000"

// killHelper ends the helper of a process.
func (m *machine) killHelper(p *process) {
	m.t.Helper()
	pid := 0
	m.until("it has a helper", func() bool { pid = helper(p.pid()); return pid != 0 })
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
}

// A helper ends with its program, however that ends.
func TestHelperEndsWithItsProgram(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(p *process, pid int){
		"exit":    func(p *process, _ int) { p.finish() },
		"SIGKILL": func(p *process, _ int) { _ = p.cmd.Process.Kill() },
		"stopped": func(p *process, pid int) { _ = syscall.Kill(pid, syscall.SIGSTOP); p.finish() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			p := m.start("be")
			m.joined(p)
			pid := helper(p.pid())
			if pid == 0 {
				t.Fatal("there is none")
			}
			end(p, pid)
			m.until("it has ended", func() bool { _, _, runs := parentOf(pid); return !runs })
		})
	}
}

// A program sees no more of itself with a helper than without the library: no child, no signal, no descriptor.
func TestProgramSeesNoHelper(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/unseen.c")
	for _, as := range []string{"ordinary", "reaper"} {
		said := map[string]string{}
		for _, role := range []string{"", "be", "lc"} {
			m := newMachine(t, `mechanisms = ["timeslice", "hold", "turns", "blp"]`) // the simulated driver has a file for memory that swaps
			p := m.startAs(m.command(role, program, simulated("sim.cubin"), as))
			var lines []string
			read := func(last string) {
				for line := p.hear(); line != last; line = p.hear() {
					lines = append(lines, line)
				}
			}
			read("ready")
			if role != "" {
				m.joined(p)
				if helper(p.pid()) == 0 {
					t.Fatal("it has no helper")
				}
			}
			p.say("go on")
			if err := p.stdin.Close(); err != nil {
				t.Fatal(err)
			}
			for line := range p.lines {
				lines = append(lines, line)
			}
			if err := p.wait(); err != nil {
				t.Fatal(err)
			}
			said[role] = strings.Join(lines, "\n")
		}
		for _, role := range []string{"be", "lc"} {
			if said[role] != said[""] {
				t.Errorf("%s, %s:\n%s\nwithout the library:\n%s", as, role, said[role], said[""])
			}
		}
	}
}

// The same all the time, while its kernels are stopped again and again and helpers are killed: its handlers, masks, signal stacks, pending
// signals and descriptors are those that it has made.
func TestProgramSeesNothingUnderFire(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/unseen.c")
	m, k := newStoppable(t, "", oftenKilled), newKiller(t)
	p, lc := m.startAs(m.command("be", program, simulated("sim.cubin"), "fire")), m.start("lc")
	for line := ""; line != "ready"; line = p.hear() {
	}
	m.joined(p, lc)
	m.sees(lc)
	done := make(chan struct{})
	ended := fire(lc, done)
	k.until(m, int(often(10, 60)), func() {
		stops, looked := m.stops(p), 0
		m.until("its kernels are stopped, and it looks", func() bool {
			before := looked
			p.ask("looked", "looked %d", &looked)
			return m.stops(p) > stops && before > 0 && looked > before
		})
	}, p, lc)
	close(done)
	<-ended
	p.say("end")
	k.ends(t, p, lc)
}

// Helpers are killed at random while both programs work: nothing is lost or done twice, no call hangs, and there is another helper soon.
func TestHelperKilled(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	be.runBestEffort()
	requests := uint32(0)
	for round := range often(3, 6) { // the fourth helper and later ones come less and less soon
		victims := [][]*process{{be}, {lc}, {be, lc}}[round%3]
		for range rand.N(20) {
			lc.request(5, 3, "stream")
			requests++
		}
		for _, p := range victims {
			m.killHelper(p)
		}
		for range 20 {
			lc.request(5, 3, "stream")
			requests++
		}
		n := be.count()
		m.until("BE goes on", func() bool { return be.count() > n })
		m.joined(be, lc)
		m.until("LC preempts again", func() bool {
			_, hash := lc.request(5, 3, "stream")
			requests++
			if hash != sums(requests*15) {
				t.Fatalf("hash %d, must be %d", hash, sums(requests*15))
			}
			return m.peer(be).TimesliceUs == 1
		})
	}
	for _, p := range []*process{be, lc} {
		if _, stderr := p.finish(); strings.Count(stderr, "the helper process has ended") == 0 || strings.Contains(stderr, "fault") {
			t.Errorf("stderr %q", stderr)
		}
	}
}

// The helper of a program ends whose memory is out, or whose kernels are stopped: it goes on, and computes right.
func TestHelperKilledWhileMemoryIsOut(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	a := m.holding("be", 170)
	a.works(1)
	b := m.startFilled("be", 170<<20, 7)
	for range 2 {
		b.works(1)
		m.until("its memory is out", func() bool { return m.memory(a).Swapped > 0 })
		m.killHelper(a)
		a.works(1)
	}
}

func TestHelperKilledWhileKernelsAreStopped(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "[hold]\nmax_ms = 10000\n[share]\nmin_be = 0")
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	m.sees(lc)
	longWindow(m, be, lc)
	m.killHelper(be)
	if line := be.hear(); line == "" { // the window has no end: alone it goes on
		t.Error("it does not go on")
	}
	_ = lc.cmd.Process.Kill()
	be.finish()
}

// The helper of a program ends that it has taken off the runlist, and the next one, which begins at once, knows nothing of that: it is put back.
func TestHelperKilledWhileItsProgramIsOffTheRunlist(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "mechanisms = [\"turns\"]\n", oftenKilled)
	p := m.start("be")
	p.runBestEffort()
	for range 3 {
		other := m.start("be")
		other.runBestEffort()
		m.until("its helper has stopped while it is off the runlist", func() bool {
			pid := helper(p.pid())
			if pid == 0 || syscall.Kill(pid, syscall.SIGSTOP) != nil {
				return false
			}
			if m.peer(p).Suspended {
				return syscall.Kill(pid, syscall.SIGKILL) == nil
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			return false
		})
		_ = other.cmd.Process.Kill()
		m.until("it has another helper", func() bool { return helper(p.pid()) != 0 })
		n := p.count()
		m.until("it goes on", func() bool { return p.count() > n })
	}
}

// has is how much a process has of what helpers could leave behind: mappings of their pages and of segments, threads, open files of all threads.
func has(t *testing.T, pid int) (pages, segments, threads, files int) {
	t.Helper()
	maps := read(t, fmt.Sprintf("/proc/%d/maps", pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/fd/*", pid))
	return strings.Count(maps, "memfd:gpreempt-helper"), strings.Count(maps, "memfd:gpreempt "), len(tasks), len(all) / len(tasks)
}

// Helpers leave no thread or descriptor in their program, and one page at most: seven leave less than one would by each.
func TestEndedHelpersLeaveNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "mechanisms = [\"turns\", \"blp\", \"swap\"]\n", oftenKilled)
	p := m.start("be")
	p.runBestEffort()
	renewed := func() {
		m.joined(p)
		old := helper(p.pid())
		m.killHelper(p)
		m.until("another helper has taken its place", func() bool {
			now := helper(p.pid())
			return now != 0 && now != old && m.peer(p).Alive
		})
	}
	renewed()
	_, segments, threads, files := has(t, p.pid())
	const more = 6
	for range more {
		renewed()
	}
	m.until("it has no more than it had", func() bool {
		pages, s, th, f := has(t, p.pid())
		return pages <= 2 && s < segments+more && th < threads+more && f < files+more
	})
}

// A program without a helper has the fair timeslice: two with the shortest one would stop each other dead.
func TestFairTimesliceWithoutAHelper(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "GPREEMPT_TEST_AGAIN_US=1000000000") // no other helper comes
	be, lc := m.start("be"), m.start("lc")
	be.runBestEffort()
	m.joined(be, lc)
	m.yields(be)
	slice := func() (us int) {
		be.ask("timeslices", "timeslices_us %d", &us)
		return us
	}
	m.until("the driver has the short timeslice", func() bool { return slice() == 1 })
	m.killHelper(be)
	m.until("the driver has the fair timeslice", func() bool { return slice() == 2048 })
}
