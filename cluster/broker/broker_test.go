package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	layout = segment.Version
	soon   = time.Minute // a bound on what takes milliseconds, for a machine that is slow and busy
)

// bench is a broker in this process, with a socket for each level.
type bench struct {
	t         *testing.T
	server    *Server
	directory string
	done      chan error
	pid       atomic.Int32
	uid       atomic.Uint32
	cgroup    atomic.Value
}

func init() { join.AnswersWithin = soon }

// start starts a broker. Its clients are of this process, and count as processes of their own: the test replaces the kernel's facts about
// them, but for the pidfd.
func start(t *testing.T, rules string, prepare ...func(s *Server)) *bench {
	t.Helper()
	p := policy.Default()
	if rules != "" {
		var err error
		if p, err = policy.Parse("test.toml", []byte(rules)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(layout, p, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, server: s, done: make(chan error, 1)}
	b.cgroup.Store("/test")
	s.identify = func(int, uint64) (identity, error) {
		pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
		pid := b.pid.Add(1)
		return identity{pid: pid, uid: b.uid.Load(), cgroup: b.cgroup.Load().(string), nested: []int32{pid}, users: users{own: true}, pidfd: pidfd}, err
	}
	s.limits.hello, s.limits.mapped, s.limits.read = soon, soon, soon // a loaded machine is no client that is late
	for _, do := range prepare {
		do(s)
	}
	b.directory = sockets(t, s)
	go func() { b.done <- s.Run() }()
	t.Cleanup(b.stop)
	return b
}

// sockets makes a socket for each level, and the administrator's, in a folder that every user can reach.
func sockets(t *testing.T, s *Server) (directory string) {
	t.Helper()
	directory, err := os.MkdirTemp("", "gpreempt-broker-") // short: paths of sockets are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	for level := range wire.Levels {
		fd, err := Bind(join.SocketIn(directory, level), 0o755, -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Listen(fd, level); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := BindAdmin(join.AdminIn(directory))
	if err == nil {
		err = s.ListenAdmin(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	return directory
}

func (b *bench) stop() {
	b.server.Stop()
	select {
	case err := <-b.done:
		if err != nil {
			b.t.Error(err)
		}
		b.done <- nil
	case <-time.After(soon):
		b.t.Error("the broker does not stop")
	}
}

// do runs something in the broker's loop.
func (b *bench) do(what func(s *Server)) {
	b.t.Helper()
	done := make(chan struct{})
	b.server.command(func() { what(b.server); close(done) })
	select {
	case <-done:
	case <-time.After(soon):
		b.t.Fatal("the broker does not answer")
	}
}

func (b *bench) clients() (n int) {
	b.do(func(s *Server) { n = len(s.clients) })
	return n
}

func options(gpu byte, wanted int) join.Options {
	return join.Options{Layout: layout, GPU: segment.GPU{UUID: [16]byte{gpu}}, Wanted: wanted, Name: "test", Within: soon}
}

// peer is a client with the news that it has got.
type peer struct {
	*join.Client
	t      *testing.T
	common page.Mapping
	ids    [wire.Slots]uint64
	pages  [wire.Slots]page.Mapping
	ready  bool
}

var light bool // pages of others are not mapped

func (b *bench) try(o join.Options, socket int) (*peer, error) {
	c, err := join.Join(join.SocketIn(b.directory, socket), o)
	if err != nil {
		return nil, err
	}
	p := &peer{Client: c, t: b.t}
	b.t.Cleanup(func() {
		p.Close()
		p.common.Unmap()
		for i := range p.pages {
			p.pages[i].Unmap()
		}
	})
	return p, p.until(func() bool { return p.ready })
}

func (b *bench) join(gpu byte, wanted int) *peer {
	b.t.Helper()
	p, err := b.try(options(gpu, wanted), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// until reads messages of the broker until something holds.
func (p *peer) until(holds func() bool) error {
	for !holds() {
		e, err := p.Next(soon) // each: how many there will be is not known
		if err != nil {
			return err
		}
		if err := p.take(e); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) take(e join.Event) (err error) {
	switch m := e.Message.(type) {
	case *wire.Common:
		p.common.Unmap()
		p.common, err = page.Map(e.FD, false)
	case *wire.Peer:
		p.pages[m.Slot].Unmap()
		if p.ids[m.Slot] = m.ID; !light {
			p.pages[m.Slot], err = page.Map(e.FD, false)
		}
	case *wire.Gone:
		if p.ids[m.Slot] != m.ID {
			return fmt.Errorf("client %d is gone from slot %d, where %d is", m.ID, m.Slot, p.ids[m.Slot])
		}
		p.ids[m.Slot] = 0
	case *wire.Ready:
		p.ready = true
	}
	if e.FD >= 0 {
		unix.Close(e.FD)
	}
	return err
}

func (p *peer) slot() int { return int(p.Welcome.Slot) }

func (p *peer) wait(what string, holds func() bool) {
	p.t.Helper()
	if err := p.until(holds); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// eventually waits for something that no message tells.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

func refused(err error, reason wire.Reason) bool {
	var r join.RefusedError
	return errors.As(err, &r) && r.Reason == reason
}

func TestMembersSeeEachOther(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	lc, be, elsewhere := b.join(1, 0), b.join(1, 7), b.join(2, 7)
	lc.wait("LC is told of BE", func() bool { return lc.ids[be.slot()] == be.Welcome.ID })
	be.wait("BE is told of LC", func() bool { return be.ids[lc.slot()] == lc.Welcome.ID })
	lc.State.Line(lc.slot()).WindowOpenedNs.Store(5)
	if got := be.pages[lc.slot()].Line(lc.slot()).WindowOpenedNs.Load(); got != 5 {
		t.Errorf("BE sees a window of %d", got)
	}
	w := be.common.Common()
	if w.Magic != segment.Magic || w.GPU != [16]byte{1} || w.Generation != be.Welcome.Generation || w.Members.Load() != 1<<lc.slot()|1<<be.slot() ||
		w.Level[lc.slot()].Load() != 0 || w.Level[be.slot()].Load() != 7 || w.Client[be.slot()].Load() != be.Welcome.ID || w.BrokerHeartbeatNs.Load() == 0 {
		t.Errorf("%+v", w)
	}
	if elsewhere.ids != [wire.Slots]uint64{} || elsewhere.common.Common().Members.Load() != 1 {
		t.Error("a client of another GPU is told of these")
	}
	bell := w.Rings.Bell.Load()
	lc.Leave()
	be.wait("BE is told that LC left", func() bool { return be.ids[lc.slot()] == 0 })
	if w.Members.Load() != 1<<be.slot() || w.Client[lc.slot()].Load() != 0 { // written before the message went out
		t.Errorf("members %#x", w.Members.Load())
	}
	eventually(t, "the bell is rung", func() bool { return w.Rings.Bell.Load() != bell })
	again := b.join(1, 7) // in the free slot
	be.wait("BE is told of the next", func() bool { return be.ids[again.slot()] == again.Welcome.ID })
	if again.Welcome.ID == lc.Welcome.ID {
		t.Error("an id was given twice")
	}
}

// A client is announced to others only when its pages are sealed.
func TestNobodySeesAPageThatIsNotSealed(t *testing.T) {
	b := start(t, "")
	be := b.join(1, 7)
	fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := wire.Send(fd, &wire.Hello{Layout: layout, Wanted: 7, GPU: [16]byte{1}}); err != nil {
		t.Fatal(err)
	}
	m, fds, err := wire.Receive(fd, 2)
	if err != nil || m.Type() != wire.TypeWelcome || len(fds) != 2 {
		t.Fatal(m, fds, err)
	}
	defer wire.CloseAll(fds)
	if b.clients() != 2 {
		t.Error("it has no slot")
	}
	if e, err := be.Next(0); !errors.Is(err, join.ErrTime) || be.common.Common().Members.Load() != 1 {
		t.Errorf("the other was told %v, %v", e, err)
	}
	for _, fd := range fds { // and it cannot prepare them
		if err := unix.Ftruncate(fd, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := wire.Send(fd, &wire.Mapped{}); err != nil {
		t.Fatal(err)
	}
	if m, _, err = wire.Receive(fd, 0); err != nil || m.(*wire.Refused).Reason != wire.RefusedPages {
		t.Errorf("%v, %v", m, err)
	}
	if b.clients() != 1 {
		t.Error("it is still there")
	}
}

// lingering is a socket whose last close waits until its peer has read all. The peer never reads.
func lingering(t *testing.T) int {
	t.Helper()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(listener, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(listener) })
	address, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Connect(fd, address), unix.SetNonblock(fd, true))
	}
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60})); err != nil {
		t.Fatal(err)
	}
	return fd
}

// A descriptor that a client sends may take a minute to be closed. The broker does not wait for that, whether it reads the packet or ends
// the connection before. The sender counts as connected until the descriptor is closed.
func TestDescriptorsThatAreSlowToClose(t *testing.T) {
	for _, unread := range []bool{false, true} {
		b := start(t, "", func(s *Server) { s.bare = false })
		fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
		if err != nil {
			t.Fatal(err)
		}
		var held chan struct{}
		if unread { // it refuses the first message when the second is there too
			held = make(chan struct{})
			b.server.command(func() { <-held })
			if err := wire.Send(fd, &wire.Mapped{}); err != nil {
				t.Fatal(err)
			}
		}
		slow := lingering(t)
		if err := wire.Send(fd, &wire.List{}, slow); err != nil {
			t.Fatal(err)
		}
		unix.Close(slow)
		if unread {
			close(held)
		}
		m, _, err := wire.Receive(fd, 0)
		if errors.Is(err, unix.ECONNRESET) { // comes once, before what was sent
			m, _, err = wire.Receive(fd, 0)
		}
		if refused, is := m.(*wire.Refused); err != nil || !is || refused.Reason != wire.RefusedForm {
			t.Fatal(m, err)
		}
		b.do(func(s *Server) { // it answers
			if unread && s.byUID[uint32(os.Getuid())] != 1 {
				t.Errorf("%d connections are counted", s.byUID[uint32(os.Getuid())])
			}
			if s.counted.Received[wire.TypeList] != 0 {
				t.Error("the message that came with a descriptor was carried out")
			}
		})
		unix.Close(fd)
	}
}

// Where the kernel can refuse descriptors, nobody sends any.
func TestNobodySendsDescriptors(t *testing.T) {
	b := start(t, "")
	if !b.server.bare {
		t.Skip("this kernel lets everybody send descriptors")
	}
	fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := wire.Send(fd, &wire.List{}, fd); !errors.Is(err, unix.EPERM) {
		t.Errorf("sent: %v", err)
	}
}

// A member that waits to come back counts as the connection that it had: there are never more clients of a user than it may have
// connections, on however many GPUs it says that it is.
func TestMembersWithoutConnectionCount(t *testing.T) {
	const most = 8
	b := start(t, fmt.Sprintf("[quota]\nconnections_per_uid = %d\nconnections_per_cgroup = %d", most, most))
	joined := 0
	for gpu := range byte(3 * most) {
		c, err := join.Join(join.SocketIn(b.directory, 7), options(gpu, 7))
		if err != nil {
			continue
		}
		joined++
		c.Close()
	}
	if joined == 0 || b.clients() > most {
		t.Errorf("%d joined, %d are there", joined, b.clients())
	}
	b.do(func(s *Server) {
		for _, c := range s.clients {
			s.drop(c)
		}
	})
	eventually(t, "nothing is counted any more", func() (none bool) {
		b.do(func(s *Server) { none = len(s.byUID)+len(s.byOwner)+len(s.byCgroup) == 0 })
		return none
	})
}

// A process that joins again and again is held to a bounded rate, because the broker tells all other members of each join.
func TestJoinsAreBounded(t *testing.T) {
	const most = 8
	b := start(t, fmt.Sprintf("[quota]\nconnections_per_uid = %d", most))
	began, joined := time.Now(), 0
	var refused join.RefusedError
	for range 10 * most {
		c, err := join.Join(join.SocketIn(b.directory, 7), options(1, 7))
		switch {
		case err == nil:
			joined++
			c.Leave()
		case !errors.As(err, &refused) || refused.Reason != wire.RefusedRate:
			t.Fatal(err)
		}
	}
	if bound := most + 1 + int(time.Since(began).Seconds()*joinsPerSecond); joined < 1 || joined > bound {
		t.Errorf("%d joins, must be at most %d", joined, bound)
	}
}

// A container is known by its cgroup where a runtime of the system made that, and not where a user can.
func TestContainerOf(t *testing.T) {
	id := strings.Repeat("0af9", 16)
	for path, want := range map[string]string{
		"": "", "/": "", "/user.slice": "", "/docker/": "", id: "", "/" + id: "",
		"/docker/" + id:                           id,
		"/system.slice/docker-" + id + ".scope":   id,
		"/machine.slice/libpod-" + id + ".scope":  id,
		"/kubepods/besteffort/pod1234-5678/" + id: id,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice/cri-containerd-" + id + ".scope": id,
		"/kubepods.slice/kubepods-pod12_34.slice/crio-" + id + ".scope":                                              id,
		"/user.slice/user-1000.slice/user@1000.service/app.slice/docker-" + id + ".scope":                            "",
		"/user.slice/user-1000.slice/user@1000.service/docker/" + id:                                                 "",
		"/system.slice/a.service/docker-" + id + ".scope":                                                            "",
		// As a broker in a pod sees them, whose cgroup namespace is its own: of another class of pods, of its own, of a pod without
		// one, of drivers without systemd, and beside its own container.
		"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod12_34.slice/cri-containerd-" + id + ".scope": id,
		"/../../kubepods-burstable-pod12_34.slice/cri-containerd-" + id + ".scope":                               id,
		"/../../../kubepods-pod12_34.slice/crio-" + id + ".scope":                                                id,
		"/../../../besteffort/pod1234-5678/" + id:                                                                id, "/../../pod1234-5678/" + id: id, "/../docker-" + id + ".scope": id, "/../../../../system.slice/docker-" + id + ".scope": id,
		"/../../../../user.slice/user-1000.slice/user@1000.service/app.slice/docker-" + id + ".scope":              "",
		"/../../../../user.slice/user-1000.slice/user@1000.service/kubepods.slice/cri-containerd-" + id + ".scope": "",
		"/../../../../system.slice/a.service/docker-" + id + ".scope":                                              "",
		// A container makes the groups below its own, whatever these are called.
		"/machine.slice/libpod-" + id + ".scope/container": id, "/docker/" + id + "/a/" + strings.Repeat("1", 64): id, "/kubepods/pod1/" + id + "/" + strings.Repeat("1", 64): id,
		"/../../pod1/" + id + "/docker-" + strings.Repeat("1", 64) + ".scope": id,
		"/docker/" + id + "0": "", "/docker/" + id[1:]: "", "/docker/" + strings.ToUpper(id): "",
	} {
		if got := containerOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// A broker that sends messages of an unknown type without end costs who asks it no more than it would wait.
func TestUnknownMessagesWithoutEnd(t *testing.T) {
	directory, err := os.MkdirTemp("", "gpreempt-broker-") // short: paths of sockets are
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	path := join.SocketIn(directory, 7)
	listener, err := Bind(path, 0o755, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := unix.SetNonblock(listener, false); err != nil {
		t.Fatal(err)
	}
	const number = 100_000
	sent := make(chan int, 1)
	go func() {
		n := 0
		defer func() { sent <- n }()
		fd, _, err := unix.Accept(listener)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		packet := wire.Encode(&wire.Done{})
		packet[2], packet[3] = 99, 0
		for ; n < number && unix.Sendto(fd, packet, unix.MSG_NOSIGNAL, nil) == nil; n++ {
		}
	}()
	if _, err := join.Query(path, 7, layout, time.Millisecond); !errors.Is(err, join.ErrTime) {
		t.Error(err)
	}
	if n := <-sent; n == number {
		t.Error("it has read all of them")
	}
}

func TestLevels(t *testing.T) {
	b := start(t, `
[[rule]]
name = "one"
when = 'uid == 1'
level = 1
share = 0.5
max_hold_ms = 20
memory_limit = '9MB'
[[rule]]
name = "none"
when = 'uid == 2'
admit = false`)
	for _, c := range []struct {
		uid                  uint32
		wanted, socket, want int
	}{{0, 0, 0, 7}, {1, 0, 0, 1}, {1, 3, 0, 3}, {1, 0, 5, 5}, {1, 7, 0, 7}} {
		b.uid.Store(c.uid)
		p, err := b.try(options(1, c.wanted), c.socket)
		if err != nil || int(p.Welcome.Policy.Level) != c.want || int(p.common.Common().Level[p.slot()].Load()) != c.want {
			t.Errorf("%+v: %+v, %v", c, p, err)
			continue
		}
		if want := (wire.Policy{Level: uint8(c.want), Best: uint8(max(1, c.socket)), Share: 500_000, MaxHoldUs: 20_000, MemoryMB: 9, QuantumMs: 100}); c.uid == 1 && p.Welcome.Policy != want {
			t.Errorf("%+v: %+v", c, p.Welcome.Policy)
		}
	}
	b.uid.Store(2)
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedPolicy) {
		t.Error(err)
	}
}

// Another policy is in force at once, for those that are there too.
func TestAnotherPolicy(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	lc, be := b.join(1, 0), b.join(1, 7)
	p, err := policy.Parse("next.toml", []byte("[default]\nlevel = 4\nshare = 0.25\n[[rule]]\nname='no'\nwhen='wanted == 7'\nadmit=false"))
	if err != nil {
		t.Fatal(err)
	}
	b.server.SetPolicy(p)
	lc.wait("LC is told", func() bool { return lc.Welcome.Policy.Level == 4 })
	if lc.Welcome.Policy.Share != 250_000 || be.common.Common().Level[lc.slot()].Load() != 4 {
		t.Errorf("%+v", lc.Welcome.Policy)
	}
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedPolicy) {
		t.Error(err)
	}
	if b.clients() != 2 {
		t.Error("who was there was sent away")
	}
}

func TestQuotas(t *testing.T) {
	b := start(t, "[quota]\nmembers_per_uid = 2\nmembers_per_cgroup = 3\nconnections_per_uid=1000\nconnections_per_cgroup = 500")
	b.uid.Store(1)
	first := b.join(1, 7)
	b.join(1, 7)
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedQuota) {
		t.Errorf("a third client of a user: %v", err)
	}
	b.join(2, 7) // of another GPU
	b.uid.Store(2)
	b.join(1, 7)
	b.uid.Store(3)
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedQuota) {
		t.Errorf("a fourth client of a cgroup: %v", err)
	}
	b.cgroup.Store("/other")
	b.join(1, 7)
	first.Leave()
	eventually(t, "the client has left", func() bool { return b.clients() == 4 })
	b.cgroup.Store("/test")
	b.uid.Store(1)
	b.join(1, 7)
}

// Connections of a control group are counted beside those of a user, since a container's root is the same user as another container's.
func TestConnectionsOfAControlGroup(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_cgroup = 2")
	first := b.join(1, 7)
	b.join(2, 7)
	if _, err := b.try(options(3, 7), 0); !refused(err, wire.RefusedRate) {
		t.Errorf("a third connection of a control group: %v", err)
	}
	b.cgroup.Store("/other")
	b.join(3, 7)
	b.cgroup.Store("/test")
	first.Leave()
	eventually(t, "there is room for another", func() bool { _, err := b.try(options(3, 7), 0); return err == nil })
}

// The pages of a client go to its own user and to root. A user who may change the client by the policy's word sees only that it is there.
func TestPagesAreOfTheirUser(t *testing.T) {
	b := start(t, "[control]\nwhen = 'asker.uid != 3'")
	b.uid.Store(1)
	b.join(1, 7)
	for uid, want := range map[uint32]string{admin: "2 pages", 0: "0 pages", 1: "2 pages", 2: "0 pages", 3: ""} {
		got := ""
		if err := join.List(b.askedBy(uid), func(_ *wire.Entry, pages []int) error { got += fmt.Sprintf("%d pages", len(pages)); return nil }); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("user %d is told of %q, must be %q", uid, got, want)
		}
	}
}

// admin stands for the administrator among users.
const admin = 1<<32 - 1

// withoutAdmin is a directory with the sockets for programs alone.
func (b *bench) withoutAdmin() (directory string) {
	b.t.Helper()
	directory = b.t.TempDir()
	for level := range wire.Levels {
		if err := os.Symlink(filepath.Join(b.directory, strconv.Itoa(level)), filepath.Join(directory, strconv.Itoa(level))); err != nil {
			b.t.Fatal(err)
		}
	}
	return directory
}

// askedBy is the socket by which a user asks that clients are from now on.
func (b *bench) askedBy(uid uint32) string {
	b.uid.Store(uid)
	if uid == admin {
		return join.AdminIn(b.directory)
	}
	return join.SocketIn(b.directory, 0)
}

func TestSlotsRunOut(t *testing.T) {
	b := start(t, "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64")
	for range wire.Slots {
		b.join(1, 7)
	}
	b.uid.Store(1)
	b.cgroup.Store("/other")
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedFull) {
		t.Errorf("%v", err)
	}
	b.join(2, 7)
}

func TestAnotherVersionIsRefused(t *testing.T) {
	b := start(t, "")
	o := options(1, 7)
	o.Layout++
	if _, err := b.try(o, 0); !refused(err, wire.RefusedVersion) {
		t.Error(err)
	}
}

// A member whose connection ends may come back to the same id, slot and pages. A member that does not come back leaves.
func TestComingBack(t *testing.T) {
	b := start(t, "", func(s *Server) {
		same := s.identify
		s.identify = func(fd int, accepted uint64) (identity, error) { // all are one process, each on a GPU
			who, err := same(fd, accepted)
			who.pid = 7
			return who, err
		}
	})
	p, other := b.join(1, 7), b.join(2, 7)
	word := &p.State.Line(p.slot()).Busy
	unix.Shutdown(p.FD(), unix.SHUT_RDWR)
	eventually(t, "the connection is lost", func() (lost bool) {
		b.do(func(s *Server) { lost = s.clients[p.Welcome.ID].connection == nil })
		return lost
	})
	if p.common.Common().Members.Load() == 0 {
		t.Error("it is no member any more")
	}
	before := p.Welcome
	if err := p.Back(join.SocketIn(b.directory, 7)); err != nil || p.Welcome.ID != before.ID || p.Welcome.Slot != before.Slot {
		t.Fatalf("%+v, %v", p.Welcome, err)
	}
	p.ready = false
	p.wait("it is told all again", func() bool { return p.ready })
	word.Store(1)
	b.do(func(s *Server) {
		if c := s.clients[p.Welcome.ID]; c == nil || c.view.Line(c.slot).Busy.Load() != 1 {
			t.Error("it has other pages")
		}
		if s.counted.Returned != 1 || s.counted.Joined != 2 {
			t.Errorf("%d returned, %d joined", s.counted.Returned, s.counted.Joined)
		}
		s.limits.back = time.Millisecond
	})
	unix.Shutdown(p.FD(), unix.SHUT_RDWR)
	eventually(t, "it has left", func() bool { return b.clients() == 1 })
	if err := p.Back(join.SocketIn(b.directory, 7)); !errors.Is(err, join.ErrForgotten) {
		t.Error(err)
	}
	// A process that joins anew replaces its former client. Exec looks like that.
	if again := b.join(2, 7); b.clients() != 1 || again.Welcome.ID == other.Welcome.ID {
		t.Errorf("%d clients", b.clients())
	}
	if _, err := other.Next(soon); !errors.Is(err, wire.ErrClosed) {
		t.Errorf("the one before: %v", err)
	}
}

// A change by people is in force at once, within what the rule allows, and only if the policy allows it to the asker.
func TestPeople(t *testing.T) {
	b := start(t, "[default]\nlevel = 2\nshare = 0.5")
	b.uid.Store(5)
	p := b.join(1, 7)
	var pid int32
	socket := join.SocketIn(b.directory, 0)
	list := func() (all []wire.Entry) {
		t.Helper()
		if err := join.List(socket, func(e *wire.Entry, pages []int) error {
			if len(pages) != 2 {
				t.Errorf("%d pages", len(pages))
			}
			for _, fd := range pages {
				if err := page.Check(fd, false); err != nil && p.Welcome.Weaker == 0 {
					t.Error(err)
				}
			}
			all = append(all, *e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := list()
	if len(all) != 1 || all[0].ID != p.Welcome.ID || all[0].UID != 5 || wire.GetText(all[0].Name[:]) != "test" || wire.GetText(all[0].Rule[:]) != "default" || wire.GetText(all[0].Cgroup[:]) != "/test" {
		t.Fatalf("%+v", all)
	}
	pid = all[0].Pid
	set := func(m wire.Set) (int, error) { m.Pid = pid; return join.Set(socket, &m) }
	objective := configs.Objective{Slowdown: 1.5, Percentile: 99}.Word()
	for _, c := range []struct {
		set  wire.Set
		want wire.Policy
	}{
		{wire.Set{Fields: wire.SetLevel, Level: 0}, wire.Policy{Level: 2, Best: 2, Share: 500_000, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetLevel, Level: 6}, wire.Policy{Level: 6, Best: 2, Share: 500_000, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetPaused | wire.SetShare, Paused: 1, Share: 100_000}, wire.Policy{Level: 6, Best: 2, Paused: 1, Share: 100_000, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetShareMax, ShareMax: 1}, wire.Policy{Level: 6, Best: 2, Paused: 1, Share: 100_000, ShareMax: 1, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetShareMax, ShareMax: 700_000}, wire.Policy{Level: 6, Best: 2, Paused: 1, Share: 100_000, ShareMax: 700_000, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetPaused}, wire.Policy{Level: 6, Best: 2, Share: 100_000, ShareMax: 700_000, QuantumMs: 100}},
		{wire.Set{Fields: wire.SetObjective, Objective: objective}, wire.Policy{Level: 6, Best: 2, Share: 100_000, ShareMax: 700_000, QuantumMs: 100, Objective: objective}},
		{wire.Set{Fields: wire.SetClear}, wire.Policy{Level: 7, Best: 2, Share: 500_000, QuantumMs: 100}},
	} {
		if n, err := set(c.set); n != 1 || err != nil {
			t.Fatalf("%+v: %d, %v", c.set, n, err)
		}
		p.wait("it is told", func() bool { return p.Welcome.Policy == c.want })
		if got := p.common.Common().Level[p.slot()].Load(); got != uint32(c.want.Level) {
			t.Errorf("%+v: level %d", c.set, got)
		}
	}
	if _, err := set(wire.Set{Fields: wire.SetShare, Share: 600_000}); !refused(err, wire.RefusedPolicy) {
		t.Errorf("more than its share: %v", err)
	}
	if n, err := join.Set(socket, &wire.Set{Pid: 1 << 30, Fields: wire.SetClear}); n != 0 || err != nil {
		t.Errorf("no such process: %d, %v", n, err)
	}
	if _, err := join.Policy(socket); !refused(err, wire.RefusedPolicy) {
		t.Errorf("a user reads the policy: %v", err)
	}
	b.uid.Store(6)
	if all := list(); len(all) != 0 {
		t.Errorf("another user sees %+v", all)
	}
	if _, err := set(wire.Set{Fields: wire.SetPaused, Paused: 1}); !refused(err, wire.RefusedPolicy) {
		t.Errorf("another user pauses it: %v", err)
	}
	if there, err := join.Ask(socket, &wire.Ask{ID: p.Welcome.ID, Request: uint64(wire.AskSuspend)}); there || !refused(err, wire.RefusedPolicy) {
		t.Errorf("another user suspends it: %t, %v", there, err)
	}
	b.uid.Store(0)
	if _, err := set(wire.Set{Fields: wire.SetPaused, Paused: 1}); !refused(err, wire.RefusedPolicy) {
		t.Errorf("root pauses it by a socket for programs: %v", err)
	}
	socket = join.AdminIn(b.directory)
	if n, err := set(wire.Set{Fields: wire.SetShare, Share: 600_000}); n != 1 || err != nil {
		t.Error(n, err)
	}
	if text, err := join.Policy(socket); err != nil || text != "[default]\nlevel = 2\nshare = 0.5" {
		t.Errorf("%q, %v", text, err)
	}
}

// A policy and a list of any length come through, also to who reads slowly.
func TestLongAnswers(t *testing.T) {
	rules := "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\n" + strings.Repeat("# a comment\n", 50_000)
	b := start(t, rules)
	for i := range 200 {
		b.join(byte(i%4), 7)
	}
	if text, err := join.Policy(join.AdminIn(b.directory)); err != nil || text != rules {
		t.Errorf("%d bytes of %d, %v", len(text), len(rules), err)
	}
	n := 0
	if err := join.List(join.SocketIn(b.directory, 0), func(*wire.Entry, []int) error { n++; return nil }); err != nil || n != 200 {
		t.Errorf("%d of 200 clients: %v", n, err)
	}
}

// Turns over the socket: taken, passed, and free when the owner leaves.
func TestTurnsOfMembers(t *testing.T) {
	b := start(t, "[default]\nlevel = 0\n[turns]\nquantum_ms = 1")
	one, two, lc := b.join(1, 7), b.join(1, 7), b.join(1, 0)
	two.State.State().HeartbeatNs.Store(1 << 62) // else it counts as stopped
	w := one.common.Common()
	ask := func(p *peer, kind uint8, to int) {
		t.Helper()
		if err := p.Turn(wire.TurnRun, kind, to, w.Turn.Load()); err != nil {
			t.Fatal(err)
		}
	}
	owner := func() int {
		if slot, owned := segment.TurnOwner(w.Turn.Load()); owned {
			return slot
		}
		return -1
	}
	ask(lc, wire.TurnTake, 0)
	ask(one, wire.TurnTake, 0)
	eventually(t, "the turn is taken", func() bool { return owner() == one.slot() })
	bell := w.Rings.Bell.Load()
	ask(one, wire.TurnPass, two.slot())
	eventually(t, "the turn is passed, and that is rung", func() bool { return owner() == two.slot() && w.Rings.Bell.Load() != bell })
	since := w.TurnSinceNs.Load()
	eventually(t, "its owner is late, and it is seized", func() bool {
		ask(one, wire.TurnSeize, 0)
		return owner() == one.slot()
	})
	if held := time.Duration(w.TurnSinceNs.Load() - since); held < seizeAfter {
		t.Errorf("seized after %v", held)
	}
	b.do(func(s *Server) {
		if c := s.clients[two.Welcome.ID]; c.overstays != 1 || c.barredNs[wire.TurnRun] == 0 {
			t.Errorf("%d overstays", c.overstays)
		}
	})
	one.Leave()
	eventually(t, "the turn is free", func() bool { return owner() == -1 })
	if err := two.Turn(wire.TurnMemory, wire.TurnTake, 0, w.MemoryTurn.Load()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the memory turn is taken", func() bool {
		slot, owned := segment.TurnOwner(w.MemoryTurn.Load())
		return owned && slot == two.slot()
	})
	two.Leave()
	eventually(t, "the memory turn is free", func() bool { _, owned := segment.TurnOwner(w.MemoryTurn.Load()); return !owned })
}

// The broker's heartbeat goes on while there are clients.
func TestHeartbeat(t *testing.T) {
	b := start(t, "")
	p := b.join(1, 7)
	first := p.common.Common().BrokerHeartbeatNs.Load()
	eventually(t, "a second heartbeat", func() bool { return p.common.Common().BrokerHeartbeatNs.Load() > first })
}

// A socket of another kind, or one that does not listen, is refused.
func TestListenRefusesOtherSockets(t *testing.T) {
	b := start(t, "")
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.server.Listen(fd, 0); err == nil {
			t.Error("a socket that is none was taken")
		}
		unix.Close(fd)
	}
}

// A socket takes the place of one that a dead broker left, and is never missing meanwhile.
func TestBind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1", "broker.sock")
	for range 2 {
		fd, err := Bind(path, 0o755, -1)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		info, err := os.Stat(path)
		if err != nil || info.Mode() != os.ModeSocket|0o666 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if _, err := Bind(filepath.Join(t.TempDir(), strings.Repeat("x", 100), "broker.sock"), 0o755, -1); err == nil {
		t.Error("a path that is too long was bound")
	}
}

// silent connects and says nothing.
func (b *bench) silent() (fd int) {
	b.t.Helper()
	fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (b *bench) unfinished() (n int) {
	b.do(func(s *Server) {
		n = s.unfinished.Len()
		all := 0
		for _, of := range s.waiting {
			all += of
		}
		if n != all || len(s.connections) != n+len(s.clients)-len(s.away) {
			b.t.Errorf("%d connections, %d without a client, which count as %d, %d clients", len(s.connections), n, all, len(s.clients))
		}
	})
	return n
}

// A user has so many clients, whatever it does with them. The newcomer is refused.
func TestConnectionsAreCounted(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 3")
	clients := []*peer{b.join(1, 7), b.join(1, 7), b.join(2, 7)}
	if _, err := b.try(options(1, 7), 7); !refused(err, wire.RefusedRate) {
		t.Errorf("a fourth: %v", err)
	}
	clients[0].Leave()
	eventually(t, "there is room for another", func() bool { _, err := b.try(options(1, 7), 7); return err == nil })
}

// Connections that say nothing keep nobody out, of their user or of another, and are no more than there may be.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	// A client is one of all, and of the user's it is counted apart from those that say nothing.
	for name, most := range map[string]struct{ quota, all, client int }{"of a user": {8, 100, 0}, "of all": {100, 8, 1}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, fmt.Sprintf("[quota]\nconnections_per_uid = %d", most.quota), func(s *Server) {
				s.limits.hello, s.limits.connections = time.Hour, most.all
			})
			const places = 8
			fills := func(most int) func() bool {
				for range 2 * places {
					b.silent()
				}
				return func() bool {
					n := b.unfinished()
					// Where clients can send descriptors, one that is not closed yet counts.
					return n == most || n < most && !b.server.bare
				}
			}
			joins := func() bool { _, err := b.try(options(1, 7), 7); return err == nil }
			eventually(t, "there are as many as there may be", fills(places))
			eventually(t, "one joins", joins)
			eventually(t, "there are as many again", fills(places-most.client))
			if b.clients() != 1 {
				t.Error("a client had to go for those who say nothing")
			}
			eventually(t, "another joins", joins)
			if n := b.unfinished(); n > places-1-most.client || b.clients() != 2 {
				t.Errorf("%d are left beside %d clients", n, b.clients())
			}
		})
	}
}

// A connection that has said HELLO, though the broker has not read it yet, is not ended for others. A user's only connection is not either.
func TestWhoSaidHelloStays(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 100", func(s *Server) { s.limits.hello, s.limits.connections = time.Hour, 3 })
	first := b.silent()
	eventually(t, "it is taken", func() bool { return b.unfinished() == 1 })
	b.silent()
	b.silent()
	eventually(t, "all are taken", func() bool { return b.unfinished() == 3 })
	b.do(func(s *Server) {
		if err := wire.Send(first, &wire.Hello{Layout: layout, Wanted: 7}); err != nil {
			t.Error(err)
		}
		if !s.room(uint32(os.Getuid()), time.Now()) || len(s.clients) != 1 || s.unfinished.Len() != 1 {
			t.Errorf("%d clients and %d others", len(s.clients), s.unfinished.Len())
		}
		const loud, quiet = 4242, 4243                    // the users of those that are left
		for i, uid := range []uint32{loud, loud, quiet} { // the last is the oldest
			c := &connection{fd: -1 - i, uid: uid, who: identity{pidfd: -1}}
			c.place = s.unfinished.PushFront(c)
			s.connections[c.fd] = c
			s.waiting[uid]++
		}
		s.room(4244, time.Now())
		if s.waiting[loud] != 1 || s.waiting[quiet] != 1 {
			t.Errorf("of the user with two connections are left %d, of the one with one %d", s.waiting[loud], s.waiting[quiet])
		}
		for _, c := range s.connections {
			if c.fd < 0 {
				s.end(c)
			}
		}
	})
	b.unfinished()
}

// Users who take all that they can leave room for others: who has no client gets one.
func TestClientsLeaveRoomForOthers(t *testing.T) {
	b := start(t, "[quota]\nconnections_per_uid = 100\nmembers_per_uid = 64\nmembers_per_cgroup = 64", func(s *Server) { s.limits.connections = 32 })
	for uid := range uint32(4) {
		b.uid.Store(uid)
		got := 0
		for range 32 {
			if _, err := b.try(options(1, 7), 7); err == nil {
				got++
			} else if !refused(err, wire.RefusedRate) {
				t.Fatal(err)
			}
		}
		if got == 0 || got > 16 {
			t.Errorf("user %d has %d of 32", uid, got)
		}
	}
	eventually(t, "all that are left are clients'", func() bool { return b.unfinished() == 0 })
}

// A user that connects as fast as it can, and says nothing, keeps no other one out.
func TestFloodOfSilence(t *testing.T) {
	needsRoot(t)
	b := start(t, "[quota]\nconnections_per_uid = 300", func(s *Server) {
		real(s)
		s.limits.hello, s.limits.connections = time.Hour, 64
	})
	const hostile = 4242
	p := begin(t, "silence", join.SocketIn(b.directory, 7), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: hostile, Gid: hostile}})
	p.says("flooded")
	for gpu := range byte(20) {
		b.join(gpu, 7)
	}
	b.do(func(s *Server) {
		if s.clientsOf[owner{}] != 20 {
			t.Errorf("%d clients", s.clientsOf[owner{}])
		}
	})
}

