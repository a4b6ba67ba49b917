package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// built holds the command, a library that can be preloaded and does nothing, and a CUDA driver.
var built string

func TestMain(m *testing.M) {
	os.Exit(clitest.Main(m, &built, ".", func(folder string) error { return clitest.Driver(folder, "testdata/libcuda.c") }))
}

type result struct {
	status         int
	stdout, stderr string
}

// gpreempt runs the command in an empty directory with a clean environment plus env.
func gpreempt(t *testing.T, env []string, arguments ...string) result {
	t.Helper()
	status, stdout, stderr := clitest.Run(t, built+"/gpreempt", env, arguments...)
	return result{status, stdout, stderr}
}

var write = clitest.Write

func TestVersionHelpCompletion(t *testing.T) {
	if r := gpreempt(t, nil, "--version"); r.status != 0 || !strings.Contains(r.stdout, clitest.Version) {
		t.Errorf("--version: %+v", r)
	}
	for _, subcommand := range subcommands {
		name := subcommand().Name()
		if r := gpreempt(t, nil, "help", name); r.status != 0 || !strings.Contains(r.stdout, "gpreempt "+name) {
			t.Errorf("help %s: %+v", name, r)
		}
	}
	if r := gpreempt(t, nil, "completion", "bash"); r.status != 0 || !strings.Contains(r.stdout, "gpreempt") {
		t.Errorf("completion: status %d, %s", r.status, r.stderr)
	}
	for _, arguments := range [][]string{{"completion"}, {"completion", "csh"}} {
		if r := gpreempt(t, nil, arguments...); r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, "there are bash, fish, ") {
			t.Errorf("%q: %+v", arguments, r)
		}
	}
	if r := gpreempt(t, nil, "__complete", "run", "--priority", ""); !strings.Contains(r.stdout, "lc\nbe\noff\n") {
		t.Errorf("completion of --priority: %+v", r)
	}
	if r := gpreempt(t, nil, "--wrong"); r.status != 2 || r.stdout != "" {
		t.Errorf("--wrong: %+v", r)
	}
}

// Wrong arguments are said in our words, in a line, with status 2.
func TestWrongArguments(t *testing.T) {
	for want, arguments := range map[string]string{
		"topp: there is no such command; did you mean top?":                                    "topp",
		"nonsense: there is no such command; gpreempt --help lists the commands":               "nonsense",
		`completion bash: takes no argument, but was given "extra"`:                            "completion bash extra",
		`top: takes no argument, but was given "x"`:                                            "top x",
		`--interval "5": must be a time with its unit, for example 500ms, 2s or 1m`:            "top --interval 5",
		`--timeout "soon": must be a time with its unit, for example 500ms, 2s or 1m`:          "swap --timeout soon out 1",
		`--share "half": must be a number`:                                                     "set --share half 1",
		`--sm "90a": must be a whole number`:                                                   "patch --sm 90a x",
		"--share: a value must follow":                                                         "set --share",
		"-1: there is no such flag; see gpreempt resume --help":                                "resume -1",
		"--bad: there is no such flag; see gpreempt --help":                                    "--bad",
		"patch: must be followed by one file, for example: gpreempt patch libexample.so":       "patch",
		`--pause "maybe": must be true or false`:                                               "set --pause=maybe 1",
		"swap: must be followed by out or in, and the number of a process, for example: ":      "swap sideways 1",
		"set: nothing to set; give --priority, --share, --share-max, --objective, --pause or ": "set 1",
	} {
		if r := gpreempt(t, nil, strings.Fields(arguments)...); r.status != 2 || r.stdout != "" || !strings.HasPrefix(r.stderr, "gpreempt: "+want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %s", arguments, r, want)
		}
	}
	if r := gpreempt(t, nil); r.status != 0 || !strings.Contains(r.stdout, "\n  doctor ") {
		t.Errorf("without a command: %+v", r)
	}
}

// A limit of address space that Go cannot live with is said in a line.
func TestLittleAddressSpace(t *testing.T) {
	status, _, said := clitest.Run(t, "/bin/sh", nil, "-c", `ulimit -v 200000; exec "$0" version`, built+"/gpreempt")
	if want := "gpreempt: the limit of address space, 200000 KiB (ulimit -v), is too low"; status != 1 || !strings.HasPrefix(said, want) || strings.Count(said, "\n") != 1 {
		t.Errorf("status %d, %s, want %s", status, said, want)
	}
}

