package broker

import (
	"container/list"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// connection is a socket. It becomes a client's by HELLO, or people ask by it.
type connection struct {
	fd      int
	level   int // of the socket that it came to
	uid     uint32
	counted bool // among those of its user
	counts  bool // among those of its cgroup
	who     identity
	seen    bool          // who is known
	place   *list.Element // among the unfinished; nil once it is a client's
	client  *client
	told    bool           // people were answered
	answer  []func() error // of people: what is still to be sent

	bucket   bucket
	payer    payer
	full     bool      // it does not read: it is looked at when it does
	again    time.Time // not looked at before; zero: it is
	deadline time.Time // when it ends, or its client; zero: it does not. Both are set by endAt and lookAgain
}

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
		_ = wire.Send(fd, &wire.Refused{Reason: wire.RefusedRate, RetryMs: 1000})
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

// lookAgain says that the connection is not looked at before; zero: it is.
func (s *Server) lookAgain(c *connection, when time.Time) {
	c.again = when
	s.remember(c)
}

// remember sees to it that the times of a connection are looked at. Those who have none are not looked at: they are many.
func (s *Server) remember(c *connection) {
	if !c.deadline.IsZero() || !c.again.IsZero() {
		s.due[c] = true
	}
}

// interest says what is to be heard of a connection.
func (s *Server) interest(c *connection) {
	events := uint32(0)
	if c.again.IsZero() && len(c.answer) == 0 {
		events |= unix.EPOLLIN
	}
	if c.full {
		events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.fd)}) // it is watched
}

// look sends what is to be sent and reads what has come.
func (s *Server) look(c *connection, events uint32, now time.Time) {
	waits := !c.again.IsZero() || len(c.answer) > 0
	if waits && events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.lost(c, now) // nothing of it is read any more: this would come again and again
		return
	}
	if c.full && events&unix.EPOLLOUT != 0 {
		c.full = false
		s.interest(c)
	}
	if len(c.answer) > 0 && !s.reply(c, now) {
		return
	}
	if c.client != nil && c.client.member {
		s.tell(c.client, now)
	}
	for i := 0; i < atOnce && s.connections[c.fd] == c && c.again.IsZero() && len(c.answer) == 0; i++ {
		if !s.read(c, now) {
			return
		}
	}
}

// read reads a message. It returns false where there is none.
func (s *Server) read(c *connection, now time.Time) bool {
	if wait := s.spend(c, now); wait > 0 {
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
	switch {
	case errors.Is(err, unix.EAGAIN):
		c.bucket.left++ // there was none
		s.charge(c, -1)
		return false
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
	s.dispatch(c, m, now)
	return true
}

func (s *Server) dispatch(c *connection, m wire.Message, now time.Time) {
	switch m := m.(type) {
	case *wire.Hello:
		if c.client == nil && !c.told {
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
	case *wire.List, *wire.Set, *wire.Policies, *wire.Query, *wire.Ask:
		if c.client == nil {
			s.people(c, m, now)
			return
		}
	}
	s.refuse(c, wire.RefusedForm, time.Minute)
}

// recognise finds out who connected, and counts the connection as one of its cgroup.
func (s *Server) recognise(c *connection) bool {
	if c.seen {
		return true
	}
	who, err := s.identify(c.fd)
	if err != nil {
		s.often.Info().Err(err).Uint32("uid", c.uid).Msg("it could not be seen who connected")
		s.refuse(c, wire.RefusedIdentity, time.Minute)
		return false
	}
	c.who, c.seen = who, true
	c.payer.container = containerOf(who.cgroup)
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
	_ = wire.Send(c.fd, &wire.Refused{Reason: reason, RetryMs: uint32(retry / time.Millisecond)})
	if c.client != nil {
		s.drop(c.client)
		return
	}
	s.end(c)
}

// lost is called at the end of a connection. A member may come back.
func (s *Server) lost(c *connection, now time.Time) {
	if member := c.client; member != nil && member.member {
		member.connection, member.backUntil = nil, now.Add(s.limits.back)
		s.away[member] = true
		member.holds, c.counted, c.counts = holds{c.uid, c.counted, c.who.cgroup, c.counts}, false, false // who waits for it counts as it
		c.client = nil
	} else if member != nil {
		s.drop(member)
		return
	}
	s.end(c)
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
	held := holds{c.uid, c.counted, c.who.cgroup, c.counts}
	if s.bare {
		unix.Close(c.fd)
		s.release(held)
		return
	}
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, c.fd, nil) // it is watched
	s.closer.close(c.uid, func() { s.command(func() { s.release(held) }) }, c.fd)
}

// holds is what a connection, or a member without one, counts as.
type holds struct {
	uid      uint32
	ofUID    bool
	cgroup   string
	ofCgroup bool
}

func (s *Server) release(h holds) {
	if h.ofUID {
		s.byUID.remove(h.uid)
	}
	if h.ofCgroup {
		s.byCgroup.remove(h.cgroup)
	}
}
