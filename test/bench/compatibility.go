package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Compatibility: programs that use public packages run without the library, twice, and then in each role. They also run with block-level
// preemption, while their memory goes out, and while latency-critical requests preempt them. They must print the same.

const (
	programsSuite   = "programs"
	programLimit    = 170 * time.Second // several start at once, and compile
	programsTarget  = "prints the same in every way"
	watchInterval   = 100 * time.Millisecond
	mostBetweenOuts = 200 * time.Millisecond // of evictions, at first
	untilRarer      = 20 * time.Second       // then twice as long, and again
)

func programCases() (cases []Case) {
	for _, program := range workload.Programs {
		cases = append(cases, Case{"program-" + program.Name, programsTarget, []string{programsSuite}, 45,
			func(ctx context.Context, s *session, name string) error { return s.measureWays(ctx, name, program) }})
	}
	return cases
}

// wayRun is what one run of a program gave.
type wayRun struct {
	printed string
	problem error
	seen    seen
}

func (s *session) measureWays(ctx context.Context, name string, program workload.Program) error {
	if program.GPUs > s.info.Devices {
		return leftOut(fmt.Sprintf("needs %d GPUs", program.GPUs))
	}
	// Without the library twice, and all that is not preempted on purpose, at once.
	var plain [2]wayRun
	runs := make([]wayRun, len(workload.Ways))
	var all sync.WaitGroup
	for i := range plain {
		all.Go(func() { plain[i] = s.runWay(ctx, program.Name, workload.Way{}) })
	}
	inPhase := func(underFire bool) {
		for i, way := range workload.Ways {
			if way.UnderFire == underFire {
				all.Go(func() { runs[i] = s.runWay(ctx, program.Name, way) })
			}
		}
		all.Wait()
	}
	inPhase(false)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, run := range plain {
		if run.problem != nil {
			return fmt.Errorf("without the library: %w", run.problem)
		}
	}
	if plain[0].printed != plain[1].printed {
		return fmt.Errorf("NOT DETERMINISTIC without the library: printed %.200q, then %.200q", plain[0].printed, plain[1].printed)
	}
	f := &fire{session: s, config: s.config}
	peer, err := f.startPeer(ctx)
	if err != nil {
		return fmt.Errorf("the LC process: %w", err)
	}
	inPhase(true)
	s.finish(peer)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.add(rowOfWays(name, plain[0].printed, runs))
	return nil
}

// rowOfWays compares what a program printed in each way with what it prints without the library.
func rowOfWays(name, plain string, runs []wayRun) result.Row {
	ways := map[string]string{}
	same := 0
	var notes []string
	for i, way := range workload.Ways {
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
	value := float64(same)
	row := result.Row{Case: name, System: "gpreempt", Value: &value, Unit: fmt.Sprintf("of %d the same", len(runs)), Ways: ways, Note: strings.Join(notes, "; ")}
	return row.Judged(programsTarget, same == len(runs))
}

// runWay runs a program in one of the ways; the zero way is without the library.
func (s *session) runWay(ctx context.Context, program string, way workload.Way) (run wayRun) {
	configured := *s
	undo, err := configured.configure(way.Mechanisms + "\n")
	if err != nil {
		return wayRun{problem: err}
	}
	defer undo()
	if way.Role == "" {
		configured.config = ""
	}
	one := programRun{program: program, role: way.Role, limit: programLimit}
	if way.Mechanisms != "" {
		one.beside = func(pid int) (end func()) { return configured.watch(ctx, pid, way.Evicted, &run.seen) }
	}
	run.printed, run.problem = configured.output(ctx, one)
	return run
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
				_ = askOut(snapshot.Path, p) // it may just have ended
			}
		}
	}
}

// askOut asks a process to send its memory out; what it answers is not waited for.
func askOut(path string, p segment.Peer) error {
	reader, err := segment.OpenReader(path)
	if err != nil {
		return err
	}
	defer reader.Close()
	_, err = reader.Ask(p.Slot, p.StartedNs, segment.AskedOut)
	return err
}