const showEnvironment = `printf '%s|%s|%s|%s|%s' "$LD_PRELOAD" "$GPREEMPT_PRIORITY" "$GPREEMPT_CONFIG" "$GPREEMPT_LOG" "$*"`

func TestRun(t *testing.T) {
	config := write(t, "my.toml", "hold.chain = 3\n")
	r := gpreempt(t, nil, "run", "--priority", "lc", "--config", config, "--log", "debug:/tmp/x", "--", "sh", "-c", showEnvironment, "sh", "--priority", "x")
	want := built + "/libgpreempt.so|lc|" + config + "|debug:/tmp/x|--priority x"
	if r != (result{0, want, ""}) {
		t.Errorf("got %+v, want %s", r, want)
	}
	// Variables of the environment stay, also without "--".
	r = gpreempt(t, []string{"LD_PRELOAD=libc.so.6", "GPREEMPT_PRIORITY=5"}, "run", "sh", "-c", showEnvironment)
	if want := "libc.so.6:" + built + "/libgpreempt.so|5|||"; r != (result{0, want, ""}) {
		t.Errorf("got %+v, want %s", r, want)
	}
	r = gpreempt(t, []string{"GPREEMPT_PRIORITY=be", "LD_PRELOAD=" + built + "/libgpreempt.so"}, "run", "sh", "-c", `echo "$LD_PRELOAD"; exit 7`)
	if r != (result{7, built + "/libgpreempt.so\n", ""}) {
		t.Errorf("twice: %+v", r)
	}
	for _, first := range []string{"#!/bin/sh\n", ""} {
		script := write(t, "script", first+"echo \"$GPREEMPT_PRIORITY $0 $*\"\n")
		if r := gpreempt(t, nil, "run", "-p", "be", script, "a", "b"); r != (result{0, "be " + script + " a b\n", ""}) {
			t.Errorf("script with %q: %+v", first, r)
		}
	}
	// The configuration that was checked counts wherever the program goes.
	own := write(t, "gpreempt.toml", "")
	for _, value := range []string{"", "gpreempt.toml"} {
		command := exec.Command(built+"/gpreempt", "run", "-p", "be", "sh", "-c", `cd / && echo "$GPREEMPT_CONFIG"`)
		command.Dir = filepath.Dir(own)
		command.Env = append(os.Environ(), "GPREEMPT_CONFIG="+value)
		if out, err := command.CombinedOutput(); err != nil || string(out) != own+"\n" {
			t.Errorf("GPREEMPT_CONFIG=%s: %v, %q; want %s", value, err, out, own)
		}
	}
	// A message of the loader about other things is no reason to refuse.
	if r := gpreempt(t, []string{"LD_DEBUG=files"}, "run", "-p", "be", "true"); r.status != 0 {
		t.Errorf("LD_DEBUG: %+v", r)
	}
}

// A program finds the signals as they were for gpreempt run.
func TestRunKeepsSignals(t *testing.T) {
	state := []string{"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"} // a shell would unblock all
	const start = `import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for s in (signal.SIGHUP, signal.SIGPROF, signal.SIGRTMIN): signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGCHLD, signal.SIGTERM, signal.SIGRTMIN + 1])
os.execvp(sys.argv[1], sys.argv[1:])`
	var shown [2]string
	for i, prefix := range [][]string{nil, {built + "/gpreempt", "run", "-p", "be"}} {
		out, err := exec.Command("python3", slices.Concat([]string{"-c", start}, prefix, state)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", prefix, err, out)
		}
		shown[i] = string(out)
	}
	if shown[0] != shown[1] {
		t.Errorf("under gpreempt run:\n%swithout:\n%s", shown[1], shown[0])
	}
}

