package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const swap, stays = "mechanisms = [\"swap\"]\n", "mechanisms = [\"turns\"]\n"

// disguise runs testdata/disguise.c and returns its output.
func (m *machine) disguise(t *testing.T, program, preload, role string) string {
	t.Helper()
	cmd := m.command(role, program)
	if preload != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+preload)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v; %s", program, err, &stderr)
	}
	return string(out)
}

// Memory of cuMemAlloc gives the same answer to each question, whether the library or the driver allocates it.
func TestSwapDisguise(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "disguise")
	build := compiler(program, "testdata/disguise.c")
	if out, err := exec.Command(build[0], build[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := newMachine(t, swap)
	want := newMachine(t, "").disguise(t, program, built("sim/libcuda.so.1"), "")
	for role, m := range map[string]*machine{"be": newMachine(t, ""), "swap": m} {
		got := strings.Split(m.disguise(t, program, "", "be"), "\n")
		for i, line := range strings.Split(want, "\n") {
			if i >= len(got) || got[i] != line {
				t.Fatalf("%s: line %d is %q, want %q", role, i+1, got[min(i, len(got)-1)], line)
			}
		}
	}
}

// Memory that the program allocates in each way works as without swap.
func TestSwapMemoryProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t, swap)
	p := m.startMemory("be")
	for i, how := range ways {
		p.carriesOut("step %d 3", p.filled(how, 3_000_001, i))
	}
	p.carriesOut("step %d 3", p.filled("memory", 600<<20+5, 77))
	p.right(len(ways) + 1)
	before, total := p.free()
	p.working(2<<20, "chains", "graphs", "captures", "copies", "streams", "per_thread", "contexts", "growing", "churn")
	p.rounds("stop")
	p.right(len(ways) + 1)
	if after, _ := p.free(); after != before {
		t.Errorf("%d bytes are free of %d, before the threads %d", after, total, before)
	}
	p.finish()
}

// So does memory of one GPU that kernels of another one use.
func TestSwapMemoryProgramPeers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, swap, "SIMCUDA_DEVICES=2")
	p := m.startMemory("be")
	p.onTwoGPUs()
	p.working(2<<20, "chains", "peers")
	p.rounds("stop")
	p.finish()
}

// sharesByHandle says whether a process sees what another one writes, by a handle of legacy IPC, and the other way round.
func sharesByHandle(t *testing.T, owner, other *process, bytes uint64) {
	t.Helper()
	mine := owner.filled("memory", bytes, 1)
	var what, handle string
	var theirs, again, result int
	if owner.ask(fmt.Sprintf("handle %d", mine), "%s %s result %d", &what, &handle, &result); result != 0 {
		t.Fatalf("handle: %d; %s", result, owner.stderr.String())
	}
	if other.ask("open "+handle, "buffer %d result %d", &theirs, &result); result != 0 {
		t.Fatalf("open: %d; %s", result, other.stderr.String())
	}
	other.carriesOut("expect %d 1", theirs)
	other.right(1)
	other.carriesOut("fill %d 7", theirs)
	owner.carriesOut("expect %d 7", mine)
	owner.right(1)
	if other.ask("open "+handle, "buffer %d result %d", &again, &result); result != 0 {
		t.Fatalf("open again: %d", result)
	}
	var same int
	if other.ask(fmt.Sprintf("same %d %d", theirs, again), "same %d", &same); same != 1 {
		t.Error("a handle that is opened twice has two addresses")
	}
	other.carriesOut("free %d", theirs)
	other.carriesOut("expect %d 7", again)
	other.right(1)
	owner.carriesOut("free %d", mine)
	other.right(1) // it has the pages until it closes the last of its two
	other.carriesOut("free %d", again)
	if owner.ask("open "+handle, "buffer %d result %d", &again, &result); result == 0 {
		t.Error("a process opens its own handle")
	}
	if other.ask("open "+handle, "buffer %d result %d", &again, &result); result == 0 {
		t.Error("a handle of memory that was freed is opened")
	}
}

