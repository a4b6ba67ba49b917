package broker

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file has a client's news, its policy in force, and its end.

// drop ends a client and its connection. Other members get word of it.
func (s *Server) drop(c *client) {
	if s.clients[c.id] != c {
		return
	}
	delete(s.clients, c.id)
	if i, is := slices.BinarySearchFunc(s.order, c.id, func(of *client, id uint64) int { return cmp.Compare(of.id, id) }); is {
		s.order = slices.Delete(s.order, i, i+1)
	}
	if c.member {
		s.members--
	}
	s.clientsOf.remove(c.who.owner())
	s.unkept = s.unkept || c.set.Fields != 0
	delete(s.away, c)
	delete(s.podless, c)
	delete(s.dying, c.who.pidfd) // closing it ends the watch
	c.gpu.leave(c)
	s.forget(c.gpu)
	s.release(c.holds)
	c.release()
	if c.member {
		s.keep(c, time.Now())
	}
	if c.connection != nil {
		c.connection.client = nil
		s.end(c.connection)
	}
}

// release gives up a client's kernel objects. The pages of a member stay. The pidfd stays too if the client has no id yet: its connection
// owns the pidfd until then.
func (c *client) release() {
	c.view.Unmap()
	for _, fd := range []int{c.state, c.counters} {
		if fd >= 0 && !c.member {
			unix.Close(fd)
		}
	}
	if c.id != 0 {
		unix.Close(c.who.pidfd)
	}
}

// lost is called at the end of a connection. A member may come back.
func (s *Server) lost(c *connection, now time.Time) {
	if member := c.client; member != nil && member.member {
		member.connection, member.backUntil = nil, now.Add(s.limits.back)
		s.away[member] = true
		member.holds, c.holds = c.holds, holds{} // who waits for it counts as it
		c.client = nil
	} else if member != nil {
		s.drop(member)
		return
	}
	s.end(c)
}

// judge finds out what the client may do, by the policy and by settings of people.
func (c *client) judge(s *Server) {
	grant, err := s.policy.Grant(c.facts)
	if err != nil {
		s.counted.Failed++
		s.say(zerolog.WarnLevel, sayCondition, ofUser(c.who.uid)).Err(err).Msg(sayCondition)
	}
	c.grant = grant
	if grant.Per != wire.PerProcess && c.gpu != nil {
		c.gpu.divide(time.Now(), s.policy.QuantumMs)
	} else {
		c.part = share{partOf(grant.Share, 1), partOf(grant.ShareMax, 1), uint32(grant.Memory.MB)}
	}
	c.apply(s.policy.QuantumMs)
}

// apply puts the grant and the settings of people in force.
func (c *client) apply(quantumMs uint32) {
	best := max(c.grant.Level, c.socket)
	if !c.grant.Admit { // it was admitted before
		best = wire.Levels - 1
	}
	level, share, most, objective := max(best, c.wanted), c.part.share, c.part.most, c.grant.Objective
	if c.set.Fields&wire.SetLevel != 0 {
		level = max(best, int(c.set.Level))
	}
	if c.set.Fields&wire.SetShare != 0 {
		share = c.set.Share
	}
	if c.set.Fields&wire.SetShareMax != 0 {
		most = c.set.ShareMax
	}
	if c.set.Fields&wire.SetObjective != 0 {
		objective = c.set.Objective
	}
	c.inForce = wire.Policy{Level: uint8(level), Best: uint8(best), Paused: c.set.Paused, Per: c.grant.Per, Share: share, ShareMax: most,
		MaxHoldUs: c.grant.MaxHoldMs * 1000, MemoryMB: c.part.memoryMB,
		MemoryPart: partOf(c.grant.Memory.Part, 1), QuantumMs: quantumMs, Objective: objective, Asked: c.asked}
	if c.member {
		c.gpu.words().Level[c.slot].Store(uint32(level))
		c.gpu.changed = true
	}
}

func factsOf(who *identity, gpu segment.GPU, socket, wanted int) policy.Facts {
	return policy.Facts{UID: who.uid, GID: who.gid, Groups: who.groups, Cgroup: who.cgroup, Container: containerOf(who.cgroup), Host: who.isHost(),
		Namespace: who.pod.Namespace, Pod: who.pod.Name, Annotations: who.pod.Annotations, GPU: gpu.String(), Socket: socket, Wanted: wanted}
}

// tell sends a member its news: what was added, changed or removed since the last message. A member that does not read costs nothing: only
// the kernel queues messages.
func (s *Server) tell(c *client, now time.Time) {
	link := c.connection
	if link == nil || link.full || !link.again.IsZero() {
		return
	}
	err := s.sendNews(c)
	switch {
	case err == nil:
		s.endAt(link, time.Time{})
		return
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		link.full = true
		s.interest(link)
	case errors.Is(err, unix.ETOOMANYREFS): // others, or it, do not read; the socket itself has room
		s.lookAgain(link, now.Add(refsAgain))
		s.interest(link)
	default: // it closed its side: what it said before that is still to be read, and then its end
		return
	}
	if link.deadline.IsZero() {
		s.endAt(link, now.Add(s.limits.read))
	}
}

func (s *Server) sendNews(c *client) error {
	fd, g := c.connection.fd, c.gpu
	if !c.common {
		if err := s.send(fd, &wire.Common{Generation: s.generation}, g.common); err != nil {
			return err
		}
		c.common = true
	}
	if c.policy != c.inForce {
		if err := s.send(fd, &wire.Changed{Policy: c.inForce}); err != nil {
			return err
		}
		c.policy = c.inForce
	}
	for slot := range c.peers {
		if err := s.tellOf(c, slot); err != nil {
			return err
		}
	}
	if !c.ready {
		if err := s.send(fd, &wire.Ready{Generation: s.generation}); err != nil {
			return err
		}
		c.ready = true
	}
	return nil
}

// tellOf tells who is in a slot.
func (s *Server) tellOf(c *client, slot int) error {
	fd := c.connection.fd
	peer, is := c.gpu.slot[slot], uint64(0)
	if peer != nil && peer.member && peer != c {
		is = peer.id
	}
	told := &c.peers[slot]
	if *told == is {
		return nil
	}
	if *told != 0 {
		if err := s.send(fd, &wire.Gone{ID: *told, Slot: uint8(slot)}); err != nil {
			return err
		}
		*told = 0
	}
	if is != 0 {
		if err := s.send(fd, &wire.Peer{ID: is, Slot: uint8(slot)}, peer.state); err != nil {
			return err
		}
		*told = is
	}
	return nil
}
