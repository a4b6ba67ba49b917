package agent

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const refusedForGood = StatusError(0x1f)

var ownUUID, otherUUID = [16]byte{1}, [16]byte{2}

// testDevice is a GPU whose driver refuses what a test wants. TSGs are known by their handles.
type testDevice struct {
	list    []TSG
	off     map[uint32]bool
	us      map[uint32]uint64
	refuses func(what string, t TSG) error
	works   bool
	asks    bool // for a turn
	calls   int
	locked  bool
	joins   uint32
	preset  uint32 // of timeslices
}

func (d *testDevice) tsgs() []TSG { return slices.Clone(d.list) }

func (d *testDevice) may(what string, t TSG) error {
	d.calls++
	if d.refuses == nil {
		return nil
	}
	return d.refuses(what, t)
}

func (d *testDevice) uuid(t TSG) ([16]byte, error) {
	if t.client == 2 {
		return otherUUID, d.may("uuid", t)
	}
	return ownUUID, d.may("uuid", t)
}

func (d *testDevice) policy(t TSG) (uint32, error) { return d.preset, nil }

func (d *testDevice) setTimeslice(t TSG, us uint64) error {
	err := d.may("timeslice", t)
	if err == nil {
		d.us[t.handle] = us
	}
	return err
}

func (d *testDevice) schedule(t TSG, on bool) error {
	what := "suspend"
	if on {
		what = "resume"
	}
	err := d.may(what, t)
	if err == nil {
		d.off[t.handle] = !on
	}
	return err
}

func (d *testDevice) worked() bool  { return true }
func (d *testDevice) busy() bool    { return d.works }
func (d *testDevice) probe(on bool) { d.asks = on }
func (d *testDevice) joined() bool  { return !d.locked }

func (d *testDevice) rejoined() uint32 { return d.joins }

func (d *testDevice) count() (off int) {
	for _, is := range d.off {
		if is {
			off++
		}
	}
	return off
}

