package segment

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

// Reader looks at a segment many times a second and changes nothing. It takes no locks, so it cannot tell dead processes.
type Reader struct {
	fd    int
	image []byte
}

// Look is the state of a segment at one time.
type Look struct {
	TakenNs uint64 // CLOCK_MONOTONIC
	Peers   []Glance
}

// Glance is the state of one process in a Look.
type Glance struct {
	Slot        int
	Pid         int32
	Level       uint32
	Open        bool // its window is open
	Busy        bool
	TimesliceUs uint32 // 0: the driver's default
	Counters    Counters
}

// OpenReader opens the memory that is in force now. A member hands it out.
func OpenReader(path string) (*Reader, error) {
	gpu, ok := parseName(filepath.Base(path))
	if !ok {
		return nil, fmt.Errorf("open segment %s: not the name of one", path)
	}
	file, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", path, err)
	}
	defer unix.Close(file)
	id, err := inForce(file)
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", path, err)
	}
	fd, err := ask(filepath.Dir(path), filepath.Base(path), gpu, id, allSlots) // locks cannot be asked about in a member
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", path, err)
	}
	return &Reader{fd: fd, image: newImage()}, nil
}

// Look reads a copy, as Snapshots does.
func (r *Reader) Look() (Look, error) {
	n, err := unix.Pread(r.fd, r.image, 0)
	if err != nil {
		return Look{}, fmt.Errorf("read: %w", err)
	}
	if n != memorySize {
		return Look{}, fmt.Errorf("%w: %d bytes, must be %d", ErrCorrupt, n, memorySize)
	}
	h := header(r.image)
	if h.Magic != Magic || h.Version != Version {
		return Look{}, fmt.Errorf("%w: magic %#x, version %d", ErrCorrupt, h.Magic, h.Version)
	}
	look := Look{TakenNs: Now()}
	members := h.Members.Load()
	for i := range Slots {
		if members&(1<<i) == 0 {
			continue
		}
		p, line := slotAt(r.image, i), lineAt(r.image, i)
		look.Peers = append(look.Peers, Glance{Slot: i, Pid: p.Pid.Load(), Level: h.Level[i].Load(),
			Open: line.WindowOpenedNs.Load() != 0, Busy: line.Busy.Load() != 0, TimesliceUs: p.TimesliceUs.Load(), Counters: p.Counters()})
	}
	return look, nil
}

// Close closes the file.
func (r *Reader) Close() { unix.Close(r.fd) }

// ErrEnded is wrapped by errors about a process that has left its slot.
var ErrEnded = errors.New("the process has ended")

// Ask makes a request of the process that registered in a slot at a time, and wakes it.
func (r *Reader) Ask(slot int, startedNs uint64, what Asked) (Request, error) {
	return r.ask(slot, startedNs, func(p *Slot) Request { return p.ask(startedNs, what) })
}

// AskObjective asks the same process for an objective; a word that says nothing asks for the process's own.
func (r *Reader) AskObjective(slot int, startedNs uint64, says configs.ObjectiveWord) (Request, error) {
	return r.ask(slot, startedNs, func(p *Slot) Request { return p.askObjective(startedNs, says) })
}

func (r *Reader) ask(slot int, startedNs uint64, ask func(*Slot) Request) (Request, error) {
	if slot < 0 || slot >= Slots {
		return 0, fmt.Errorf("ask slot %d: must be from 0 to %d", slot, Slots-1)
	}
	memory, err := mapShared(r.fd)
	if err != nil {
		return 0, fmt.Errorf("ask slot %d: map the segment: %w", slot, err)
	}
	s := &Segment{Header: header(memory), memory: memory, slot: -1}
	defer func() { _ = unmap(memory) }()
	p := s.Slot(slot)
	if s.Members.Load()&(1<<slot) == 0 || p.StartedNs.Load() != startedNs {
		return 0, fmt.Errorf("ask slot %d: %w", slot, ErrEnded)
	}
	request := ask(p)
	s.Ring()
	return request, nil
}
