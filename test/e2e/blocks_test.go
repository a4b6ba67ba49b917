package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A preempted program computes the same: no block is lost, runs twice, or overtakes another.
func TestResultsOfBlocks(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/blocks.c")
	images := filepath.Join(root, "test", "simcuda", "kernels")
	for _, test := range []struct {
		name, role, image string
		settings          string
		environment       []string
	}{
		{"no role", "", "sim.cubin", "", nil},
		{"timeslices", "be", "sim.fatbin", "", nil},
		{"under MPS", "be", "sim.cubin", "", []string{"SIMCUDA_MPS=1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, test.settings, test.environment...)
			lc := m.start("lc")
			m.joined(lc)
			seed := fmt.Sprint(len(test.name))
			requests := 0
			stdout, stderr := m.runUntil(m.command(test.role, program, filepath.Join(images, test.image), seed), "requests", func() bool {
				lc.request(10, 3, "stream")
				requests += 10
				return requests >= 50 && (test.role == "" || m.peer(lc).Counters.Windows >= 30)
			})
			var rounds int
			if _, err := fmt.Sscanf(stdout, "rounds %d", &rounds); err != nil || rounds == 0 || strings.Contains(stderr, "blocks:") {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
}

// A program stops and restores streams of its own: gpreempt.h.
func TestStreamsOfOneProcess(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/preempt.c")
	start := func(t *testing.T) *process {
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("before 1 1 after 0")
		return p
	}
	t.Run("latency-critical and asked for", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\nlc_streams = true\n")
		p := m.startAs(m.command("lc", program, simulated("sim.cubin")))
		p.hears("before 1 1 after 0")
		p.say("rounds 10 2 1")
		p.hears("still 10 busy 1 preempted 10, now 0, for 1 level 2")
		p.say("legacy 5")
		p.hears("in order")
		if _, stderr := p.finish(); stderr != "" {
			t.Errorf("stderr %q", stderr)
		}
	})
	const block, queue = 2, 1
	for _, c := range []struct {
		name          string
		level, waited int
	}{{"block", block, 1}, {"block restored by the thread", block, 0}, {"queue", queue, 1}, {"queue restored by the thread", queue, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			const rounds = 30
			p.say("rounds %d %d %d", rounds, c.level, c.waited)
			busy := 1
			if c.level == queue { // what was launched has run
				busy = 0
			}
			p.hears(fmt.Sprintf("still %d busy %d preempted %d, now 0, for 1 level %d", rounds, busy, rounds, c.level))
			p.say("fed %d", c.level)
			p.hears("unchanged 1 waits 1 launched 3000")
			if c.level == block && c.waited == 1 {
				p.say("refused")
				p.hears("at once 1") // as without the library, and no later call has it
			}
			p.finish()
		})
	}
	t.Run("legacy stream", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("legacy 5")
		p.hears("in order")
		p.finish()
	})
	for _, who := range []string{"gpu", "thread"} { // blocks that end late for that wait for nobody
		t.Run(who+" away", func(t *testing.T) {
			t.Parallel()
			p := start(t)
			stops := uint64(0)
			p.m.until("a launch is cut", func() bool { // where the machine is not slow
				p.say("%s away", who)
				p.hears("right")
				stops++
				p.m.until("the stop is counted", func() bool { return p.m.stops(p) == stops })
				return p.m.blp(p).Cuts > 0
			})
			if blp := p.m.peer(p).BLP; blp.Beside != 0 {
				t.Errorf("%+v", *blp)
			}
			if _, stderr := p.finish(); stderr != "" {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
	t.Run("clusters that cannot begin again", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.m.until("a kernel is cut, and kept off", func() bool { // where the machine is not slow
			p.say("clusters")
			line := p.hear()
			t.Log(line)
			if line != "right" && line != "not cut" && line != "not kept off" {
				t.Fatalf("%q; stderr %q", line, p.stderr.String())
			}
			return line == "right"
		})
		p.finish()
	})
	t.Run("clusters that have ended", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		const all = 4
		p.m.until("all are cut", func() bool { // where the machine is not slow
			var cut int
			before := p.m.blp(p)
			p.ask("ended", "%d cut", &cut)
			p.m.until("the stops are counted", func() bool { return p.m.stops(p) == before.Stops+all })
			if blp := p.m.blp(p); cut == all && blp.Cuts != before.Cuts+all {
				t.Fatalf("%+v, before %+v", blp, before)
			}
			return cut == all
		})
		p.finish()
	})
	t.Run("unwatched", func(t *testing.T) { // what nobody waits for is no drain
		t.Parallel()
		p := start(t)
		p.m.mostly("a drain counts from when it is asked for", func() bool { // where the machine is not slow
			before := p.m.blp(p)
			p.say("unwatched")
			p.hears("right")
			p.m.until("the stop is counted", func() bool { return p.m.stops(p) == before.Stops+1 })
			return p.m.blp(p).DrainNs-before.DrainNs < uint64(20*time.Millisecond)
		})
		p.finish()
	})
	t.Run("given up while held", func(t *testing.T) { // nothing was stopped, so nothing is lost
		t.Parallel()
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "SIMCUDA_FAIL=cuEventQuery:1")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("before 1 1 after 0")
		p.say("held")
		p.hears("stop 6 go on 6")
		m.until("it is told", func() bool { return m.blp(p).GivenUp == 1 })
		p.finish()
	})
	t.Run("beside captures", func(t *testing.T) { // which none of our calls breaks
		t.Parallel()
		p := start(t)
		p.say("beside captures")
		p.hears("captures 1 broken 0")
		p.finish()
	})
	t.Run("narrow", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("narrow 30 32")
		p.hears("ended 30 of 30 while stopped")
		p.m.until("it is counted", func() bool { return p.m.blp(p).Narrowed >= 30*2 })
		p.say("widths")
		p.hears("not enabled 3 negative 2 more than there are 2 all 0 few 0 too many 5 one of them 0 another context 7 ")
		p.finish()
	})
	t.Run("narrow, until the width is taken away", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("taken 30 32")
		p.hears("taken 30 of 30, busy 1")
		p.finish()
	})
	t.Run("narrow, while work waits for what is logged", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("waited")
		p.hears("going on 0 narrow 0 busy 8 idle 0 right 1")
		p.finish()
	})
	t.Run("narrow, of kernels that fit at once", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("at once")
		p.hears("ended")
		p.m.until("what may wait for each other is held back", func() bool { return p.m.blp(p).HeldTogether == 1 && p.m.blp(p).Narrowed == 1 })
		p.say("")
		p.hears("held 1 wrong 0")
		p.finish()
	})
	// A stop waits for the wave that runs, and for one more at most: the launch ends with its third wave, where it began with the first.
	for _, c := range []struct {
		how             string
		stops           uint64 // in a round
		threads, shared int
		onSM, sms       int // how many blocks an SM has room for
	}{
		{"wide", 1, 64, 120000, 1, 132}, {"wide", 1, 1024, 0, 2, 132},
		{"narrow", 1, 64, 120000, 1, 16}, {"narrow", 1, 256, 0, 8, 16}, {"narrow", 1, 256, 0, 8, 64},
		{"cut", 2, 64, 120000, 1, 16}, {"cut", 2, 256, 0, 8, 16},
	} {
		t.Run(fmt.Sprintf("a large launch, %s, %d blocks on each of %d SMs", c.how, c.onSM, c.sms), func(t *testing.T) {
			t.Parallel()
			p := start(t)
			p.m.mostly("it stops within two waves", func() bool { // where the machine is not slow
				var ran, wrong int
				before := p.m.blp(p)
				p.say("large %s %d %d %d", c.how, c.threads, c.shared, c.sms)
				p.hears("stops")
				p.m.until("the stop is counted", func() bool { return p.m.stops(p) >= before.Stops+c.stops })
				p.ask("", "ran %d wrong %d", &ran, &wrong)
				if wrong != 0 {
					t.Fatalf("%d blocks ran twice or never", wrong)
				}
				narrow := uint64(ran)
				if c.how == "wide" {
					narrow = 0
				}
				p.m.until("the blocks that ran narrow are counted", func() bool { return p.m.blp(p).NarrowBlocks-before.NarrowBlocks == narrow })
				return ran <= 3*c.onSM*c.sms
			})
			p.finish()
		})
	}
	t.Run("given up while narrow", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "SIMCUDA_FAIL=cuEventRecord:2") // the first marker there
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("before 1 1 after 0")
		p.say("given up")
		p.hears("restored 6 in order")
		m.until("it is told", func() bool {
			blp := m.blp(p)
			return blp.GivenUp == 1 && blp.Narrowed > 0
		})
		p.finish()
	})
	t.Run("given up while stopped", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "SIMCUDA_FAIL=cuEventRecord:1")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		p.hears("before 1 1 after 0")
		p.say("given up while stopped")
		p.hears("restored 6 right")
		m.until("it is told", func() bool { return m.blp(p).GivenUp == 1 })
		p.finish()
	})
	t.Run("errors", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		p.say("errors")
		want := "level 2 thread 2 preempt 3 restore 3 disable 3 query 0 level 0 nowhere 2 short 2 capturing 4 enable 0 again 0 " +
			"stop 0 twice 0 change 2 same 0 restore 0 twice 0 preemptions 1 gone 3 no context 2 either 2 nor 2 "
		p.hears(want)
		p.say("priorities")
		p.hears("set 0 has -3 less 2 more 2 ")
		p.say("many")
		p.hears("enabled 1 then 5")
		p.finish()
	})
	t.Run("exit", func(t *testing.T) { // with the stream stopped
		t.Parallel()
		p := start(t)
		p.say("leave")
		if last, _ := p.finish(); last != "ended 1" {
			t.Error(last)
		}
	})
	t.Run("exit of children", func(t *testing.T) { // forked with the stream stopped, and its locks held
		t.Parallel()
		p := start(t)
		p.say("children 30")
		p.hears("ended 30 of 30 children")
		p.finish()
	})
	for _, c := range []struct{ name, role, settings, want string }{
		{"no role", "", "", "before 1 1 after 1"},
		{"off", "off", "", "before 1 1 after 1"},
		{"not named", "be", "", "before 1 1 after 1"},
		{"latency-critical", "lc", "mechanisms = [\"blp\"]", "before 1 1 after 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.settings)
			p := m.startAs(m.command(c.role, program, simulated("sim.cubin")))
			if line := p.hear(); line != c.want {
				t.Error(line)
			}
			p.finish()
		})
	}
	t.Run("no library", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t, "")
		cmd := m.command("be", program, simulated("sim.cubin"))
		cmd.Env = append(cmd.Env, "LD_PRELOAD=")
		if got := output(t, cmd); got != "no library\n" {
			t.Error(got)
		}
	})
}

