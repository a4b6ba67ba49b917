package segment

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
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
