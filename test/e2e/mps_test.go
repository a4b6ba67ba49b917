package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
)

// programs are those that tests have compiled, by source and arguments: func() (string, error).
var programs sync.Map

// compile makes a program, once for all tests that want it.
func compile(t *testing.T, source string, arguments ...string) (program string) {
	t.Helper()
	once, _ := programs.LoadOrStore(strings.Join(append(slices.Clone(arguments), source), "\x00"), sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp(filepath.Dir(worker), "")
		if err != nil {
			return "", fmt.Errorf("make a folder: %w", err)
		}
		program := filepath.Join(dir, strings.TrimSuffix(filepath.Base(source), ".c"))
		command := compiler(program, append(slices.Clone(arguments), source)...)
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc: %w\n%s", err, out)
		}
		return program, nil
	}))
	program, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// mpsPipe makes the files that a control daemon leaves for its clients.
func mpsPipe(t *testing.T) (environment string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return "CUDA_MPS_PIPE_DIRECTORY=" + dir
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
	}
	return string(out)
}

func TestPrioritiesUnderMPS(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/priorities.c")
	// The program always hears the same. Its streams' real priorities depend on the level.
	expect := func(client int, has func(asked int) int) string {
		var b strings.Builder
		fmt.Fprintf(&b, "client %d\n", client)
		line := func(what string, heard int) { fmt.Fprintf(&b, "%s heard %d has %d\n", what, heard, has(heard)) }
		line("plain", 0)
		line("asked -7", -5)
		line("asked -3", -3)
		line("asked 1", 0)
		line("last", -4)
		line("plain", 0)
		b.WriteString("no stream 1, no flags 1\n")
		return b.String()
	}
	always := func(priority int) func(int) int { return func(int) int { return priority } }
	asked := func(priority int) int { return priority }
	pipe, none := mpsPipe(t), "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir()
	for _, test := range []struct {
		name, role, settings string
		environment          []string
		want                 string
	}{
		{"lc", "lc", "", []string{pipe, "SIMCUDA_MPS=1"}, expect(0, always(-5))},
		{"be", "be", "", []string{pipe, "SIMCUDA_MPS=1"}, expect(1, always(0))},
		{"a level between", "3", "", []string{pipe, "SIMCUDA_MPS=1"}, expect(0, always(-3))},
		{"no role", "", "", []string{pipe, "SIMCUDA_MPS=1"}, expect(0, asked)},
		{"named", "be", `mechanisms = ["mps"]`, []string{pipe, "SIMCUDA_MPS=1"}, expect(1, always(0))},
		{"another mechanism", "be", `mechanisms = ["gate"]`, []string{pipe, "SIMCUDA_MPS=1"}, expect(0, asked)},
		{"no server", "lc", "", []string{pipe}, expect(0, asked)},
		{"a client with a TSG of its own", "lc", "", []string{pipe, "SIMCUDA_MPS=sliced"}, expect(0, asked)},
		{"no pipe", "be", "", []string{none, "SIMCUDA_MPS=1"}, expect(0, always(0))},
		{"the user's own choice", "be", "", []string{pipe, "SIMCUDA_MPS=1", "CUDA_MPS_CLIENT_PRIORITY=0"}, expect(0, always(0))},
		{"a server that the program names", "be", "", []string{none, "SIMCUDA_MPS=1", "LATE=" + pipe}, expect(1, always(0))},
		{"a server that the program names no more", "be", "", []string{pipe, "SIMCUDA_MPS=1", "LATE=" + none}, expect(0, always(0))},
		{"the program's own choice", "be", "", []string{pipe, "SIMCUDA_MPS=1", "LATE=CUDA_MPS_CLIENT_PRIORITY=0"}, expect(0, always(0))},
		{"a choice that the program takes back", "be", "", []string{pipe, "SIMCUDA_MPS=1", "CUDA_MPS_CLIENT_PRIORITY=0", "LATE=CUDA_MPS_CLIENT_PRIORITY"}, expect(1, always(0))},
		{"the user's own choice for lc", "lc", "", []string{pipe, "SIMCUDA_MPS=1", "CUDA_MPS_CLIENT_PRIORITY=1"}, expect(1, always(-5))},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, test.settings, test.environment...)
			if got := output(t, m.command(test.role, program)); got != test.want {
				t.Errorf("got\n%s, want\n%s", got, test.want)
			}
		})
	}
}

