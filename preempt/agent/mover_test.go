package agent

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const gigabyte = uint64(1) << 30

// hardware is a memory that moves when the test says so.
type hardware struct {
	mutex   sync.Mutex
	carried []move
	granted []uint64
	hurried int
	cuts    []bool
	results chan moveResult
	rung    chan int
}

func newHardware() (h *hardware, m *mover) {
	h = &hardware{results: make(chan moveResult, 16), rung: make(chan int, 16*maxGPUs)}
	m = newMover(func(x move) moveResult {
		h.mutex.Lock()
		h.carried = append(h.carried, x)
		h.mutex.Unlock()
		return <-h.results
	}, func(_ int, upto uint64) { h.granted = append(h.granted, upto) }, func(int) { h.hurried++ }, func(gpu int) { h.rung <- gpu },
		func(on bool) { h.cuts = append(h.cuts, on) })
	go m.run()
	return h, m
}

func (h *hardware) moves() []move {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return slices.Clone(h.carried)
}

// ends waits until a move is over that tells nobody.
func ends(t *testing.T, m *mover) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		m.mutex.Lock()
		busy := m.busy
		m.mutex.Unlock()
		if !busy {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the move does not end")
		}
	}
}

func TestMoverCarriesOneMoveOut(t *testing.T) {
	h, m := newHardware()
	if !m.begin(move{gpu: 1, kind: moveOut, bytes: 5}) || m.begin(move{gpu: 0, kind: moveIn}) {
		t.Fatal("it does not carry out one move, or two at once")
	}
	if x, moving := m.moving(1); !moving || x.bytes != 5 {
		t.Errorf("it moves %+v, %t", x, moving)
	}
	if _, moving := m.moving(0); moving || m.take(1) != nil {
		t.Error("it moves on another GPU, or is done")
	}
	h.results <- movedBusy
	for gpu := range maxGPUs {
		if <-h.rung != gpu {
			t.Error("an agent hears nothing")
		}
	}
	if m.begin(move{gpu: 1, kind: moveIn}) {
		t.Error("a move begins though nobody has seen the last one's end")
	}
	if e := m.take(1); e == nil || e.result != movedBusy || e.bytes != 5 || m.take(1) != nil {
		t.Errorf("it ended as %+v", e)
	}
	h.results <- movedNoHost
	if !m.begin(move{gpu: 2, kind: movePin}) {
		t.Error("no further move begins")
	}
	ends(t, m)
	for _, want := range []bool{true, false} {
		if refused, less := m.pinRefused(2); refused != want || less {
			t.Errorf("pinning was refused: %t, cut short: %t", refused, less)
		}
	}
	if m.take(2) != nil || len(h.rung) != 0 {
		t.Error("pinning tells too much")
	}
}

// A move cuts the pinning of host memory, and giving it back, short; the agents are rung then to begin the move. More pinning does not.
func TestPinningMakesWay(t *testing.T) {
	for _, kind := range []moveKind{movePin, moveUnpin} {
		h, m := newHardware()
		m.begin(move{gpu: 2, kind: kind})
		if m.begin(move{gpu: 1, kind: movePin}) || len(h.cuts) != 0 {
			t.Errorf("%v: more of it cuts it short: %v", kind, h.cuts)
		}
		for range 2 {
			if m.begin(move{gpu: 1, kind: moveOut}) || !slices.Equal(h.cuts, []bool{true}) {
				t.Errorf("%v: a move cuts it short: %v", kind, h.cuts)
			}
		}
		h.results <- movedNoHost
		for gpu := range maxGPUs {
			if <-h.rung != gpu {
				t.Error("an agent hears nothing")
			}
		}
		refused, less := m.pinRefused(2)
		if !slices.Equal(h.cuts, []bool{true, false}) || refused || !less || m.take(2) != nil {
			t.Errorf("%v: its end: %v, refused: %t, cut short: %t", kind, h.cuts, refused, less)
		}
		h.results <- moved
		if !m.begin(move{gpu: 1, kind: moveOut}) || m.begin(move{gpu: 1, kind: moveIn}) {
			t.Error("the move does not begin")
		}
		ends(t, m)
		if len(h.cuts) != 2 {
			t.Errorf("a move is cut short: %v", h.cuts)
		}
	}
}

