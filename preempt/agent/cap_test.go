package agent

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A process that always has work gets its part. In no time as long as share.period_ms it gets more than a stretch beyond that, though it
// looks a little late.
func TestBudgetIsAPartOfTheTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const late = 3e6 // ns, of a look
	for _, part := range []float64{0.01, 0.05, 0.25, 0.5, 0.9, 0.99} {
		for _, over := range []float64{100e6, 1e9, 10e9} {
			var b budget
			b.use(part, over, over, 0)
			var ends, used []float64 // at the end of each interval: the time, and what was used until then
			now, sum := 0.0, 0.0
			for now < 60*over {
				passed := min(b.wait(part, over), 1e9) + late*random.Float64()
				on := 0.0
				if !b.spent {
					on = passed
				}
				b.use(part, over, passed, on)
				now, sum = now+passed, sum+on
				ends, used = append(ends, now), append(used, sum)
			}
			if got := sum / now; got > 1.02*part+stretchOf(part, over)/now || got < 0.9*part {
				t.Errorf("%v over %v ms: %v of the time", part, over/1e6, got)
			}
			from := 0
			for i := range ends {
				for ends[i]-ends[from] > over {
					from++
				}
				if most := part*over + stretchOf(part, over) + 2*late; used[i]-used[from] > most {
					t.Fatalf("%v over %v ms: %v ms in that time, at most %v ms", part, over/1e6, (used[i]-used[from])/1e6, most/1e6)
				}
			}
		}
	}
}

// A rest is not kept for later, and a stop of the machine is paid for no longer than share.period_ms.
func TestBudgetForgets(t *testing.T) {
	const part, over = 0.25, 1e9
	var b budget
	b.use(part, over, 100*over, 0)
	if b.spent || b.ns != stretchOf(part, over) {
		t.Errorf("after idling: %+v", b)
	}
	b.use(part, over, 100*over, 100*over)
	if wait := b.wait(part, over); !b.spent || wait > over+stretchOf(part, over)/part {
		t.Errorf("after a stop: %+v, %v ms", b, wait/1e6)
	}
	b.use(unlimitedPart, over, over, over)
	if b != (budget{}) {
		t.Errorf("without a limit: %+v", b)
	}
}

// Others may say that they had the GPU for as long as the time that passed, no longer. An earlier owner's words do not count, nor those
// that went back.
func TestWhatPeersSayThatTheyHad(t *testing.T) {
	a := claimed(t)
	var c caps
	peer := a.segment.Slot(9)
	peer.StartedNs.Store(1)
	for i, step := range []struct {
		started, ran, now uint64
		want              float64
	}{
		{1, 500, 1000, 0},     // before this process came
		{1, 600, 2000, 100},   //
		{1, 600, 9000, 0},     //
		{1, 8500, 9001, 7900}, // of all the time until then, said late
		{1, 8602, 9002, 2},    // more than there is
		{1, 8702, 9003, 1},
		{1, 8700, 9004, -2}, // it takes something back
		{1, 8701, 9005, 1},
		{1, 8702, 9006, 1},
		{2, 900, 9007, 0}, // another process
		{2, 901, 9008, 1},
		{2, 902, 9000, 0}, // the clock went back
		{2, 1 << 62, math.MaxUint64, 1e9},
		{2, 1 << 63, math.MaxUint64, 0},
		{2, 0, math.MaxUint64, -1e9}, // no more than that at once
		{2, 1 << 62, math.MaxUint64, 1e9},
	} {
		peer.StartedNs.Store(step.started)
		peer.RanNs.Store(step.ran)
		if got := c.used(9, peer, false, step.now); got != step.want {
			t.Errorf("%d, %+v: %v", i, step, got)
		}
	}
	if c.seen[9].roomNs > 1e9 {
		t.Errorf("%+v", c.seen[9])
	}
}

// A peer that has work and is on the runlist runs, until it says how much it had.
func TestPeersRunBeforeTheySaySo(t *testing.T) {
	a := claimed(t)
	var c caps
	peer := a.segment.Slot(9)
	peer.StartedNs.Store(1)
	peer.RanAtNs.Store(1e9)
	c.used(9, peer, false, 1e9)
	for _, step := range []struct {
		ran, at   uint64
		works     bool
		suspended uint32
		now       uint64
		want      float64
	}{
		{0, 1e9, true, 0, 1e9 + 30, 30},
		{0, 1e9, true, 0, 1e9 + 70, 40},
		{60, 1e9 + 60, true, 0, 1e9 + 80, 10},
		{65, 1e9 + 90, true, 0, 1e9 + 90, -15}, // a window was open
		{65, 1e9 + 90, true, 1, 1e9 + 200, 0},
		{65, 1e9 + 90, false, 0, 1e9 + 300, 0},
		{65, 1e9 + 900, true, 0, 1e9 + 400, 0}, // a time to come
		{65, 0, true, 0, 1e9 + 500, 435},       // one of long ago: what is left of the time
	} {
		peer.RanNs.Store(step.ran)
		peer.RanAtNs.Store(step.at)
		peer.Suspended.Store(step.suspended)
		if got := c.used(9, peer, step.works, step.now); got != step.want {
			t.Errorf("%+v: %v", step, got)
		}
	}
}

