package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY, cuda.h

// newSmall is a machine whose GPU has 256 MB, and whose processes swap. settings are of [memory].
func newSmall(t *testing.T, settings string, environment ...string) *machine {
	t.Helper()
	if !strings.Contains(settings, "wait_ms") {
		settings = "wait_ms = 600000\n" + settings // a busy machine may take longer than usual programs wait
	}
	return newMachine(t, "mechanisms = [\"timeslice\", \"hold\", \"turns\", \"swap\"]\n[memory]\nturn_min_ms = 100\n"+settings,
		append([]string{"SIMCUDA_MEMORY_MB=256", "SIMCUDA_CONTEXT_MB=4", "SIMCUDA_COPY_GBS=4"}, environment...)...)
}

// memory is the published state of a process's memory.
func (m *machine) memory(p *process) segment.Memory {
	m.t.Helper()
	if peer := m.peer(p); peer.Memory != nil {
		return *peer.Memory
	}
	return segment.Memory{}
}

// holding starts a program with a buffer of so many MB, which is 0, and waits until others know.
func (m *machine) holding(role string, megabytes uint64) *process {
	m.t.Helper()
	p := m.startMemory(role)
	p.filled("memory", megabytes<<20, p.pid())
	m.until("others know what it has", func() bool { return m.memory(p).Resident >= megabytes<<20 })
	return p
}

// works has a program use its buffers, and checks them.
func (p *process) works(buffers int) {
	p.m.t.Helper()
	p.carriesOut("step 0 2")
	p.right(buffers)
}

// In a process that swaps, the mechanism is in force.
func TestSwapIsInForce(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.holding("be", 10)
	m.until("swap is in force", func() bool { return slices.Contains(m.peer(p).Mechanisms, "swap") })
}

// Two best-effort processes of 0.7 of the memory each: both get on, compute right, and the counters tell. One alone, or what
// fits beside them, never moves.
func TestTwoThatDoNotFit(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	a := m.holding("be", 170)
	for range 3 {
		a.works(1)
	}
	if s := m.memory(a); s.Evictions != 0 || s.Swapped != 0 {
		t.Errorf("alone it was swapped: %+v", s)
	}
	b := m.startFilled("be", 170<<20, 7)
	for range 3 {
		b.works(1)
		a.works(1)
	}
	for _, p := range []*process{a, b} {
		m.until("its counters tell", func() bool {
			s := m.memory(p)
			return s.Evictions > 0 && s.Restores > 0 && s.Turns > 0 && s.OutBytes > 0 && s.InBytes > 0 && s.Failures == 0 && s.QuantumNs != 0
		})
	}
}

// Two programs work on a GPU so full that the driver has no memory for a stream or an event.
func TestTwoOnAFullGPU(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "", "SIMCUDA_MAKING_MB=40")
	a := m.holding("be", 225)
	b := m.startFilled("be", 170<<20, 7)
	for range 2 {
		b.works(1)
		a.works(1)
	}
	for _, p := range []*process{a, b} {
		m.until("it came and went", func() bool { s := m.memory(p); return s.Evictions > 0 && s.Restores > 0 })
		if s := m.memory(p); s.Failures != 0 {
			t.Errorf("%d calls failed", s.Failures)
		}
	}
}

// They get on at the same time, too, when both work all the time; and each has its turns.
func TestTwoThatWorkAllTheTime(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	a, b := m.holding("be", 150), m.startFilled("be", 150<<20, 7)
	for _, p := range []*process{a, b} {
		p.working(2<<20, "chains", "copies")
	}
	for range 3 {
		for _, p := range []*process{a, b} {
			p.advances(3)
			m.until("it has another turn", func() bool { return m.memory(p).Restores > 1 })
		}
	}
	for _, p := range []*process{a, b} {
		p.rounds("stop")
		p.works(1)
	}
}

// Of three, two fit. All get on.
func TestThreeOfWhichTwoFit(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	var all []*process
	for i := range 3 {
		p := m.startFilled("be", 90<<20, i)
		all = append(all, p)
	}
	for range 2 {
		for _, p := range all {
			p.works(1)
		}
	}
}

// A latency-critical process that grows gets the room of best-effort work, which has it back when it is free.
func TestGrowthOfLatencyCriticalWork(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	lc := m.holding("lc", 20)
	be := m.holding("be", 200)
	grown := lc.filled("memory", 100<<20, 3)
	lc.right(2)
	if s := m.memory(lc); s.Waits == 0 || s.Evictions != 0 {
		t.Errorf("LC waited %d times and was evicted %d times", s.Waits, s.Evictions)
	}
	m.until("the other is out", func() bool { s := m.memory(be); return s.Swapped != 0 && s.State == "out" })
	be.say("step 0 2")
	m.until("it waits", func() bool { return m.memory(be).WantedSinceNs != 0 })
	lc.carriesOut("free %d", grown)
	if answer := be.hear(); answer != "result 0" {
		t.Errorf("it says %q", answer)
	}
	be.right(1)
}