// The driver's copies from pageable memory return before they are done. Another process, on its turn, reads the copied bytes all the same.
func TestCopiedOffTurn(t *testing.T) {
	t.Parallel()
	for _, bytes := range []uint64{1000, 60_000} {
		m := newMachine(t, "mechanisms = [\"turns\"]\n")
		owner, other := m.startMemory("be"), m.startMemory("be")
		mine, theirs := owner.shared(other, "memory", bytes, 1)
		for contents := 2; m.peer(owner).Counters.Turns < 5 || m.peer(other).Counters.Turns < 5; contents++ {
			owner.carriesOut("fill %d %d", mine, contents)
			other.carriesOut("expect %d %d", theirs, contents)
			other.right(1)
		}
		owner.finish()
		other.finish()
	}
}

// The library does not wait for a copy within the device: work ahead of it may wait for the program.
func TestCopyWithinTheDeviceReturns(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "mechanisms = [\"turns\"]\n")
	other, p := m.startMemory("be"), m.startMemory("be")
	from, to := p.filled("memory", 1000, 1), p.filled("memory", 1000, 2)
	other.filled("memory", 1000, 3)
	m.until("they take turns", func() bool {
		p.right(2)
		other.right(1)
		return m.peer(p).Counters.Turns > 1 && m.peer(other).Counters.Turns > 1
	})
	p.carriesOut("duplicate %d %d", from, to)
	p.carriesOut("unblock")
	p.right(2)
	p.finish()
	other.finish()
}

// A copy within the device has returned, and the kernel ahead of it may still run: the window stays open.
func TestWindowBehindACopyWithinTheDevice(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "mechanisms = [\"timeslice\", \"hold\", \"gate\"]\n")
	be, lc := m.startMemory("be"), m.startMemory("lc")
	be.filled("memory", 1000, 3)
	from, to := lc.filled("memory", 1000, 1), lc.filled("memory", 1000, 2)
	m.joined(be, lc)
	m.until("LC has seen BE, and counts", func() bool { return m.peer(lc).TimesliceUs > 10_000 }) // the fair slice is 2048 us
	m.until("the window is open while the kernel runs", func() bool {
		// Once more where the kernel has ended before the heart beats.
		var us int
		lc.ask("us 3000000", "us %d", &us)
		lc.carriesOut("copied %d %d", from, to)
		m.beats(lc, 1)
		open := m.peer(lc).WindowOpen
		lc.right(2)
		m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
		return open
	})
	lc.finish()
	be.finish()
}

// Memory of cuMemAlloc is opened by another process, by a handle of legacy IPC.
func TestSwapShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, ofOwner, ofOther string
		bytes                  uint64
	}{
		{"small", swap, swap, 1000}, {"large", swap, swap, 4<<20 + 1}, {"chunks", swap, swap, 300 << 20},
		{"native", stays, swap, 4 << 20}, {"opened natively", swap, stays, 1000}, {"opened where memory stays", swap, stays, 300<<20 + 1},
		{"opened by a latency-critical process", "", "", 300<<20 + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.ofOwner)
			owner := m.startMemory("be")
			owner.free() // it has a context now
			m.configure(c.ofOther + fmt.Sprintf("\n[segment]\ndirectory = %q\n", m.dir))
			role := "be"
			if c.ofOther == "" { // nothing is configured: only best-effort memory swaps
				role = "lc"
			}
			other := m.startMemory(role)
			other.free()
			before := m.onGPU()
			sharesByHandle(t, owner, other, c.bytes)
			if after := m.onGPU(); after != before {
				t.Errorf("%d bytes are in use in the end, before %d", after, before)
			}
			owner.finish()
			other.finish()
		})
	}
}

