package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A TSG whose channels are being freed cannot be suspended. The library does not take that for a refusal, and turns go on.
func TestTurnsGoOnWhileContextsEnd(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_FREE_US=8000")
	other, be := m.start("be"), m.startAs(m.command("be", compile(t, "testdata/contexts.c")))
	m.joined(other, be)
	other.runBestEffort()
	for range 6 {
		be.hear()
	}
	for _, p := range []*process{other, be} {
		if peer := m.peer(p); !slices.Contains(peer.Mechanisms, "turns") || slices.Contains(peer.Fallbacks, "suspend_refused") {
			t.Errorf("%+v", peer)
		}
	}
	turns := m.peer(other).Counters.Turns
	m.until("turns go on", func() bool { return m.peer(other).Counters.Turns > turns+5 })
	_ = be.stdin.Close()
	for range be.lines {
	}
	if err := be.wait(); err != nil || be.stderr.String() != "" {
		t.Errorf("%v; stderr %q", err, be.stderr.String())
	}
}

// The library sets the timeslice of a program's context once, whatever the number of its channels.
func TestTimesliceIsSetOnce(t *testing.T) {
	t.Parallel()
	for _, connections := range []string{"1", "8", "32"} {
		m := newMachine(t, "", "CUDA_DEVICE_MAX_CONNECTIONS="+connections)
		lc := m.start("lc")
		m.joined(lc)
		m.until("the timeslice is set", func() bool { return m.peer(lc).Counters.TimesliceSets > 0 })
		lc.request(5, 3, "stream")
		if sets := m.peer(lc).Counters.TimesliceSets; sets != 1 {
			t.Errorf("%s channels: the timeslice was set %d times", connections, sets)
		}
	}
}

// A process exits while its kernels are stopped: the end of its contexts is no failure of the driver.
func TestNothingIsGivenUpAtTheEnd(t *testing.T) {
	t.Parallel()
	late := filepath.Join(t.TempDir(), "late.so")
	source := filepath.Join(t.TempDir(), "late.c")
	// libc writes the rest of a stream behind all destructors: the driver is gone by then, and the process lives on.
	if err := os.WriteFile(source, []byte(`#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
static ssize_t last(void *cookie, const char *bytes, size_t size) { sleep(3); return (ssize_t)size; }
__attribute__((constructor)) static void begin(void) {
	FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = last});
	if (f)
		fputs("x", f);
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", late, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	m := newStoppable(t, "")
	cmd := m.command("be", filepath.Join(filepath.Dir(worker), "chains"), simulated("sim.cubin"))
	for i, v := range cmd.Env {
		if strings.HasPrefix(v, "LD_PRELOAD=") {
			cmd.Env[i] = "LD_PRELOAD=" + late + ":" + strings.TrimPrefix(v, "LD_PRELOAD=")
		}
	}
	be := m.startAs(cmd)
	be.hears("ready")
	lc := m.start("lc")
	m.joined(be, lc)
	m.until("windows stop BE", func() bool {
		be.say("single 8")
		lc.request(3, 1, "stream")
		return be.hear() != "" && m.stops(be) > 0
	})
	lc.say("lc 1 2 700000 0 stream")
	m.until("a window is open", func() bool { return m.peer(lc).WindowOpen })
	began := time.Now()
	be.say("leave 60") // which it only notes down
	lc.hear()
	if err := be.wait(); err != nil || be.stderr.String() != "" {
		t.Errorf("%v; stderr %q", err, be.stderr.String())
	}
	if time.Since(began) < 3*time.Second { // last() sleeps so long
		t.Error("it did not live on for a while")
	}
	lc.finish()
}

// The program kept.c: a context has other users as its end is asked for. Another thread works there meanwhile, though windows stop it: all
// of that runs.
func TestContextsGoOnWithOtherUsers(t *testing.T) {
	t.Parallel()
	m := newStoppable(t, "")
	be, lc := m.startOrdered(compile(t, "testdata/kept.c"))
	m.stopped(be, lc, "plain 8")
	requests(t, lc)
	be.say("detached 20")
	be.hears("right")
	be.says("the driver keeps a context", 1)
	if stderr := be.stderr.String(); strings.Count(stderr, "\n") > 1 {
		t.Errorf("stderr %q", stderr)
	}
}

// The library makes its things in a context before the program's first work. A load of code waits for all work of the context, and keeps
// others from putting work there. So a later load would wait for ever behind work that waits for the program's next call.
func TestFirstWorkWaitsForTheProgram(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/fresh.c")
	for _, loading := range []string{"EAGER", "LAZY"} {
		for role, mechanisms := range map[string]string{"lc": `["timeslice", "hold"]`, "be": `["timeslice", "blp"]`} {
			t.Run(loading+"/"+role, func(t *testing.T) {
				m := newMachine(t, "mechanisms = "+mechanisms+"\n[blp]\ncache_mb = 0\n", "CUDA_MODULE_LOADING="+loading)
				beside := m.start(map[string]string{"lc": "be", "be": "lc"}[role]) // calls are seen from the start
				m.joined(beside)
				p := m.startAs(m.command(role, program))
				p.hears("went well")
				if _, stderr := p.finish(); stderr != "" {
					t.Errorf("stderr %q", stderr)
				}
				beside.finish()
			})
		}
	}
}
