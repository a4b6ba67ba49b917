// Package segment is the memory through which the processes of one user know of each other on one GPU.
// It mirrors segment.h; a test holds the two together.
//
// A file says which memory is in force, and has the locks; the memory itself is passed from process to process (memory.go).
// A process owns a slot by a POSIX record lock on byte slot of the file, which the kernel drops when
// the process dies. Such a lock also goes when the process closes any descriptor of the file: a process
// that holds a slot must not open the same segment a second time, nor call Snapshots.
//
// A process that changes another's bits holds that slot's lock meanwhile, so a slot is never claimed and reaped at once.
package segment

import (
	"sync/atomic"

	"github.com/gpreempt/gpreempt/configs"
)

// From segment.h.
const (
	Magic   = 0x31544d4545525047 // "GPREEMT1", little endian
	Version = 15
	Slots   = 64
	Levels  = 8

	HintRoom = 7 // configs.HintRows, and room for more
	Refusals = 8 // RefusalNames, and room for more

	TimeBuckets = 24
	FirstBucket = 17 // its upper bound is 1 s / 2^17

	linesAt = 1984 // bytes, in a slot
	lines   = 32

	headerSize = pageSize
	slotSize   = 2 * pageSize
	memorySize = headerSize + slotSize*Slots
	ringsAt    = memorySize           // struct gp_view: the header once more, if all members can write it
	ownAt      = ringsAt + headerSize // this process's slot
	rangeSize  = ownAt + slotSize
	fileSize   = 64 // the identity
)

// Why a kernel is not rewritten: enum gp_refusal.
const (
	RefusedForm = iota
	RefusedRoom
	RefusedPeers
	RefusedSM
	RefusedImage
	RefusedRuntime
)

// RefusalNames are the reasons, in the order of enum gp_refusal.
var RefusalNames = []string{"form", "room", "peers", "sm", "image", "runtime"}

// memoryStates are the names of a process's memory's states, in the order of enum gp_memory_state.
var memoryStates = []string{"running", "leaving", "out", "coming", "stuck", "suspended"}

// The states: enum gp_memory_state.
const (
	MemoryRunning = iota
	MemoryLeaving
	MemoryOut
	MemoryComing
	MemoryStuck
	MemorySuspended
)

// pinNames say why memory cannot go, in the order of preempt/memory/pins.h; driver is for what is the driver's own.
var pinNames = []string{"exported", "imported", "registered", "multicast", "shared", "closed", "driver"}

// Counters of the slot are of type N = atomic.Uint64, copies of them of type N = uint64, under their names in segment.h.

// KernelCounters is struct gp_kernel_counters.
type KernelCounters[N any] struct {
	Images  N
	Cached  N
	LoadNs  N
	Seen    N
	Guarded N
	Refused [Refusals]N
}

// StopCounters is struct gp_stop_counters.
type StopCounters[N any] struct {
	Launches      N `json:"launches"`
	Uncovered     N `json:"uncovered"`
	Barriers      N `json:"barriers"`
	Stops         N `json:"stops"`
	Cuts          N `json:"cuts"`
	ResumedBlocks N `json:"resumed_blocks"`
	DrainNs       N `json:"drain_ns"`
	DrainMaxNs    N `json:"drain_max_ns"`
	GivenUp       N `json:"given_up"`
	Beside        N `json:"beside"`
	Narrowed      N `json:"narrowed"`
	NarrowBlocks  N `json:"narrow_blocks"`
	NarrowNs      N `json:"narrow_ns"`
	HeldTogether  N `json:"held_together"`
	HeldBehind    N `json:"held_behind"`
	HeldRefused   N `json:"held_refused"`
}

// SlotCuts are why a slot that a process lent ended early, in the order of enum gp_slot_cut.
var SlotCuts = [...]string{"request", "idle", "capture", "undrained", "changed"}

// objectiveStates are the states of an objective, in the order of enum gp_objective_state.
var objectiveStates = [ObjectiveStates]string{"none", "lends", "unattainable", "stepless", "late", "rests", "ranks"}

// BusyWorks is GP_WORKS of enum gp_busy: a process that has work, or wants to run some.
const BusyWorks = 1

// The states in which an objective does nothing: enum gp_objective_state.
const (
	ObjectiveUnattainable = 2
	ObjectiveStepless     = 3
	ObjectiveLate         = 4
	ObjectiveRests        = 5
	ObjectiveRanks        = 6
	ObjectiveStates       = 7
)