// An agent begins a move although host memory is being pinned, or given back, and nothing else.
func TestAgentCutsPinningShort(t *testing.T) {
	for _, kind := range []moveKind{movePin, moveUnpin, moveIn} {
		a, h := newMemoryAgent(t, lowestLevel)
		m, c := a.core.memory.mover, memoryCounters{resident: gigabyte}
		m.begin(move{gpu: a.gpu, kind: kind})
		a.begin(memoryPlan{to: -1}, c, &memoryView{}, 1e12)
		if len(h.cuts) != 0 {
			t.Errorf("%v: it is cut short for nothing", kind)
		}
		if a.begin(memoryPlan{give: 1, to: -1}, c, &memoryView{}, 1e12); slices.Equal(h.cuts, []bool{true}) != (kind != moveIn) {
			t.Errorf("%v: %v", kind, h.cuts)
		}
		h.results <- moved
		ends(t, m)
	}
}

// A move in goes on as far as there is room, stops where there is none any more, and lets memory of another GPU leave.
func TestMoveInGoesOn(t *testing.T) {
	a, h := newMemoryAgent(t, lowestLevel)
	m, c := a.core.memory.mover, memoryCounters{swapped: 3 * gigabyte, takenBytes: 5 * gigabyte}
	grant := func(room uint64) uint64 {
		h.granted = nil
		a.begin(memoryPlan{room: room, to: -1}, c, &memoryView{}, 1e12)
		if len(h.granted) != 1 {
			t.Fatalf("granted was %d", h.granted)
		}
		return h.granted[0]
	}
	if a.begin(memoryPlan{bring: gigabyte, to: -1}, c, &memoryView{}, 1e12); len(h.granted) != 0 {
		t.Errorf("granted was %d before it moved", h.granted)
	}
	if got := grant(2 * gigabyte); got != 7*gigabyte {
		t.Errorf("it comes in up to %d", got)
	}
	if got := grant(0); got != c.takenBytes {
		t.Errorf("with no room any more it comes in up to %d", got)
	}
	if m.begin(move{gpu: 1, kind: moveIn}) || grant(gigabyte) != 6*gigabyte {
		t.Error("it stops for memory of another GPU that comes in, too")
	}
	if m.begin(move{gpu: 1, kind: moveOut}) || grant(gigabyte) != c.takenBytes {
		t.Error("it goes on though memory of another GPU is to leave")
	}
	h.results <- movedNoRoom
	ends(t, m)
	h.granted = nil
	if m.bring(a.gpu, 0, gigabyte); len(h.granted) != 0 || !m.begin(move{gpu: 1, kind: moveOut}) {
		t.Error("it still moves")
	}
	m.bring(1, 0, gigabyte)
	h.results <- moved
	ends(t, m)
	a.ended(m.take(a.gpu), c, 1e12)
	if m.take(1) == nil || len(h.granted) != 0 {
		t.Errorf("what leaves is granted %d", h.granted)
	}
	if !m.begin(move{gpu: a.gpu, kind: moveIn}) || grant(gigabyte) != 6*gigabyte {
		t.Error("it stops for what has left")
	}
	h.results <- moved
	ends(t, m)
}

// Memory that comes to the lowest level leaves the bus to higher ones, also where these wait for memory: they do not wait for that move.
func TestOnlyHigherLevelsComeInUrgently(t *testing.T) {
	for _, level := range []int{lowestLevel, lowestLevel - 1, 0} {
		a, h := newMemoryAgent(t, level)
		h.results <- moved
		a.begin(memoryPlan{bring: gigabyte, room: gigabyte, urgent: true, to: -1}, memoryCounters{swapped: gigabyte}, &memoryView{}, 1e12)
		ends(t, a.core.memory.mover)
		if got := h.moves(); len(got) != 1 || got[0].kind != moveIn || got[0].urgent != (level != lowestLevel) {
			t.Errorf("level %d: %+v", level, got)
		}
	}
}

