package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrCorrupt is wrapped by errors about a file that is no valid segment.
	ErrCorrupt = errors.New("corrupt segment")
	// ErrUnsafe is wrapped by errors about files and directories that others could have tampered with.
	ErrUnsafe = errors.New("unsafe segment")
	// ErrFull is returned by Claim when every slot is taken.
	ErrFull = errors.New("all slots of the segment are taken")
	// ErrOther is returned when another memory is in force than the one that is mapped.
	ErrOther = errors.New("other memory is in force")
	// ErrLost is returned when the slot or the file now belongs to someone else.
	ErrLost = errors.New("slot lost")
)

// Directory returns the directory of a user's segments.
func Directory(base string, uid int) string {
	return filepath.Join(base, fmt.Sprintf("gpreempt-%d", uid))
}

// GroupDirectory returns the directory of the segments that the members of a group share.
func GroupDirectory(base string, gid int) string {
	return filepath.Join(base, fmt.Sprintf("gpreempt-group-%d", gid))
}

// GroupID returns the number of a group that is given by name or number.
func GroupID(group string) (gid int, err error) {
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	found, err := user.LookupGroup(group)
	if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) {
		return -1, fmt.Errorf(`segment.group = %q: there is no such group; must be the name or number of one, or ""`, group)
	}
	if err != nil {
		return -1, fmt.Errorf("segment.group = %q: %w", group, err)
	}
	return strconv.Atoi(found.Gid)
}

// Open attaches to the segment of a GPU in dir, and creates both where they are missing. With gid >= 0
// they belong to that group and its members may attach, otherwise only this user may. No other process can attach until a slot is
// claimed, or the segment closed.
func Open(dir string, gpu GPU, gid int) (*Segment, error) {
	s := &Segment{path: filepath.Join(dir, gpu.String()+".seg"), gpu: gpu, gid: gid, fd: -1, view: -1, slot: -1}
	if err := s.attach(dir, gpu); err != nil {
		s.Close()
		return nil, fmt.Errorf("open segment %s: %w", s.path, err)
	}
	return s, nil
}

func (s *Segment) attach(dir string, gpu GPU) error {
	dirfd, err := openDirectory(dir, s.gid)
	if err != nil {
		return err
	}
	defer unix.Close(dirfd)
	name := filepath.Base(s.path)
	// A round fails only if another process creates the file or sets it aside meanwhile.
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		err = s.openOrCreate(dirfd, name, gpu)
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return err
	}
	joining := s.lockJoin(joinWithin)
	if joining != nil && !errors.Is(joining, errJoining) {
		return joining
	}
	id, err := inForce(s.fd)
	if err != nil {
		return err
	}
	_, held := holders(s.fd)
	k, err := keep(dir, name, gpu, s.gid, id, held, joining == nil)
	if err != nil {
		return err
	}
	if s.keeper, s.memory, s.Header = k, k.memory, header(k.memory); k.id != id {
		_, err = unix.Pwrite(s.fd, identity(gpu, k.id), 0)
	}
	return err
}

// openOrCreate sets s.fd. It returns EAGAIN when it should be tried again.
func (s *Segment) openOrCreate(dirfd int, name string, gpu GPU) error {
	fd, err := unix.Openat(dirfd, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		fd, err = create(dirfd, name, gpu, s.gid)
		if errors.Is(err, unix.EEXIST) {
			return unix.EAGAIN
		}
		if err != nil {
			return err
		}
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: is a symbolic link", ErrUnsafe)
	case err != nil:
		return err
	}
	err = validate(fd, gpu, s.gid)
	if errors.Is(err, ErrCorrupt) {
		err = s.setAside(dirfd, name, fd, err)
	}
	var stat unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &stat)
	}
	if err != nil {
		closeLocked(fd)
		return err
	}
	s.fd, s.inode = fd, inode{stat.Dev, stat.Ino}
	return nil
}

