package broker

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file has the loop's state: a Server, connections, clients and GPUs.

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
	connections   int           // Connections of all users together.
	hello, mapped time.Duration // The time for the first and the second message.
	read          time.Duration // The time to read their news.
	back          time.Duration // The time to come back after the end of the connection, if the process lives.
}

// Server is a broker.
type Server struct {
	limits     limits
	identify   func(socket int, accepted uint64) (identity, error)
	busy       func() time.Duration // The processor time that this process took.
	layout     uint32
	policy     *policy.Policy
	log        zerolog.Logger // Lines that clients cannot cause. say writes the others.
	said       map[saying]*said
	sayNext    time.Time // The time to look for lines that are to be written again.
	weaker     bool      // The kernel protects pages less well.
	generation uint64
	lastID     uint64
	counted    wire.Counted // Counters, without the present numbers.

	epoll, wake int
	listeners   map[int]int // Level of the socket, by descriptor; adminLevel: the administrator's.
	deaf        time.Time   // No connections are taken until then; zero: they are.
	connections map[int]*connection
	due         map[*connection]bool // All that have a deadline or an again, and some that had one.
	away        map[*client]bool     // Members without a connection.
	pods        string               // A folder that says which pod a container is of; "": none.
	podless     map[*client]bool     // Clients in a container that this folder does not know yet.
	unfinished  list.List            // The connections that are no client's, the oldest first.
	waiting     counts[uint32]       // The number of unfinished connections, by user.
	dying       map[int]*client      // Clients, by pidfd, whose end is watched.
	clients     map[uint64]*client
	order       []*client // The clients, ordered by id.
	members     int
	refusals    []*refusal // Processes that the policy refused, the first ones first.
	ended       []*client  // Members whose pages are kept, in the order in which they ended.
	gpus        map[segment.GPU]*gpu
	clientsOf   counts[owner]
	byUID       counts[uint32] // Connections whose owner is not known yet.
	byOwner     counts[owner]  // Connections whose owner is known.
	byCgroup    counts[string]
	admins      int               // The administrator's connections.
	joining     map[owner]*bucket // Joins.
	spending    map[owner]*bucket // Messages.
	forgets     time.Time         // The next time to forget owners that spend nothing.
	bare        bool              // The kernel lets no client send descriptors.
	closer      closer
	keepsIn     string                    // A file; "": settings by people are not kept.
	left        map[target]wire.Set       // Settings at an earlier broker, of processes that have not come yet.
	unkept      bool                      // The settings have changed since they were written.
	keepNext    time.Time                 // The settings are not written before.
	beat        time.Time                 // The next heartbeat.
	others      map[string]map[int32]bool // PIDs of processes that work and are no clients, by GPU.
	inUse       atomic.Int32              // The number of GPUs.

	mutex    sync.Mutex
	commands []func() // Commands that the loop is to run.
	stopped  bool
}

// connection is a socket. It becomes a client's by HELLO, or people ask by it.
type connection struct {
	fd       int
	level    int // The level of the socket that it came to.
	admin    bool
	uid      uint32
	accepted uint64 // The time of that, in clock ticks since the start of the machine.
	holds    holds
	who      identity
	seen     bool          // The field who is known.
	place    *list.Element // Its place among the unfinished; nil once it is a client's.
	client   *client
	told     bool   // People were answered.
	answer   answer // The rest of an answer to people; nil: none.

	bucket   bucket
	owner    owner
	full     bool      // The peer does not read. The loop looks again when it does.
	again    time.Time // The loop does not look before; zero: it does. Set by lookAgain.
	deadline time.Time // The time when it ends, or its client; zero: neither does. Set by endAt.
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
	connection *connection // nil: it ended, and the process may come back.
	backUntil  time.Time
	holds      holds     // The holds of the connection that ended.
	endedUntil time.Time // Its pages are kept until then; zero: it has not ended.
	member     bool

	state, counters int          // Descriptors.
	view            page.Mapping // A view of the state, once that is sealed.

	socket, wanted int
	facts          policy.Facts
	grant          policy.Grant
	part           share // The part of the grant.
	workedAt       time.Time
	set            wire.Set    // Changes by people.
	asked          uint64      // The last request of people about its memory.
	inForce        wire.Policy // The result of all these.

	// The news that it has got.
	common, ready bool
	policy        wire.Policy
	peers         [wire.Slots]uint64 // The ids of its peers.

	wantsSince [2]uint64 // The time since which it wants a turn, by kind of turn; 0: it does not.
	barredNs   [2]uint64 // It gets no turn of the kind before.
	overstays  uint32
	inARow     [2]uint8 // Overstays in a row, since it passed a turn on, by kind of turn.
}

// gpu is what clients of one GPU share. It exists while there are clients.
type gpu struct {
	id       segment.GPU
	slot     [wire.Slots]*client // nil: free.
	common   int                 // Descriptor of the common page, sealed.
	view     page.Mapping        // A view of the common page, writable.
	byOwner  counts[owner]       // Clients.
	byCgroup counts[string]
	changed  bool // Members are to get news.
}

// target is a process on a GPU.
type target struct {
	pid     int32
	started uint64 // Clock ticks since the start of the machine.
	gpu     segment.GPU
}
