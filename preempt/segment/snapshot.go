package segment

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

// Snapshot is what one segment said at one time, for people and scripts.
type Snapshot struct {
	GPU     string `json:"gpu"`
	Path    string `json:"path"`
	TakenNs uint64 `json:"taken_ns"`        // CLOCK_MONOTONIC.
	Turn    *int   `json:"turn,omitempty"`  // The slot whose turn it is.
	Error   string `json:"error,omitempty"` // Why it could not be read.
	// The slot whose turn it is to have its memory in, of those that do not fit together.
	MemoryTurn *int   `json:"memory_turn,omitempty"`
	Peers      []Peer `json:"peers"`
	// Slots' last words of processes that have ended. Others may take such a slot at any time.
	Gone []Peer `json:"-"`
	// The socket of the broker that was asked; empty: read by a file.
	Broker string `json:"-"`
}

// Peer is a process in a Snapshot.
type Peer struct {
	Slot           int               `json:"slot"`
	Pid            int32             `json:"pid"` // in the PID namespace of the process
	Owner          int32             `json:"-"`   // in the reader's, as the kernel says it; 0: not to be seen there
	Cgroup         string            `json:"-"`   // as a broker says it, or its end; empty: found by a file
	Name           string            `json:"name"`
	Level          uint32            `json:"level"`
	Role           string            `json:"role"`
	Alive          bool              `json:"alive"`
	StartedNs      uint64            `json:"started_ns"`
	HeartbeatAgeNs uint64            `json:"heartbeat_age_ns"`
	WindowOpen     bool              `json:"window_open"`
	WindowOpenedNs uint64            `json:"window_opened_ns"`
	Busy           bool              `json:"busy"`
	Counted        bool              `json:"counted"` // else it is not known whether it has work
	Turn           bool              `json:"turn"`
	Suspended      bool              `json:"suspended"`
	RanNs          uint64            `json:"ran_ns"`       // of the lowest level: the GPU was its own, and it had work
	RanAtNs        uint64            `json:"ran_at_ns"`    // counted until then
	TimesliceUs    uint32            `json:"timeslice_us"` // 0: the driver's default
	Mechanisms     []string          `json:"mechanisms"`
	Fallbacks      []string          `json:"fallbacks"`
	Published      bool              `json:"-"` // what is in force is known
	Client         uint64            `json:"-"` // its id, given by the broker; 0: found by a file
	Asked          Request           `json:"-"` // what people asked of it last
	Obeyed         Request           `json:"-"` // the last request for an objective that it obeyed
	InForce        configs.Mechanism `json:"-"` // the same as bits
	Lacks          configs.Fallback  `json:"-"`
	Counters       Counters          `json:"counters"`
	Times          Times             `json:"times"`
	Hints          []Hints           `json:"hints"`
	Capped         bool              `json:"capped"`              // share.max or share.max_be keeps it off the GPU
	SwitchUs       uint32            `json:"switch_us"`           // what a switch away from a lower level takes here, as learnt; 0: not yet
	HintSpunNs     uint64            `json:"hint_spun_ns"`        // processor time
	BLP            *BLP              `json:"blp,omitempty"`       // where kernels were loaded or launched for it
	Objective      *Objective        `json:"objective,omitempty"` // of a process that has one
	MemoryTurn     bool              `json:"memory_turn"`
	Memory         *Memory           `json:"memory,omitempty"` // where memory swaps
}

// Next is the request of a process that follows the one that was made last.
func (p *Peer) Next(what Asked) Request { return p.Asked.next(p.StartedNs, what) }

// describe reads a copy of a memory. owner says which process has a slot's lock.
func describe(image []byte, owner func(slot int) (pid int32, held bool)) Snapshot {
	h := header(image)
	s := Snapshot{TakenNs: Now(), Peers: []Peer{}}
	turn, owned := TurnOwner(h.Turn.Load())
	if owned {
		s.Turn = &turn
	}
	if owner, owned := TurnOwner(h.MemoryTurn.Load()); owned {
		s.MemoryTurn = &owner
	}
	for i := range Slots {
		pid, lives := owner(i)
		p := slotAt(image, i)
		if !lives && p.StartedNs.Load() == 0 {
			continue
		}
		level, line := h.Level[i].Load(), lineAt(image, i)
		peer := Peer{
			Slot: i, Pid: cmp.Or(p.Pid.Load(), pid), // an owner that is just joining has not written it
			Owner: pid, Name: printable(p.Name[:]),
			Level: level, Role: role(level), Alive: lives,
			StartedNs: p.StartedNs.Load(), HeartbeatAgeNs: since(p.HeartbeatNs.Load(), s.TakenNs),
			WindowOpen: line.WindowOpenedNs.Load() != 0, WindowOpenedNs: line.WindowOpenedNs.Load(),
			Busy: line.Busy.Load() != 0, Counted: p.Uncounted.Load() == 0, Turn: owned && turn == i, Suspended: p.Suspended.Load() != 0,
			RanNs: p.RanNs.Load(), RanAtNs: p.RanAtNs.Load(),
			TimesliceUs: p.TimesliceUs.Load(),
			Mechanisms:  names(p.Mechanisms.Load(), configs.MechanismNames()),
			Fallbacks:   names(p.Fallbacks.Load(), configs.FallbackNames()),
			Published:   p.Job.Load() != 0,
			Client:      h.Client[i].Load(),
			Asked:       Request(p.Asked.Load()),
			Obeyed:      Request(p.ObjectiveAnswered.Load()),
			InForce:     configs.Mechanism(p.Mechanisms.Load()),
			Lacks:       configs.Fallback(p.Fallbacks.Load()),
			Counters:    p.Counters(),
			Times:       p.ReadTimes(),
			Hints:       p.Hints(), Capped: p.Capped.Load() != 0, SwitchUs: p.SwitchUs.Load(), HintSpunNs: p.HintSpunNs.Load(), BLP: p.ReadBLP(),
			Objective:  p.ReadObjective(),
			MemoryTurn: s.MemoryTurn != nil && *s.MemoryTurn == i, Memory: p.ReadMemory(),
		}
		if lives {
			s.Peers = append(s.Peers, peer)
		} else {
			s.Gone = append(s.Gone, peer)
		}
	}
	return s
}

func role(level uint32) string {
	switch level {
	case 0:
		return "lc"
	case Levels - 1:
		return "be"
	}
	return strconv.FormatUint(uint64(level), 10)
}

// since is 0 for times that lie ahead, as a peer's may by malice or by being written just now.
func since(then, now uint64) uint64 {
	if then >= now {
		return 0
	}
	return now - then
}

// printable makes a peer's name fit for a terminal.
func printable(name []byte) string {
	s, _, _ := strings.Cut(string(name), "\x00")
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
