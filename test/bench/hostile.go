package bench

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// hostileCommand makes the command a hostile client of a broker: gpreempt-bench bench-hostile KIND DIRECTORY GPU. It serves init of
// PROTOCOL.md, which is answered when the attack is under way, and goes on until the end of its orders.
const hostileCommand = "bench-hostile"

// Like the workers in C it runs before main, so that it also runs in the tests' binary.
func init() {
	if len(os.Args) != 5 || os.Args[1] != hostileCommand {
		return
	}
	if err := beHostile(os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", hostileCommand, os.Args[2], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// attacks are what a hostile client can do. Each tells by under when it is under way, and never ends.
var attacks = map[string]func(directory string, gpu segment.GPU, under func()) error{
	"page": fuzzPage, "flood": floodSocket, "open": stayOpen,
}

func beHostile(kind, directory, uuid string) error {
	attack, known := attacks[kind]
	if !known {
		return errors.New("no such attack")
	}
	gpu, err := segment.ParseGPU(uuid)
	if err != nil {
		return err
	}
	orders := bufio.NewScanner(os.Stdin)
	if !orders.Scan() || orders.Text() != "init" {
		return fmt.Errorf("order %.40q: expected init", orders.Text())
	}
	failed := make(chan error, 1)
	go func() { failed <- attack(directory, gpu, func() { fmt.Println("{}") }) }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for orders.Scan() {
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return nil
	}
}

// joinWithin is how long a broker has to answer.
const joinWithin = 30 * time.Second

// joinAs joins as any process does.
func joinAs(name, directory string, gpu segment.GPU, level int) (*join.Client, error) {
	return join.Join(join.SocketIn(directory, 0), join.Options{Layout: segment.Version, GPU: gpu, Wanted: level, Name: name, Within: joinWithin})
}

// fuzzPage is a best-effort member that has work, a heartbeat and a window that has just opened, between changes at random of all that it
// can write.
func fuzzPage(directory string, gpu segment.GPU, under func()) error {
	c, err := joinAs("page", directory, gpu, wire.Levels-1)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	state, counters := c.State.Bytes(), c.Counters.Bytes()
	line := c.State.Line(int(c.Welcome.Slot))
	for n := 0; ; n++ {
		for range 64 {
			state[random.IntN(len(state))] = byte(random.Uint32())
			counters[random.IntN(len(counters))] = byte(random.Uint32())
		}
		now := segment.Now()
		c.State.State().HeartbeatNs.Store(now)
		line.WindowOpenedNs.Store(now)
		line.Busy.Store(1)
		if n == 0 {
			under()
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// stayOpen is a latency-critical member with a window that is open for ever.
func stayOpen(directory string, gpu segment.GPU, under func()) error {
	c, err := joinAs("open", directory, gpu, 0)
	if err != nil {
		return err
	}
	line := c.State.Line(int(c.Welcome.Slot))
	line.WindowOpenedNs.Store(segment.Now())
	line.Busy.Store(1)
	for n := 0; ; n++ {
		c.State.State().HeartbeatNs.Store(segment.Now())
		if n == 0 {
			under()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const (
	floodConnections = 800  // open at once
	floodBegun       = 2000 // connections, after which it is under way: its quotas are used up
	floodWarmUp      = 5 * time.Second
)

// floodSocket connects without end, sends anything in any order, with descriptors, and does not read.
func floodSocket(directory string, gpu segment.GPU, under func()) error {
	random := rand.New(rand.NewPCG(3, 4))
	var open []int
	began, told := time.Now(), false
	for n := 0; ; n++ {
		if !told && (n >= floodBegun || time.Since(began) > floodWarmUp) {
			under()
			told = true
		}
		if len(open) >= floodConnections {
			i := random.IntN(len(open))
			unix.Close(open[i])
			open = slices.Delete(open, i, i+1)
		}
		fd, err := join.Dial(join.SocketIn(directory, random.IntN(wire.Levels)), time.Second)
		if err != nil {
			continue
		}
		open = append(open, fd)
		_ = unix.SetNonblock(fd, true) // a connection that waits is none
		for range random.IntN(6) {
			junk := make([]byte, random.IntN(2000)+1)
			for i := range junk {
				junk[i] = byte(random.Uint32())
			}
			var m wire.Message = &wire.Hello{Layout: segment.Version, Wanted: uint8(random.IntN(wire.Levels)), GPU: gpu.UUID, Back: uint8(random.IntN(2)), ID: random.Uint64N(50)}
			switch random.IntN(7) {
			case 0:
				m = &wire.Mapped{}
			case 1:
				m = &wire.Turn{Kind: uint8(random.IntN(3)), To: uint8(random.IntN(wire.Slots + 1)), Seen: random.Uint64N(4) << 16}
			case 2:
				m = &wire.List{}
			case 3:
				m = &wire.Set{Pid: int32(random.IntN(9999) + 1), Fields: wire.SetPaused, Paused: 1}
			case 4:
				m = &wire.Ask{ID: random.Uint64N(100), Request: random.Uint64()}
			case 5:
				_ = unix.Sendmsg(fd, junk, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) // refused: the next one
			}
			_ = wire.Send(fd, m, open[:min(len(open), random.IntN(200))]...)
			_ = wire.Send(fd, &wire.Mapped{})
		}
	}
}

// timeJoin is how long a process takes to be a member that has mapped the pages of all others.
func timeJoin(directory string, gpu segment.GPU) (ns uint64, err error) {
	began := segment.Now()
	c, err := joinAs("join", directory, gpu, wire.Levels-1)
	if err != nil {
		return 0, err
	}
	defer c.Leave()
	for {
		e, err := c.Next(joinWithin)
		if err != nil {
			return 0, fmt.Errorf("join: %w", err)
		}
		if _, ready := e.Message.(*wire.Ready); ready {
			return segment.Now() - began, nil
		}
		if e.FD < 0 {
			continue
		}
		view, err := page.Map(e.FD, false)
		unix.Close(e.FD)
		if err != nil {
			return 0, err
		}
		defer view.Unmap()
	}
}