// The broker ends a connection that says nothing after connecting, or that does not say MAPPED after its WELCOME.
func TestSilence(t *testing.T) {
	b := start(t, "", func(s *Server) { s.limits.hello, s.limits.mapped = time.Millisecond, 100*time.Millisecond })
	fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if m, _, err := wire.Receive(fd, 0); err != nil || m.(*wire.Refused).Reason != wire.RefusedLate {
		t.Errorf("%v, %v", m, err)
	}
	b.do(func(s *Server) { s.limits.hello = time.Hour })
	late, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(late)
	if err := wire.Send(late, &wire.Hello{Layout: layout, Wanted: 7}); err != nil {
		t.Fatal(err)
	}
	m, fds, err := wire.Receive(late, 2)
	wire.CloseAll(fds)
	if err != nil || m.Type() != wire.TypeWelcome {
		t.Fatal(m, err)
	}
	if m, _, err := wire.Receive(late, 0); err != nil || m.(*wire.Refused).Reason != wire.RefusedLate {
		t.Errorf("%v, %v", m, err)
	}
	if b.clients() != 0 {
		t.Error("it has a slot")
	}
}

// The broker looks only at connections with a deadline each time that it wakes. However many members are silent, it does not look at them.
func TestOnlyWhatIsDueIsLookedAt(t *testing.T) {
	b := start(t, "", func(s *Server) { s.limits.back = time.Hour })
	members := []*peer{b.join(1, 7), b.join(1, 7), b.join(2, 0)}
	looked := func() (due, away int) {
		b.do(func(s *Server) { due, away = len(s.due), len(s.away) })
		return due, away
	}
	eventually(t, "nothing is due", func() bool { due, away := looked(); return due == 0 && away == 0 })
	fd, err := join.Dial(join.SocketIn(b.directory, 7), soon)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "one who has said nothing is", func() bool { due, _ := looked(); return due == 1 })
	unix.Close(fd)
	members[0].Close()
	eventually(t, "a member is away, and its connection is not due", func() bool { due, away := looked(); return due == 0 && away == 1 })
	members[1].Leave()
	eventually(t, "who has left is not away", func() bool { return b.clients() == 2 })
	if due, away := looked(); due != 0 || away != 1 {
		t.Errorf("%d are due, %d away", due, away)
	}
	b.do(func(s *Server) {
		for c := range s.away {
			s.drop(c)
		}
	})
	if _, away := looked(); away != 0 {
		t.Errorf("%d are away that were dropped", away)
	}
}

