package broker

import (
	"errors"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
)

// How a process becomes a client, and then a member.

// hello takes a process in, or takes one back.
func (s *Server) hello(c *connection, m *wire.Hello, now time.Time) {
	if m.Layout != s.layout {
		s.refuse(c, wire.RefusedVersion, 0)
		return
	}
	if !s.recognise(c) {
		return
	}
	before := s.same(c, m)
	if m.Back == 1 && before != nil && before.id == m.ID && m.Generation == s.generation && before.member {
		s.takeBack(before, c, now)
		return
	}
	if before != nil { // exec, or a connection that was forgotten
		s.drop(before)
	}
	if s.clientsOf[c.owner] >= s.part() {
		s.refuse(c, wire.RefusedRate, time.Second)
		return
	}
	if wait := s.joins(c.owner, now); wait > 0 {
		s.refuse(c, wire.RefusedRate, wait)
		return
	}
	member, reason := s.newClient(c, m)
	if member == nil {
		retry := time.Second
		if reason == wire.RefusedPolicy || reason == wire.RefusedOff {
			retry = refusalAgain
		}
		s.refuse(c, reason, retry)
		return
	}
	c.client = member
	s.finished(c)
	s.endAt(c, now.Add(s.limits.mapped))
	err := s.send(c.fd, s.welcome(member, 0), member.state, member.counters)
	switch {
	case err == nil:
	case errors.Is(err, unix.EPIPE): // it has gone
		s.drop(member)
	default: // it has been sent nothing yet: it cannot be full
		s.say(zerolog.WarnLevel, sayNotSent, ofUser(c.uid)).Err(err).Int32("pid", c.who.pid).Msg(sayNotSent)
		s.refuse(c, wire.RefusedBroken, time.Second)
	}
}

// part is how many clients a user may have at most: half of the places that all clients leave. So many users have to fill their parts until
// a user without clients finds no place.
func (s *Server) part() int { return (s.limits.connections - len(s.clients)) / 2 }

// same is the client that the process is on that GPU.
func (s *Server) same(c *connection, m *wire.Hello) *client {
	g := s.gpus[gpuIn(m)]
	if g == nil {
		return nil
	}
	for _, other := range g.slot {
		if other != nil && other.who.pid == c.who.pid && !ended(other.who.pidfd) { // else the pid is another process's by now
			return other
		}
	}
	return nil
}

func (s *Server) welcome(c *client, back uint8) *wire.Welcome {
	weaker := uint8(0)
	if s.weaker {
		weaker = 1
	}
	c.policy = c.inForce
	return &wire.Welcome{ID: c.id, Generation: s.generation, Slot: uint8(c.slot), Back: back, Weaker: weaker, Policy: c.inForce}
}

// takeBack gives a member another connection. The member has its pages still, and gets all news anew.
func (s *Server) takeBack(member *client, c *connection, now time.Time) {
	if old := member.connection; old != nil {
		old.client = nil
		s.end(old)
	}
	s.release(member.holds)
	member.holds = holds{}
	member.connection, c.client = c, member
	s.finished(c)
	delete(s.away, member)
	s.endAt(c, time.Time{})
	member.common, member.ready, member.peers = false, false, [wire.Slots]uint64{}
	if err := s.send(c.fd, s.welcome(member, 1)); err != nil {
		s.lost(c, now)
		return
	}
	s.counted.Returned++
	s.tell(member, now)
}

// newClient gives a process a slot and pages, or says why not.
func (s *Server) newClient(c *connection, m *wire.Hello) (*client, wire.Reason) {
	member := &client{who: c.who, name: wire.GetText(m.Name[:]), connection: c, state: -1, counters: -1, socket: c.level, wanted: int(m.Wanted),
		slot: -1}
	member.workedAt = time.Now() // as far as is known: it is about to
	member.facts = factsOf(&c.who, gpuIn(m), c.level, int(m.Wanted))
	member.judge(s)
	if reason := s.judged(member, gpuIn(m)); reason != 0 {
		return nil, reason
	}
	g, err := s.gpuOf(gpuIn(m))
	if err != nil {
		s.say(zerolog.ErrorLevel, sayNoPage, everyone).Err(err).Msg(sayNoPage)
		return nil, wire.RefusedBroken
	}
	if reason := g.room(member, s.policy.Quota); reason != 0 {
		s.forget(g)
		return nil, reason
	}
	if err = member.makePages(); err == nil {
		err = s.watch(member.who.pidfd, unix.EPOLLIN)
	}
	if err != nil {
		s.say(zerolog.ErrorLevel, sayNoPage, everyone).Err(err).Msg(sayNoPage)
		member.release()
		s.forget(g)
		return nil, wire.RefusedBroken
	}
	c.who.pidfd = -1 // the client's from now on
	s.lastID++
	member.id, member.gpu = s.lastID, g
	g.enter(member)
	g.divide(member.workedAt, s.policy.QuantumMs)
	s.clients[member.id], s.dying[member.who.pidfd] = member, member
	s.order = append(s.order, member) // ids grow
	s.clientsOf[member.who.owner()]++
	if s.pods != "" && member.facts.Container != "" && member.facts.Namespace == "" {
		s.podless[member] = true
	}
	s.takeOver(member)
	return member, 0
}

func (c *client) makePages() (err error) {
	if c.state, err = page.Make(); err != nil {
		return err
	}
	c.counters, err = page.Make()
	return err
}

// mapped makes a client a member: its pages are sealed, and others see them.
func (s *Server) mapped(c *client, now time.Time) {
	if err := c.seal(); err != nil {
		s.say(zerolog.WarnLevel, sayNotSealed, ofUser(c.who.uid)).Err(err).Int32("pid", c.who.pid).Msg(sayNotSealed)
		s.refuse(c.connection, wire.RefusedPages, time.Minute)
		return
	}
	c.member = true
	s.members++
	s.counted.Joined++
	s.endAt(c.connection, time.Time{})
	c.gpu.admit(c)
	s.log.Debug().Int32("pid", c.who.pid).Uint32("uid", c.who.uid).Str("rule", c.grant.Rule).Uint8("priority", c.inForce.Level).
		Int("slot", c.slot).Msg("joined")
	s.tell(c, now)
}

func (c *client) seal() error {
	var err, errCounters error
	c.state, _, err = page.Seal(c.state)
	c.counters, _, errCounters = page.Seal(c.counters)
	if err = errors.Join(err, errCounters); err == nil {
		c.view, err = page.Map(c.state, false)
	}
	return err
}
