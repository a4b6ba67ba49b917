package agent

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func coreOf(config configs.Config, level int) *Core {
	c := &Core{config: config}
	c.level.Store(int32(level))
	return c
}

func TestControlParametersHaveTheDriversLayout(t *testing.T) {
	var g NV2080_CTRL_GPU_GET_GID_INFO_PARAMS
	for name, is := range map[string][2]uintptr{ // ctrl2080gpu.h, ctrla06c.h
		"gid":       {unsafe.Sizeof(g), 268},
		"gid.data":  {unsafe.Offsetof(g.Data), 12},
		"timeslice": {unsafe.Sizeof(NVA06C_CTRL_TIMESLICE_PARAMS{}), 8},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: %d, the driver has %d", name, is[0], is[1])
		}
	}
}

// A process that a policy refuses is best effort, whatever the page of an earlier broker says, until a broker takes it.
func TestRefusedIsBestEffort(t *testing.T) {
	c := coreOf(configs.Default(), 0)
	c.levels = map[int]int{}
	for i, s := range []struct {
		change func()
		want   int
	}{
		{func() { c.applyRefusal(1, join.RefusedError{Reason: wire.RefusedQuota}) }, 0},
		{func() { c.applyRefusal(1, join.RefusedError{Reason: wire.RefusedPolicy}) }, lowestLevel},
		{func() { c.setLevel(1, 0) }, lowestLevel},
		{func() { c.setLevel(0, 0) }, lowestLevel},
		{func() { c.setRefused(1, false); c.setLevel(1, 2) }, 2},
		{func() { c.applyRefusal(0, fmt.Errorf("by a socket: %w", join.RefusedError{Reason: wire.RefusedOff})) }, lowestLevel},
	} {
		if s.change(); c.levelNow() != s.want {
			t.Errorf("step %d: level %d, want %d", i, c.levelNow(), s.want)
		}
	}
}

// A process of a level between others is on the GPU for its share, whatever others say of their windows. A window that is always open
// leaves it no more than that.
func TestAwayForWindows(t *testing.T) {
	const ms, most, seconds = uint64(time.Millisecond), 100 * uint64(time.Millisecond), 20
	for _, c := range []struct {
		share     float64
		open      func(now uint64) bool
		low, high float64 // the part of the time that it is on the GPU
	}{
		{0.03, func(uint64) bool { return true }, 0.029, 0.031},
		{0.2, func(uint64) bool { return true }, 0.19, 0.21},
		{0.2, func(now uint64) bool { return now/ms%10 != 0 }, 0.19, 0.21}, // it leaves half as much
		{0.2, func(now uint64) bool { return now/ms%2 == 0 }, 0.49, 0.51},  // and more than its share
		{0, func(uint64) bool { return true }, 0, 0},
		{0.2, func(uint64) bool { return false }, 1, 1},
	} {
		var w away
		on, off, now := uint64(0), false, 1000*ms
		for end := now + seconds*1000*ms; now < end; {
			var wait time.Duration
			off, wait = w.look(c.open(now), off, now, most, c.share)
			if wait <= 0 {
				t.Fatalf("share %v: it looks again after %v", c.share, wait)
			}
			next := min(now+uint64(wait), (now/ms+1)*ms, end) // it is woken when a window opens or closes
			if !off {
				on += next - now
			}
			now = next
		}
		if got := float64(on) / float64(seconds*1000*ms); got < c.low || got > c.high {
			t.Errorf("share %v: on the GPU for %.3f of the time, not %v to %v", c.share, got, c.low, c.high)
		}
	}
}

