package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

// Each client costs the broker and others a bounded amount, whatever it sends.

// logged are the lines of a log, with the times that each says that it was so again.
func logged(t *testing.T, log *bytes.Buffer) (lines map[string]uint64, n int) {
	t.Helper()
	lines = map[string]uint64{}
	for line := range bytes.Lines(log.Bytes()) {
		var l struct {
			Message, Of string
			Again       *uint64
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n++
		if l.Again != nil {
			lines[l.Of+": "+l.Message] += *l.Again
		} else {
			lines[l.Of+": "+l.Message]++
		}
	}
	return lines, n
}

// The log says a repeated event once, and then each minute how often it came. The count loses no event, and what one subject does keeps no
// line of another's away.
func TestWhatIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	s := &Server{log: zerolog.New(&log), said: map[saying]*said{}}
	now := time.Unix(1000, 0)
	says := func(what, subject string, times int) {
		for range times {
			s.sayAt(zerolog.WarnLevel, saying{what, subject}, now).Msg(what)
		}
	}
	says("a", "user 1", 1000)
	says("a", "user 2", 1)
	says("b", "user 1", 2)
	if lines, n := logged(t, &log); n != 3 || lines["user 1: a"] != 1 {
		t.Errorf("%v", lines)
	}
	now = now.Add(sayAgain - 1)
	s.sayMore(now, false)
	if _, n := logged(t, &log); n != 3 {
		t.Errorf("%d lines within a minute", n)
	}
	now = now.Add(1)
	s.sayMore(now, false)
	says("a", "user 1", 5)
	if lines, n := logged(t, &log); n != 5 || lines["user 1: a"] != 1000 || lines["user 1: b"] != 2 || lines["user 2: a"] != 1 {
		t.Errorf("%v", lines)
	}
	now = now.Add(sayAgain)
	s.sayMore(now, false) // what was not so again is said anew
	says("a", "user 2", 1)
	if lines, n := logged(t, &log); n != 7 || lines["user 1: a"] != 1005 || lines["user 2: a"] != 2 {
		t.Errorf("%d lines: %v", n, lines)
	}
	now = now.Add(sayAgain)
	for range 3 {
		s.sayMore(now, false)
		now = now.Add(sayAgain)
	}
	if len(s.said) != 0 {
		t.Errorf("%d are remembered for ever", len(s.said))
	}
	log.Reset()
	for uid := range 10 * mostSaid {
		says("a", fmt.Sprint("user ", uid), 2)
	}
	s.sayMore(now, true)
	lines, n := logged(t, &log)
	sum := uint64(0)
	for _, times := range lines {
		sum += times
	}
	if n > 2*(mostSaid+1) || sum != 20*mostSaid || len(s.said) > mostSaid+1 || lines[everyone+": a"] == 0 {
		t.Errorf("%d lines of %d times; %d are remembered", n, sum, len(s.said))
	}
	if line := log.String(); !strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"info"`) {
		t.Error("it is said at another level")
	}
}

// The broker writes few lines, whatever a user sends, and however often.
func TestLogOfEachMessage(t *testing.T) {
	var log bytes.Buffer
	b := start(t, "[control]\nwhen = 'target.annotations[\"none\"] == \"\"'\n[[rule]]\nname = 'fails'\nwhen = 'annotations[\"none\"] == \"\"'\n", func(s *Server) { s.log = zerolog.New(&log) })
	b.uid.Store(1)
	p, err := b.try(options(1, 7), 7)
	if err != nil {
		t.Fatal(err)
	}
	send := func(m wire.Message) {
		fd := b.silent()
		_ = wire.Send(fd, m) // it may have been sent away
		_, fds, _ := wire.Receive(fd, 2)
		wire.CloseAll(fds)
		unix.Close(fd)
	}
	const times = 50
	for range times {
		for _, m := range []wire.Message{&wire.Hello{Layout: layout}, &wire.Hello{}, &wire.Mapped{}, &wire.Turn{}, &wire.Bye{}, &wire.List{}, &wire.Policies{}, &wire.Query{Layout: layout},
			&wire.Statistics{}, &wire.Ask{ID: p.Welcome.ID, Request: uint64(wire.AskSuspend)}, &wire.Set{Pid: 1, Fields: wire.SetLevel}, &wire.Set{Pid: 9999, Fields: wire.SetLevel}, &wire.Done{}} {
			send(m)
		}
		b.silent()
	}
	b.server.SetPolicy(policy.Default())
	for range times {
		send(&wire.Ask{ID: p.Welcome.ID, Request: uint64(wire.AskOut)})
		send(&wire.Set{Pid: 1, Fields: wire.SetLevel, Level: 7})
	}
	b.stop()
	lines, n := logged(t, &log)
	if n < 5 || n > 60 {
		t.Errorf("%d lines: %v", n, lines)
	}
	for _, want := range []string{"user 1: " + sayControl, "user 1: " + sayCondition, "user 1: " + sayAsked, "user 1: " + saySet} {
		if lines[want] < times {
			t.Errorf("%s: %d times, must be %d", want, lines[want], times)
		}
	}
}

// A list of any length costs the broker no more memory than one part of it, also if its reader never reads.
func TestUnreadListsCostLittle(t *testing.T) {
	s := &Server{clients: map[uint64]*client{}}
	c := &connection{admin: true}
	for id := range uint64(4000) {
		s.order = append(s.order, &client{id: id + 1})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	answers := make([]answer, 0, 1000)
	for range cap(answers) {
		answers = append(answers, s.list(c))
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(answers)); each > 1024 {
		t.Errorf("each costs %d bytes before anything is sent", each)
	}
}

// Clients come and go while somebody reads a list slowly. A client that stays all the time is listed once, and no client is listed twice.
func TestListWhileClientsComeAndGo(t *testing.T) {
	b := start(t, "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64")
	var all []*peer
	for range 30 {
		all = append(all, b.join(1, 7))
	}
	seen := map[uint64]int{}
	leave := 0
	if err := join.List(join.SocketIn(b.directory, 0), func(e *wire.Entry, _ []int) error {
		if e.Ended == 0 {
			seen[e.ID]++
		}
		if leave < 10 {
			all[leave].Leave()
			leave++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, p := range all {
		if n := seen[p.Welcome.ID]; n > 1 || n == 0 && i >= 10 {
			t.Errorf("client %d of %d is told of %d times", i, len(all), n)
		}
	}
	b.do(func(s *Server) {
		if len(s.order) != len(s.clients) || s.members != len(s.clients) || !slices.IsSortedFunc(s.order, func(a, b *client) int { return int(a.id) - int(b.id) }) {
			t.Errorf("%d of %d clients are in order, %d members", len(s.order), len(s.clients), s.members)
		}
	})
}

// A message that takes long is paid for as the many that could have been sent meanwhile, and by its owner alone.
func TestTimeIsPaidFor(t *testing.T) {
	var now time.Duration
	const most = 100
	b := start(t, fmt.Sprintf("[quota]\nmessages_per_uid = %d\nmessages_per_second = 1000", most))
	b.do(func(s *Server) {
		s.busy = func() time.Duration { return now }
		defer func() { s.busy = threadTime }()
		c, other := &connection{owner: owner{uid: 1}}, &connection{owner: owner{uid: 1, container: "x"}}
		at := time.Now()
		if s.spend(c, at) != 0 || s.spend(other, at) != 0 {
			t.Fatal("nothing was spent yet")
		}
		s.timed(c, func() bool { now += messageTakes - 1; return true })
		if s.spend(c, at) != 0 || s.spending[c.owner].left != most-2 {
			t.Errorf("%v are left", s.spending[c.owner].left)
		}
		if s.timed(c, func() bool { now += most * messageTakes; return false }) {
			t.Error("it says something else")
		}
		if s.spend(c, at) == 0 {
			t.Error("it was not paid for")
		}
		if s.spend(other, at) != 0 {
			t.Error("another owner pays")
		}
		if s.spend(&connection{admin: true, owner: c.owner}, at) != 0 {
			t.Error("the administrator waits")
		}
	})
}

// Root of a container is counted apart from root of another one, and from root of the host: none keeps another out.
func TestContainersAreCountedApart(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 3\nmembers_per_uid = 2\nconnections_per_cgroup = 100\nmembers_per_cgroup = 64")
	for _, digit := range []string{"1", "2"} {
		b.in(digit)
		for i, want := range []wire.Reason{0, 0, wire.RefusedQuota} { // members of a GPU
			b.do(func(s *Server) { clear(s.joining) })
			if _, err := b.try(options(1, 7), 0); (err == nil) != (want == 0) || want != 0 && !refused(err, want) {
				t.Errorf("container %s, member %d: %v", digit, i, err)
			}
		}
		for i, want := range []wire.Reason{0, wire.RefusedRate} { // connections
			b.do(func(s *Server) { clear(s.joining) })
			if _, err := b.try(options(2, 7), 0); (err == nil) != (want == 0) || want != 0 && !refused(err, want) {
				t.Errorf("container %s, connection %d: %v", digit, i, err)
			}
		}
	}
	b.cgroup.Store("/")
	b.join(1, 7)
	b.do(func(s *Server) {
		for o, n := range s.clientsOf {
			if n != 3 && o.container != "" || n != 1 && o.container == "" {
				t.Errorf("%+v has %d clients", o, n)
			}
		}
	})
}

// The same of groups that a user makes below its own: they count as one.
func TestGroupsBelowOnesOwnMultiplyNothing(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_cgroup = 4\nmembers_per_cgroup = 2")
	for i, want := range []wire.Reason{0, 0, wire.RefusedQuota} {
		b.cgroup.Store(fmt.Sprintf("/user.slice/user-1000.slice/user@1000.service/app%d.scope", i))
		b.uid.Store(uint32(100_000 + i)) // and it is many users
		if _, err := b.try(options(1, 7), 0); (err == nil) != (want == 0) || want != 0 && !refused(err, want) {
			t.Errorf("group %d: %v", i, err)
		}
	}
}

// The administrator gets in when clients have all the connections that there are, and by no more than it may have.
func TestAdministratorGetsIn(t *testing.T) {
	const all = 4
	b := start(t, "", func(s *Server) { s.limits.connections, s.limits.hello = all, time.Hour })
	b.join(1, 7)
	eventually(t, "there are as many as there may be", func() (full bool) {
		b.silent()
		b.do(func(s *Server) { full = s.taken() == all && s.unfinished.Len() == all-1 })
		return full
	})
	var oldest *connection
	b.do(func(s *Server) { oldest = s.unfinished.Front().Value.(*connection) })
	n := 0
	if err := join.List(join.AdminIn(b.directory), func(*wire.Entry, []int) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("%d clients, %v", n, err)
	}
	b.do(func(s *Server) {
		if s.unfinished.Front().Value != oldest {
			t.Error("another had to go for it")
		}
	})
	eventually(t, "its connection has ended", func() (none bool) {
		b.do(func(s *Server) { none = s.admins == 0 })
		return none
	})
	for i := range mostAdmins + 1 {
		fd, err := join.Dial(join.AdminIn(b.directory), soon)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if i == mostAdmins {
			if m, _, err := wire.Receive(fd, 0); err != nil || m.(*wire.Refused).Reason != wire.RefusedRate {
				t.Error(m, err)
			}
		}
	}
	b.do(func(s *Server) {
		if s.admins != mostAdmins || s.taken() != all {
			t.Errorf("%d of the administrator, %d others", s.admins, s.taken())
		}
	})
}

// The broker keeps a bounded list of ended clients, and one of refused processes. The owner with most entries loses its first one. So an
// owner whose clients come and go often costs others nothing.
func TestWhoComesAndGoesOften(t *testing.T) {
	const most = 5
	list := []owner{{uid: 1}, {uid: 2}, {uid: 2, container: "x"}, {uid: 3}}
	for range 100 {
		list = append(list, owner{uid: 2})
		if len(list) > most {
			i := first(list, func(o owner) owner { return o })
			list = slices.Delete(list, i, i+1)
		}
	}
	if want := []owner{{uid: 1}, {uid: 2, container: "x"}, {uid: 3}, {uid: 2}, {uid: 2}}; !slices.Equal(list, want) {
		t.Errorf("%v", list)
	}
	b := start(t, refusing+"[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\n")
	b.uid.Store(1)
	quiet := b.join(1, 7)
	quiet.Leave()
	if _, err := b.try(options(1, 3), 0); !refused(err, wire.RefusedOff) {
		t.Error(err)
	}
	b.uid.Store(2)
	for range mostEnded + 10 {
		b.join(1, 7).Leave()
	}
	for range mostRefusals + 10 {
		if _, err := join.Query(join.SocketIn(b.directory, 0), 3, layout, soon); !refused(err, wire.RefusedOff) {
			t.Fatal(err)
		}
	}
	eventually(t, "all have left", func() bool { return b.clients() == 0 })
	b.do(func(s *Server) {
		if len(s.ended) != mostEnded || s.ended[0].id != quiet.Welcome.ID {
			t.Errorf("%d are kept, the first is %d", len(s.ended), s.ended[0].id)
		}
		if len(s.refusals) != mostRefusals || s.refusals[0].who.uid != 1 {
			t.Errorf("%d are remembered, the first is user %d's", len(s.refusals), s.refusals[0].who.uid)
		}
	})
}

// Connections by which people asked, and that they leave open, keep no client of their user out.
func TestWhoHasAskedKeepsNobodyOut(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 2", func(s *Server) { s.limits.hello, s.limits.read = time.Hour, time.Hour })
	asked := func() {
		fd := b.silent()
		if err := wire.Send(fd, &wire.Statistics{}); err != nil {
			t.Fatal(err)
		}
		if m, _, err := wire.Receive(fd, 0); err != nil || m.Type() != wire.TypeCounted {
			t.Fatal(m, err)
		}
	}
	asked()
	asked()
	eventually(t, "a client joins", func() bool { _, err := b.try(options(1, 7), 7); return err == nil })
	b.do(func(s *Server) {
		if n := s.byOwner[owner{}]; n > 2 || len(s.clients) != 1 {
			t.Errorf("%d connections, %d clients", n, len(s.clients))
		}
	})
}

// A part of an answer that cannot be sent now is sent later: when the other side reads, or when fewer descriptors are under way.
func TestAnswersThatCannotBeSentNow(t *testing.T) {
	b := start(t, "", func(s *Server) { s.limits.hello, s.limits.read = time.Hour, time.Hour })
	fd := b.silent()
	eventually(t, "it is taken", func() bool { return b.unfinished() == 1 })
	b.do(func(s *Server) {
		c, now, failure, tries := s.unfinished.Front().Value.(*connection), time.Now(), error(nil), 0
		c.answer = func() (bool, error) {
			if tries++; failure != nil {
				return true, failure
			}
			return false, s.send(c.fd, &wire.Done{Count: uint32(tries)})
		}
		for _, failure = range []error{unix.ETOOMANYREFS, unix.EAGAIN, unix.ENOBUFS} {
			c.full = false
			s.lookAgain(c, time.Time{})
			if s.reply(c, now) || c.answer == nil {
				t.Errorf("%v: it is over", failure)
			}
			if again := errors.Is(failure, unix.ETOOMANYREFS); c.again.Equal(now.Add(refsAgain)) != again || c.full == again {
				t.Errorf("%v: it is looked at %v later, full: %v", failure, c.again.Sub(now), c.full)
			}
		}
		failure, c.full = nil, false
		s.lookAgain(c, time.Time{})
		if !s.reply(c, now) || c.answer != nil || tries != 4 || !c.deadline.Equal(now.Add(s.limits.read)) {
			t.Errorf("after %d tries it is not over", tries)
		}
	})
	if m, _, err := wire.Receive(fd, 0); err != nil || m.(*wire.Done).Count != 4 {
		t.Error(m, err)
	}
}

// The broker forgets an owner that spends nothing and joins no more, and none before.
func TestOwnersAreForgotten(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 128\nmessages_per_uid = 100")
	b.do(func(s *Server) {
		now, one, two := time.Now(), owner{uid: 1}, owner{uid: 2}
		s.forgets = time.Time{}
		s.spend(&connection{owner: one}, now)
		for range 64 {
			s.joins(one, now)
		}
		s.spend(&connection{owner: two}, now.Add(time.Second/2)) // of another one: it is looked who can be forgotten
		s.forgetSpending(now.Add(3 * time.Second / 2))
		if s.spending[one] != nil || s.spending[two] != nil || s.joining[one] == nil {
			t.Errorf("after 1.5 s are left %v and %v", s.spending, s.joining)
		}
		s.forgetSpending(now.Add(2 * time.Second)) // not so soon again
		if s.joining[one] == nil {
			t.Error("it was looked again within a second")
		}
		s.forgetSpending(now.Add(3 * time.Second))
		if s.joining[one] != nil {
			t.Error("who joins no more is remembered")
		}
	})
}

// Without clients the broker wakes only for lines that it has to log again.
func TestPatience(t *testing.T) {
	b := start(t, "")
	b.do(func(s *Server) {
		now := time.Now()
		s.deaf, s.ended, s.unkept = time.Time{}, nil, false
		if ms := s.patience(now); ms != -1 {
			t.Errorf("it wakes after %d ms", ms)
		}
		s.say(zerolog.WarnLevel, "a", "b").Msg("a")
		s.sayNext = now.Add(5 * time.Second)
		if ms := s.patience(now); ms != 5001 {
			t.Errorf("it wakes after %d ms to say more", ms)
		}
		s.deaf = now.Add(time.Second)
		if ms := s.patience(now); ms != 1001 {
			t.Errorf("it wakes after %d ms to take connections", ms)
		}
		s.deaf, s.unkept, s.keepsIn, s.keepNext = time.Time{}, true, "/nowhere", now.Add(100*time.Millisecond)
		if ms := s.patience(now); ms != 101 {
			t.Errorf("it wakes after %d ms to write what people set", ms)
		}
		s.unkept, s.keepsIn = false, ""
	})
}