// A member that does not read costs the broker nothing: no news is queued for it. When it reads, it gets the present state. If it never
// reads, the broker drops it.
func TestWhoDoesNotRead(t *testing.T) {
	b := start(t, "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64", func(s *Server) { s.limits.read = time.Hour })
	idle := b.join(1, 7)
	full := func() (full bool) {
		b.do(func(s *Server) { full = s.clients[idle.Welcome.ID].connection.full })
		return full
	}
	for joins := 0; !full(); joins++ {
		if joins > 20_000 {
			t.Fatal("it never takes no more")
		}
		b.join(1, 7).Leave()
	}
	stays := b.join(1, 7)
	idle.wait("it is told what is", func() bool {
		return idle.ids[stays.slot()] == stays.Welcome.ID && idle.count() == 1
	})
	go func() { _ = stays.until(func() bool { return false }) }() // it reads
	b.do(func(s *Server) { s.limits.read = time.Millisecond })
	eventually(t, "it is no member", func() bool {
		b.join(1, 7).Leave()
		gone := false
		b.do(func(s *Server) { gone = s.clients[idle.Welcome.ID] == nil })
		return gone
	})
	if b.clients() == 0 {
		t.Error("others are gone too")
	}
	b.do(func(s *Server) {
		if s.counted.Lost != 1 {
			t.Errorf("%d were lost", s.counted.Lost)
		}
	})
}