// Jobs share GPUs: in a round each GPU that the first job wants goes to it, and each job has its part.
func TestTurnsOfJobs(t *testing.T) {
	const jobs, rounds = 4, 4000
	on := []uint64{0b1111, 0b0011, 0b0110} // the jobs on each GPU, in slots of the other order
	var gpus []*agent
	for range on {
		s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: [16]byte{1}}, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for slot := range 2 * jobs { // two processes of each job
			job := jobs - 1 - slot/2
			s.Slot(slot).Job.Store(uint64(job + 100))
			s.Slot(slot).StartedNs.Store(uint64(slot ^ 1))
		}
		gpus = append(gpus, &agent{segment: s})
	}
	had, since, turns := map[[2]int]int{}, map[[2]int]int{}, make([][]int, len(on))
	for round := range uint64(rounds) {
		first := map[int]bool{} // jobs that have all of their GPUs
		for g, a := range gpus {
			var wanted uint64
			for job := range jobs {
				if on[g]&(1<<job) != 0 {
					wanted |= 3 << (2 * (jobs - 1 - job))
				}
			}
			slot := a.pick(wanted, round)
			if wanted&(1<<slot) == 0 {
				t.Fatalf("round %d: slot %d of %b", round, slot, wanted)
			}
			job := jobs - 1 - slot/2
			had[[2]int{g, job}]++
			since[[2]int{g, slot}]++
			turns[g] = append(turns[g], job)
			if g > 0 && turns[0][round] != job && on[g]&(1<<turns[0][round]) != 0 {
				t.Errorf("round %d: job %d has GPU 0, job %d has GPU %d", round, turns[0][round], job, g)
			}
			first[job] = true
		}
		if last := turns[1]; round >= 2 && last[round] == last[round-1] && last[round] == last[round-2] {
			t.Errorf("round %d: three in a row for job %d", round, last[round])
		}
	}
	for g := range gpus {
		n := bits.OnesCount64(on[g])
		for job := range jobs {
			if part := float64(had[[2]int{g, job}]) / rounds; on[g]&(1<<job) != 0 && (part < 0.85/float64(n) || part > 1.15/float64(n)) {
				t.Errorf("job %d has %.3f of GPU %d, which %d share", job, part, g, n)
			}
		}
	}
	for slot := range 2 * jobs {
		if a, b := since[[2]int{0, slot}], since[[2]int{0, slot ^ 1}]; a < b*8/10 {
			t.Errorf("processes in slots %d and %d of one job have %d and %d turns", slot, slot^1, a, b)
		}
	}
}

func TestJobOf(t *testing.T) {
	env := map[string]string{}
	job := func(variables ...string) uint64 {
		clear(env)
		for i := 0; i < len(variables); i += 2 {
			env[variables[i]] = variables[i+1]
		}
		return jobOf(func(name string) string { return env[name] }, "self")
	}
	distinct := []uint64{
		job(), job("MASTER_ADDR", "localhost", "MASTER_PORT", "1"), job("MASTER_ADDR", "localhost", "MASTER_PORT", "2"), job("SLURM_JOB_ID", "1", "SLURM_STEP_ID", "0"),
		job("SLURM_JOB_ID", "1", "SLURM_STEP_ID", "1"), job("GPREEMPT_JOB", "1"), job("PMIX_NAMESPACE", "1"),
	}
	for i, a := range distinct {
		for _, b := range distinct[i+1:] {
			if a == b {
				t.Errorf("job %d and another are one: %x", i, distinct)
			}
		}
	}
	if a, b := job("GPREEMPT_JOB", "1"), job("GPREEMPT_JOB", "1", "MASTER_ADDR", "x", "MASTER_PORT", "3"); a != b {
		t.Error("GPREEMPT_JOB does not decide")
	}
	if a, b := job(), job("MASTER_ADDR", "localhost"); a != b || a != job() {
		t.Error("half of what names a job is taken for one")
	}
}

