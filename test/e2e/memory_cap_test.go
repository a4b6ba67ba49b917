package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// caps are the ways in which a driver caps a process at so many MB: cuMemGetInfo tells the cap, or does not.
var caps = []string{"%d", "%d:hidden"}

// capped starts a program that the driver caps.
func (m *machine) capped(role, cap string, megabytes int) *process {
	m.t.Helper()
	cmd := m.command(role, memoryProgram())
	cmd.Env = append(cmd.Env, "SIMCUDA_CAP_MB="+fmt.Sprintf(cap, megabytes))
	return m.startAs(cmd)
}

// The driver refuses memory at a cap although the GPU has room: the call ends without a wait, and no peer gives memory.
func TestRefusedByACap(t *testing.T) {
	t.Parallel()
	for _, cap := range caps {
		for _, role := range []string{"lc", "be"} {
			for _, how := range []string{"memory", "mapped", "async", "pool"} {
				t.Run(strings.Join([]string{cap, role, how}, " "), func(t *testing.T) {
					t.Parallel()
					m := newSmall(t, "", "SIMCUDA_MEMORY_MB=1024", "SIMCUDA_SCRUB_MS_PER_GB=400")
					peer := m.holding("be", 125)
					m.until("what nobody publishes is measured", func() bool { return m.memory(peer).Other != 0 })
					p := m.capped(role, cap, 128)
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

// A capped process gets room that a peer has, up to its cap, and none beyond it.
func TestRoomBelowACap(t *testing.T) {
	t.Parallel()
	for _, cap := range caps {
		t.Run(cap, func(t *testing.T) {
			t.Parallel()
			m := newSmall(t, "wait_ms = 600000", "SIMCUDA_MEMORY_MB=512", "SIMCUDA_COPY_GBS=2.5")
			peer := m.holding("be", 375)
			m.until("what nobody publishes is measured", func() bool { return m.memory(peer).Other != 0 })
			p := m.capped("lc", cap, 256)
			p.filled("memory", 188<<20, 1)
			m.until("the peer has given memory", func() bool { return m.memory(peer).Evictions == 1 })
			if _, result := p.allocate("memory", 88<<20); result != outOfMemory {
				t.Errorf("beyond the cap: %d", result)
			}
			p.right(1)
			if cap == caps[0] && m.memory(peer).Evictions != 1 {
				t.Errorf("a peer gave memory for what the cap refuses: %+v", m.memory(peer))
			}
			p.carriesOut("free 0")
			peer.works(1)
		})
	}
}
