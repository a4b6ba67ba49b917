package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Block-level preemption: chains.c beside a latency-critical worker under the simulated MPS server. The results of chains.c
// show every block that ran twice, not at all or out of order.

func newStoppable(t *testing.T, settings string, environment ...string) *machine {
	t.Helper()
	return newStoppableBy(t, `["blp"]`, settings, environment...)
}

func newStoppableBy(t *testing.T, mechanisms, settings string, environment ...string) *machine {
	t.Helper()
	m := newMachine(t, "", append(environment, "SIMCUDA_MPS=1")...)
	m.configure(fmt.Sprintf("mechanisms = "+mechanisms+"\n%s\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", settings, m.dir, m.dir))
	return m
}

func (m *machine) startChains(role string) *process {
	m.t.Helper()
	program := filepath.Join(filepath.Dir(worker), "chains")
	p := m.startAs(m.command(role, program, filepath.Join(root, "test/simcuda/kernels/sim.cubin")))
	p.hears("ready")
	return p
}

func (p *process) chains(what string, rounds int) (hash uint32) {
	p.m.t.Helper()
	p.ask(fmt.Sprintf("%s %d", what, rounds), "hash %d", &hash)
	return hash
}

// blp is a process's counters of block-level preemption.
func (m *machine) blp(p *process) segment.BLP {
	m.t.Helper()
	if blp := m.peer(p).BLP; blp != nil {
		return *blp
	}
	return segment.BLP{}
}

func (m *machine) stops(p *process) uint64 { return m.blp(p).Stops }

// fire makes requests of the latency-critical worker, each of which opens a window, until done is closed.
func fire(lc *process, done <-chan struct{}) (ended <-chan struct{}) {
	i := -1
	return repeat(done, func() bool {
		i++
		return lc.answers("lc 5 %d %d %d stream", 1+i%2, 30+i%50, 300+37*(i%40))
	})
}

// repeat does something again and again, until done is closed or it says that there is no more to do.
func repeat(done <-chan struct{}, something func() bool) (ended <-chan struct{}) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		for more := true; more; {
			select {
			case <-done:
				return
			default:
				more = something()
			}
		}
	}()
	return end
}

// answers says whether a process answers a command. It may have ended.
func (p *process) answers(format string, arguments ...any) bool {
	if _, err := fmt.Fprintf(p.stdin, format+"\n", arguments...); err != nil {
		return false
	}
	_, answered := <-p.lines
	return answered
}

// A launch runs unchanged if blocks of one of its clusters might be separated.
func TestVastGridsOfClustersAreNotStopped(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	var stoppable, not uint64
	m.until("launches of clusters are not stopped", func() bool {
		be.chains("vast", 1)
		if blp := m.peer(be).BLP; blp != nil {
			stoppable, not = blp.Launches, blp.Uncovered
		}
		return not >= 3
	})
	// One of each at a time; the context's domain may have been made between the first two.
	if stoppable+1 < not || stoppable > not+1 {
		t.Errorf("%d launches could be stopped, %d could not", stoppable, not)
	}
}