// A move out becomes urgent when a higher level comes to wait for it; a move in never does.
func TestMoveOutBecomesUrgent(t *testing.T) {
	for _, kind := range []moveKind{moveOut, moveIn} {
		a, h := newMemoryAgent(t, lowestLevel)
		m := a.core.memory.mover
		if !m.begin(move{gpu: a.gpu, kind: kind, bytes: gigabyte}) {
			t.Fatal("no move begins")
		}
		for urgent, want := range []int{0, 1} {
			a.begin(memoryPlan{urgent: urgent != 0, to: -1}, memoryCounters{}, &memoryView{}, 1e12)
			if kind == moveIn {
				want = 0
			}
			if h.hurried != want {
				t.Errorf("%v, urgent %d: it was hurried %d times", kind, urgent, h.hurried)
			}
		}
		h.results <- moved
		ends(t, m)
		if m.hurry(a.gpu); kind == moveOut && h.hurried != 1 {
			t.Error("it is hurried though it has ended")
		}
	}
}

// Memory that has come since the driver was asked is not free any more.
func TestOldAnswerOfTheDriver(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	answers := make(chan measured, 1)
	a.memory.meter = newMeter(func() measured { return <-answers }, func() {})
	v := &memoryView{own: a.slot, now: 1e12, all: []memoryOf{{slot: a.slot, level: lowestLevel, swaps: true, swapped: 9 * gigabyte}}}
	answers <- measured{10 * gigabyte, 80 * gigabyte, true, 4 * gigabyte, 0}
	for deadline := time.Now().Add(time.Minute); !a.memory.known && time.Now().Before(deadline); {
		a.measure(v, memoryCounters{takenBytes: 3 * gigabyte})
	}
	if v.free != 10*gigabyte {
		t.Errorf("%d are free", v.free)
	}
	if a.measure(v, memoryCounters{takenBytes: 6 * gigabyte}); v.free != 8*gigabyte {
		t.Errorf("%d are free after 2 GiB have come", v.free)
	}
	close(answers)
}

// A driver that does not answer keeps no agent, and none waits twice for an answer. One that comes late rings.
func TestMeterWaitsForNobody(t *testing.T) {
	answers, rings := make(chan measured), make(chan struct{})
	m := newMeter(func() measured { return <-answers }, func() { rings <- struct{}{} })
	for _, patience := range []time.Duration{time.Millisecond, time.Hour} {
		if last, fresh := m.read(patience); fresh || last.known {
			t.Fatalf("it says %+v though the driver says nothing", last)
		}
	}
	answers <- measured{1, 2, true, 3, 4}
	<-rings
	if last, fresh := m.read(time.Hour); !fresh || last != (measured{1, 2, true, 3, 4}) {
		t.Errorf("it says %+v, %t", last, fresh)
	}
	if last, fresh := m.read(time.Millisecond); fresh || last != (measured{1, 2, true, 3, 4}) {
		t.Errorf("it does not say what was last: %+v", last)
	}
	go func() { answers <- measured{5, 2, true, 3, 4} }()
	<-rings
	m.read(time.Hour)
	for free := uint64(6); free < 8; free++ { // a ring for an answer that was waited for would keep the second one
		go func() { answers <- measured{free, 2, true, 3, 4} }()
		if last, fresh := m.read(time.Hour); !fresh || last.free != free {
			t.Errorf("it says %+v, %t", last, fresh)
		}
	}
}

