package e2e

import (
	"fmt"
	"testing"
)

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
		be.say("%s %d %d %d", c.what, c.of, c.from, us)
		be.hears(fmt.Sprintf("%s %d %d runs %d", c.what, c.of, c.from, c.runs))
	}
	// Whose memory a pool has is not known. The wait is bounded by a second.
	be.say("pool 1 1 %d", 4000000)
	be.hears("pool 1 1 runs 1")
	be.finish()
	lc.finish()
}
