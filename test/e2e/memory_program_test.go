package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// startMemory starts testdata/memory.c; its comment says what can be said to it.
func (m *machine) startMemory(role string, arguments ...string) *process {
	m.t.Helper()
	return m.startAs(m.command(role, memoryProgram(), arguments...))
}

// startFilled starts it with a buffer of so many bytes, filled with what a number says.
func (m *machine) startFilled(role string, bytes uint64, contents int) *process {
	m.t.Helper()
	p := m.startMemory(role)
	p.filled("memory", bytes, contents)
	return p
}

func memoryProgram() string { return filepath.Join(filepath.Dir(worker), "memory") }

// allocate returns the buffer's number and the driver's result.
func (p *process) allocate(how string, bytes uint64) (buffer, result int) {
	p.m.t.Helper()
	p.ask(fmt.Sprintf("alloc %s %d", how, bytes), "buffer %d result %d", &buffer, &result)
	return buffer, result
}

// filled is allocate with contents; it fails the test if there is no memory.
func (p *process) filled(how string, bytes uint64, seed int) (buffer int) {
	p.m.t.Helper()
	buffer, result := p.allocate(how, bytes)
	if result != 0 {
		p.m.t.Fatalf("alloc %s %d: %d", how, bytes, result)
	}
	p.carriesOut("fill %d %d", buffer, seed)
	return buffer
}

// carriesOut says a command that answers with a result, which has to be 0.
func (p *process) carriesOut(format string, arguments ...any) {
	p.m.t.Helper()
	var result int
	command := fmt.Sprintf(format, arguments...)
	if p.ask(command, "result %d", &result); result != 0 {
		p.m.t.Fatalf("%s: %d; stderr %s", command, result, p.stderr.String())
	}
}

// right checks every byte of every buffer.
func (p *process) right(buffers int) {
	p.m.t.Helper()
	var wrong, all int
	if p.ask("check all", "wrong %d of %d", &wrong, &all); wrong != 0 || all != buffers {
		p.m.t.Fatalf("%d buffers are wrong of %d, want 0 of %d; stderr %s", wrong, all, buffers, p.stderr.String())
	}
}

// working starts threads that work all the time, and returns once each has ended some rounds.
func (p *process) working(bytes uint64, kinds ...string) {
	p.m.t.Helper()
	for i, kind := range kinds {
		var started int
		if p.ask(fmt.Sprintf("start %s %d", kind, bytes), "started %d", &started); started != i {
			p.m.t.Fatalf("%s is thread %d, want %d", kind, started, i)
		}
	}
	p.advances(3)
}

// onTwoGPUs has the program use two, which are peers. Commands go on for the first.
func (p *process) onTwoGPUs() {
	p.m.t.Helper()
	for _, device := range []int{1, 0} {
		var used int
		p.ask(fmt.Sprintf("device %d", device), "device %d", &used)
	}
	p.carriesOut("peers")
}

// rounds returns the rounds of the thread with the fewest. Wrong contents and allocations that failed fail the test.
func (p *process) rounds(command string) (least int) {
	p.m.t.Helper()
	var wrong, failed, total int
	p.ask(command, "wrong %d error %d least %d total %d", &wrong, &failed, &least, &total)
	if wrong != 0 || failed != 0 {
		p.m.t.Fatalf("wrong %d, error %d; stderr %s", wrong, failed, p.stderr.String())
	}
	return least
}

// advances waits until each thread has ended some more rounds.
func (p *process) advances(rounds int) {
	p.m.t.Helper()
	before := p.rounds("status")
	p.m.until("each thread goes on", func() bool { return p.rounds("status") >= before+rounds })
}

func (p *process) free() (free, total uint64) {
	p.m.t.Helper()
	p.ask("info", "free %d total %d", &free, &total)
	return free, total
}

var ways = []string{"memory", "pitch", "managed", "async", "pool", "mapped", "pieces", "forgotten", "shareable"}

// The program itself, in a process with the library: memory allocated in each way keeps its contents.
func TestMemoryProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	p := m.startMemory("be")
	for i, how := range ways {
		p.carriesOut("step %d 3", p.filled(how, 3_000_001, i))
	}
	p.right(len(ways))
	before, _ := p.free()
	p.working(2<<20, "chains", "graphs", "captures", "copies", "streams", "per_thread", "contexts", "growing", "churn")
	p.rounds("stop")
	p.right(len(ways))
	if after, _ := p.free(); after != before {
		t.Errorf("%d bytes are free, before the threads %d", after, before)
	}
	if _, stderr := p.finish(); stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
}

// shared is a buffer of one process that another one has opened, both filled.
func (p *process) shared(other *process, how string, bytes uint64, seed int) (mine, theirs int) {
	t := p.m.t
	t.Helper()
	command, adopt := "handle %d", "open %s"
	if how != "memory" {
		command, adopt = "descriptor %d", fmt.Sprintf("adopt %d %%s %d", p.pid(), bytes)
	}
	mine = p.filled(how, bytes, seed)
	var what, handle string
	var result int
	if p.ask(fmt.Sprintf(command, mine), "%s %s result %d", &what, &handle, &result); result != 0 {
		t.Fatalf("%s: %d", command, result)
	}
	if other.ask(fmt.Sprintf(adopt, handle), "buffer %d result %d", &theirs, &result); result != 0 {
		t.Fatalf("%s: %d", adopt, result)
	}
	other.carriesOut("expect %d %d", theirs, seed)
	return mine, theirs
}

// A process opens memory of another one, and each reads what the other writes. That holds also while memory of both leaves and comes back:
// shared memory stays.
func TestMemoryProgramsShare(t *testing.T) {
	t.Parallel()
	for _, settings := range []string{"", "mechanisms = [\"swap\"]\n"} {
		m := newMachine(t, settings)
		owner, other := m.startMemory("be"), m.startMemory("be")
		owner.filled("memory", 5_000_000, 99)
		other.filled("memory", 5_000_000, 98)
		for i, how := range []string{"memory", "shareable"} {
			mine, theirs := owner.shared(other, how, 4<<20, i)
			for round := range 4 {
				if settings != "" {
					m.asks(owner, segment.AskedOut)
					m.asks(other, segment.AskedOut)
				}
				other.right(i + 2)
				other.carriesOut("fill %d %d", theirs, 10+round)
				owner.carriesOut("expect %d %d", mine, 10+round)
				owner.right(i + 2)
				owner.carriesOut("step %d 1", 0)
			}
		}
		other.finish()
		owner.right(3)
		owner.finish()
	}
}

// Kernels of one GPU work on memory of another.
func TestMemoryProgramPeers(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_DEVICES=2")
	p := m.startMemory("be")
	p.onTwoGPUs()
	p.working(2<<20, "chains", "peers")
	p.rounds("stop")
	p.finish()
}
