package broker

import (
	"errors"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// New connections.

// accept takes the connections that wait at a listener, atOnce of them at most.
func (s *Server) accept(listener, level int, now time.Time) {
	for range atOnce {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			s.say(zerolog.ErrorLevel, sayNoConnection, everyone).Err(err).Msg(sayNoConnection)
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
	if err != nil {
		unix.Close(fd)
		return
	}
	c := &connection{fd: fd, level: level, admin: level == adminLevel, uid: credentials.Uid, accepted: ticks(), who: identity{pidfd: -1}, owner: owner{uid: credentials.Uid}}
	if !s.count(c, now) {
		_ = s.send(fd, s.refusal(wire.RefusedRate, time.Second))
		unix.Close(fd)
		return
	}
	if err := s.watch(fd, unix.EPOLLIN); err != nil {
		s.release(c.holds)
		unix.Close(fd)
		return
	}
	s.connections[fd] = c
	if !c.admin {
		c.place = s.unfinished.PushBack(c)
		s.waiting[c.uid]++
	}
	s.endAt(c, now.Add(s.limits.hello))
}

// count counts a connection, as its user's until it is known whose it is. It returns false where there are too many.
func (s *Server) count(c *connection, now time.Time) bool {
	if c.admin {
		if s.admins >= mostAdmins {
			return false
		}
		s.admins++
		c.holds = holds{as: asAdmin}
		return true
	}
	if !s.room(c.uid, now) || !s.byUID.add(c.uid, s.policy.Quota.ConnectionsPerUID) {
		return false
	}
	c.holds = holds{as: asUser, uid: c.uid}
	return true
}

// countAsOwner counts a connection of which it is known whose it is: root of a container is not counted with root of another one.
func (s *Server) countAsOwner(c *connection, now time.Time) bool {
	quota, group := s.policy.Quota, groupOf(c.who.cgroup)
	if s.byOwner[c.owner] >= quota.ConnectionsPerUID { // people who were answered keep nobody out
		s.displace(func(other *connection) bool { return other != c && other.holds.as == asOwner && other.owner == c.owner }, now)
	}
	if s.byOwner[c.owner] >= quota.ConnectionsPerUID || !s.byCgroup.add(group, quota.ConnectionsPerCgroup) {
		return false
	}
	s.byOwner[c.owner]++
	s.release(c.holds)
	c.holds = holds{as: asOwner, owner: c.owner, cgroup: group}
	return true
}

// room makes room for a connection of a user. Connections without a client yet (unfinished) keep no other connection out. If the user's
// quota is full, the user's oldest unfinished connection ends. If all places are taken, the oldest unfinished connection ends of the user
// that has most of these. So a process that says HELLO as soon as it has connected always gets in, however often others connect. The
// exception: as many users connect as there are places. (Where clients can send descriptors, a connection that ends counts until it is
// closed. The user's next connection is refused until then.)
func (s *Server) room(uid uint32, now time.Time) bool {
	gone := false
	for !gone && s.byUID[uid] >= s.policy.Quota.ConnectionsPerUID && s.waiting[uid] > 0 {
		gone = s.displace(func(c *connection) bool { return c.uid == uid && c.holds.as == asUser }, now)
	}
	for !gone && s.taken() >= s.limits.connections && s.unfinished.Len() > 0 {
		most := 0
		for _, n := range s.waiting {
			most = max(most, n)
		}
		gone = s.displace(func(c *connection) bool { return s.waiting[c.uid] == most }, now)
	}
	return s.taken() < s.limits.connections
}

// taken is how many connections there are but for the administrator's.
func (s *Server) taken() int { return len(s.connections) - s.admins }

// displace takes the oldest unfinished connection of these. It reads what that has sent, and ends it unless this has made it a client's.
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

// ticks is the time since the start of the machine in clock ticks, as /proc says when processes started.
func ticks() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it is there since Linux 2.6.39
	return uint64(now.Nano()) / (uint64(time.Second) / 100)
}