// refusesOne refuses something to the TSG of a handle.
func refusesOne(what string, handle uint32, err error) func(string, TSG) error {
	return func(asked string, t TSG) error {
		if asked == what && t.handle == handle {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}

const ownTSGs = 3 // handles 1 to 3, and one of another GPU

// withDevice is an agent of the lowest level with TSGs that have settled.
func withDevice(t *testing.T) (*agent, *testDevice) {
	t.Helper()
	s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: ownUUID}, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	slot, err := s.Claim(lowestLevel, "test")
	if err != nil {
		t.Fatal(err)
	}
	d := &testDevice{off: map[uint32]bool{}, us: map[uint32]uint64{}}
	for handle := range uint32(ownTSGs + 1) {
		d.list = append(d.list, TSG{client: 1, subdevice: 1, handle: handle + 1})
	}
	d.list[ownTSGs].client = 2
	return &agent{core: coreOf(configs.Default(), lowestLevel), device: d, whole: ownUUID, segment: s, slot: slot,
		uuids: map[birthKey][16]byte{}, sliceUs: map[tsgKey]uint64{}, probeAfter: firstProbe}, d
}

// A policy of timeslices is asked for as a TSG gets its first one, and others see that it is not in force.
func TestComputePolicy(t *testing.T) {
	a, d := withDevice(t)
	a.wantUs = leastBoostUs
	for _, c := range []struct {
		preset uint32
		anew   bool
		want   bool
	}{{0, true, false}, {3, false, false}, {3, true, true}, {0, true, false}} {
		d.preset, a.wantUs = c.preset, a.wantUs+1
		if c.anew {
			a.sliceUs = map[tsgKey]uint64{}
		}
		a.applyTimeslice()
		if got := a.own().Lacks(configs.FallbackPolicy); got != c.want || d.us[1] != a.wantUs {
			t.Errorf("%+v: %v, %d us", c, got, d.us[1])
		}
	}
}

func TestProcessLeavesTheRunlistWhole(t *testing.T) {
	a, d := withDevice(t)
	if !a.schedule(false) || d.count() != ownTSGs || d.off[ownTSGs+1] {
		t.Fatalf("off: %v", d.off)
	}
	if a.own().Suspended.Load() != 1 {
		t.Error("others do not see it")
	}
	calls := d.calls
	if !a.enforce() || d.calls != calls {
		t.Error("what is suspended is suspended again")
	}
	d.list[1].resets++ // libcuda scheduled some of its channels
	if !a.enforce() || d.calls != calls+1 || d.count() != ownTSGs {
		t.Errorf("after libcuda's control: %d controls, want 1", d.calls-calls)
	}
	if !a.schedule(true) || d.count() != 0 || a.own().Suspended.Load() != 0 {
		t.Errorf("it came back: %v", d.off)
	}
	calls = d.calls
	if !a.enforce() || d.calls != calls {
		t.Error("controls though nothing is suspended")
	}
}

// A TSG that the process makes when it is off the GPU is taken off once it has settled, and not before.
func TestYoungTSGsStay(t *testing.T) {
	a, d := withDevice(t)
	d.list[1].changedNs = segment.Now() + uint64(time.Hour)
	if !a.schedule(false) || d.off[2] || d.count() != ownTSGs-1 {
		t.Errorf("off: %v", d.off)
	}
	d.list[1].changedNs = 0
	if !a.enforce() || !d.off[2] {
		t.Errorf("it has settled: %v", d.off)
	}
	d.list[1].changedNs = segment.Now() + uint64(time.Hour) // libcuda changes something of it that schedules no channel
	if !a.enforce() || d.count() != ownTSGs {
		t.Errorf("one that was suspended came back: %v", d.off)
	}
}

// All other TSGs come back, whatever the driver refuses to suspend or to put back, and whichever TSG that is. That one comes back as soon
// as it may.
func TestPartialRefusalsLeaveNothingSuspended(t *testing.T) {
	for handle := uint32(1); handle <= ownTSGs; handle++ {
		for name, refused := range map[string]func(t *testing.T, a *agent, d *testDevice){
			"one of them is not suspended": func(t *testing.T, a *agent, d *testDevice) {
				d.refuses = refusesOne("suspend", handle, refusedForGood)
				if a.schedule(false) {
					t.Error("it says that the process is off")
				}
			},
			"one that libcuda scheduled is not suspended again": func(t *testing.T, a *agent, d *testDevice) {
				a.schedule(false)
				d.list[handle-1].resets++
				d.refuses = refusesOne("suspend", handle, refusedForGood)
				if a.enforce() {
					t.Error("it says that the process is off")
				}
			},
			"one does not come back at once": func(t *testing.T, a *agent, d *testDevice) {
				a.schedule(false)
				d.refuses = refusesOne("resume", handle, refusedForGood)
				if a.schedule(true) {
					t.Error("it says that all are back")
				}
			},
		} {
			t.Run(fmt.Sprintf("%s/%d", name, handle), func(t *testing.T) {
				a, d := withDevice(t)
				refused(t, a, d)
				if !a.noTurns || a.canTakeTurns() || configs.Fallback(a.own().Fallbacks.Load())&configs.FallbackSuspendRefused == 0 {
					t.Error("turns are taken though the driver refuses")
				}
				if a.off {
					a.schedule(true) // as step does where no turns are taken
				}
				d.refuses = nil
				if !a.enforce() || d.count() != 0 {
					t.Errorf("suspended for ever: %v", d.off)
				}
			})
		}
	}
}

// libcuda frees or makes something of a TSG: the control is repeated, whatever is wanted by then, for as long as that may take.
func TestRefusalsInPassing(t *testing.T) {
	passing := StatusError(NV_ERR_OBJECT_NOT_FOUND)
	a, d := withDevice(t)
	d.refuses = refusesOne("suspend", 2, passing)
	if !a.schedule(false) || d.count() != ownTSGs-1 || len(a.unsure) != 1 {
		t.Fatalf("off: %v, unsure: %v", d.off, a.unsure)
	}
	key := tsgKey{1, 2, 0}
	since := a.unsure[key]
	if !a.enforce() || a.unsure[key] != since || since == 0 {
		t.Errorf("the time begins anew: %d, then %d", since, a.unsure[key])
	}
	d.refuses = nil
	d.off[2] = true // some of its channels were suspended
	if !a.schedule(true) || d.count() != 0 || len(a.unsure) != 0 {
		t.Errorf("back: %v, unsure %v", d.off, a.unsure)
	}
	d.refuses = refusesOne("suspend", 2, passing)
	a.schedule(false)
	a.unsure[key] = segment.Now() - passingNs
	if a.enforce() || !a.noTurns {
		t.Error("it never gives up")
	}
	d.refuses = nil
	if !a.schedule(true) || d.count() != 0 {
		t.Errorf("back: %v", d.off)
	}

	// libcuda schedules others of its channels meanwhile.
	a, d = withDevice(t)
	d.refuses = refusesOne("suspend", 2, passing)
	a.schedule(false)
	d.refuses = nil
	d.off[2] = true
	d.list[1].resets++
	if !a.schedule(true) || d.count() != 0 {
		t.Errorf("back after libcuda's control: %v", d.off)
	}

	// That of another client, or another one of its own, tells nothing of a young one.
	a, d = withDevice(t)
	d.list[0].changedNs = segment.Now() + uint64(time.Hour)
	d.list[1].client, d.list[1].subdevice = 3, 3 // of the same GPU
	d.list[1].handle, d.off = 1, map[uint32]bool{}
	a.schedule(false)
	calls := d.calls
	if !a.enforce() || d.calls != calls {
		t.Errorf("%d controls though nothing has changed", d.calls-calls)
	}

	// One that was freed is no refusal.
	a, d = withDevice(t)
	d.refuses = func(what string, t TSG) error {
		if what == "suspend" && t.handle == 3 {
			d.list = d.list[:2]
			return refusedForGood
		}
		return nil
	}
	if !a.schedule(false) || a.noTurns || d.count() != 2 {
		t.Errorf("off: %v, refused: %v", d.off, a.noTurns)
	}
	// Nor where another client has one of the same handle.
	a, d = withDevice(t)
	d.list[ownTSGs].handle = 3
	d.refuses = func(what string, t TSG) error {
		if what == "suspend" && t.handle == 3 {
			d.list = slices.Delete(d.list, 2, 3)
			return refusedForGood
		}
		return nil
	}
	if !a.schedule(false) || a.noTurns || d.count() != 2 {
		t.Errorf("off: %v, refused: %v", d.off, a.noTurns)
	}
}

// The agent asks once more at each look, however often the driver refuses: suspended TSGs must come back. The log says so once.
func TestRefusalIsToldOnce(t *testing.T) {
	a, d := withDevice(t)
	var said bytes.Buffer
	a.log = zerolog.New(&said)
	a.schedule(false)
	d.refuses = refusesOne("resume", 2, refusedForGood)
	for range 5 {
		if a.schedule(true) {
			t.Error("it says that all are back")
		}
	}
	if lines := strings.Count(said.String(), "\n"); lines != 1 {
		t.Errorf("%d lines:\n%s", lines, said.String())
	}
	if calls := d.calls; a.enforce() || d.calls == calls {
		t.Error("it is not asked again")
	}
}

func TestTimeslicesThatAreRefused(t *testing.T) {
	set := func(a *agent, us uint64) { a.wantUs = us; a.applyTimeslice() }
	a, d := withDevice(t)
	set(a, 300)
	if d.us[1] != 300 || d.us[3] != 300 || d.us[ownTSGs+1] != 0 || a.own().TimesliceUs.Load() != 300 || a.own().TimesliceSets.Load() != ownTSGs {
		t.Errorf("set: %v, told: %d", d.us, a.own().TimesliceUs.Load())
	}
	calls := d.calls
	set(a, 300)
	if d.calls != calls {
		t.Error("set again though nothing has changed")
	}
	set(a, 1) // contexts of one process run beside each other
	if d.us[2] != leastBoostUs {
		t.Errorf("of three TSGs: %v", d.us)
	}
	d.refuses = refusesOne("timeslice", 2, StatusError(NV_ERR_INVALID_CHANNEL))
	set(a, 400)
	if a.refused || d.us[1] != 400 || d.us[3] != 400 || a.own().TimesliceUs.Load() != 400 {
		t.Errorf("refused in passing: %v", d.us)
	}
	d.refuses = nil
	set(a, 400)
	if d.us[2] != 400 {
		t.Errorf("not set later: %v", d.us)
	}
	d.refuses = refusesOne("timeslice", 2, StatusError(NV_ERR_INVALID_CHANNEL))
	set(a, 100)
	if a.own().TimesliceUs.Load() != 400 {
		t.Errorf("others take %d us for the longest timeslice, and one has 400", a.own().TimesliceUs.Load())
	}
	d.refuses = refusesOne("timeslice", 1, refusedForGood)
	set(a, 200)
	if !a.refused || a.canSetTimeslices() || a.canTakeTurns() || configs.Fallback(a.own().Fallbacks.Load())&configs.FallbackControlRefused == 0 {
		t.Error("the refusal is not told")
	}
	calls = d.calls
	set(a, 500)
	if d.calls != calls {
		t.Error("asked again after a refusal")
	}

	for _, what := range []string{"timeslice", "uuid"} { // one that was freed is no refusal
		a, d = withDevice(t)
		d.refuses = func(asked string, t TSG) error {
			if asked == what && t.handle == 2 {
				d.list = slices.Delete(d.list, 1, 2)
				return refusedForGood
			}
			return nil
		}
		d.list[1].subdevice = 9
		set(a, 300)
		if a.refused || d.us[1] != 300 || d.us[3] != 300 {
			t.Errorf("%s of one that was freed: %v, refused: %v", what, d.us, a.refused)
		}
	}

	a, d = withDevice(t)
	d.list = nil
	set(a, 300)
	if a.canSetTimeslices() || configs.Fallback(a.own().Fallbacks.Load())&configs.FallbackNoTSG == 0 {
		t.Error("without a TSG a timeslice is in force")
	}
	a, d = withDevice(t)
	d.refuses = refusesOne("uuid", 1, refusedForGood)
	set(a, 300)
	if !a.refused {
		t.Error("whose TSG it is cannot be asked, and timeslices are in force")
	}
	a, d = withDevice(t)
	d.refuses = refusesOne("uuid", 1, StatusError(NV_ERR_INVALID_OBJECT_HANDLE))
	set(a, 300)
	if a.refused || d.us[1] != 0 || d.us[2] != 300 {
		t.Errorf("a TSG that goes: %v", d.us)
	}
}

const peerSlot = 40

// inTurns is an agent beside another process of its level that has work and takes turns.
func inTurns(t *testing.T) (a *agent, d *testDevice, p peers, quantum uint64) {
	t.Helper()
	a, d = withDevice(t)
	s := a.segment.Slot(peerSlot)
	s.Mechanisms.Store(uint32(configs.Turns))
	s.HeartbeatNs.Store(1 << 62)
	s.Job.Store(7)
	a.own().Job.Store(8)
	a.segment.Line(peerSlot).Busy.Store(1)
	a.segment.Members.Or(1 << peerSlot)
	a.segment.Level[peerSlot].Store(lowestLevel)
	a.wantUs = 100
	return a, d, peers{same: 1 << peerSlot}, a.quantumMs() * uint64(time.Millisecond)
}

func owner(a *agent) (slot int, owned, seized bool) {
	turn := a.segment.Turn.Load()
	slot, owned = segment.TurnOwner(turn)
	return slot, owned, turn&segment.TurnSeized != 0
}

// A process that wants a turn takes one that is free, and leaves the runlist where it is another's.
func TestTurnIsTaken(t *testing.T) {
	const now = uint64(1e12)
	a, d, p, quantum := inTurns(t)
	a.turn(p, now, false)
	if _, owned, _ := owner(a); owned || d.count() != ownTSGs {
		t.Errorf("without work: owned %v, off %v", owned, d.off)
	}
	d.works = true
	if wait := a.turn(p, now, false); uint64(wait) != quantum {
		t.Errorf("it looks again after %v", wait)
	}
	if slot, _, seized := owner(a); slot != a.slot || seized || d.count() != 0 {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
	a.turn(p, segment.Now(), false)
	a.turn(p, segment.Now(), false)
	if n := a.own().Turns.Load(); n != 1 {
		t.Errorf("%d turns, want 1", n)
	}
	a, d, p, _ = inTurns(t)
	d.works = true
	a.segment.MoveTurn(false, 0, peerSlot+1, false, now) // of a slot that nobody has
	a.turn(p, now, false)
	if slot, _, _ := owner(a); slot != a.slot {
		t.Errorf("slot %d", slot)
	}
}

// A process that may not run now leaves the turn to one that may, or keeps it, off the runlist, until somebody can use it.
func TestCappedProcessesHaveNoTurns(t *testing.T) {
	const now = uint64(1e12)
	a, d, p, _ := inTurns(t)
	d.works = true
	a.turn(p, now, true)
	if _, owned, _ := owner(a); owned || d.count() != ownTSGs {
		t.Errorf("a free turn: owned %v, off %v", owned, d.off)
	}
	a.take(a.segment.Turn.Load(), false)
	a.segment.Slot(peerSlot).Capped.Store(1)
	if wait := a.turn(p, now, true); wait != heartbeat || d.count() != ownTSGs {
		t.Errorf("it looks again after %v, off %v", wait, d.off)
	}
	if slot, owned, _ := owner(a); !owned || slot != a.slot {
		t.Errorf("handed to slot %d, which may not run either", slot)
	}
	a.turn(p, now, false)
	if slot, _, _ := owner(a); slot != a.slot || d.count() != 0 {
		t.Errorf("it may run again: slot %d, off %v", slot, d.off)
	}
	a.segment.Slot(peerSlot).Capped.Store(0)
	a.turn(p, now, true)
	if slot, _, _ := owner(a); slot != peerSlot || d.count() != ownTSGs {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
}

// A process that is kept off asks for no turn, and tells the others when that begins and ends.
func TestCappedIsTold(t *testing.T) {
	a, d, p, _ := inTurns(t)
	a.probed, d.asks = 7, true
	rings := func() uint32 { return a.segment.Rings.Bell.Load() }
	for _, on := range []bool{true, true, false, false} {
		before, was := rings(), a.caps.on
		if a.setCapped(p, on) != on || a.own().Capped.Load() != uint32(bit(on)) || (rings() != before) != (on != was) {
			t.Errorf("%v after %v: told %d, %d rings", on, was, a.own().Capped.Load(), rings()-before)
		}
	}
	if a.probed != 0 || d.asks {
		t.Error("it still asks for a turn")
	}
}

// handsOn is an agent that has had the turn for so long that it is another's. The time is such that the order says so.
func handsOn(t *testing.T) (a *agent, d *testDevice, p peers, now uint64) {
	t.Helper()
	a, d, p, quantum := inTurns(t)
	d.works = true
	for now = 1e12; a.pick(p.same|1<<a.slot, now/quantum) == a.slot; now += quantum {
	}
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now-3*quantum)
	return a, d, p, now
}

func TestTurnIsHandedOn(t *testing.T) {
	a, d, p, now := handsOn(t)
	a.turn(p, now, false)
	if slot, owned, _ := owner(a); !owned || slot != peerSlot || d.count() != ownTSGs {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
	if ns := a.own().TurnNs.Load(); ns == 0 {
		t.Error("its time is not counted")
	}
	// No other process wants it.
	a, d, p, now = handsOn(t)
	a.segment.Line(peerSlot).Busy.Store(0)
	a.turn(p, now, false)
	if slot, _, _ := owner(a); slot != a.slot || d.count() != 0 {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
	// A process that wants it would not give it back.
	a, d, p, now = handsOn(t)
	a.segment.Slot(peerSlot).HeartbeatNs.Store(now - 4*uint64(heartbeat))
	a.turn(p, now, false)
	if slot, _, _ := owner(a); slot != a.slot || d.count() != 0 {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
	// A higher level's request is under way: a while later.
	a, d, p, now = handsOn(t)
	p.higher = 1 << 50
	a.segment.Line(50).WindowOpenedNs.Store(1)
	if wait := a.turn(p, now, false); wait != windowPoll || d.count() != 0 {
		t.Errorf("it looks again after %v, off %v", wait, d.off)
	}
	// But no longer than for another turn.
	a.turn(p, now+a.quantumMs()*uint64(time.Millisecond), false)
	if slot, _, _ := owner(a); slot != peerSlot || d.count() != ownTSGs {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
}

// A turn lasts until the round is over in which it began, and on where the next one is its own too.
func TestTurnLasts(t *testing.T) {
	a, d, p, now := handsOn(t)
	quantum := a.quantumMs() * uint64(time.Millisecond)
	now -= now % quantum
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now)
	if wait := a.turn(p, now+1, false); uint64(wait) != quantum-1 || d.count() != 0 {
		t.Errorf("in its round it looks again after %v, off %v", wait, d.off)
	}
	for a.pick(p.same|1<<a.slot, now/quantum) != a.slot {
		now += quantum
	}
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now-3*quantum)
	if wait := a.turn(p, now+1, false); uint64(wait) != quantum-1 || d.count() != 0 || a.due != 0 {
		t.Errorf("in another one of its own it looks again after %v, off %v", wait, d.off)
	}
}

// A turn that lasted longer, for a window's sake, goes to the process that should have had it next.
func TestTurnGoesToTheOneThatWaits(t *testing.T) {
	const another = peerSlot + 1
	a, _, p, now := handsOn(t)
	quantum := a.quantumMs() * uint64(time.Millisecond)
	s := a.segment.Slot(another)
	s.Mechanisms.Store(uint32(configs.Turns))
	s.HeartbeatNs.Store(1 << 62)
	s.Job.Store(9)
	a.segment.Line(another).Busy.Store(1)
	a.segment.Members.Or(1 << another)
	a.segment.Level[another].Store(lowestLevel)
	p.same |= 1 << another
	p.higher = 1 << 50
	a.segment.Line(50).WindowOpenedNs.Store(1)
	var next int
	for {
		next = a.pick(p.same|1<<a.slot, now/quantum)
		if next != a.slot && a.pick(p.same, now/quantum+1) != next {
			break
		}
		now += quantum
	}
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now-3*quantum)
	a.turn(p, now, false)
	a.turn(p, now+quantum, false)
	if slot, _, _ := owner(a); slot != next {
		t.Errorf("slot %d, want %d", slot, next)
	}
}

// Of two that take a free turn one has it: the other one looks again soon, and stays off the GPU.
func TestTurnIsTakenOnce(t *testing.T) {
	a, d, p, _ := inTurns(t)
	free := a.segment.Turn.Load()
	a.turn(p, segment.Now(), false)
	a.segment.MoveTurn(false, free, peerSlot, false, segment.Now())
	if wait := a.take(free, false); wait != time.Millisecond || d.count() != ownTSGs {
		t.Errorf("it looks again after %v, off %v", wait, d.off)
	}
	if slot, _, _ := owner(a); slot != peerSlot {
		t.Errorf("slot %d", slot)
	}
}

// Where the driver does not let this process off the GPU the turn is nobody's: others are not made to wait for it.
func TestTurnOfOneThatCannotLeave(t *testing.T) {
	a, d, p, now := handsOn(t)
	d.refuses = refusesOne("suspend", 2, refusedForGood)
	if wait := a.turn(p, now, false); wait != heartbeat {
		t.Errorf("it looks again after %v", wait)
	}
	if slot, owned, _ := owner(a); owned {
		t.Errorf("the turn is of slot %d", slot)
	}
	if a.canTakeTurns() {
		t.Error("it takes part in turns")
	}
}

// Nor does one take it that the driver does not let back.
func TestTurnOfOneThatCannotComeBack(t *testing.T) {
	a, d, p, now := handsOn(t)
	a.segment.MoveTurn(false, a.segment.Turn.Load(), peerSlot, false, now)
	a.turn(p, now, false)
	if d.count() != ownTSGs {
		t.Fatalf("off: %v", d.off)
	}
	d.refuses = refusesOne("resume", 2, refusedForGood)
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now)
	if wait := a.turn(p, now, false); wait != heartbeat || a.canTakeTurns() {
		t.Errorf("it looks again after %v", wait)
	}
	d.refuses = nil
	if a.enforce(); d.count() != 0 {
		t.Errorf("suspended for ever: %v", d.off)
	}
}

// A process whose turn was over as another one seized it has a whole one next time.
func TestTurnAfterOneThatWasSeized(t *testing.T) {
	a, _, p, now := handsOn(t)
	p.higher = 1 << 50
	a.segment.Line(50).WindowOpenedNs.Store(1) // it keeps the turn for a while
	if a.turn(p, now, false); a.due != now {
		t.Fatalf("due at %d, want %d", a.due, now)
	}
	a.segment.MoveTurn(false, a.segment.Turn.Load(), peerSlot, true, now)
	a.turn(p, now, false)
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now)
	if a.turn(p, now, false); a.due != 0 {
		t.Error("its turn is over as it begins")
	}
}

// An owner may keep a turn that nobody wants. It is late only from when somebody wants it.
func TestTurnIsSeizedOnlyFromOneThatIsLate(t *testing.T) {
	a, d, p, quantum := inTurns(t)
	now, late := segment.Now(), 3*quantum+uint64(seizeAfter)
	a.probeAfter = 1 << 62
	a.segment.MoveTurn(false, 0, peerSlot, false, now-100*late)
	for range 3 { // it has no work
		if wait := a.turn(p, now, false); wait != heartbeat {
			t.Errorf("it looks again after %v", wait)
		}
		now += late
	}
	d.works = true
	now -= late // the last look at which it wanted none
	if wait := uint64(a.turn(p, now+1, false)); wait != late+uint64(time.Millisecond)-1 {
		t.Errorf("it looks again after %v, late is %v", time.Duration(wait), time.Duration(late))
	}
	if slot, _, _ := owner(a); slot != peerSlot || d.count() != ownTSGs {
		t.Errorf("slot %d, off %v", slot, d.off)
	}
	now += late
	a.segment.MoveTurn(false, a.segment.Turn.Load(), peerSlot, false, now-100*late) // another turn, of the same process
	a.turn(p, now, false)
	if slot, _, _ := owner(a); slot != peerSlot {
		t.Error("a new turn counts as the old one")
	}
	a.turn(p, now+late, false)
	if slot, _, _ := owner(a); slot != peerSlot {
		t.Error("seized before it was late")
	}
	a.turn(p, now+late+1, false)
	if slot, _, seized := owner(a); slot != a.slot || !seized || d.count() != 0 {
		t.Errorf("slot %d, seized %v, off %v", slot, seized, d.off)
	}
	if d.us[1] != a.core.config.Timeslice.FairUs {
		t.Errorf("beside one that may be on the runlist: %v", d.us)
	}
	a.turn(p, segment.Now(), false)
	if n := a.own().TurnsSeized.Load(); n != 1 {
		t.Errorf("%d seized turns, want 1", n)
	}
}

// A process that is off the GPU for long asks for a turn though no work is known.
func TestTurnWithoutKnownWork(t *testing.T) {
	a, d, p, _ := inTurns(t)
	now := segment.Now()
	a.segment.MoveTurn(false, 0, peerSlot, false, now)
	a.turn(p, now, false)
	if d.asks || d.count() != ownTSGs {
		t.Fatalf("asks %v, off %v", d.asks, d.off)
	}
	now = a.offSince + firstProbe + 1
	a.segment.MoveTurn(false, a.segment.Turn.Load(), peerSlot, false, now)
	a.turn(p, now, false)
	if !d.asks {
		t.Error("it does not ask")
	}
	a.segment.MoveTurn(false, a.segment.Turn.Load(), a.slot, false, now)
	if wait := a.turn(p, now, false); uint64(wait) != probeFor || d.count() != 0 {
		t.Errorf("in its turn: it looks again after %v, off %v", wait, d.off)
	}
	a.turn(p, a.offSince+probeFor+1, false)
	if d.asks || a.probeAfter != 2*firstProbe {
		t.Errorf("asks %v, and again after %v", d.asks, time.Duration(a.probeAfter))
	}
}
