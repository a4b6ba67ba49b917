package agent

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Members of a broker whose pages say anything.

const (
	lcSlot, ownSlot, liarSlot, otherSlot = 0, 1, 2, 3
	fuzzedAt                             = uint64(time.Hour) // on the clock of these tests
)

// noBroker answers nothing.
type noBroker struct{}

func (noBroker) Turn(bool, uint64, int, bool) {}
func (noBroker) Next() *segment.Segment       { return nil }
func (noBroker) Leave()                       {}
func (noBroker) Poke()                        {}

// amongMembers is an agent of a best-effort process in a segment by a broker, beside a latency-critical one and two more: one whose page is
// returned, and one that is honest.
func amongMembers(t testing.TB) (a *agent, liar page.Mapping, header *segment.Header) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	arena, err := segment.NewArena()
	must(err)
	show := func(place func(fd int) error) page.Mapping {
		t.Helper()
		fd, err := page.Make()
		must(err)
		view, err := page.Map(fd, true)
		must(err)
		if place != nil {
			must(place(fd))
		}
		unix.Close(fd)
		return view
	}
	common := show(arena.PlaceHeader)
	t.Cleanup(common.Unmap)
	pages := map[int]page.Mapping{}
	for _, slot := range []int{lcSlot, liarSlot, otherSlot} {
		view := show(func(fd int) error { return arena.Place(slot, fd) })
		t.Cleanup(view.Unmap)
		state := view.State()
		state.Mechanisms.Store(uint32(configs.Turns))
		state.HeartbeatNs.Store(fuzzedAt * 2)
		state.Job.Store(uint64(100 + slot))
		view.Line(slot).Busy.Store(1)
		pages[slot] = view
	}
	state, counters := show(nil), show(nil)
	must(arena.PlaceOwn(state.Take(), counters.Take()))
	header = common.Common()
	header.Members.Store(1<<lcSlot | 1<<ownSlot | 1<<liarSlot | 1<<otherSlot)
	for slot, level := range map[int]uint32{lcSlot: 0, ownSlot: lowestLevel, liarSlot: lowestLevel, otherSlot: lowestLevel} {
		header.Level[slot].Store(level)
		header.Client[slot].Store(uint64(slot + 1))
	}
	s := segment.NewPaged(arena, segment.GPU{UUID: [16]byte{1}}, "test", ownSlot, noBroker{})
	t.Cleanup(func() { arena.Free() })
	return &agent{core: coreOf(configs.Default(), lowestLevel), segment: s, slot: ownSlot}, pages[liarSlot], header
}

// A page that lies costs a higher level no more than a switch: others of its level keep timeslices no longer than that. However often the
// page changes, they set it a few times a second at most.
func TestPagesThatLie(t *testing.T) {
	const length, look = 10 * uint64(time.Second), uint64(500 * time.Microsecond)
	var random *rand.Rand
	for name, lie := range map[string]func(p *segment.State, now uint64){
		"all at random": func(*segment.State, uint64) {},
		"no turns now and then": func(p *segment.State, _ uint64) {
			p.Mechanisms.Store(random.Uint32N(2) * uint32(configs.Turns))
		},
		"stopped now and then": func(p *segment.State, now uint64) {
			p.HeartbeatNs.Store(now * uint64(random.Uint32N(2)))
		},
		"work now and then": func(p *segment.State, now uint64) {
			p.Mechanisms.Store(0)
			p.LineOf(liarSlot).Busy.Store(random.Uint32N(2))
		},
		"no turns": func(p *segment.State, _ uint64) { p.Mechanisms.Store(0) },
	} {
		random = rand.New(rand.NewPCG(1, 2)) // for each: maps have no order
		a, liar, header := amongMembers(t)
		if us := a.timeslice(a.peers(), true, a.doubts(a.peers(), fuzzedAt)); us != a.core.config.Timeslice.BEUs {
			t.Fatalf("beside honest ones: %d us", us)
		}
		is, sets := a.core.config.Timeslice.BEUs, 0
		for now := fuzzedAt; now < fuzzedAt+length; now += look {
			if name == "all at random" {
				for bytes, n := liar.Bytes(), 0; n < 64; n++ {
					bytes[random.IntN(len(bytes))] = byte(random.Uint32())
				}
			}
			lie(liar.State(), now)
			header.BrokerHeartbeatNs.Add(1) // it lives, and says who does, however long this takes
			p := a.peers()
			us := a.timeslice(p, true, a.doubts(p, now))
			if us > leastBoostUs {
				t.Fatalf("%s: %d us", name, us)
			}
			if us != is {
				is, sets = us, sets+1
			}
		}
		if most := 2 * int(length/doubtFor); sets > most {
			t.Errorf("%s: the timeslice was set %d times, want at most %d", name, sets, most)
		}
	}
}

// A turn that was seized, and that nobody else wants, is no reason for a longer timeslice for ever.
func TestSeizedTurnIsForgotten(t *testing.T) {
	a, _, header := amongMembers(t)
	header.Turn.Store(segment.NextTurn(0, ownSlot, true))
	header.TurnSinceNs.Store(fuzzedAt)
	for after, want := range map[uint64]uint64{0: leastBoostUs, seizedFor - 1: leastBoostUs, seizedFor + doubtFor + 1: a.core.config.Timeslice.BEUs} {
		a.doubtTo = 0
		if us := a.timeslice(a.peers(), true, a.doubts(a.peers(), fuzzedAt+after)); us != want {
			t.Errorf("%v later: %d us, want %d", time.Duration(after), us, want)
		}
	}
}

