package broker

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// people answers a request of people. Nothing more is read of the connection until they have read the answer.
func (s *Server) people(c *connection, m wire.Message, now time.Time) {
	if !s.recognise(c) {
		return
	}
	c.told = true
	switch m := m.(type) {
	case *wire.List:
		s.list(c)
		s.charge(c, len(c.answer)/4) // who may see which is found out for each
	case *wire.Policies:
		if c.who.uid != 0 {
			s.answers(c, s.refusal(wire.RefusedPolicy, 0))
			break
		}
		for part := range slices.Chunk([]byte(s.policy.String()), len(wire.Text{}.Text)) {
			text := wire.Text{Length: uint16(len(part))}
			copy(text.Text[:], part)
			s.answers(c, &text)
		}
		s.answers(c, &wire.Done{})
	case *wire.Query:
		if m.Layout != s.layout { // it could not join
			s.answers(c, s.refusal(wire.RefusedVersion, 0))
			break
		}
		asker := &client{who: c.who, socket: c.level, wanted: int(m.Wanted), facts: factsOf(&c.who, [16]byte{}, c.level, int(m.Wanted))}
		asker.judge(s)
		if reason := s.judged(asker, [16]byte{}); reason != 0 {
			s.answers(c, s.refusal(reason, refusalAgain))
		} else {
			s.answers(c, &wire.Changed{Policy: asker.inForce})
		}
	case *wire.Statistics:
		s.answers(c, s.statistics())
		s.charge(c, len(s.clients)/64) // which are looked at
	case *wire.Set:
		s.answers(c, s.set(c, m))
	case *wire.Ask:
		s.answers(c, s.ask(c, m))
	}
	s.reply(c, now)
}

// answers lets a message follow what else is answered.
func (s *Server) answers(c *connection, m wire.Message) {
	c.answer = append(c.answer, func() error { return s.send(c.fd, m) })
}

// answeredAtOnce is how many parts of an answer are sent before others have their turn.
const answeredAtOnce = 64

// reply sends what is left of an answer. It returns false where the connection is not to be read.
func (s *Server) reply(c *connection, now time.Time) bool {
	for parts := 0; len(c.answer) > 0; parts++ {
		if parts == answeredAtOnce { // others have their turn
			s.lookAgain(c, now.Add(time.Millisecond))
			s.interest(c)
			return false
		}
		err := c.answer[0]()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
			c.full = true
			s.interest(c)
			return false
		}
		if err != nil {
			s.end(c)
			return false
		}
		c.answer = c.answer[1:]
		s.endAt(c, now.Add(s.limits.read))
	}
	s.interest(c)
	return true
}

// list sends an Entry of each client that the asker may see, of those that have ended, whose pages are kept, and of those that the policy
// does not take. Who may see which is found out when it is sent: conditions take their time.
func (s *Server) list(c *connection) {
	count := uint32(0)
	sends := func(target *client, ended bool) func() error {
		return func() error {
			own := c.who.uid == 0 || c.who.uid == target.who.uid
			switch {
			case ended && (!own || !slices.Contains(s.ended, target)): // its pages are given up
				return nil
			case !ended && s.clients[target.id] != target: // it left meanwhile
				return nil
			case !s.may(c, target):
				return nil
			}
			var pages []int
			if own && (ended || target.member) { // the first of its two pages says how it is, the second what it has done
				pages = []int{target.state, target.counters}
			}
			err := s.send(c.fd, s.entry(c, target), pages...)
			if err == nil && !ended {
				count++
			}
			return err
		}
	}
	for _, target := range s.ended {
		c.answer = append(c.answer, sends(target, true))
	}
	for _, target := range slices.SortedFunc(maps.Values(s.clients), func(a, b *client) int { return cmp.Compare(a.id, b.id) }) {
		c.answer = append(c.answer, sends(target, false))
	}
	for _, r := range s.refusals {
		c.answer = append(c.answer, func() error { return s.sendRefusal(c, r) })
	}
	c.answer = append(c.answer, func() error { return s.send(c.fd, &wire.Done{Count: count}) })
}