// openDirectory opens dir, created if need be. A new directory gets its name last, with everything set.
func openDirectory(dir string, gid int) (int, error) {
	if err := CheckDirectory(dir, gid); err != nil {
		return -1, err
	}
	fd, err := openPrivate(dir, gid)
	if errors.Is(err, unix.ENOENT) {
		if err := createDirectory(dir, gid); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, fmt.Errorf("create directory: %w", err)
		}
		fd, err = openPrivate(dir, gid)
	}
	return fd, err
}

// CheckDirectory checks that no other user made the directory: any can, if its parent is writable by all. A missing directory is no
// error.
func CheckDirectory(dir string, gid int) error {
	var stat unix.Stat_t
	err := unix.Lstat(dir, &stat)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	if err = private(&stat, gid); err == nil && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = fmt.Errorf("%w: not a directory", ErrUnsafe)
	}
	if err != nil {
		return fmt.Errorf("directory %s: %w; have it removed (user %d, who owns it, and root can), or set segment.directory to another place for all programs", dir, err, stat.Uid)
	}
	return nil
}

func openPrivate(dir string, gid int) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open directory %s: %w", dir, err)
	}
	var stat unix.Stat_t
	if err = unix.Fstat(fd, &stat); err == nil {
		err = private(&stat, gid)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("directory %s: %w", dir, err)
	}
	return fd, nil
}

func createDirectory(dir string, gid int) error {
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".gpreempt-") // mode 0700
	if err != nil {
		return err
	}
	defer os.Remove(temporary) // fails once it is renamed
	if gid >= 0 {
		if err := os.Chown(temporary, -1, gid); err != nil {
			return err
		}
		if err := unix.Chmod(temporary, 0o2770); err != nil {
			return err
		}
	}
	return unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
}

// private checks that only the user, or the group if gid >= 0, can write.
func private(stat *unix.Stat_t, gid int) error {
	mode := stat.Mode & 0o777
	switch {
	case gid < 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%w: owned by user %d, must be %d", ErrUnsafe, stat.Uid, os.Geteuid())
	case gid < 0 && mode&0o077 != 0:
		return fmt.Errorf("%w: mode %04o is open to others", ErrUnsafe, mode)
	case gid >= 0 && int(stat.Gid) != gid:
		return fmt.Errorf("%w: owned by group %d, must be %d", ErrUnsafe, stat.Gid, gid)
	case gid >= 0 && mode&0o007 != 0:
		return fmt.Errorf("%w: mode %04o is open to others than the group", ErrUnsafe, mode)
	}
	return nil
}

// create makes a new segment. Its name appears last, by link, so that no process sees half of one.
func create(dirfd int, name string, gpu GPU, gid int) (_ int, err error) {
	temporary := fmt.Sprintf(".%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
	file, err := unix.Openat(dirfd, temporary, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, fmt.Errorf("create: %w", err)
	}
	defer func() {
		unix.Unlinkat(dirfd, temporary, 0)
		if err != nil {
			unix.Close(file)
		}
	}()
	if gid >= 0 {
		if err := unix.Fchown(file, -1, gid); err != nil {
			return -1, fmt.Errorf("give to group %d: %w", gid, err)
		}
		if err := unix.Fchmod(file, 0o660); err != nil {
			return -1, fmt.Errorf("open to group %d: %w", gid, err)
		}
	}
	if n, err := unix.Pwrite(file, identity(gpu, newIdentifier()), 0); err != nil {
		return -1, fmt.Errorf("write: %w", err)
	} else if n != fileSize {
		return -1, fmt.Errorf("write: %w", io.ErrShortWrite)
	}
	if err := unix.Linkat(dirfd, temporary, dirfd, name, 0); err != nil {
		return -1, fmt.Errorf("link: %w", err)
	}
	return file, nil
}

// identity is the first cache line of a valid segment.
func identity(gpu GPU, id identifier) []byte {
	b := make([]byte, 0, 64)
	b = binary.LittleEndian.AppendUint64(b, Magic)
	for _, v := range []uint32{Version, memorySize, Slots, slotSize} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = append(append(b, gpu.UUID[:]...), id[:]...)
	return b[:fileSize]
}

// validate checks the file.
func validate(fd int, gpu GPU, gid int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: not a regular file", ErrUnsafe)
	}
	if err := private(&stat, gid); err != nil {
		return err
	}
	if stat.Size != fileSize {
		return fmt.Errorf("%w: %d bytes, must be %d", ErrCorrupt, stat.Size, fileSize)
	}
	var line [64]byte
	if _, err := unix.Pread(fd, line[:], 0); err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	return validateHeader(line[:], gpu)
}

