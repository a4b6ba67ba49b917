// Package segment is the memory through which the processes of one user know of each other on one GPU.
// It mirrors segment.h; a test holds the two together.
//
// A file says which memory is in force, and has the locks; the memory itself is passed from process to process (memory.go).
// A process owns a slot by a POSIX record lock on byte slot of the file, which the kernel drops when
// the process dies. Such a lock also goes when the process closes any descriptor of the file: a process
// that holds a slot must not open the same segment a second time, nor call Snapshots.
//
// Whoever changes another process's bits holds that slot's lock meanwhile, so a slot is never claimed
// and reaped at once.
package segment

import (
	"fmt"
	"sync/atomic"
)

// From segment.h.
const (
	Magic   = 0x31544d4545525047 // "GPREEMT1", little endian
	Version = 4
	Slots   = 64
	Levels  = 8

	HintSources = 5 // HintNames
	Refusals    = 8 // RefusalNames, and room for more

	headerSize = 192
	slotSize   = 1024
	memorySize = headerSize + slotSize*Slots
	fileSize   = 64 // the identity
)

// Bits of Slot.Mechanisms: GP_MECHANISM_*.
const (
	MechanismTimeslice = 1 << iota
	MechanismHold
	MechanismGate
	MechanismTurns
	MechanismBLP
	MechanismMPS
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
	mechanismNames = []string{"timeslice", "hold", "gate", "turns", "blp", "mps"}
	fallbackNames  = []string{"control_refused", "no_tsg", "no_hold", "mps", "suspend_refused"}
)

// HintNames are the sources of hints, in the order of enum gp_hint_source.
var HintNames = [HintSources]string{"explicit", "nvtx", "copy", "socket", "arrival"}

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

// KernelCounters is struct gp_kernel_counters.
type KernelCounters struct {
	Images  atomic.Uint64
	Cached  atomic.Uint64
	LoadNs  atomic.Uint64
	Seen    atomic.Uint64
	Guarded atomic.Uint64
	Refused [Refusals]atomic.Uint64
}

// StopCounters is struct gp_stop_counters.
type StopCounters struct {
	Launches      atomic.Uint64
	Uncovered     atomic.Uint64
	Barriers      atomic.Uint64
	Stops         atomic.Uint64
	Cuts          atomic.Uint64
	ResumedBlocks atomic.Uint64
	DrainNs       atomic.Uint64
	DrainMaxNs    atomic.Uint64
	GivenUp       atomic.Uint64
	Beside        atomic.Uint64
}

// HintCounters is struct gp_hint_counters.
type HintCounters struct {
	Given    atomic.Uint64
	Hit      atomic.Uint64
	Late     atomic.Uint64
	Wrong    atomic.Uint64
	Dropped  atomic.Uint64
	SavedNs  atomic.Uint64
	WaitedNs atomic.Uint64
	Off      atomic.Uint64
}

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

	Open        atomic.Uint64 // bit i: the window of slot i is open
	Gate        atomic.Uint32 // futex: counts closed windows
	GateWaiters atomic.Uint32
	Windows     atomic.Uint32 // futex: counts opened and closed windows while somebody is stoppable
	Pad1        [44]byte

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
	Job            atomic.Uint64
	RanNs          atomic.Uint64
	RanAtNs        atomic.Uint64
	Pad0           [24]byte

	Windows       atomic.Uint64
	WindowNs      atomic.Uint64
	WindowsCut    atomic.Uint64
	Switches      atomic.Uint64
	Holds         atomic.Uint64
	HoldNs        atomic.Uint64
	HoldsReleased atomic.Uint64
	HoldsCollided atomic.Uint64
	HoldsExpired  atomic.Uint64
	HoldsStalled  atomic.Uint64
	GateWaits     atomic.Uint64
	GateNs        atomic.Uint64
	Turns         atomic.Uint64
	TurnNs        atomic.Uint64
	TurnsSeized   atomic.Uint64
	Boosts        atomic.Uint64
	TimesliceSets atomic.Uint64
	BusyNs        atomic.Uint64
	Kernels       KernelCounters
	Stop          StopCounters
	Pad1          [56]byte

	Hint         [HintSources]HintCounters
	HintsOff     atomic.Uint32
	HintSwitchUs atomic.Uint32
	HintSpunNs   atomic.Uint64
	Pad2         [176]byte
}

// BLP is a copy of the counters of block-level preemption under their names in segment.h.
type BLP struct {
	Images         uint64            `json:"images"`
	ImagesCached   uint64            `json:"images_cached"`
	LoadNs         uint64            `json:"load_ns"`
	KernelsSeen    uint64            `json:"kernels_seen"`
	KernelsGuarded uint64            `json:"kernels_guarded"`
	KernelsRefused map[string]uint64 `json:"kernels_refused"` // by reason; those that came up
	Launches       uint64            `json:"launches"`
	Uncovered      uint64            `json:"uncovered"`
	Barriers       uint64            `json:"barriers"`
	Stops          uint64            `json:"stops"`
	Cuts           uint64            `json:"cuts"`
	ResumedBlocks  uint64            `json:"resumed_blocks"`
	DrainNs        uint64            `json:"drain_ns"`
	DrainMaxNs     uint64            `json:"drain_max_ns"`
	GivenUp        uint64            `json:"given_up"`
	Beside         uint64            `json:"beside"`
}

