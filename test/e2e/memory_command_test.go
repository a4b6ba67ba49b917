package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// gpreempt runs the command beside the processes of a machine.
func (m *machine) gpreempt(arguments ...string) result {
	m.t.Helper()
	got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), arguments...))
	if err != nil {
		m.t.Fatal(err)
	}
	return got
}

// does runs gpreempt with a process's number behind the arguments. The command must succeed, and print what is wanted.
func (m *machine) does(p *process, want string, arguments ...string) {
	m.t.Helper()
	if got := m.gpreempt(append(arguments, fmt.Sprint(p.pid()))...); got.status != 0 || !strings.Contains(got.stdout, want) || got.stderr != "" {
		m.t.Fatalf("%v: %+v, want %q; the program says %s", arguments, got, want, p.stderr.String())
	}
}

// People move memory by the command, and stop and continue a program.
func TestMemoryCommands(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.startFilled("be", 60<<20, 1)
	p.filled("mapped", 40<<20, 2)
	m.joined(p)
	m.until("memory is published", func() bool { return m.memory(p).Resident >= 100<<20 && m.peer(p).Published })
	for range 2 {
		m.does(p, " went to host memory in ", "swap", "out")
		if now := m.memory(p); now.Swapped < 100<<20 || now.Resident != 0 {
			t.Fatalf("out: %+v", now)
		}
		m.does(p, " came back in ", "swap", "in")
		if now := m.memory(p); now.Swapped != 0 || now.Resident < 100<<20 {
			t.Fatalf("in: %+v", now)
		}
		m.does(p, " went to host memory in ", "swap", "out")
		p.right(2) // which brings it back
	}
	p.working(2<<20, "chains", "copies", "graphs")
	for range 2 {
		m.does(p, ": is suspended: ", "suspend")
		m.until("all threads wait", func() bool { return m.memory(p).Waiting == 3 })
		if now := m.memory(p); now.State != "suspended" || now.Swapped < 100<<20 || now.Resident != 0 {
			t.Fatalf("suspended: %+v", now)
		}
		var seen struct {
			GPUs []struct{ Peers []segment.Peer }
		}
		if top := m.gpreempt("top", "--once", "--json"); json.Unmarshal([]byte(top.stdout), &seen) != nil || len(seen.GPUs) != 1 || len(seen.GPUs[0].Peers) != 1 || seen.GPUs[0].Peers[0].Memory.State != "suspended" {
			t.Fatalf("top: %+v", top)
		}
		m.does(p, ": goes on: ", "resume")
		p.advances(3)
	}
	p.rounds("stop")
	p.right(2)
	if got := m.gpreempt("swap", "out", "--gpu", "GPU-0", fmt.Sprint(p.pid())); got.status != 1 || got.stdout != "" || !strings.Contains(got.stderr, "not on a GPU whose UUID begins with") {
		t.Errorf("another GPU: %+v", got)
	}
}

// The first swap pins host memory, which takes longer than the program's work may take to end. That is no reason to give up.
func TestMemoryGoesAfterALongPinning(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "", "SIMCUDA_PIN_MS_PER_GB=11000") // 3 s for the 256 MiB that are pinned at once
	p := m.startFilled("be", 30<<20, 1)
	m.joined(p)
	m.until("memory is published", func() bool { return m.memory(p).Resident >= 30<<20 })
	m.does(p, " went to host memory in ", "swap", "out")
	p.right(1)
}

// Memory of which another process has a handle stays, and the command says so.
func TestMemoryCommandsSayWhatStays(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	p := m.startMemory("be")
	shared := p.filled("shareable", 60<<20, 1)
	var what, descriptor string
	var refused int
	if p.ask(fmt.Sprintf("descriptor %d", shared), "%s %s result %d", &what, &descriptor, &refused); refused != 0 {
		t.Fatalf("descriptor: %d", refused)
	}
	m.joined(p)
	m.until("it is published why", func() bool {
		return m.peer(p).Published && m.memory(p).Pinned >= 60<<20 && strings.Contains(fmt.Sprint(m.memory(p).PinnedBy), "exported")
	})
	if got := m.gpreempt("swap", "out", fmt.Sprint(p.pid())); got.status != 1 || !strings.Contains(got.stderr, "nothing can go: ") || !strings.Contains(got.stderr, "(exported") {
		t.Errorf("%+v", got)
	}
	other := p.filled("memory", 60<<20, 2)
	m.until("it is published", func() bool { return m.memory(p).Resident >= 60<<20 })
	m.does(p, " cannot go (exported", "swap", "out")
	p.right(other + 1)
}

// A user who may by the broker's policy pauses a program, and lets it go on.
func TestSetPauses(t *testing.T) {
	t.Parallel()
	m := newSmall(t, "")
	if m.broker == "" {
		text, err := os.ReadFile(m.config) // which ends in the table [segment]
		if err != nil {
			t.Fatal(err)
		}
		m.configure(fmt.Sprintf("%sbroker = %q\n", text, m.startBroker()))
	}
	p := m.startFilled("be", 60<<20, 1)
	m.joined(p)
	p.working(2<<20, "chains")
	for range 2 {
		m.does(p, "", "set", "--pause")
		m.until("its thread waits, and its memory is out", func() bool {
			now := m.memory(p)
			return now.State == "suspended" && now.Waiting == 1 && now.Resident == 0 && now.Swapped >= 60<<20
		})
		m.does(p, "", "set", "--pause=false")
		p.advances(3)
	}
	p.rounds("stop")
	p.right(1)
}