// Within the reserve a latency-critical process does not wait; and the reserve is free again afterwards.
func TestReserve(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "reserve_mb = 40\n")
	lc := m.holding("lc", 20)
	var all []*process
	for range 2 {
		all = append(all, m.holding("be", 80))
	}
	for i := range 2 {
		lc.filled("memory", 30<<20, 3)
		if s := m.memory(lc); s.Waits != 0 {
			t.Fatalf("it waited for piece %d within the reserve", i)
		}
		m.until("the reserve is free again", func() bool {
			free, _ := lc.free()
			used := uint64(0)
			for _, p := range append(all, lc) {
				s := m.memory(p)
				used += s.Resident + s.Pinned
			}
			return free >= 40<<20 && used+3*4<<20+40<<20 <= 256<<20
		})
	}
	lc.right(3)
}

// The reserve yields to memory that a best-effort process had before; it grants no more.
func TestReserveYields(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "reserve_mb = 40\n")
	be := m.holding("be", 215)
	lc := m.holding("lc", 10)
	for range 3 {
		be.works(1)
		lc.works(1)
	}
	if _, result := be.allocate("memory", 10<<20); result != outOfMemory {
		t.Errorf("it gets of the reserve: %d", result)
	}
	if s := m.memory(be); s.Evictions != 0 {
		t.Errorf("it went out for the reserve: %+v", s)
	}
	lc.filled("memory", 60<<20, 1) // for which it goes
	m.until("others know that it went", func() bool { return m.memory(be).Evictions != 0 })
	lc.carriesOut("free 1")
	be.works(1)
}

// A latency-critical process that idles may go, where it is configured so. Its first call brings it back, or a hint before.
func TestIdleServiceComesBack(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "lc = true\nlc_idle_s = 1\n")
	lc := m.holding("lc", 150)
	be := m.startMemory("be")
	for i := range 4 {
		if i == 0 {
			be.filled("memory", 150<<20, 3)
		}
		be.works(1)
		m.until("the idle one is out", func() bool { return m.memory(lc).Swapped != 0 })
		if i%2 != 0 {
			lc.carriesOut("hint 1000000")
			m.until("it is back before its work", func() bool { s := m.memory(lc); return s.Swapped == 0 && s.State == "running" })
		}
		lc.works(1)
	}
}

// A hint that comes while memory is out does not take the GPU, on which others have to come to their end. One that comes
// later does, also where the memory did not come back because the program has freed it.
func TestHintWhileMemoryIsOut(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "lc = true\n"+configs.HintsFrom(configs.HintExplicit))
	lc := m.holding("lc", 20)
	m.holding("be", 20)
	m.until("there is somebody to preempt", func() bool { lc.works(1); return m.peer(lc).Counters.Holds > 0 })
	m.suspended(lc)
	lc.carriesOut("hint 0")
	m.until("it is dropped", func() bool { h := m.hintsOf(lc, "explicit"); return h.Given == 1 && h.Dropped == 1 })
	lc.carriesOut("free 0")
	m.does(lc, "", "resume")
	lc.filled("memory", 1<<20, 3)
	m.until("one is carried out", func() bool {
		lc.carriesOut("hint 0")
		h := m.hintsOf(lc, "explicit")
		return h.Hit+h.Late+h.Wrong != 0
	})
}

// Beyond its limit, and beyond what can ever be free, a process is out of memory at once; others do not notice.
func TestInVain(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	other := m.holding("be", 100)
	p := m.holding("be", 20)
	if _, result := p.allocate("memory", 300<<20); result != outOfMemory {
		t.Errorf("more than the GPU has: %d", result)
	}
	if _, result := p.allocate("memory", 240<<20); result != outOfMemory {
		t.Errorf("more than the GPU has beside its own: %d", result)
	}
	p.works(1)
	if s := m.memory(other); s.Evictions != 0 {
		t.Errorf("another was evicted for it: %+v", s)
	}
	p.filled("memory", 150<<20, 4) // for which the other goes
	other.works(1)
	p.right(2)
}

func TestLimit(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "limit = \"110MB\"\n") // of which contexts take some
	a, b := m.holding("be", 80), m.holding("be", 90)
	for _, p := range []*process{a, b} {
		if _, result := p.allocate("memory", 30<<20); result != outOfMemory {
			t.Errorf("beyond its limit: %d", result)
		}
		p.works(1)
		if s := m.memory(p); s.Evictions != 0 {
			t.Errorf("it was evicted: %+v", s)
		}
	}
}

