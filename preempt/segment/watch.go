package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Watch reads the segments of this user, and of a group, again and again, changing nothing. It keeps the memories that it saw:
// so it sees what processes counted until they ended, also when no process is left that hands the memory out. It is not for a process
// that holds a slot (see the package), nor for several goroutines at once.
type Watch struct {
	base, group string
	kept        map[string]memory // by the path of the segment
	image       []byte            // of the memory that is read; what is found in it is copied
}

// memory is one that was in force when it was got.
type memory struct {
	fd int
	id identifier
}

// NewWatch watches the segments under base. group may be empty.
func NewWatch(base, group string) *Watch { return &Watch{base: base, group: group} }

// ReadAll reads the segments of this user under base, and those of the group if it is not empty.
func ReadAll(base, group string) ([]Snapshot, error) {
	w := NewWatch(base, group)
	defer w.Close()
	return w.Look()
}

// Look reads all segments. There being none is no error; one that cannot be read is listed with its Error.
func (w *Watch) Look() ([]Snapshot, error) {
	all, err := w.lookSafely(Directory(w.base, os.Getuid()), -1)
	if err != nil || w.group == "" {
		return all, err
	}
	gid, err := GroupID(w.group)
	if err != nil {
		return nil, err
	}
	shared, err := w.lookSafely(GroupDirectory(w.base, gid), gid)
	return append(all, shared...), err
}

func (w *Watch) lookSafely(dir string, gid int) ([]Snapshot, error) {
	if err := CheckDirectory(dir, gid); err != nil {
		return nil, err
	}
	return w.lookIn(dir)
}

// Close gives the memories back.
func (w *Watch) Close() {
	for path := range w.kept {
		w.drop(path)
	}
}

func (w *Watch) drop(path string) {
	unix.Close(w.kept[path].fd)
	delete(w.kept, path)
}

func (w *Watch) lookIn(dir string) ([]Snapshot, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var all []Snapshot
	there := map[string]bool{}
	for _, entry := range entries {
		gpu, ok := parseName(entry.Name())
		if !ok {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		there[path] = true
		snapshot, err := w.take(path, gpu)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			snapshot = Snapshot{Error: err.Error(), Peers: []Peer{}}
		}
		snapshot.GPU, snapshot.Path = gpu.String(), path
		all = append(all, snapshot)
	}
	for path := range w.kept {
		if gpu, ok := parseName(filepath.Base(path)); ok && filepath.Dir(path) == dir && !there[path] {
			all = append(all, Snapshot{GPU: gpu.String(), Path: path, TakenNs: Now(), Peers: []Peer{}, Gone: w.last(path)})
		}
	}
	return all, nil
}

func (w *Watch) take(path string, gpu GPU) (Snapshot, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return Snapshot{}, fmt.Errorf("%w: is a symbolic link", ErrUnsafe)
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	line := make([]byte, fileSize)
	n, err := unix.Pread(fd, line, 0)
	if err != nil {
		return Snapshot{}, fmt.Errorf("read: %w", err)
	}
	if n != fileSize {
		return Snapshot{}, fmt.Errorf("%w: not of %d bytes", ErrCorrupt, fileSize)
	}
	if err := validateHeader(line, gpu); err != nil {
		return Snapshot{}, err
	}
	ended, err := w.follow(fd, path, gpu)
	if err != nil {
		return Snapshot{}, err
	}
	is, kept := w.kept[path]
	if !kept {
		return Snapshot{TakenNs: Now(), Peers: []Peer{}, Gone: ended}, nil
	}
	if err := w.read(is); err != nil {
		return Snapshot{}, err
	}
	pids, held := holders(fd)
	s := describe(w.image, func(slot int) (int32, bool) { return pids[slot], held&(1<<slot) != 0 })
	s.Gone = append(s.Gone, ended...)
	return s, nil
}

func (w *Watch) read(m memory) error {
	if w.image == nil {
		w.image = newImage()
	}
	if n, err := unix.Pread(m.fd, w.image, 0); err != nil || n != len(w.image) {
		return fmt.Errorf("read: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// follow gets the memory that is in force, unless that is kept or has no members. fd is the segment's file. Of a memory whose place
// another one took it returns all processes in it: they have ended, or are in the other one.
func (w *Watch) follow(fd int, path string, gpu GPU) (ended []Peer, err error) {
	for deadline := time.Now().Add(answerWithin); ; time.Sleep(time.Millisecond) {
		_, held := holders(fd)
		id, err := inForce(fd)
		if err != nil {
			return nil, err
		}
		if is, kept := w.kept[path]; held == 0 || kept && is.id == id {
			return nil, nil
		}
		got, err := ask(filepath.Dir(path), filepath.Base(path), gpu, id, held)
		if err == nil {
			return w.keep(path, memory{got, id}), nil
		}
		if time.Now().After(deadline) { // else one that joins or ends just now
			return nil, err
		}
	}
}

// keep puts a memory in the place of the one that was in force before, and returns the processes in that.
func (w *Watch) keep(path string, next memory) (ended []Peer) {
	ended = w.last(path)
	if w.kept == nil {
		w.kept = map[string]memory{}
	}
	w.kept[path] = next
	return ended
}

// last gives back a memory that is kept, and returns the processes in it.
func (w *Watch) last(path string) (ended []Peer) {
	is, kept := w.kept[path]
	if !kept {
		return nil
	}
	if w.read(is) == nil {
		ended = describe(w.image, func(int) (int32, bool) { return 0, false }).Gone
	}
	w.drop(path)
	return ended
}

// Snapshots reads the segments of a user under base, changing nothing. There being none is no error; one
// that cannot be read is listed with its Error.
func Snapshots(base string, uid int) ([]Snapshot, error) {
	return SnapshotsIn(Directory(base, uid))
}

// SnapshotsIn does the same for one directory, as of GroupDirectory.
func SnapshotsIn(dir string) ([]Snapshot, error) {
	w := Watch{}
	defer w.Close()
	return w.lookIn(dir)
}