func TestRunRefuses(t *testing.T) {
	broken := write(t, "libgpreempt.so", "no library")
	blank := filepath.Join(t.TempDir(), "a b")
	if err := os.WriteFile(blank, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	config := write(t, "gpreempt.toml", "[hold]\nmax_ms = -1\n")
	for _, c := range []struct {
		env       []string
		arguments []string
		status    int
		want      string
	}{
		{nil, []string{"run"}, 2, "which program?"},
		{nil, []string{"run", "--priority", "high", "true"}, 2, `--priority "high": must be lc, be, off, or a level from 0`},
		{nil, []string{"run", "--priority", "", "true"}, 2, `--priority "": must be`},
		{[]string{"GPREEMPT_PRIORITY=9"}, []string{"run", "true"}, 2, `GPREEMPT_PRIORITY = "9": must be`},
		{nil, []string{"run", "--log", "loud", "true"}, 2, `--log "loud": must be`},
		{[]string{"GPREEMPT_LOG=loud"}, []string{"run", "true"}, 2, `GPREEMPT_LOG = "loud": must be`},
		{nil, []string{"run", "--config", "none.toml", "true"}, 2, "gpreempt: --config \"none.toml\": no such file\n"},
		{nil, []string{"run", "--config", "/dev/null", "true"}, 2, "gpreempt: --config \"/dev/null\": must be a regular file\n"},
		{nil, []string{"run", "--config", config, "true"}, 2, config + ": hold.max_ms = -1: must be an integer from 1 to 10000 (ms)"},
		{[]string{"GPREEMPT_CONFIG=" + config}, []string{"run", "true"}, 2, config + ": hold.max_ms = -1"},
		{[]string{"GPREEMPT_LIBRARY=/none.so"}, []string{"run", "-p", "be", "true"}, 2, `GPREEMPT_LIBRARY = "/none.so": no such file`},
		{[]string{"GPREEMPT_LIBRARY=" + broken}, []string{"run", "-p", "be", "true"}, 2, broken + " does not load: ERROR: ld.so"},
		{[]string{"GPREEMPT_LIBRARY=" + blank}, []string{"run", "-p", "be", "true"}, 2, "a blank or a colon"},
		{nil, []string{"run", "-p", "be", "no-such-program"}, 127, `run: there is no program "no-such-program"`},
		{nil, []string{"run", "-p", "be", "/no/such/program"}, 127, "/no/such/program"},
		{nil, []string{"run", "-p", "be", "/etc/passwd"}, 126, "run /etc/passwd: permission denied\n"},
	} {
		r := gpreempt(t, c.env, c.arguments...)
		if r.status != c.status || r.stdout != "" || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v %v: %+v, want %d and one line with %s", c.env, c.arguments, r, c.status, c.want)
		}
	}
}

