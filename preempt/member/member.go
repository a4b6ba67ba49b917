// Package member makes segments by the broker: it keeps the connection, places the pages of peers as they come and go, and asks for
// turns. Its segments serve all their users as those do that package segment makes by a file.
package member

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	// looksEvery is how often the connection is looked at without a poke.
	looksEvery = 500 * time.Millisecond
	// thereEvery is how often a process looks for a broker.
	thereEvery = time.Second
	// patience is how long a broker may take to answer a process that goes on without it meanwhile.
	patience = 5 * time.Second
	// firstAgain and lastAgain bound the time until a process asks again after a broker was lost, or not there. It varies between
	// half and one and a half times of that. While the next broker may be expected (hurry) it is hurriedAgain at most: a process that
	// looks at the worst time has joined within a third of a second of the broker's start.
	firstAgain, hurriedAgain, lastAgain = 100 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond
	hurry                               = 5 * time.Second
	// lostAfter is how long a broker that has not closed the connection may be busy before another one is looked for: to have all its
	// clients join again makes it no less busy.
	lostAfter = 10 * time.Second
	// mostSaid bounds the reasons for which failed is called. It is more than a broker has.
	mostSaid = 32
	// refusedAgain is the time after which a refused process asks again at the latest.
	refusedAgain = time.Minute
)

// answersWithin is how long a process waits for a broker when it starts. Then it goes on without. Tests of a broker that is there give it
// as long as a loaded machine may take, by GPREEMPT_TEST_BROKER_MS.
func answersWithin() time.Duration {
	if ms, err := strconv.Atoi(os.Getenv("GPREEMPT_TEST_BROKER_MS")); err == nil {
		return time.Duration(ms) * time.Millisecond
	}
	return 200 * time.Millisecond
}

// Options describe the process that joins, and say where brokers are.
type Options struct {
	Directory string
	GPU       segment.GPU
	Level     int // wanted
	Name      string
	Injected  bool
	Refused   func(error) // Called on another goroutine, where the policy of the next broker does not take this process, a member before.
}

// ErrNone says that there is no broker.
var ErrNone = errors.New("no broker")

// member is one connection, and the segment that it is for. A goroutine serves it, and the next one when the broker was lost.
type member struct {
	options Options
	client  *join.Client
	segment *segment.Segment
	policy  wire.Policy // as last carried out
	poke    chan struct{}
	turns   chan wire.Turn
	next    atomic.Pointer[segment.Segment]
	left    atomic.Bool
}

// Join makes this process a client of a broker. The error wraps ErrNone if there is none, join.ErrTime if it has not answered yet, or is
// a join.RefusedError. Seek goes on then.
func Join(o Options) (s *segment.Segment, slot int, err error) {
	type result struct {
		m   *member
		err error
	}
	done := make(chan result, 1)
	go func() {
		m, err := connect(o, answersWithin())
		done <- result{m, err}
		m.serveAll()
	}()
	r := <-done
	if r.err != nil {
		return nil, -1, r.err
	}
	return r.m.segment, int(r.m.client.Welcome.Slot), nil
}

// Sought is a segment that there is once a broker takes this process.
type Sought struct {
	next atomic.Pointer[segment.Segment]
}

// Next is that segment, once, and its slot; nil: not yet. The caller lets it take the place of the one that it has.
func (s *Sought) Next() (next *segment.Segment, slot int) {
	if next = s.next.Swap(nil); next == nil {
		return nil, -1
	}
	return next, next.OwnSlot()
}

// Seek joins a broker, however long it takes until one lets this process join, and then calls found. It calls failed once for each reason
// for which a broker refused. Both run on another goroutine.
func Seek(o Options, found func(), failed func(error)) *Sought {
	s := &Sought{}
	go func() {
		for !there(o.Directory) {
			time.Sleep(thereEvery)
		}
		m := seek(o, func() bool { return false }, failed)
		s.next.Store(m.segment)
		found()
		m.serveAll()
	}()
	return s
}

// there says whether a socket is there, for this user or not.
func there(directory string) bool {
	return slices.ContainsFunc(join.Sockets(directory), func(path string) bool { return unix.Access(path, unix.F_OK) == nil })
}

