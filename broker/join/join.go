// Package join is the other side of the broker: how a process becomes a client, and what people ask.
//
// The client checks all that the broker sends: that can set level, pause and turns of a client, and not its memory.
package join

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Directory is where sockets are: of the host's, one directory for each level.
const Directory = "/run/gpreempt"

const socketName = "broker.sock"

// SocketIn is the path of a level's socket.
func SocketIn(directory string, level int) string {
	return filepath.Join(directory, strconv.Itoa(level), socketName)
}

// AdminIn is the path of the socket for the administrator of the machine. No container gets it: what it shows and changes is everybody's.
func AdminIn(directory string) string { return filepath.Join(directory, "admin.sock") }

// Sockets are the places where a process looks for a broker, best first: in a container the one that was mounted into it, then of
// each level. The socket that it can reach decides the level that it may have, and not the one that it wants.
func Sockets(directory string) []string {
	list := []string{filepath.Join(directory, "broker", socketName)}
	for level := range wire.Levels {
		list = append(list, SocketIn(directory, level))
	}
	return list
}

// RefusedError is the broker's answer to a process that may not join, or may not ask.
type RefusedError struct {
	Reason wire.Reason
	Retry  time.Duration // not before; 0: never
}

func (e RefusedError) Error() string { return "the broker refuses: " + e.Reason.String() }

// ErrBroker is wrapped by errors about a broker that does not keep to the protocol.
var ErrBroker = errors.New("the broker sent something that makes no sense")

// ErrTime is returned where the broker does not answer in time.
var ErrTime = errors.New("the broker does not answer")

// Dial connects to a broker's socket.
func Dial(path string, within time.Duration) (fd int, err error) {
	if segment.Of != nil { // the broker asks the kernel who has connected
		if fd, err = segment.Of.Connect(path); err != nil {
			return -1, fmt.Errorf("connect to %s: %w", path, err)
		}
		return fd, nil
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	limit := unix.NsecToTimeval(max(within, time.Microsecond).Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), unix.SetNonblock(fd, false))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}) // waits while others that connect have not been taken
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	return fd, nil
}

// request sends the first message. That the broker has refused the connection already is no error: it says so.
func request(fd int, m wire.Message) error {
	if err := wire.Send(fd, m); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	return nil
}

// connect is Dial, for receive.
func connect(path string, within time.Duration) (fd int, err error) {
	if fd, err = Dial(path, within); err != nil {
		return -1, err
	}
	if err = unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	return fd, nil
}

