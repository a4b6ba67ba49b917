package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A helper that stands still is ended like one that has gone, and another one takes its place. Calls that wait for its decisions go on.
func TestSilentHelper(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", oftenKilled, "GPREEMPT_TEST_SILENT_LOOKS=20")
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
	if _, stderr := be.finish(); !strings.Contains(stderr, "the helper process has done nothing for minutes") {
		t.Errorf("stderr %q", stderr)
	}
}

// The helper's parent has the program's memory, and the rights that the program had when it started. It can do nothing with these.
func TestHelpersParentIsConfined(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be := m.start("be")
	older := m.startAs(m.command("be", compile(t, "testdata/filters.c"), "kept", strconv.Itoa(int(unix.ENOSYS)), strconv.Itoa(unix.SYS_CLOSE_RANGE))) // as Linux before 5.9
	older.hears("ready")
	for _, p := range []*process{be, older} {
		m.joined(p)
		parent, _, _ := parentOf(helper(p.pid()))
		status := func() string {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", parent))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		filters := "\nSeccomp_filters:\t1\n"
		if p == older {
			filters = "\nSeccomp_filters:\t2\n"
		}
		m.until("it is confined", func() bool {
			is := status()
			return parent != p.pid() && strings.Contains(is, "\nNoNewPrivs:\t1\n") && (strings.Contains(is, filters) || !strings.Contains(is, "Seccomp_filters"))
		})
		p.finish()
	}
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
