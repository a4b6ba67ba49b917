package broker

import (
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// Who has connected, and that it is refused.

// recognise finds out who connected, and counts the connection as one of its cgroup.
func (s *Server) recognise(c *connection) bool {
	if c.seen {
		return true
	}
	who, err := s.identify(c.fd)
	if err != nil {
		s.often.Info().Err(err).Uint32("uid", c.uid).Msg("cannot tell which process has connected")
		s.refuse(c, wire.RefusedIdentity, time.Minute)
		return false
	}
	c.who, c.seen = who, true
	c.payer.container = containerOf(who.cgroup)
	if c.who.pod, err = s.podOf(c.payer.container); err != nil {
		s.often.Warn().Err(err).Msg("it is not known which pod a container is of")
	}
	if !s.byCgroup.add(who.cgroup, s.policy.Quota.ConnectionsPerCgroup) {
		s.refuse(c, wire.RefusedRate, time.Second)
		return false
	}
	c.counts = true
	return true
}

// refuse says why the connection ends, as well as that is possible, and ends it and its client.
func (s *Server) refuse(c *connection, reason wire.Reason, retry time.Duration) {
	s.often.Info().Uint32("uid", c.uid).Int32("pid", c.who.pid).Stringer("because", reason).Msg("refused")
	_ = s.send(c.fd, s.refusal(reason, retry))
	if c.client != nil {
		s.drop(c.client)
		return
	}
	s.end(c)
}
