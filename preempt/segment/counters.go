package segment

import (
	"fmt"
	"sync/atomic"

	"github.com/gpreempt/gpreempt/configs"
)

// BLP is a copy of the counters of block-level preemption.
type BLP struct {
	Images         uint64            `json:"images"`
	ImagesCached   uint64            `json:"images_cached"`
	LoadNs         uint64            `json:"load_ns"`
	KernelsSeen    uint64            `json:"kernels_seen"`
	KernelsGuarded uint64            `json:"kernels_guarded"`
	KernelsRefused map[string]uint64 `json:"kernels_refused"` // by reason; only reasons that occurred
	StopCounters[uint64]
}

// ReadBLP reads the counters of block-level preemption; nil where it never did anything.
func (s *Slot) ReadBLP() *BLP {
	k := load[KernelCounters[uint64]](&s.Kernels)
	out := BLP{k.Images, k.Cached, k.LoadNs, k.Seen, k.Guarded, map[string]uint64{}, load[StopCounters[uint64]](&s.Stop)}
	for i, n := range k.Refused {
		if n != 0 {
			out.KernelsRefused[nameOf(i, RefusalNames, "reason")] = n
		}
	}
	if out.Images == 0 && out.KernelsSeen == 0 && len(out.KernelsRefused) == 0 && out.Launches == 0 && out.Uncovered == 0 && out.Stops == 0 {
		return nil
	}
	return &out
}

// Objective is a copy of a process's counters of its objective.
type Objective struct {
	Wanted string `json:"wanted"` // as GPREEMPT_OBJECTIVE says it; "": it has none now
	State  string `json:"state"`
	ObjectiveCounters[uint64]
}

// ReadObjective reads what became of the objective of a process; nil where it has none, or had no step yet.
func (s *Slot) ReadObjective() *Objective {
	o := load[ObjectiveCounters[uint64]](&s.Objective)
	if o == (ObjectiveCounters[uint64]{}) {
		return nil
	}
	state := "unknown"
	if o.State < uint64(len(objectiveStates)) { // else of a process that knows more, or lies
		state = objectiveStates[o.State]
	}
	return &Objective{configs.ObjectiveWord(o.Wanted).String(), state, o}
}

// Attained is the part of the means over some steps that were within the objective, 0 to 1; 1 where there is none yet.
func (o *Objective) Attained() float64 {
	if o.Means == 0 {
		return 1
	}
	return 1 - float64(min(o.Over, o.Means))/float64(o.Means)
}

// Memory is a copy of a process's counters of the GPU's memory: how much it has, and where it went.
type Memory struct {
	State string `json:"state"`
	MemoryCounters[uint64]
	PinnedBy []string `json:"pinned_by"` // why memory cannot go
}

// ReadMemory reads what a process has of the GPU's memory; nil where it does not swap, and never did.
func (s *Slot) ReadMemory() *Memory {
	m := load[MemoryCounters[uint64]](&s.Memory)
	if m == (MemoryCounters[uint64]{}) && !s.Has(configs.Swap) {
		return nil
	}
	return &Memory{memoryState(m.State), m, names(uint32(m.Pins), pinNames)}
}

func memoryState(state uint64) string {
	if state >= uint64(len(memoryStates)) { // of a process that knows more, or lies
		return "unknown"
	}
	return memoryStates[state]
}

// nameOf is a name, or a number where there is none.
func nameOf(i int, names []string, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s_%d", kind, i)
}

// Hints is a copy of the counters of the hints of one source.
type Hints struct {
	Source string `json:"source"`
	HintCounters[uint64]
	Off bool `json:"off"` // now
}

// Hints reads the counters of the sources that ever gave a hint.
func (s *Slot) Hints() []Hints {
	list := []Hints{}
	off, names := s.HintsOff.Load(), configs.HintNames()
	for i := range s.Hint {
		h := Hints{nameOf(i, names, "source"), load[HintCounters[uint64]](&s.Hint[i]), off&(1<<i) != 0}
		if h.Given != 0 {
			list = append(list, h)
		}
	}
	return list
}

// Counters reads the counters one by one.
func (s *Slot) Counters() Counters { return load[Counters](&s.SlotCounters) }

// ReadTimes reads the histograms one by one.
func (s *Slot) ReadTimes() Times { return load[Times](&s.Times) }

// forget sets all counters to 0: they are an earlier owner's.
func (s *Slot) forget() {
	for _, counters := range [][]atomic.Uint64{words(&s.SlotCounters), words(&s.Kernels), words(&s.Stop), words(&s.Hint), words(&s.Objective), words(&s.Memory), words(&s.Times)} {
		for i := range counters {
			counters[i].Store(0)
		}
	}
	s.Asked.Store(0)
	s.ObjectiveAsked.Store(0)
	s.ObjectiveSaid.Store(0)
	s.ObjectiveAnswered.Store(0)
	s.HintsOff.Store(0)
	s.SwitchUs.Store(0)
	s.Capped.Store(0)
	s.HintSpunNs.Store(0)
}

// names lists the names of set bits; bits without one by number.
func names(set uint32, known []string) []string {
	list := []string{}
	for i := range 32 {
		if set&(1<<i) != 0 {
			list = append(list, nameOf(i, known, "bit"))
		}
	}
	return list
}
