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

// answer is the rest of an answer. Each call sends one part, or passes over one; more says that there is another. A part that could not be
// sent is sent by the next call. So an answer of any length costs as much memory as one part.
type answer func() (more bool, err error)

// people answers a request of people. It reads no more of the connection until they have read the answer.
func (s *Server) people(c *connection, m wire.Message, now time.Time) {
	if !s.recognise(c) {
		return
	}
	c.told = true
	switch m := m.(type) {
	case *wire.List:
		c.answer = s.list(c)
	case *wire.Policies:
		c.answer = s.policies(c)
	case *wire.Query:
		c.answer = s.says(c, s.query(c, m))
	case *wire.Statistics:
		c.answer = s.says(c, s.statistics())
	case *wire.Set:
		c.answer = s.says(c, s.set(c, m))
	case *wire.Ask:
		c.answer = s.says(c, s.ask(c, m))
	}
	s.reply(c, now)
}

// says is an answer of one message.
func (s *Server) says(c *connection, m wire.Message) answer {
	return func() (bool, error) { return false, s.send(c.fd, m) }
}

// policies are the policy's text. It is the administrator's: it names users and what they may have.
func (s *Server) policies(c *connection) answer {
	if !c.admin {
		return s.says(c, s.refusal(wire.RefusedPolicy, 0))
	}
	rest := s.policy.String()
	return func() (bool, error) {
		if rest == "" {
			return false, s.send(c.fd, &wire.Done{})
		}
		text := wire.Text{Length: uint16(min(len(rest), len(wire.Text{}.Text)))}
		copy(text.Text[:], rest)
		err := s.send(c.fd, &text)
		if err == nil {
			rest = rest[text.Length:]
		}
		return true, err
	}
}

// query is what a client of this process would get.
func (s *Server) query(c *connection, m *wire.Query) wire.Message {
	if c.admin {
		return s.refusal(wire.RefusedForm, 0)
	}
	if m.Layout != s.layout { // it could not join
		return s.refusal(wire.RefusedVersion, 0)
	}
	asker := &client{who: c.who, socket: c.level, wanted: int(m.Wanted), facts: factsOf(&c.who, segment.GPU{}, c.level, int(m.Wanted))}
	asker.judge(s)
	if reason := s.judged(asker, segment.GPU{}); reason != 0 {
		return s.refusal(reason, refusalAgain)
	}
	return &wire.Changed{Policy: asker.inForce}
}

// answeredAtOnce is how many parts of an answer are sent before others have their turn.
const answeredAtOnce = 64

// reply sends the rest of an answer. It returns false where the connection is not to be read.
func (s *Server) reply(c *connection, now time.Time) bool {
	for parts := 0; c.answer != nil; parts++ {
		if parts == answeredAtOnce { // others have their turn
			s.lookAgain(c, now.Add(time.Millisecond))
			s.interest(c)
			return false
		}
		more, err := c.answer()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			c.full = true
			s.interest(c)
			return false
		case errors.Is(err, unix.ETOOMANYREFS):
			s.lookAgain(c, now.Add(refsAgain))
			s.interest(c)
			return false
		case err != nil:
			s.end(c)
			return false
		case !more:
			c.answer = nil
		}
		s.endAt(c, now.Add(s.limits.read))
	}
	s.interest(c)
	return true
}

// list sends an Entry of each client that the asker may see. Then it sends clients that have ended and whose pages are kept, and processes
// that the policy refused. The broker decides on each when it is sent: conditions take their time, and clients come and go.
func (s *Server) list(c *connection) answer {
	ended, refusals, last, count := slices.Clone(s.ended), slices.Clone(s.refusals), uint64(0), uint32(0)
	return func() (more bool, err error) {
		if len(ended) > 0 {
			if err = s.sendEnded(c, ended[0]); err == nil {
				ended = ended[1:]
			}
			return true, err
		}
		if i, _ := slices.BinarySearchFunc(s.order, last+1, func(of *client, id uint64) int { return cmp.Compare(of.id, id) }); i < len(s.order) {
			target := s.order[i]
			sent, err := s.sendClient(c, target)
			if err == nil {
				last = target.id
			}
			if sent {
				count++
			}
			return true, err
		}
		if len(refusals) > 0 {
			if err = s.sendRefusal(c, refusals[0]); err == nil {
				refusals = refusals[1:]
			}
			return true, err
		}
		return false, s.send(c.fd, &wire.Done{Count: count})
	}
}

// sendEnded tells of a client that has ended, if its pages are kept still.
func (s *Server) sendEnded(c *connection, target *client) error {
	if !s.has(c, target) || !slices.Contains(s.ended, target) {
		return nil
	}
	return s.send(c.fd, s.entry(c, target), target.state, target.counters)
}

