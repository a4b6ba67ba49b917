package segment

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// brokerPages counts what is asked of a broker.
type brokerPages struct {
	turns []int
	left  int
	poked int
}

func (b *brokerPages) Turn(_ bool, _ uint64, to int, _ bool) { b.turns = append(b.turns, to) }
func (b *brokerPages) Next() *Segment                        { return nil }
func (b *brokerPages) Leave()                                { b.left++ }
func (b *brokerPages) Poke()                                 { b.poked++ }

// member is a segment by a broker, whose header and slots the test can write.
func member(t *testing.T, slot int) (*Segment, *brokerPages) {
	t.Helper()
	arena, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Free() })
	if err := unix.Mprotect(arena.memory[:memorySize], unix.PROT_READ|unix.PROT_WRITE); err != nil { // as the broker and members write them
		t.Fatal(err)
	}
	b := &brokerPages{}
	return NewPaged(arena, GPU{UUID: [16]byte{1}}, "broker", slot, b), b
}

func TestBellsOfMembers(t *testing.T) {
	const own = 5
	s, _ := member(t, own)
	others := []int{0, 1, 4, 6, 63}
	s.Members.Store(1 << own)
	for _, slot := range others {
		s.Members.Or(1 << slot)
	}
	seen := s.Listen(0)
	if len(seen.words) != 2+len(others) || seen.changed() || seen.Rang() != 0 {
		t.Fatalf("%d bells of %d members", len(seen.words), len(others))
	}
	for _, slot := range others {
		seen := s.Listen(1 << 63)
		ring(&s.Line(slot).Rings.Bell)
		if want := slot != 63; seen.changed() != want || seen.Rang() != 1<<slot&^(1<<63) {
			t.Errorf("slot %d rang: %v, %b", slot, seen.changed(), seen.Rang())
		}
	}
	for name, bell := range map[string]func(){
		"its own":        func() { ring(&s.Line(own).Rings.Bell) },
		"the broker's":   func() { ring(&s.Rings.Bell) },
		"another member": func() { ring(&s.Line(63).Rings.Bell) },
	} {
		seen := s.Listen(0)
		began := time.Now()
		time.AfterFunc(10*time.Millisecond, bell)
		if seen.Wait(time.Minute); !seen.changed() || time.Since(began) >= time.Minute {
			t.Errorf("%s bell does not end the wait", name)
		}
		if rang := seen.Rang(); rang != 0 && name != "another member" {
			t.Errorf("%s bell counts as that of %b", name, rang)
		}
	}
	seen = s.Listen(0)
	began := time.Now()
	if seen.Wait(time.Millisecond); time.Since(began) < time.Millisecond {
		t.Error("a wait ends before its time")
	}
}

// The broker is asked for pages that are not this process's own, as long as it lives.
func TestBrokersPart(t *testing.T) {
	s, b := member(t, 5)
	if !s.Paged() || s.OwnSlot() != 5 || s.OwnSlot() != 5 {
		t.Errorf("paged %v, slot %d", s.Paged(), s.OwnSlot())
	}
	if s.MoveTurn(false, 0, 7, false, 1) || !slices.Equal(b.turns, []int{7}) || s.Turn.Load() != 0 {
		t.Errorf("turns that were asked for: %v", b.turns)
	}
	s.Poke()
	ran := 0
	s.With(func() { ran++ })
	s.With(func() { ran++ })
	if b.poked != 1 || ran != 2 {
		t.Errorf("poked %d times, ran %d times", b.poked, ran)
	}
	s.BrokerHeartbeatNs.Store(1)
	if !s.Attended() || s.OthersWork() {
		t.Errorf("attended %v, others work %v", s.Attended(), s.OthersWork())
	}
	s.Others.Store(1)
	if !s.OthersWork() {
		t.Error("others do not work")
	}
	for end := time.Now().Add(time.Minute); s.Attended() && time.Now().Before(end); {
		time.Sleep(brokerSilent / 20)
	}
	if s.Attended() || s.OthersWork() {
		t.Error("a broker that is silent is believed")
	}
	s.BrokerHeartbeatNs.Store(2)
	if !s.Attended() || !s.OthersWork() {
		t.Error("a broker that came back is not believed")
	}
	if l := s.Limits(); l != (Limits{}) {
		t.Errorf("limits %+v", l)
	}
	s.SetLimits(Limits{QuantumMs: 3})
	if l := s.Limits(); l.QuantumMs != 3 {
		t.Errorf("limits %+v", l)
	}
	file := open(t, directory(t))
	file.Others.Store(1)
	if file.Paged() || !file.Attended() || file.OthersWork() {
		t.Error("a segment of a file has a broker")
	}
}

func TestPagesOutsideAreRefused(t *testing.T) {
	arena, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Free()
	for slot, good := range map[int]bool{-1: false, 0: true, Slots - 1: true, Slots: false, math.MaxInt: false, math.MinInt: false} {
		if err := arena.Place(slot, -1); (err == nil) != good {
			t.Errorf("slot %d: %v", slot, err)
		}
	}
	if err := arena.Place(3, math.MaxInt32); err == nil {
		t.Error("a page that is no file was placed")
	}
}