// A program started by a BE process under MPS inherits its environment. It has the priority of its own role, if the library is loaded into
// it.
func TestChildrenUnderMPS(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/priorities.c")
	pipe := mpsPipe(t)
	for _, test := range []struct {
		name        string
		environment []string
		child       []string
		want        string
	}{
		{"of the same role", nil, nil, "client 1\nclient 1\n"},
		{"of another", nil, []string{"GPREEMPT_PRIORITY=lc"}, "client 1\nclient 0\n"},
		{"off", nil, []string{"GPREEMPT_PRIORITY=off"}, "client 1\nclient 0\n"},
		{"of another that was lowered", nil, []string{"GPREEMPT_PRIORITY=lc", "CUDA_MPS_CLIENT_PRIORITY=0"}, "client 1\nclient 0\n"},
		{"of the user's own choice", []string{"CUDA_MPS_CLIENT_PRIORITY=1"}, []string{"GPREEMPT_PRIORITY=lc"}, "client 1\nclient 1\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, "", append(test.environment, pipe, "SIMCUDA_MPS=1")...)
			arguments := append(append([]string{"/usr/bin/env"}, test.child...), program, "/bin/true")
			if got := output(t, m.command("be", program, arguments...)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	t.Run("without the library", func(t *testing.T) {
		m := newMachine(t, "", pipe, "SIMCUDA_MPS=1")
		if got := output(t, m.command("be", program, "LD_PRELOAD="+filepath.Join(root, "build/sim/libcuda.so.1"), program, "/bin/true")); got != "client 1\nclient 1\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the environment", func(t *testing.T) {
		m := newMachine(t, "", pipe, "SIMCUDA_MPS=1")
		got := output(t, m.command("lc", "/usr/bin/env"))
		if strings.Contains(got, "MPS_CLIENT_PRIORITY") {
			t.Errorf("an LC process has\n%s", got)
		}
	})
}

// The doctor says which levels and mechanisms a program would get under MPS, and without.
func TestDoctorOfBlocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, settings string
		environment    []string
		want           []string
	}{
		{"no MPS", "", nil, []string{"ok    blp        not in use: \"auto\" uses it under an MPS server\n", "ok    timeslice  in force in lc and be programs: the timeslice of", "ok    hold       in force in lc programs: ",
			"ok    turns      in force in be programs: ", "ok    hints      work may be announced by: explicit, copy, socket, arrival\n"}},
		{"named", `mechanisms = ["blp"]`, nil, []string{"ok    blp        in force in be programs: BE kernels are rewritten", "ok    hold       not in use: mechanisms does not name it\n"}},
		{"a compute policy", "", []string{"SIMCUDA_TIMESLICE_PRESET=3"}, []string{
			"be: in force: timeslice, turns, swap; timeslice 1 us: nvidia-smi compute-policy sets timeslices, and gpreempt's take their place; to have those, ",
			"ok    timeslice  in force in lc and be programs: ",
		}},
		{"a compute policy, and no timeslices", `mechanisms = ["gate"]`, []string{"SIMCUDA_TIMESLICE_PRESET=3"}, []string{"ok    preempt    be: in force: gate; timeslice -\n"}},
		{"swap", `mechanisms = ["swap"]`, nil, []string{"ok    swap       in force in lc and be programs: device memory of BE", ": 139.8 GiB; the driver lets memory go to host memory and come back", " of host memory may hold what leaves GPUs (memory.host_mb = 0: half of the "}},
		{"not named", `mechanisms = ["gate"]`, nil, []string{"ok    blp        not in use: mechanisms does not name it\n", "ok    gate       in force in lc and be programs: "}},
		{"MPS", "", []string{mpsPipe(t), "SIMCUDA_MPS=1"}, []string{
			"; blp and mps take the place of timeslices\n",
			"ok    preempt    lc: in force: gate, mps; timeslice -\n",
			"ok    preempt    be: in force: gate, blp, mps; timeslice -\n",
			"ok    timeslice  not in use: \"auto\" uses it where there is no MPS server\n",
			"ok    blp        in force in be programs: ",
			"ok    mps        in force in lc and be programs: ",
			"ok    picked     \"auto\" picks gate, blp, mps: because of mps\n",
		}},
		{"MPS v3 without context-share", "", []string{mpsPipe(t), "SIMCUDA_MPS=sliced", "CUDA_MPS_PROTOCOL_VERSION=3", "CUDA_DEVICE_MAX_CONNECTIONS=8"}, []string{
			"warn  server     CUDA_MPS_PROTOCOL_VERSION=3: MPS v3 was tried with the simulated driver only",
			": programs have TSGs of their own, as clients without context-share have, and programs without MPS\n",
			"warn  swap       not in force: a control daemon of MPS is there, although this process has a TSG of its own",
			"ok    timeslice  in force in lc and be programs: ",
			"ok    hold       in force in lc programs: ",
			"ok    turns      in force in be programs: ",
			"ok    blp        not in use: \"auto\" uses it under an MPS server\n",
			"ok    mps        not in use: \"auto\" uses it under an MPS server\n",
			"ok    picked     \"auto\" picks timeslice, hold, turns: because of mps_server\n",
		}},
		{"MPS without", `mechanisms = ["gate"]`, []string{mpsPipe(t), "SIMCUDA_MPS=1"}, []string{
			"warn  server     an MPS control daemon is at", "be: in force: gate; timeslice -: all processes share the one TSG of an MPS server\n",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, test.settings, test.environment...)
			got, err := run(m.command("", filepath.Join(root, "build", "gpreempt"), "doctor"))
			if err != nil || got.status != 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			for _, row := range configs.MechanismRows {
				if warns := "warn  " + row.Name; !slices.ContainsFunc(test.want, func(want string) bool { return strings.HasPrefix(want, warns) }) {
					test.want = append(test.want, fmt.Sprintf("ok    %-9s  ", row.Name))
				}
			}
			for _, want := range test.want {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("no %q in\n%s", want, got.stdout)
				}
			}
		})
	}
}

