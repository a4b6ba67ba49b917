package broker

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// This file finds out who has connected, and refuses.

// recognise finds out who connected, and counts the connection as its.
func (s *Server) recognise(c *connection) bool {
	if c.seen {
		return true
	}
	who, err := s.identify(c.fd, c.accepted)
	if err != nil {
		s.say(zerolog.InfoLevel, sayUnknown, ofUser(c.uid)).Err(err).Msg(sayUnknown)
		s.refuse(c, wire.RefusedIdentity, time.Minute)
		return false
	}
	c.who, c.seen = who, true
	if c.owner = who.owner(); c.admin {
		return true
	}
	if c.who.pod, err = s.podOf(c.owner.container); err != nil {
		s.say(zerolog.WarnLevel, sayNoPod, ofUser(c.uid)).Err(err).Msg(sayNoPod)
	}
	if !s.countAsOwner(c, time.Now()) {
		s.refuse(c, wire.RefusedRate, time.Second)
		return false
	}
	return true
}

// refuse says why the connection ends, as well as that is possible, and ends it and its client.
func (s *Server) refuse(c *connection, reason wire.Reason, retry time.Duration) {
	s.say(zerolog.InfoLevel, sayRefused[reason], ofUser(c.uid)).Int32("pid", c.who.pid).Msg(sayRefused[reason])
	_ = s.send(c.fd, s.refusal(reason, retry))
	if c.client != nil {
		s.drop(c.client)
		return
	}
	s.end(c)
}
