package broker

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The pages of members that have ended are kept for a while, so that who looks once a second finds all that they counted. A client
// that comes and goes often costs others nothing: the owner that has most of them loses its first.
const (
	keepEnded = time.Minute
	mostEnded = 128 // of all GPUs
)

// keep takes over the pages of a member that was dropped.
func (s *Server) keep(c *client, now time.Time) {
	c.endedUntil = now.Add(keepEnded)
	s.ended = append(s.ended, c)
	for len(s.ended) > mostEnded {
		s.forgetEnded(first(s.ended, func(c *client) owner { return c.who.owner() }))
	}
}

// forgetEnded gives up the pages of one of those that ended.
func (s *Server) forgetEnded(i int) {
	c := s.ended[i]
	s.ended = slices.Delete(s.ended, i, i+1)
	unix.Close(c.state)
	unix.Close(c.counters)
}

// expireEnded gives up the pages of those that ended long ago.
func (s *Server) expireEnded(now time.Time) {
	for len(s.ended) > 0 && !s.ended[0].endedUntil.After(now) {
		s.forgetEnded(0)
	}
}