// A client of an MPS server that keeps a TSG of its own is preempted by timeslices, whatever the driver's attribute says. One that shares
// the server's TSG is not, though RM shows that it makes channels.
func TestTSGsUnderMPS(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		environment []string
		shared      bool
		hold        bool
	}{
		{[]string{"SIMCUDA_MPS=sliced"}, false, false}, // for want of channels
		{[]string{"SIMCUDA_MPS=sliced", "CUDA_DEVICE_MAX_CONNECTIONS=8"}, false, true},
		{[]string{"SIMCUDA_MPS=sliced", "SIMCUDA_WRAP211=1"}, false, false},
		{[]string{"SIMCUDA_MPS=1"}, true, false},
		{[]string{"SIMCUDA_MPS=1", "SIMCUDA_WRAP211=1"}, true, false},
	} {
		m := newMachine(t, "[hints]\ncopy = false\narrival = false\n", append(test.environment, mpsPipe(t))...)
		be, lc := m.start("be"), m.start("lc")
		m.joined(be)
		m.joined(lc)
		in := configs.Timeslice | configs.Turns
		if test.shared {
			in = configs.Gate | configs.BLP | configs.MPS
		}
		m.until(fmt.Sprintf("%v: what is in force in BE follows its TSG", test.environment), func() bool {
			p := m.peer(be)
			return p.InForce == in && p.Lacks&configs.FallbackMPS != 0 == test.shared && (test.shared || p.TimesliceUs == 1)
		})
		m.until(fmt.Sprintf("%v: and in LC", test.environment), func() bool {
			p := m.peer(lc)
			return p.Published && p.InForce&configs.Hold != 0 == test.hold && p.Lacks&configs.FallbackNoHold != 0 == (!test.shared && !test.hold)
		})
		be.finish()
		if _, stderr := lc.finish(); strings.Contains(stderr, "no hold in this process: with fewer than 8") != (!test.shared && !test.hold) {
			t.Errorf("%v: %s", test.environment, stderr)
		}
	}
}

