package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Compatibility: programs that use public packages run without the library, twice, and then in each role. In suite programs they also run with
// block-level preemption, while their memory goes out, and while latency-critical requests preempt them. They must print the same. They are no
// workers: they end by themselves.

const (
	programsSuite   = "programs"
	programLimit    = 170 * time.Second // several start at once, and compile
	watchInterval   = 100 * time.Millisecond
	mostBetweenOuts = 200 * time.Millisecond // of evictions, at first
	untilRarer      = 20 * time.Second       // then twice as long, and again
)

// comparison is what a suite compares of a program.
type comparison struct {
	suite, prefix, unit, target string
	seconds                     float64
	ways                        []workload.Way
}

var (
	eachRole = comparison{"identity", "identity-", "of 3 identical", "identical with role off, lc and be", 15, workload.Ways[:3]}
	eachWay  = comparison{programsSuite, "program-", fmt.Sprintf("of %d the same", len(workload.Ways)), "prints the same in every way", 45, workload.Ways}
)

func programCases() (cases []Case) {
	for _, c := range []comparison{eachRole, eachWay} {
		for _, program := range workload.Programs {
			if c.suite == programsSuite || program.Identity {
				cases = append(cases, Case{c.prefix + program.Name, c.target, []string{c.suite}, c.seconds,
					func(ctx context.Context, s *session, name string) { c.measure(ctx, s, name, program) }})
			}
		}
	}
	return cases
}

// wayRun is what one run of a program gave.
type wayRun struct {
	printed string
	problem error
	seen    seen
}

func (c comparison) measure(ctx context.Context, s *session, name string, program workload.Program) {
	if program.GPUs > s.info.Devices {
		check(leftOut(fmt.Sprintf("needs %d GPUs", program.GPUs)))
	}
	// Without the library twice, and all that is not preempted on purpose, at once.
	var plain [2]wayRun
	runs := make([]wayRun, len(c.ways))
	var all sync.WaitGroup
	for i := range plain {
		all.Go(func() { plain[i] = s.runWay(ctx, program.Name, workload.Way{}) })
	}
	inPhase := func(underFire bool) {
		for i, way := range c.ways {
			if way.UnderFire == underFire {
				all.Go(func() { runs[i] = s.runWay(ctx, program.Name, way) })
			}
		}
		all.Wait()
	}
	inPhase(false)
	check(ctx.Err())
	for _, run := range plain {
		during("without the library", func() { check(run.problem) })
	}
	if plain[0].printed != plain[1].printed {
		fail("NOT DETERMINISTIC without the library: printed %.200q, then %.200q", plain[0].printed, plain[1].printed)
	}
	if slices.ContainsFunc(c.ways, func(way workload.Way) bool { return way.UnderFire }) {
		peer := s.startPeer(ctx, s.config)
		inPhase(true)
		s.finish(peer)
	}
	check(ctx.Err())
	s.add(c.row(name, plain[0].printed, runs))
}

// row compares what a program printed in each way with what it prints without the library.
func (c comparison) row(name, plain string, runs []wayRun) result.Row {
	ways := map[string]string{}
	same := 0
	var notes []string
	for i, way := range c.ways {
		run := runs[i]
		switch {
		case run.problem != nil:
			ways[way.Name] = workload.Fails
			notes = append(notes, fmt.Sprintf("%s: %v", way.Name, run.problem))
		case run.printed != plain:
			ways[way.Name] = workload.Different
			notes = append(notes, fmt.Sprintf("%s: printed %.200q, not %.200q", way.Name, run.printed, plain))
		default:
			ways[way.Name] = run.seen.same(way)
			same++
		}
		if text := run.seen.text(); text != "" {
			notes = append(notes, way.Name+": "+text)
		}
	}
	row := result.Figure(name, float64(same), c.unit, strings.Join(notes, "; "))
	row.Ways = ways
	return row.Judged(c.target, same == len(runs))
}

// runWay runs a program in one of the ways; the zero way is without the library.
func (s *session) runWay(ctx context.Context, program string, way workload.Way) (run wayRun) {
	run.problem = caught(func() {
		configured := *s
		configured.configure(way.Mechanisms + "\n")
		if way.Role == "" {
			configured.config = ""
		}
		beside := func(int) (end func()) { return func() {} }
		if way.Mechanisms != "" {
			beside = func(pid int) (end func()) { return configured.watch(ctx, pid, way.Evicted, &run.seen) }
		}
		run.printed = configured.output(ctx, program, way.Role, beside)
	})
	return run
}

// lacks is the exit status of a program that cannot run on this machine; its last line on standard error says what it lacks.
const lacks = 77

// noPackage is the last error of a program that needs a package which is not there, or another version of it.
var noPackage = regexp.MustCompile(`^(ModuleNotFound|Import)Error: `)

