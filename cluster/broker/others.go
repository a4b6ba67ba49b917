package broker

import (
	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Processes on a GPU that are no clients yield to no client. While one of them works, best-effort clients have the fair timeslice: with the
// shortest one they would get next to nothing beside it. The caller of SetWorkers says who works on which GPU, and the broker tells the
// clients.
//
// The same holds for a best-effort client beside others that keeps to no turns, or is stopped. Its own word is not enough, since a higher
// level waits for the fair timeslice: it has to work.

// InUse is how many GPUs have clients.
func (s *Server) InUse() int { return int(s.inUse.Load()) }

// SetWorkers says which processes had work lately, as the broker sees PIDs, by the UUID of the GPU. One that is no client counts from
// the second time in a row on: a process works before it has joined.
func (s *Server) SetWorkers(workers map[string][]int32) {
	s.command(func() {
		before := s.others
		s.others = map[string]map[int32]bool{}
		clients := map[int32]bool{}
		for _, c := range s.clients {
			clients[c.who.pid] = true
		}
		for _, g := range s.gpus {
			for pid := range g.outOfTurn(segment.Now()) {
				clients[pid] = false
			}
		}
		for gpu, pids := range workers {
			s.others[gpu] = map[int32]bool{}
			for _, pid := range pids {
				if !clients[pid] {
					s.others[gpu][pid] = true
				}
			}
		}
		for _, g := range s.gpus {
			uuid, count := g.id.String(), uint32(0)
			for pid := range s.others[uuid] {
				if before[uuid][pid] {
					count++
				}
			}
			if g.words().Others.Swap(count) != count {
				s.say(zerolog.InfoLevel, sayOthers, uuid).Uint32("count", count).Msg(sayOthers)
				page.Ring(&g.words().Rings.Bell)
			}
		}
	})
}

// outOfTurn are the processes that may be on the runlist while another one has its turn.
func (g *gpu) outOfTurn(now uint64) map[int32]bool {
	var lowest []*client
	for _, c := range g.slot {
		if c != nil && c.member && c.inForce.Level == wire.Levels-1 {
			lowest = append(lowest, c)
		}
	}
	pids := map[int32]bool{}
	for _, c := range lowest {
		state := c.view.State()
		keeps := state.Has(configs.Turns) && c.barredNs[wire.TurnRun] <= now && passed(state.HeartbeatNs.Load(), now) <= silentAfter
		if !keeps && len(lowest) > 1 {
			pids[c.who.pid] = true
		}
	}
	return pids
}