func (s *Server) entry(c *connection, target *client) *wire.Entry {
	e := &wire.Entry{ID: target.id, GPU: target.gpu.uuid, Pid: pidFor(&c.who, &target.who), UID: target.who.uid, Slot: uint8(target.slot),
		Socket: uint8(target.socket), Wanted: uint8(target.wanted), Set: target.set.Fields, Policy: target.inForce, Overstays: target.overstays}
	if target.member {
		e.Member = 1
	}
	if !target.endedUntil.IsZero() {
		e.Ended = 1
	}
	for which := range target.wantsSince {
		if e.Ended == 1 {
			break // its GPU may be given up too
		}
		word, _ := target.gpu.turnWords(uint8(which))
		if owner, owned := segment.TurnOwner(word.Load()); owned && owner == target.slot {
			e.Turns |= 1 << which
		}
	}
	wire.PutText(e.Name[:], target.name)
	wire.PutText(e.Rule[:], target.grant.Rule)
	wire.PutEnd(e.Cgroup[:], target.who.cgroup)
	return e
}

// may says whether somebody may change what a client is allowed. Those who may can see it.
func (s *Server) may(c *connection, target *client) bool {
	may, err := s.policy.MaySet(factsOf(&c.who, target.gpu.uuid, c.level, target.wanted), target.facts)
	if err != nil {
		s.counted.Failed++
		s.often.Warn().Err(err).Msg("control.when of the policy cannot be evaluated")
	}
	return may
}

// set changes all clients of a process, or none.
func (s *Server) set(c *connection, m *wire.Set) wire.Message {
	var targets []*client
	for _, target := range s.clients {
		if pidFor(&c.who, &target.who) != m.Pid {
			continue
		}
		bySelf := m.Fields&wire.SetShare == 0 || c.who.uid == 0 || target.grant.Per == wire.PerProcess && m.Share <= uint32(target.grant.Share*1e6)
		if !s.may(c, target) || !bySelf {
			return s.refusal(wire.RefusedPolicy, 0)
		}
		targets = append(targets, target)
	}
	for _, target := range targets {
		to := &target.set
		if m.Fields == wire.SetClear {
			*to = wire.Set{}
		}
		if m.Fields&wire.SetLevel != 0 {
			to.Level = m.Level
		}
		if m.Fields&wire.SetShare != 0 {
			to.Share = m.Share
		}
		if m.Fields&wire.SetPaused != 0 {
			to.Paused = m.Paused
		}
		to.Fields |= m.Fields &^ wire.SetClear
		s.unkept = true
		target.judge(s)
	}
	s.log.Info().Uint32("by", c.who.uid).Int32("pid", m.Pid).Uint8("fields", m.Fields).Int("clients", len(targets)).Msg("set")
	return &wire.Done{Count: uint32(len(targets))}
}

// ask passes a request on to a client. Whether it is suspended is a pause, however that was said.
func (s *Server) ask(c *connection, m *wire.Ask) wire.Message {
	target := s.clients[m.ID]
	if target == nil || !target.member {
		return &wire.Done{}
	}
	if !s.may(c, target) {
		return s.refusal(wire.RefusedPolicy, 0)
	}
	target.asked = m.Request
	switch m.What() {
	case wire.AskSuspend:
		target.set.Paused, target.set.Fields = 1, target.set.Fields|wire.SetPaused
	case wire.AskResume:
		target.set.Paused, target.set.Fields = 0, target.set.Fields&^wire.SetPaused
	}
	s.unkept = true
	target.judge(s)
	s.log.Info().Uint32("by", c.who.uid).Uint64("client", m.ID).Uint8("what", m.What()).Msg("asked")
	return &wire.Done{Count: 1}
}
