package segment

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A segment has one of two makers. By a file, its memory is one, and every member can write all of it. By a broker, it is put together of
// pages in one range of addresses: those of other slots, and the header, can only be read. A process asks the broker to write there. Of
// either kind, the own slot's pages are behind the slots (struct gp_view), so that one may take the place of the other.

// NewPaged makes a segment of an arena, in which this process has a slot. Its owner goes on to place pages, by Place and Clear.
func NewPaged(arena *Arena, gpu GPU, path string, slot int, pages Pages) *Segment {
	return &Segment{Header: header(arena.memory), memory: arena.memory, view: arena.view, path: path, gpu: gpu, fd: -1, slot: slot, pages: pages}
}

// Introduce fills in this process's own slot.
func (s *Segment) Introduce(name string) {
	p, now := s.Slot(s.slot), Now()
	copy(p.Name[:len(p.Name)-1], name)
	p.Uncounted.Store(1) // until the first look
	p.Pid.Store(int32(Pid()))
	p.StartedNs.Store(now)
	p.HeartbeatNs.Store(now)
}

// Pause asks the process itself, in the place of people, to leave the GPU or to come back.
func (s *Segment) Pause(on bool) {
	what := AskedResume
	if on {
		what = AskedSuspend
	}
	own := s.Slot(s.slot)
	own.ask(own.StartedNs.Load(), what)
}

// Obey writes a request of people into the process's own slot. The reader passes over one that names another process.
func (s *Segment) Obey(r Request) { s.Slot(s.slot).Asked.Store(uint64(r)) }

// Limits returns the latest that SetLimits set; zero before.
func (s *Segment) Limits() Limits {
	if l := s.limits.Load(); l != nil {
		return *l
	}
	return Limits{}
}

// SetLimits sets Limits.
func (s *Segment) SetLimits(l Limits) { s.limits.Store(&l) }

// Attended says whether turns are seen to: by the members themselves, or a broker that lives.
func (s *Segment) Attended() bool { return s.pages == nil || s.Unheard() < brokerSilent }

// Unheard returns how long ago the broker last showed that it lives.
func (s *Segment) Unheard() time.Duration { return s.beats.Silent(s.BrokerHeartbeatNs.Load()) }

// OthersWork says whether processes that are no members have work on the GPU, as far as a broker that lives knows.
func (s *Segment) OthersWork() bool { return s.pages != nil && s.Attended() && s.Others.Load() != 0 }

// Paged says whether each process has pages of its own.
func (s *Segment) Paged() bool { return s.pages != nil }

// Next is a segment that takes this one's place, and its slot. The caller calls Replace.
func (s *Segment) Next() (next *Segment, slot int) {
	if s.pages == nil {
		return nil, -1
	}
	s.Poke()
	if next = s.pages.Next(); next == nil {
		return nil, -1
	}
	return next, next.slot
}

// Poke makes it be looked at what the broker has sent.
func (s *Segment) Poke() {
	if s.pages != nil {
		s.pages.Poke()
	}
}

// OwnSlot is the slot that this process has, -1: none.
func (s *Segment) OwnSlot() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.slot
}

// With runs something while no other segment takes this one's memory; if one has, it does nothing.
func (s *Segment) With(do func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.memory != nil {
		do()
	}
}

// Place shows a peer's page in its slot, or nothing (fd -1).
func (s *Segment) Place(slot, fd int) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.memory == nil {
		return nil
	}
	a := Arena{s.memory, s.view}
	return a.Place(slot, fd)
}

// Replace lets a segment's memory take the place of the one before, at the same address: move does it, and gives back what it does not
// need. A slot that this process still has in a file is given back; that is seen when the lock goes, with the file.
func (s *Segment) Replace(before *Segment, move func() bool) bool {
	before.mutex.Lock()
	defer before.mutex.Unlock()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if before.pages == nil && before.slot >= 0 {
		before.identify() // others may have written over it, and it is taken along
		before.retract(before.slot)
		before.Ring()
	}
	if !move() { // the memory is gone all the same
		s.memory, s.Header, s.slot = nil, nil, -1
		if s.pages != nil {
			s.pages.Leave()
		}
		return false
	}
	if Of == nil {
		s.memory, s.Header = before.memory, before.Header
	} // else this process has a mapping of each, and whoever reads the one before may go on
	s.startedNs = s.Own().StartedNs.Load() // counters go along, so the owner is the same
	before.memory, before.Header = nil, nil
	if before.keeper != nil {
		before.keeper.end()
	}
	before.closeFile()
	return true
}

// Turns are words of the header: of the GPU, and of its memory.
func (s *Segment) turnWords(memory bool) (turn, since *atomic.Uint64) {
	if memory {
		return &s.MemoryTurn, &s.MemoryTurnSinceNs
	}
	return &s.Header.Turn, &s.TurnSinceNs
}

