package broker

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// New connections.

// accept takes what has connected.
func (s *Server) accept(listener, level int, now time.Time) {
	for range atOnce {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			s.often.Error().Err(err).Msg("no connection can be taken")
			s.hear(false)
			return
		case err != nil:
			continue // of that one connection
		}
		s.admit(fd, level, now)
	}
}

func (s *Server) admit(fd, level int, now time.Time) {
	if s.bare {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) // as the listening socket has it
	}
	credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		unix.Close(fd)
		return
	case !s.room(credentials.Uid, now), !s.byUID.add(credentials.Uid, s.policy.Quota.ConnectionsPerUID):
		_ = s.send(fd, s.refusal(wire.RefusedRate, time.Second))
		unix.Close(fd)
		return
	}
	c := &connection{fd: fd, level: level, uid: credentials.Uid, counted: true, who: identity{pidfd: -1}, payer: payer{uid: credentials.Uid}}
	if err := s.watch(fd, unix.EPOLLIN); err != nil {
		s.byUID.remove(c.uid)
		unix.Close(fd)
		return
	}
	s.connections[fd] = c
	c.place = s.unfinished.PushBack(c)
	s.waiting[c.uid]++
	s.endAt(c, now.Add(s.limits.hello))
}

// room makes room for a connection of a user. One that is no client's keeps nobody out: where the user's part is full the oldest of these goes,
// and where there are as many as there may be, the oldest of the user who has most of them. So who says HELLO as soon as it has connected is
// not kept out by others, however often they connect, unless they are as many users as there are connections. (Where clients can send
// descriptors the one that goes counts until it is closed, so the user's next one is refused meanwhile.)
func (s *Server) room(uid uint32, now time.Time) bool {
	gone := false
	for !gone && s.byUID[uid] >= s.policy.Quota.ConnectionsPerUID && s.waiting[uid] > 0 {
		gone = s.displace(func(c *connection) bool { return c.uid == uid }, now)
	}
	for !gone && len(s.connections) >= s.limits.connections && s.unfinished.Len() > 0 {
		most := 0
		for _, n := range s.waiting {
			most = max(most, n)
		}
		gone = s.displace(func(c *connection) bool { return s.waiting[c.uid] == most }, now)
	}
	return len(s.connections) < s.limits.connections
}

// displace reads what the oldest connection has said that is no client's, of these, and ends it unless that made it a client's.
func (s *Server) displace(of func(c *connection) bool, now time.Time) (gone bool) {
	for place := s.unfinished.Front(); place != nil; place = place.Next() {
		c := place.Value.(*connection)
		if !of(c) {
			continue
		}
		s.look(c, 0, now)
		if c.place != nil {
			s.refuse(c, wire.RefusedRate, time.Second)
		}
		return c.client == nil
	}
	return false
}
