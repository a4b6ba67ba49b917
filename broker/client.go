package broker

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/policy"
	"github.com/gpreempt/gpreempt/broker/wire"
)

// client is a process on one GPU. It has a slot from WELCOME on, and is a member, which others see, from MAPPED on.
type client struct {
	id         uint64
	who        identity
	name       string
	gpu        *gpu
	slot       int
	connection *connection // nil: it ended, and the process may come back
	backUntil  time.Time
	holds      holds     // of the connection that ended
	endedUntil time.Time // its pages are kept; zero: it has not ended
	member     bool

	state, counters int          // descriptors
	view            page.Mapping // of the state, once it is sealed

	socket, wanted int
	facts          policy.Facts
	grant          policy.Grant
	set            wire.Set    // what people changed
	asked          uint64      // by people, of its memory: the last request
	inForce        wire.Policy // of all these

	// What it has been told.
	common, ready bool
	policy        wire.Policy
	peers         [wire.Slots]uint64 // ids

	wantsSince [2]uint64 // a turn, by which turn; 0: it does not
	barredNs   [2]uint64 // no turn before
	overstays  uint32
	inARow     [2]uint8 // of them, since it passed a turn on; of each turn
}

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
	if s.clientsOf[c.who.uid] >= s.part() {
		s.refuse(c, wire.RefusedRate, time.Second)
		return
	}
	if wait := s.joins(c.who.uid, now); wait > 0 {
		s.refuse(c, wire.RefusedRate, wait)
		return
	}
	member, reason := s.newClient(c, m)
	if member == nil {
		retry := time.Second
		if reason == wire.RefusedPolicy {
			retry = time.Minute
		}
		s.refuse(c, reason, retry)
		return
	}
	c.client = member
	s.finished(c)
	s.endAt(c, now.Add(s.limits.mapped))
	err := wire.Send(c.fd, s.welcome(member, 0), member.state, member.counters)
	switch {
	case err == nil:
	case errors.Is(err, unix.EPIPE): // it has gone
		s.drop(member)
	default: // it has been sent nothing yet: it cannot be full
		s.often.Warn().Err(err).Int32("pid", c.who.pid).Msg("pages could not be sent")
		s.refuse(c, wire.RefusedBroken, time.Second)
	}
}

// part is how many clients a user may have at most: half as many as there is room for beside those of all. So many users have to come
// together until one who has none finds no room.
func (s *Server) part() int { return (s.limits.connections - len(s.clients)) / 2 }

// same is the client that the process is on that GPU.
func (s *Server) same(c *connection, m *wire.Hello) *client {
	g := s.gpus[m.GPU]
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

// takeBack gives a member another connection. It has its pages, and is told all anew.
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
	if err := wire.Send(c.fd, s.welcome(member, 1)); err != nil {
		s.lost(c, now)
		return
	}
	s.tell(member, now)
}

// newClient gives a process a slot and pages, or says why not.
func (s *Server) newClient(c *connection, m *wire.Hello) (*client, wire.Reason) {
	member := &client{who: c.who, name: wire.GetText(m.Name[:]), connection: c, state: -1, counters: -1, socket: c.level, wanted: int(m.Wanted),
		slot: -1}
	member.facts = factsOf(&c.who, m.GPU, c.level, int(m.Wanted))
	if member.judge(s); !member.grant.Admit {
		return nil, wire.RefusedPolicy
	}
	g, err := s.gpuOf(m.GPU)
	if err != nil {
		s.often.Error().Err(err).Msg("no page could be made")
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
		s.often.Error().Err(err).Msg("no pages could be made")
		member.release()
		s.forget(g)
		return nil, wire.RefusedBroken
	}
	c.who.pidfd = -1 // the client's from now on
	s.lastID++
	member.id, member.gpu = s.lastID, g
	g.enter(member)
	s.clients[member.id], s.dying[member.who.pidfd] = member, member
	s.clientsOf[member.who.uid]++
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
		s.often.Warn().Err(err).Int32("pid", c.who.pid).Uint32("uid", c.who.uid).Msg("a client's pages are not as they were made")
		s.refuse(c.connection, wire.RefusedPages, time.Minute)
		return
	}
	c.member = true
	s.endAt(c.connection, time.Time{})
	c.gpu.admit(c)
	s.log.Debug().Int32("pid", c.who.pid).Uint32("uid", c.who.uid).Str("rule", c.grant.Rule).Uint8("level", c.inForce.Level).
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

