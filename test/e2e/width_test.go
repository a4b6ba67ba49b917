package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// spatial is an LC process under the simulated MPS server, beside a BE process that would go on beside its requests. They last as long as
// the test says. Its work takes no SM, so that nothing but the test makes requests slow.
type spatial struct {
	m        *machine
	lc       *process
	be       *process
	requests int
	missed   int  // requests beside which a kernel ended before it was seen whether it goes on: the machine is slow
	copies   bool // requests begin with a copy, and last no longer if they leave something
}

func newSpatial(t *testing.T) *spatial {
	t.Helper()
	program := compile(t, "testdata/width.c")
	return newSpatialBeside(newMachine(t, "", "SIMCUDA_MPS=1"), program)
}

func newSpatialBeside(m *machine, be string, arguments ...string) *spatial {
	t := m.t
	t.Helper()
	m.configure(fmt.Sprintf("mechanisms = [\"gate\", \"blp\", \"mps\", \"spatial\"]\n[hold]\nmax_ms = 10000\n[blp]\ncache_mb = 0\n[segment]\ndirectory = %q\n", m.dir))
	program := compile(t, "testdata/width.c")
	s := &spatial{m: m, be: m.startAs(m.command("be", be, arguments...)), lc: m.startAs(m.command("lc", program))}
	s.be.hears("ready")
	s.lc.hears("ready")
	for _, p := range []*process{s.be, s.lc} {
		m.until("the mechanism is in force", func() bool { return m.peer(p).InForce&configs.Spatial != 0 })
	}
	return s
}

func (s *spatial) works() {
	s.m.t.Helper()
	s.be.say("works")
	s.be.hears("works")
	s.m.until("best effort has work", func() bool { return s.m.peer(s.be).Busy })
}

// request is one of a kind. It lasts times as long while it leaves SMs. Returns how many it left.
func (s *spatial) request(kind int, times int) (left uint32) {
	s.m.t.Helper()
	const us = 40000 // against what a loaded machine adds
	s.requests++
	command := "request"
	if s.copies {
		command = "copied"
	}
	s.lc.say("%s %d %d", command, kind, us*3/4) // meanwhile the test looks at it
	s.lc.hears("begun")
	peer := s.m.peer(s.lc)
	if !peer.WindowOpen {
		s.m.t.Fatalf("a request without a window: %+v", peer)
	}
	if peer.Width != nil {
		left = peer.Width.SMs
	}
	rest := us / 4
	if left > 0 {
		rest += us * (times - 1)
	}
	s.lc.say("%d", rest)
	s.lc.hears("done")
	s.m.until("the window closes", func() bool {
		peer = s.m.peer(s.lc)
		return !peer.WindowOpen
	})
	if s.copies && peer.Width != nil { // it leaves nothing until the watcher has seen what follows
		left = peer.Width.SMs
	}
	return left
}

// The kinds are tried one by one until the machine has left one alone for long enough: its windows are as long as they are meant to be.
func (s *spatial) learns(times int, want uint32) (kind int) {
	s.m.t.Helper()
	const soon, kinds = 50, 20
	for kind = 1; kind <= kinds; kind++ {
		before := s.known()
		for i := range soon {
			left := s.request(kind, times)
			if s.known() > before && left == want {
				s.m.t.Logf("kind %d leaves %d SMs after %d requests", kind, left, i+1)
				return kind
			}
		}
	}
	s.m.t.Fatalf("no kind of request leaves %d SMs after %d: %+v", want, soon, s.m.peer(s.lc))
	return 0
}

func (s *spatial) known() uint64 {
	if w := s.m.peer(s.lc).Width; w != nil {
		return w.Kinds
	}
	return 0
}

// learnsFromRealTimes skips a test in usual runs. The library compares how long requests took: by given times in preempt/gpu/width_test.c, and
// here by the machine's clock. On a busy machine equal requests take unequal times, and it rightly learns nothing. A test that compares how
// long kernels took is no better off there.
func learnsFromRealTimes(t *testing.T) {
	t.Helper()
	if often(0, 1) == 0 {
		t.Skip("what a width costs is learnt from real times, which vary on a busy machine: set GPREEMPT_DEEP")
	}
}

// Requests that do not suffer leave half of the 132 SMs. When they begin to, they leave nothing within 5 of them.
func TestWidthIsLearnt(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newSpatial(t)
	for range 12 {
		if left := s.request(100, 1); left != 0 {
			t.Fatalf("%d SMs are left to nobody", left)
		}
	}
	if w := s.m.peer(s.lc).Width; w != nil {
		t.Errorf("learnt without work to leave SMs to: %+v", *w)
	}
	s.works()
	kind := s.learns(1, 64)
	leaving := s.m.peer(s.lc).Width.Leaving
	if leaving == 0 || leaving >= uint64(s.requests) {
		t.Errorf("%d of %d windows left SMs", leaving, s.requests)
	}

	slow := 0 // windows that left SMs, until two in a row leave none
	for i, none := 0, 0; none < 2; i++ {
		if i == 5+2 {
			t.Fatalf("%d of %d windows leave SMs although they suffer", slow, i)
		}
		if s.request(kind, 2) == 0 {
			none++
		} else {
			slow, none = slow+1, 0
		}
	}
	s.m.until("no width is left that makes requests slow", func() bool {
		left := s.request(kind, 2)
		w := s.m.peer(s.lc).Width
		return left == 0 && w.TooWide >= 3 && w.Kinds > 0
	})
}

