package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// sliceIDs are the two slices of the simulated GPU where SIMCUDA_MIG is 2, as nvidia-smi would write them.
var sliceIDs = [2]string{"MIG-516d756c-a7ed-4200-8d00-482000514e00", "MIG-516d756c-a7ed-4200-8d00-482000514f00"}

func newSliced(t *testing.T, settings string) *machine {
	t.Helper()
	return newMachine(t, settings, "SIMCUDA_MIG=2")
}

// on starts a program that sees one slice.
func (m *machine) on(slice int, role, program string) *process {
	m.t.Helper()
	cmd := m.command(role, program)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+sliceIDs[slice])
	return m.startAs(cmd)
}

// onSlice waits until a process is in the segment of a slice, and in no other.
func (m *machine) onSlice(slice int, p *process) {
	m.t.Helper()
	m.until("it joins", func() bool { return len(m.slots(p)) > 0 })
	slots := m.slots(p)
	if _, is := slots[sliceIDs[slice]]; len(slots) != 1 || !is {
		m.t.Fatalf("process %d, on slice %d, is in %v", p.pid(), slice, slots)
	}
}

// Latency-critical work on one slice of a GPU closes the window of best-effort work on the same slice, and of nobody on another one.
func TestSlicesHaveWindowsOfTheirOwn(t *testing.T) {
	t.Parallel()
	m := newSliced(t, "")
	beside, be, lc := m.on(0, "be", worker), m.on(1, "be", worker), m.on(1, "lc", worker)
	beside.runBestEffort()
	be.runBestEffort()
	m.onSlice(0, beside)
	m.onSlice(1, be)
	m.onSlice(1, lc)
	m.yields(be) // so the TSGs of a slice are found, by the UUID of its GPU
	m.until("LC preempts", func() bool { return m.peer(lc).TimesliceUs > 10_000 })
	lc.request(20, 20, "stream")
	m.until("the requests took the GPU from BE", func() bool { return m.peer(lc).Counters.Switches > 0 })
	before := beside.count()
	m.until("the other slice's work gets on", func() bool { return beside.count() > before+5 })
	if p := m.peer(beside); p.TimesliceUs == 1 || p.Counters.TimesliceSets == 0 || p.Counters.GateWaits != 0 {
		t.Errorf("alone on its slice: timeslice of %d us, set %d times, %d waits", p.TimesliceUs, p.Counters.TimesliceSets, p.Counters.GateWaits)
	}
	for _, s := range m.snapshots() {
		if want := map[string]int{sliceIDs[0]: 1, sliceIDs[1]: 2}[s.GPU]; len(s.Peers) != want {
			t.Errorf("%s has %d processes, must have %d", s.GPU, len(s.Peers), want)
		}
	}
}

// Best-effort processes on one slice take turns, and one on another slice takes none.
func TestSlicesHaveTurnsOfTheirOwn(t *testing.T) {
	t.Parallel()
	m := newSliced(t, "")
	one, other, beside := m.on(0, "be", worker), m.on(0, "be", worker), m.on(1, "be", worker)
	for _, p := range []*process{one, other, beside} {
		p.runBestEffort()
	}
	m.until("the two take turns", func() bool { return m.peer(one).Counters.Turns > 2 && m.peer(other).Counters.Turns > 2 })
	before := beside.count()
	m.until("the third gets on", func() bool { return beside.count() > before })
	m.onSlice(1, beside)
	if p := m.peer(beside); p.Counters.Turns != 0 || p.Suspended {
		t.Errorf("alone on its slice: %+v", p.Counters)
	}
}