func TestRunWarns(t *testing.T) {
	source := write(t, "static.c", "int main(void) { return 3; }\n")
	static := filepath.Join(t.TempDir(), "static")
	if out, err := exec.Command("gcc", "-static", "-o", static, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc -static: %v\n%s", err, out)
	}
	if r := gpreempt(t, nil, "run", "-p", "be", static); r.status != 3 || !strings.Contains(r.stderr, "is statically linked: the library will not be loaded") {
		t.Errorf("static: %+v", r)
	}
	if err := os.Chmod(static, os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	if r := gpreempt(t, nil, "run", "-p", "be", static); r.status != 3 || !strings.Contains(r.stderr, "is setuid or setgid: the library will not be loaded") {
		t.Errorf("setuid: %+v", r)
	}
	if r := gpreempt(t, nil, "run", "true"); r.status != 0 || !strings.Contains(r.stderr, "nothing is preempted") {
		t.Errorf("no priority: %+v", r)
	}
}

func TestTop(t *testing.T) {
	base := t.TempDir()
	config := write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\n")
	if r := gpreempt(t, nil, "top", "--once", "--config", config); r.status != 0 || !strings.HasPrefix(r.stdout, "No process") {
		t.Errorf("nothing: %+v", r)
	}
	if r := gpreempt(t, nil, "top", "--once", "--json", "--config", config); r != (result{0, "{\"gpus\":[]}\n", ""}) {
		t.Errorf("nothing: %+v", r)
	}
	if r := gpreempt(t, nil, "top", "--once", "--interval", "2s", "--config", config); r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, "--interval does not apply to --once") {
		t.Errorf("an option that does not apply: %+v", r)
	}
	s, err := segment.Open(segment.Directory(base, os.Getuid()), segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slot, err := s.Claim(0, "server")
	if err != nil {
		t.Fatal(err)
	}
	p := s.Slot(slot)
	p.StartedNs.Store(segment.Now() - 10e9)
	p.WindowNs.Store(5e9)
	p.Windows.Store(1000)
	p.TimesliceUs.Store(100000)
	p.Fallbacks.Store(uint32(configs.FallbackNoHold))
	s.Line(slot).WindowOpenedNs.Store(1 << 62) // no time passed in it
	var got sample
	r := gpreempt(t, nil, "top", "--once", "--json", "--config", config)
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || len(got.GPUs) != 1 || len(got.GPUs[0].Peers) != 1 {
		t.Fatalf("%v: %+v", err, r)
	}
	gpu := got.GPUs[0]
	peer := gpu.Peers[0]
	if !peer.Alive || peer.Name != "server" || peer.Counters.Windows != 1000 || !peer.WindowOpen {
		t.Errorf("peer %+v", peer)
	}
	if peer.Rates["windows"] < 10 || peer.Rates["windows"] > 100 || peer.Rates["share"] < 0.05 || peer.Rates["share"] > 0.5 || gpu.LCShare != peer.Rates["share"] || gpu.BEShare != 0 {
		t.Errorf("rates %+v, GPU %+v", peer.Rates, gpu)
	}
	r = gpreempt(t, nil, "top", "--once", "--config", config)
	for _, want := range []string{"GPU-01000000-0000-0000-0000-000000000000", "server  lc     window  100 ms", "no_hold", "  HOLD/s  GATE/s  TURNS/s  "} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "REWRITTEN") || strings.Contains(r.stdout, "LEAVES") || strings.Contains(r.stdout, "DROPPED") {
		t.Errorf("tables of nothing in\n%s", r.stdout)
	}
	if strings.Contains(r.stdout, "a switch takes") {
		t.Errorf("what nobody has learnt in\n%s", r.stdout)
	}
	p.SwitchUs.Store(206)
	p.Kernels.Images.Store(4)
	p.Kernels.Cached.Store(3)
	p.Kernels.LoadNs.Store(7e6)
	p.Kernels.Seen.Store(20)
	p.Kernels.Guarded.Store(17)
	p.Kernels.Refused[segment.RefusedPeers].Store(2)
	p.Kernels.Refused[segment.RefusedSM].Store(1)
	p.Stop.Launches.Store(999)
	p.Stop.Uncovered.Store(1)
	p.Stop.Barriers.Store(6)
	p.Stop.Stops.Store(10)
	p.Stop.Cuts.Store(11)
	p.Stop.ResumedBlocks.Store(12345)
	p.Stop.Narrowed.Store(13)
	p.Stop.NarrowBlocks.Store(6500)
	p.Stop.NarrowNs.Store(14e6)
	p.Stop.HeldTogether.Store(4)
	p.Stop.HeldBehind.Store(3)
	p.Stop.HeldRefused.Store(1)
	p.Stop.DrainNs.Store(200e3)
	p.Stop.DrainMaxNs.Store(90e3)
	r = gpreempt(t, nil, "top", "--once", "--config", config)
	want := fmt.Sprint(os.Getpid()) + " 20 17 peers:2 sm:1 1000 99.9 % 6 10 11 12345 13 6500 8 14 ms 20 us 90 us 7 ms 3 of 4 on"
	if !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), want) {
		t.Errorf("no %q in\n%s", want, r.stdout)
	}
	if !strings.Contains(r.stdout, "  a switch takes 206 us\n") {
		t.Errorf("no switch in\n%s", r.stdout)
	}
	r = gpreempt(t, nil, "top", "--once", "--json", "--config", config)
	for _, want := range []string{`"switch_us":206`, `"kernels_seen":20`, `"kernels_refused":{"peers":2,"sm":1}`, `"launches":999`, `"resumed_blocks":12345`, `"narrowed":13`, `"narrow_blocks":6500`, `"narrow_ns":14000000`, `"drain_max_ns":90000`} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %s in\n%s", want, r.stdout)
		}
	}
	// A peer may claim anything.
	for _, c := range []*atomic.Uint64{&p.Stop.Launches, &p.Stop.Uncovered, &p.Stop.Stops, &p.Stop.DrainNs, &p.Stop.DrainMaxNs, &p.Stop.GivenUp, &p.Kernels.LoadNs} {
		c.Store(math.MaxUint64)
	}
	if r = gpreempt(t, nil, "top", "--once", "--config", config); r.status != 0 || !strings.Contains(r.stdout, "given up") {
		t.Errorf("%+v", r)
	}
	if strings.Contains(r.stdout, "RESIDENT") {
		t.Errorf("a table of nothing in\n%s", r.stdout)
	}
	topOfMemory(t, s, p, config)
	if r := gpreempt(t, nil, "top", "--interval", "1ms"); r.status != 2 {
		t.Errorf("--interval 1ms: %+v", r)
	}
}

