package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// The pages of members that have ended are kept for a while, so that who looks once a second finds all that they counted. A client
// that comes and goes often costs others no more than that they are kept for less long.
const (
	keepEnded = time.Minute
	mostEnded = 128 // of all GPUs
)

// keep takes over the pages of a member that was dropped.
func (s *Server) keep(c *client, now time.Time) {
	c.endedUntil = now.Add(keepEnded)
	s.ended = append(s.ended, c)
	for len(s.ended) > mostEnded {
		s.forgetEnded()
	}
}

// forgetEnded gives up the pages of the member that ended first.
func (s *Server) forgetEnded() {
	c := s.ended[0]
	s.ended = append(s.ended[:0], s.ended[1:]...)
	unix.Close(c.state)
	unix.Close(c.counters)
}

// expireEnded gives up the pages of those that ended long ago.
func (s *Server) expireEnded(now time.Time) {
	for len(s.ended) > 0 && !s.ended[0].endedUntil.After(now) {
		s.forgetEnded()
	}
}