// A request that takes much longer than it should leaves nothing any more, though it is not over, and until it is.
func TestWidthFalls(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newSpatial(t)
	s.works()
	kind := s.learns(1, 64)
	now := func() (open bool, sms uint32) {
		peer := s.m.peer(s.lc)
		return peer.WindowOpen, peer.Width.SMs
	}
	for range 4 { // the machine may be slow, and some windows leave nothing to measure that
		s.lc.say("request %d %d", kind, 30000)
		s.lc.hears("begun")
		_, left := now()
		if left == 64 {
			s.m.until("the window leaves nothing any more", func() bool {
				open, sms := now()
				if !open {
					t.Fatal("the window is closed though its request is not over")
				}
				return sms == 0
			})
		}
		s.lc.say("%d", 30000)
		for open := true; open; {
			var sms uint32
			if open, sms = now(); left == 64 && sms != 0 {
				t.Fatalf("the window leaves %d SMs again", sms)
			}
		}
		s.lc.hears("done")
		if left == 64 {
			return
		}
	}
	t.Fatal("no request leaves what was learnt")
}

// Requests that begin with equal copies leave the SMs that are learnt for the kernel that follows.
func TestWidthBehindCopies(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newSpatial(t)
	s.copies = true
	s.works()
	known := s.learns(1, 64)
	for other := 1000; ; other++ {
		if left := s.request(other, 1); left != 0 {
			t.Fatalf("a kernel of which nothing is known leaves %d SMs behind a copy", left)
		}
		if s.request(known, 1) == 64 {
			break
		}
		if other == 1010 {
			t.Fatal("the other kernel does not leave what is known of it any more")
		}
	}
}

// Requests that suffer from any width leave nothing.
func TestWidthIsNotLeft(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newSpatial(t)
	s.works()
	kind := s.learns(2, 0)
	for range 10 {
		if left := s.request(kind, 2); left != 0 {
			t.Errorf("%d SMs are left", left)
		}
	}
}

// A window stays open while a call that submits is under way, whatever of the request has ended.
func TestWindowOfALateCall(t *testing.T) {
	t.Parallel()
	s := newSpatial(t)
	s.works()
	s.lc.say("late")
	s.lc.hears("late")
	line, _ := s.m.lines(s.lc)
	opened := line[0].WindowOpenedNs.Load()
	for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) { // many times the grace
		if now := line[0].WindowOpenedNs.Load(); now == 0 || now != opened {
			t.Fatalf("the window that opened at %d opened at %d", opened, now)
		}
	}
	s.lc.say("go on")
	s.lc.hears("done")
	s.m.until("the window closes", func() bool { return line[0].WindowOpenedNs.Load() == 0 })
}

// beside has the best-effort process run a kernel, which begins before a request and is stopped by that. The request leaves SMs, and says that
// it was slow if the kernel goes on there and does harm.
func (s *spatial) beside(kernel string, harm uint64) (goesOn bool) {
	s.m.t.Helper()
	for us := 100_000; us < 1e9; us *= 2 { // the busier the machine, the longer it takes until the request begins
		if goesOn, held := s.meets(fmt.Sprintf("%s %d", kernel, us), harm); goesOn || held {
			return goesOn
		}
		s.missed++
	}
	s.m.t.Fatal("no kernel lasts until a request begins")
	return false
}

func (s *spatial) meets(kernel string, harm uint64) (goesOn, held bool) {
	s.m.t.Helper()
	lc, _ := s.m.lines(s.lc)
	be, _ := s.m.lines(s.be)
	launches := s.m.blp(s.be).Launches
	s.be.say("%s", kernel)
	s.be.hears("launched")
	s.m.until("the launch is counted, and all before it", func() bool { return s.m.blp(s.be).Launches > launches })
	narrowed := s.m.blp(s.be).Narrowed
	s.requests++
	s.lc.say("request %d 1", s.requests) // each of another kind: nothing is learnt of any
	s.lc.hears("begun")
	opened := lc[0].WindowOpenedNs.Load()
	if opened == 0 {
		s.m.t.Fatal("a request without a window")
	}
	lc[0].JudgedNs.Store(opened&^1 | harm)
	ended := false
	s.m.until("it goes on, is held back, or has ended", func() bool {
		select {
		case line := <-s.be.lines:
			ended = line == "ended"
		default:
		}
		held = opened == be[0].ExcusesNs.Load() // nothing goes on since it hurts
		goesOn = !held && s.m.blp(s.be).Narrowed > narrowed
		return goesOn || held || ended
	})
	s.lc.say("1")
	s.lc.hears("done")
	if !ended {
		s.be.hears("ended")
	}
	s.m.until("the window closes", func() bool { return lc[0].WindowOpenedNs.Load() != opened })
	if goesOn && harm > 0 {
		s.m.until("the kernel is to blame", func() bool { return be[0].ExcusesNs.Load() == opened && s.m.blp(s.be).Hurting == 1 })
	}
	return goesOn, held
}