func TestTimesliceFollowsWhoElseIsThere(t *testing.T) {
	s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	config := configs.Default()
	a := &agent{core: coreOf(config, lowestLevel), segment: s}
	short, long, fair := config.Timeslice.BEUs, config.Timeslice.PreemptingUs, config.Timeslice.FairUs
	least, equals := config.Timeslice.EqualsMinUs, config.Timeslice.EqualsUs
	for _, c := range []struct {
		name  string
		p     peers
		turns bool
		boost uint64
		us    uint64
	}{
		{"alone", peers{}, false, 0, fair},
		{"below a higher level", peers{higher: 1}, false, 0, short},
		{"above a lower level", peers{lower: 1}, false, 0, long},
		{"between two levels", peers{lower: 1, higher: 2}, false, 0, long},
		{"two at the lowest level in turns", peers{same: 1, higher: 2}, true, 0, short},
		{"two at the lowest level without turns", peers{same: 1, higher: 2}, false, 0, fair},
		{"two of a level above others", peers{same: 1, lower: 2}, false, 0, least},
		{"two of the lowest level alone", peers{same: 1}, false, 0, fair},
		{"starved", peers{higher: 1}, false, 4096, 4096},
		{"two starved without turns", peers{same: 1, higher: 2}, false, 64, fair},
	} {
		a.boostUs = c.boost
		if got := a.timeslice(c.p, c.turns, false); got != c.us {
			t.Errorf("%s: %d us, want %d", c.name, got, c.us)
		}
	}
	lc := &agent{core: coreOf(config, 0), segment: s}
	if alone, two := lc.timeslice(peers{}, false, false), lc.timeslice(peers{same: 1}, false, false); alone != fair || two != least {
		t.Errorf("of the highest level: alone %d us, want %d; two %d us, want %d", alone, fair, two, least)
	}
	config.Hold.MaxMs, config.Timeslice.EqualsMinUs = 5, equals
	a.core = coreOf(config, lowestLevel)
	if got := a.timeslice(peers{same: 1, lower: 2}, false, false); got != 5000 {
		t.Errorf("two of a level above others, with hold.max_ms = 5: %d us", got)
	}
	s.Turn.Store(segment.TurnSeized | 1)
	a.boostUs = 0
	if p := (peers{same: 1, higher: 2}); a.timeslice(p, true, a.doubts(p, 1)) != fair {
		t.Errorf("after a seized turn: want %d us: two short timeslices stop each other dead", fair)
	}
}

func TestTSGsAreLookedAtWhenTheySettle(t *testing.T) {
	const now = uint64(5e9)
	for _, c := range []struct {
		name string
		ago  []uint64 // ns since libcuda changed each, long after it was made
		wait uint64
	}{
		{"no TSG", nil, 0},
		{"all have settled", []uint64{settleNs + 1, now}, 0},
		{"not quite", []uint64{settleNs}, 1},
		{"the next of three", []uint64{0, settleNs / 2, settleNs + 1}, settleNs/2 + 1},
	} {
		var tsgs []TSG
		for _, ns := range c.ago {
			tsgs = append(tsgs, TSG{changedNs: now - ns})
		}
		if wait := settling(tsgs, now); uint64(wait) != c.wait {
			t.Errorf("%s: %v, want %d ns", c.name, wait, c.wait)
		}
	}
}

// While libcuda makes a TSG its timeslice is not set, for a second at most: it would be lost.
func TestTSGsAreLeftAloneWhileTheyAreMade(t *testing.T) {
	const now = uint64(5e9)
	for _, c := range []struct {
		name       string
		born, made uint64 // ns ago
		until      uint64 // ns from now; 0: it is made
		wait       uint64
	}{
		{"just born", 0, 0, quietNs, quietNs + 1},
		{"its last channel came just now", settleNs, 0, quietNs, quietNs + 1},
		{"the last moment", settleNs, quietNs - 1, 1, 2},
		{"made", settleNs, quietNs + 1, 0, settleNs - quietNs},
		{"its channels come and go for a second", youngNs + 1, 0, 0, settleNs + 1},
		{"old", now, now, 0, 0},
	} {
		tsg := TSG{bornNs: now - c.born, madeNs: now - c.made, changedNs: now - c.made}
		until := tsg.made(now)
		if until != 0 {
			until -= now
		}
		if wait := uint64(settling([]TSG{tsg}, now)); until != c.until || wait != c.wait {
			t.Errorf("%s: until %d ns from now, looked at after %d, want %d and %d", c.name, until, wait, c.until, c.wait)
		}
		if tsg.due(1, 1, now) || tsg.due(0, 1, now) != (c.until == 0) {
			t.Errorf("%s: a timeslice that it has is due: %v, another one: %v", c.name, tsg.due(1, 1, now), tsg.due(0, 1, now))
		}
	}
}

