package page

import (
	"sync/atomic"
	"unsafe"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// Layout is the version of what is in pages.
const Layout = 1

// Rings are futexes that count what others wait for. Who rings changes its own.
type Rings struct {
	Gate    atomic.Uint32 // windows closed
	Windows atomic.Uint32 // windows opened and closed, while somebody is stoppable
	Bell    atomic.Uint32 // changes of membership, turn or demand
	_       uint32
}

// Common is the page of a GPU that the broker writes.
type Common struct {
	Magic      uint64
	Layout     uint32
	Slots      uint32
	GPU        [16]byte
	Generation uint64
	// HeartbeatNs is when the broker looked last, CLOCK_MONOTONIC. One that is older than BrokerSilentNs is dead or hangs.
	HeartbeatNs atomic.Uint64
	Rings
	Members           atomic.Uint64 // bit i: slot i is a member's
	Turn              atomic.Uint64 // see TurnOwner
	TurnSinceNs       atomic.Uint64
	MemoryTurn        atomic.Uint64
	MemoryTurnSinceNs atomic.Uint64
	_                 [24]byte
	Level             [wire.Slots]atomic.Uint32
	ID                [wire.Slots]atomic.Uint64 // of the slot's member
}

// CommonMagic begins a common page.
const CommonMagic = 0x4d4f434552504721

// BrokerSilentNs is how old the broker's heartbeat is at most while it lives.
const BrokerSilentNs = 3_000_000_000

// State is a client's page that others read, written by the client.
type State struct {
	StartedNs   atomic.Uint64
	HeartbeatNs atomic.Uint64
	Turns       atomic.Uint32 // 1: it takes turns, and may be handed one
	WantsMemory atomic.Uint32 // 1: it wants the memory turn
}

// Line is the part of a State that launches read, at a place that depends on the slot.
type Line struct {
	WindowOpenedNs atomic.Uint64 // 0: no window is open
	Busy           atomic.Uint32 // 1: it has, or wants to run, work
	_              uint32
	Rings
	_ [32]byte
}

const (
	linesAt  = 2048 // bytes
	lineSize = 64
	lines    = 32
)

// In a smaller page there would be no room; there is none.
var (
	_ [linesAt - unsafe.Sizeof(State{})]byte
	_ [lineSize - unsafe.Sizeof(Line{})]byte
	_ [unsafe.Sizeof(Line{}) - lineSize]byte
	_ [linesAt - unsafe.Sizeof(Common{})]byte
)

// Turns are words of slot + 1 in bits 0 to 7 (0: nobody), bit 8: taken by force, bits 16 and up: a sequence.
const turnSeized = 1 << 8

// TurnOwner reads a turn. owned is false also for a slot that does not exist.
func TurnOwner(turn uint64) (slot int, owned bool) {
	slot = int(turn&0xff) - 1
	return slot, slot >= 0 && slot < wire.Slots
}

// NextTurn follows turn in sequence. The slot may be -1: nobody's.
func NextTurn(turn uint64, slot int, seized bool) uint64 {
	next := (turn>>16+1)<<16 | uint64(slot+1)
	if seized {
		next |= turnSeized
	}
	return next
}
