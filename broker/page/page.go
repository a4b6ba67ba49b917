// Package page makes the pages that clients of the broker share: files without a name (memfd) that one process can write and the others
// can only read.
//
// The order is: Make, the owner maps it, Seal, only then anybody else gets the descriptor. No other process sees a page that is not
// sealed.
package page

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// sealed is what a page has that is shown to others.
	sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	// weakSealed is the same where the kernel lacks F_SEAL_FUTURE_WRITE, before Linux 5.1.
	weakSealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	// execSealed is set by MFD_NOEXEC_SEAL, from Linux 6.3 on.
	execSealed = unix.F_SEAL_EXEC
)

// ErrPage is wrapped by errors about a descriptor that is no page as it must be: its owner, or its sender, is hostile or broken.
var ErrPage = errors.New("not a sound page")

// Size of a page in bytes: the kernel's.
func Size() int { return os.Getpagesize() }

// memfd can be replaced by tests.
var memfd = unix.MemfdCreate

// addSeals can be replaced by tests, which stand for old kernels.
var addSeals = func(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return err
}

// Make makes a page of zeros. Its owner may map and write it until it is sealed.
func Make() (fd int, err error) {
	const name, flags = "gpreempt-page", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = memfd(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = memfd(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("make page: %w", err)
	}
	if err = write(fd, make([]byte, Size())); err != nil { // allocated now: no reader meets a full memory later
		unix.Close(fd)
		return -1, fmt.Errorf("make page: %w", err)
	}
	return fd, nil
}

func write(fd int, zeros []byte) error {
	for done := 0; done < len(zeros); {
		n, err := unix.Pwrite(fd, zeros[done:], int64(done))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		done += max(n, 0)
	}
	return nil
}

// Seal takes from everybody the right to change the page by anything but the mappings that there are, and to change its size. It
// returns the descriptor that others may get, which is fd unless the kernel lacks F_SEAL_FUTURE_WRITE; then weaker is true: a
// process that may read and write everybody's files can write the page. fd is closed in that case, and if there is an error.
func Seal(fd int) (show int, weaker bool, err error) {
	err = addSeals(fd, sealed)
	if errors.Is(err, unix.EINVAL) {
		weaker = true
		fd, err = readOnly(fd)
	}
	// The owner had it writable until now, and could have sealed it otherwise or changed its size.
	if err == nil {
		err = check(fd, weaker)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return -1, weaker, fmt.Errorf("seal page: %w", err)
	}
	return fd, weaker, nil
}

// readOnly makes the file read-only, seals it and opens it again. It closes fd.
func readOnly(fd int) (again int, err error) {
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, 0o400); err != nil {
		return -1, err
	}
	if err := addSeals(fd, weakSealed); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// Check checks a received page: it keeps its size, and no process that got it can write it. weaker is the broker's word.
func Check(fd int, weaker bool) error { return check(fd, weaker) }

func check(fd int, weaker bool) error {
	var stat unix.Stat_t
	var on unix.Statfs_t
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err := errors.Join(err, unix.Fstat(fd, &stat), unix.Fstatfs(fd, &on)); err != nil {
		return fmt.Errorf("%w: %w", ErrPage, err)
	}
	want := sealed
	if weaker {
		want = weakSealed
	}
	if has&^execSealed != want || on.Type != unix.TMPFS_MAGIC { // huge pages may run out when they are touched
		return fmt.Errorf("%w: seals %#x, must be %#x", ErrPage, has, want)
	}
	if stat.Size != int64(Size()) {
		return fmt.Errorf("%w: %d bytes, must be %d", ErrPage, stat.Size, Size())
	}
	return nil
}

// Own checks a page that the broker sent to its owner, which is not sealed yet. From then on it keeps its size: its owner need not trust
// the broker with that.
func Own(fd int) error {
	var stat unix.Stat_t
	var on unix.Statfs_t
	if err := errors.Join(addSeals(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW), unix.Fstat(fd, &stat), unix.Fstatfs(fd, &on)); err != nil {
		return fmt.Errorf("%w: %w", ErrPage, err)
	}
	if stat.Size != int64(Size()) || on.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: %d bytes, must be %d", ErrPage, stat.Size, Size())
	}
	return nil
}

// Weaker finds out whether the kernel lacks F_SEAL_FUTURE_WRITE, so that pages are protected less well.
func Weaker() (bool, error) {
	fd, err := Make()
	if err != nil {
		return false, err
	}
	fd, weaker, err := Seal(fd)
	if err == nil {
		unix.Close(fd)
	}
	return weaker, err
}