// validateHeader checks the identity at the start of b.
func validateHeader(b []byte, gpu GPU) error {
	if len(b) < 40 {
		return fmt.Errorf("%w: header of %d bytes", ErrCorrupt, len(b))
	}
	if magic := binary.LittleEndian.Uint64(b); magic != Magic {
		return fmt.Errorf("%w: magic %#x, must be %#x", ErrCorrupt, magic, uint64(Magic))
	}
	for i, field := range []struct {
		name string
		want uint32
	}{{"version", Version}, {"size", memorySize}, {"slots", Slots}, {"slot_size", slotSize}} {
		if got := binary.LittleEndian.Uint32(b[8+4*i:]); got != field.want {
			return fmt.Errorf("%w: %s %d, must be %d", ErrCorrupt, field.name, got, field.want)
		}
	}
	if got := (GPU{[16]byte(b[24:40]), gpu.Slice}); got != gpu {
		return fmt.Errorf("%w: of %s, must be of %s", ErrCorrupt, got, gpu)
	}
	return nil
}

// setAside renames a corrupt file if no process uses it, and then returns EAGAIN.
func (s *Segment) setAside(dirfd int, name string, fd int, corrupt error) error {
	// One process at a time, and only while the name still means this file.
	if err := lock(fd, lockRecovery, 1); err != nil {
		return unix.EAGAIN
	}
	var open, named unix.Stat_t
	if err := unix.Fstat(fd, &open); err != nil {
		return err
	}
	if err := unix.Fstatat(dirfd, name, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil || named.Ino != open.Ino {
		return unix.EAGAIN
	}
	if err := lock(fd, 0, Slots); err != nil {
		return fmt.Errorf("%w, and still in use", corrupt)
	}
	aside := fmt.Sprintf("%s.corrupt-%d", name, os.Getpid())
	if err := unix.Renameat(dirfd, name, dirfd, aside); err != nil {
		return fmt.Errorf("%w, and cannot be set aside: %w", corrupt, err)
	}
	s.replaced = fmt.Errorf("%s: %w: set aside as %s", s.path, corrupt, filepath.Join(filepath.Dir(s.path), aside))
	return unix.EAGAIN
}

// Close releases the slot, unmaps the segment and closes the file. Results of Header, Slot and Pointer are invalid then.
func (s *Segment) Close() error {
	s.Release()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.Header = nil
	if s.keeper != nil {
		s.keeper.end()
	}
	if s.memory != nil {
		if err := unmap(s.memory); err != nil {
			return fmt.Errorf("unmap segment %s: %w", s.path, err)
		}
		s.memory = nil
	}
	s.closeFile()
	return nil
}

func (s *Segment) closeFile() {
	if s.fd >= 0 {
		closeLocked(s.fd)
	}
	s.fd = -1
}

// Leave closes the file, which drops all locks of this process in it. The memory stays.
func (s *Segment) Leave() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closeFile()
	s.slot = -1
}

// Replaced returns what was wrong with a file that Open set aside; usually nil.
func (s *Segment) Replaced() error { return s.replaced }

// Path returns the path of the segment's file.
func (s *Segment) Path() string { return s.path }