// topOfMemory goes on with TestTop's segment.
func topOfMemory(t *testing.T, s *segment.Segment, p *segment.Slot, config string) {
	t.Helper()
	s.Line(0).WindowOpenedNs.Store(0)
	p.StartedNs.Store(segment.Now() - 10e9)
	m := &p.Memory
	m.State.Store(segment.MemoryOut)
	m.Resident.Store(3 << 29)
	m.Swapped.Store(2 << 30)
	m.Pinned.Store(5 << 20)
	m.Pins.Store(1 << 0)
	m.Cap.Store(9 << 20)
	m.Wanted.Store(7 << 20)
	m.Waiting.Store(2)
	m.Host.Store(4 << 30)
	m.OutBytes.Store(math.MaxUint64)
	m.Evictions.Store(6)
	m.Restores.Store(5)
	m.Failures.Store(1)
	m.WaitNs.Store(1500e6)
	m.Waits.Store(9)
	m.QuantumNs.Store(16e9)
	s.MemoryTurn.Store(1<<16 | 1)
	r := gpreempt(t, nil, "top", "--once", "--config", config)
	lines := strings.Join(strings.Fields(r.stdout), " ")
	for _, want := range []string{" server lc out 100 ms", fmt.Sprint(os.Getpid()) + " out, turn of 16s 1.5 GiB 2.0 GiB 5 MiB (exported) 9 MiB 7 MiB 2 4.0 GiB ", " GiB 0 MiB 6, 5 1 1.5s, 9"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	r = gpreempt(t, nil, "top", "--once", "--json", "--config", config)
	for _, want := range []string{`"memory_turn":0`, `"memory_turn":true`, `"memory":{"state":"out","resident":1610612736,"swapped":2147483648,"pinned":5242880,`, `"pinned_by":["exported"]`, `"out_bytes":`} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %s in\n%s", want, r.stdout)
		}
	}
	for _, c := range []*atomic.Uint64{&m.State, &m.Pins, &m.WaitNs, &m.QuantumNs} {
		c.Store(math.MaxUint64)
	}
	if r = gpreempt(t, nil, "top", "--once", "--config", config); r.status != 0 || !strings.Contains(r.stdout, "unknown, turn of") {
		t.Errorf("%+v", r)
	}
}

