package broker

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The test's binary is also a program that joins a broker, and obeys the lines on its standard input. actAs says what it does first,
// socketOf is the broker's socket.
const (
	actAs    = "GPREEMPT_TEST_ACT"
	socketOf = "GPREEMPT_TEST_SOCKET"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(actAs); what != "" {
		act(what, os.Getenv(socketOf))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func act(what, socket string) {
	switch what {
	case "member":
		actor := &actor{socket: socket}
		actor.run()
	case "ask", "ask bare":
		askAll(what == "ask bare", socket)
	case "pretend nothing", "pretend user", "pretend groups", "pretend child":
		pretender(what, socket)
	case "flood":
		flood(socket)
	case "silence":
		silence(socket)
	case "crowd":
		crowd(socket)
	default:
		if step, err := strconv.Atoi(what); err == nil {
			dieAt(step, socket)
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// dieAt kills this process after so many steps of the handshake.
func dieAt(step int, socket string) {
	at := func(here int) {
		if here == step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it does not come back
			select {}
		}
	}
	fd, err := join.Dial(socket, soon)
	must(err)
	at(0)
	must(wire.Send(fd, &wire.Hello{Layout: layout, Wanted: 7, GPU: [16]byte{1}}))
	at(1)
	_, fds, err := wire.Receive(fd, 2)
	must(err)
	at(2)
	if len(fds) != 2 {
		must(fmt.Errorf("%d descriptors", len(fds)))
	}
	at(3)
	must(wire.Send(fd, &wire.Mapped{}))
	at(4)
	_, _, err = wire.Receive(fd, 1)
	must(err)
	at(5)
	must(wire.Send(fd, &wire.Turn{To: wire.Slots}))
	at(6)
}

const steps = 7

// actor is a member in a process of its own.
type actor struct {
	socket string
	c      *join.Client
	mutex  sync.Mutex // pages
	pages  [wire.Slots]page.Mapping
	lost   chan struct{} // a connection has ended, and nobody listens to it any more
}

func (a *actor) run() {
	var err error
	a.lost = make(chan struct{}, 1)
	a.c, err = join.Join(a.socket, join.Options{Layout: layout, GPU: segment.GPU{UUID: [16]byte{1}}, Wanted: 0, Name: "actor", Within: soon})
	must(err)
	fmt.Printf("joined %d at level %d, pid %d\n", a.c.Welcome.Slot, a.c.Welcome.Policy.Level, os.Getpid())
	go a.listen()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		word, argument, _ := strings.Cut(lines.Text(), " ")
		slot, _ := strconv.Atoi(argument)
		switch word {
		case "open":
			a.c.State.Line(int(a.c.Welcome.Slot)).WindowOpenedNs.Store(uint64(slot))
		case "ring":
			page.Ring(&a.c.State.Line(int(a.c.Welcome.Slot)).Rings.Gate)
		case "see": // the window of a slot
			fmt.Printf("window %d\n", a.line(slot).WindowOpenedNs.Load())
		case "wait": // until a slot's gate is rung so often
			for times := uint32(1); times <= 1000; times = a.line(slot).Rings.Gate.Load() + 1 {
				fmt.Printf("rung %d\n", times-1)
				page.Wait(&a.line(slot).Rings.Gate, times-1, soon)
			}
			fmt.Println("rung enough")
		case "close": // as daemons do, and come back
			a.closeAll()
			must(a.c.Back(a.socket))
			fmt.Printf("back %d\n", a.c.Welcome.Slot)
			go a.listen()
		case "exec":
			must(unix.Exec("/proc/self/exe", os.Args, os.Environ()))
		case "leave":
			a.c.Leave()
			return
		}
	}
}

// closeAll closes all descriptors but the standard ones, and but those by which Go's runtime waits: without them it ends the program.
func (a *actor) closeAll() {
	all, err := os.ReadDir("/proc/self/fd")
	must(err)
	for _, entry := range all {
		fd, err := strconv.Atoi(entry.Name())
		must(err)
		what, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || fd < 3 || strings.HasPrefix(what, "anon_inode:[event") { // an error: of the listing itself
			continue
		}
		if strings.HasPrefix(what, "socket:") { // who listens ends first: the next connection has the same number
			must(unix.Shutdown(fd, unix.SHUT_RDWR))
			<-a.lost
		}
		must(unix.Close(fd))
	}
}

func (a *actor) line(slot int) *segment.Line {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.pages[slot].Line(slot)
}

func (a *actor) listen() {
	for {
		e, err := a.c.Next(time.Hour)
		if err != nil {
			fmt.Println("lost:", err)
			a.lost <- struct{}{}
			return
		}
		switch m := e.Message.(type) {
		case *wire.Peer:
			a.mutex.Lock()
			if a.pages[m.Slot], err = page.Map(e.FD, false); err == nil {
				fmt.Printf("peer %d\n", m.Slot)
			}
			a.mutex.Unlock()
		case *wire.Gone:
			fmt.Printf("gone %d\n", m.Slot)
		}
		wire.CloseAll([]int{e.FD})
	}
}

// process is an actor, from outside.
type process struct {
	t     testing.TB
	c     *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	said  []string
}

// begin starts the test's binary as an actor. Attributes may be nil.
func begin(t testing.TB, what, socket string, attributes *syscall.SysProcAttr) *process {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), actAs+"="+what, socketOf+"="+socket)
	c.SysProcAttr = attributes
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		if attributes != nil && attributes.Cloneflags != 0 {
			cannot(t, "this machine makes no namespaces: ", err)
		}
		t.Fatal(err)
	}
	p := &process{t: t, c: c, in: in, lines: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.c.Process.Kill() // else it has ended
	_ = p.c.Wait()
}

func (p *process) tell(format string, arguments ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", arguments...); err != nil {
		p.t.Fatal(err)
	}
}

