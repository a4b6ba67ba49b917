package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Starts the program order.c as BE, whose launches are logged when this returns, and an LC worker.
func (m *machine) startOrdered(program string) (be, lc *process) {
	be, lc = m.startAs(m.command("be", program, simulated("sim.cubin"))), m.start("lc")
	be.hears("ready")
	m.joined(be, lc)
	m.sees(lc)
	m.until("launches are logged", func() bool {
		be.say("plain 1")
		return be.hear() == "right" && m.blp(be).Launches > 0
	})
	return be, lc
}

// stopped has a best-effort process work, by its command, and another one make requests until a window has stopped that.
func (m *machine) stopped(be, lc *process, command string) {
	m.t.Helper()
	before := m.stops(be)
	m.until("windows stop what "+command+" does", func() bool {
		be.say("%s", command)
		lc.request(3, 1, "stream")
		return be.hear() == "right" && m.stops(be) > before
	})
}

// The program order.c: every order that CUDA promises holds while windows open and close. No call that returns at once
// without the library waits for something that the program does only afterwards.
func TestOrder(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/order.c")
	for _, c := range []struct {
		what   string
		rounds int
		fires  bool
	}{
		{"captures", 40, true}, {"joins", 20, true}, {"stopped", 10, false},
		{"events", 20, true}, {"legacy", 20, true}, {"graphs", 10, true}, {"foreign", 10, true}, {"instances", 10, true}, {"hops", 20, true}, {"ended", 20, true}, {"asked", 10, false},
		{"spins", 6, false}, {"answers", 6, false}, {"reached", 6, false}, {"own-ahead", 6, false}, {"ahead", 6, false}, {"waits", 6, true}, {"threads", 12, true}, {"thread", 20, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "")
			be, lc := m.startOrdered(program)
			done := make(chan struct{})
			var ended <-chan struct{}
			if c.fires {
				ended = fire(lc, done)
			}
			const enough = 20 // stops
			for right, deadline := true, time.Now().Add(3*patience); right; {
				be.say("%s %d", c.what, c.rounds)
				select {
				case line := <-be.lines:
					if right = line == "right"; !right {
						t.Errorf("%q", line)
					}
				case <-time.After(2 * patience):
					t.Fatalf("it hangs: %+v", m.peers())
				}
				if !c.fires || m.stops(be) >= enough {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("only %d stops: %+v", m.stops(be), m.peers())
				}
			}
			close(done)
			if c.fires {
				<-ended
			}
			be.say("least 0")
			be.hears("right")
			blp := m.peer(be).BLP
			if c.what == "thread" && blp.Uncovered > 0 {
				t.Errorf("not all could be stopped: %+v", blp)
			}
			if blp == nil || blp.GivenUp != 0 || (c.fires && blp.Stops == 0) {
				t.Errorf("counters %+v", blp)
			}
		})
	}
}

// A kernel waits for the program, which waits for work ahead of it, and stops come meanwhile.
func TestOrderAheadOfWhatSpins(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/order.c")
	for what, rounds := range map[string]int{
		"ahead-of-legacy": 8, "ahead-of-wait": 6, "ahead-of-waits": 4, "ahead-through-legacy": 4, "ahead-beside-legacy": 4, "ahead-of-record": 8, "ahead-of-copy": 4, "own-ahead-of-copy": 4, "meanwhile": 12, "parted": 1, "held": 3,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rightWhileStopped(t, program, what, rounds)
		})
	}
}

// rightWhileStopped runs a part of a program that compares the answers it gets with what CUDA promises, while it is stopped at random.
func rightWhileStopped(t *testing.T, program, what string, rounds int) {
	t.Helper()
	m := newStoppable(t, "")
	be, lc := m.startOrdered(program)
	done := make(chan struct{})
	ended := fire(lc, done)
	m.comparesWhileStopped(be, fmt.Sprintf("%s %d", what, rounds))
	close(done)
	<-ended
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
}

func (m *machine) comparesWhileStopped(be *process, what string) {
	m.t.Helper()
	be.say("%s", what)
	for line := ""; line != "right"; {
		select {
		case line = <-be.lines:
		case <-time.After(2 * patience):
			m.t.Fatalf("it hangs: %+v; %s", m.peers(), stacks(be.pid()))
		}
		if line == "until stopped" {
			enough := m.stops(be) + 3
			m.until("stops have begun and ended", func() bool { return m.stops(be) >= enough })
			be.say("go on")
		} else if line != "right" {
			m.t.Fatalf("%q; stderr %q", line, be.stderr.String())
		}
	}
}

