package e2e

import (
	"fmt"
	"testing"
)

// The program waiters.c: who waits for work, or asks for it, hears of that work and of no other.
func TestWaiters(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	for what, rounds := range map[string]int{"unmapped": 4, "moved": 4} {
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
	m.untilStoppable(p)
	for _, what := range []string{"own-past 4", "filled 2"} {
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

// Copies that zero the arena of a domain, and a region of its records: of 16 MiB and a record, and of 1.5 MiB, 256 KiB at a time.
const zeroArena, zeroRegion = 65, 6

// The driver has refused a call. The library gives up, but its earlier launches are not over.
func TestWaitersOfWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	for _, what := range []string{"given-up", "own-given-up"} {
		t.Run(what, func(t *testing.T) {
			// The copy that fails is of records, for the second time.
			m := newStoppable(t, "", fmt.Sprintf("SIMCUDA_FAIL=cuMemcpyAsync:%d", zeroArena+zeroRegion+1))
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
			m.until("it has given up", func() bool { return m.blp(be).GivenUp == 1 })
		})
	}
}

// A copy behind a launch that can be stopped, while the driver refuses a call of the library's.
func TestWaitersBehindARefusal(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	for n := 1; n <= 6; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := newStoppable(t, "", fmt.Sprintf("SIMCUDA_FAIL=cuEventRecord:%d", n))
			p := m.startAs(m.command("be", program, simulated("sim.cubin")))
			p.hears("ready")
			p.say("behind-refusal 1")
			p.hears("right")
		})
	}
}

// The program meanwhile.c: more green contexts than the library has places for. The last one is known as well as the first.
func TestGreenContextsEnd(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.startOrdered(compile(t, "testdata/meanwhile.c"))
	requests(t, lc)
	ask := func(rounds int) {
		be.say("green-ended %d", rounds)
		be.hears("right")
	}
	ask(70)
	before := m.blp(be)
	ask(1)
	m.until("its launches can be stopped", func() bool {
		now := m.blp(be)
		return now.Launches >= before.Launches+4 && now.Uncovered == before.Uncovered
	})
	if be.stderr.String() != "" {
		t.Errorf("stderr %q", be.stderr.String())
	}
}

// The program meanwhile.c: a thread that waits for work, or asks for it, hears nothing of another thread's work meanwhile. Stopped at
// random, or not at all.
func TestMeanwhile(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/meanwhile.c")
	for what, rounds := range map[string]int{"all": 3, "legacy": 3, "stream": 3, "green": 20, "green-unloaded": 20, "whole": 40} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rightWhileStopped(t, program, what, rounds)
		})
	}
	for _, what := range []string{"many", "destroyed", "let-run", "event-destroyed", "stream-renewed", "event-renewed", "asked-stream", "asked-event", "freed", "freed-stopped", "freed-green", "freed-behind", "whole-elsewhere"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rightAlone(t, program, what)
		})
	}
	for way, what := range []string{"here", "elsewhere", "new stream", "green context", "stopped stream"} {
		t.Run("whole-awaited, "+what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "")
			be, lc := m.startOrdered(program)
			done := make(chan struct{})
			ended := fire(lc, done)
			be.say("whole-awaited %d", way)
			be.hears("until windows have opened")
			be.says("lets a whole context wait for an event", 1)
			m.until("nothing is stopped while windows open", func() bool { // news of stops comes late
				stops, windows := m.stops(be), m.peer(lc).Counters.Windows
				m.until("windows have opened", func() bool { return m.peer(lc).Counters.Windows > windows+20 })
				return m.stops(be) == stops
			})
			be.say("go on")
			be.hears("right")
			close(done)
			<-ended
			if blp := m.peer(be).BLP; blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
		})
	}
	t.Run("own-destroyed", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "")
		be, _ := m.startOrdered(program)
		be.say("own-destroyed 6")
		be.hears("right")
	})
	const both = zeroArena + zeroRegion // of the context's domain, and of records
	for n, memory := range map[int]string{both + 1: "new", 2*both + 1: "used before"} {
		t.Run("own-refused, memory "+memory, func(t *testing.T) {
			t.Parallel()
			rightAlone(t, program, "own-refused", fmt.Sprintf("SIMCUDA_FAIL=cuMemcpyAsync:%d", n))
		})
	}
	t.Run("freed-always", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "", "SIMCUDA_CALL_US=cuMemFree:20000")
		be, _ := m.startOrdered(program)
		be.say("freed-always 20")
		be.hears("right")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		rightAlone(t, compile(t, "testdata/waiters.c"), "refused")
	})
}

// rightAlone runs a part of a program whose launches are logged, since an LC worker is there, and never stopped.
func rightAlone(t *testing.T, program, what string, env ...string) {
	t.Helper()
	m := newStoppable(t, "", env...)
	be, _ := m.startOrdered(program)
	be.say("%s 1", what)
	be.hears("right")
}

