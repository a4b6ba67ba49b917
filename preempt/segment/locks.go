package segment

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/preempt/program"
)

// Bytes of the file that are locked by a process that sets a corrupt file aside, and by one that joins.
const (
	lockRecovery = Slots + iota
	lockOfJoin
)

func lock(fd, start, length int) error { return setLock(fd, unix.F_WRLCK, start, length) }
func unlock(fd, start int) error       { return setLock(fd, unix.F_UNLCK, start, 1) }
func isLocked(err error) bool          { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }

// Of is the program whose helper this process is; nil: none. The program has the locks, and maps what this process maps.
var Of *program.Program

var kept = struct {
	mutex sync.Mutex
	files map[int]int // by descriptor, the number of the file in the program
}{files: map[int]int{}}

func setLock(fd int, kind int16, start, length int) error {
	if Of != nil {
		kept.mutex.Lock()
		defer kept.mutex.Unlock()
		file, is := kept.files[fd]
		if !is {
			var err error
			if file, err = Of.Keep(fd); err != nil {
				return err
			}
			kept.files[fd] = file
		}
		return Of.Lock(file, kind, start, length)
	}
	return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: kind, Start: int64(start), Len: int64(length)})
}

// closeLocked closes a file, whose locks go.
func closeLocked(fd int) {
	kept.mutex.Lock()
	defer kept.mutex.Unlock()
	if file, is := kept.files[fd]; is {
		Of.Close(file)
		delete(kept.files, fd)
	}
	unix.Close(fd)
}

// Pid is the process that has the slots: the program, or this process.
func Pid() int {
	if Of != nil {
		return Of.Pid
	}
	return os.Getpid()
}

// isHeld says whether another process holds the lock of a slot.
func isHeld(fd, slot int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
	return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) != nil || l.Type != unix.F_UNLCK
}

// holders says which slots' locks other processes hold, and which processes these are: their pids in this PID namespace, 0 where
// they have none there. The kernel answers for a range with any lock in it, so it is asked once a lock and once a gap.
func holders(fd int) (pids [Slots]int32, held uint64) {
	var ask func(from, to int)
	ask = func(from, to int) {
		if from >= to {
			return
		}
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(from), Len: int64(to - from)}
		begin, end := from, to // after an error: all are held
		if unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l) != nil {
			l.Pid = 0
		} else if l.Type == unix.F_UNLCK {
			return
		} else if begin = max(from, int(l.Start)); l.Len != 0 { // 0: to the end of the file, however long
			end = min(to, int(l.Start+l.Len))
		}
		for slot := begin; slot < end; slot++ {
			pids[slot] = max(l.Pid, 0)
			held |= 1 << slot
		}
		ask(from, begin)
		ask(end, to)
	}
	ask(0, Slots)
	return pids, held
}