func TestBoostMakesUpWhatLacks(t *testing.T) {
	const second = uint64(1e9)
	keeps := func(us uint64) func(int) uint64 { return func(int) uint64 { return us } }
	for _, c := range []struct {
		name    string
		open    []uint64 // ns of a second, of slots 0 and on
		windows uint64   // of each
		keepsUs uint64
		us      uint64
	}{
		{"a quarter is left", []uint64{second * 3 / 4}, 100, 100_000, 0},
		{"one window all the time, a turn in 100 ms", []uint64{second}, 0, 100_000, 4096}, // 30 ms in 11 turns
		{"no hold, a turn in 2 ms", []uint64{second}, 0, 2048, 64},                        // 30 ms in 490 turns
		{"500 windows a second", []uint64{second * 99 / 100}, 500, 100_000, 64},
		{"three at half load overlap by chance", []uint64{second / 2, second / 2, second / 2}, 100, 2048, 0},
		{"longer than the time between", []uint64{2 * second}, 0, 100_000, 4096},
	} {
		var from, to usage
		from.atNs, to.atNs = 5*second, 6*second
		higher := uint64(0)
		for slot, ns := range c.open {
			from.openNs[slot], to.openNs[slot] = 7, 7+ns
			to.windows[slot] = c.windows
			higher |= 1 << slot
		}
		if us := boost(from, to, higher, 0.03, keeps(c.keepsUs)); us != c.us {
			t.Errorf("%s: %d us, want %d", c.name, us, c.us)
		}
	}
	from, to := usage{atNs: second, openNs: [segment.Slots]uint64{9}}, usage{atNs: 2 * second}
	if us := boost(from, to, 1, 0.03, keeps(1)); us != 0 {
		t.Errorf("counters that went back: %d us", us)
	}
	if us := boost(to, from, 1, 0.03, keeps(1)); us != 0 {
		t.Errorf("time that went back: %d us", us)
	}
}

// A process gets as much more of its turns as it needs to have its share of the time in which it has work.
func TestShareOfOneThatTakesTurns(t *testing.T) {
	const tick = uint64(1e8) // 100 ms
	for _, c := range []struct {
		name       string
		busy, on   uint64 // of ten ticks
		share, got float64
	}{
		{"all turns", 10, 10, 0.2, 0.2},
		{"half of them", 10, 5, 0.2, 0.4},
		{"half of them, with work for half of the time", 5, 5, 0.2, 0.2},
		{"on the GPU without work", 2, 10, 0.2, 0.2},
		{"a tenth of them", 10, 1, 0.05, 0.5},
		{"never", 10, 0, 0.05, mostInTurn},
		{"more than there is", 10, 1, 0.5, mostInTurn},
		{"a share above the bound", 10, 5, 0.95, 0.95},
	} {
		var p pace
		var from usage
		for i := range uint64(1000) {
			to := from
			to.atNs += tick
			to.busyNs += tick * min(1, c.busy/(i%10+1)) // in the first ticks of each ten
			to.onNs += tick * min(1, c.on/(i%10+1))
			p.note(from, to)
			from = to
			if got := p.inTurn(c.share); i > 200 && math.Abs(got-c.got) > 0.15*c.got {
				t.Fatalf("%s: %v after %d ticks, want %v", c.name, got, i, c.got)
			}
		}
	}
	p := pace{busyNs: 4e9, onNs: 1e9}
	p.note(usage{atNs: 5e9, busyNs: 7, onNs: 7}, usage{atNs: 4e9, busyNs: 5, onNs: 5}) // of another segment
	if got := p.inTurn(0.1); got != 0.4 {
		t.Errorf("counters that went back: %v", got)
	}
}

// TestBoostIsNeverTooShort proves that what is kept, so that timeslices do not go back and forth, is the longer one.
func TestBoostIsNeverTooShort(t *testing.T) {
	us := uint64(0)
	for _, step := range []struct{ wanted, us uint64 }{
		{2048, 2048}, {4096, 4096}, {2048, 4096}, {4096, 4096}, {1024, 1024}, {0, 0}, {64, 64}, {0, 0},
	} {
		if us = nextBoost(us, step.wanted); us != step.us {
			t.Errorf("%d us where %d us are wanted, want %d", us, step.wanted, step.us)
		}
	}
}