// While an answer is late the agent looks for it at each step, without waiting: it is rung for.
func TestLateAnswerIsLookedFor(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	answers, rings := make(chan measured), make(chan struct{})
	a.memory.meter = newMeter(func() measured { return <-answers }, func() { rings <- struct{}{} })
	v := &memoryView{own: a.slot, now: 1e12, all: []memoryOf{{slot: a.slot, level: lowestLevel, swaps: true}}}
	a.measure(v, memoryCounters{})
	answers <- measured{10 * gigabyte, 80 * gigabyte, true, 0, 0}
	<-rings
	if a.measure(v, memoryCounters{}); !a.memory.known || v.free != 10*gigabyte {
		t.Errorf("known %t, %d are free", a.memory.known, v.free)
	}
	if a.needsMeasuring(v, memoryCounters{}) {
		t.Error("the driver is asked again at once")
	}
}

// A process of a higher level asks the driver where its program asks.
func TestQuestionOfTheProgram(t *testing.T) {
	for _, level := range []int{0, lowestLevel} {
		a, _ := newMemoryAgent(t, level)
		a.memory.measuredNs = 1e12
		v := &memoryView{own: a.slot, now: 1e12, all: []memoryOf{{slot: a.slot, level: level, swaps: true}}}
		for asking, want := range []bool{false, true} {
			if got := a.needsMeasuring(v, memoryCounters{asking: uint64(asking)}); got != want {
				t.Errorf("level %d, %d ask: %t", level, asking, got)
			}
		}
	}
}

func newMemoryAgent(t *testing.T, level int) (a *agent, h *hardware) {
	t.Helper()
	s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	h, m := newHardware()
	slot, err := s.Claim(level, "test")
	if err != nil {
		t.Fatal(err)
	}
	a = &agent{core: coreOf(configs.Default(), level), segment: s, slot: slot}
	a.core.memory = &swapping{moves: true, mover: m}
	a.memory.toldMost, a.memory.total = math.MaxUint64, 80*gigabyte
	return a, h
}

// An agent keeps since when calls wait for memory, since when they claim room, and since when the process is idle, while that lasts.
// A claim that a call makes anew at once is the same one.
func TestDemandIsNoted(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	m := &a.memory
	const start, over = uint64(1e12), 3 * againLater
	waits, claims, makes := memoryCounters{waiting: 1}, memoryCounters{wanted: gigabyte}, memoryCounters{making: gigabyte}
	for i, step := range []struct {
		at                uint64 // since the start, as all times here; 0: not
		c                 memoryCounters
		suspended         bool
		waits, room, idle uint64
	}{
		{10, memoryCounters{}, false, 0, 0, 10},
		{20, memoryCounters{}, false, 0, 0, 10},
		{30, waits, false, 30, 0, 0},
		{40, waits, false, 30, 0, 0},
		{50, memoryCounters{}, false, 0, 0, 50},
		{60, claims, false, 60, 60, 0},
		{70, claims, true, 0, 60, 70},
		{80, makes, false, 80, 60, 0},
		{80 + over, memoryCounters{}, false, 0, 60, 80 + over},
		{81 + over, memoryCounters{}, false, 0, 0, 80 + over},
		{90 + over, makes, false, 90 + over, 90 + over, 0},
		{100 + over, memoryCounters{swapped: 1}, false, 0, 90 + over, 100 + over},
	} {
		since := func(ns uint64) uint64 {
			if ns == 0 {
				return 0
			}
			return ns - start
		}
		m.suspended = step.suspended
		a.noteDemand(step.c, start+step.at)
		if since(m.waitsNs) != step.waits || since(m.roomNs) != step.room || since(m.idleNs) != step.idle {
			t.Errorf("%d: it waits since %d, claims since %d, is idle since %d; want %+v", i, since(m.waitsNs), since(m.roomNs), since(m.idleNs), step)
		}
	}
	// A hint wants what is out back, until it is.
	a.core.memory.recalls.Add(1)
	for i, step := range []struct {
		c    memoryCounters
		want bool
	}{{memoryCounters{swapped: 1}, true}, {memoryCounters{swapped: 1}, true}, {memoryCounters{}, false}, {memoryCounters{swapped: 1}, false}} {
		if a.noteDemand(step.c, start); m.wanted != step.want || (m.waitsNs != 0) != step.want {
			t.Errorf("hint, %d: wanted is %t, it waits since %d", i, m.wanted, m.waitsNs)
		}
	}
}

