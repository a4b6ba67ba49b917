package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// caps are the ways in which a driver caps a process: cuMemGetInfo tells the cap, or does not.
var caps = []struct {
	name, format string // of SIMCUDA_CAP_MB
	told         bool
}{{"told", "%d", true}, {"hidden", "%d:hidden", false}}

// capped starts a program that the driver caps at so many MB.
func (m *machine) capped(role, format string, megabytes int) *process {
	m.t.Helper()
	cmd := m.command(role, memoryProgram())
	cmd.Env = append(cmd.Env, "SIMCUDA_CAP_MB="+fmt.Sprintf(format, megabytes))
	return m.startAs(cmd)
}

// The driver refuses memory at a cap although the GPU has room: the call ends without a wait, and no peer gives memory.
func TestRefusedByACap(t *testing.T) {
	t.Parallel()
	for _, cap := range caps {
		for _, role := range []string{"lc", "be"} {
			for _, how := range []string{"memory", "mapped", "async", "pool"} {
				t.Run(strings.Join([]string{cap.name, role, how}, " "), func(t *testing.T) {
					t.Parallel()
					m := newSmall(t, "", "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_SCRUB_MS_PER_GB=400")
					peer := m.holding("be", 125)
					m.until("what nobody publishes is measured", func() bool { return m.memory(peer).Other != 0 })
					p := m.capped(role, cap.format, 128)
					p.filled("memory", 36<<20, 1)
					m.until("others know what it has", func() bool { return m.memory(p).Resident >= 36<<20 })
					for range 3 {
						if _, result := p.allocate(how, 190<<20); result != outOfMemory {
							t.Fatalf("result %d", result)
						}
					}
					if waits := m.memory(p).Waits; waits != 0 {
						t.Errorf("it waited %d times for room", waits)
					}
					if had := m.memory(peer); had.Evictions != 0 || had.Resident < 125<<20 {
						t.Errorf("the peer gave memory: %+v", had)
					}
					p.filled(how, 36<<20, 2) // below the cap
					p.right(2)
					peer.works(1)
				})
			}
		}
	}
}

// A capped process gets room that a peer has, up to its cap, and none beyond it. The peer looks again while the driver makes the memory, since
// that takes longer than a heartbeat: it gives once all the same.
func TestRoomBelowACap(t *testing.T) {
	t.Parallel()
	for _, cap := range caps {
		t.Run(cap.name, func(t *testing.T) {
			t.Parallel()
			m := newSmall(t, "wait_ms = 600000", "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_COPY_GBS=20", "SIMCUDA_CREATE_MS_PER_GB=3000")
			peer := m.holding("be", 750)
			m.until("what nobody publishes is measured", func() bool { return m.memory(peer).Other != 0 })
			p := m.capped("lc", cap.format, 512)
			p.filled("memory", 375<<20, 1)
			m.until("the peer has given memory", func() bool { return m.memory(peer).Evictions != 0 })
			gave := func() {
				t.Helper()
				if had := m.memory(peer); had.Evictions != 1 {
					t.Errorf("the peer gave memory %d times: %+v", had.Evictions, had)
				}
			}
			gave()
			if _, result := p.allocate("memory", 175<<20); result != outOfMemory {
				t.Errorf("beyond the cap: %d", result)
			}
			p.right(1)
			if cap.told { // else a peer may give memory before the driver refuses
				gave()
			}
			p.carriesOut("free 0")
			peer.works(1)
		})
	}
}
