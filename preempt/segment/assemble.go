package segment

import "fmt"

// Part is what a broker tells of a member, for people.
type Part struct {
	Slot            int
	Client          uint64 // its id
	Pid             int32  // as the reader sees the process
	Level           uint32
	Turn, Memory    bool // it has the turn, the memory turn
	Ended           bool
	Cgroup          string // its path, or the end of that
	State, Counters []byte // its pages, with any contents
}

// Assemble is the snapshot of members of one GPU, as of a file. The path is one that no other segment has.
func Assemble(gpu GPU, path string, parts []Part) (Snapshot, error) {
	image, alive := newImage(), uint64(0)
	h, cgroups := header(image), map[uint64]string{}
	for i := range parts {
		p := &parts[i]
		if p.Slot < 0 || p.Slot >= Slots || p.Level >= Levels {
			return Snapshot{}, fmt.Errorf("%w: slot %d, level %d", ErrCorrupt, p.Slot, p.Level)
		}
		cgroups[p.Client] = p.Cgroup
		if p.Ended {
			continue
		}
		alive |= 1 << p.Slot
		p.put(image)
		if p.Turn {
			h.Turn.Store(NextTurn(0, p.Slot, false))
		}
		if p.Memory {
			h.MemoryTurn.Store(NextTurn(0, p.Slot, false))
		}
	}
	s := describe(image, func(slot int) (int32, bool) { return slotAt(image, slot).Pid.Load(), alive&(1<<slot) != 0 })
	s.GPU, s.Path = gpu.String(), path
	for i := range parts {
		p := &parts[i]
		if p.Ended { // its slot may be another's
			image := newImage()
			p.put(image)
			s.Gone = append(s.Gone, describe(image, func(int) (int32, bool) { return 0, false }).Gone...)
		}
	}
	for _, list := range [][]Peer{s.Peers, s.Gone} {
		for i := range list {
			list[i].Cgroup = cgroups[list[i].Client]
		}
	}
	return s, nil
}

// put puts the pages where they are in a segment.
func (p *Part) put(image []byte) {
	at := headerSize + p.Slot*slotSize
	copy(image[at:at+pageSize], p.State)
	copy(image[at+pageSize:at+slotSize], p.Counters)
	h := header(image)
	slotAt(image, p.Slot).Pid.Store(p.Pid)
	h.Level[p.Slot].Store(p.Level)
	h.Client[p.Slot].Store(p.Client)
}