// sendClient sends a client's Entry. Its pages go only to an asker whose own the client is. An asker who may change it by the policy's word
// gets the Entry alone.
func (s *Server) sendClient(c *connection, target *client) (sent bool, err error) {
	own := s.has(c, target)
	if !own && !s.may(c, target) {
		return false, nil
	}
	var pages []int
	if own && target.member { // the first of its two pages says how it is, the second what it has done
		pages = []int{target.state, target.counters}
	}
	err = s.send(c.fd, s.entry(c, target), pages...)
	return err == nil, err
}

func (s *Server) entry(c *connection, target *client) *wire.Entry {
	e := &wire.Entry{ID: target.id, GPU: target.gpu.id.UUID, Slice: ofSlice(target.gpu.id.Slice), Pid: pidFor(&c.who, &target.who), UID: target.who.uid, Slot: uint8(target.slot),
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

// has says whether a client is one of the asker's own, as all are the administrator's. A socket speaks for its level and those below: an
// asker by the socket of best effort does not own a process that came by a better one.
func (s *Server) has(c *connection, target *client) bool {
	return c.admin || c.level >= 0 && c.level <= target.socket && c.who.has(&target.who)
}

// may says whether somebody may change what a client is allowed.
func (s *Server) may(c *connection, target *client) bool {
	if c.admin {
		return true
	}
	own, asker := s.has(c, target), factsOf(&c.who, target.gpu.id, c.level, target.wanted)
	if !own {
		asker = abroad(&c.who, asker)
	}
	may, err := s.policy.MaySet(asker, target.facts, own)
	if err != nil {
		s.counted.Failed++
		s.say(zerolog.WarnLevel, sayControl, ofUser(c.who.uid)).Err(err).Msg(sayControl)
	}
	return may
}

// leaves says whether a rule leaves it to who has a process to set this: no more of the GPU's time than it gives, and no other objective.
func leaves(g *policy.Grant, m *wire.Set) bool {
	if m.Fields&wire.SetShare != 0 && (g.Per != wire.PerProcess || m.Share > partOf(g.Share, 1)) {
		return false
	}
	if m.Fields&wire.SetShareMax != 0 && g.ShareMax != 0 && (g.Per != wire.PerProcess || m.ShareMax > partOf(g.ShareMax, 1)) {
		return false
	}
	return m.Fields&wire.SetObjective == 0 || !g.Objective.Says()
}

// set changes all clients of a process, or none.
func (s *Server) set(c *connection, m *wire.Set) wire.Message {
	var targets []*client
	for _, target := range s.order {
		if pidFor(&c.who, &target.who) != m.Pid {
			continue
		}
		if !s.may(c, target) || !c.admin && !leaves(&target.grant, m) {
			return s.refusal(wire.RefusedPolicy, 0)
		}
		targets = append(targets, target)
	}
	for _, target := range targets {
		to, before := &target.set, target.set
		if m.Fields == wire.SetClear {
			*to = wire.Set{}
		}
		if m.Fields&wire.SetLevel != 0 {
			to.Level = m.Level
		}
		if m.Fields&wire.SetShare != 0 {
			to.Share = m.Share
		}
		if m.Fields&wire.SetShareMax != 0 {
			to.ShareMax = m.ShareMax
		}
		if m.Fields&wire.SetPaused != 0 {
			to.Paused = m.Paused
		}
		if m.Fields&wire.SetObjective != 0 {
			to.Objective = m.Objective
		}
		to.Fields |= m.Fields &^ wire.SetClear
		s.unkept = s.unkept || *to != before
		target.judge(s)
	}
	if len(targets) > 0 {
		s.say(zerolog.InfoLevel, saySet, c.by()).Int32("pid", m.Pid).Uint8("fields", m.Fields).Int("clients", len(targets)).Msg(saySet)
	}
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
	before := target.set
	target.asked = m.Request
	switch m.What() {
	case wire.AskSuspend:
		target.set.Paused, target.set.Fields = 1, target.set.Fields|wire.SetPaused
	case wire.AskResume:
		target.set.Paused, target.set.Fields = 0, target.set.Fields&^wire.SetPaused
	}
	s.unkept = s.unkept || target.set != before
	target.judge(s)
	s.say(zerolog.InfoLevel, sayAsked, c.by()).Uint64("client", m.ID).Uint8("what", m.What()).Msg(sayAsked)
	return &wire.Done{Count: 1}
}

// by is who asks, for the log.
func (c *connection) by() string {
	if c.admin {
		return "administrator"
	}
	return ofUser(c.who.uid)
}