// says waits for a line with that beginning and returns the rest.
func (p *process) says(beginning string) string {
	p.t.Helper()
	for p.lines.Scan() {
		p.said = append(p.said, p.lines.Text())
		if rest, is := strings.CutPrefix(p.lines.Text(), beginning); is {
			return rest
		}
	}
	p.t.Fatalf("it did not say %q but %q", beginning, p.said)
	return ""
}

// real makes the broker see who clients are.
func real(s *Server) { s.identify = peerOf }

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// descriptors is how many this process has, without those of pages that the broker keeps.
func (b *bench) descriptors() int {
	b.t.Helper()
	kept := 0
	b.do(func(s *Server) { kept = len(s.ended) })
	if kept > mostEnded {
		b.t.Fatalf("%d pages are kept", kept)
	}
	return descriptors(b.t) - 2*kept
}

// isolated are the attributes of a process that is a user of its own, in namespaces of its own.
func isolated(uid int) *syscall.SysProcAttr {
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	return &syscall.SysProcAttr{UidMappings: id, GidMappings: id, Credential: &syscall.Credential{NoSetGroups: true}, // root there
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
}

// Processes of two users, in user, PID, mount, network and IPC namespaces of their own, see each other's pages, and wake each other
// by them. The broker sees who they are.
func TestNamespaces(t *testing.T) {
	needsRoot(t)
	b := start(t, "[[rule]]\nname = 'lc'\nwhen = 'uid == 4242'\nlevel = 0", real)
	lc := begin(t, "member", join.SocketIn(b.directory, 0), isolated(4242))
	lcSlot, rest, _ := strings.Cut(lc.says("joined "), " ")
	if rest != "at level 0, pid 1" {
		t.Errorf("LC: %s", rest)
	}
	be := begin(t, "member", join.SocketIn(b.directory, 0), isolated(4243))
	beSlot, rest, _ := strings.Cut(be.says("joined "), " ")
	if rest != "at level 7, pid 1" {
		t.Errorf("BE: %s", rest)
	}
	lc.says("peer " + beSlot)
	be.says("peer " + lcSlot)
	lc.tell("open 77")
	for seen := ""; seen != "77"; { // nothing tells when it is written
		be.tell("see " + lcSlot)
		seen = be.says("window ")
	}
	be.tell("wait " + lcSlot)
	for range 1000 {
		lc.tell("ring")
	}
	be.says("rung enough")
	pids := map[int32]uint32{}
	b.do(func(s *Server) {
		for _, c := range s.clients {
			pids[c.who.pid] = c.who.uid
			if len(c.who.nested) < 2 || c.who.nested[len(c.who.nested)-1] != 1 {
				t.Errorf("pids of process %d: %v", c.who.pid, c.who.nested)
			}
		}
	})
	if pids[int32(lc.c.Process.Pid)] != 4242 || pids[int32(be.c.Process.Pid)] != 4243 {
		t.Errorf("LC is %d, BE %d; the broker knows %v", lc.c.Process.Pid, be.c.Process.Pid, pids)
	}
	lc.kill()
	be.says("gone " + lcSlot)
}

// A process may die after any step. Its slot is free then, other members learn of it, and the broker has no descriptor more.
func TestDeathAtEachStep(t *testing.T) {
	b := start(t, "", real)
	before := b.descriptors()
	for step := range steps {
		for range 3 {
			p := begin(t, strconv.Itoa(step), join.SocketIn(b.directory, 7), nil)
			_ = p.c.Wait()
			if s := p.c.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() {
				t.Fatalf("step %d: it ended by itself: %v", step, s)
			}
			eventually(t, fmt.Sprintf("step %d: all is as before", step), func() (gone bool) {
				b.do(func(s *Server) {
					gone = len(s.clients)+len(s.connections)+len(s.gpus)+len(s.dying)+len(s.byUID)+len(s.byOwner)+len(s.byCgroup) == 0
				})
				return gone
			})
		}
	}
	eventually(t, "no descriptor is left", func() bool { return b.descriptors() <= before })
}

// A process that closes all its descriptors stays the member that it was. One that executes another program is a new one, and
// there is never more than one of a process.
func TestClosingAllAndExec(t *testing.T) {
	b := start(t, "", real)
	watcher := begin(t, "member", join.SocketIn(b.directory, 7), nil)
	watcher.says("joined ")
	p := begin(t, "member", join.SocketIn(b.directory, 7), nil)
	slot, _, _ := strings.Cut(p.says("joined "), " ")
	watcher.says("peer " + slot)
	var id uint64
	only := func() (id uint64, n int) {
		b.do(func(s *Server) {
			for _, c := range s.clients {
				if c.who.pid == int32(p.c.Process.Pid) {
					id, n = c.id, n+1
				}
			}
		})
		return id, n
	}
	id, _ = only()
	p.tell("close")
	p.says("back " + slot)
	if after, n := only(); after != id || n != 1 {
		t.Errorf("client %d became %d of %d", id, after, n)
	}
	p.tell("exec")
	next, _, _ := strings.Cut(p.says("joined "), " ")
	watcher.says("gone " + slot)
	watcher.says("peer " + next)
	if after, n := only(); after == id || n != 1 {
		t.Errorf("client %d became %d of %d", id, after, n)
	}
	p.tell("leave")
	watcher.says("gone " + next)
}

// Clients are killed at random while others join. The clients that stay learn the truth, and the broker has nothing of the dead ones in the
// end.
func TestStormOfClients(t *testing.T) {
	const most, kills = 12, 120
	b := start(t, "", real)
	before := b.descriptors()
	random := rand.New(rand.NewPCG(1, 2))
	var all []*process
	for range kills {
		for len(all) < most {
			all = append(all, begin(t, "member", join.SocketIn(b.directory, 7), nil))
		}
		if random.IntN(2) == 0 { // else it dies while it joins
			all[len(all)-1].says("joined ")
		}
		i := random.IntN(len(all))
		all[i].kill()
		all = slices.Delete(all, i, i+1)
	}
	fresh := b.join(1, 7)
	fresh.wait("it is told of those that are there", func() bool { return fresh.common.Common().Members.Load() != 0 })
	for _, p := range all {
		p.kill()
	}
	fresh.wait("and that they are gone", func() bool {
		return fresh.ids == [wire.Slots]uint64{} && fresh.common.Common().Members.Load() == 1<<fresh.slot()
	})
	fresh.Leave()
	eventually(t, "nothing is left of them", func() bool { return b.clients() == 0 })
	eventually(t, "no descriptor is left", func() bool { return b.descriptors() <= before+1 }) // the common page of fresh
}

// flood does what a hostile process can: connects without end, sends anything in any order, with descriptors, and does not read.
func flood(socket string) {
	random := rand.New(rand.NewPCG(3, 4))
	var open []int
	for n := 0; ; n++ {
		if n == 2000 { // whether or not it gets this connection
			fmt.Println("flooded")
		}
		if len(open) >= 800 {
			i := random.IntN(len(open))
			unix.Close(open[i])
			open = slices.Delete(open, i, i+1)
		}
		fd, err := join.Dial(socket, time.Second)
		if err != nil {
			continue
		}
		open = append(open, fd)
		_ = unix.SetNonblock(fd, true) // what is refused is not the question
		hello := &wire.Hello{Layout: layout, Wanted: uint8(random.IntN(8)), GPU: [16]byte{byte(random.IntN(4))}, Back: uint8(random.IntN(2)), ID: random.Uint64N(50)}
		for range random.IntN(6) {
			junk := make([]byte, random.IntN(2000)+1)
			for i := range junk {
				junk[i] = byte(random.Uint32())
			}
			var m wire.Message = hello
			switch random.IntN(7) {
			case 0:
				m = &wire.Mapped{}
			case 1:
				m = &wire.Turn{Kind: uint8(random.IntN(3)), To: uint8(random.IntN(65)), Seen: random.Uint64N(4) << 16}
			case 2:
				m = &wire.List{}
			case 3:
				m = &wire.Set{Pid: int32(random.IntN(9999) + 1), Fields: wire.SetPaused, Paused: 1}
			case 4:
				m = &wire.Ask{ID: random.Uint64N(100), Request: random.Uint64()}
			case 5:
				_ = unix.Sendmsg(fd, junk, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			}
			_ = wire.Send(fd, m, open[:min(len(open), random.IntN(200))]...)
			_ = wire.Send(fd, &wire.Mapped{})
		}
	}
}

// silence connects without end, keeps what it got first, and says nothing.
func silence(socket string) {
	const kept = 100
	for n := 0; ; n++ {
		fd, err := join.Dial(socket, time.Second)
		if err == nil && n >= kept {
			unix.Close(fd)
		}
		if n == 4*kept {
			fmt.Println("flooded")
		}
	}
}

// A hostile user costs others no more than its share: they join, and the broker has nothing of it in the end.
func TestHostileUser(t *testing.T) {
	needsRoot(t)
	b := start(t, "[quota]\nmembers_per_uid = 16\nmembers_per_cgroup = 64\nconnections_per_uid = 300\nconnections_per_cgroup = 1000\nmessages_per_second = 100", real)
	before := b.descriptors()
	var hostile []*process
	for range 2 {
		hostile = append(hostile, begin(t, "flood", join.SocketIn(b.directory, 0), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}))
	}
	for _, p := range hostile {
		p.says("flooded")
	}
	var took []time.Duration
	for i := range 50 {
		began := time.Now()
		p := b.join(byte(i%4), 7) // in place of the one that this process was on that GPU
		took = append(took, time.Since(began))
		defer p.Close()
	}
	slices.Sort(took)
	t.Logf("joins beside a flood: median %v, longest %v", took[len(took)/2], took[len(took)-1])
	b.do(func(s *Server) {
		if n := max(s.byUID[4242], s.byOwner[owner{uid: 4242}]); n > 300 {
			t.Errorf("the hostile user has %d connections", n)
		}
		for _, g := range s.gpus {
			if n := g.byOwner[owner{uid: 4242}]; n > 16 {
				t.Errorf("the hostile user has %d clients of a GPU", n)
			}
		}
	})
	for _, p := range hostile {
		p.kill()
	}
	eventually(t, "nothing is left of it", func() (left bool) {
		b.do(func(s *Server) { left = s.byUID[4242]+s.byOwner[owner{uid: 4242}] != 0 })
		return !left
	})
	b.do(func(s *Server) {
		for _, c := range s.clients {
			if c.who.uid != 0 {
				t.Errorf("client %d of user %d is left", c.id, c.who.uid)
			}
		}
	})
	if now, own := b.descriptors(), 50+4*4+4; now > before+own { // of the clients; state, counters, pidfd and socket of 4; their GPUs
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

// As many clients as 16 GPUs have slots for, 64 on each. Each learns of all on its GPU.
func TestThousandClients(t *testing.T) {
	const gpus = 16
	light = true // a process may not have so many mappings
	defer func() { light = false }()
	b := start(t, "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\nconnections_per_uid = 2000\nconnections_per_cgroup = 2000")
	before := b.descriptors()
	all := make([]*peer, 0, gpus*wire.Slots)
	took := make([]time.Duration, 0, cap(all))
	var group sync.WaitGroup
	failed := make(chan error, cap(all))
	for i := range cap(all) {
		began := time.Now()
		p := b.join(byte(i%gpus), i%8)
		took = append(took, time.Since(began))
		all = append(all, p)
		group.Go(func() { // it reads news until it knows all
			if err := p.until(func() bool { return p.count() == wire.Slots-1 }); err != nil {
				failed <- fmt.Errorf("client %d knows of %d: %w", p.Welcome.ID, p.count(), err)
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	slices.Sort(took)
	t.Logf("joins: median %v, p99 %v, longest %v", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	for _, p := range all {
		if got := p.common.Common().Members.Load(); got != 1<<64-1 {
			t.Fatalf("members %#x", got)
		}
	}
	for _, p := range all {
		p.Leave()
	}
	eventually(t, "all have left", func() bool { return b.clients() == 0 })
	eventually(t, "no descriptor is left", func() bool { return b.descriptors() <= before })
}

func (p *peer) count() (n int) {
	for _, id := range p.ids {
		if id != 0 {
			n++
		}
	}
	return n
}