// seek joins the next broker, unless that is not wanted any more: then it returns nil.
func seek(o Options, unwanted func() bool, failed func(error)) *member {
	began, said := time.Now(), []string{}
	for wait := firstAgain; !unwanted(); wait = longer(wait, time.Since(began)) {
		m, err := connect(o, patience)
		if err == nil {
			return m
		}
		if failed != nil && !errors.Is(err, ErrNone) && len(said) < mostSaid && !slices.Contains(said, err.Error()) {
			said = append(said, err.Error())
			failed(err)
		}
		pause := wait/2 + rand.N(wait) // not all at once
		var refused join.RefusedError
		if errors.As(err, &refused) {
			pause = max(pause, min(cmp.Or(refused.Retry, refusedAgain), refusedAgain))
		}
		time.Sleep(pause)
	}
	return nil
}

// longer is what comes after a wait for a broker that has been sought for so long.
func longer(wait, sought time.Duration) time.Duration {
	if sought < hurry {
		return min(2*wait, hurriedAgain)
	}
	return min(2*wait, lastAgain)
}

// connect joins by the first socket that there is.
func connect(o Options, within time.Duration) (m *member, err error) {
	until := time.Now().Add(within)
	return m, Reach(o.Directory, func(path string) error {
		view, own := -1, func(which, fd int) error { return nil }
		if segment.Of != nil {
			if view, err = segment.Of.View(true); err != nil {
				return err
			}
			own = func(which, fd int) error { return segment.PlaceOwnInProgram(view, which, fd) }
		}
		client, err := join.Join(path, join.Options{Layout: segment.Version, GPU: o.GPU, Wanted: o.Level, Name: o.Name, Injected: o.Injected, Within: time.Until(until), Own: own})
		if err != nil {
			free(view)
			return err
		}
		if m, err = build(o, client, path, view, until); err != nil {
			free(view)
			client.Close()
			return fmt.Errorf("join by %s: %w", path, err)
		}
		return nil
	})
}

func free(view int) {
	if view >= 0 {
		segment.Of.Free(view)
	}
}

// Level returns the level that a process gets when it wants one: the one that the broker grants, if a broker lets it join.
func Level(directory string, wanted int) (level int, err error) {
	level = wanted
	return level, Reach(directory, func(path string) error {
		p, err := join.Query(path, wanted, segment.Version, answersWithin())
		if err == nil {
			level = int(p.Level)
		}
		return err
	})
}

// Refused says whether an error is that a broker's policy does not take this process, which runs on as best effort; off: without a role.
func Refused(err error) (refused, off bool) {
	var by join.RefusedError
	_ = errors.As(err, &by)
	return by.Reason == wire.RefusedPolicy, by.Reason == wire.RefusedOff
}

// passable says whether another socket may lead further: this one is not there, not for this user, or has no listener.
func passable(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ECONNREFUSED, unix.ELOOP}, func(e error) bool { return errors.Is(err, e) })
}

// build makes a segment of what the broker sends. It is a member's from READY on.
func build(o Options, client *join.Client, path string, view int, until time.Time) (*member, error) {
	arena, err := segment.NewArena()
	if err != nil {
		return nil, err
	}
	arena.In(view)
	m := &member{options: o, client: client, policy: client.Welcome.Policy, poke: make(chan struct{}, 1), turns: make(chan wire.Turn, 16)}
	if err := arena.PlaceOwn(client.State.Take(), client.Counters.Take()); err != nil {
		arena.Free()
		return nil, err
	}
	m.segment = segment.NewPaged(arena, o.GPU, path, int(client.Welcome.Slot), m)
	m.segment.Introduce(o.Name)
	m.limit()
	for ready := false; !ready; {
		e, err := client.Next(time.Until(until))
		if err == nil && e.Message.Type() == wire.TypeCommon {
			err = arena.PlaceHeader(e.FD)
			unix.Close(e.FD)
		} else if err == nil {
			ready = e.Message.Type() == wire.TypeReady
			err = m.take(e)
		}
		if err != nil {
			arena.Free()
			return nil, err
		}
	}
	if h := arena.Header(); h.Magic != segment.Magic || h.Version != segment.Version || h.GPU != o.GPU.UUID || h.Generation != client.Welcome.Generation {
		arena.Free()
		return nil, fmt.Errorf("%w: a page of version %d, generation %d", join.ErrBroker, h.Version, h.Generation)
	}
	return m, nil
}