// A process counts memory of another program as its contexts only while that program has it; where the driver says what the process has, never.
func TestLimitBesideProgramThatEnds(t *testing.T) {
	t.Parallel()
	const limit, context, piece = 256, 32, 8 // MiB
	for name, known := range map[string]bool{"known": true, "not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environment := []string{"SIMCUDA_MEMORY_MB=1024", fmt.Sprintf("SIMCUDA_CONTEXT_MB=%d", context)}
			if !known {
				environment = append(environment, "SIMCUDA_NO_PID_INFO=1")
			}
			m := newMachine(t, fmt.Sprintf("[memory]\nlimit = \"%dMB\"\n", limit), environment...)
			other := m.startFilled("off", 300<<20, 1)
			p := m.startFilled("be", piece<<20, 2)
			has := piece
			allocates := func() bool {
				_, result := p.allocate("memory", piece<<20)
				if result == 0 {
					has += piece
				}
				return result == 0
			}
			for allocates() {
			}
			has += context
			most := limit
			if !known {
				most = limit - 16
			}
			if has > most || known && has < limit-24 {
				t.Errorf("it has %d MiB with its context, of %d, while another program has memory", has, limit)
			}
			other.finish()
			m.until("it may have what its limit leaves", func() bool {
				free, _ := p.free()
				return has+int(free>>20) > limit-24
			})
			for allocates() {
			}
			if has > limit || has < limit-24 {
				t.Errorf("it has %d MiB with its context, of %d", has, limit)
			}
		})
	}
}

// Code that a program loads behind its first allocation counts, however fast the next ones come.
func TestLimitCountsCode(t *testing.T) {
	t.Parallel()
	const limit, context, code, piece = 256, 32, 64, 8 // MiB
	m := newMachine(t, fmt.Sprintf("[memory]\nlimit = \"%dMB\"\n", limit), "CUDA_MODULE_LOADING=LAZY",
		fmt.Sprintf("SIMCUDA_CONTEXT_MB=%d", context), fmt.Sprintf("SIMCUDA_CODE_MB=%d", code))
	p := m.startFilled("be", piece<<20, 1)
	p.works(1)
	has := context + code + piece
	for {
		if _, result := p.allocate("memory", piece<<20); result != 0 {
			break
		}
		has += piece
	}
	if has > limit || has < limit-24 {
		t.Errorf("it has %d MiB with its context and code, of %d", has, limit)
	}
}

// Processes are killed and stopped. The others go on.
func TestKilledAndStoppedBesideOthers(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	random := rand.New(rand.NewPCG(13, 1))
	small := m.holding("be", 20)
	small.working(2<<20, "chains")
	b := m.holding("be", 150)
	for i := range 4 {
		a := m.startMemory("be")
		a.say("alloc memory %d", 150<<20)
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // anywhere in the swap
		if i%2 == 0 {
			a.signal(syscall.SIGKILL)
			_ = a.wait()
		} else {
			a.stop()
			small.advances(2)
			a.signal(syscall.SIGCONT)
			if answer := a.hear(); answer != "buffer 0 result 0" {
				t.Errorf("it says %q", answer)
			}
			a.carriesOut("fill 0 %d", i)
			a.works(1)
			a.finish()
		}
		b.works(1)
		small.advances(2)
	}
	small.rounds("stop")
	small.works(1)
}

// A GPU full of best-effort memory does not keep a latency-critical process from starting, nor another best-effort one.
func TestStartOnAFullGPU(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "", "SIMCUDA_CONTEXT_MB=20")
	a := m.holding("be", 230)
	for _, role := range []string{"lc", "be"} {
		p := m.startMemory(role)
		p.filled("memory", 10<<20, 3)
		p.works(1)
		p.finish()
		a.works(1)
	}
}

// Programs with memory on two GPUs go out and come back on both.
func TestSwapOnTwoGPUs(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "", "SIMCUDA_DEVICES=2")
	var all []*process
	for i := range 2 {
		p := m.startMemory("be")
		for device := range 2 {
			var used int
			p.ask(fmt.Sprintf("device %d", device), "device %d", &used)
			p.filled("memory", 150<<20, 2*i+device)
		}
		all = append(all, p)
	}
	for range 2 {
		for _, p := range all {
			p.right(2)
		}
	}
}

// Where another mechanism stops kernels, and under an MPS server, memory goes and comes just the same.
func TestSwapBesideOtherMechanisms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, mechanisms, environment string }{
		{"blp", `["timeslice", "hold", "turns", "blp", "swap"]`, "SIMCUDA_LOOK_US=200"},
		{"mps", `["gate", "blp", "mps", "swap"]`, "SIMCUDA_MPS=1"},
		{"alone", `["swap"]`, "SIMCUDA_LOOK_US=200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "mechanisms = "+c.mechanisms+"\n[memory]\nturn_min_ms = 100\nwait_ms = 600000\n", "SIMCUDA_MEMORY_MB=256", "SIMCUDA_CONTEXT_MB=4", "SIMCUDA_COPY_GBS=4", c.environment)
			a := m.holding("be", 150)
			b := m.startFilled("be", 150<<20, 7)
			for range 2 {
				a.works(1)
				b.works(1)
			}
		})
	}
}

// While there is pressure, host memory is pinned before anything has to go.
func TestHostMemoryIsPinnedAhead(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	a, b := m.holding("be", 130), m.holding("be", 100)
	for _, p := range []*process{a, b} {
		m.until("host memory is pinned", func() bool { return m.memory(p).Host >= m.memory(p).Resident })
		if s := m.memory(p); s.Evictions != 0 {
			t.Errorf("it was evicted: %+v", s)
		}
	}
}
