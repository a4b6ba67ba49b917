package broker

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// These tests are of agents of a process and the segments that a broker makes (preempt/member). Each segment is of another process for the
// broker, as in start.

func (b *bench) member(level int) (*segment.Segment, int) {
	b.t.Helper()
	var s *segment.Segment
	var slot int
	var err error
	eventually(b.t, "it joins", func() bool { // the broker may be slow to answer, and then it is as none
		s, slot, err = member.Join(member.Options{Directory: b.directory, GPU: segment.GPU{UUID: [16]byte{1}}, Level: level, Name: "member"})
		return err == nil || !errors.Is(err, join.ErrTime)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	return s, slot
}

func TestSegmentsByABroker(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	lc, high := b.member(0)
	be, low := b.member(7)
	bit := uint64(1) << high
	if !lc.Paged() || be.Members.Load() != bit|1<<low || be.Level[high].Load() != 0 || be.Level[low].Load() != 7 {
		t.Fatalf("members %#x", be.Members.Load())
	}
	eventually(t, "BE sees LC's page", func() bool { return be.Slot(high).StartedNs.Load() != 0 })
	if be.Slot(high).Pid.Load() != 0 || be.Slot(high).Name != [32]byte{} || lc.Slot(high).Pid.Load() != int32(os.Getpid()) {
		t.Error("BE sees who LC is")
	}
	if be.WindowsOpen(bit) != 0 {
		t.Error("a window is open")
	}
	bells := be.Listen(0)
	lc.Line(high).WindowOpenedNs.Store(5)
	lc.Line(high).Busy.Store(1)
	lc.Ring()
	bells.Wait(soon)
	if be.WindowsOpen(bit) != bit || be.Busy(bit) != bit || lc.WindowsOpen(bit) != bit {
		t.Error("BE does not see LC's window")
	}
	lc.Release()
	eventually(t, "LC's slot is empty", func() bool {
		return be.Members.Load() == 1<<low && be.Slot(high).StartedNs.Load() == 0 && be.WindowsOpen(bit) == 0
	})
	be.Restore()
	if err := be.Check(); err != nil || be.Reap() != 0 || !be.Attended() {
		t.Error(err)
	}
}

// Turns are asked for, and are as with a file once they are given.
func TestTurnsByABroker(t *testing.T) {
	b := start(t, "")
	one, first := b.member(7)
	two, second := b.member(7)
	owner := func(s *segment.Segment) int {
		if slot, owned := segment.TurnOwner(s.Header.Turn.Load()); owned {
			return slot
		}
		return -1
	}
	if one.MoveTurn(false, one.Header.Turn.Load(), first, false, segment.Now()) {
		t.Error("the turn was taken without the broker")
	}
	eventually(t, "the turn is taken", func() bool { return owner(two) == first })
	two.MoveTurn(false, two.Header.Turn.Load(), second, false, segment.Now()) // by whom it is not: it stays
	one.MoveTurn(false, one.Header.Turn.Load(), second, false, segment.Now())
	eventually(t, "the turn is passed", func() bool { return owner(one) == second })
	two.MoveTurn(false, two.Header.Turn.Load(), -1, false, segment.Now())
	eventually(t, "the turn is free", func() bool { return owner(one) == -1 })
	one.MoveTurn(true, one.MemoryTurn.Load(), first, false, segment.Now())
	eventually(t, "the memory turn is taken", func() bool {
		slot, owned := segment.TurnOwner(two.MemoryTurn.Load())
		return owned && slot == first
	})
}

// Settings by people reach the process: a pause as a request of its own, a share as a setting, a level in the header.
func TestPeopleAndSegments(t *testing.T) {
	b := start(t, "[default]\nlevel = 0\nshare = 0.5\nmax_hold_ms = 20\nmemory_limit = '40%'")
	s, slot := b.member(7)
	set := func(m wire.Set) {
		t.Helper()
		if err := join.List(join.SocketIn(b.directory, 0), func(e *wire.Entry, _ []int) error { m.Pid = e.Pid; return nil }); err != nil {
			t.Fatal(err)
		}
		if n, err := join.Set(join.SocketIn(b.directory, 0), &m); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	set(wire.Set{Fields: wire.SetPaused | wire.SetShare | wire.SetShareMax | wire.SetLevel, Paused: 1, Share: 250_000, ShareMax: 750_000, Level: 3})
	s.Next() // as an agent looks that was woken
	eventually(t, "it is told", func() bool {
		return s.Slot(slot).Request().Asked() == segment.AskedSuspend && s.Limits().Share == 0.25 && s.Limits().ShareMax == 0.75 && s.Level[slot].Load() == 3
	})
	set(wire.Set{Fields: wire.SetClear})
	s.Next()
	eventually(t, "it is told again", func() bool {
		return s.Slot(slot).Request().Asked() == segment.AskedResume && s.Limits() == (segment.Limits{Share: 0.5, MaxHoldUs: 20_000, MemoryPart: 0.4, QuantumMs: 100}) && s.Level[slot].Load() == 7
	})
}

// A request of people about a process's memory reaches it unchanged, so that they recognise the answer. A suspended process is paused.
func TestRequestsOfPeople(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	s, slot := b.member(7)
	ask := func(what segment.Asked) {
		t.Helper()
		all, err := member.Snapshots(b.directory)
		if err != nil || len(all) != 1 || len(all[0].Peers) != 1 {
			t.Fatal(all, err)
		}
		p := &all[0].Peers[0]
		request := p.Next(what)
		if there, err := join.Ask(all[0].Broker, &wire.Ask{ID: p.Client, Request: uint64(request)}); !there || err != nil {
			t.Fatal(there, err)
		}
		s.Next() // as an agent looks that was woken
		eventually(t, "it is told", func() bool { return s.Slot(slot).Request() == request })
		if request.Asked() != what || request == p.Asked {
			t.Errorf("%x follows %x", request, p.Asked)
		}
	}
	paused := func() (paused uint8) {
		t.Helper()
		if err := join.List(join.SocketIn(b.directory, 0), func(e *wire.Entry, _ []int) error { paused = e.Policy.Paused; return nil }); err != nil {
			t.Fatal(err)
		}
		return paused
	}
	ask(segment.AskedOut)
	ask(segment.AskedOut)
	if paused() != 0 {
		t.Error("what is out is paused")
	}
	ask(segment.AskedSuspend)
	if paused() != 1 {
		t.Error("what is suspended is not paused")
	}
	ask(segment.AskedResume)
	if paused() != 0 {
		t.Error("what goes on is paused")
	}
	if there, err := join.Ask(join.SocketIn(b.directory, 0), &wire.Ask{ID: 1 << 40, Request: uint64(segment.AskedOut)}); there || err != nil {
		t.Error("nobody was asked", there, err)
	}
}

// A request and a pause may be told by one message. Both are obeyed; a request to suspend is the pause.
func TestARequestBesideAPause(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	s, slot := b.member(7)
	request := func(what segment.Asked) uint64 { // as the command line makes it
		return s.Slot(slot).StartedNs.Load()>>10<<16 | uint64(what)
	}
	both := func(asked uint64, paused uint8) {
		t.Helper()
		b.do(func(server *Server) {
			for _, c := range server.clients {
				c.asked, c.set.Paused, c.set.Fields = asked, paused, c.set.Fields|wire.SetPaused
				c.judge(server)
			}
		})
		s.Poke()
	}
	is := func(what segment.Asked) func() bool {
		return func() bool { return s.Slot(slot).Request().Asked() == what }
	}
	both(request(segment.AskedOut), 1)
	eventually(t, "it is suspended", is(segment.AskedSuspend))
	both(request(segment.AskedIn), 0)
	eventually(t, "it goes on", is(segment.AskedResume))
	both(1<<60|uint64(segment.AskedSuspend), 1) // for an earlier process
	eventually(t, "it is suspended again", is(segment.AskedSuspend))
	resume := request(segment.AskedResume) | 7<<8
	both(resume, 0)
	eventually(t, "it goes on, as was asked", func() bool { return uint64(s.Slot(slot).Request()) == resume })
}

func TestLevelsByABroker(t *testing.T) {
	b := start(t, "[default]\nlevel = 4\n[[rule]]\nname='no'\nwhen='wanted == 1'\nadmit=false")
	for wanted, want := range map[int]int{0: 4, 4: 4, 6: 6} {
		if level, err := member.Level(b.directory, wanted); level != want || err != nil {
			t.Errorf("wanted %d: %d, %v", wanted, level, err)
		}
	}
	if level, err := member.Level(b.directory, 1); level != 1 || !refused(err, wire.RefusedPolicy) {
		t.Errorf("%d, %v", level, err)
	}
	nowhere := t.TempDir()
	if level, err := member.Level(nowhere, 3); level != 3 || !errors.Is(err, member.ErrNone) {
		t.Errorf("%d, %v", level, err)
	}
	if _, _, err := member.Join(member.Options{Directory: nowhere, Level: 3}); !errors.Is(err, member.ErrNone) {
		t.Error(err)
	}
}

// again starts a broker in the place of one that has ended.
func (b *bench) again(t *testing.T, old *bench) {
	t.Helper()
	s, err := New(layout, policy.Default(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	s.identify = old.server.identify
	for level := range wire.Levels {
		fd, err := Bind(join.SocketIn(old.directory, level), 0o755, -1)
		if err == nil {
			err = s.Listen(fd, level)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.t, b.server, b.directory, b.done = t, s, old.directory, make(chan error, 1)
	go func() { b.done <- s.Run() }()
}

// The broker ends and starts again, while members go on: they join the next one, keep what they said of themselves, at the same
// addresses, and see each other again.
func TestNextBroker(t *testing.T) {
	b := start(t, "")
	one, first := b.member(7)
	two, second := b.member(7)
	memory, own := one.Pointer(), one.Slot(first)
	own.Mechanisms.Store(uint32(configs.Turns))
	var stop atomic.Bool
	done := make(chan struct{})
	go func() { // launches look, and count, all the time
		defer close(done)
		for !stop.Load() {
			own.GateWaits.Add(1)
		}
	}()
	current := b
	for round := range 5 {
		current.stop()
		next := &bench{}
		next.again(t, b)
		current = next
		for i, s := range []**segment.Segment{&one, &two} {
			slot := []*int{&first, &second}[i]
			eventually(t, fmt.Sprintf("round %d: process %d joins", round, i), func() bool {
				after, at := (*s).Next()
				if after == nil {
					return false
				}
				if !after.Replace(*s, func() bool { return moved(after.Pointer(), (*s).Pointer(), (*s).Slot(*slot), after.Slot(at)) }) {
					t.Fatal("the memory was not replaced")
				}
				*s, *slot = after, at
				return true
			})
		}
		eventually(t, "they see each other", func() bool {
			one.Next() // poke
			two.Next()
			return bits.OnesCount64(one.Members.Load()) == 2 && two.Slot(first).Has(configs.Turns) && one.Slot(second).StartedNs.Load() != 0
		})
		if one.Pointer() != memory || one.Slot(first) != own || !own.Has(configs.Turns) {
			t.Fatal("it is at another place, or has forgotten")
		}
	}
	stop.Store(true)
	<-done
	if own.GateWaits.Load() == 0 {
		t.Error("nothing was counted")
	}
	one.Close()
	two.Close()
	current.stop()
}

// An agent that sees that the broker has ended wakes the others on its GPU, which look then.
func TestTheEndOfABrokerIsToldOn(t *testing.T) {
	b := start(t, "")
	one, first := b.member(7)
	two, second := b.member(7)
	eventually(t, "they see each other", func() bool {
		one.Next() // poke
		two.Next()
		return two.Slot(first).StartedNs.Load() != 0 && one.Slot(second).StartedNs.Load() != 0
	})
	bells := func() (sum uint32) { return two.Line(first).Rings.Bell.Load() + one.Line(second).Rings.Bell.Load() }
	before := bells()
	b.stop()
	eventually(t, "one rings", func() bool { return bells() != before })
	one.Close()
	two.Close()
}

// A process that began without a broker joins when one starts. Its slot in the file is free then, and it goes on writing to the same
// segment.
func TestBrokerThatComesLater(t *testing.T) {
	directory, err := os.MkdirTemp("", "gpreempt-broker-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	file, err := segment.Open(filepath.Join(t.TempDir(), "segments"), segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	slot, err := file.Claim(7, "member")
	if err != nil {
		t.Fatal(err)
	}
	memory, own, path := file.Pointer(), file.Own(), file.Path()
	own.Mechanisms.Store(uint32(configs.Turns))
	found := make(chan struct{})
	sought := member.Seek(member.Options{Directory: directory, GPU: segment.GPU{UUID: [16]byte{1}}, Level: 7, Name: "member"}, func() { close(found) }, func(err error) { t.Error(err) })
	if next, _ := sought.Next(); next != nil {
		t.Fatal("it has joined a broker that is not there")
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() { // launches count and ring all the time, whatever is there
		defer close(done)
		shared := (*atomic.Uint32)(unsafe.Add(unsafe.Pointer(own), 64-os.Getpagesize())) // gp_view.shared
		for !stop.Load() {
			own.GateWaits.Add(1)
			shared.Add(1)
		}
	}()
	eventually(t, "launches count", func() bool { return own.GateWaits.Load() > 0 })
	b := &bench{}
	b.again(t, &bench{directory: directory, server: &Server{identify: peerOf}})
	defer b.stop()
	<-found
	next, at := sought.Next()
	if !next.Replace(file, func() bool { return moved(next.Pointer(), memory, own, next.Own()) }) {
		t.Fatal("the memory was not replaced")
	}
	stop.Store(true)
	<-done
	if !next.Paged() || next.Pointer() != memory || next.Own() != own || !own.Has(configs.Turns) || own.GateWaits.Load() == 0 {
		t.Error("it is at another place, or has forgotten")
	}
	eventually(t, "others see it", func() bool { return next.Members.Load() == 1<<at && next.Attended() })
	other, err := segment.Open(filepath.Dir(path), segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := other.Claim(7, "other"); again != slot || err != nil {
		t.Errorf("its slot in the file is not free: %d, %v", again, err)
	}
	other.Close()
	next.Close()
}

// moved is what gp_gpu_move does to memory.
func moved(from, to unsafe.Pointer, before, after *segment.Slot) bool {
	after.Mechanisms.Store(before.Mechanisms.Load())
	after.GateWaits.Store(before.GateWaits.Load())
	page := uintptr(os.Getpagesize())
	for i := range uintptr(2*(1+segment.Slots) + 2) {
		if _, err := unix.MremapPtr(unsafe.Add(from, i*page), page, unsafe.Add(to, i*page), page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
			return false
		}
	}
	return true
}

// A broker that answers nothing costs a process its patience, and no more.
func TestBrokerThatHangs(t *testing.T) {
	directory, err := os.MkdirTemp("", "gpreempt-broker-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	fd, err := Bind(join.SocketIn(directory, 7), 0o755, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, _, err := member.Join(member.Options{Directory: directory, Level: 7}); !errors.Is(err, join.ErrTime) {
		t.Error(err)
	}
	if level, err := member.Level(directory, 7); level != 7 || !errors.Is(err, join.ErrTime) || strings.Contains(err.Error(), "\n") {
		t.Error(level, err)
	}
}
