package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A killer ends helpers of programs at random moments, and in states that are rare at random.
type killer struct {
	t     *testing.T
	lanes []lane
	sum   sync.Mutex
	kills int
	in    map[string]int // a kill may count in several
}

// lane is where a helper's page says what its program carries out for it (testdata/lanes.c).
type lane struct {
	name          string
	state, result int64
}

func newKiller(t *testing.T) *killer {
	t.Helper()
	k := &killer{t: t, in: map[string]int{}}
	cmd := newMachine(t, "").command("", compile(t, "testdata/lanes.c", "-I"+root))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var l lane
		if _, err := fmt.Sscan(line, &l.name, &l.state, &l.result); err != nil {
			t.Fatal(err)
		}
		k.lanes = append(k.lanes, l)
	}
	return k
}

func (k *killer) String() string {
	var all []string
	for _, state := range slices.Sorted(maps.Keys(k.in)) {
		all = append(all, fmt.Sprintf("%s: %d", state, k.in[state]))
	}
	return fmt.Sprintf("%d kills; %s", k.kills, strings.Join(all, ", "))
}

// childrenOf are the processes that a process has made.
func childrenOf(pid int) (children []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for number := range strings.FieldsSeq(string(text)) {
			child, _ := strconv.Atoi(number)
			children = append(children, child)
		}
	}
	return children
}

// helperFrom is the helper of a process from its first instruction on, when it has no name of its own yet; 0: there is none.
func helperFrom(pid int) int {
	for _, parent := range childrenOf(pid) {
		for _, child := range childrenOf(parent) {
			if _, _, runs := parentOf(child); runs {
				return child
			}
		}
	}
	return 0
}

// carriedOut are the lanes of a helper with a call under way, and whether code is being loaded.
func (k *killer) carriedOut(helper int) (states []string) {
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", helper))
	from := int64(-1)
	for line := range bytes.Lines(list) {
		if bytes.Contains(line, []byte("memfd:gpreempt-helper")) {
			_, _ = fmt.Sscanf(string(line), "%x", &from)
			break
		}
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", helper))
	if err != nil {
		return nil
	}
	defer memory.Close()
	if from < 0 {
		return []string{"start-up"}
	}
	for _, l := range k.lanes {
		const asked = 1
		var state [4]byte
		var result [8]byte
		if _, err := memory.ReadAt(state[:], from+l.state); err != nil {
			return nil
		}
		if _, err := memory.ReadAt(result[:], from+l.result); err != nil {
			return nil
		}
		under := binary.NativeEndian.Uint32(state[:]) == asked
		if under {
			states = append(states, "call of "+l.name)
		}
		if l.name == "rewriter" && (under || binary.NativeEndian.Uint64(result[:]) != 0) { // of a request that was not there
			states = append(states, "load")
		}
	}
	return states
}

// states are those of a program and its helper.
func (k *killer) states(m *machine, p *process, helper int) []string {
	states := k.carriedOut(helper)
	all, err := m.look()
	if err != nil {
		return states
	}
	joined := false
	for _, s := range all {
		for _, peer := range s.Peers {
			own := int(peer.Pid) == p.pid()
			joined = joined || own
			if peer.WindowOpen && own {
				states = append(states, "window")
			} else if peer.WindowOpen {
				states = append(states, "stopped by a window")
			}
			if own && peer.Memory != nil && peer.Memory.Swapped > 0 {
				states = append(states, "memory out")
			}
		}
	}
	if !joined {
		states = append(states, "start-up")
	}
	slices.Sort(states)
	return slices.Compact(states)
}

var wanted = []string{"", "", "start-up", "call of rewriter", "load", "call of mover", "memory out", "call of agent", "call of core", "window", "stopped by a window"}

// one kills a helper, unless there is none.
func (k *killer) one(m *machine, p *process) {
	helper, want := helperFrom(p.pid()), wanted[rand.IntN(len(wanted))]
	if helper == 0 {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		return
	}
	if want == "" {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
	for end := time.Now().Add(100 * time.Millisecond); want != "" && time.Now().Before(end) && !slices.Contains(k.states(m, p, helper), want); {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
	}
	how := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGSEGV}[rand.IntN(4)]
	if how == syscall.SIGSEGV && sanitizer != "" { // that would report it
		how = syscall.SIGKILL
	}
	var states []string
	if how != syscall.SIGSTOP {
		states = k.states(m, p, helper)
	}
	if syscall.Kill(helper, how) != nil {
		return
	}
	if how == syscall.SIGSTOP {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		states = k.states(m, p, helper)
		_ = syscall.Kill(helper, syscall.SIGKILL)
	}
	k.sum.Lock()
	defer k.sum.Unlock()
	k.kills++
	for _, state := range append(states, how.String()) {
		k.in[state]++
	}
}

// strikes kills helpers of programs until done is closed.
func (k *killer) strikes(m *machine, done <-chan struct{}, programs ...*process) (ended <-chan struct{}) {
	return repeat(done, func() bool {
		k.one(m, programs[rand.IntN(len(programs))])
		return true
	})
}

// until has programs work until so many kills have been made. The last work meets none: helpers that never live for long decide nothing.
func (k *killer) until(m *machine, kills int, work func(), programs ...*process) {
	k.t.Helper()
	enough := k.count() + kills
	ended := repeat(nil, func() bool {
		k.one(m, programs[rand.IntN(len(programs))])
		return k.count() < enough && !programs[0].exited()
	})
	for more := true; more; {
		more = k.count() < enough
		work()
	}
	<-ended
}

func (k *killer) count() int {
	k.sum.Lock()
	defer k.sum.Unlock()
	return k.kills
}

// said are lines of the log that a killed helper is the reason of.
var saidOfHelpers = []string{
	"the helper process has ended: this program runs as if alone until there is another one",
	"the helper process ended as it started: it may lack address space (ulimit -v); running without preemption",
	"no helper process (clone); there is no further helper process for now",
	"code runs as it came, not preemptible: the helper process has ended",
	"code runs as it came, not preemptible: the rewriter does not answer",
	`kernels of a context cannot be stopped error="rewriting of memsets and copies: CUDA error 999"`, // the library's own
	"what this process has and asks for never fits beside what other programs keep",                  // one of them had no helper
}

// surprises are lines of the log that no killed helper is the reason of.
func surprises(stderr string) string {
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(unexpected(stderr), "\n"), func(line string) bool {
		return slices.ContainsFunc(saidOfHelpers, func(text string) bool { return strings.Contains(line, text) })
	}), "")
}