// A slot counts from its owner's first moment: nothing of an earlier owner is left that others would take for it.
func TestClaimSetsTheOwner(t *testing.T) {
	s := open(t, directory(t))
	for slot := range Slots {
		p := s.Slot(slot)
		for _, word := range []interface{ Store(uint64) }{&p.HeartbeatNs, &p.StartedNs, &p.RanNs, &p.RanAtNs, &p.Job} {
			word.Store(7)
		}
		for _, word := range []interface{ Store(uint32) }{&p.TimesliceUs, &p.Mechanisms, &p.Fallbacks, &p.Suspended} {
			word.Store(7)
		}
		s.Line(slot).Busy.Store(1)
		s.Line(slot).WindowOpenedNs.Store(7)
	}
	before := Now()
	slot := claim(t, s)
	p, after := s.Slot(slot), Now()
	if h := p.HeartbeatNs.Load(); h < before || h > after || p.StartedNs.Load() != h {
		t.Errorf("heartbeat %d, started %d, claimed from %d to %d", h, p.StartedNs.Load(), before, after)
	}
	if p.TimesliceUs.Load() != 0 || p.Mechanisms.Load() != 0 || p.Fallbacks.Load() != 0 || p.Suspended.Load() != 0 || p.Job.Load() != 0 || p.RanNs.Load() != 0 || p.RanAtNs.Load() != 0 {
		t.Error("an earlier owner's mechanisms, fallbacks, job or time are left")
	}
	if s.Line(slot).Busy.Load() != 0 || s.Line(slot).WindowOpenedNs.Load() != 0 {
		t.Error("an earlier owner's window is left")
	}
	if int(p.Pid.Load()) != os.Getpid() || s.Members.Load()&(1<<slot) == 0 {
		t.Errorf("pid %d, members %b", p.Pid.Load(), s.Members.Load())
	}
}

// Requests of one owner differ, as many as there are sequences.
func TestRequestsAreToldApart(t *testing.T) {
	const started = 123456789 << 10
	seen := map[Request]bool{}
	r := Request(0)
	for range int(sequenceBits>>8) + 1 {
		r = r.next(started, AskedOut)
		if seen[r] || r.Asked() != AskedOut || r>>ownerShift != ownerOf(started)>>ownerShift {
			t.Fatalf("request %#x after %d others", r, len(seen))
		}
		seen[r] = true
	}
	if next := r.next(started, AskedOut); !seen[next] {
		t.Errorf("%#x: no sequence", next)
	}
	var s Slot
	s.StartedNs.Store(started)
	first := s.ask(started, AskedSuspend)
	if s.Answer(first, AnswerBusy); s.Request() != first {
		t.Errorf("request %#x, not %#x", s.Request(), first)
	}
	m := s.ReadMemory()
	if m == nil {
		t.Fatal("no answer is shown")
	}
	if answer, answered := m.AnswerTo(first); answer != AnswerBusy || !answered {
		t.Errorf("answer %d, %v", answer, answered)
	}
	if _, answered := m.AnswerTo(first.next(started, AskedSuspend)); answered {
		t.Error("an answer to the next request")
	}
	s.StartedNs.Store(started + 1<<10)
	if s.Request() != 0 {
		t.Error("obeyed by the next owner")
	}
}

// Each counter of block-level preemption is shown, at any value.
func TestEachCounterIsShown(t *testing.T) {
	var empty Slot
	if b := empty.ReadBLP(); b != nil {
		t.Errorf("of nothing: %+v", b)
	}
	for name, count := range map[string]func(s *Slot){
		"images":    func(s *Slot) { s.Kernels.Images.Store(1) },
		"seen":      func(s *Slot) { s.Kernels.Seen.Store(1) },
		"refused":   func(s *Slot) { s.Kernels.Refused[0].Store(1) },
		"launches":  func(s *Slot) { s.Stop.Launches.Store(1) },
		"uncovered": func(s *Slot) { s.Stop.Uncovered.Store(1) },
		"stops":     func(s *Slot) { s.Stop.Stops.Store(1) },
	} {
		var s Slot
		count(&s)
		if s.ReadBLP() == nil {
			t.Errorf("%s: not shown", name)
		}
	}
}

func TestOffsetsThatAreNone(t *testing.T) {
	for _, text := range []string{"monotonic 1 x\n", "monotonic 99999999999999999999 0\n", "monotonic 1 99999999999999999999\n", "x 1 1\n"} {
		if got := parseAhead(text); got != 0 {
			t.Errorf("%q: %d", text, got)
		}
	}
	if got := parseAhead("monotonic -5 0\n"); got != -5*int64(time.Second) {
		t.Errorf("%d", got)
	}
}

// Sockets whose path is too long are reached through the folder.
func TestAddressesThatAreLong(t *testing.T) {
	name := "0123456789"
	if got := address(7, "/d", name, 3).Name; got != "/d/0123456789.3" {
		t.Error(got)
	}
	long := string(slices.Repeat([]byte{'x'}, 95))
	if got := address(7, "/"+long[:93], name, 3).Name; got != "/"+long[:93]+"/0123456789.3" || len(got) != 107 {
		t.Errorf("%s: %d", got, len(got))
	}
	if got := address(7, "/"+long[:94], name, 3).Name; got != "/proc/thread-self/fd/7/0123456789.3" {
		t.Error(got)
	}
}