func TestMeasure(t *testing.T) {
	peer := func(level uint32, windows, windowNs, ranNs uint64) segment.Peer {
		return segment.Peer{Slot: int(level), Level: level, Alive: true, StartedNs: 1, Counters: segment.Counters{Windows: windows, WindowNs: windowNs}, RanNs: ranNs}
	}
	at := func(seconds uint64, peers ...segment.Peer) []segment.Snapshot {
		for i := range peers {
			peers[i].RanAtNs = 1 + seconds*1e9
		}
		return []segment.Snapshot{{Path: "x", TakenNs: 1 + seconds*1e9, Peers: peers}}
	}
	_, before := measure(at(10, peer(0, 100, 1e9, 0), peer(7, 0, 0, 5e9)), nil)
	open := peer(0, 120, 1e9, 0)
	open.WindowOpen, open.WindowOpenedNs = true, 1+11_500_000_000
	now, _ := measure(at(12, open, peer(7, 0, 0, 6e9)), before)
	gpu := now.GPUs[0]
	if lc := gpu.Peers[0].Rates; lc["windows"] != 10 || lc["share"] != 0.25 || lc["over_ns"] != 2e9 {
		t.Errorf("lc %+v", lc)
	}
	if be := gpu.Peers[1].Rates; be["share"] != 0.5 || gpu.LCShare != 0.25 || gpu.BEShare != 0.5 {
		t.Errorf("be %+v, GPU %+v", be, gpu)
	}
	swapping := peer(7, 0, 0, 0)
	swapping.Memory = &segment.Memory{MemoryCounters: segment.MemoryCounters[uint64]{OutBytes: 7e9, InBytes: 1e9}}
	first, between := measure(at(10, swapping), nil)
	swapping.Memory = &segment.Memory{MemoryCounters: segment.MemoryCounters[uint64]{OutBytes: 9e9, InBytes: 5e8}}
	if later, _ := measure(at(12, swapping), between); first.GPUs[0].Peers[0].Rates["in_bytes"] != 1e8 || later.GPUs[0].Peers[0].Rates["out_bytes"] != 1e9 || later.GPUs[0].Peers[0].Rates["in_bytes"] != 0 {
		t.Errorf("swapping: %+v, then %+v", first.GPUs[0].Peers[0].Rates, later.GPUs[0].Peers[0].Rates)
	}
	// Counters that go back, as a hostile peer's may, are no rate.
	if now, _ := measure(at(12, peer(0, 5, 0, 0)), before); now.GPUs[0].Peers[0].Rates["windows"] != 0 {
		t.Errorf("backwards: %+v", now.GPUs[0].Peers[0].Rates)
	}
}

