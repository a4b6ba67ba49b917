// Package segment is the memory through which the processes of one user know of each other on one GPU.
// It mirrors preempt/segment.h; a test holds the two together.
//
// A process owns a slot by a POSIX record lock on byte slot of the file, which the kernel drops when
// the process dies. Such a lock also goes when the process closes any descriptor of the file: a process
// that holds a slot must not open the same segment a second time, nor call Snapshots.
//
// Whoever changes another process's bits holds that slot's lock meanwhile, so a slot is never claimed
// and reaped at once.
package segment

import (
	"sync/atomic"
)

// From segment.h.
const (
	Magic   = 0x31544d4545525047 // "GPREEMT1", little endian
	Version = 1
	Slots   = 64
	Levels  = 8

	headerSize = 192
	slotSize   = 512
	fileSize   = headerSize + slotSize*Slots
)

// Bits of Slot.Mechanisms: GP_MECHANISM_*.
const (
	MechanismTimeslice = 1 << iota
	MechanismHold
	MechanismGate
	MechanismTurns
)

// Bits of Slot.Fallbacks: GP_FALLBACK_*, why something is not in force.
const (
	FallbackControlRefused = 1 << iota
	FallbackNoTSG
	FallbackNoHold
	FallbackMPS
	FallbackSuspendRefused
)

var (
	mechanismNames = []string{"timeslice", "hold", "gate", "turns"}
	fallbackNames  = []string{"control_refused", "no_tsg", "no_hold", "mps", "suspend_refused"}
)

// Header is struct gp_segment without its slots.
type Header struct {
	Magic    uint64
	Version  uint32
	Size     uint32
	Slots    uint32
	SlotSize uint32
	GPU      [16]byte
	Pad0     [24]byte

	Open        atomic.Uint64 // bit i: the window of slot i is open
	Gate        atomic.Uint32 // futex: counts closed windows
	GateWaiters atomic.Uint32
	Pad1        [48]byte

	Bell        atomic.Uint32 // futex: rung at every change of membership, turn or demand
	Pad2        uint32
	Members     atomic.Uint64 // bit i: slot i is in use; verify with Alive
	Busy        atomic.Uint64 // bit i: slot i has, or wants to run, work
	Turn        atomic.Uint64 // see TurnOwner
	TurnSinceNs atomic.Uint64
	Pad3        [24]byte
}

// Slot is struct gp_slot, written by its owner only.
type Slot struct {
	Level          atomic.Uint32
	Pid            atomic.Int32
	StartedNs      atomic.Uint64
	HeartbeatNs    atomic.Uint64
	WindowOpenedNs atomic.Uint64
	TimesliceUs    atomic.Uint32
	Mechanisms     atomic.Uint32
	Fallbacks      atomic.Uint32
	Suspended      atomic.Uint32
	Name           [32]byte
	Pad0           [48]byte

	Windows       atomic.Uint64
	WindowNs      atomic.Uint64
	WindowsCut    atomic.Uint64
	Switches      atomic.Uint64
	Holds         atomic.Uint64
	HoldNs        atomic.Uint64
	HoldsReleased atomic.Uint64
	HoldsCollided atomic.Uint64
	HoldsExpired  atomic.Uint64
	GateWaits     atomic.Uint64
	GateNs        atomic.Uint64
	Turns         atomic.Uint64
	TurnNs        atomic.Uint64
	TurnsSeized   atomic.Uint64
	Boosts        atomic.Uint64
	TimesliceSets atomic.Uint64
	BusyNs        atomic.Uint64
	Pad1          [248]byte
}

// Counters is a copy of a slot's counters under their names in segment.h.
type Counters struct {
	Windows       uint64 `json:"windows"`
	WindowNs      uint64 `json:"window_ns"`
	WindowsCut    uint64 `json:"windows_cut"`
	Switches      uint64 `json:"switches"`
	Holds         uint64 `json:"holds"`
	HoldNs        uint64 `json:"hold_ns"`
	HoldsReleased uint64 `json:"holds_released"`
	HoldsCollided uint64 `json:"holds_collided"`
	HoldsExpired  uint64 `json:"holds_expired"`
	GateWaits     uint64 `json:"gate_waits"`
	GateNs        uint64 `json:"gate_ns"`
	Turns         uint64 `json:"turns"`
	TurnNs        uint64 `json:"turn_ns"`
	TurnsSeized   uint64 `json:"turns_seized"`
	Boosts        uint64 `json:"boosts"`
	TimesliceSets uint64 `json:"timeslice_sets"`
	BusyNs        uint64 `json:"busy_ns"`
}

// counters points at the slot's counters in the order of the fields of Counters.
func (s *Slot) counters() [17]*atomic.Uint64 {
	return [...]*atomic.Uint64{
		&s.Windows, &s.WindowNs, &s.WindowsCut, &s.Switches,
		&s.Holds, &s.HoldNs, &s.HoldsReleased, &s.HoldsCollided, &s.HoldsExpired,
		&s.GateWaits, &s.GateNs, &s.Turns, &s.TurnNs, &s.TurnsSeized,
		&s.Boosts, &s.TimesliceSets, &s.BusyNs,
	}
}

// Counters reads the counters one by one.
func (s *Slot) Counters() Counters {
	return Counters{
		s.Windows.Load(), s.WindowNs.Load(), s.WindowsCut.Load(), s.Switches.Load(),
		s.Holds.Load(), s.HoldNs.Load(), s.HoldsReleased.Load(), s.HoldsCollided.Load(), s.HoldsExpired.Load(),
		s.GateWaits.Load(), s.GateNs.Load(), s.Turns.Load(), s.TurnNs.Load(), s.TurnsSeized.Load(),
		s.Boosts.Load(), s.TimesliceSets.Load(), s.BusyNs.Load(),
	}
}

// TurnOwner reads a value of Header.Turn: slot + 1 in bits 0 to 7 (0: nobody), bit 8: seized, bits 16
// and up: sequence. owned is false also for a slot that does not exist.
func TurnOwner(turn uint64) (slot int, owned bool) {
	slot = int(turn&0xff) - 1
	return slot, slot >= 0 && slot < Slots
}

// nobodysTurn follows turn in sequence.
func nobodysTurn(turn uint64) uint64 { return (turn>>16 + 1) << 16 }