// A member that sends more messages than it may is not read for a while. Others are.
func TestTooManyMessages(t *testing.T) {
	b := start(t, "[quota]\nmessages_per_second = 10", func(s *Server) { s.limits.back = 0 })
	loud, quiet := b.join(1, 7), b.join(1, 7)
	paused := func() (paused bool) {
		b.do(func(s *Server) { paused = !s.clients[loud.Welcome.ID].connection.again.IsZero() })
		return paused
	}
	eventually(t, "it is not read any more", func() bool {
		for range 20 {
			_ = loud.Turn(wire.TurnRun, wire.TurnTake, 0, 1<<40) // of what was never seen; when there is no room it is not sent
		}
		return paused()
	})
	b.do(func(s *Server) {
		if s.counted.Throttled == 0 {
			t.Error("that was not counted")
		}
	})
	quiet.Leave()
	eventually(t, "another is heard", func() bool { return b.clients() == 1 })
	loud.Leave()
	eventually(t, "it leaves all the same", func() bool { return b.clients() == 0 })
}

// Many connections of a user, or of a container, have no more messages together than one, and others have theirs.
func TestManyConnectionsMultiplyNothing(t *testing.T) {
	const most = 20
	b := start(t, fmt.Sprintf("[quota]\nmessages_per_second = 1000\nmessages_per_uid = %d", most))
	b.do(func(s *Server) {
		now := time.Now()
		through := func(p owner, connections int) (n int) {
			for range connections {
				c := &connection{owner: p}
				for s.spend(c, now) == 0 {
					n++
				}
				if wait := s.spend(c, now); wait < ownerAgain {
					t.Errorf("it is read again after %v", wait)
				}
				if c.bucket.left < 1 {
					t.Error("the connection has paid for what was not read")
				}
			}
			return n
		}
		container := owner{1, strings.Repeat("a", 64)}
		for _, p := range []owner{{uid: 1}, {uid: 2}, container} {
			if n := through(p, 10); n != most {
				t.Errorf("%+v: %d messages by ten connections", p, n)
			}
		}
		now = now.Add(time.Second)
		s.charge(&connection{owner: container}, most) // pays for what costs as much
		if n := through(container, 1); n != 0 {
			t.Errorf("%d messages of who has spent them", n)
		}
		if n := through(owner{uid: 1}, 3); n != most {
			t.Errorf("%d messages a second later", n)
		}
		now = now.Add(time.Hour)
		if through(owner{uid: 3}, 1); len(s.spending) != 1 {
			t.Errorf("%d are remembered who spend nothing", len(s.spending))
		}
	})
}

