package e2e

import (
	"fmt"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The program narrowed.c: what outlasts a stop of what runs narrow is overtaken by nothing.
func TestNarrowedLate(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	for _, what := range []string{"late-graph", "late-wait", "late-legacy"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := narrowing(t, false, 10000, "")
			be, lc := m.startOrdered(program)
			done := make(chan struct{})
			left := m.leave(lc, []uint32{64}, done)
			be.say("%s 1", what)
			be.hears("until stopped")
			before := m.peer(be).BLP.Narrowed
			lc.say("lc 1 2 500000 0 stream")
			m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
			m.until("it runs", func() bool { return m.blp(be).Narrowed > before+1 })
			m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
			be.say("go on")
			be.hears("right")
			close(done)
			<-left
		})
	}
}

// The program narrowed.c: a graph of which a stop found a kernel that ran on goes on narrow in its next launch.
func TestNarrowedAfterLate(t *testing.T) {
	t.Parallel()
	m := narrowing(t, false, 10000, "")
	be, lc := m.startOrdered(compile(t, "testdata/narrowed.c"))
	window := func(sms uint32, what string, met func(before segment.BLP) bool) {
		for range 20 { // the kernel may not have begun, or have ended, on a loaded machine
			be.hears("until stopped")
			before, windows, done := m.blp(be), m.peer(lc).Counters.Windows, make(chan struct{})
			left := m.leave(lc, []uint32{sms}, done)
			lc.say("lc 1 2 500000 0 stream")
			m.until("a window has ended", func() bool { return m.peer(lc).Counters.Windows > windows && !m.peer(lc).WindowOpen })
			close(done)
			<-left
			lc.hear()
			if met(before) {
				be.say("go on")
				return
			}
			be.say("once more")
		}
		t.Fatalf("never happened: %s; %s", what, m.state())
	}
	be.say("parted 1")
	window(0, "it is stopped late", func(before segment.BLP) bool { return m.blp(be).DrainNs > before.DrainNs+100e6 })
	window(64, "the graph runs, or is held back", func(before segment.BLP) bool {
		blp := m.blp(be)
		return blp.Narrowed > before.Narrowed+1 || blp.HeldTogether > 0
	})
	be.hears("right")
	if held := m.blp(be).HeldTogether; held > 0 {
		t.Errorf("%d launches were held back", held)
	}
}

// narrowing is a machine with an MPS server, where best effort goes on in what windows leave. share: settings of that, or none.
func narrowing(t *testing.T, gate bool, holdMs int, share string) *machine {
	t.Helper()
	m, also := newMachine(t, "", "SIMCUDA_MPS=1"), ""
	if gate {
		also = `, "gate"`
	}
	m.configure(fmt.Sprintf("mechanisms = [\"blp\", \"spatial\"%s]\n[hold]\nmax_ms = %d\n%s[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", also, holdMs, share, m.dir, m.dir))
	return m
}

// The program narrowed.c: the kernels of a graph that have room in the width run there, and hold up no other stream. Each kernel runs once,
// in its order, whatever happens to the graph then.
func TestNarrowedGraphs(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	for _, c := range []struct {
		name      string
		dependent int // which kernel of the graph has blocks that wait for each other
	}{{"independent", 0}, {"dependent in the middle", 3}, {"dependent first", 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := narrowing(t, false, 10000, "[share]\nmin_be = 0\n")
			be, lc := m.startOrdered(program)
			be.say("graphs %d", c.dependent)
			be.hears("until stopped")
			leave := func(sms ...uint32) (stop func()) {
				done := make(chan struct{})
				left := m.leave(lc, sms, done)
				return func() { close(done); <-left }
			}
			stop := leave(64)
			lc.say("lc 1 2 9000000 0 stream")
			m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
			be.say("go on")
			be.hears("until stopped")
			if blp := m.blp(be); !m.peer(lc).WindowOpen || blp.HeldTogether != uint64(min(c.dependent, 1)*2) {
				t.Errorf("in the window: %+v", blp)
			}
			stop()
			stop = leave(0, 16, 64)
			stops := m.stops(be)
			if c.dependent > 0 { // else nothing is left to stop
				m.until("the width has changed", func() bool { return m.stops(be) > stops+5 })
			}
			stop()
			_ = lc.cmd.Process.Kill()
			be.say("go on")
			be.hears("right")
		})
	}
}

