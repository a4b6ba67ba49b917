package segment

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Claim takes a free slot for this process.
func (s *Segment) Claim(level int, name string) (slot int, err error) {
	if level < 0 || level >= Levels {
		return -1, fmt.Errorf("claim slot: level %d, must be from 0 to %d", level, Levels-1)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.slot >= 0 {
		return -1, fmt.Errorf("claim slot: slot %d is held already", s.slot)
	}
	if err := s.checkFile(); err != nil {
		return -1, fmt.Errorf("claim slot: %w", err)
	}
	within := joinWithin
	if !s.keeper.makes { // Open has waited in vain
		within = 0
	}
	switch err := s.lockJoin(within); { // held since Open, usually
	case err == nil:
		defer unlock(s.fd, lockOfJoin)
	case !errors.Is(err, errJoining):
		return -1, fmt.Errorf("claim slot: %w", err)
	}
	for i := range Slots {
		err := lock(s.fd, i, 1)
		if isLocked(err) {
			continue
		}
		if err == nil {
			err = s.keeper.offer(s.memory, i)
		}
		if err != nil {
			return -1, fmt.Errorf("claim slot: %w", err)
		}
		s.slot, s.level, s.name = i, uint32(level), [32]byte{}
		copy(s.name[:len(s.name)-1], name)
		s.join()
		return i, nil
	}
	return -1, fmt.Errorf("claim slot: %w", ErrFull)
}

// join fills in the slot, whose lock is held, and tells the others.
func (s *Segment) join() {
	s.retract(s.slot)
	p := s.Slot(s.slot)
	p.forget()
	p.TimesliceUs.Store(0)
	p.Mechanisms.Store(0)
	p.Fallbacks.Store(0)
	p.Suspended.Store(0)
	p.Job.Store(0)
	p.RanNs.Store(0)
	p.RanAtNs.Store(0)
	p.Uncounted.Store(1) // until the first look
	p.Pid.Store(int32(Pid()))
	s.startedNs = Now()
	p.HeartbeatNs.Store(s.startedNs)
	s.identify()
	s.Members.Or(1 << s.slot)
	s.Ring()
}

// identify writes this process's identity into the slot, and returns whether its time or level was another.
func (s *Segment) identify() (other bool) {
	p, level := s.Slot(s.slot), &s.Header.Level[s.slot]
	if p.Name != s.name {
		p.Name = s.name
	}
	if p.StartedNs.Load() == s.startedNs && level.Load() == s.level {
		return false
	}
	p.StartedNs.Store(s.startedNs)
	level.Store(s.level)
	return true
}

// SetLevel says that this process has another level from now on, in a file.
func (s *Segment) SetLevel(level int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.level = uint32(level); s.slot >= 0 && s.identify() {
		s.Ring()
	}
}

// WindowsOpen says which of some slots have a window open.
func (s *Segment) WindowsOpen(slots uint64) (open uint64) {
	for ; slots != 0; slots &= slots - 1 {
		if slot := bits.TrailingZeros64(slots); s.Line(slot).WindowOpenedNs.Load() != 0 {
			open |= 1 << slot
		}
	}
	return open
}

// Busy says which of some slots have, or want to run, work.
func (s *Segment) Busy(slots uint64) (busy uint64) {
	for ; slots != 0; slots &= slots - 1 {
		if slot := bits.TrailingZeros64(slots); s.Line(slot).Busy.Load() != 0 {
			busy |= 1 << slot
		}
	}
	return busy
}

// retract clears what others see of a slot whose lock is held, and says whether there was anything.
func (s *Segment) retract(slot int) bool {
	bit := uint64(1) << slot
	changed := s.Line(slot).Busy.Swap(0) != 0
	if s.Line(slot).WindowOpenedNs.Swap(0) != 0 {
		changed = true
		s.WakeGate()
	}
	changed = s.Members.And(^bit)&bit != 0 || changed
	for _, word := range []*atomic.Uint64{&s.Turn, &s.MemoryTurn} {
		turn := word.Load()
		if owner, owned := TurnOwner(turn); owned && owner == slot {
			changed = word.CompareAndSwap(turn, nobodysTurn(turn)) || changed
		}
	}
	return changed
}

// Release gives the slot back. Without a slot it does nothing.
func (s *Segment) Release() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.slot < 0 {
		return
	}
	if s.pages != nil {
		s.pages.Leave()
		return
	}
	s.retract(s.slot)
	s.Ring()
	unlock(s.fd, s.slot)
	s.slot = -1
}

// Alive says whether a process owns the slot. A slot that does not exist is not alive.
func (s *Segment) Alive(slot int) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slot >= 0 && slot < Slots && s.alive(slot)
}

func (s *Segment) alive(slot int) bool {
	return slot == s.slot || isHeld(s.fd, slot)
}

// Restore writes again what others have written over: the words that name this process, in its slot. Where that was reaped meanwhile it joins
// anew.
func (s *Segment) Restore() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.pages != nil || s.slot < 0 {
		return
	}
	if s.Members.Load()&(1<<s.slot) == 0 || s.Slot(s.slot).Pid.Load() != int32(Pid()) {
		s.join()
	} else if s.identify() {
		s.Ring()
	}
}

// Check sees that others who open the segment get the same file and memory. The error is ErrLost or ErrOther where they do not.
func (s *Segment) Check() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.pages != nil {
		return nil
	}
	return s.checkFile()
}

func (s *Segment) checkFile() error {
	var stat unix.Stat_t
	switch err := unix.Lstat(s.path, &stat); {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: the file was removed", ErrLost)
	case err != nil || (inode{stat.Dev, stat.Ino}) != s.inode:
		return fmt.Errorf("%w: the file was replaced", ErrLost)
	}
	line := make([]byte, fileSize+1)
	n, _ := unix.Pread(s.fd, line, 0)
	switch ours := identity(s.gpu, s.keeper.id); {
	case n != fileSize || string(line[:40]) != string(ours[:40]):
		s.repair(ours)
	case string(line[:fileSize]) != string(ours):
		return ErrOther
	case string(s.memory[:fileSize]) != string(ours): // a reader from outside would not believe it
		copy(s.memory, ours)
	}
	return nil
}

// Reap clears the bits of slots whose owner is gone and returns which these were.
func (s *Segment) Reap() (reaped uint64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.pages != nil { // the broker does it
		return 0
	}
	suspects := s.Members.Load() | s.WindowsOpen(allSlots) | s.Busy(allSlots)
	for _, memory := range []bool{false, true} {
		word, since := s.turnWords(memory)
		// No process takes a turn that is yet to begin: its owner could never be late with it.
		if began, now := since.Load(), Now(); began > now {
			since.CompareAndSwap(began, now)
		}
		turn := word.Load()
		if owner, owned := TurnOwner(turn); owned {
			suspects |= 1 << owner
		} else if turn&0x1ff != 0 { // no such slot
			word.CompareAndSwap(turn, nobodysTurn(turn))
		}
	}
	if s.slot >= 0 {
		suspects &^= 1 << s.slot
	}
	for ; suspects != 0; suspects &= suspects - 1 {
		slot := bits.TrailingZeros64(suspects)
		// F_GETLK first: taking the lock, however briefly, makes the slot look alive to others.
		if isHeld(s.fd, slot) || lock(s.fd, slot, 1) != nil {
			continue
		}
		if s.retract(slot) {
			reaped |= 1 << slot
		}
		unlock(s.fd, slot)
	}
	if reaped != 0 {
		s.Ring()
	}
	return reaped
}
