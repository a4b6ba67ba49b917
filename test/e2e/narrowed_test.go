package e2e

import (
	"fmt"
	"testing"
)

// The program narrowed.c: what outlasts a stop of what runs narrow is overtaken by nothing.
func TestNarrowedLate(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/narrowed.c")
	for _, what := range []string{"late-graph", "late-wait", "late-legacy"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "", "SIMCUDA_MPS=1")
			m.configure(fmt.Sprintf("mechanisms = [\"blp\", \"spatial\"]\n[hold]\nmax_ms = 10000\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", m.dir, m.dir))
			be, lc := m.startOrdered(program)
			done := make(chan struct{})
			left := m.leave(lc, []uint32{64}, done)
			be.say("%s 1", what)
			be.hears("until stopped")
			before := m.peer(be).BLP.Narrowed
			lc.say("lc 1 2 500000 0 stream")
			m.until("the window opens", func() bool { return m.peer(lc).WindowOpen })
			m.until("it runs", func() bool { return m.blp(be).Narrowed > before+1 })
			m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
			be.say("go on")
			be.hears("right")
			close(done)
			<-left
		})
	}
}