func (k *killer) ends(t *testing.T, processes ...*process) {
	t.Helper()
	for _, p := range processes {
		if _, stderr := p.finish(); surprises(stderr) != "" {
			t.Errorf("stderr %q", surprises(stderr))
		}
	}
}

// Programs whose helpers are killed at random do what they do without the library: nothing is lost or done twice, none hangs, none ends.
// GPREEMPT_HELPER_KILLS says how many kills there are at least; else each kind of program sees a few.
func TestHelpersKilledAtRandom(t *testing.T) {
	t.Parallel()
	least, each := 0, int(often(2, 8))
	if text := os.Getenv("GPREEMPT_HELPER_KILLS"); text != "" {
		var err error
		if least, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		each = 15
	}
	k := newKiller(t)
	programs, began := 0, time.Now()
	scenes := []struct {
		name string
		run  func(t *testing.T, k *killer, kills int)
	}{
		{"generated", killedGenerated}, {"ordered", killedOrdered}, {"requests", killedRequests}, {"memory", killedMemory},
		{"memory for one", killedMemoryForOne}, {"loads", killedLoads}, {"steps", killedSteps},
	}
	for round := 0; round == 0 || k.count() < least && !t.Failed(); round++ {
		for _, scene := range scenes {
			t.Run(scene.name, func(t *testing.T) {
				k.t = t
				scene.run(t, k, each)
			})
			programs++
		}
	}
	t.Logf("%d scenes in %v: %v", programs, time.Since(began).Round(time.Second), k)
}

// killedGenerated: one of the generator's variants.
func killedGenerated(t *testing.T, k *killer, kills int) {
	all := slices.DeleteFunc(chosenVariants(), func(v variant) bool { return v.role == "" })
	v := all[rand.IntN(len(all))]
	t.Log(v.name)
	v.killer = k
	v.environment = append(slices.Clone(v.environment), oftenKilled)
	generator, seed := compileGenerator(t), rand.Uint64N(1<<40)
	for before := k.count(); k.count() < before+kills && !t.Failed(); {
		m, peer := v.stage(t)
		if o := v.generated(t, m, peer, generator, "seconds", "3", "seed", strconv.FormatUint(seed, 10), "stay", "1", "patience", "60"); strings.Contains(o.text, "a stream cannot be stopped") && slices.Contains(v.arguments, "stop") {
			t.Log("a program that stops streams itself had no helper as it began")
		} else if o.wrong() {
			t.Errorf("from seed %d: %s", seed, o.text)
		} else {
			seed += o.programs
		}
	}
}

// killedOrdered: parts of the programs that compare the order of their work with what CUDA promises, while it is stopped.
func killedOrdered(t *testing.T, k *killer, kills int) {
	parts := []struct {
		program string
		parts   []string
	}{
		{"order", []string{"captures 40", "joins 20", "stopped 10", "events 20", "legacy 20", "graphs 10", "foreign 10", "instances 10", "hops 20", "ended 20", "spins 6", "answers 6", "reached 6", "waits 6", "threads 12", "thread 20", "meanwhile 12", "ahead-of-legacy 8", "ahead-of-waits 4"}},
		{"waiters", []string{"unmapped 4", "moved 4"}},
		{"meanwhile", []string{"all 3", "legacy 3", "stream 3", "green 20", "green-unloaded 20"}},
		{"loads", []string{"asked-loading 1", "asked-freeing 1", "unloaded-in-use 4", "unloaded 2", "unloaded-library 2", "unloaded-destroyed 1"}},
	}
	of := parts[rand.IntN(len(parts))]
	m := newStoppable(t, "", oftenKilled)
	be, lc := m.startOrdered(compile(t, "testdata/"+of.program+".c"))
	done := make(chan struct{})
	ended := fire(lc, done)
	k.until(m, kills, func() {
		what := of.parts[rand.IntN(len(of.parts))]
		t.Log(of.program, what)
		m.comparesWhileStopped(be, what)
	}, be, lc)
	close(done)
	<-ended
	k.ends(t, be, lc)
}