// ObjectiveCounters is struct gp_objective_counters.
type ObjectiveCounters[N any] struct {
	Wanted       N                `json:"-"`
	State        N                `json:"-"`
	ObjectiveNs  N                `json:"objective_ns"`
	MeanNs       N                `json:"mean_ns"`
	UnlentNs     N                `json:"unlent_ns"`
	ThetaPpm     N                `json:"theta_ppm"`
	CreditNs     N                `json:"credit_ns"`
	Steps        N                `json:"steps"`
	StepNs       N                `json:"step_ns"`
	Means        N                `json:"means"`
	Over         N                `json:"over"`
	Requests     N                `json:"requests"`
	LateRequests N                `json:"late_requests"`
	Slots        N                `json:"slots"`
	LentNs       N                `json:"lent_ns"`
	Cut          [len(SlotCuts)]N `json:"cut"` // by SlotCuts
}

// HintCounters is struct gp_hint_counters.
type HintCounters[N any] struct {
	Given    N `json:"given"`
	Hit      N `json:"hit"`
	Late     N `json:"late"`
	Wrong    N `json:"wrong"`
	Dropped  N `json:"dropped"`
	SavedNs  N `json:"saved_ns"`
	WaitedNs N `json:"waited_ns"`
	TimesOff N `json:"times_off"`
}

// MemoryCounters is struct gp_memory_counters.
type MemoryCounters[N any] struct {
	Resident      N `json:"resident"`
	Swapped       N `json:"swapped"`
	Pinned        N `json:"pinned"`
	Pins          N `json:"-"`
	Wanted        N `json:"wanted"`
	Claimed       N `json:"-"`
	Waiting       N `json:"waiting"`
	Host          N `json:"host"`
	Reserve       N `json:"reserve"`
	Other         N `json:"other"`
	State         N `json:"-"`
	StateSinceNs  N `json:"state_since_ns"`
	IdleSinceNs   N `json:"idle_since_ns"`
	IdleAfterNs   N `json:"idle_after_ns"`
	WantedSinceNs N `json:"wanted_since_ns"`
	OutRate       N `json:"out_rate"`
	InRate        N `json:"in_rate"`
	SwapNs        N `json:"swap_ns"`
	QuantumNs     N `json:"quantum_ns"`
	Waits         N `json:"waits"`
	WaitNs        N `json:"wait_ns"`
	Evictions     N `json:"evictions"`
	Restores      N `json:"restores"`
	OutBytes      N `json:"out_bytes"`
	OutNs         N `json:"out_ns"`
	InBytes       N `json:"in_bytes"`
	InNs          N `json:"in_ns"`
	Failures      N `json:"failures"`
	Turns         N `json:"turns"`
	TurnNs        N `json:"turn_ns"`
	TurnsSeized   N `json:"turns_seized"`
	Cap           N `json:"cap"`
	Answered      N `json:"-"`
}

// SlotCounters is struct gp_slot_counters.
type SlotCounters[N any] struct {
	Windows       N `json:"windows"`
	WindowNs      N `json:"window_ns"`
	WindowsCut    N `json:"windows_cut"`
	Switches      N `json:"switches"`
	Holds         N `json:"holds"`
	HoldNs        N `json:"hold_ns"`
	HoldsReleased N `json:"holds_released"`
	HoldsCollided N `json:"holds_collided"`
	HoldsExpired  N `json:"holds_expired"`
	HoldsStalled  N `json:"holds_stalled"`
	GateWaits     N `json:"gate_waits"`
	GateNs        N `json:"gate_ns"`
	Turns         N `json:"turns"`
	TurnNs        N `json:"turn_ns"`
	TurnsSeized   N `json:"turns_seized"`
	Boosts        N `json:"boosts"`
	TimesliceSets N `json:"timeslice_sets"`
	BusyNs        N `json:"busy_ns"`
	CappedNs      N `json:"capped_ns"`
}

// Histogram is struct gp_histogram.
type Histogram[N any] struct {
	SumNs   N              `json:"sum_ns"`
	Buckets [TimeBuckets]N `json:"buckets"`
}

// SlotTimes is struct gp_slot_times.
type SlotTimes[N any] struct {
	Windows  Histogram[N] `json:"windows"`
	Switches Histogram[N] `json:"switches"`
	Drains   Histogram[N] `json:"drains"`
	Stops    Histogram[N] `json:"stops"`
}

// Times is a copy of a slot's histograms.
type Times = SlotTimes[uint64]

// Counters is a copy of a slot's counters.
type Counters = SlotCounters[uint64]

// Header is struct gp_segment without its slots.
type Header struct {
	Magic    uint64
	Version  uint32
	Size     uint32
	Slots    uint32
	SlotSize uint32
	GPU      [16]byte
	ID       [16]byte // of this memory, random
	Pad0     [8]byte

	Rings Rings // of all, where they share one memory; else the broker's
	Pad1  [52]byte

	Members     atomic.Uint64 // bit i: slot i is in use; verify with Alive
	Turn        atomic.Uint64 // see TurnOwner
	TurnSinceNs atomic.Uint64

	MemoryTurn        atomic.Uint64 // see TurnOwner
	MemoryTurnSinceNs atomic.Uint64

	// Of the broker; 0 where there is none.
	Generation        uint64
	BrokerHeartbeatNs atomic.Uint64
	Others            atomic.Uint32 // processes that have work on the GPU and are no members, or keep to no turns
	Pad2              [4]byte

	Level  [Slots]atomic.Uint32 // of the slots' owners
	Client [Slots]atomic.Uint64 // their ids, given by the broker
	Pad3   [pageSize - 192 - Slots*12]byte
}