// The program narrowed.c: its launches in a window go on there.
func TestNarrowedInside(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	m := narrowing(t, true, 10000, "[share]\nmin_be = 0\n")
	be, lc := m.startOrdered(program)
	be.say("inside 20")
	be.hears("until stopped")
	done := make(chan struct{})
	left := m.leave(lc, []uint32{64}, done)
	lc.say("lc 1 2 9000000 0 stream")
	m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
	be.say("go on")
	be.hears("until stopped")
	if !m.peer(lc).WindowOpen {
		t.Error("what was launched in the window went on only behind it")
	}
	const launches, blocks = 3 + 1 + 20, 600 // of a round, beside a copy and a memset, which take a block each
	m.until("all that went on narrow is counted", func() bool {
		blp := m.blp(be)
		return blp.Narrowed >= 20*(launches+2) && blp.NarrowBlocks == 20*(launches*blocks+2)
	})
	close(done)
	<-left
	_ = lc.cmd.Process.Kill()
	be.say("go on")
	be.hears("right")
}

// The program narrowed.c: a capture is not broken by what goes on narrow. That begins when no capture is under way.
func TestNarrowedBesideCapture(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	m := narrowing(t, false, 10000, "")
	be, lc := m.startOrdered(program)
	done := make(chan struct{})
	left := m.leave(lc, []uint32{64}, done)
	be.say("captured 1")
	for _, capturing := range []bool{true, false} {
		be.hears("until stopped")
		stops := m.stops(be)
		lc.say("lc 1 2 300000 0 stream")
		m.until("it is stopped", func() bool { return m.stops(be) > stops })
		m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
		lc.hear()
		if went := m.blp(be).Narrowed > 0; went == capturing {
			t.Errorf("capturing: %v, went on narrow: %v", capturing, went)
		}
		be.say("go on")
	}
	be.hears("right")
	close(done)
	<-left
}

// The program narrowed.c: work that is held back beside a window gets the share of best effort all the same.
func TestHeldBackKeepsItsShare(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	m := narrowing(t, true, 50, "[share]\nmin_be = 0.5\n")
	be, lc := m.startOrdered(program)
	be.say("held 1") // its code is loaded
	be.hears("right")
	done := make(chan struct{})
	left := m.leave(lc, []uint32{64}, done)
	lc.say("lc 1 2 9000000 0 stream")
	m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
	for m.blp(be).HeldTogether == 0 {
		be.say("held 1")
		be.hears("right")
		if !m.peer(lc).WindowOpen {
			t.Fatal("it went on because the window had closed")
		}
	}
	close(done)
	<-left
}

// The program narrowed.c: a launch that cannot be stopped waits for the window's end.
func TestUnstoppableLaunchWaits(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	m := narrowing(t, true, 10000, "[share]\nmin_be = 0\n")
	be, lc := m.startOrdered(program)
	be.say("unstoppable 1")
	be.hears("until stopped")
	waits := m.peer(be).Counters.GateWaits
	lc.say("lc 1 2 500000 0 stream")
	m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
	be.say("go on")
	be.hears("launched")
	if m.peer(be).Counters.GateWaits == waits {
		t.Error("it did not wait")
	}
	be.hears("right")
}

// The driver makes a green context when all work of the context is over. That may wait for work that is only logged while the domain is
// stopped, or for the program. So none is made for a window: the program of narrowed.c waits in the first one.
func TestWhatWaitsForTheProgramGoesOnBehindAWindow(t *testing.T) {
	t.Parallel()
	m := narrowing(t, false, 10000, "[share]\nmin_be = 0\n")
	be, lc := m.startOrdered(compile(t, "testdata/narrowed.c"))
	done := make(chan struct{})
	left := m.leave(lc, []uint32{64}, done)
	be.say("waiting 1")
	be.hears("until stopped")
	lc.say("lc 1 2 500000 0 stream")
	m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
	be.say("go on")
	be.hears("right")
	close(done)
	<-left
}
