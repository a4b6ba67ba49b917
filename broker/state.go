package broker

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/policy"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// What the loop knows: a Server, connections, clients and GPUs.

const (
	// heartbeat is how often the broker writes that it lives, while there are clients.
	heartbeat = time.Second
	// adminLevel is the administrator's socket among the levels.
	adminLevel = -1
	// mostAdmins is how many connections the administrator may have. They are not among those of clients, who cannot keep it out.
	mostAdmins = 64
	// acceptAgain is when new connections are taken after there was no descriptor for one.
	acceptAgain = 100 * time.Millisecond
	// refsAgain is when descriptors are sent again after the kernel said that too many are under way.
	refsAgain = 10 * time.Millisecond
	// atOnce is how many messages of one connection are read before others have theirs.
	atOnce = 16
	// mostConnections is how many there may be of all users: with five descriptors each, of clients with a GPU of their own, below the limit
	// of the unit.
	mostConnections = 4096
)

// limits are how many there may be, and how long they may take.
type limits struct {
	connections   int           // of all users
	hello, mapped time.Duration // for the first and the second message
	read          time.Duration // to read what they are told
	back          time.Duration // to come back after the connection ended, if the process lives
}

// Server is a broker.
type Server struct {
	limits     limits
	identify   func(socket int, accepted uint64) (identity, error)
	busy       func() time.Duration // the processor time that this took
	layout     uint32
	policy     *policy.Policy
	log        zerolog.Logger // lines that clients cannot cause; the others are said by say
	said       map[saying]*said
	sayNext    time.Time // when it is looked what is to be said again
	weaker     bool      // pages are protected less well
	generation uint64
	lastID     uint64
	counted    wire.Counted // without what there is now

	epoll, wake int
	listeners   map[int]int // level of the socket, by descriptor; adminLevel: the administrator's
	deaf        time.Time   // no connections are taken until then; zero: they are
	connections map[int]*connection
	due         map[*connection]bool // all that have a time when something is to be done, and some that had one
	away        map[*client]bool     // members without a connection
	pods        string               // a folder that says which pod a container is of; "": none does
	podless     map[*client]bool     // in a container of which it does not say that yet
	unfinished  list.List            // the connections that are no client's, the oldest first
	waiting     counts[uint32]       // of these, by user
	dying       map[int]*client      // by pidfd
	clients     map[uint64]*client
	order       []*client // the same, by id
	members     int
	refusals    []*refusal // whom the policy does not take, the first before
	ended       []*client  // members whose pages are kept, those that ended first before
	gpus        map[segment.GPU]*gpu
	clientsOf   counts[owner]
	byUID       counts[uint32] // connections of which it is not known yet whose they are
	byOwner     counts[owner]  // the other ones
	byCgroup    counts[string]
	admins      int               // the administrator's connections
	joining     map[owner]*bucket // joins
	spending    map[owner]*bucket // messages
	forgets     time.Time         // when owners are forgotten next that spend nothing
	bare        bool              // the kernel lets nobody send descriptors
	closer      closer
	keepsIn     string                    // a file; "": what people set is not kept
	left        map[target]wire.Set       // what they set at an earlier broker, of processes that have not come yet
	unkept      bool                      // it has changed
	keepNext    time.Time                 // not written before
	beat        time.Time                 // the next heartbeat
	others      map[string]map[int32]bool // PIDs of processes that work and are no clients, by GPU
	inUse       atomic.Int32              // GPUs

	mutex    sync.Mutex
	commands []func() // to be run by the loop
	stopped  bool
}

// connection is a socket. It becomes a client's by HELLO, or people ask by it.
type connection struct {
	fd       int
	level    int // of the socket that it came to
	admin    bool
	uid      uint32
	accepted uint64 // when, in clock ticks since the start of the machine
	holds    holds
	who      identity
	seen     bool          // who is known
	place    *list.Element // among the unfinished; nil once it is a client's
	client   *client
	told     bool   // people were answered
	answer   answer // of people: what is still to be sent; nil: nothing

	bucket   bucket
	owner    owner
	full     bool      // it does not read: it is looked at when it does
	again    time.Time // not looked at before; zero: it is
	deadline time.Time // when it ends, or its client; zero: it does not. Both are set by endAt and lookAgain
}

// holds is what a connection, or a member without one, counts as: of a user, or of an owner and a control group, or the administrator's.
type holds struct {
	as     countsAs
	uid    uint32
	owner  owner
	cgroup string
}

type countsAs uint8

const (
	asNothing countsAs = iota
	asUser
	asOwner
	asAdmin
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
	part           share // of that
	workedAt       time.Time
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

// gpu is what clients of one GPU share. There is one while there are clients.
type gpu struct {
	id       segment.GPU
	slot     [wire.Slots]*client // nil: free
	common   int                 // descriptor of the common page, sealed
	view     page.Mapping        // of it, writable
	byOwner  counts[owner]       // clients
	byCgroup counts[string]
	changed  bool // members are to be told something
}

// target is a process on a GPU.
type target struct {
	pid     int32
	started uint64 // clock ticks since the start of the machine
	gpu     segment.GPU
}