// output runs a program of torch/programs and returns what it prints. Something may go on beside it.
func (s *session) output(ctx context.Context, program, role string, beside func(pid int) (end func())) string {
	if s.python == "" {
		fail("%s needs %s with PyTorch; name it with --python", program, s.options.Python)
	}
	folder := must(os.MkdirTemp(s.files, program+"-"))
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	command := inGroup(ctx, s.python, filepath.Join(s.files, "programs", program+".py"))
	command.Dir = folder
	command.Env = append(s.environment(role), "PYTHONDONTWRITEBYTECODE=1", "CUBLAS_WORKSPACE_CONFIG=:4096:8",
		"XLA_PYTHON_CLIENT_PREALLOCATE=false", "PYTHONHASHSEED=0")
	for _, cache := range []string{"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"} {
		// Code that one run has compiled serves no other.
		command.Env = append(command.Env, cache+"="+filepath.Join(folder, strings.ToLower(cache)))
	}
	// The program prints into files: a process that it leaves behind may hold them.
	var outputs [2]*os.File
	for i := range outputs {
		outputs[i] = must(os.CreateTemp(folder, "output-"))
		defer outputs[i].Close()
	}
	command.Stdout, command.Stderr = outputs[0], outputs[1]
	check(startChild(command))
	defer beside(command.Process.Pid)()
	err := command.Wait()
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // what it left behind, if anything
	said := must(os.ReadFile(outputs[1].Name()))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		fail("no end in %s", programLimit)
	case command.ProcessState.ExitCode() == lacks:
		check(leftOut(lastLine(string(said))))
	case err != nil && noPackage.MatchString(reason(string(said))):
		check(leftOut(reason(string(said))))
	case err != nil:
		fail("%w: %s", err, lastLines(said))
	}
	return string(bytes.TrimSpace(must(os.ReadFile(outputs[0].Name()))))
}

// seen is what the library did in the processes of a program, as far as somebody looked before they ended.
type seen struct {
	stops, evictions map[int32]uint64 // by process
}

// same is what became of a program that printed the same: what was to be done to it may not have come about.
func (s seen) same(way workload.Way) string {
	switch {
	case way.Evicted && total(s.evictions) == 0:
		return workload.NotEvicted
	case way.UnderFire && way.Mechanisms != "" && total(s.stops) == 0:
		return workload.NotStopped
	}
	return workload.Same
}

func total(by map[int32]uint64) (all uint64) {
	for _, n := range by {
		all += n
	}
	return all
}

func (s seen) text() string {
	var words []string
	for _, one := range []struct {
		what string
		by   map[int32]uint64
	}{{"stops", s.stops}, {"evictions", s.evictions}} {
		if all := total(one.by); all > 0 {
			words = append(words, fmt.Sprintf("%d %s", all, one.what))
		}
	}
	return strings.Join(words, ", ")
}

// watch counts what the library does in the processes of a group, until end. evicts: it also has their memory evicted at random times. They
// bring it back themselves as they go on.
func (s *session) watch(ctx context.Context, group int, evicts bool, what *seen) (end func()) {
	what.stops, what.evictions = map[int32]uint64{}, map[int32]uint64{}
	settings, err := configs.Load(s.config)
	if err != nil {
		return func() {} // the program tells it
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for began := time.Now(); ctx.Err() == nil; {
			lookAt(settings.Segment.Directory, group, evicts, what)
			wait := watchInterval
			if evicts {
				wait = rand.N(betweenOuts(time.Since(began)))
			}
			_ = pause(ctx, wait) // the loop ends
		}
	}()
	return func() { cancel(); <-done }
}

// betweenOuts is the longest time to the next eviction, after so long. It grows, so that a program ends though its memory comes back slowly: one
// of several processes which wait for each other goes on only while the memory of all is there. After 100 s it is 6.4 s.
func betweenOuts(passed time.Duration) time.Duration {
	return mostBetweenOuts << min(passed/untilRarer, 8)
}

// lookAt looks once at the processes of a group.
func lookAt(directory string, group int, evicts bool, what *seen) {
	snapshots, err := segment.Snapshots(directory, os.Getuid())
	if err != nil {
		return // there is no segment yet
	}
	for _, snapshot := range snapshots {
		for _, p := range snapshot.Peers {
			if of, err := unix.Getpgid(int(p.Pid)); err != nil || of != group {
				continue
			}
			if p.BLP != nil {
				what.stops[p.Pid] = p.BLP.Stops
			}
			if p.Memory == nil || p.InForce&configs.Swap == 0 {
				continue
			}
			what.evictions[p.Pid] = p.Memory.Evictions
			if evicts {
				_ = caught(func() { askOut(snapshot.Path, p) }) // it may just have ended
			}
		}
	}
}

// askOut asks a process to send its memory out; what it answers is not waited for.
func askOut(path string, p segment.Peer) {
	reader := must(segment.OpenReader(path))
	defer reader.Close()
	must(reader.Ask(p.Slot, p.StartedNs, segment.AskedOut))
}
