package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Random programs (testdata/generator) compute what CUDA promises, whatever stops them meanwhile.

// A variant is a way to disturb the programs.
type variant struct {
	name, role, settings string
	environment          []string
	peer                 string // role of the process beside it; "" for none
	arguments            []string
	not                  string // features that programs cannot have here
	drain                string // how long stops wait, in ns, in the library's build for tests; "": the other build
	evicted              bool   // its memory leaves the GPU at random
	putOff               string // how long stops wait for windows, in ns; with drain
	queued               bool   // each launch goes through the queue (preempt/queue.c); with drain
	killer               *killer
}

// lateStops is a drain by which most stops are late. That of the library is 100 ms.
const lateStops = "50000"

// testPatience is how long calls wait, in ns, for work ahead of them, in the library's build for tests: so kernels often spin until the
// program goes on. In the library it is 1 s. The build for tests ends the process where a state machine refuses a transition
// (preempt/blp/states.c).
const testPatience = "20000000"

var variants = []variant{
	{name: "alone"}, // without the library: that the model and the simulated driver agree
	{name: "blp under MPS", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300"}, peer: "lc"},
	// Without what host-blocks streams, waits for events come into the log far more often.
	{name: "waits in the log", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300"}, peer: "lc",
		not: "captures,host,cpu,values"},
	{name: "late stops", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300"}, peer: "lc", drain: lateStops},
	{name: "queued launches", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300"}, peer: "lc", drain: "100000000", queued: true},
	// Nearly all stops wait, for windows to be over by then (preempt/blp/put_off.c).
	{name: "stops that wait", role: "be", settings: `mechanisms = ["gate", "blp", "mps"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300", "CUDA_MPS_CLIENT_PRIORITY=1"},
		peer: "lc", drain: lateStops, putOff: "800000"},
	// Half of the programs are about kernels that spin until the program goes on.
	{name: "kernels that wait for the program", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "SIMCUDA_BLOCK_NS=300"}, peer: "lc",
		drain: "5000000", arguments: []string{"spins", "1"}, not: "captures,host,built,episodes,devices,waiting"},
	{name: "everything", role: "be", settings: `mechanisms = ["timeslice", "hold", "gate", "turns", "blp"]`, peer: "lc"},
	{name: "timeslices", role: "be", settings: `mechanisms = ["timeslice", "hold", "gate", "turns"]`, peer: "lc"},
	{name: "latency-critical", role: "lc", peer: "be"},
	{name: "one connection", role: "be", settings: `mechanisms = ["blp"]`, environment: []string{"SIMCUDA_MPS=1", "CUDA_DEVICE_MAX_CONNECTIONS=1"}, peer: "lc",
		not: "cpu"}, // what waits keeps back all
	{name: "latency-critical on eight connections", role: "lc", environment: []string{"CUDA_DEVICE_MAX_CONNECTIONS=8"}, peer: "be", not: "cpu"},
	{name: "memory evicted", role: "be", settings: `mechanisms = ["swap"]`, evicted: true, arguments: []string{"room", "2097152"}},
	{name: "memory evicted beside everything", role: "be", settings: `mechanisms = ["timeslice", "hold", "gate", "turns", "blp", "swap"]`, peer: "lc", evicted: true,
		arguments: []string{"room", "2097152"}},
	{name: "streams stopped between blocks", role: "be", settings: `mechanisms = ["blp"]`, arguments: []string{"stop", "block"}},
	// With little but what may run narrow.
	{name: "streams narrowed", role: "be", settings: `mechanisms = ["blp"]`, arguments: []string{"stop", "narrow"}},
	{name: "streams narrowed, with little else", role: "be", settings: `mechanisms = ["blp"]`, arguments: []string{"stop", "narrow"},
		not: "captures,host,cpu,values,devices,built"},
	{name: "streams narrowed, late stops", role: "be", settings: `mechanisms = ["blp"]`, arguments: []string{"stop", "narrow"}, drain: lateStops,
		not: "captures,host,cpu,values,devices,built"},
	{name: "streams stopped between launches", role: "be", settings: `mechanisms = ["blp"]`, arguments: []string{"stop", "queue"}},
}

func compileGenerator(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob("testdata/generator/*.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "generator")
	command := compiler(program, append(sources, "-O2")...)
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

var building sync.Mutex

// buildOnce makes a file, unless it is there and current. Tests that run beside each other may want the same one.
func buildOnce(t *testing.T, target string) {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if out, err := exec.Command("make", "-s", "-C", root, target).CombinedOutput(); err != nil {
		t.Fatalf("make: %v\n%s", err, out)
	}
}

// underTestBuild has a command run under the library's build for tests, which buildOnce makes.
func underTestBuild(cmd *exec.Cmd, environment ...string) {
	cmd.Env = append(append(cmd.Env, "LD_PRELOAD="+filepath.Join(root, "build/test/libgpreempt.so")+":"+filepath.Join(root, "build/sim/libcuda.so.1")), environment...)
}

// stage is the machine of a variant, with the process beside it.
func (v variant) stage(t *testing.T) (m *machine, peer *process) {
	t.Helper()
	if v.drain != "" {
		buildOnce(t, "build/test/libgpreempt.so")
	}
	m = newMachine(t, "", append([]string{"SIMCUDA_DEVICES=2", "CUDA_DEVICE_MAX_CONNECTIONS=32", "CUDA_MODULE_LOADING=LAZY"}, v.environment...)...)
	m.configure(fmt.Sprintf("%s\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", v.settings, m.dir, m.dir))
	if v.peer != "" {
		peer = m.start(v.peer)
		m.joined(peer)
	}
	return m, peer
}

// disturb has a latency-critical process open windows at random, until done is closed. Its kernels take up to so many microseconds.
func disturb(lc *process, longest int, done <-chan struct{}) (ended <-chan struct{}) {
	return repeat(done, func() bool {
		return lc.answers("lc %d %d %d %d stream", 1+rand.IntN(8), 1+rand.IntN(3), 10+rand.IntN(longest), rand.IntN(3000))
	})
}

type outcome struct {
	text        string // of what went wrong
	programs    uint64
	differences int
	hung        bool
	counts
}

func (o outcome) wrong() bool { return o.text != "" }

// counts are a process's counters, of all GPUs together.
type counts struct{ stops, evictions, narrowed, givenUp uint64 }

func (c *counts) raise(to counts) {
	c.stops, c.evictions = max(c.stops, to.stops), max(c.evictions, to.evictions)
	c.narrowed, c.givenUp = max(c.narrowed, to.narrowed), max(c.givenUp, to.givenUp)
}

// counted is a process's counters so far; zeros where the process cannot be seen.
func (m *machine) counted(p *process, role string) (c counts) {
	all, err := m.look()
	if err != nil {
		return c
	}
	for _, s := range all {
		for _, peer := range s.Peers {
			if int(peer.Pid) != p.pid() {
				continue
			}
			if peer.BLP != nil {
				c.stops += peer.BLP.Stops
				c.narrowed += peer.BLP.Narrowed
				c.givenUp += peer.BLP.GivenUp
			}
			if peer.Memory != nil {
				c.evictions += peer.Memory.Evictions
			}
			if role == "lc" { // which is held up by nobody, but holds
				c.stops += peer.Counters.Holds
			}
		}
	}
	return c
}

// told waits until a process has published its present counters.
func (m *machine) told(p *process) {
	m.t.Helper()
	for range 2 { // it may have been in the middle of telling
		now := segment.Now()
		m.until("the process tells of itself", func() bool {
			return !slices.ContainsFunc(m.snapshots(), func(s segment.Snapshot) bool {
				return slices.ContainsFunc(s.Peers, func(peer segment.Peer) bool {
					return int(peer.Pid) == p.pid() && s.TakenNs-peer.HeartbeatAgeNs <= now
				})
			})
		})
	}
}

// expected are lines that the library may log about the programs.
var expected = []string{
	"neither cubin, fatbin nor PTX",                            // of what has the kernels that are not rewritten
	"blocks of a kernel wait for later blocks of their launch", // those of some kernels do
	"hints were wrong or early too often",                      // they come at random
	"the driver keeps a context that the program has ended",    // episodes end contexts that have other users
}

func unexpected(stderr string) string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(line, text) }) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// generated runs programs beside the peer.
func (v variant) generated(t *testing.T, m *machine, peer *process, generator string, arguments ...string) (o outcome) {
	t.Helper()
	arguments = append(append([]string{simulated("sim.cubin")}, arguments...), v.arguments...)
	if v.not != "" {
		arguments = append(arguments, "not", v.not)
	}
	cmd := m.command(v.role, generator, arguments...)
	if v.role == "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+strings.Join(append(sanitizer.runtime(), built("sim/libcuda.so.1")), ":"))
	}
	if v.drain != "" {
		underTestBuild(cmd, "GPREEMPT_TEST_DRAIN_NS="+v.drain, "GPREEMPT_TEST_PATIENCE_NS="+testPatience)
		if v.putOff != "" {
			cmd.Env = append(cmd.Env, "GPREEMPT_TEST_LONG_NS="+v.putOff)
		}
		if v.queued {
			cmd.Env = append(cmd.Env, "GPREEMPT_TEST_QUEUE=1")
		}
	}
	done := make(chan struct{})
	var ended <-chan struct{}
	if v.peer == "lc" {
		ended = disturb(peer, 100, done)
	} else if v.peer == "be" && peer.stdin != nil {
		peer.runBestEffort()
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{m: m, cmd: cmd}
	counted := make(chan counts)
	stop := make(chan struct{})
	go func() { // the count goes with the process, which may end by itself
		var c counts
		for {
			select {
			case <-stop:
				counted <- c
				return
			case <-time.After(50 * time.Millisecond):
				c.raise(m.counted(p, v.role))
			}
		}
	}()
	var fired, killed <-chan struct{}
	if v.evicted {
		fired = m.evictUntil(p, done)
	}
	surprising := unexpected
	if v.killer != nil {
		surprising = surprises
		killed = v.killer.strikes(m, done, slices.DeleteFunc([]*process{p, p, peer}, func(p *process) bool { return p == nil })...)
	}
	var all bytes.Buffer
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintln(&all, lines.Text())
		if strings.HasPrefix(lines.Text(), "programs ") { // it ends with its input
			m.told(p)
			o.raise(m.counted(p, v.role))
			_ = in.Close()
		}
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	close(stop)
	o.raise(<-counted)
	close(done)
	for _, end := range []<-chan struct{}{ended, fired, killed} {
		if end != nil {
			<-end
		}
	}
	said := strings.Split(strings.TrimSpace(all.String()), "\n")
	var operations, own uint64
	var seconds float64
	_, scanned := fmt.Sscanf(said[len(said)-1], "programs %d operations %d seconds %f differences %d stops %d", &o.programs, &operations, &seconds, &o.differences, &own)
	o.stops = max(o.stops, own)
	if err != nil || scanned != nil || o.differences > 0 {
		o.text = fmt.Sprintf("%v\n%s", err, all.String())
		o.hung = cmd.ProcessState.ExitCode() == 3
	}
	if text := surprising(stderr.String()); text != "" {
		o.text += "\nthe library says " + text
	}
	if peer != nil && surprising(peer.stderr.String()) != "" {
		o.text += "\nthe library says in the process beside it " + surprising(peer.stderr.String())
	}
	if o.givenUp > 0 {
		o.text += fmt.Sprintf("\n%d domains were given up", o.givenUp)
	}
	return o
}

// shortest leaves out operations of a program as long as it goes wrong.
func (v variant) shortest(t *testing.T, m *machine, peer *process, generator, seed string) string {
	t.Helper()
	const repeats = "300"
	deadline := time.Now().Add(2 * time.Minute)
	try := func(without []string) bool {
		arguments := []string{"seed", seed, "programs", "1", "repeat", repeats, "patience", "3"}
		if len(without) > 0 {
			arguments = append(arguments, "without", strings.Join(without, ","))
		}
		return v.generated(t, m, peer, generator, arguments...).wrong()
	}
	if !try(nil) {
		return "it goes well alone, " + repeats + " times"
	}
	var all []string
	for i := range 96 {
		all = append(all, strconv.Itoa(i))
	}
	var without []string
	for size := 48; size > 0; size /= 2 {
		for at := 0; at < len(all) && time.Now().Before(deadline); {
			n := min(size, len(all)-at)
			if tried := append(append([]string{}, without...), all[at:at+n]...); v.leaves(generator, seed, tried) && try(tried) {
				without = tried
				all = append(append([]string{}, all[:at]...), all[at+n:]...)
			} else {
				at += n
			}
		}
	}
	text, err := v.describe(generator, seed, append(without, "255"))
	return fmt.Sprintf("without %s: %v\n%s", strings.Join(without, ","), err, text)
}

// leaves says whether the remaining operations are still a program.
func (v variant) leaves(generator, seed string, without []string) bool {
	_, err := v.describe(generator, seed, without)
	return err == nil
}

func (v variant) describe(generator, seed string, without []string) ([]byte, error) {
	arguments := append([]string{"", "seed", seed, "programs", "1", "describe", "not", v.not, "without", strings.Join(without, ",")}, v.arguments...)
	return exec.Command(generator, arguments...).Output()
}

// The generator sees that the library gives up something, or prints something, even if all results are right.
func TestGeneratorSeesWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	v := variants[slices.IndexFunc(variants, func(v variant) bool { return v.name == "blp under MPS" })]
	v.environment = append(slices.Clone(v.environment), "SIMCUDA_FAIL=cuEventQuery:1+") // of the library's
	v.not = "queries,episodes"
	m, peer := v.stage(t)
	v.peer = "" // it opens no window: nothing is stopped, so nothing is lost
	o := v.generated(t, m, peer, compileGenerator(t), "seconds", "1", "seed", "1")
	if o.programs == 0 || o.differences > 0 || o.givenUp == 0 || !strings.Contains(o.text, "the driver refused a call that stops or resumes kernels") || !strings.Contains(o.text, "given up") {
		t.Errorf("%d programs, %d domains were given up: %q", o.programs, o.givenUp, o.text)
	}
}

// chosenVariants are the variants that GPREEMPT_GENERATOR_VARIANT, _NOT and _SPINS leave, as they change them.
func chosenVariants() (chosen []variant) {
	only := os.Getenv("GPREEMPT_GENERATOR_VARIANT")
	for _, v := range variants {
		if v.drain != "" && sanitizer != "" || only != "" && only != v.name { // there is no such build with a sanitizer
			continue
		}
		if not, set := os.LookupEnv("GPREEMPT_GENERATOR_NOT"); set {
			v.not = not
		}
		if spins := os.Getenv("GPREEMPT_GENERATOR_SPINS"); spins != "" {
			v.arguments = append(slices.Clone(v.arguments), "spins", spins)
		}
		chosen = append(chosen, v)
	}
	return chosen
}

// lacks says whether too little has happened in a variant's runs.
func (v variant) lacks(c counts) bool {
	toStop := strings.Contains(v.settings, "blp") || v.role == "lc"
	toNarrow := slices.Contains(v.arguments, "narrow")
	return v.evicted && c.evictions == 0 || toStop && c.stops == 0 || toNarrow && c.narrowed == 0
}

// A variant runs so many programs, whatever time they take. With GPREEMPT_GENERATOR_TIME, which all variants share, it runs as many as
// it can in its part of that time, again and again. GPREEMPT_GENERATOR_SEED says from which program on, and a variant's programs follow
// each other. GPREEMPT_GENERATOR_VARIANT names one variant alone. GPREEMPT_GENERATOR_NOT is a list of features that no program is to have.
// GPREEMPT_GENERATOR_SPINS says which part of the programs, one in so many, may have kernels that spin; 0: none.
func TestGeneratedPrograms(t *testing.T) {
	t.Parallel()
	enough, seed, total := often(8, 60), rand.Uint64N(1<<40), time.Duration(0)
	var err error
	number := func(name string, to *uint64) {
		if s := os.Getenv(name); s != "" {
			if *to, err = strconv.ParseUint(s, 0, 64); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	number("GPREEMPT_GENERATOR_SEED", &seed)
	number("GPREEMPT_GENERATOR_PROGRAMS", &enough)
	if s := os.Getenv("GPREEMPT_GENERATOR_TIME"); s != "" {
		if total, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Attr("seed", strconv.FormatUint(seed, 10))
	chosen, generator := chosenVariants(), compileGenerator(t)
	unit, most := "programs", enough
	rounds := 1
	if total > 0 {
		rounds = max(1, int(total/time.Duration(len(chosen))/(30*time.Second))) // a process runs for half a minute at most
		each := max(time.Second, total/time.Duration(rounds*len(chosen)))
		unit, most = "seconds", uint64(each.Seconds())
	}
	next := make([]uint64, len(chosen)) // seeds: variants have their own, or none could be repeated alone
	for i := range next {
		next[i] = seed
	}
	for range rounds {
		for i, v := range chosen {
			t.Run(v.name, func(t *testing.T) {
				if total == 0 { // they wait more than they compute
					t.Parallel()
				}
				next[i] = v.runs(t, generator, next[i], unit, most)
			})
		}
	}
}

// runs runs a variant's programs from a seed on, and where too little happened twice as many, again and again: on a fast machine programs
// may end before another process does anything to them. It returns the next seed.
func (v variant) runs(t *testing.T, generator string, from uint64, unit string, most uint64) (next uint64) {
	const again, doublings = 20, 5
	var all counts
	for i := 0; i == 0 || i < again && v.lacks(all); i++ {
		m, peer := v.stage(t)
		o := v.generated(t, m, peer, generator, unit, strconv.FormatUint(most<<min(i, doublings), 10), "seed", strconv.FormatUint(from, 10), "stay", "1", "patience", "60")
		t.Logf("from seed %d: %d programs, %d stops, %d evictions, %d launches narrowed", from, o.programs, o.stops, o.evictions, o.narrowed)
		all.raise(o.counts)
		if o.wrong() {
			return v.explain(t, m, peer, generator, from, o)
		}
		from += o.programs
	}
	if v.lacks(all) {
		t.Errorf("nothing was stopped, evicted, or ran narrow: %+v", all)
	}
	return from
}

// explain reports what went wrong, in as short a program as there is. It returns the next seed.
func (v variant) explain(t *testing.T, m *machine, peer *process, generator string, from uint64, o outcome) (next uint64) {
	t.Helper()
	t.Errorf("from seed %d: %s", from, o.text)
	var failed uint64
	if _, after, found := strings.Cut(o.text, "seed "); !found {
		return from + o.programs
	} else if _, err := fmt.Sscan(after, &failed); err != nil {
		return from + o.programs
	}
	t.Error(v.shortest(t, m, peer, generator, strconv.FormatUint(failed, 10)))
	return max(from+o.programs, failed+1)
}