func TestDoctor(t *testing.T) {
	base := t.TempDir()
	good := write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\n")
	mistaken := write(t, "gpreempt.toml", "hold.chain = 9\nsegment.directory = \""+base+"\"\n")
	swaps := write(t, "gpreempt.toml", "mechanisms = [\"swap\"]\nsegment.directory = \""+base+"\"\n")
	for _, c := range []struct {
		name string
		env  []string
		want []string
	}{
		{"wrong config", []string{"GPREEMPT_CONFIG=/none.toml"}, []string{`fail  config     GPREEMPT_CONFIG = "/none.toml": no such file; correct GPREEMPT_CONFIG; until then programs run without preemption`}},
		{"mistake in a file", []string{"GPREEMPT_CONFIG=" + mistaken}, []string{"must be an integer from 1 to 8 (kernels); correct " + mistaken + "; until then programs run without preemption\n", "\nNot ready: config, preload, picked. Next: correct " + mistaken + "; until"}},
		{"wrong priority", []string{"GPREEMPT_PRIORITY=x"}, []string{"fail  config     GPREEMPT_PRIORITY"}},
		{"crash", []string{"FAKE_CUDA=crash"}, []string{"fail  driver     the probe of libcuda.so.1 ended early (signal: aborted"}},
		{"no driver", []string{"FAKE_CUDA=no driver"}, []string{"fail  driver     cuInit: no CUDA-capable device is detected (100)"}},
		{"no device", []string{"FAKE_CUDA=no device"}, []string{"fail  device     no CUDA device"}},
		{"no library", []string{"GPREEMPT_LIBRARY=/none.so"}, []string{"fail  library    GPREEMPT_LIBRARY = \"/none.so\": no such file"}},
		{"an old GPU", []string{"FAKE_CUDA=sm_75"}, []string{"warn  device     Simulated GPU 0, compute capability 7.5, GPU-11111111-1111-1111-1111-111111111111: older than Ampere"}},
		{"an Ampere GPU", []string{"FAKE_CUDA=sm_80"}, []string{"ok    device     Simulated GPU 0, compute capability 8.0, GPU-11111111-1111-1111-1111-111111111111: expected to work, never measured"}},
		{"an unknown GPU", []string{"FAKE_CUDA=sm_199"}, []string{"warn  device     Simulated GPU 0, compute capability 19.9, GPU-11111111-1111-1111-1111-111111111111: never tried, and kernels made for sm_199 "}},
		{"an old driver", []string{"FAKE_CUDA=old driver"}, []string{"ok    memory     GPU-11111111-1111-1111-1111-111111111111: 80.0 GiB; the driver or the GPU lacks virtual memory management"}},
		{"an old driver that is to swap", []string{"FAKE_CUDA=old driver", "GPREEMPT_CONFIG=" + swaps}, []string{"warn  memory     GPU-11111111-1111-1111-1111-111111111111: 80.0 GiB; the driver or the GPU lacks virtual memory management; memory stays"}},
		// The library of this test does nothing.
		{"idle library", []string{"FAKE_CUDA=exclusive"}, []string{
			"ok    config     " + good,
			"segment    " + base,
			"ok    library    " + built + "/libgpreempt.so preloads",
			"ok    driver     libcuda.so.1 for CUDA 13.1",
			"warn  device     Simulated GPU 0, compute capability 9.0, GPU-11111111-1111-1111-1111-111111111111: compute mode is exclusive",
			"ok    control    /dev/nvidiactl is not needed: the driver is simulated",
			"ok    server     no MPS control daemon",
			"ok    memory     GPU-11111111-1111-1111-1111-111111111111: 80.0 GiB; the driver lets memory go to host memory and come back at the same addresses",
			" of host memory may hold what leaves GPUs (memory.host_mb = 0: half of the ",
			"fail  preload    be: registered on 0 of 1 devices",
			`fail  picked     "auto" picks nothing: no probe registered; see above`,
			"\n\nNot ready: preload, picked. Next: ",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"GPREEMPT_CONFIG=" + good, "LD_LIBRARY_PATH=" + built, "CUDA_MPS_PIPE_DIRECTORY=" + base}, c.env...)
			r := gpreempt(t, env, "doctor")
			if r.status != 1 || r.stderr != "" {
				t.Errorf("status %d, %s", r.status, r.stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("no %q in\n%s", want, r.stdout)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	tells := write(t, "libgpreempt.so", "\x7fELF\x00@(#)libgpreempt.so(v9.8.7-1-gabc)\x00")
	endless := write(t, "libgpreempt.so", "@(#)libgpreempt.so("+strings.Repeat("v", 200))
	for _, c := range []struct {
		env  []string
		want []string
	}{
		{[]string{"LD_LIBRARY_PATH=" + built, "GPREEMPT_LIBRARY=" + tells}, []string{
			"gpreempt  " + clitest.Version + "\n", "go        go1.", "library   " + tells + ", v9.8.7-1-gabc\n", "libcuda.so.1 for CUDA 13.1\n"}},
		{[]string{"FAKE_CUDA=no driver", "LD_LIBRARY_PATH=" + built}, []string{"library   " + built + "/libgpreempt.so, of an unknown version: the file does not say\n", "libcuda.so.1 for CUDA 13.1\n"}},
		{[]string{"GPREEMPT_LIBRARY=" + endless}, []string{", of an unknown version: the file does not say\n"}},
		{[]string{"GPREEMPT_LIBRARY=/none.so", "LD_LIBRARY_PATH=" + t.TempDir()}, []string{"library   none: GPREEMPT_LIBRARY = \"/none.so\": no such file"}},
	} {
		r := gpreempt(t, c.env, "version")
		for _, want := range c.want {
			if !strings.Contains(r.stdout, want) || r.status != 0 || r.stderr != "" {
				t.Errorf("%v: %+v, want %q", c.env, r, want)
			}
		}
	}
	var v versions
	r := gpreempt(t, []string{"LD_LIBRARY_PATH=" + built, "GPREEMPT_LIBRARY=" + tells}, "version", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || v.Version != clitest.Version || v.LibraryVersion != "v9.8.7-1-gabc" || v.CUDA != "13.1" {
		t.Errorf("%v: %+v", err, r)
	}
}

// A report has the sections that it lists, and no more of the environment.
func TestReport(t *testing.T) {
	base, report := t.TempDir(), filepath.Join(t.TempDir(), "report")
	log := write(t, "log", strings.Repeat("an old line\n", 10000)+"{\"level\":\"warn\"}\x1b[31m\n")
	config := write(t, "gpreempt.toml", "hold.chain = 3\nsegment.directory = \""+base+"\"\nlog.file = \""+log+"\"\n")
	smi := write(t, "nvidia-smi", "#!/bin/sh\necho the table\n")
	env := []string{"PATH=" + filepath.Dir(smi) + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + built, "FAKE_CUDA=no device", "GPREEMPT_PRIORITY=be", "CUDA_A=first\nsecond",
		"NVIDIA_API_KEY=private1", "HF_TOKEN=private2", "XCUDA_B=private3"}
	s, err := segment.Open(segment.Directory(base, os.Getuid()), segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Claim(0, "server"); err != nil {
		t.Fatal(err)
	}
	r := gpreempt(t, env, "doctor", "--config", config, "--report", report)
	if r.status != 1 || r.stderr != "" || !strings.Contains(r.stdout, "fail  device     no CUDA device") {
		t.Errorf("%+v", r)
	}
	info, err := os.Stat(report)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() > 100<<10 {
		t.Fatalf("%v, %v", info, err)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"It contains nothing but\n  versions ", "\ngpreempt  " + clitest.Version + "\n", "\nLinux     ", "\n" + r.stdout + "\n", "\nhold.chain = 3  # " + config + "\n",
		"\nhold.max_ms = 100  # default\n", "\nGPREEMPT_PRIORITY=be\n", "\nCUDA_A=first second\n", "\nNVIDIA_API_KEY=(set; not shown)\n", `"name": "server"`,
		"\nan old line\n{\"level\":\"warn\"}?[31m\n", "\n== nvidia-smi\nthe table\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, s := range sections {
		if !strings.Contains(string(text), "\n  "+s.title) || !strings.Contains(string(text), "\n== "+s.title+"\n") {
			t.Errorf("the report lacks %s", s.title)
		}
	}
	if strings.Contains(string(text), "private") || strings.Contains(string(text), "PATH=") {
		t.Errorf("private things in\n%s", text)
	}
	if r := gpreempt(t, env, "doctor", "--config", config, "--report", report); r.status != 2 || !strings.Contains(r.stderr, fmt.Sprintf("--report %q: is there already; name a new file\n", report)) || r.stdout != "" {
		t.Errorf("it was there: %+v", r)
	}
	none := filepath.Join(t.TempDir(), "no", "file")
	if r := gpreempt(t, env, "doctor", "--config", config, "--report", none); r != (result{2, "", fmt.Sprintf("gpreempt: --report %q: no such file or directory\n", none)}) {
		t.Errorf("no such folder: %+v", r)
	}
	full := filepath.Join(t.TempDir(), "report")
	status, _, stderr := clitest.Run(t, "/bin/sh", env, "-c", `ulimit -f 1 && exec "$@"`, "sh", built+"/gpreempt", "doctor", "--config", config, "--report", full)
	if _, err := os.Stat(full); status != 2 || !strings.Contains(stderr, "file too large") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a report that cannot be written whole: %d, %q, %v", status, stderr, err)
	}
}

// Somebody else made the directory of this user's segments.
func TestSquatter(t *testing.T) {
	base, dir := clitest.Squat(t)
	config := write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\n")
	want := "directory " + dir + ": unsafe segment: owned by user 4711, must be 0; have it removed (user 4711, who owns it, and root can), or set segment.directory to another place"
	if r := gpreempt(t, nil, "top", "--once", "--config", config); r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, want) {
		t.Errorf("top: %+v", r)
	}
	if r := gpreempt(t, []string{"LD_LIBRARY_PATH=" + built}, "doctor", "--config", config); r.status != 1 || !strings.Contains(r.stdout, "fail  segment    "+want) {
		t.Errorf("doctor: %+v", r)
	}
}

func TestDoctorJSONAndMPS(t *testing.T) {
	pipes := t.TempDir()
	if err := os.WriteFile(pipes+"/control", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := write(t, "gpreempt.toml", `mechanisms = ["gate", "blp"]`)
	r := gpreempt(t, []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipes, "LD_LIBRARY_PATH=" + built, "FAKE_CUDA=no device"}, "doctor", "--json", "--config", config)
	var got struct {
		OK       bool
		Findings []finding
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.OK || r.status != 1 {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, f := range got.Findings {
		// No program tells whether its clients share a TSG.
		if f.Check == "server" && (f.Status != ok || !strings.HasSuffix(f.Reason, pipes)) {
			t.Errorf("%+v", f)
		}
		if f.Check == "config" && f.Reason != config {
			t.Errorf("%+v", f)
		}
		if f.Check == "" || f.Reason == "" || f.Status != ok && f.Status != warned && f.Status != failed {
			t.Errorf("%+v", f)
		}
	}
}