// A process at the next broker goes on as if its earlier peers were there, until as many have come, or for a second.
func TestOthersComeToTheNextBroker(t *testing.T) {
	a, _, header := amongMembers(t)
	all := header.Members.Load()
	a.before = a.peers()
	if left := a.rejoins(peers{}, fuzzedAt); left != 0 {
		t.Errorf("%v with the first broker", left)
	}
	a.rejoinTo = fuzzedAt + rejoinWithin
	for _, c := range []struct {
		members, after uint64
		left           time.Duration
	}{
		{1 << ownSlot, 0, time.Duration(rejoinWithin)},
		{1<<ownSlot | 1<<liarSlot | 1<<otherSlot, 1000, time.Duration(rejoinWithin - 1000)}, // without LC
		{1<<ownSlot | 1<<lcSlot | 1<<liarSlot, 2000, time.Duration(rejoinWithin - 2000)},
		{all, 3000, 0},
		{1 << ownSlot, 4000, 0}, // it ended
	} {
		header.Members.Store(c.members)
		if left := a.rejoins(a.peers(), fuzzedAt+c.after); left != c.left {
			t.Errorf("members %#x after %d ns: %v, want %v", c.members, c.after, left, c.left)
		}
	}
	a.rejoinTo = fuzzedAt + rejoinWithin
	header.Members.Store(1 << ownSlot)
	if left := a.rejoins(a.peers(), fuzzedAt+rejoinWithin); left != 0 {
		t.Errorf("%v after its time", left)
	}
}

// The agent goes by what the broker has seen, and not by what a page says.
func TestOthersThatWorkAreWaitedFor(t *testing.T) {
	a, liar, header := amongMembers(t)
	liar.State().Mechanisms.Store(0)
	header.BrokerHeartbeatNs.Store(1)
	header.Others.Store(1)
	if us := a.timeslice(a.peers(), true, a.doubts(a.peers(), fuzzedAt)); us != a.core.config.Timeslice.FairUs {
		t.Errorf("%d us beside one that works", us)
	}
}

// The order of turns does not depend on what a member says later.
func TestOrderOfMembersStays(t *testing.T) {
	a, liar, header := amongMembers(t)
	random := rand.New(rand.NewPCG(3, 4))
	liar.State().Job.Store(7)
	liar.State().StartedNs.Store(8)
	const rounds, wanted = 300, 1<<liarSlot | 1<<otherSlot
	var order []int
	for round := range uint64(rounds) {
		order = append(order, a.pick(wanted, round))
	}
	for round := range uint64(rounds) {
		liar.State().Job.Store(random.Uint64())
		liar.State().StartedNs.Store(random.Uint64())
		if got := a.pick(wanted, round); got != order[round] {
			t.Fatalf("round %d: slot %d, was %d", round, got, order[round])
		}
	}
	header.Client[liarSlot].Store(99) // the slot is another one's
	liar.State().Job.Store(9)
	if job, _ := a.claimOf(liarSlot); job != 9 {
		t.Errorf("job %d of another member", job)
	}
}

// A bell that is rung all the time makes an agent look so often, and no more; one that is rung now and then is always heard.
func TestBellsThatRingAllTheTime(t *testing.T) {
	const length, gap, bits = uint64(10 * time.Second), uint64(500 * time.Microsecond), 1<<liarSlot | 1<<otherSlot
	var h hearing
	looks, missed := 0, 0
	for now, step := fuzzedAt, uint64(0); now < fuzzedAt+length; now, step = now+gap, step+1 {
		deaf, until := h.deaf(now)
		if deaf&(1<<liarSlot) != 0 && (until <= 0 || until > time.Duration(hearEvery)) {
			t.Fatalf("listened to again in %v", until)
		}
		rang := uint64(1 << liarSlot)
		if step%20 == 0 { // every 10 ms
			rang = bits
			if deaf&(1<<otherSlot) != 0 {
				missed++
			}
		}
		if rang &^= deaf; rang&(1<<liarSlot) != 0 {
			looks++
		}
		h.heard(rang, now)
	}
	if most := hearAtOnce + int(length/hearEvery) + 2; looks > most || looks < most/2 || missed != 0 {
		t.Errorf("%d looks, want at most %d; %d bells of another one were not heard", looks, most, missed)
	}
}

// No page makes an agent do what it must not, whatever it says.
func FuzzPageOfAMember(f *testing.F) {
	a, liar, header := amongMembers(f)
	honest := append([]byte(nil), liar.Bytes()...)
	f.Add([]byte{})
	f.Add(honest[:64])
	f.Fuzz(func(t *testing.T, said []byte) {
		copy(liar.Bytes(), honest)
		copy(liar.Bytes(), said)
		copy(liar.Bytes()[unsafe.Offsetof(segment.State{}.Memory):], said)
		header.BrokerHeartbeatNs.Add(1) // it lives, and says who does, however long this takes
		p := a.peers()
		if p.higher != 1<<lcSlot || p.same != 1<<liarSlot|1<<otherSlot || p.lower|p.between|p.stoppable != 0 {
			t.Errorf("%+v", p)
		}
		if us := a.timeslice(p, true, a.doubts(p, fuzzedAt)); us > leastBoostUs {
			t.Errorf("%d us", us)
		}
		for round := range uint64(4) {
			if slot := a.pick(p.same, round); slot != liarSlot && slot != otherSlot {
				t.Errorf("slot %d has a turn", slot)
			}
		}
		v := a.view(memoryCounters{resident: 1 << 30}, fuzzedAt)
		v.total, v.free = 80<<30, 40<<30
		if plan := v.plan(); plan.wait < time.Millisecond || plan.give > 1<<30 || plan.to == ownSlot {
			t.Errorf("%+v", plan)
		}
	})
}