// Work behind a stream's wait for an event is not stopped where that was recorded anew meanwhile, and waits for the program.
func TestOrderOfAnEventRecordedAnew(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, _ := m.startOrdered(compile(t, "testdata/order.c"))
	before := m.peer(be).BLP.Uncovered
	be.say("anew 1")
	be.hears("launched")
	m.until("it is seen not to be logged", func() bool { return m.blp(be).Uncovered == before+1 })
	be.say("go on")
	be.hears("right")
}

// A graph that ends while a launch of it cannot be cut any more gives its records back when that is over.
func TestOrderOfGraphsThatEndFirm(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, _ := m.startOrdered(compile(t, "testdata/order.c"))
	before := m.blp(be).Launches
	be.say("dropped 8")
	be.hears("right")
	m.until("all were logged", func() bool { return m.blp(be).Launches >= before+8*4000 })
}

// Launches are complete for the log when nothing can be cut any more. The library does not take that for the GPU's progress. No process but
// the program itself could ask for a stop.
func TestOrderOfWhatTheLogForgets(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	m := newStoppable(t, "", "SIMCUDA_TRACE="+trace)
	p := m.startAs(m.command("be", compile(t, "testdata/order.c"), simulated("sim.cubin")))
	p.hears("ready")
	m.untilStoppable(p)
	p.say("follows 3")
	p.hears("right")
	for _, what := range []string{"forgets", "own"} {
		for range 3 {
			var thread int
			var function string
			p.ask(what+" 1", "%d in %s", &thread, &function)
			m.until("a thread waits", func() bool {
				return strings.Contains(traced(t, trace), fmt.Sprintf(" %d begin %s", thread, function))
			})
			p.say("it waits")
			p.hears("right")
		}
	}
	p.say("notes 2")
	p.hears("right")
	if blp := m.peer(p).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
	if _, stderr := p.finish(); stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
}

// A launch without a log entry is on its way to the driver. Meanwhile another thread launches on its stream, or on one of another domain
// that the legacy stream's rules order with it. The first launch has no entry for one of these reasons. No process could ask for a stop
// yet, its stream had no place or no domain of its own, or its context was not known. Both run as a whole: a launch beside it cannot be
// stopped.
func TestOrderOfALaunchOnItsWay(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/order.c")
	for _, c := range []struct {
		what string
		late bool // the peer joins while the launch is on its way
	}{{"beside", true}, {"twins", true}, {"placeless", false}, {"domain", true}, {"crosses", true}, {"crossed", true}, {"context", true}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "")
			be := m.startAs(m.command("be", program, simulated("sim.cubin")))
			be.hears("ready")
			m.until("launches can be stopped", func() bool {
				be.say("plain 1")
				return be.hear() == "right" && m.blp(be).Launches > 0
			})
			var lc *process
			join := func() {
				lc = m.start("lc")
				m.joined(be, lc)
				m.sees(lc)
			}
			if !c.late {
				join()
			}
			be.say(c.what + " 1")
			be.hears("it waits")
			before := m.peer(be).BLP.Uncovered
			if c.late {
				join()
			}
			done := make(chan struct{})
			ended := fire(lc, done)
			m.until("a launch is seen not to be logged, or is stopped", func() bool {
				be.say("more")
				be.hears("launched")
				return m.blp(be).Uncovered > before || m.stops(be) > 0
			})
			be.say("go on")
			be.hears("right")
			if m.peer(be).BLP.Uncovered == before {
				t.Error("launches are logged while another is on its way")
			}
			m.until("launches are stopped", func() bool {
				be.say("plain 20")
				return be.hear() == "right" && m.stops(be) > 0
			})
			close(done)
			<-ended
			if blp := m.peer(be).BLP; blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
		})
	}
}

// A stream that has work at any time, from before a higher level came: its launches are logged from some time on.
func TestBusyStreamIsStopped(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/order.c")
	for what, graphs := range map[string]int{"launches": 0, "graphs": 1} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "")
			be := m.startAs(m.command("be", program, simulated("sim.cubin")))
			be.hears("ready")
			m.until("it is seen", func() bool {
				be.say("plain 1")
				return be.hear() == "right" && m.peer(be).BLP != nil
			})
			be.say("saturate %d", graphs)
			be.hears("right")
			lc := m.start("lc")
			m.joined(be, lc)
			done := make(chan struct{})
			ended := fire(lc, done)
			m.until("its launches are cut", func() bool { return m.blp(be).Cuts > 20 })
			close(done)
			<-ended
			be.say("saturate 0")
			be.hears("right")
			if blp := m.peer(be).BLP; blp.GivenUp != 0 {
				t.Errorf("%+v", *blp)
			}
		})
	}
}