// claimed is an agent that has a slot of a segment.
func claimed(t *testing.T) *agent {
	t.Helper()
	s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	slot, err := s.Claim(0, "test")
	if err != nil {
		t.Fatal(err)
	}
	return &agent{core: &Core{}, segment: s, slot: slot}
}

// toldSwitch goes by what most others have learnt of a switch, whatever one of them says, and not by what this process says.
func TestSwitchesAreTold(t *testing.T) {
	a := claimed(t)
	s, slot := a.segment, a.slot
	a.own().SwitchUs.Store(77)
	for lower := range 8 { // and these would have the GPU more if they were believed
		s.Slot(63 - lower).SwitchUs.Store(20)
		s.Level[63-lower].Store(uint32(1 + lower)) // the last is no level
		s.Members.Or(1 << (63 - lower))
	}
	for _, c := range []struct {
		says   uint32
		wantNs uint64
	}{{0, 0}, {90, 90_000}, {math.MaxUint32, math.MaxUint32 * 1000}, {100, 100_000}, {0, 100_000}, {1, 100_000}} {
		slot++
		s.Slot(slot).SwitchUs.Store(c.says)
		s.Members.Or(1 << slot)
		if got := a.toldSwitch(); got != c.wantNs {
			t.Errorf("after %d: %d, want %d", c.says, got, c.wantNs)
		}
	}
	s.Slot(slot + 1).SwitchUs.Store(5000) // no member
	if got := a.toldSwitch(); got != 100_000 {
		t.Errorf("beside one that is no member: %d", got)
	}
}

// The hold is in force above the lowest level, where the settings have it.
func TestWhereHoldsAreInForce(t *testing.T) {
	none := configs.Default()
	none.Mechanisms = configs.Mechanisms{}
	for i, c := range []struct {
		config configs.Config
		level  int
		want   bool
	}{{configs.Default(), 0, true}, {configs.Default(), lowestLevel - 1, true}, {configs.Default(), lowestLevel, false}, {none, 0, false}} {
		a := claimed(t)
		a.core = coreOf(c.config, c.level)
		if a.canHold() != c.want || a.own().Lacks(configs.FallbackNoHold) {
			t.Errorf("%d: in force: %t; lacking: %t", i, a.canHold(), a.own().Lacks(configs.FallbackNoHold))
		}
	}
}

// The objective in force is the one that was set, in the settings' units.
func TestObjectiveThatIsSetIsRead(t *testing.T) {
	defer setObjective(configs.Objective{})
	setLevel(configs.Default(), 0) // the lowest level has none
	own := configs.Objective{StepMs: 20, FirstMs: 200, Percentile: 99.5}
	told := configs.Objective{Slowdown: 1.5, Percentile: 90}
	for i, c := range []struct {
		set  func()
		want configs.Objective
	}{
		{func() { setObjective(own) }, own}, {func() { tellObjective(told, true) }, told}, {func() { tellObjective(told, false) }, own},
	} {
		if c.set(); readObjective().Word() != c.want.Word() {
			t.Errorf("%d: %+v, want %+v", i, readObjective(), c.want)
		}
	}
}

// A process that cannot join again stays with those that share its segment, since its slot is its own; one that is alone stays so.
func TestWhoCannotJoinAgain(t *testing.T) {
	for _, alone := range []bool{false, true} {
		a := claimed(t)
		a.core = coreOf(configs.Default(), 0)
		a.core.config.Segment.Directory = filepath.Join(a.segment.Path(), "none") // below a file
		a.alone = alone
		if err := os.Remove(a.segment.Path()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if in := a.belongs(); in == alone || a.alone != alone {
				t.Errorf("alone before: %t; belongs: %t, alone: %t", alone, in, a.alone)
			}
		}
	}
}

// Of two limits the less counts, and none is no limit.
func TestLessOfLimits(t *testing.T) {
	for _, c := range [][3]uint64{{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {3, 5, 3}, {5, 3, 3}} {
		if got := lessOf(c[0], c[1]); got != c[2] {
			t.Errorf("of %d and %d: %d", c[0], c[1], got)
		}
	}
	if got := lessOf(0.4, 0.25); got != 0.25 {
		t.Errorf("of 0.4 and 0.25: %g", got)
	}
}
