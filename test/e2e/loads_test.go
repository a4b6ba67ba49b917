package e2e

import "testing"

// The program loads.c: who asks, waits or launches while another thread loads or unloads code gets on as without the library.
func TestLoads(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/loads.c")
	for _, what := range []string{
		"asked-loading", "asked-late", "asked-freeing",
		"unloaded", "unloaded-library", "unloaded-many", "unloaded-captured", "unloaded-twice", "unloaded-destroyed",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rightAlone(t, program, what)
		})
		t.Run(what+" where making waits", func(t *testing.T) {
			t.Parallel()
			rightAlone(t, program, what, "SIMCUDA_MAKING_WAITS=1")
		})
	}
	for what, rounds := range map[string]int{"asked-loading": 1, "asked-freeing": 1, "unloaded-in-use": 4, "unloaded": 2, "unloaded-library": 2, "unloaded-destroyed": 1} {
		t.Run(what+" while stopped", func(t *testing.T) {
			t.Parallel()
			rightWhileStopped(t, program, what, rounds)
		})
	}
	t.Run("loaded-always", func(t *testing.T) {
		t.Parallel()
		rightAlone(t, program, "loaded-always")
	})
	t.Run("unloaded-at-exit", func(t *testing.T) {
		t.Parallel()
		m := newStoppable(t, "")
		be, _ := m.startOrdered(program)
		be.say("unloaded-at-exit 1")
		be.hears("right")
		be.finish()
	})
}

// The same where the driver loads a kernel's code with its first launch, for which it waits like for any load.
func TestLoadsByLaunches(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/loads.c")
	for _, what := range []string{"asked-first", "asked-first-library", "asked-first-plain", "asked-first-graph", "asked-loading"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newStoppable(t, "", "CUDA_MODULE_LOADING=LAZY")
			be, _ := m.startOrdered(program)
			be.say("%s 1", what)
			be.hears("right")
		})
	}
}

// A launch that waits at the gate goes into the log once its process is stopped, though the window is still open.
func TestLoadsWhileALaunchWaitsAtTheGate(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "[hold]\nmax_ms = 10\n[share]\nmin_be = 0")
	be := m.startAs(m.command("be", compile(t, "testdata/loads.c"), simulated("sim.cubin")))
	lc := m.startAs(m.command("lc", compile(t, "testdata/late.c")))
	be.hears("ready")
	lc.hears("ready")
	m.joined(be, lc)
	m.sees(lc)
	be.say("gated-while-loading 1")
	be.hears("loading")
	lc.say("request")
	lc.hears("late") // its window stays open
	gated := m.peer(be).Counters.GateWaits
	be.say("go on")
	be.hears("launching")
	m.until("a launch waits at the gate", func() bool { return m.peer(be).Counters.GateWaits > gated })
	be.say("go on")
	be.hears("launched")
	if !m.peer(lc).WindowOpen {
		t.Error("the window has closed")
	}
	lc.say("go on")
	lc.hears("done")
	be.say("go on")
	be.hears("right")
}
