package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

func simulated(kernel string) string {
	return filepath.Join(root, "test", "simcuda", "kernels", kernel)
}

// Memsets and copies within device memory are launches that can be stopped, also while they are stopped again and
// again; where they cannot, the driver carries them out.
func TestMemsetsAndCopiesStop(t *testing.T) {
	t.Parallel()
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
		for range 100 { // for a while: what was not ready yet is never counted
			if blp().Launches >= before.Launches+20 {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	})
	before := blp()
	run(200)
	m.until("every operation is counted as a launch", func() bool { return blp().Launches >= before.Launches+200 })
	// Once, not twice. An earlier launch may be counted a moment later than it has ended.
	if after := blp(); after.Launches >= before.Launches+400 || after.Uncovered != before.Uncovered || after.Stops != 0 || after.GivenUp != 0 {
		t.Errorf("%+v, before %+v", after, before)
	}

	p.say("refused")
	p.hears("past 1 nowhere 1 out 0 0")

	lc := m.start("lc")
	m.until("the latency-critical process is there", func() bool { return len(m.peers()) == 2 })
	for i := 0; i < 5 || blp().Cuts == 0; i++ {
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
	lc.finish()
	m.until("each stop is timed", func() bool {
		peer := m.peer(p)
		h := peer.Times
		return peer.BLP != nil && times(h.Stops) == peer.BLP.Stops && times(h.Drains) > 0 && times(h.Drains) <= peer.BLP.Stops &&
			h.Drains.SumNs == peer.BLP.DrainNs && h.Stops.SumNs >= h.Drains.SumNs
	})
}
