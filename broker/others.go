package broker

import "github.com/gpreempt/gpreempt/broker/page"

// Processes on a GPU that are no clients yield to nobody. While one of them works, best-effort clients have the fair timeslice: with the
// shortest one they would get next to nothing beside it. The broker is told who works on which GPU, and tells the clients.

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
		for gpu, pids := range workers {
			s.others[gpu] = map[int32]bool{}
			for _, pid := range pids {
				if !clients[pid] {
					s.others[gpu][pid] = true
				}
			}
		}
		for _, g := range s.gpus {
			uuid, count := uuidOf(g.uuid), uint32(0)
			for pid := range s.others[uuid] {
				if before[uuid][pid] {
					count++
				}
			}
			if g.words().Others.Swap(count) != count {
				s.log.Info().Str("gpu", uuid).Uint32("count", count).Msg("processes that are no clients have work")
				page.Ring(&g.words().Rings.Bell)
			}
		}
	})
}