// Higher levels keep nothing free for others: they have what they need.
func TestReserveIsOfBestEffort(t *testing.T) {
	for level, want := range map[int]uint64{0: 0, lowestLevel - 1: 0, lowestLevel: 3 << 20} {
		a, _ := newMemoryAgent(t, level)
		a.core.config.Memory.ReserveMB = 3
		if got := a.reserve(); got != want {
			t.Errorf("level %d: %d bytes, want %d", level, got, want)
		}
	}
}

// Without a context of the driver no host memory can be pinned, and the move says so.
func TestHostMemoryThatCannotBePinned(t *testing.T) {
	if got := carryOut(move{kind: movePin, bytes: 1}); got != movedNoHost {
		t.Errorf("it ended with %d", got)
	}
	if got := carryOut(move{kind: moveUnpin}); got != moved {
		t.Errorf("what was never pinned: it ended with %d", got)
	}
}

// Memory stays where a device may be let into GPU memory unseen, and the slot says why.
func TestMemoryStaysBesideDevicesThatRegisterIt(t *testing.T) {
	for _, device := range []string{"/dev/infiniband/uverbs0", "/dev/cxi0", "/dev/hfi1_0", "/dev/nvidia-fs0", "/dev/gdrdrv"} {
		if !slices.ContainsFunc(registering, func(pattern string) bool { is, _ := filepath.Match(pattern, device); return is }) {
			t.Errorf("%s is not looked for", device)
		}
	}
	was := registering
	t.Cleanup(func() { registering = was })
	dir := t.TempDir()
	registering = []string{dir + "/uverbs*"}
	if unseenRegistrations() {
		t.Error("there is none")
	}
	if err := os.WriteFile(dir+"/uverbs0", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !unseenRegistrations() {
		t.Error("there is one")
	}
	a, _ := newMemoryAgent(t, lowestLevel)
	if a.core.letMove() || a.canSwap() || !a.own().Lacks(configs.FallbackRegistered) {
		t.Errorf("it goes all the same: lacks %b", a.own().Fallbacks.Load())
	}
}

func TestGPUsVisible(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"nvidia0", "nvidia1", "nvidia2", "nvidiactl"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for devices, want := range map[string]int{"": 3, "1": 1, "0,2": 2, "GPU-11111111-1111-1111-1111-111111111111": 1, "0,1,2,3": 3, ",": 3} {
		if got := gpusVisible(devices, dir+"/nvidia[0-9]*"); got != want {
			t.Errorf("%q: %d, want %d", devices, got, want)
		}
	}
	if got := gpusVisible("", dir+"/none*"); got != 0 {
		t.Errorf("without files: %d", got)
	}
}

// Memory that others keep is left out of the answer, published or not, and so is what contexts may need.
func TestMemoryElsewhere(t *testing.T) {
	v := &memoryView{own: 9, all: make([]memoryOf, 3)}
	for other, want := range map[uint64]uint64{0: gigabyte, 3 * gigabyte: 3 * gigabyte, 40 * gigabyte: 40 * gigabyte} {
		if got := v.elsewhere(80*gigabyte, other, 80*gigabyte); got != want {
			t.Errorf("%d: %d, want %d", other, got, want)
		}
	}
	if got := v.elsewhere(gigabyte, gigabyte/2, gigabyte); got != gigabyte/2 {
		t.Errorf("half of a small GPU: %d", got)
	}
	gives, keeps := memoryOf{slot: 1, level: lowestLevel, swaps: true, resident: 30 * gigabyte, pinned: gigabyte}, memoryOf{slot: 2, resident: 4 * gigabyte, pinned: 2 * gigabyte}
	v.all = []memoryOf{gives, keeps, {slot: 9, resident: 7 * gigabyte, pinned: gigabyte}}
	if got := v.elsewhere(60*gigabyte, 0, 80*gigabyte); got != (1+1+4+2)*gigabyte {
		t.Errorf("beside one that gives and one that does not: %d", got/gigabyte)
	}
	v.all[1].pinned = 70 * gigabyte // of which the driver knows nothing: it lies, or has ended
	if got := v.elsewhere(8*gigabyte, 0, 80*gigabyte); got != (1+8)*gigabyte {
		t.Errorf("beside one that keeps more than is taken: %d", got/gigabyte)
	}
}

// Host memory is pinned piece by piece while there is pressure, and given back a while after it.
func TestHostMemoryIsPinnedInPieces(t *testing.T) {
	a, h := newMemoryAgent(t, lowestLevel)
	c, now := memoryCounters{resident: 2*memoryPiece + 1}, uint64(1e12)
	v := &memoryView{now: now, all: []memoryOf{{resident: c.resident}, {slot: 1, resident: 70 * gigabyte}}}
	a.pinAhead(c, v, now)
	if len(h.moves()) != 0 {
		t.Fatal("it is pinned beside a process that makes nobody's memory go")
	}
	v.all[1].swaps, v.all[1].resident = true, 50*gigabyte
	a.pinAhead(c, v, now)
	if len(h.moves()) != 0 {
		t.Fatal("it is pinned without need")
	}
	v.all[1].resident = 70 * gigabyte
	for range 4 {
		h.results <- moved
		a.pinAhead(c, v, now)
		ends(t, a.core.memory.mover)
	}
	got := h.moves()
	if len(got) != 3 || got[0].bytes != memoryPiece || got[1].bytes != 2*memoryPiece || got[2].bytes != c.resident {
		t.Fatalf("pinned were %+v", got)
	}
	a.core.memory.mover.less[a.gpu] = true // the last piece
	h.results <- moved
	a.pinAhead(c, v, now)
	ends(t, a.core.memory.mover)
	if got = h.moves(); len(got) != 4 || got[3].bytes != c.resident {
		t.Fatalf("pinned were %+v", got)
	}
	v.all[1].resident = 0
	a.pinAhead(c, v, now+unpinAfter/2)
	if len(h.moves()) != 4 {
		t.Error("it is given back at once")
	}
	a.pinAhead(c, v, now+2*unpinAfter)
	ends(t, a.core.memory.mover)
	if got = h.moves(); len(got) != 5 || got[4].kind != moveUnpin {
		t.Errorf("it is not given back: %+v", got)
	}
	a.core.memory.mover.less[a.gpu] = true
	a.pinAhead(c, v, now+2*unpinAfter)
	h.results <- moved
	a.pinAhead(c, v, now+4*unpinAfter)
	ends(t, a.core.memory.mover)
	if got = h.moves(); len(got) != 6 || got[5].kind != moveUnpin {
		t.Errorf("the rest is not given back: %+v", got)
	}
}

// A process whose memory did not go is passed over for longer each time, and asked again.
func TestMemoryThatDoesNotGo(t *testing.T) {
	a, h := newMemoryAgent(t, lowestLevel)
	now, c := uint64(1e12), memoryCounters{resident: gigabyte}
	try := func(result moveResult, left memoryCounters) {
		t.Helper()
		if !a.beginOut(c, gigabyte/2, false) {
			t.Fatal("no move begins")
		}
		a.noteState(c, now)
		if a.memory.state != memoryLeaving {
			t.Errorf("state %d while it leaves", a.memory.state)
		}
		h.results <- result
		ends(t, a.core.memory.mover)
		a.ended(a.core.memory.mover.take(a.gpu), left, now)
		a.noteState(left, now)
	}
	first := a.drainFor()
	try(movedBusy, c)
	if a.memory.state != memoryStuck || a.memory.stuckTo != now+busyOver {
		t.Errorf("after work that did not end: %+v", a.memory)
	}
	second := a.drainFor()
	if waits := a.core.config.Memory.WaitMs * 1e6; uint64(first+second)+busyOver >= waits || second != first+time.Duration(busyOver) {
		t.Errorf("work may take %s, then %s to end; who waits %d ns for memory gives up before", first, second, waits)
	}
	try(movedBusy, c)
	if a.memory.stuckTo != now+2*busyOver {
		t.Errorf("after the second time it is passed over for %d ns", a.memory.stuckTo-now)
	}
	for range 10 {
		try(movedBusy, c)
	}
	if a.memory.stuckTo != now+passedMost || a.drainFor() != first+time.Duration(drainMore) {
		t.Errorf("in the end it is passed over for %d ns, and waited for for %s", a.memory.stuckTo-now, a.drainFor())
	}
	a.memory.stuckTo = 0
	try(movedNoHost, c)
	if a.memory.state != memoryStuck || !a.own().Lacks(configs.FallbackNoHostMemory) {
		t.Errorf("without host memory: %+v", a.memory)
	}
	if a.noteState(c, a.memory.stuckTo-1); !a.own().Lacks(configs.FallbackNoHostMemory) {
		t.Error("it is asked again at once")
	}
	if a.noteState(c, a.memory.stuckTo); a.own().Lacks(configs.FallbackNoHostMemory) {
		t.Error("it is never asked again after host memory was short once")
	}
	now += 2 * passedMost
	try(moved, memoryCounters{resident: gigabyte / 4, swapped: gigabyte / 4 * 3})
	if a.memory.state != memoryOut || a.memory.movable(memoryCounters{resident: gigabyte / 4}) == 0 || a.own().Lacks(configs.FallbackNoHostMemory) {
		t.Errorf("after it went: %+v", a.memory)
	}
	if try(moved, memoryCounters{resident: 2 * gigabyte}); a.memory.movable(memoryCounters{resident: 2 * gigabyte}) != 2*gigabyte {
		t.Errorf("what it has allocated meanwhile counts as what cannot go: %+v", a.memory)
	}
	stays := memoryCounters{resident: gigabyte, cannotGo: gigabyte}
	if try(moved, stays); a.memory.movable(stays) != 0 || a.memory.movable(memoryCounters{resident: 2 * gigabyte}) != gigabyte {
		t.Errorf("it is asked again for what cannot go: %+v", a.memory)
	}
	now += 2 * passedOver
	if a.noteState(c, now); a.memory.movable(c) != gigabyte {
		t.Error("it is never asked again")
	}
}

// A move in that found no room is tried again after a moment, though nobody rings: others left while it came in.
func TestMemoryComesInSoon(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	now := uint64(1e12)
	if wait := a.nextChange(now); wait != heartbeat {
		t.Errorf("with nothing to come it looks again after %s", wait)
	}
	a.came(&ended{move{kind: moveIn}, movedNoRoom}, memoryCounters{swapped: gigabyte}, now)
	if due, wait := a.memory.bringAfter, a.nextChange(now); wait > 5*time.Millisecond || now+uint64(wait) < due {
		t.Errorf("it comes in from %d ns on, and looks again after %s", due-now, wait)
	}
}

// The turn changes hands by compare-and-swap, and its owner counts it.
func TestMemoryTurnIsPassed(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	s, own := a.segment, &a.own().Memory
	a.takeMemoryTurn(memoryPlan{turn: turnTaken, to: -1}, memoryCounters{swapped: 1}, 1000)
	if owner, owned := segment.TurnOwner(s.MemoryTurn.Load()); !owned || owner != a.slot || own.Turns.Load() != 1 {
		t.Errorf("it has not taken the turn: %d, %t", owner, owned)
	}
	a.memory.state = memoryRunning
	a.takeMemoryTurn(memoryPlan{to: -1}, memoryCounters{inBytes: 5}, 3000)
	if a.memory.swapNs != 2000 {
		t.Errorf("the switch took %d ns", a.memory.swapNs)
	}
	a.takeMemoryTurn(memoryPlan{turn: turnPassed, to: 7}, memoryCounters{}, 5000)
	if owner, owned := segment.TurnOwner(s.MemoryTurn.Load()); !owned || owner != 7 || own.TurnNs.Load() != 4000 || s.MemoryTurnSinceNs.Load() != 5000 {
		t.Errorf("it has not passed it on: %d, %t, %d ns", owner, owned, own.TurnNs.Load())
	}
	a.takeMemoryTurn(memoryPlan{turn: turnPassed, to: 3}, memoryCounters{}, 6000) // what is not its own
	if owner, _ := segment.TurnOwner(s.MemoryTurn.Load()); owner != 7 {
		t.Errorf("it passed another's turn to %d", owner)
	}
	a.takeMemoryTurn(memoryPlan{turn: turnSeizedFrom, to: -1}, memoryCounters{}, 7000)
	if owner, _ := segment.TurnOwner(s.MemoryTurn.Load()); owner != a.slot || own.TurnsSeized.Load() != 1 {
		t.Errorf("it has not seized it from %d", owner)
	}
}

// An allocation is refused only for memory that was there all the time.
func TestMemoryThatNobodyAccountsFor(t *testing.T) {
	second := uint64(time.Second)
	var samples []sample
	for i, bytes := range []uint64{50, 90, 10, 80, 70, 60} {
		samples = append(samples, sample{atNs: uint64(i+1) * second, bytes: bytes})
	}
	if got := middle(samples, func(s sample) uint64 { return s.bytes }); got != 70 {
		t.Errorf("the middle of the last five is %d", got)
	}
	for _, c := range []struct {
		nowNs, least uint64
		kept         int
	}{{5 * second, 0, 6}, {6 * second, 10, 6}, {8 * second, 10, 4}, {9 * second, 60, 3}, {20 * second, 60, 1}} {
		if kept, least := recent(samples, c.nowNs); least != c.least || len(kept) != c.kept {
			t.Errorf("at %d s the least of %d is %d, want %d of %d", c.nowNs/second, len(kept), least, c.least, c.kept)
		}
	}
	if kept, least := recent(nil, second); len(kept) != 0 || least != 0 {
		t.Errorf("without samples: %v, %d", kept, least)
	}
}

// A call that waits for room tries once for each answer of the driver: a slow driver's last answer may be of memory that is taken
// meanwhile.
func TestWaitersTryAgainOnNews(t *testing.T) {
	a, _ := newMemoryAgent(t, lowestLevel)
	now, c := uint64(1e12), memoryCounters{wanted: gigabyte}
	for i, step := range []struct {
		known              bool
		questions, answers uint64
		tells              bool
	}{
		{true, 1, 1, true},
		{true, 1, 1, false},
		{true, 2, 1, false}, // it was asked, and has not answered
		{true, 2, 2, true},
		{true, 3, 2, false},
		{true, 4, 3, true},  // an answer that is not the last one's
		{true, 4, 4, false}, // this question was asked before they tried
		{true, 5, 5, true},
		{true, 6, 5, false},
		{false, 6, 5, true}, // where the driver cannot be asked, what is published must do
	} {
		now += againLater
		a.memory.known, a.memory.questions, a.memory.answers = step.known, step.questions, step.answers
		a.answerWaiters(memoryPlan{again: true, enough: true, most: math.MaxUint64}, c, now)
		if tells := a.memory.againNs == now; tells != step.tells {
			t.Errorf("%d: it tells them: %t, want %t", i, tells, step.tells)
		}
	}
	counts := 0
	for range 20 { // one in ten counts: a call that no room helps must not wait for ever
		now += againLater
		a.answerWaiters(memoryPlan{again: true, enough: true, most: math.MaxUint64}, c, now)
		if a.memory.enoughNs == now {
			counts++
		}
	}
	if counts != 2 {
		t.Errorf("in two seconds it says %d times that there is enough", counts)
	}
	a.memory.known = true
	a.answerWaiters(memoryPlan{again: true, enough: true, most: math.MaxUint64}, c, now+uint64(heartbeat))
	if a.memory.againNs == now {
		t.Error("a driver that never answers keeps them for good")
	}
}