// ReadBLP reads the counters of block-level preemption; nil where it never did anything.
func (s *Slot) ReadBLP() *BLP {
	k, b := &s.Kernels, &s.Stop
	out := BLP{
		k.Images.Load(), k.Cached.Load(), k.LoadNs.Load(), k.Seen.Load(), k.Guarded.Load(), map[string]uint64{}, b.Launches.Load(), b.Uncovered.Load(), b.Barriers.Load(), b.Stops.Load(),
		b.Cuts.Load(), b.ResumedBlocks.Load(), b.DrainNs.Load(), b.DrainMaxNs.Load(), b.GivenUp.Load(), b.Beside.Load(),
	}
	for i := range k.Refused {
		if n := k.Refused[i].Load(); n != 0 {
			name := fmt.Sprintf("reason_%d", i)
			if i < len(RefusalNames) {
				name = RefusalNames[i]
			}
			out.KernelsRefused[name] = n
		}
	}
	if out.Images == 0 && out.KernelsSeen == 0 && len(out.KernelsRefused) == 0 && out.Launches == 0 && out.Uncovered == 0 && out.Stops == 0 {
		return nil
	}
	return &out
}

// clear forgets what an earlier owner counted.
func (c *KernelCounters) clear() {
	c.Images.Store(0)
	c.Cached.Store(0)
	c.LoadNs.Store(0)
	c.Seen.Store(0)
	c.Guarded.Store(0)
	for i := range c.Refused {
		c.Refused[i].Store(0)
	}
}

func (c *StopCounters) clear() {
	for _, counter := range []*atomic.Uint64{&c.Launches, &c.Uncovered, &c.Barriers, &c.Stops, &c.Cuts, &c.ResumedBlocks, &c.DrainNs, &c.DrainMaxNs, &c.GivenUp, &c.Beside} {
		counter.Store(0)
	}
}

// Hints is a copy of what became of the hints of one source.
type Hints struct {
	Source   string `json:"source"`
	Given    uint64 `json:"given"`
	Hit      uint64 `json:"hit"`
	Late     uint64 `json:"late"`
	Wrong    uint64 `json:"wrong"`
	Dropped  uint64 `json:"dropped"`
	SavedNs  uint64 `json:"saved_ns"`
	WaitedNs uint64 `json:"waited_ns"`
	TimesOff uint64 `json:"times_off"`
	Off      bool   `json:"off"` // now
}

// Hints reads the counters of the sources that ever gave a hint.
func (s *Slot) Hints() []Hints {
	list := []Hints{}
	off := s.HintsOff.Load()
	for i := range s.Hint {
		c := &s.Hint[i]
		h := Hints{HintNames[i], c.Given.Load(), c.Hit.Load(), c.Late.Load(), c.Wrong.Load(), c.Dropped.Load(),
			c.SavedNs.Load(), c.WaitedNs.Load(), c.Off.Load(), off&(1<<i) != 0}
		if h.Given != 0 {
			list = append(list, h)
		}
	}
	return list
}

// clear forgets an earlier owner's hints.
func (c *HintCounters) clear() {
	for _, counter := range []*atomic.Uint64{&c.Given, &c.Hit, &c.Late, &c.Wrong, &c.Dropped, &c.SavedNs, &c.WaitedNs, &c.Off} {
		counter.Store(0)
	}
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
	HoldsStalled  uint64 `json:"holds_stalled"`
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
func (s *Slot) counters() [18]*atomic.Uint64 {
	return [...]*atomic.Uint64{
		&s.Windows, &s.WindowNs, &s.WindowsCut, &s.Switches,
		&s.Holds, &s.HoldNs, &s.HoldsReleased, &s.HoldsCollided, &s.HoldsExpired, &s.HoldsStalled,
		&s.GateWaits, &s.GateNs, &s.Turns, &s.TurnNs, &s.TurnsSeized,
		&s.Boosts, &s.TimesliceSets, &s.BusyNs,
	}
}

// Counters reads the counters one by one.
func (s *Slot) Counters() Counters {
	return Counters{
		s.Windows.Load(), s.WindowNs.Load(), s.WindowsCut.Load(), s.Switches.Load(),
		s.Holds.Load(), s.HoldNs.Load(), s.HoldsReleased.Load(), s.HoldsCollided.Load(), s.HoldsExpired.Load(), s.HoldsStalled.Load(),
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
