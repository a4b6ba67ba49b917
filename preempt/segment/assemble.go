package segment

import "fmt"

// Part is what a broker tells of a member, for people.
type Part struct {
	Slot            int
	Client          uint64 // its id
	Pid             int32  // as the reader sees the process
	Level           uint32
	Turn, Memory    bool   // it has the turn, the memory turn
	State, Counters []byte // its pages, whatever is in them
}

// Assemble is the snapshot of members of one GPU, as of a file. The path is one that no other segment has.
func Assemble(gpu [16]byte, path string, parts []Part) (Snapshot, error) {
	image, alive := newImage(), uint64(0)
	h := header(image)
	for _, p := range parts {
		if p.Slot < 0 || p.Slot >= Slots || p.Level >= Levels {
			return Snapshot{}, fmt.Errorf("%w: slot %d, level %d", ErrCorrupt, p.Slot, p.Level)
		}
		at := headerSize + p.Slot*slotSize
		copy(image[at:at+pageSize], p.State)
		copy(image[at+pageSize:at+slotSize], p.Counters)
		alive |= 1 << p.Slot
		slotAt(image, p.Slot).Pid.Store(p.Pid)
		h.Level[p.Slot].Store(p.Level)
		h.Client[p.Slot].Store(p.Client)
		if p.Turn {
			h.Turn.Store(NextTurn(0, p.Slot, false))
		}
		if p.Memory {
			h.MemoryTurn.Store(NextTurn(0, p.Slot, false))
		}
	}
	s := describe(image, func(slot int) (int32, bool) { return slotAt(image, slot).Pid.Load(), alive&(1<<slot) != 0 })
	s.GPU, s.Path = UUID(gpu), path
	return s, nil
}
