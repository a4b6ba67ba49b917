package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

func simulated(kernel string) string {
	return filepath.Join(root, "test", "simcuda", "kernels", kernel)
}

// Memsets and copies within device memory are launches that can be stopped, also while they are stopped again and
// again; where they cannot, the driver carries them out.
func TestMemsetsAndCopiesStop(t *testing.T) {
	program := compile(t, "testdata/fills.c")
	m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n[window]\ngrace_min_us = 100\ngrace_max_us = 100\n")
	p := m.startAs(m.command("be", program, simulated("sim.cubin")))
	done := 0
	run := func(count int) {
		t.Helper()
		p.say("run %d", count)
		done += count
		if line, want := p.hear(), fmt.Sprintf("same %d", done); line != want {
			t.Fatalf("%q, want %q", line, want)
		}
	}
	blp := func() segment.BLP {
		for _, peer := range m.peers() {
			if int(peer.Pid) == p.pid() && peer.BLP != nil {
				return *peer.BLP
			}
		}
		return segment.BLP{}
	}
	const own = 4 // kernels of fill.cu
	m.until("all kernels can be stopped", func() bool { return blp().KernelsGuarded >= 3+own })
	m.until("what is not a kernel can be stopped too", func() bool { // they are ready a little later
		before := blp()
		run(20)
		m.until("it is counted", func() bool { return blp().Launches > before.Launches })
		return blp().Launches >= before.Launches+20
	})
	before := blp()
	run(200)
	m.until("every operation is counted as a launch", func() bool { return blp().Launches >= before.Launches+200 })
	if after := blp(); after.Launches != before.Launches+200 || after.Uncovered != before.Uncovered || after.Stops != 0 || after.GivenUp != 0 {
		t.Errorf("%+v, before %+v", after, before)
	}

	p.say("refused")
	if line := p.hear(); line != "past 1 nowhere 1 out 0 0" {
		t.Error(line)
	}

	lc := m.start("lc")
	m.until("the latency-critical process is there", func() bool { return len(m.peers()) == 2 })
	for range 5 {
		p.say("run 100")
		done += 100
		for running := true; running; {
			lc.request(3, 2, "stream")
			select {
			case line := <-p.lines:
				if want := fmt.Sprintf("same %d", done); line != want {
					t.Fatalf("%q, want %q", line, want)
				}
				running = false
			default:
			}
		}
	}
	m.until("launches were cut and resumed", func() bool { b := blp(); return b.Cuts > 0 && b.ResumedBlocks > 0 && b.DrainMaxNs > 0 })
	if b := blp(); b.GivenUp != 0 || b.DrainNs < b.DrainMaxNs || b.Stops == 0 {
		t.Errorf("%+v", b)
	}
}

// A program stops and restores streams of its own: gpreempt.h.
func TestStreamsOfOneProcess(t *testing.T) {
	program := compile(t, "testdata/preempt.c")
	start := func(t *testing.T) *process {
		m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n")
		p := m.startAs(m.command("be", program, simulated("sim.cubin")))
		if line := p.hear(); line != "before 1 1 after 0" {
			t.Fatal(line)
		}
		return p
	}
	const block, queue = 2, 1
	for _, c := range []struct {
		name          string
		level, waited int
	}{{"block", block, 1}, {"block, restored by the thread", block, 0}, {"queue", queue, 1}, {"queue, restored by the thread", queue, 0}} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t)
			const rounds = 30
			p.say("rounds %d %d %d", rounds, c.level, c.waited)
			busy := 1
			if c.level == queue { // what was launched has run
				busy = 0
			}
			if line, want := p.hear(), fmt.Sprintf("still %d busy %d preempted %d, now 0, for 1 level %d", rounds, busy, rounds, c.level); line != want {
				t.Errorf("%q, want %q", line, want)
			}
			p.say("fed %d", c.level)
			if line := p.hear(); line != "unchanged 1 waits 1 launched 3000" {
				t.Error(line)
			}
			p.finish()
		})
	}
	t.Run("errors", func(t *testing.T) {
		p := start(t)
		p.say("errors")
		want := "level 2 thread 2 preempt 3 restore 3 disable 3 query 0 level 0 nowhere 2 short 2 capturing 4 enable 0 again 0 " +
			"stop 0 twice 0 change 2 same 0 restore 0 twice 0 preemptions 1 gone 3 no context 2 either 2 nor 2 "
		if line := p.hear(); line != want {
			t.Errorf("%q, want %q", line, want)
		}
		p.say("priorities")
		if line := p.hear(); line != "set 0 has -3 less 2 more 2 " {
			t.Error(line)
		}
		p.say("many")
		if line := p.hear(); line != "enabled 1 then 5" {
			t.Error(line)
		}
		p.finish()
	})
	for _, c := range []struct{ name, role, settings, want string }{
		{"no role", "", "", "before 1 1 after 1"},
		{"off", "off", "", "before 1 1 after 1"},
		{"not named", "be", "", "before 1 1 after 1"},
		{"latency-critical", "lc", "mechanisms = [\"blp\"]", "before 1 1 after 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, c.settings)
			p := m.startAs(m.command(c.role, program, simulated("sim.cubin")))
			if line := p.hear(); line != c.want {
				t.Error(line)
			}
			p.finish()
		})
	}
	t.Run("no library", func(t *testing.T) {
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
	const script = `
import ctypes, sys
import gpreempt
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code): assert code == 0, code
def refused(function, *arguments):
    try: return function(*arguments)
    except gpreempt.Error as e: return e.code
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