// The Python module says the same as the header, with any library's streams.
func TestPythonStreams(t *testing.T) {
	t.Parallel()
	const script = `
import ctypes, pickle, sys
import gpreempt
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code): assert code == 0, code
def refused(function, *arguments):
    try: return function(*arguments)
    except gpreempt.Error as e: return pickle.loads(pickle.dumps(e)).code # it may come from another process
stream, context, module, chain = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
print(refused(gpreempt.preempt, None), end=" ")
ok(cuda.cuInit(0)); ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)); ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuStreamCreate(ctypes.byref(stream), 1))
class Torch: cuda_stream = stream.value
class Cupy: ptr = stream.value
class Numba: handle = stream
class Python:
    def __cuda_stream__(self): return (0, stream.value)
print(refused(gpreempt.enable, stream.value), end=" ")
if len(sys.argv) > 1:
    print(gpreempt.query(Torch()).level, end=" ")
    for kind in Torch(), Cupy(), Numba(), Python(), stream, stream.value:
        with gpreempt.preempted(kind):
            assert gpreempt.query(kind).preempted
        gpreempt.restore(kind, wait=True)
        assert not gpreempt.query(kind).preempted
    state = gpreempt.query(stream)
    print(state.level, state.preemptions, state.preempted_ns > 0, end=" ")
    gpreempt.disable(Cupy())
    print(refused(gpreempt.preempt, Cupy()), end=" ")
    gpreempt.enable(None, "queue")
    print(gpreempt.query(None).level, end=" ")
try: gpreempt.enable(stream, "all")
except ValueError: print("wrong", flush=True)
`
	for _, c := range []struct {
		role, settings, argument, want string
	}{
		{"", "", "", "1 1 wrong\n"},
		{"lc", "", "", "1 1 wrong\n"},
		{"be", "mechanisms = [\"blp\"]", "on", "1 None block block 6 True 3 queue wrong\n"},
	} {
		m := newMachine(t, c.settings, "PYTHONPATH="+filepath.Join(root, "api", "python"), "PYTHONDONTWRITEBYTECODE=1")
		arguments := []string{"-c", script}
		if c.argument != "" {
			arguments = append(arguments, c.argument)
		}
		if got := output(t, m.command(c.role, "python3", arguments...)); got != c.want {
			t.Errorf("role %q: %q, want %q", c.role, got, c.want)
		}
	}
}
