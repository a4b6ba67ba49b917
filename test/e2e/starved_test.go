package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limits is how a process runs out of something while it runs.
type limits struct {
	name string
	// start has the command obey starve, which is called when the process runs. end gives back what it lacked.
	start  func(t *testing.T, m *machine, role, program string, arguments ...string) *process
	starve func(t *testing.T, p *process) (end func())
	says   string // The message that the program may get.
}

// whatRunsOut is threads, as by a limit of processes, and address space.
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
		return spareAddresses(t, p, 4<<20) // for the program itself and its driver
	}, noMemory},
}

// spareAddresses lets a process have only so much more address space, until end is called.
func spareAddresses(t *testing.T, p *process, spare uint64) (end func()) {
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
}

// enlarged writes a cubin anew, with so many bytes of nothing in it.
func enlarged(t *testing.T, from, to string, bytes int) {
	cubin, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	const shoff, shnum, header = 40, 60, 64 // of struct Elf64_Ehdr; sizeof(struct Elf64_Shdr)
	at := binary.LittleEndian.Uint64(cubin[shoff:])
	sections := slices.Clone(cubin[at:][:header*int(binary.LittleEndian.Uint16(cubin[shnum:]))])
	cubin = append(cubin, make([]byte, bytes)...)
	binary.LittleEndian.PutUint64(cubin[shoff:], uint64(len(cubin)))
	if err := os.WriteFile(to+".new", append(cubin, sections...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// A best-effort program loads code that fits into its address space, but the rewritten code does not. It is loaded
// as it came, and stops of its present code go on once there is some.
func TestLoadOfTooLargeCode(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	m := newMachine(t, "", "SIMCUDA_MPS=1", "SIMCUDA_DEVICES=2", "GLIBC_TUNABLES=glibc.malloc.arena_max=1") // an arena of a late thread takes 64 MB
	m.configure(fmt.Sprintf("mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n[segment]\ndirectory = %q\n", m.dir))
	code := filepath.Join(m.dir, "code.cubin")
	enlarged(t, simulated("sim.cubin"), code, 0)
	be := m.startAs(m.command("be", compile(t, "testdata/gpus.c"), code))
	be.hears("ready")
	m.joinedOn(2, be) // GPU 0's heart says nothing of GPU 1, where code is loaded
	load := func() {
		be.say("module 1 1 1000")
		if answer := be.hear(); answer != "module 1 1 runs 0" && answer != "module 1 1 runs 1" {
			t.Fatalf("it says %q", answer)
		}
	}
	images := func() uint64 { return m.blp(be).Images }
	m.until("code is rewritten", func() bool { before := images(); load(); return images() > before })
	end := spareAddresses(t, be, size+size/2)
	enlarged(t, simulated("sim.cubin"), code, size)
	for range 3 {
		load()
	}
	end()
	enlarged(t, simulated("sim.cubin"), code, 0)
	m.until("code is rewritten again", func() bool { before := m.blp(be).KernelsGuarded; load(); return m.blp(be).KernelsGuarded > before })
	if _, stderr := be.finish(); strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "not preemptible: map it in the program: cannot allocate memory") {
		t.Errorf("stderr %q", stderr)
	}
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

// A best-effort program loads code, which has to be rewritten, while it lacks something. Code that cannot be rewritten is loaded unchanged.
// Neither the program nor LC waits until the lack ends.
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
			m.joined(lc)
			m.joinedOn(2, be)
			load := func() {
				be.say("module 1 1 1000")
				if answer := be.hear(); answer != "module 1 1 runs 0" && answer != "module 1 1 runs 1" {
					t.Fatalf("it says %q", answer)
				}
			}
			images := func() uint64 { return m.blp(be).Images }
			m.until("code is rewritten", func() bool { before := images(); load(); return images() > before })
			end := what.starve(t, be)
			for range 10 {
				load()
				lc.request(2, 2, "stream")
			}
			end()
			load()
			lc.finish()
			if _, stderr := be.finish(); stderr != "" && stderr != what.says {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// A best-effort program has so many threads of the library's and never more. Its code is loaded all the same, rewritten if there are enough.
func TestLoadsWithFewThreads(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/gpus.c")
	without, with := false, false
	for threads := 1; threads <= 15; threads += 2 {
		m := newMachine(t, "", "SIMCUDA_MPS=1", "SIMCUDA_DEVICES=2", fmt.Sprint("THREADS=", threads))
		m.configure(fmt.Sprintf("mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n[segment]\ndirectory = %q\n", m.dir))
		be := m.startAs(preloading(t, "nothreads", m.command("be", program, simulated("sim.cubin"))))
		be.hears("ready")
		lc := m.start("lc")
		for range 5 {
			be.say("module 1 1 1000")
			if answer := be.hear(); answer != "module 1 1 runs 0" && answer != "module 1 1 runs 1" {
				t.Fatalf("%d threads: it says %q", threads, answer)
			}
			lc.request(2, 2, "stream")
		}
		lc.finish()
		_, stderr := be.finish()
		if !saysNoThreads(stderr) {
			t.Errorf("%d threads: stderr %q", threads, stderr)
		}
		without = without || stderr == noThreads
		with = with || stderr == ""
	}
	if !without || !with {
		t.Errorf("without preemption %v, with it %v: must be both", without, with)
	}
}

// Two best-effort programs do not fit on the GPU together, and one of them runs out of something. A program whose memory is on the GPU goes
// on with it. A program that lacks threads gives its memory and gets it back as before.
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
			if what.says == noThreads {
				turns(1)
			}
			other.say("step 0 2") // may have to wait: who decides what goes out and comes in needs memory
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

// A best-effort program that has never given memory runs out of threads. Its memory makes room for another's, and comes back.
func TestFirstEvictionWithoutThreads(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	threads := whatRunsOut[0]
	be := threads.start(t, m, "be", memoryProgram())
	be.filled("memory", 150<<20, 3)
	if m.memory(be).Evictions != 0 {
		t.Fatal("it has given memory")
	}
	end := threads.starve(t, be)
	other := m.startFilled("be", 150<<20, 7)
	for range 2 {
		be.works(1)
		other.works(1)
	}
	if is := m.memory(be); is.Evictions == 0 || is.Restores == 0 {
		t.Errorf("nothing is tested: %+v", is)
	}
	end()
	for _, p := range []*process{be, other} {
		if _, stderr := p.finish(); stderr != "" {
			t.Errorf("stderr %q", stderr)
		}
	}
}