// A peer that counts its time at other times than this process looks has used what it has, to the nanosecond.
func TestPeersThatSaySoLate(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	a := claimed(t)
	var c caps
	peer, counted := a.segment.Slot(9), uint64(1e9)
	peer.StartedNs.Store(1)
	c.used(9, peer, false, counted)
	sum, had := 0.0, uint64(0)
	for now := counted; now < 100e9; {
		now += random.Uint64N(30e6)
		if random.IntN(4) == 0 { // of the time since it did so last it had half
			had += (now - counted) / 2
			counted = now
			peer.RanNs.Store(had)
		}
		sum += c.used(9, peer, false, now)
	}
	if sum != float64(had) {
		t.Errorf("%v of %v ns", sum, had)
	}
}

// together lets best-effort processes take turns for some time, each of which goes by what all say. It returns the part of the time that
// each had. says is what one says that it had more than it had, of each look.
func together(t *testing.T, share func(*configs.Config), busy []bool, says []uint64, looks int) (parts []float64) {
	t.Helper()
	const look = uint64(5e6) // ns
	s := claimed(t).segment
	agents, had := make([]*caps, len(busy)), make([]uint64, len(busy))
	config := configs.Default()
	share(&config)
	over := float64(config.Share.PeriodMs) * 1e6
	for i := range busy {
		agents[i] = &caps{}
		s.Slot(i).StartedNs.Store(1)
	}
	off := make([]bool, len(busy))
	for n := range looks {
		now := uint64(n+1) * look
		for i := range busy { // the turn is another's in each quantum; else whoever may and wants to runs
			if next := (n/20 + i) % len(busy); busy[next] && !off[next] {
				had[next] += look
				s.Slot(next).RanNs.Add(look)
				break
			}
		}
		for i, more := range says {
			s.Slot(i).RanNs.Add(more)
		}
		for i, c := range agents {
			said := saidOf{mine: c.used(i, s.Slot(i), false, now), peers: len(busy) - 1}
			for j := range agents {
				if j == i {
					continue
				}
				said.others += c.used(j, s.Slot(j), false, now)
				if busy[j] {
					said.working++
					said.wants = said.wants || !off[j]
				}
			}
			off[i], _ = c.use(config.Share.Max, config.Share.MaxBE, over, float64(look), said)
		}
	}
	for _, ns := range had {
		parts = append(parts, float64(ns)/float64(uint64(looks)*look))
	}
	return parts
}

func TestShareOfAllBestEffort(t *testing.T) {
	for _, c := range []struct {
		name  string
		share func(*configs.Config)
		busy  []bool
		says  []uint64
		want  []float64
	}{
		{"one", func(c *configs.Config) { c.Share.Max = 0.25 }, []bool{true}, nil, []float64{0.25}},
		{"one among idle ones", func(c *configs.Config) { c.Share.MaxBE = 0.4 }, []bool{true, false, false, false}, nil, []float64{0.4, 0, 0, 0}},
		{"two", func(c *configs.Config) { c.Share.MaxBE = 0.4 }, []bool{true, true}, nil, []float64{0.2, 0.2}},
		{"two whose turns are as long as they run", func(c *configs.Config) { c.Share.MaxBE = 0.5 }, []bool{true, true}, nil, []float64{0.25, 0.25}},
		{"three among idle ones", func(c *configs.Config) { c.Share.MaxBE = 0.6 }, []bool{true, false, true, true, false}, nil, []float64{0.2, 0, 0.2, 0.2, 0}},
		{"two, none of which may have more", func(c *configs.Config) { c.Share.MaxBE, c.Share.Max = 0.6, 0.1 }, []bool{true, true, false}, nil, []float64{0.1, 0.1, 0}},
		{"beside one that lies", func(c *configs.Config) { c.Share.MaxBE = 0.4 }, []bool{true, false}, []uint64{0, 1e12}, []float64{0.2, 0}},
	} {
		got := together(t, c.share, c.busy, c.says, 20_000)
		for i, part := range got {
			if math.Abs(part-c.want[i]) > 0.02 {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
				break
			}
		}
	}
}

// A broker says less than the settings, never more.
func TestMostOfSettingsAndBroker(t *testing.T) {
	config := configs.Default()
	for _, c := range []struct{ setting, told, want float64 }{{1, 0, 1}, {0.5, 0, 0.5}, {1, 0.25, 0.25}, {0.5, 0.25, 0.25}, {0.25, 0.5, 0.25}} {
		if config.Share.Max = c.setting; maxOf(config, segment.Limits{ShareMax: c.told}) != c.want {
			t.Errorf("%+v", c)
		}
	}
}