// killedRequests: best effort beside requests.
func killedRequests(t *testing.T, k *killer, kills int) {
	m := newMachine(t, "", oftenKilled)
	be, other, lc := m.start("be"), m.start("be"), m.start("lc")
	be.runBestEffort()
	other.runBestEffort()
	done := uint32(0)
	k.until(m, kills, func() {
		n := 1 + rand.Uint32N(10)
		done += n * (n + 1) / 2
		if _, hash := lc.request(int(n), 3, "stream"); hash != sums(done) {
			t.Errorf("hash %d, must be %d", hash, sums(done))
		}
	}, be, other, lc)
	for _, p := range []*process{be, other} {
		n := p.count()
		m.until("BE goes on", func() bool { return p.count() > n })
	}
	k.ends(t, be, other, lc)
}

// killedMemory: memory that leaves the GPU and comes back while threads work with it.
func killedMemory(t *testing.T, k *killer, kills int) {
	m := newSwapping(t, "mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\", \"blp\", \"swap\"]\n", oftenKilled)
	p, lc := m.startMemory("be", simulated("sim.cubin")), m.start("lc")
	for i, how := range ways {
		p.filled(how, 3_000_001, i)
	}
	p.working(2<<20, "chains", "graphs", "copies", "streams", "per_thread", "growing", "churn")
	m.joined(p, lc)
	done := make(chan struct{})
	ended := []<-chan struct{}{disturb(lc, 100, done), m.evictUntil(p, done)}
	k.until(m, kills, func() { // it may get nowhere meanwhile: its memory goes as soon as it has come
		p.rounds("status")
		time.Sleep(10 * time.Millisecond)
	}, p, p, lc)
	close(done)
	for _, end := range ended {
		<-end
	}
	p.advances(1)
	p.rounds("stop")
	p.right(len(ways))
	k.ends(t, p, lc)
}

// killedMemoryForOne: two programs whose memory is more than the GPU has together.
func killedMemoryForOne(t *testing.T, k *killer, kills int) {
	m := newSmall(t, "", oftenKilled)
	a := m.holding("be", 170)
	b := m.startFilled("be", 170<<20, 7)
	k.until(m, kills, func() {
		a.works(1)
		b.works(1)
	}, a, b)
	k.ends(t, a, b)
}

// killedLoads: programs that only load code, from their first instruction on. They see what they see without the library.
func killedLoads(t *testing.T, k *killer, kills int) {
	program, images := compile(t, "testdata/code.c"), []string{sim("sim.fatbin"), sim("sim.cubin")}
	plain, _, _ := runLoads(newMachine(t, ""), "", program, 0, "", images...)
	setting, _ := cacheIn(t)
	m := newMachine(t, setting, oftenKilled)
	for before := k.count(); k.count() < before+kills; {
		cmd := m.command("be", program, images...)
		cmd.Dir = m.t.TempDir()
		p := m.startAs(cmd)
		var got []string
		done := make(chan struct{})
		ended := k.strikes(m, done, p)
		for line := p.hear(); line != "done"; line = p.hear() {
			if !strings.HasPrefix(line, "driver ") {
				got = append(got, line)
			}
		}
		close(done)
		<-ended
		if !slices.Equal(got, plain.program) {
			t.Errorf("the program sees\n%q, without the library\n%q", got, plain.program)
		}
		k.ends(t, p)
	}
}

// killedSteps: chains of kernels that are stopped between blocks, in programs that begin and end.
func killedSteps(t *testing.T, k *killer, kills int) {
	m := newStoppable(t, "", oftenKilled)
	what := []string{"single", "several", "blocking", "legacy-graphs", "questions", "captures", "handshakes", "many"}[rand.IntN(8)]
	plain, lc := m.startChains(""), m.start("lc")
	want := plain.chains(what, 20)
	plain.finish()
	done := make(chan struct{})
	ended := fire(lc, done)
	for before := k.count(); k.count() < before+kills; {
		struck := make(chan struct{})
		program := filepath.Join(filepath.Dir(worker), "chains")
		be := m.startAs(m.command("be", program, sim("sim.cubin")))
		end := k.strikes(m, struck, be, lc)
		be.hears("ready")
		for range 5 {
			if hash := be.chains(what, 20); hash != want {
				t.Errorf("%s: hash %d, must be %d", what, hash, want)
			}
		}
		close(struck)
		<-end
		k.ends(t, be)
	}
	close(done)
	<-ended
	k.ends(t, lc)
}
