package segment

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpreempt/gpreempt/configs"
)

// Segment is an attached segment. Its methods may be called from several goroutines.
type Segment struct {
	*Header
	memory []byte
	view   int // in the program; -1: none yet
	path   string
	gpu    GPU
	gid    int
	inode  inode
	keeper *keeper
	pages  Pages // nil: all members can write all of the memory
	limits atomic.Pointer[Limits]
	beats  Beats

	replaced error

	mutex sync.Mutex // guards what follows and the record locks, of which a process has one set
	fd    int
	slot  int // -1: none
	// The slot's words about this process, where others may write over them.
	level     uint32
	name      [32]byte
	startedNs uint64
}

type inode struct{ dev, ino uint64 }

// Pages is the connection to a broker.
type Pages interface {
	// Turn asks for a turn, whose word was seen, to be given to a slot (-1: to none). It is done later, or not.
	Turn(memory bool, seen uint64, to int, seized bool)
	// Next is the segment of a new connection, which takes this one's place; nil: there is none.
	Next() *Segment
	// Leave ends it.
	Leave()
	// Poke says that something may have been sent.
	Poke()
}

// Limits are what a broker's policy says of this process; it says nothing of what is 0.
type Limits struct {
	Share      float64 // the least part of the GPU's time
	ShareMax   float64 // the most; 0: the process's own setting
	MaxHoldUs  uint32
	MemoryMB   uint32
	MemoryPart float64 // of the GPU's memory
	QuantumMs  uint32  // of turns
	Objective  configs.ObjectiveWord
}

// brokerSilent is how old the broker's heartbeat is at most while it lives.
const brokerSilent = 3 * time.Second

// Beats is a heartbeat when it was last seen to change. The time in it does not matter.
type Beats struct {
	mutex sync.Mutex
	last  uint64
	at    time.Time
}

// Silent is for how long the heartbeat has not changed, which is this one now.
func (b *Beats) Silent(beat uint64) time.Duration {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if beat != b.last || b.at.IsZero() {
		b.last, b.at = beat, time.Now()
	}
	return time.Since(b.at)
}

// identifier of a memory; random.
type identifier [16]byte

// keeper hands out the memory to processes that join.
type keeper struct {
	dir, name string
	gid       int

	id     identifier
	makes  bool // a new memory, if nobody hands one out
	memory []byte
	fd     int      // of the memory
	again  []byte   // the memory once more, until a slot is taken from it
	slot   int      // that was taken then, -1: it failed
	listen chan int // the slot to serve; closed: none
	done   chan error
	ended  atomic.Bool
}
