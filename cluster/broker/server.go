// Package broker lets processes that do not trust each other share a GPU: it gives each of them pages that only this process can
// write, shows them to the others, and decides whose turn it is. docs/design/broker.md says how and why.
//
// A Server is one loop in one goroutine. All that clients send is untrusted, and nothing that one does makes others wait.
package broker

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// New makes a broker whose clients must have that version of the pages' layout.
func New(layout uint32, p *policy.Policy, log zerolog.Logger) (*Server, error) {
	s := &Server{said: map[saying]*said{}, limits: limits{connections: mostConnections, hello: time.Second, mapped: 2 * time.Second, read: 5 * time.Second, back: 5 * time.Second}, identify: peerOf, busy: threadTime, layout: layout, policy: p, log: log, epoll: -1, wake: -1, listeners: map[int]int{}, connections: map[int]*connection{}, due: map[*connection]bool{}, away: map[*client]bool{}, podless: map[*client]bool{},
		dying: map[int]*client{}, clients: map[uint64]*client{}, gpus: map[segment.GPU]*gpu{}, waiting: counts[uint32]{}, clientsOf: counts[owner]{}, byUID: counts[uint32]{}, byOwner: counts[owner]{}, byCgroup: counts[string]{}, joining: map[owner]*bucket{}, spending: map[owner]*bucket{}, left: map[target]wire.Set{}, bare: true, closer: closer{queues: map[uint32][]closing{}}}
	s.counted.StartedNs = uint64(time.Now().UnixNano())
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	s.generation = binary.LittleEndian.Uint64(random[:]) | 1
	var err error
	if s.weaker, err = page.Weaker(); err != nil {
		return nil, err
	}
	if s.weaker {
		log.Warn().Msg("the kernel is older than 5.1: pages are protected from other users, and not from a process with CAP_DAC_OVERRIDE")
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(s.epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err := s.watch(s.wake, unix.EPOLLIN); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// Listen takes connections from a listening SOCK_SEQPACKET socket, which it closes in the end. Clients that come by it have that level at
// best. To be called before Run.
func (s *Server) Listen(socket, level int) error { return s.listen(socket, level) }

// ListenAdmin takes connections from a socket of the same kind by which the administrator comes, and no client: whoever reaches it may
// see and change all clients, within their rules. Its file must be the administrator's alone.
func (s *Server) ListenAdmin(socket int) error { return s.listen(socket, adminLevel) }

func (s *Server) listen(socket, level int) error {
	kind, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TYPE)
	listens, errListens := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err := errors.Join(err, errListens); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if kind != unix.SOCK_SEQPACKET || listens == 0 {
		return errors.New("listen: must be a listening socket of type SOCK_SEQPACKET")
	}
	if err := unix.SetNonblock(socket, true); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if s.bare {
		s.bare = unix.SetsockoptInt(socket, unix.SOL_SOCKET, soPassRights, 0) == nil
	}
	if err := s.watch(socket, unix.EPOLLIN); err != nil {
		return err
	}
	s.listeners[socket] = level
	return nil
}

// SetPolicy puts another policy in force, for those that are there too.
func (s *Server) SetPolicy(p *policy.Policy) {
	s.command(func() {
		s.policy, s.counted.PolicyWrong = p, 0
		for _, c := range s.clients {
			c.judge(s)
		}
	})
}

// Run serves until Stop. Then nothing of the server is left.
func (s *Server) Run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer s.close()
	var events [256]unix.EpollEvent
	for !s.stopped {
		now := time.Now()
		s.expire(now)
		s.settle(now)
		s.keepSet(now, false)
		n, err := unix.EpollWait(s.epoll, events[:], s.patience(time.Now()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for clients: %w", err)
		}
		now = time.Now()
		for _, event := range events[:max(n, 0)] {
			s.handle(int(event.Fd), event.Events, now)
			s.live()
		}
	}
	return nil
}

// handle reads what has come by a descriptor. The event may be of an earlier connection, whose number this descriptor has now. So it
// only says that a look is worth while.
func (s *Server) handle(fd int, events uint32, now time.Time) {
	if fd == s.wake {
		var count [8]byte
		_, _ = unix.Read(s.wake, count[:])
		s.mutex.Lock()
		commands := s.commands
		s.commands = nil
		s.mutex.Unlock()
		for _, do := range commands {
			do()
		}
	} else if level, is := s.listeners[fd]; is {
		s.accept(fd, level, now)
	} else if c := s.dying[fd]; c != nil {
		if ended(fd) {
			s.drop(c)
		}
	} else if c := s.connections[fd]; c != nil {
		s.look(c, events, now)
	}
}

// settle tells clients what has changed.
func (s *Server) settle(now time.Time) {
	s.inUse.Store(int32(len(s.gpus)))
	for _, g := range s.gpus {
		if !g.changed {
			continue
		}
		g.changed = false
		for _, c := range g.slot {
			if c != nil && c.connection != nil {
				s.tell(c, now)
			}
		}
		page.Ring(&g.words().Rings.Bell) // last: an agent that hears it finds its news
	}
}

// expire does what is due.
func (s *Server) expire(now time.Time) {
	if !s.deaf.IsZero() && !s.deaf.After(now) {
		s.hear(true)
	}
	for c := range s.due {
		due := !c.deadline.IsZero() && !c.deadline.After(now)
		switch {
		case !c.again.IsZero() && !c.again.After(now):
			s.lookAgain(c, time.Time{})
			s.interest(c)
			s.look(c, 0, now)
		case due && c.client != nil && c.client.member: // it does not read
			s.say(zerolog.InfoLevel, sayUnread, ofUser(c.uid)).Int32("pid", c.who.pid).Msg(sayUnread)
			s.counted.Lost++
			s.drop(c.client)
		case due && c.client == nil && c.told: // people
			s.end(c)
		case due:
			s.refuse(c, wire.RefusedLate, time.Second)
		case c.deadline.IsZero() && c.again.IsZero():
			delete(s.due, c)
		}
	}
	for c := range s.away {
		if !c.backUntil.After(now) {
			s.drop(c)
		}
	}
	s.expireEnded(now)
	if !s.sayNext.After(now) {
		s.sayMore(now, false)
		s.sayNext = now.Add(sayAgain / 6)
	}
	s.live()
}

// live shows that the broker lives: between any two things that it does, if it is time.
func (s *Server) live() {
	now := time.Now()
	if len(s.gpus) == 0 || s.beat.After(now) {
		return
	}
	s.beat = now.Add(heartbeat)
	for _, g := range s.gpus {
		g.words().BrokerHeartbeatNs.Store(segment.Now())
		g.divide(now, s.policy.QuantumMs)
	}
	s.findPods()
}

// patience is how long there is nothing to do by itself, in milliseconds; -1: for ever.
func (s *Server) patience(now time.Time) int {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	sooner(s.deaf)
	if len(s.said) > 0 {
		sooner(s.sayNext)
	}
	for c := range s.due {
		sooner(c.deadline)
		sooner(c.again)
	}
	for c := range s.away {
		sooner(c.backUntil)
	}
	if len(s.ended) > 0 {
		sooner(s.ended[0].endedUntil)
	}
	if len(s.gpus) > 0 {
		sooner(s.beat)
	}
	if s.unkept && s.keepsIn != "" {
		sooner(s.keepNext)
	}
	if next.IsZero() {
		return -1
	}
	return int(max(next.Sub(now), 0)/time.Millisecond) + 1
}

func (s *Server) close() {
	defer s.sayMore(time.Now(), true)
	s.keepSet(time.Now(), true)
	s.keepsIn = "" // that the clients are dropped says nothing about them
	for _, c := range s.clients {
		s.drop(c)
	}
	for len(s.ended) > 0 {
		s.forgetEnded(0)
	}
	for _, c := range s.connections {
		s.end(c)
	}
	for fd := range s.listeners {
		unix.Close(fd)
	}
	unix.Close(s.epoll)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	unix.Close(s.wake)
	s.wake = -1
}