// The program functions.c: streams with many host functions.
func TestManyFunctions(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/functions.c")
	for _, what := range []string{"captured", "instance"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rightAlone(t, program, what)
		})
	}
	t.Run("functions", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("ready")
		m.untilStoppable(p)
		p.say("functions 2")
		p.hears("right")
	})
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "")
		be, _ := m.startOrdered(program)
		before := m.peer(be).BLP.Uncovered
		be.say("functions-elsewhere 1")
		be.hears("launched")
		m.until("it and the graph are seen not to be logged", func() bool { return m.blp(be).Uncovered >= before+2 })
		be.say("go on")
		be.hears("right")
	})
}

// Launches of streams that had many host functions in a row can be stopped afterwards.
func TestAfterManyFunctions(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/functions.c")
	for _, c := range []struct{ what, then string }{{"plain 1", "busy 100"}, {"own-functions 1", "plain 100"}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "")
			be, _ := m.startOrdered(program)
			be.say("%s", c.what)
			be.hears("right")
			before := m.peer(be).BLP.Launches
			be.say("%s", c.then)
			be.hears("right")
			m.until("launches could be stopped", func() bool { return m.blp(be).Launches >= before+80 })
		})
	}
	t.Run("of a thread that ended", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "")
		be, lc := m.startOrdered(program)
		be.say("own-functions 1")
		be.hears("right")
		done := make(chan struct{})
		ended := fire(lc, done)
		for range 5 {
			be.say("apart 20")
			be.hears("right")
		}
		close(done)
		<-ended
		m.until("launches were cut", func() bool { return m.blp(be).Cuts > 0 })
	})
}

// A program fills a stream's queue to its end with launches that are not logged. They stand behind work that waits for another of its
// threads, which gets on.
func TestWaitersOfAQueueThatIsFull(t *testing.T) {
	t.Parallel()
	for what, program := range map[string]string{"filled-before": "waiters.c", "filled-functions": "functions.c"} {
		t.Run(what, func(t *testing.T) {
			m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
			p := m.startAs(m.command("be", compile(t, "testdata/"+program), simulated("sim.cubin")))
			p.hears("ready")
			m.untilStoppable(p)
			p.say("%s 2", what)
			p.hears("right")
			if blp := m.peer(p).BLP; blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
		})
	}
}

// The same, while launches are logged: something ahead host-blocks the stream.
func TestWaitersOfAQueueThatIsFullBehindAHostBlock(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
	be, _ := m.startOrdered(compile(t, "testdata/waiters.c"))
	for _, what := range []string{"filled-behind 2", "filled-ahead 1"} {
		be.say("%s", what)
		be.hears("right")
	}
}

// The same, behind events that the log still has though nothing can be cut.
func TestWaitersOfAQueueThatIsFullBehindEvents(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/waiters.c")
	start := func(t *testing.T) (*machine, *process) {
		m := newStoppable(t, "", "SIMCUDA_QUEUE=512")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("ready")
		m.untilStoppable(p)
		return m, p
	}
	for _, what := range []string{"filled-awaited", "filled-recorded", "filled-marked"} {
		t.Run(what, func(t *testing.T) {
			_, p := start(t)
			p.say("%s 2", what)
			p.hears("right")
		})
	}
	t.Run("filled-past", func(t *testing.T) {
		m, p := start(t)
		p.say("filled-past 1")
		p.hears("until stopped")
		lc := m.start("lc")
		m.joined(p, lc)
		done := make(chan struct{})
		ended := fire(lc, done)
		windows := m.peer(lc).Counters.Windows
		m.until("windows have opened", func() bool { return m.peer(lc).Counters.Windows > windows+5 })
		close(done)
		<-ended
		p.say("go on")
		p.hears("right")
	})
}

// A program whose queue is always full can be stopped between blocks soon after a process came that may want that.
func TestDeepQueueIsStopped(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "", "SIMCUDA_QUEUE=1000")
	be := m.startAs(m.command("be", compile(t, "testdata/waiters.c"), simulated("sim.cubin")))
	be.hears("ready")
	m.untilStoppable(be)
	be.say("deep 2000")
	be.hears("deep")
	if launches := m.peer(be).BLP.Cuts; launches != 0 {
		t.Errorf("%d launches were cut that nobody wanted stopped", launches)
	}
	lc := m.start("lc")
	m.joined(be, lc)
	done := make(chan struct{})
	ended := fire(lc, done)
	m.until("launches were cut", func() bool { return m.blp(be).Cuts > 0 })
	close(done)
	<-ended
	be.say("go on")
	be.hears("right")
}

// untilStoppable waits until launches of a process that is alone can be stopped.
func (m *machine) untilStoppable(p *process) {
	m.t.Helper()
	m.until("launches can be stopped", func() bool {
		p.say("plain 1")
		return p.hear() == "right" && m.blp(p).Launches > 0
	})
}
