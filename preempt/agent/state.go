package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	lowestLevel = configs.Levels - 1
	// heartbeat is how often an agent wakes with nothing to do: it shows that it lives, and notices dead peers.
	heartbeat = time.Second
	// renewal is how often an agent wakes whose TSGs are off the runlist: they come back by themselves after 1.5 s.
	renewal = 500 * time.Millisecond
	// shareCheck is how often a process under higher ones looks whether it gets its share.
	shareCheck = 100 * time.Millisecond
	// stepGap bounds how often an agent looks.
	stepGap = 500 * time.Microsecond
	// settleNs is how long after libcuda's last control of a TSG its context counts as complete.
	settleNs = uint64(100 * time.Millisecond)
	// quietNs is how long a young TSG, one not older than youngNs, is left alone after libcuda did something to make it. It sets a timeslice
	// and schedules the TSG itself when the channels are there, which undoes what was set before. A control of ours takes all locks of the
	// GPU in the driver, beside libcuda's.
	quietNs = uint64(5 * time.Millisecond)
	youngNs = uint64(time.Second)
	// passingNs is how long the driver may refuse a control because something is being freed: a context with many
	// allocations takes that long to end. The control is repeated every askAgain.
	passingNs = uint64(2 * time.Second)
	askAgain  = 5 * time.Millisecond
)

// tsgKey names a TSG as libcuda last left it.
type tsgKey struct{ client, handle, resets uint32 }

// birthKey names a TSG from its birth to its end. libcuda gives its handles, and those of subdevices, anew once they are free.
type birthKey struct {
	client, handle uint32
	bornNs         uint64
}

// device is what an agent does on its GPU, and asks of it, in C. Tests have another one, which refuses what they want to be refused.
type device interface {
	tsgs() []TSG // of all GPUs
	uuid(TSG) ([16]byte, error)
	policy(TSG) (preset uint32, err error) // of its GPU, NV2080_CTRL_CMD_GPU_COMPUTE_TIMESLICE_*
	setTimeslice(t TSG, us uint64) error
	schedule(t TSG, on bool) error // puts it on the runlist or takes it off
	worked() bool                  // the process has submitted something
	busy() bool                    // work is unfinished
	probe(on bool)                 // asks for a turn although no work is known, or takes the request back
	joined() bool                  // the process takes part
	rejoined() uint32              // how often it has joined again, or may have
}

// agent looks after one GPU for this process.
type agent struct {
	core    *Core
	device  device
	gpu     int
	whole   [16]byte // the UUID of the GPU, of which this may be a slice: RM knows no other
	segment *segment.Segment
	sought  *member.Sought // a broker's, where this one is a file's; nil: none is sought
	slot    int
	log     zerolog.Logger
	place   place

	stoppable  bool   // kernels are rewritten
	givenUp    uint64 // domains of which that was said
	saidBeside bool

	saidObjective [segment.ObjectiveStates]bool // by state

	mutex                      sync.Mutex            // what follows: the agent's own goroutine, and changed
	uuids                      map[birthKey][16]byte // the GPU of each TSG
	sliceUs                    map[tsgKey]uint64
	suspended                  map[tsgKey]bool
	unsure                     map[tsgKey]uint64 // refused in passing, since when: suspended or not
	wantUs                     uint64            // 0: leave the driver's default
	windows                    windowTimes
	off                        bool   // channels are disabled: it is another's turn, a higher level's window is open, or its part is used up
	offSince                   uint64 // since when channels are disabled, or are not
	onNs                       uint64 // how long the process was on the GPU until then
	away                       away   // for windows, of a level between others
	caps                       caps
	probed                     uint64 // when a turn was asked for without known work; 0: not asked
	probeAfter                 uint64
	limits                     segment.Limits // a broker's
	countedTurn                uint64         // the last turn of its own
	askedTurn                  uint64         // the turn that this process waits for to end, and since when
	askedNs                    uint64
	due                        uint64 // since when this process should hand its turn on; 0: it should not
	alone                      bool   // has no slot: its segment is memory of its own, and it tries to join again
	said                       string // why it could not, last
	refused                    bool   // an RM control was refused: no timeslices, no turns
	noTurns                    bool
	turns                      bool
	boostUs                    uint64 // the raised timeslice while higher levels leave too little; 0: they do not
	reported                   bool
	lacking                    configs.Fallback // what the slot says, where others may write over it
	used                       []usage
	pace                       pace
	counted                    usage // when the process's part of the GPU was counted last
	countedBusy, countedHigher uint64
	memory                     agentMemory
	beats                      [segment.Slots]segment.Beats // of members of a broker
	hearing                    hearing                      // of run alone
	doubtTo                    uint64
	before                     peers                // as last acted upon
	turnPeers                  int                  // of them
	rejoinTo                   uint64               // until then they may come to this broker too; 0: they need not
	known                      [segment.Slots]claim // of members of a broker
	rejoined                   uint32               // as last seen
	behind                     uint64               // waitsBehind
	doubtedNs                  uint64               // when that was last thought
	behindNs, suspectNs        uint64               // since when, and after how long another process is suspected to have locked this one
}

