package broker

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// ofSlice is what a message says of a GPU.
func ofSlice(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

func gpuIn(m *wire.Hello) segment.GPU { return segment.GPU{UUID: m.GPU, Slice: m.Slice == 1} }

func (g *gpu) words() *segment.Header { return g.view.Common() }

// gpuOf returns a GPU, with a common page that nobody else can write.
func (s *Server) gpuOf(id segment.GPU) (*gpu, error) {
	if g := s.gpus[id]; g != nil {
		return g, nil
	}
	fd, err := page.Make()
	if err != nil {
		return nil, err
	}
	view, err := page.Map(fd, true)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if fd, _, err = page.Seal(fd); err != nil {
		view.Unmap()
		return nil, fmt.Errorf("common page: %w", err)
	}
	g := &gpu{id: id, common: fd, view: view, byOwner: counts[owner]{}, byCgroup: counts[string]{}}
	w := g.words()
	w.Magic, w.Version, w.Slots, w.GPU, w.Generation = segment.Magic, s.layout, wire.Slots, id.UUID, s.generation
	w.BrokerHeartbeatNs.Store(segment.Now())
	s.gpus[id] = g
	return g, nil
}

// forget gives up a GPU that has no clients.
func (s *Server) forget(g *gpu) {
	for _, c := range g.slot {
		if c != nil {
			return
		}
	}
	if s.gpus[g.id] == g {
		delete(s.gpus, g.id)
		g.view.Unmap()
		unix.Close(g.common)
	}
}

// room chooses a slot for a client, or says why there is none.
func (g *gpu) room(c *client, quota policy.Quota) wire.Reason {
	if g.byOwner[c.who.owner()] >= quota.MembersPerUID || g.byCgroup[groupOf(c.who.cgroup)] >= quota.MembersPerCgroup {
		return wire.RefusedQuota
	}
	for slot, taken := range g.slot {
		if taken == nil {
			c.slot = slot
			return 0
		}
	}
	return wire.RefusedFull
}

func (g *gpu) enter(c *client) {
	g.slot[c.slot] = c
	g.byOwner[c.who.owner()]++
	g.byCgroup[groupOf(c.who.cgroup)]++
}

// admit shows a client to the others.
func (g *gpu) admit(c *client) {
	w, bit := g.words(), uint64(1)<<c.slot
	w.Level[c.slot].Store(uint32(c.inForce.Level))
	w.Client[c.slot].Store(c.id)
	w.Members.Or(bit) // last: who sees the bit sees the rest
	g.changed = true
}

// leave frees a client's slot, and its turns.
func (g *gpu) leave(c *client) {
	g.slot[c.slot] = nil
	g.byOwner.remove(c.who.owner())
	g.byCgroup.remove(groupOf(c.who.cgroup))
	if !c.member {
		return
	}
	w := g.words()
	w.Members.And(^(uint64(1) << c.slot))
	w.Client[c.slot].Store(0)
	for which := range c.wantsSince {
		word, since := g.turnWords(uint8(which))
		if owner, owned := segment.TurnOwner(word.Load()); owned && owner == c.slot {
			word.Store(segment.NextTurn(word.Load(), -1, false))
			since.Store(segment.Now())
		}
	}
	g.changed = true
}

func (g *gpu) turnWords(which uint8) (word, since *atomic.Uint64) {
	w := g.words()
	if which == wire.TurnMemory {
		return &w.MemoryTurn, &w.MemoryTurnSinceNs
	}
	return &w.Turn, &w.TurnSinceNs
}