// The driver refuses one of the calls by which a handle is opened: nothing is left, and the next try succeeds.
func TestSwapRefusedOpens(t *testing.T) {
	t.Parallel()
	for _, fail := range []string{
		"cuMemAddressReserve:2", "cuMemImportFromShareableHandle:1", "cuMemImportFromShareableHandle:2", "cuMemMap:2", "cuMemMap:3", "cuMemSetAccess:2",
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, swap)
			owner := m.startMemory("be")
			mine := owner.filled("memory", 300<<20, 1)
			var what, handle string
			var theirs, result int
			if owner.ask(fmt.Sprintf("handle %d", mine), "%s %s result %d", &what, &handle, &result); result != 0 {
				t.Fatalf("handle: %d", result)
			}
			m.environment = []string{"SIMCUDA_FAIL=" + fail}
			other := m.startMemory("be")
			free, _ := other.free()
			m.environment = nil
			before := m.onGPU()
			if other.ask("open "+handle, "buffer %d result %d", &theirs, &result); result == 0 {
				t.Fatal("no call was refused")
			}
			if other.ask("open "+handle, "buffer %d result %d", &theirs, &result); result != 0 {
				t.Fatalf("open: %d; %s", result, other.stderr.String())
			}
			other.carriesOut("expect %d 1", theirs)
			other.right(1)
			other.carriesOut("free %d", theirs)
			if now, _ := other.free(); now != free {
				t.Errorf("%d bytes are free in the end, before %d", now, free)
			}
			if after := m.onGPU(); after != before {
				t.Errorf("%d bytes are in use in the end, before %d", after, before)
			}
			owner.carriesOut("expect %d 1", mine)
			owner.right(1)
			owner.finish()
			other.finish()
		})
	}
}

// onGPU is the memory in use on the GPU, as the driver tells a process that has no role.
func (m *machine) onGPU() uint64 {
	m.t.Helper()
	p := m.startMemory("")
	free, total := p.free()
	p.finish()
	return total - free
}

// allocateAndFree is the life of a few buffers. Calls of the driver may fail once; the next try has to succeed.
func allocateAndFree(t *testing.T, p *process) {
	t.Helper()
	var list []int
	for i, bytes := range []uint64{300 << 20, 1000, 3_000_001} {
		buffer, result := p.allocate("memory", bytes)
		if result != 0 {
			if buffer, result = p.allocate("memory", bytes); result != 0 {
				t.Fatalf("the second try to allocate %d bytes: %d; %s", bytes, result, p.stderr.String())
			}
		}
		p.carriesOut("fill %d %d", buffer, i)
		list = append(list, buffer)
	}
	p.right(len(list))
	for _, buffer := range list {
		var result int
		for range 2 {
			if p.ask(fmt.Sprintf("free %d", buffer), "result %d", &result); result == 0 {
				break
			}
		}
		if result != 0 {
			t.Fatalf("the second try to free: %d; %s", result, p.stderr.String())
		}
	}
}

// The driver refuses one of the calls by which memory is allocated and freed: nothing is lost, and the next one is right.
func TestSwapRefusedCalls(t *testing.T) {
	t.Parallel()
	for _, call := range []struct {
		name string
		last int
	}{
		{"cuMemAddressReserve", 3}, {"cuMemCreate", 4}, {"cuMemMap", 4}, {"cuMemSetAccess", 3}, {"cuMemUnmap", 2},
		{"cuMemRelease", 4}, {"cuMemAddressFree", 2}, {"cuCtxSynchronize", 2}, {"cuMemAlloc", 2}, {"cuMemFree", 1},
	} {
		for n := 1; n <= call.last; n++ {
			for _, code := range []int{999, 2} {
				fail := fmt.Sprintf("%s:%d:%d", call.name, n, code)
				t.Run(fail, func(t *testing.T) {
					t.Parallel()
					m := newMachine(t, swap, "SIMCUDA_FAIL="+fail)
					p := m.startMemory("be")
					free, _ := p.free()
					m.environment = nil
					before := m.onGPU()
					allocateAndFree(t, p)
					if after := m.onGPU(); after != before {
						t.Errorf("%d bytes are in use in the end, before %d", after, before)
					}
					if now, _ := p.free(); now != free {
						t.Errorf("the program has %d bytes free in the end, before %d", now, free)
					}
					if _, stderr := p.finish(); !strings.Contains(stderr, "simulated CUDA driver") {
						t.Error("no call was refused")
					}
				})
			}
		}
	}
}