// A program launches more than may be in flight: a thread of the library makes what the log has no room for, and the program goes on. Its
// first kernel waits until all calls have returned.
func TestOrderOfLaunchesFarAhead(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	m := newStoppable(t, "", "SIMCUDA_TRACE="+trace)
	be, lc := m.startOrdered(compile(t, "testdata/order.c"))
	be.say("far-ahead 6")
	be.hears("right")
	launched := regexp.MustCompile(`(\d+) begin cuLaunchKernel`)
	others := slices.DeleteFunc(launched.FindAllStringSubmatch(traced(t, trace), -1), func(line []string) bool { return line[1] == strconv.Itoa(be.pid()) })
	if len(others) < 6*(3*128-128-10) { // but for those in flight, and memsets
		t.Errorf("%d launches were made for the program", len(others))
	}
	m.stopped(be, lc, "far-ahead 4")
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
}

// A launch waits for room in the log. It gets no entry if another launch without one came meanwhile, and is on its way to the driver.
func TestOrderOfALaunchThatWaitedForRoom(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	m := newStoppable(t, "", "SIMCUDA_TRACE="+trace)
	be, _ := m.startOrdered(compile(t, "testdata/order.c"))
	before := m.peer(be).BLP.Uncovered
	for _, say := range []string{"full 1", "it waits"} {
		var thread int
		var function string
		be.ask(say, "%d in %s", &thread, &function)
		m.until("a thread waits", func() bool {
			return strings.Contains(traced(t, trace), fmt.Sprintf(" %d begin %s", thread, function))
		})
	}
	be.say("it waits")
	be.hears("right")
	m.until("neither was logged", func() bool { return m.blp(be).Uncovered == before+2 })
	if blp := m.peer(be).BLP; blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
}

// A wait that is only noted down, since the process is being stopped, comes behind the record that the program meant: also where the driver
// has that record, behind a kernel which no stop ends, and where the event stands for another record by now.
func TestOrderOfAWaitForAnEventThatIsRecordedAnew(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/anew.c")
	for _, begin := range []string{"begin", "begin, record anew"} {
		t.Run(strings.ReplaceAll(begin, ",", ""), func(t *testing.T) {
			trace := filepath.Join(t.TempDir(), "trace")
			// A call into a stopped process waits for twice 10 ms and 200. Then it is noted down.
			m := newStoppable(t, "[hold]\nmax_ms = 10\n[share]\nmin_be = 0", "SIMCUDA_TRACE="+trace)
			flags := func() int { // how often a domain's flag was written
				return strings.Count(traced(t, trace), " begin cuStreamWriteValue32")
			}
			be := m.startAs(m.command("be", program, simulated("sim.cubin")))
			be.hears("ready")
			m.until("a wait is noted down", func() bool { // where its thread had passed the gate when the window opened
				lc := m.start("lc")
				m.joined(be, lc)
				m.sees(lc)
				m.until("launches are logged", func() bool {
					be.say("work")
					return be.hear() == "ran 0" && m.blp(be).Launches > 0
				})
				be.say("%s", begin)
				be.hears("ran 0")
				gated, before := m.peer(be).Counters.GateWaits, flags()
				lc.say("lc 1 2 60000000 0 stream")
				m.until("BE is being stopped", func() bool { return flags() > before })
				be.say("go on")
				noted, line := false, ""
				m.until("the threads are done, or wait at the gate", func() bool {
					select {
					case line = <-be.lines:
						noted = true
					default:
					}
					return noted || m.peer(be).Counters.GateWaits > gated
				})
				_ = lc.cmd.Process.Kill()
				if !noted {
					line = be.hear()
				}
				be.say("work") // is done when BE goes on
				be.hears("ran 0")
				if line != "ran 0" {
					t.Errorf("%q while BE was stopped", line)
				}
				be.say("end")
				be.hears("ran 1")
				return noted
			})
			m.told(be)
			if blp := m.peer(be).BLP; blp.GivenUp != 0 || blp.Stops == 0 {
				t.Errorf("%+v", *blp)
			}
		})
	}
}

// A launch that cannot be stopped waits for the window's end.
func TestOrderOfAnUnstoppableLaunch(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "[hold]\nmax_ms = 10000\n[share]\nmin_be = 0")
	be, lc := m.startOrdered(compile(t, "testdata/order.c"))
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

// A window stays open while a call that submits is under way, whatever of the request has ended.
func TestWindowOfALateCall(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.start("be"), m.startAs(m.command("lc", compile(t, "testdata/late.c")))
	lc.hears("ready")
	m.joined(be, lc)
	m.sees(lc)
	lc.say("request")
	lc.hears("late")
	opened := m.peer(lc).WindowOpenedNs
	for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) { // many times the grace
		if now := m.peer(lc).WindowOpenedNs; now == 0 || now != opened {
			t.Fatalf("the window that opened at %d opened at %d", opened, now)
		}
	}
	lc.say("go on")
	lc.hears("done")
	m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
}