// place is where contexts of the process are.
type place int

const (
	placeUnknown place = iota
	placeApart         // in TSGs of its own
	placeShared        // in the one TSG of an MPS server: no timeslices, no holds, no turns
)

// peers is who else is on the GPU.
type peers struct {
	lower, same, higher uint64 // slots
	between             uint64 // lower ones that themselves have lower levels to preempt
	stoppable           uint64 // lower ones whose kernels stop when a window opens
}

func (a *agent) own() *segment.Slot { return a.segment.Own() }

// inForce says of a mechanism whether it is in force on an agent's GPU, and tells the segment what it lacks. The file that carries a mechanism
// out adds it here; one that is not here is in force wherever it is used.
var inForce = map[configs.Mechanism]func(*agent) bool{}

// uses says whether the configuration uses a mechanism on this GPU.
func (a *agent) uses(one configs.Mechanism) bool {
	return a.core.config.Mechanisms.UseAt(one, a.place == placeShared)
}

func (a *agent) lacks(fallback configs.Fallback) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.setLacks(fallback, true)
}

// setLacks says that there is a fallback, or is not.
func (a *agent) setLacks(one configs.Fallback, lacks bool) {
	if lacks {
		a.lacking |= one
	} else {
		a.lacking &^= one
	}
	a.own().Fallbacks.Store(uint32(a.lacking))
}

// Core is the preemption of one process.
type Core struct {
	config configs.Config
	level  atomic.Int32
	levels map[int]int // by GPU, as a broker says; under mutex
	// on which GPUs a broker's policy refuses it; under mutex
	refused [maxGPUs]bool

	job     uint64
	log     zerolog.Logger
	armed   [maxGPUs]atomic.Bool
	memory  *swapping        // nil in tests
	stays   configs.Fallback // why it stays, though it is to come and go
	mutex   sync.Mutex       // arm
	agents  map[int]*agent
	threads [maxGPUs]bool         // there are some for the goroutines of a GPU
	told    configs.ObjectiveWord // what others said of its objective last; under mutex
}

// levelNow is the process's level.
func (c *Core) levelNow() int { return int(c.level.Load()) }

// hearing bounds how often the bell of a member of a broker makes this agent look: hearAtOnce times in a row, and then every hearEvery,
// however often it is rung. One that rang more often is not listened to until its time has come. The agent misses no news by that: a look
// reads all that the segment has, and the agent looks when it listens again.
type hearing struct {
	due [segment.Slots]uint64 // when what was heard of each would have been spread out; a time of the segment
}

// memoryState is enum gp_memory_state.
type memoryState uint64

const (
	memoryRunning memoryState = iota
	memoryLeaving
	memoryOut
	memoryComing
	memoryStuck
	memorySuspended
)

// usage is the number and total length of the windows of higher levels since those processes joined; and of this process, for how long it
// had work, and was on the runlist, with work or without.
type usage struct {
	atNs         uint64
	busyNs, onNs uint64
	openNs       [segment.Slots]uint64
	windows      [segment.Slots]uint64
}