// Of two kernels one makes requests slow. It is stopped, and tried again and again after more and more of them. The other one goes on.
func TestKernelThatHurts(t *testing.T) {
	t.Parallel()
	s := newSpatialBeside(newMachine(t, "", "SIMCUDA_MPS=1"), compile(t, "testdata/narrowed.c"), simulated("sim.cubin"))
	done := make(chan struct{})
	left := s.m.leave(s.lc, []uint32{64}, done)
	s.be.say("hurting 0")
	const rounds = 20
	harmful := 0
	for range rounds {
		if !s.beside("harmless", 0) {
			t.Error("a kernel that does no harm is held back")
		}
		if s.beside("harmful", 1) {
			harmful++
		}
	}
	if harmful > 2+s.missed/16 || (harmful < 2 && s.missed == 0) { // at first, and 16 windows later
		t.Errorf("one that does harm goes on beside %d of %d requests, %d were missed", harmful, rounds, s.missed)
	}
	s.m.until("it is counted", func() bool {
		blp := s.m.blp(s.be)
		return blp.HeldHurting >= rounds-uint64(harmful) && blp.Narrowed >= rounds
	})
	close(done)
	<-left
	s.be.say("end")
	s.be.hears("right")
}

// Requests of these have so many kernels.
const kernels = 20

// newShared has processes that compete for the SMs, and best-effort work that fills them whenever it may. That work has so many functions
// that none of them is to blame where all hurt.
func newShared(t *testing.T) *spatial {
	t.Helper()
	s := newSpatialBeside(newMachine(t, "", "SIMCUDA_MPS=1", "SIMCUDA_SHARED_SMS=1"), compile(t, "testdata/narrowed.c"), simulated("sim.cubin"))
	s.be.say("steady 8")
	s.be.hears("works")
	s.m.until("best effort has work", func() bool { return s.m.peer(s.be).Busy })
	return s
}

// resident makes a request whose kernels have so many blocks, or a few less, each of another kind: nothing is learnt of any. An SM has room for
// two blocks. Returns how many of its kernels took longer than alone.
func (s *spatial) resident(blocks int) (slow int) {
	s.m.t.Helper()
	s.requests++
	s.lc.ask(fmt.Sprintf("kernels %d %d %d 5000", blocks-s.requests/10%10, 1024-32*(s.requests%10), kernels), "done %d", &slow)
	s.m.until("the window closes", func() bool { return !s.m.peer(s.lc).WindowOpen })
	return slow
}

// besides makes requests until best effort has gone on beside one, of whose kernels as many took longer than alone as the condition wants. The
// first ones always do: they wait until best effort is stopped.
func (s *spatial) besides(what string, blocks int, condition func(slow int) bool) {
	s.m.t.Helper()
	s.m.until(what, func() bool {
		before := s.m.blp(s.be)
		slow := s.resident(blocks)
		after := s.m.blp(s.be)
		return after.Narrowed > before.Narrowed && after.NarrowBlocks > before.NarrowBlocks && condition(slow)
	})
}

// Requests on a quarter of the SMs are as fast beside best effort, which goes on on half of them, as alone.
func TestWidthOfFewBlocks(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newShared(t)
	done := make(chan struct{})
	left := s.m.leave(s.lc, []uint32{64}, done)
	s.besides("requests on few SMs are fast beside best effort", 32, func(slow int) bool { return slow <= kernels/4 })
	close(done)
	<-left
	s.be.say("end")
	s.be.hears("right")
}

// Requests on all SMs take longer beside best effort, on however few. Where they leave none, best effort is stopped.
func TestWidthOfAllBlocks(t *testing.T) {
	learnsFromRealTimes(t)
	t.Parallel()
	s := newShared(t)
	const all, rounds = 132, 10
	done := make(chan struct{})
	left := s.m.leave(s.lc, []uint32{16}, done)
	s.besides("requests on all SMs suffer from best effort on a few", all, func(slow int) bool { return slow > kernels/2 })
	close(done)
	<-left
	s.resident(all) // the window before it left something
	before := s.m.blp(s.be)
	for range rounds {
		s.resident(all)
	}
	s.m.until("best effort is stopped", func() bool { return s.m.blp(s.be).Stops > before.Stops })
	if after := s.m.blp(s.be); after.Narrowed != before.Narrowed {
		t.Errorf("best effort went on: %+v, and later %+v", before, after)
	}
	s.be.say("end")
	s.be.hears("right")
}
