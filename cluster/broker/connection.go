package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// This file has the lifetime of a connection, and what is given up at its end.

// finished takes a connection from those that are no client's: it has one, or ends.
func (s *Server) finished(c *connection) {
	if c.place != nil {
		s.unfinished.Remove(c.place)
		s.waiting.remove(c.uid)
		c.place = nil
	}
}

// endAt says when the connection ends; zero: it does not.
func (s *Server) endAt(c *connection, when time.Time) {
	c.deadline = when
	s.remember(c)
}

// lookAgain bars looks at the connection until a time; zero: it may be looked at now.
func (s *Server) lookAgain(c *connection, when time.Time) {
	c.again = when
	s.remember(c)
}

// remember puts a connection that has a time (deadline or again) among those that the loop looks at. The others are many, and are not
// looked at.
func (s *Server) remember(c *connection) {
	if !c.deadline.IsZero() || !c.again.IsZero() {
		s.due[c] = true
	}
}

// end closes a connection, which has no client.
func (s *Server) end(c *connection) {
	if s.connections[c.fd] != c {
		return
	}
	delete(s.connections, c.fd)
	delete(s.due, c)
	s.finished(c)
	if c.who.pidfd >= 0 {
		unix.Close(c.who.pidfd)
	}
	held := c.holds
	if s.bare {
		unix.Close(c.fd)
		s.release(held)
		return
	}
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, c.fd, nil) // it is watched
	s.closer.close(c.uid, func() { s.command(func() { s.release(held) }) }, c.fd)
}

func (s *Server) release(h holds) {
	switch h.as {
	case asUser:
		s.byUID.remove(h.uid)
	case asOwner:
		s.byOwner.remove(h.owner)
		s.byCgroup.remove(h.cgroup)
	case asAdmin:
		s.admins--
	}
}