// Rings is struct gp_rings: futexes that count what others wait for.
type Rings struct {
	Gate    atomic.Uint32 // closed windows
	Windows atomic.Uint32 // opened and closed windows while a process is stoppable
	Bell    atomic.Uint32 // changes of membership, turn or demand
}

// Line is struct gp_line: of a slot, what launches of others look at.
type Line struct {
	WindowOpenedNs atomic.Uint64 // 0 while no window is open.
	Busy           atomic.Uint32 // 1: it has, or wants to run, work.
	Rings          Rings         // The slot's owner rings them, where each process has pages of its own.
	LentUntilNs    atomic.Uint64 // lower levels have the GPU until then, as its objective allows; 0: they do not
	CreditUs       atomic.Uint32 // that it may lend
	Pad            [28]byte
}

// State is the first page of a struct gp_slot: what others decide by. It is written by the slot's owner only, but for what people write.
type State struct {
	StartedNs   atomic.Uint64
	HeartbeatNs atomic.Uint64
	TimesliceUs atomic.Uint32
	Mechanisms  atomic.Uint32
	Fallbacks   atomic.Uint32
	Suspended   atomic.Uint32
	Job         atomic.Uint64
	RanNs       atomic.Uint64
	RanAtNs     atomic.Uint64
	Asked       atomic.Uint64 // see Request

	SlotCounters[atomic.Uint64]
	SwitchUs atomic.Uint32 // what a switch away from a lower level takes, as learnt; 0: not yet
	Capped   atomic.Uint32 // 1: share.max or share.max_be keeps it off the GPU, and it gets no turn

	ObjectiveSaid     atomic.Uint64 // by people: a configs.ObjectiveWord
	ObjectiveAsked    atomic.Uint64 // a Request
	ObjectiveAnswered atomic.Uint64

	Memory MemoryCounters[atomic.Uint64]
	Pad1   [linesAt - 512]byte
	Line   [lines]Line // see LineOf
	Pad2   [pageSize - linesAt - lines*64]byte
}

// Has says whether a mechanism is in force.
func (p *State) Has(one configs.Mechanism) bool { return p.Mechanisms.Load()&uint32(one) != 0 }

// Lacks says whether there is a fallback.
func (p *State) Lacks(one configs.Fallback) bool { return p.Fallbacks.Load()&uint32(one) != 0 }

// Slot is struct gp_slot, written by its owner only but for what people write.
type Slot struct {
	State

	Name    [32]byte // the second page begins
	Pid     atomic.Int32
	Pad3    [28]byte
	Kernels KernelCounters[atomic.Uint64]
	Stop    StopCounters[atomic.Uint64]

	Uncounted atomic.Uint32 // 1: launches are not counted, since no process needs to know of them: Busy says nothing

	HintsOff   atomic.Uint32
	HintSpunNs atomic.Uint64
	Hint       [HintRoom]HintCounters[atomic.Uint64]
	Pad4       [72]byte
	Times      SlotTimes[atomic.Uint64]
	Objective  ObjectiveCounters[atomic.Uint64]
	Pad5       [pageSize - 1792]byte
}

// LineOf is the line of the owner of slot i. Which one it is depends on the slot, so that not all lie in one set of a processor's cache.
func (s *State) LineOf(i int) *Line { return &s.Line[i%lines] }

// TurnSeized in a turn: its owner took it from a process that may still have work on the GPU, so no process may rely on a short
// timeslice.
const TurnSeized = 1 << 8

// TurnOwner reads a value of Header.Turn: slot + 1 in bits 0 to 7 (0: none), bit 8: seized, bits 16 and up: sequence. owned is false also
// for a slot that does not exist.
func TurnOwner(turn uint64) (slot int, owned bool) {
	slot = int(turn&0xff) - 1
	return slot, slot >= 0 && slot < Slots
}

// nobodysTurn follows turn in sequence.
func nobodysTurn(turn uint64) uint64 { return NextTurn(turn, -1, false) }

// NextTurn follows turn in sequence. The slot may be -1: none.
func NextTurn(turn uint64, slot int, seized bool) uint64 {
	next := (turn>>16+1)<<16 | uint64(slot+1)
	if seized {
		next |= TurnSeized
	}
	return next
}
