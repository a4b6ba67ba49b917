package e2e

import (
	"fmt"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// startOn starts a worker on one of two GPUs.
func (m *machine) startOn(gpu int, role string) *process {
	m.t.Helper()
	cmd := m.command(role, worker)
	cmd.Env = append(cmd.Env, fmt.Sprintf("WORKER_DEVICE=%d", gpu))
	return m.startAs(cmd)
}

// slots are a process's slots, by the GPU that the segment is of.
func (m *machine) slots(p *process) map[string]segment.Peer {
	m.t.Helper()
	found := map[string]segment.Peer{}
	for _, s := range m.snapshots() {
		for _, peer := range s.Peers {
			if int(peer.Pid) == p.pid() {
				found[s.GPU] = peer
			}
		}
	}
	return found
}

// A process has a hold on each of two GPUs. A free of memory on one of them releases that one's hold and not the other's, whichever
// context is current.
func TestHoldOnEachGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t, keptHold, "SIMCUDA_DEVICES=2")
	for gpu := range 2 {
		be := m.startOn(gpu, "be")
		be.runBestEffort()
		m.joined(be)
	}
	lc := m.start("lc")
	var names [2]string
	for gpu := range 2 { // which segment is which GPU's
		lc.ask(fmt.Sprintf("hold_on %d %d 0", 1<<gpu, 0), "freed %s", new(string))
		m.until("it has joined", func() bool { return len(m.slots(lc)) == gpu+1 })
		for name := range m.slots(lc) {
			if name != names[0] {
				names[gpu] = name
			}
		}
	}
	for _, c := range []struct{ of, current int }{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
		m.until("a free releases a hold", func() bool { // where both windows are still open
			before := m.slots(lc)
			var freed string
			lc.ask(fmt.Sprintf("hold_on 3 %d %d", c.current, 1+c.of), "freed %s", &freed)
			after := m.slots(lc)
			released := func(gpu int) uint64 {
				return after[names[gpu]].Counters.HoldsReleased - before[names[gpu]].Counters.HoldsReleased
			}
			if n := released(1 - c.of); n != 0 {
				t.Fatalf("a free on GPU %d, with that of GPU %d current, released %d holds of the other GPU", c.of, c.current, n)
			}
			other := after[names[1-c.of]]
			return released(c.of) == 1 && other.WindowOpen && other.Counters.Holds > 0
		})
	}
}

// Kernels on two GPUs that wait for each other, with frees between their launches, are stopped on both, and all end.
func TestKernelsThatWaitForAnotherGPU(t *testing.T) {
	t.Parallel()
	const enough = 30 // stops on each
	m := newStoppable(t, "", "SIMCUDA_DEVICES=2")
	be := m.startAs(m.command("be", compile(t, "testdata/collective.c"), simulated("sim.cubin")))
	be.hears("ready")
	done := make(chan struct{})
	var ended []<-chan struct{}
	for gpu := range 2 {
		lc := m.startOn(gpu, "lc")
		m.joined(lc)
		ended = append(ended, fire(lc, done))
	}
	m.until("it is stopped on both GPUs", func() bool {
		const launches = 200
		be.say("operation %d", launches)
		be.hears(fmt.Sprintf("right %d", launches))
		stops, slots := 0, m.slots(be)
		for gpu, slot := range slots {
			t.Logf("GPU %s: %+v", gpu, slot.BLP)
			if slot.BLP != nil && slot.BLP.Stops >= enough {
				stops++
			}
		}
		return stops == 2
	})
	close(done)
	for _, end := range ended {
		<-end
	}
	be.finish()
}

// A free waits for the GPU of its memory and for no other, and so does what unmaps memory or changes who may use it: the
// kernels of a collective operation on several GPUs wait for one another, and the thread that frees may have to launch some
// of them.
func TestFreesWaitForTheirGPU(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "", "SIMCUDA_DEVICES=2")
	be := m.startAs(m.command("be", compile(t, "testdata/gpus.c"), simulated("sim.cubin")))
	be.hears("ready")
	lc := m.start("lc")
	m.joined(be, lc)
	m.until("launches are logged", func() bool {
		be.say("memory 0 0 1000")
		be.hear()
		blp := m.peer(be).BLP
		return blp != nil && blp.Barriers > 0
	})
	runs := func(what string, us, want int) { // where the machine is not so slow that the kernel ends first, or outlasts the wait's bound
		m.until(fmt.Sprintf("%s: runs %d", what, want), func() bool {
			var is int
			be.ask(fmt.Sprintf("%s %d", what, us), what+" runs %d", &is)
			return is == want
		})
	}
	for _, c := range []struct {
		what     string
		of, from int
		runs     int
	}{{"memory", 1, 1, 1}, {"memory", 1, 0, 1}, {"memory", 0, 1, 0}, {"memory", 0, 0, 0}, {"host", 1, 1, 1}, {"host", 0, 1, 0}, {"module", 1, 1, 1},
		{"unmap", 1, 0, 1}, {"unmap", 0, 1, 0}, {"access", 1, 0, 1}, {"access", 0, 1, 0}} {
		us := 1000000
		if c.what == "unmap" || c.what == "access" {
			us = 400000 // the driver waits for nothing, so the library's wait is bounded by a second
		}
		runs(fmt.Sprintf("%s %d %d", c.what, c.of, c.from), us, c.runs)
	}
	// The library does not know whose memory a pool has. The wait is bounded by a second.
	runs("pool 1 1", 4000000, 1)
	be.finish()
	lc.finish()
}
