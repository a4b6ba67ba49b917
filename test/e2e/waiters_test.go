package e2e

import "testing"

// The program waiters.c: who waits for work, or asks for it, hears of that work and of no other.
func TestWaiters(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	for what, rounds := range map[string]int{"unmapped": 4, "moved": 4, "all": 3, "legacy": 3, "stream": 3} {
		t.Run(what, func(t *testing.T) {
			rightWhileStopped(t, program, what, rounds)
		})
	}
}

// The same while nobody but the program itself could ask for a stop.
func TestWaitersAlone(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
	p := m.startAs(m.command("be", compile(t, "testdata/waiters.c"), simulated("sim.cubin")))
	p.hears("ready")
	m.until("launches can be stopped", func() bool {
		p.say("plain 1")
		return p.hear() == "right" && m.peer(p).BLP != nil && m.peer(p).BLP.Launches > 0
	})
	for _, what := range []string{"own-past 4", "filled 2", "functions 2"} {
		p.say("%s", what)
		p.hears("right")
	}
	if blp := m.peer(p).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
}

// A kernel that waits for the program holds up a stream's queue, which has an end. Stops come all the time, and the library goes on
// answering. When the kernel is over, launches are stopped again.
func TestWaitersOfAQueueThatIsHeldUp(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
	be, lc := m.startOrdered(compile(t, "testdata/waiters.c"))
	done := make(chan struct{})
	ended := fire(lc, done)
	for range 2 {
		cuts := m.peer(be).BLP.Cuts
		be.say("held-up 1")
		be.hears("until stopped")
		windows := m.peer(lc).Counters.Windows
		m.until("many windows have opened", func() bool { return m.peer(lc).Counters.Windows > windows+1200 })
		be.say("go on")
		be.hears("right")
		if m.peer(be).BLP.Cuts == cuts {
			t.Error("nothing was stopped")
		}
	}
	close(done)
	<-ended
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
}

// After the driver has refused a call: the library gives up, but what it has launched is not over.
func TestWaitersOfWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	for _, what := range []string{"given-up", "own-given-up"} {
		t.Run(what, func(t *testing.T) {
			m := newStoppable(t, "", "SIMCUDA_FAIL=cuMemsetD8Async:3") // of records, for the second time
			be, lc := m.startOrdered(program)
			done := make(chan struct{})
			ended := fire(lc, done)
			be.say("%s 1", what)
			be.hears("until stopped")
			enough := m.stops(be) + 3
			m.until("stops have begun and ended", func() bool { return m.stops(be) >= enough })
			close(done)
			<-ended
			be.say("go on") // what comes during a stop would be lost, and the program told so
			be.hears("right")
			m.until("it has given up", func() bool { return m.peer(be).BLP.GivenUp == 1 })
		})
	}
}
