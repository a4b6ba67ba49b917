package segment

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Bytes of the file that are locked by a process that sets a corrupt file aside, and by one that joins.
const (
	lockRecovery = Slots + iota
	lockOfJoin
)

func lock(fd, start, length int) error { return setLock(fd, unix.F_WRLCK, start, length) }
func unlock(fd, start int) error       { return setLock(fd, unix.F_UNLCK, start, 1) }
func isLocked(err error) bool          { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }

func setLock(fd int, kind int16, start, length int) error {
	return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: kind, Start: int64(start), Len: int64(length)})
}

// isHeld says whether another process holds the lock of a slot.
func isHeld(fd, slot int) bool {
	_, held := holder(fd, slot)
	return held
}

// holder is isHeld, and says which process it is: its pid in this PID namespace, 0 where it has none there.
func holder(fd, slot int) (pid int32, held bool) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
	if unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) != nil {
		return 0, true
	}
	return max(l.Pid, 0), l.Type != unix.F_UNLCK
}