// The broker reads nothing of a connection that has had its messages of this second.
func TestNothingIsReadWithoutAMessageLeft(t *testing.T) {
	b := start(t, "")
	p := b.join(1, 7)
	b.do(func(s *Server) {
		c, now, before := s.clients[p.Welcome.ID].connection, time.Now(), s.counted
		if err := p.Turn(wire.TurnRun, wire.TurnTake, 0, 1<<40); err != nil {
			t.Error(err)
		}
		c.bucket = bucket{at: now}
		if s.read(c, now) || s.counted.Received != before.Received || s.counted.Throttled != before.Throttled+1 {
			t.Errorf("%v came, %v before; it had to wait %d times", s.counted.Received, before.Received, s.counted.Throttled-before.Throttled)
		}
		if s.lookAgain(c, time.Time{}); !s.read(c, now.Add(time.Second)) || s.counted.Received[wire.TypeTurn] != before.Received[wire.TypeTurn]+1 {
			t.Errorf("a second later %v came, %v before", s.counted.Received, before.Received)
		}
	})
}

// A connection that there is no room for, for its user or for anybody, is refused and holds nothing.
func TestConnectionsBeyondTheLimits(t *testing.T) {
	const all = 2
	b := start(t, "", func(s *Server) { s.limits.connections = all })
	b.do(func(s *Server) {
		refused := func(why string) {
			t.Helper()
			c, before := &connection{fd: -1, uid: 4242}, s.byUID[4242]
			if s.count(c, time.Now()) || c.holds != (holds{}) || s.byUID[4242] != before {
				t.Errorf("%s: it holds %+v, its user %d, had %d", why, c.holds, s.byUID[4242], before)
			}
		}
		s.byUID[4242] = s.policy.Quota.ConnectionsPerUID
		refused("its user has all that it may have")
		delete(s.byUID, 4242)
		s.limits.connections = s.taken()
		refused("all have what there is")
	})
}