// take carries out what the broker says.
func (m *member) take(e join.Event) error {
	switch told := e.Message.(type) {
	case *wire.Peer:
		err := m.segment.Place(int(told.Slot), e.FD)
		unix.Close(e.FD)
		return err
	case *wire.Common: // there is one
		unix.Close(e.FD)
	case *wire.Gone:
		return m.segment.Place(int(told.Slot), -1)
	case *wire.Changed:
		m.segment.With(func() { m.obey(m.policy, told.Policy) })
		m.policy = told.Policy
		m.limit()
	}
	return nil
}

// obey makes what people want of the process now its own: a request, and whether it is paused. One message may have both. A request to
// suspend or resume is the pause itself, unless it is for an earlier process of the slot.
func (m *member) obey(was, is wire.Policy) {
	own := m.segment.Own()
	if is.Asked != was.Asked {
		m.segment.Obey(segment.Request(is.Asked))
	}
	if is.Paused == was.Paused {
		return
	}
	asked := own.Request().Asked()
	if is.Asked == was.Asked || asked != segment.AskedSuspend && is.Paused == 1 || asked != segment.AskedResume && is.Paused == 0 {
		m.segment.Pause(is.Paused == 1)
	}
}

func (m *member) limit() {
	p := m.policy
	m.segment.SetLimits(segment.Limits{Share: float64(p.Share) / 1e6, ShareMax: float64(p.ShareMax) / 1e6, MaxHoldUs: p.MaxHoldUs, MemoryMB: p.MemoryMB, MemoryPart: float64(p.MemoryPart) / 1e6,
		QuantumMs: p.QuantumMs, Objective: p.Objective})
}

// serveAll serves this member, and those that follow it, until the process leaves. Of none it serves nothing.
func (m *member) serveAll() {
	for m != nil {
		m = m.serve()
	}
}

// serve carries out the broker's messages, and sends the process's requests, until the process leaves: then it returns nil. If the broker
// is lost, it returns the next member, whose segment is to take the place of this one.
func (m *member) serve() *member {
	for !m.left.Load() {
		select {
		case <-m.poke:
		case ask := <-m.turns: // a request that fails is made again, and hear finds a lost broker
			_ = m.client.Turn(ask.Which, ask.Kind, int(ask.To), ask.Seen)
		case <-time.After(looksEvery):
		}
		unheard := time.Duration(0) // where another segment has taken the memory, this one has none
		m.segment.With(func() { unheard = m.segment.Unheard() })
		if err := m.hear(); err == nil && unheard < lostAfter {
			continue
		}
		m.client.Close()
		m.segment.With(m.segment.Ring) // a broker's end wakes no member: the one that sees it rings for the others
		return m.again()
	}
	m.client.Leave()
	return nil
}

// hear takes all that was sent.
func (m *member) hear() error {
	for news := false; ; news = true {
		e, err := m.client.Next(0)
		if errors.Is(err, join.ErrTime) {
			if news {
				m.segment.With(m.segment.Ring) // the agent looks who is there
			}
			return nil
		}
		if err == nil {
			err = m.take(e)
		}
		if err != nil {
			return err
		}
	}
}

// again joins the next broker. The segment shows the same pages meanwhile.
func (m *member) again() *member {
	next := seek(m.options, m.left.Load, func(err error) {
		if refused, off := Refused(err); (refused || off) && m.options.Refused != nil {
			m.options.Refused(err)
		}
	})
	if next != nil {
		m.next.Store(next.segment)
		m.segment.With(m.segment.Ring)
	}
	return next
}

// Turn asks for a turn.
func (m *member) Turn(memory bool, seen uint64, to int, seized bool) {
	ask := wire.Turn{Kind: wire.TurnPass, Which: wire.TurnRun, To: wire.Slots, Seen: seen}
	if memory {
		ask.Which = wire.TurnMemory
	}
	switch {
	case to == int(m.client.Welcome.Slot) && seized:
		ask.Kind = wire.TurnSeize
	case to == int(m.client.Welcome.Slot):
		ask.Kind = wire.TurnTake
	case to >= 0:
		ask.To = uint8(to)
	}
	select {
	case m.turns <- ask:
	default: // the agent asks again
	}
}

// Next is the segment that is to take this one's place.
func (m *member) Next() *segment.Segment { return m.next.Swap(nil) }

// Leave ends the connection, soon.
func (m *member) Leave() {
	m.left.Store(true)
	m.Poke()
}

// Poke makes the connection be looked at.
func (m *member) Poke() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}