// Memory that does not fit on one slice leaves it. Memory on another slice stays, and counts for no process here.
func TestSlicesHaveMemoryOfTheirOwn(t *testing.T) {
	t.Parallel()
	const megabytes = 80
	m := newSmall(t, "", "SIMCUDA_MIG=2") // 128 MB each
	one, beside := m.on(0, "be", memoryProgram()), m.on(1, "be", memoryProgram())
	for _, p := range []*process{one, beside} {
		if _, total := p.free(); total != 128<<20 {
			t.Fatalf("a slice has %d bytes", total)
		}
		p.filled("memory", megabytes<<20, p.pid())
	}
	m.until("both are there", func() bool {
		return m.memory(one).Resident >= megabytes<<20 && m.memory(beside).Resident >= megabytes<<20
	})
	other := m.on(0, "be", memoryProgram())
	other.filled("memory", megabytes<<20, other.pid())
	m.until("one of the slice's two left", func() bool { return m.memory(one).Evictions+m.memory(other).Evictions > 0 })
	m.onSlice(0, other)
	m.onSlice(1, beside)
	if now := m.memory(beside); now.Evictions != 0 || now.Resident < megabytes<<20 || now.Other > megabytes<<20 {
		t.Errorf("on the other slice: %+v", now)
	}
}

// The commands show slices to people and scripts, and take their names.
func TestSlicesInCommands(t *testing.T) {
	t.Parallel()
	m := newSliced(t, swap)
	p, stranger := m.on(0, "be", memoryProgram()), m.on(1, "", worker)
	p.filled("memory", 100<<20, 1)
	stranger.runBestEffort()
	m.onSlice(0, p)
	if top := m.gpreempt("top", "--once"); !strings.Contains(top.stdout, sliceIDs[0]+"  LC ") || strings.Contains(top.stdout, "OTHERS") {
		t.Errorf("top, of the slice alone: %+v", top)
	}
	beside := m.on(1, "be", worker)
	beside.runBestEffort()
	m.onSlice(1, beside)
	m.until("top shows who else is on the other slice", func() bool {
		top := m.gpreempt("top", "--once").stdout
		_, behind, _ := strings.Cut(top, sliceIDs[1])
		return strings.Count(top, "OTHERS") == 1 && strings.Contains(behind, fmt.Sprintf("OTHERS  %d worker (", stranger.pid()))
	})
	if metrics := m.gpreempt("top", "--prometheus").stdout; !strings.Contains(metrics, `gpreempt_segment_readable{uuid="`+sliceIDs[0]+`"} 1`) ||
		!strings.Contains(metrics, `gpreempt_outsiders{uuid="`+sliceIDs[1]+`"} 1`) || !strings.Contains(metrics, `gpreempt_outsiders{uuid="`+sliceIDs[0]+`"} 0`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	doctor := m.command("", filepath.Join(root, "build", "gpreempt"), "doctor")
	doctor.Env = append(doctor.Env, "CUDA_VISIBLE_DEVICES="+sliceIDs[1])
	got, err := run(doctor)
	if err != nil || !strings.Contains(got.stdout, sliceIDs[1]+", a slice of a GPU (MIG)") ||
		!strings.Contains(got.stdout, fmt.Sprintf("others     %s: processes use it that are not known to those under the library: %d worker (", sliceIDs[1], stranger.pid())) {
		t.Errorf("doctor: %v, %+v", err, got)
	}
	if got := m.gpreempt("swap", "out", "--gpu", sliceIDs[1], fmt.Sprint(p.pid())); got.status != 1 {
		t.Errorf("swap out on a slice on which it is not: %+v", got)
	}
	m.does(p, sliceIDs[0], "swap", "out", "--gpu", "MIG-516d")
}

// A policy admits to one slice and not to another one of the same GPU.
func TestSlicesInPolicies(t *testing.T) {
	t.Parallel()
	m := newSliced(t, "")
	m.police("", fmt.Sprintf("[[rule]]\nname = 'closed'\nwhen = 'gpu == \"%s\"'\nadmit = false\n[[rule]]\nname = 'open'\nwhen = 'true'\n", sliceIDs[0]))
	for slice, want := range []string{"closed", "open"} {
		p := m.on(slice, "be", worker)
		p.runBestEffort()
		m.until("the broker has it", func() bool { return m.policyLine(p) != nil })
		if words := m.policyLine(p); words[0] != sliceIDs[slice][:12] || words[4] != want {
			t.Errorf("slice %d: %v, want %s by the rule %s", slice, words, sliceIDs[slice][:12], want)
		}
	}
}