// Until RM shows a TSG, a client counts as the driver's attribute says.
func TestLateTSGUnderMPS(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MPS=sliced", "SIMCUDA_LATE_CONTEXT=1", mpsPipe(t))
	p := m.startMemory("be")
	p.hears("current")
	m.joined(p)
	m.until("it says what it lacks", func() bool { return m.peer(p).Published })
	if lacks := m.peer(p).Lacks; lacks&configs.FallbackMPS == 0 {
		t.Errorf("lacks %b", lacks)
	}
	var free uint64
	p.ask("initialise", "free %d", &free)
	p.say("go on")
	m.until("its TSG is seen", func() bool {
		is := m.peer(p)
		return is.Lacks&configs.FallbackMPS == 0 && is.InForce == configs.Timeslice|configs.Turns
	})
	p.finish()
}

// Under an MPS server no process is switched away from, so nothing is made for holds there.
func TestNoHoldUnderMPS(t *testing.T) {
	t.Parallel()
	// Nor with so few channels as clients of MPS have.
	for environment, want := range map[string]bool{"SIMCUDA_MPS=1": false, "SIMCUDA_MPS=": true, "SIMCUDA_MPS=sliced": false} {
		trace := filepath.Join(t.TempDir(), "trace")
		m := newMachine(t, "", environment, "SIMCUDA_TRACE="+trace)
		lc := m.start("lc")
		m.joined(lc)
		lc.request(1, 1, "stream")
		if made := strings.Contains(traced(t, trace), " begin cuMemHostAlloc"); made != want {
			t.Errorf("%s: a hold was made: %t", environment, made)
		}
		lc.finish()
	}
}

// Where priorities do less harm than stops, none comes before a window has been open for a while. The build for tests takes them to do so.
func TestStopsPutOffUnderMPS(t *testing.T) {
	t.Parallel()
	buildOnce(t, "build/test/libgpreempt.so")
	for _, c := range []struct {
		name    string
		lowered bool
	}{{"of a lower priority", true}, {"of the same priority", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			environment := []string{"SIMCUDA_MPS=1"}
			if c.lowered {
				environment = append(environment, mpsPipe(t))
			}
			m := newMachine(t, "", environment...)
			m.configure(fmt.Sprintf("mechanisms = [\"blp\", \"mps\"]\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", m.dir, m.dir))
			cmd := m.command("be", filepath.Join(filepath.Dir(worker), "chains"), simulated("sim.cubin"))
			underTestBuild(cmd, "GPREEMPT_TEST_LONG_NS=3600000000000")
			be, lc := m.startAs(cmd), m.start("lc")
			be.hears("ready")
			m.joined(be, lc)
			want := be.chains("single", 40)
			done := make(chan struct{})
			ended := repeat(done, func() bool { return be.answers("single 40") })
			const windows = 12
			for range 9 { // more than are compared
				lc.request(windows, 1, "stream")
			}
			rare := 0 // requests in a row whose windows had few stops
			m.until("as many stops as there should be", func() bool {
				before := m.stops(be)
				lc.request(windows, 1, "stream")
				if rare++; m.stops(be)-before > windows/4 {
					rare = 0
				}
				return c.lowered && rare == 3 || !c.lowered && rare == 0
			})
			close(done)
			<-ended
			if got := be.chains("single", 40); got != want {
				t.Errorf("hash %d, undisturbed %d", got, want)
			}
			lc.finish()
			be.finish()
		})
	}
}