// drop ends a client and its connection. Others are told.
func (s *Server) drop(c *client) {
	if s.clients[c.id] != c {
		return
	}
	delete(s.clients, c.id)
	s.clientsOf.remove(c.who.uid)
	s.unkept = s.unkept || c.set.Fields != 0
	delete(s.away, c)
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

// release gives up what a client has of the kernel, but for its pidfd if it did not get so far that this is its own, and for the pages
// of a member.
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

// judge finds out what the client may do, by the policy and by what people set.
func (c *client) judge(s *Server) {
	grant, err := s.policy.Grant(c.facts)
	if err != nil {
		s.often.Warn().Err(err).Msg("a condition of the policy cannot be evaluated")
	}
	c.grant = grant
	best := max(grant.Level, c.socket)
	if !grant.Admit { // it was admitted before
		best = wire.Levels - 1
	}
	level, share := max(best, c.wanted), uint32(grant.Share*1e6)
	if c.set.Fields&wire.SetLevel != 0 {
		level = max(best, int(c.set.Level))
	}
	if c.set.Fields&wire.SetShare != 0 {
		share = c.set.Share
	}
	c.inForce = wire.Policy{Level: uint8(level), Best: uint8(best), Paused: c.set.Paused, Share: share,
		MaxHoldUs: grant.MaxHoldMs * 1000, MemoryMB: grant.MemoryMB, QuantumMs: s.policy.QuantumMs, Asked: c.asked}
	if c.member {
		c.gpu.words().Level[c.slot].Store(uint32(level))
		c.gpu.changed = true
	}
}

func factsOf(who *identity, uuid [16]byte, socket, wanted int) policy.Facts {
	return policy.Facts{UID: who.uid, GID: who.gid, Groups: who.groups, Cgroup: who.cgroup, Container: containerOf(who.cgroup),
		GPU: uuidOf(uuid), Socket: socket, Wanted: wanted}
}

// tell sends what a member has not been told: it knows less than there is, or other than there is. What it does not read costs
// nothing, since nothing is queued but by the kernel.
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
		if err := wire.Send(fd, &wire.Common{Generation: s.generation}, g.common); err != nil {
			return err
		}
		c.common = true
	}
	if c.policy != c.inForce {
		if err := wire.Send(fd, &wire.Changed{Policy: c.inForce}); err != nil {
			return err
		}
		c.policy = c.inForce
	}
	for slot := range c.peers {
		if err := c.tellOf(fd, slot); err != nil {
			return err
		}
	}
	if !c.ready {
		if err := wire.Send(fd, &wire.Ready{Generation: s.generation}); err != nil {
			return err
		}
		c.ready = true
	}
	return nil
}

// tellOf tells who is in a slot.
func (c *client) tellOf(fd, slot int) error {
	peer, is := c.gpu.slot[slot], uint64(0)
	if peer != nil && peer.member && peer != c {
		is = peer.id
	}
	told := &c.peers[slot]
	if *told == is {
		return nil
	}
	if *told != 0 {
		if err := wire.Send(fd, &wire.Gone{ID: *told, Slot: uint8(slot)}); err != nil {
			return err
		}
		*told = 0
	}
	if is != 0 {
		if err := wire.Send(fd, &wire.Peer{ID: is, Slot: uint8(slot)}, peer.state); err != nil {
			return err
		}
		*told = is
	}
	return nil
}
