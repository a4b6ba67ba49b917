package broker

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// This file reads the messages of a connection, and carries them out.

// look sends a connection's news and answers, and reads its messages.
func (s *Server) look(c *connection, events uint32, now time.Time) {
	waits := !c.again.IsZero() || c.answer != nil
	if waits && events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.lost(c, now) // nothing of it is read any more: this would come again and again
		return
	}
	if c.full && events&unix.EPOLLOUT != 0 {
		c.full = false
		s.interest(c)
	}
	if c.answer != nil && !s.timed(c, func() bool { return s.reply(c, now) }) {
		return
	}
	if c.client != nil && c.client.member {
		s.tell(c.client, now)
	}
	for i := 0; i < atOnce && s.connections[c.fd] == c && c.again.IsZero() && c.answer == nil; i++ {
		if !s.read(c, now) {
			return
		}
	}
}

// read reads a message. It returns false where there is none.
func (s *Server) read(c *connection, now time.Time) bool {
	if wait := s.spend(c, now); wait > 0 {
		s.counted.Throttled++
		s.lookAgain(c, now.Add(wait))
		s.interest(c)
		return false
	}
	m, sent, err := wire.ReceiveAll(c.fd)
	if len(sent) > 0 { // none of our messages has any
		s.closer.close(c.uid, func() {}, sent...)
		s.refuse(c, wire.RefusedForm, time.Minute)
		return false
	}
	if errors.Is(err, unix.EAGAIN) {
		c.bucket.left++ // there was none
		s.charge(c, -1)
		return false
	}
	if err == nil || errors.Is(err, wire.ErrUnknown) || errors.Is(err, wire.ErrVersion) || errors.Is(err, wire.ErrForm) {
		s.received(m)
	}
	switch {
	case errors.Is(err, wire.ErrUnknown):
		return true
	case errors.Is(err, unix.ECONNRESET): // it closed without reading all; said once, before what it had sent and the end
		return true
	case errors.Is(err, wire.ErrVersion):
		s.refuse(c, wire.RefusedVersion, 0)
		return false
	case errors.Is(err, wire.ErrForm):
		s.refuse(c, wire.RefusedForm, time.Minute)
		return false
	case err != nil:
		s.lost(c, now)
		return false
	}
	return s.timed(c, func() bool { s.dispatch(c, m, now); return true })
}

func (s *Server) dispatch(c *connection, m wire.Message, now time.Time) {
	switch m := m.(type) {
	case *wire.Hello:
		if c.client == nil && !c.told && !c.admin {
			s.hello(c, m, now)
			return
		}
	case *wire.Mapped:
		if c.client != nil && !c.client.member {
			s.mapped(c.client, now)
			return
		}
	case *wire.Turn:
		if c.client != nil && c.client.member {
			c.client.gpu.turn(c.client, m, s.policy)
			return
		}
	case *wire.Bye:
		if c.client != nil {
			s.drop(c.client)
			return
		}
	case *wire.List, *wire.Set, *wire.Policies, *wire.Query, *wire.Ask, *wire.Statistics:
		if c.client == nil {
			s.people(c, m, now)
			return
		}
	}
	s.refuse(c, wire.RefusedForm, time.Minute)
}