func TestStoppedChainsGoOn(t *testing.T) {
	t.Parallel()
	enough := often(40, 200) // stops
	for what, rounds := range map[string]int{
		"single": 40, "default": 40, "several": 60, "blocking": 60, "legacy": 40, "legacy-graphs": 40, "behind": 30, "questions": 30, "crossed": 20, "endings": 30, "contexts": 3,
		"foreign": 30, "captures": 40, "graphs": 20, "handshakes": 30, "many": 20, "together": 10,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newStoppableBy(t, `["blp", "mps"]`, "")
			plain := m.startChains("")
			want := plain.chains(what, rounds)
			plain.finish()

			be, lc := m.startChains("be"), m.start("lc")
			m.joined(be, lc)
			done := make(chan struct{})
			ended := fire(lc, done)
			runs := 0
			for deadline := time.Now().Add(6 * patience); m.stops(be) < enough; runs++ {
				if got := be.chains(what, rounds); got != want {
					t.Errorf("run %d: hash %d, undisturbed %d", runs, got, want)
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("only %d stops: %+v", m.stops(be), m.peers())
				}
			}
			close(done)
			<-ended
			blp := m.peer(be).BLP
			if blp == nil {
				t.Fatalf("no counters: %+v", m.peers())
			}
			t.Logf("%d runs: %+v", runs, *blp)
			if blp.Cuts == 0 || blp.ResumedBlocks == 0 || blp.GivenUp != 0 || blp.Launches == 0 || (what == "together" && blp.Uncovered != 0) {
				t.Errorf("counters %+v", *blp)
			}
			lc.finish()
			// A kernel above the others of BE could keep their last blocks from room, in other processes too, which may wait
			// for each other.
			be.say("urgent 0")
			be.hears("urgent 0")
			if _, stderr := be.finish(); stderr != "" {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// Records of launches are used again and again. They are zeroed by nothing that is above the program's kernels.
func TestRecordsAreZeroedWhileOthersRun(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	const region = 6144 // launches
	done := make(chan struct{})
	ended := fire(lc, done)                                                         // else launches may pass without a record
	for deadline := time.Now().Add(6 * patience); m.blp(be).Launches < 12*region; { // there are eight
		be.chains("many", 20)
		if time.Now().After(deadline) {
			t.Fatalf("only %d launches: %+v", m.blp(be).Launches, m.peers())
		}
	}
	close(done)
	<-ended
	be.say("urgent 0")
	be.hears("urgent 0")
	be.finish()
	lc.finish()
}

// longWindow makes LC open a window that stays open. It waits until windows stop BE.
func longWindow(m *machine, be, lc *process) {
	m.t.Helper()
	m.until("windows stop BE", func() bool {
		be.say("single 8")
		lc.request(3, 1, "stream")
		return be.hear() != "" && m.stops(be) > 0
	})
	be.say("single 1000") // more than it can do before the window opens
	lc.say("lc 1 2 60000000 0 stream")
	m.until("a window is open", func() bool { return m.peer(lc).WindowOpen })
}

func TestStoppedProcessGoesOnWhenTheOtherDies(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "[hold]\nmax_ms = 10000\n[share]\nmin_be = 0")
	plain := m.startChains("")
	began := time.Now()
	want := plain.chains("single", 1000)
	alone := time.Since(began)
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	longWindow(m, be, lc)
	select {
	case line := <-be.lines:
		t.Fatalf("BE went on in the window: %s", line)
	case <-time.After(min(2*alone, 5*time.Second)): // it would have ended by now, well before the window is as long as it may be
	}
	_ = lc.cmd.Process.Kill()
	var hash uint32
	if _, err := fmt.Sscanf(be.hear(), "hash %d", &hash); err != nil || hash != want {
		t.Errorf("hash %d, undisturbed %d: %v", hash, want, err)
	}
}

func TestStoppedProcessKeepsItsShare(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "[hold]\nmax_ms = 50\n[share]\nmin_be = 0.5")
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	longWindow(m, be, lc)
	stops := m.stops(be)
	if line := be.hear(); !strings.HasPrefix(line, "hash ") { // while the window is open
		t.Errorf("BE: %q", line)
	}
	if !m.peer(lc).WindowOpen {
		t.Error("BE went on because the window had closed")
	}
	m.until("BE was stopped in that time", func() bool { return m.stops(be) > stops })
}

func TestExitWhileStopped(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	for range 5 {
		be, lc := m.startChains("be"), m.start("lc")
		m.joined(be, lc)
		m.sees(lc)
		be.say("leave 400")
		lc.say("lc 1 2 200000 0 stream")
		if _, stderr := be.finish(); stderr != "" {
			t.Errorf("stderr %q", stderr)
		}
		lc.hear()
		lc.finish()
	}
}

func TestFrozenProcessBlocksNobody(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	plain := m.startChains("")
	want := plain.chains("single", 400)
	be, lc := m.startChains("be"), m.start("lc")
	m.joined(be, lc)
	be.say("single 400")
	var hash uint32
	right := func(line string) {
		if _, err := fmt.Sscanf(line, "hash %d", &hash); err != nil || hash != want {
			t.Errorf("%q, undisturbed hash %d: %v", line, want, err)
		}
	}
	m.until("BE was stopped by a window", func() bool {
		select {
		case line := <-be.lines: // it ended before a window came
			right(line)
			be.say("single 400")
		default:
		}
		lc.request(5, 1, "stream")
		return m.stops(be) > 0
	})
	for range 5 {
		be.stop()
		lc.request(5, 2, "stream")
		be.signal(syscall.SIGCONT)
		lc.request(2, 2, "stream")
	}
	right(be.hear())
}