// MoveTurn gives a turn to a slot, or to none (-1), from now on, if the turn's word still is seen. It returns false where it did not move
// the turn: the word has changed, or it asked a broker to move it.
func (s *Segment) MoveTurn(memory bool, seen uint64, to int, seized bool, now uint64) bool {
	if s.pages != nil {
		s.pages.Turn(memory, seen, to, seized)
		return false
	}
	turn, since := s.turnWords(memory)
	if !turn.CompareAndSwap(seen, NextTurn(seen, to, seized)) {
		return false
	}
	since.Store(now)
	return true
}

// Seen holds the bells that Wait looks at, and what each said when Listen was called.
type Seen struct {
	words  []*atomic.Uint32
	values []uint32
	slots  []uint64 // whose bell each is, as a bit; 0: the broker's, this process's own, or that of all
}

func (s *Seen) add(word *atomic.Uint32, slot uint64) {
	s.words, s.values, s.slots = append(s.words, word), append(s.values, word.Load()), append(s.slots, slot)
}

// Listen returns the bells that are rung for this process, without those of some members: but has a bit for each.
func (s *Segment) Listen(but uint64) (seen Seen) {
	seen.add(&s.Rings.Bell, 0)
	if s.pages != nil {
		seen.add(&s.Line(s.slot).Rings.Bell, 0)
		for slots := s.Members.Load() &^ (1 << s.slot) &^ but; slots != 0; slots &= slots - 1 {
			seen.add(&s.Line(bits.TrailingZeros64(slots)).Rings.Bell, slots&-slots)
		}
	}
	return seen
}

// Rang returns the slots of the members that have rung their own bells since.
func (s *Seen) Rang() (slots uint64) {
	for i, word := range s.words {
		if word.Load() != s.values[i] {
			slots |= s.slots[i]
		}
	}
	return slots
}

// changed says whether a bell was rung.
func (s *Seen) changed() bool {
	for i, word := range s.words {
		if word.Load() != s.values[i] {
			return true
		}
	}
	return false
}

// pollBells is how often bells are looked at where the kernel does not wait for several, or a process wakes without ringing.
const pollBells = 2 * time.Millisecond

// Wait waits until a bell is rung, but not longer than timeout. A ring changes the word before the wake. A process that can read the word
// can cause a wake without a change. That costs one look at the words, at most once every pollBells.
func (s *Seen) Wait(timeout time.Duration) {
	for end := time.Now().Add(timeout); timeout > 0 && !s.changed(); timeout = time.Until(end) {
		woken, known := false, false
		if len(s.words) > 1 {
			woken, known = waitWords(s.words, s.values, timeout)
		}
		switch {
		case known:
		case len(s.words) > 1: // Linux before 5.16
			woken = waitWord(s.words[0], s.values[0], min(timeout, pollBells))
		default:
			woken = waitWord(s.words[0], s.values[0], timeout)
		}
		if woken && !s.changed() {
			time.Sleep(min(pollBells, time.Until(end)))
		}
	}
}

// Place shows a peer's page in its slot, or zeros (fd -1). A reader of the slot meanwhile sees the one or the other.
func (a *Arena) Place(slot, fd int) error {
	if slot < 0 || slot >= Slots {
		return fmt.Errorf("place a page in slot %d: must be from 0 to %d", slot, Slots-1)
	}
	return a.put(headerSize+slot*slotSize, fd)
}

// PlaceHeader shows the broker's page.
func (a *Arena) PlaceHeader(fd int) error { return a.put(0, fd) }

func (a *Arena) put(offset, fd int) error {
	flags := unix.MAP_SHARED | unix.MAP_FIXED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
	}
	err := mapAt(a.memory, offset, fd, flags)
	if err == nil && Of != nil {
		err = Of.Map(a.view, offset, os.Getpagesize(), fd, 0, false)
	}
	if err != nil {
		return fmt.Errorf("place a page: %w", err)
	}
	return nil
}

// Header views the broker's page.
func (a *Arena) Header() *Header { return header(a.memory) }

// PlaceOwnInProgram shows the program's own pages in its view: which 0 is its state, 1 its counters.
func PlaceOwnInProgram(view, which, fd int) error {
	return Of.Map(view, ownAt+which*pageSize, os.Getpagesize(), fd, 0, true)
}

// View is the number of the segment's range in the program. That of a file is made by the first call; the slot has been claimed.
func (s *Segment) View() (int, error) {
	if Of == nil || s.pages != nil || s.view >= 0 {
		return s.view, nil
	}
	view, err := Of.View(false)
	if err != nil {
		return -1, fmt.Errorf("map the segment in the program: %w", err)
	}
	own := headerSize + s.slot*slotSize
	for _, part := range []struct{ at, length, offset int }{{0, memorySize, 0}, {ringsAt, headerSize, 0}, {ownAt, slotSize, own}} {
		if err == nil {
			err = Of.Map(view, part.at, part.length, s.keeper.fd, part.offset, true)
		}
	}
	if err != nil {
		Of.Free(view)
		return -1, fmt.Errorf("map the segment in the program: %w", err)
	}
	s.view = view
	return view, nil
}