// A look at a connection that has sent nothing costs neither it nor its owner a message.
func TestLooksCostNoMessages(t *testing.T) {
	b := start(t, "")
	p := b.join(1, 7)
	b.do(func(s *Server) {
		c, now := s.clients[p.Welcome.ID].connection, time.Now()
		s.read(c, now)
		ofConnection, ofOwner := c.bucket.left, s.spending[c.owner].left
		if s.read(c, now) || c.bucket.left != ofConnection || s.spending[c.owner].left != ofOwner {
			t.Errorf("the connection has %v messages left, had %v; its owner %v, had %v", c.bucket.left, ofConnection, s.spending[c.owner].left, ofOwner)
		}
	})
}

// The loop tells members at once what changes on their GPU, and not at the next heartbeat.
func TestChangesAreToldAtOnce(t *testing.T) {
	b := start(t, "")
	b.join(1, 7)
	p := b.join(1, 7)
	b.do(func(s *Server) {
		c := s.clients[p.Welcome.ID]
		for _, change := range []struct {
			name string
			do   func()
		}{
			{"a turn", func() { c.gpu.turn(c, &wire.Turn{Kind: wire.TurnTake, Seen: c.gpu.words().Turn.Load()}, s.policy) }},
			{"a level", func() { c.judge(s) }},
			{"who comes", func() { c.gpu.admit(c) }},
			{"who goes", func() { s.drop(c) }},
		} {
			c.gpu.changed = false
			if change.do(); !c.gpu.changed {
				t.Errorf("%s: nobody is told", change.name)
			}
		}
	})
}

