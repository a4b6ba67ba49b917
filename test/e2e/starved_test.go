package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// limits is how a process runs out of something while it runs.
type limits struct {
	name string
	// start has the command obey starve, which is called when the process runs. In end it has what it lacked again.
	start  func(t *testing.T, m *machine, role, program string, arguments ...string) *process
	starve func(t *testing.T, p *process) (end func())
	says   string // what the program may be told
}

// What may run out: threads, as by a limit of processes, and address space.
var whatRunsOut = []limits{
	{"threads", func(t *testing.T, m *machine, role, program string, arguments ...string) *process {
		cmd := m.command(role, program, arguments...)
		cmd.Env = append(cmd.Env, "THREADS_RUN_OUT="+filepath.Join(m.dir, "out"))
		return m.startAs(preloading(t, "nothreads", cmd))
	}, func(t *testing.T, p *process) func() {
		out := filepath.Join(p.m.dir, "out")
		if err := os.WriteFile(out, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Remove(out); err != nil {
				t.Fatal(err)
			}
		}
	}, noThreads},
	{"address space", func(_ *testing.T, m *machine, role, program string, arguments ...string) *process {
		return m.startAs(m.command(role, program, arguments...))
	}, func(t *testing.T, p *process) func() {
		const spare = 4 << 20 // for the program itself and its driver
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid()))
		var pages uint64
		if err == nil {
			_, err = fmt.Fscan(bytes.NewReader(statm), &pages)
		}
		var before unix.Rlimit
		if err == nil {
			err = unix.Prlimit(p.pid(), unix.RLIMIT_AS, nil, &before)
		}
		if err == nil {
			err = unix.Prlimit(p.pid(), unix.RLIMIT_AS, &unix.Rlimit{Cur: pages*uint64(os.Getpagesize()) + spare, Max: before.Max}, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := unix.Prlimit(p.pid(), unix.RLIMIT_AS, &before, nil); err != nil {
				t.Fatal(err)
			}
		}
	}, noMemory},
}

// A best-effort program that is stopped between blocks runs out of something while latency-critical ones come and go.
func TestStoppedProgramRunsOut(t *testing.T) {
	t.Parallel()
	for _, what := range whatRunsOut {
		t.Run(what.name, func(t *testing.T) {
			m := newStoppable(t, "")
			plain := m.startChains("")
			want := plain.chains("several", 8)
			plain.finish()
			be := what.start(t, m, "be", filepath.Join(filepath.Dir(worker), "chains"), simulated("sim.cubin"))
			be.hears("ready")
			m.joined(be)
			beside := func(lc *process, enough func() bool) {
				done := make(chan struct{})
				ended := fire(lc, done)
				for more := true; more; more = !enough() {
					if got := be.chains("several", 8); got != want {
						t.Fatalf("hash %d, undisturbed %d", got, want)
					}
				}
				close(done)
				<-ended
				lc.finish()
			}
			lc := m.start("lc")
			m.joined(lc)
			beside(lc, func() bool { return m.stops(be) > 5 })
			end := what.starve(t, be)
			for range 3 {
				lc := m.start("lc")
				m.joined(lc)
				before := m.peer(lc).Counters.Windows
				beside(lc, func() bool { return m.peer(lc).Counters.Windows > before+5 })
			}
			end()
			if _, stderr := be.finish(); stderr != "" && stderr != what.says {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// A best-effort program loads code, which has to be rewritten, while it lacks something. What cannot be rewritten is loaded as it came. LC
// does not wait for it.
func TestLoadsWhileStarved(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/gpus.c")
	for _, what := range whatRunsOut {
		t.Run(what.name, func(t *testing.T) {
			m := newMachine(t, "", "SIMCUDA_MPS=1", "SIMCUDA_DEVICES=2")
			m.configure(fmt.Sprintf("mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n[segment]\ndirectory = %q\n", m.dir))
			be := what.start(t, m, "be", program, simulated("sim.cubin"))
			be.hears("ready")
			lc := m.start("lc")
			m.joined(be, lc)
			begin := func() { be.say("module 1 1 1000") }
			loaded := func() {
				if answer := be.hear(); answer != "module 1 1 runs 0" && answer != "module 1 1 runs 1" {
					t.Fatalf("it says %q", answer)
				}
			}
			load := func() { begin(); loaded() }
			images := func() uint64 { return m.blp(be).Images }
			m.until("code is rewritten", func() bool { before := images(); load(); return images() > before })
			end := what.starve(t, be)
			begin() // may have to wait: code is rewritten by threads
			for range 10 {
				lc.request(2, 2, "stream")
			}
			end()
			loaded()
			load()
			lc.finish()
			if _, stderr := be.finish(); stderr != "" && stderr != what.says {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// Two best-effort programs do not fit on the GPU together, and one of them runs out of something: both keep what they have.
func TestSwappedProgramRunsOut(t *testing.T) {
	t.Parallel()
	for _, what := range whatRunsOut {
		t.Run(what.name, func(t *testing.T) {
			m := newSmall(t, "")
			be := what.start(t, m, "be", memoryProgram())
			be.filled("memory", 150<<20, 3)
			other := m.startFilled("be", 150<<20, 7)
			turns := func(rounds int) {
				for range rounds {
					for _, p := range []*process{be, other} {
						p.works(1)
					}
				}
			}
			turns(2)
			before := m.memory(be)
			if before.Evictions == 0 || before.Restores == 0 {
				t.Fatalf("nothing is tested: %+v", before)
			}
			be.works(1) // its memory is in
			end := what.starve(t, be)
			be.works(1)
			other.say("step 0 2") // may have to wait: memory goes out and comes in by threads
			end()
			other.hears("result 0")
			other.right(1)
			turns(1)
			for _, p := range []*process{be, other} {
				if _, stderr := p.finish(); stderr != "" && stderr != what.says {
					t.Errorf("stderr %q", stderr)
				}
			}
		})
	}
}
