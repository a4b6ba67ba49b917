package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A helper that stands still is ended like one that has gone, and another one takes its place. Calls that wait for its decisions go on.
func TestSilentHelper(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", oftenKilled)
	be := m.start("be")
	m.joined(be)
	be.runBestEffort()
	pid := 0
	m.until("it has a helper", func() bool { pid = helper(be.pid()); return pid != 0 })
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m.until("it has ended", func() bool { _, _, runs := parentOf(pid); return !runs })
	m.until("there is another one", func() bool { next := helper(be.pid()); return next != 0 && next != pid })
	m.joined(be)
	m.runs(be)
	if _, stderr := be.finish(); !strings.Contains(stderr, "the helper process has done nothing for 30 s") {
		t.Errorf("stderr %q", stderr)
	}
}

// The helper's parent has the program's memory, and the rights that the program had when it started. It can do nothing with these.
func TestHelpersParentIsConfined(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be := m.start("be")
	m.joined(be)
	parent, _, _ := parentOf(helper(be.pid()))
	status := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", parent))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if parent == be.pid() || !strings.Contains(status(), "\nNoNewPrivs:\t1\n") {
		t.Errorf("process %d of %d: %s", parent, be.pid(), status())
	}
	if !strings.Contains(status(), "\nSeccomp:\t2\n") {
		t.Errorf("without a filter: %s", status())
	}
	be.finish()
}

// A program with a low limit of descriptors has a helper all the same.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	for _, limit := range []int{64, 256} {
		p := m.startAs(m.command("be", "prlimit", fmt.Sprintf("--nofile=%d", limit), worker))
		m.joined(p)
		if _, stderr := p.finish(); stderr != "" {
			t.Errorf("%d descriptors: stderr %q", limit, stderr)
		}
	}
}