// budget is a part of the GPU's time that is used up and comes back.
type budget struct {
	ns    float64 // that may be used yet; less than 0: more was used
	spent bool    // until there is a stretch
}

// caps is what a process knows of the parts that it must not exceed.
type caps struct {
	atNs, busyNs uint64 // counted until then; 0: nothing yet
	on           bool   // it is kept off the GPU
	dueNs        uint64 // since when it is to change that, and a window is open; 0: it is not
	own, all     budget
	// Of share.max_be: what each process has of it whatever others say, since there are so many; and what each has that works, while
	// others do.
	least, fair budget
	seen        [segment.Slots]ran // of this process and its peers
}

// saidOf is for how long this process and its peers had the GPU, by what all say, and how many there are; how many have work, and whether one of
// these could run now.
type saidOf struct {
	mine, others   float64 // ns
	peers, working int
	wants          bool
}

// ran is the time that a process had the GPU, by what was believed at the last look. It may yet say roomNs of the time until then.
type ran struct {
	started, ns, atNs uint64
	roomNs            float64
}

// pace is for how long a process had work of late, and was on the runlist: sums that forget.
type pace struct{ busyNs, onNs float64 }

// away is for how long a process was off the GPU for windows of higher levels, and what it is owed for that. It counts by its own clock:
// what others say of their windows may be a lie, and one may open a window again as soon as it has closed it.
type away struct {
	atNs, owedNs uint64 // counted until then
	paid         bool   // it is on the GPU until it is owed nothing
}

// swapping is what the agents of a process share.
type swapping struct {
	moves   bool // else memory stays where it is, and is counted
	mover   *mover
	recalls atomic.Uint32 // hints that came while memory was out
	mutex   sync.Mutex    // what follows
	out     [maxGPUs]bool // GPUs with memory that is out, or leaves
}

// agentMemory is what an agent knows of the memory of its GPU, beside what it publishes.
type agentMemory struct {
	meter       *meter
	free, total uint64
	samples     []sample // of memory that nobody accounts for
	sampledNs   uint64
	measuredNs  uint64
	other       uint64

	state              memoryState
	stateNs            uint64
	stuckTo, stuckFor  uint64
	idleNs, busyNs     uint64
	waitsNs            uint64
	roomNs, roomSeenNs uint64 // since when calls have waited for room, and until when they did last
	giverNs            uint64 // see memoryView
	immovable          uint64 // what stayed though it should have gone; asked anew after a while
	immovableTo        uint64
	recalls            uint32
	wanted             bool // memory is to come back though no call waits for it: a hint came, or people asked
	bringAfter         uint64
	bringPause         uint64
	againNs, enoughNs  uint64 // when waiters were told to try again, and that there is enough
	toldMost           uint64
	questions, answers uint64 // that the driver was asked of what is free, and that it answered
	toldQuestions      uint64 // questions when waiters were told to try again
	known              bool   // it could be asked: there is a context, which nobody else is at
	turnNs             uint64 // since when this process has the memory turn; 0: it has not
	switchNs, switchIn uint64 // since when it is being brought in, and the bytes that had come before; 0: it is not
	swapNs             uint64

	request   segment.Request // the last one
	answered  bool
	reply     segment.Answer
	tells     bool          // the reply is yet to be told
	asked     segment.Asked // what is being carried out
	askedNs   uint64
	halted    bool // suspended: the gate stays closed until the process is resumed
	suspended bool

	pins, pinsNs                 uint64 // why memory cannot go, as of a time
	pinned, pinAfter, pressureNs uint64 // host memory that was pinned ahead
	saidNoHost, saidFailed       bool
	saidUnfit                    bool
	told                         toldMemory
}

// toldMemory is what others wake up for.
type toldMemory struct {
	state       memoryState
	waits, idle bool
	claims      uint64
	resident    uint64
}

// sample is a measurement of memory that nobody accounts for, in bytes.
type sample struct {
	atNs, bytes uint64
	pools       uint64 // of that, what pools of this process have
}

// claim is what the order of a process's turns depends on, as it said it first. No member of a broker has another order whenever it likes.
type claim struct{ client, job, started uint64 }