// A user that lists all clients again and again by many connections is not read for a while. Others are.
func TestListsOfOneUser(t *testing.T) {
	b := start(t, "[quota]\nmessages_per_uid = 50", func(s *Server) { s.limits.read, s.limits.hello = time.Hour, time.Hour })
	b.cgroup.Store("/system.slice/docker-" + strings.Repeat("b", 64) + ".scope")
	quiet := b.join(1, 7)
	b.cgroup.Store("/test")
	paused := func() (n int) {
		b.do(func(s *Server) {
			for _, c := range s.connections {
				if !c.again.IsZero() && c.client == nil {
					n++
				}
			}
		})
		return n
	}
	eventually(t, "a connection that said little is not read", func() bool {
		if err := wire.Send(b.silent(), &wire.List{}); err != nil {
			t.Fatal(err)
		}
		return paused() > 0
	})
	quiet.Leave()
	eventually(t, "another is heard", func() bool { return b.clients() == 0 })
}

func TestBuckets(t *testing.T) {
	var b bucket
	now, through := time.Now(), 0
	for range 10 * 1000 { // ten seconds, a message each millisecond
		if b.take(now, 100) == 0 {
			through++
		}
		now = now.Add(time.Millisecond)
	}
	if through < 1090 || through > 1110 { // a hundred at first, and a hundred a second
		t.Errorf("%d messages in 10 s", through)
	}
	for b.take(now, 100) == 0 {
	}
	if wait := b.take(now, 100); wait <= 0 || b.take(now.Add(wait), 100) != 0 {
		t.Errorf("after %v there is none", wait)
	}
}