// receive waits for a message, with up to two descriptors, which are checked to be as many as belong to it.
func receive(fd int, until time.Time) (wire.Message, []int, error) {
	for {
		m, fds, err := wire.Receive(fd, wire.MaxDescriptors)
		if errors.Is(err, unix.EAGAIN) {
			if err = await(fd, until); err == nil {
				continue
			}
			return nil, nil, err
		}
		if errors.Is(err, wire.ErrUnknown) && time.Now().After(until) { // however many there are
			return nil, nil, ErrTime
		}
		if errors.Is(err, wire.ErrUnknown) || errors.Is(err, unix.ECONNRESET) { // the latter comes once, before what was sent
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if refused, is := m.(*wire.Refused); is {
			wire.CloseAll(fds)
			return nil, nil, RefusedError{refused.Reason, time.Duration(refused.RetryMs) * time.Millisecond}
		}
		if want, fixed := descriptors(m); fixed && len(fds) != want {
			wire.CloseAll(fds)
			return nil, nil, fmt.Errorf("%w: %s with %d descriptors", ErrBroker, wire.Name(m), len(fds))
		}
		return m, fds, nil
	}
}

// await waits until something can be read; ErrTime: nothing in time.
func await(fd int, until time.Time) error {
	wait := max(time.Until(until), 0)
	if wait == 0 {
		return ErrTime
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err := unix.Poll(ready, int((wait+time.Millisecond-1)/time.Millisecond))
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// descriptors is how many belong to a message; fixed is false where that is not always the same.
func descriptors(m wire.Message) (n int, fixed bool) {
	switch m := m.(type) {
	case *wire.Welcome:
		if m.Back == 0 {
			return 2, true
		}
	case *wire.Common, *wire.Peer:
		return 1, true
	case *wire.Entry:
		return 0, false
	}
	return 0, true
}

// Options describe the process that joins.
type Options struct {
	Layout   uint32
	GPU      segment.GPU
	Wanted   int
	Name     string
	Injected bool
	Within   time.Duration             // the broker answers within it
	Own      func(which, fd int) error // hears of the own pages, the state and the counters, before others can; nil: not
}

// Client is a process on one GPU, at the broker. It is not safe for several goroutines, but for Turn.
type Client struct {
	options         Options
	fd              int
	Welcome         wire.Welcome // the latest from the broker
	State, Counters page.Mapping // its own
}

func (o *Options) hello() *wire.Hello {
	m := &wire.Hello{Layout: o.Layout, Wanted: uint8(o.Wanted), GPU: o.GPU.UUID}
	if o.GPU.Slice {
		m.Slice = 1
	}
	if o.Injected {
		m.Injected = 1
	}
	wire.PutText(m.Name[:], o.Name)
	return m
}

// Join makes this process a client. Its pages are mapped then, and it is a member for others at once.
func Join(path string, o Options) (*Client, error) {
	until := time.Now().Add(o.Within)
	fd, err := connect(path, o.Within)
	if err != nil {
		return nil, err
	}
	c := &Client{options: o, fd: fd}
	if err = c.greet(until); err != nil {
		c.Close()
		return nil, fmt.Errorf("join by %s: %w", path, err)
	}
	return c, nil
}

func (c *Client) greet(until time.Time) error {
	if err := request(c.fd, c.options.hello()); err != nil {
		return err
	}
	m, fds, err := receive(c.fd, until)
	if err != nil {
		return err
	}
	defer wire.CloseAll(fds)
	welcome, is := m.(*wire.Welcome)
	if !is || welcome.Back != 0 {
		return fmt.Errorf("%w: %s instead of Welcome", ErrBroker, wire.Name(m))
	}
	c.Welcome = *welcome
	for i, view := range []*page.Mapping{&c.State, &c.Counters} {
		if err := page.Own(fds[i]); err != nil {
			return err
		}
		if *view, err = page.Map(fds[i], true); err != nil {
			return err
		}
		if c.options.Own != nil {
			if err = c.options.Own(i, fds[i]); err != nil {
				return err
			}
		}
	}
	return wire.Send(c.fd, &wire.Mapped{})
}

// Back connects again, as the client that this one was, with the pages that it has. The error is a RefusedError, or says that this
// broker does not know the client: then the program has to Join anew.
func (c *Client) Back(path string) error {
	until := time.Now().Add(c.options.Within)
	fd, err := connect(path, c.options.Within)
	if err != nil {
		return err
	}
	hello := c.options.hello()
	hello.Back, hello.ID, hello.Generation = 1, c.Welcome.ID, c.Welcome.Generation
	err = request(fd, hello)
	var m wire.Message
	var fds []int
	if err == nil {
		m, fds, err = receive(fd, until)
	}
	wire.CloseAll(fds) // there are some if it is another broker, which takes this for a new client
	if welcome, is := m.(*wire.Welcome); err == nil && (!is || welcome.Back != 1 || welcome.ID != c.Welcome.ID) {
		err = fmt.Errorf("%w: %s", ErrForgotten, wire.Name(m))
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("come back by %s: %w", path, err)
	}
	c.disconnect()
	c.fd, c.Welcome = fd, *m.(*wire.Welcome)
	return nil
}

// ErrForgotten says that the broker has no such client any more.
var ErrForgotten = errors.New("the broker does not know this client")

// Event is what the broker says: Common, Peer, Gone, Ready or Changed. FD is the page of the first two, checked, and the caller's;
// -1 otherwise.
type Event struct {
	Message wire.Message
	FD      int
}

// Next waits for what the broker says next. ErrTime says that it says nothing.
func (c *Client) Next(wait time.Duration) (Event, error) {
	if c.fd < 0 {
		return Event{FD: -1}, wire.ErrClosed
	}
	m, fds, err := receive(c.fd, time.Now().Add(wait))
	if err != nil {
		return Event{FD: -1}, err
	}
	e := Event{m, -1}
	switch m := m.(type) {
	case *wire.Common, *wire.Peer:
		if err := page.Check(fds[0], c.Welcome.Weaker == 1); err != nil {
			wire.CloseAll(fds)
			return Event{FD: -1}, fmt.Errorf("%w: %w", ErrBroker, err)
		}
		e.FD = fds[0]
	case *wire.Changed:
		c.Welcome.Policy = m.Policy
	case *wire.Gone, *wire.Ready:
	default:
		return Event{FD: -1}, fmt.Errorf("%w: %s", ErrBroker, wire.Name(m))
	}
	return e, nil
}

// Turn asks the broker to change a turn, if its word still is seen. The common page shows the outcome.
func (c *Client) Turn(which, kind uint8, to int, seen uint64) error {
	if c.fd < 0 {
		return wire.ErrClosed
	}
	if to < 0 {
		to = wire.Slots
	}
	return wire.Send(c.fd, &wire.Turn{Kind: kind, Which: which, To: uint8(to), Seen: seen})
}

// FD is the connection, to be waited for.
func (c *Client) FD() int { return c.fd }

func (c *Client) disconnect() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// Leave says goodbye, and closes.
func (c *Client) Leave() {
	if c.fd >= 0 {
		_ = wire.Send(c.fd, &wire.Bye{}) // else the end of the process says it
	}
	c.Close()
}

// Close ends the connection and unmaps the client's own pages.
func (c *Client) Close() {
	c.disconnect()
	c.State.Unmap()
	c.Counters.Unmap()
}
