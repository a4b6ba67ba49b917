package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Programs of which two do not fit together, and a latency-critical one beside such.

const pairShare = .7 // of the GPU's memory, each

// measurePair measures two programs that swap, beside one after the other.
func measurePair(ctx context.Context, s *session, name string) {
	bytes, missing := s.fitting(s.info.MemoryBytes, pairShare)
	p := &pairOfPrograms{session: s, bytes: bytes}
	var alone, both pairRun
	during("alone", func() { alone = p.alone(ctx) })
	p.config = s.swapConfig(name, hostMB(missing+missing/4))
	during("together", func() { both = p.together(ctx) })
	s.add(p.row(name, alone, both))
}

// pairOfPrograms are two programs that do the same while they are measured.
type pairOfPrograms struct {
	*session
	config string
	bytes  uint64
	steps  int
}

// pairRun is what the programs did.
type pairRun struct {
	seconds float64 // from the begin of the first to the end of the last
	sums    []string
	memory  []segment.Memory
}

const pairWarmUp = 3 // steps

// ready waits until a program has its memory, and has warmed up.
func (p *pairOfPrograms) ready(ctx context.Context, w *worker) (each float64) {
	check(w.awaitReady(ctx, nil))
	var warm interval
	for range 2 {
		check(w.ask(ctx, holdAnswer, &warm, fmt.Sprint("steps ", pairWarmUp)))
	}
	return warm.seconds() / pairWarmUp
}

// alone is one program without the library. It chooses the number of steps.
func (p *pairOfPrograms) alone(ctx context.Context) pairRun {
	w := p.startHolding(ctx, "", p.config, p.bytes)
	defer p.finish(w)
	each := p.ready(ctx, w)
	length := cmp.Or(p.options.Seconds, pairSeconds)
	p.steps = max(int(length/max(each, 1e-6)), 2)
	var took interval
	check(w.ask(ctx, holdAnswer, &took, fmt.Sprint("steps ", p.steps)))
	return pairRun{seconds: took.seconds(), sums: []string{w.sum(ctx)}}
}

// together is both under the library at once.
func (p *pairOfPrograms) together(ctx context.Context) (run pairRun) {
	var workers []*worker
	defer func() { p.finishAll(workers) }()
	for range 2 {
		workers = append(workers, p.startHolding(ctx, "be", p.config, p.bytes))
	}
	took, limit := make([]interval, 2), 6*time.Duration(cmp.Or(p.options.Seconds, pairSeconds)*float64(time.Second))+holdAnswer
	atOnce(2, func(i int) { p.ready(ctx, workers[i]) })
	atOnce(2, func(i int) { check(workers[i].ask(ctx, limit, &took[i], fmt.Sprint("steps ", p.steps))) })
	for _, w := range workers {
		run.memory = append(run.memory, must(p.memory(p.config, w)))
		run.sums = append(run.sums, w.sum(ctx))
	}
	began, ended := min(took[0].BeganNs, took[1].BeganNs), max(took[0].EndedNs, took[1].EndedNs)
	run.seconds = interval{began, ended}.seconds()
	return run
}

func (p *pairOfPrograms) row(name string, alone, both pairRun) result.Row {
	identical := !slices.ContainsFunc(both.sums, func(sum string) bool { return sum != alone.sums[0] })
	var out, in, swapNs, turns uint64
	for _, m := range both.memory {
		out, in, swapNs, turns = out+m.OutBytes, in+m.InBytes, swapNs+m.OutNs+m.InNs, turns+m.Turns
	}
	ratio := 2 * alone.seconds / both.seconds
	swapped := out > 0 // else both fit, or one waited for the other's end: that says nothing of swapping
	return valued(name, ratio, "of one after the other", pairGoal, identical && swapped,
		"2 x %.1f GB on %.1f GB, %d steps: %.1f s alone, %.1f s both; %d memory turns, %.1f GB out, %.1f GB in, swapping %.1f s in all with the start; %s",
		float64(p.bytes)/gb, float64(p.info.MemoryBytes)/gb, p.steps, alone.seconds, both.seconds, turns, float64(out)/gb, float64(in)/gb, float64(swapNs)/1e9,
		map[bool]string{true: "identical", false: "DIFFERENT: " + strings.Join(append(alone.sums, both.sums...), " ")}[identical])
}

const (
	besideRequests  = 400
	besideSwapAhead = 500 * time.Millisecond // in which the program allocates
)

// measureBesideSwapping measures an LC program with 20 GB beside two BE programs that swap all the time.
func measureBesideSwapping(ctx context.Context, s *session, name string) {
	resident := s.sized(20)
	share, missing := s.fitting(s.info.MemoryBytes-resident, pairShare)
	count := cmp.Or(s.options.Requests, besideRequests)
	config := s.swapConfig(name, hostMB(missing+missing/4), "turn_ms = 2000", fmt.Sprintf("reserve_mb = %d", resident/20_000_000))
	var latencies [2][]uint64
	var waits uint64
	var swapping string
	serve := func(role string, requests func(lc *worker)) {
		lc := s.startScript(ctx, script{name: "model.py", role: role, config: config, arguments: words("resnet50", resident)})
		defer s.finish(lc)
		check(lc.awaitReady(ctx, nil))
		requests(lc)
	}
	during("alone", func() { serve("", func(lc *worker) { latencies[0] = lc.requests(ctx, count) }) })
	during("lc", func() {
		serve("lc", func(lc *worker) {
			swapping = s.besideSwappers(ctx, config, share, func() {
				latencies[1] = lc.requests(ctx, count)
				waits = must(callsThatWaited(config, lc))
			})
		})
	})
	alone, now := result.LatencyOf(latencies[0]), result.LatencyOf(latencies[1])
	row := result.Row{Case: name, System: "gpreempt", LC: now, LCAlone: alone, Ratio: result.RatioOf(now, alone),
		Note: fmt.Sprintf("LC holds %.1f GB, 2 BE %.1f GB each; %s; %d calls of LC waited for room", float64(resident)/gb, float64(share)/gb, swapping, waits)}
	s.add(result.Row{Case: name, System: "alone", LC: alone}, row.Judged(besideGoal.text, besideGoal.reached(row.Ratio.P99) && waits == 0))
}

// requests are the latencies of so many requests, in runs of a few: before each the program allocates memory.
func (w *worker) requests(ctx context.Context, count int) (latenciesNs []uint64) {
	const each, gap = 20, 22 * time.Millisecond
	arrivals := make([]time.Duration, each)
	for i := range arrivals {
		arrivals[i] = time.Duration(i) * gap
	}
	for len(latenciesNs) < count {
		start := monotonic() + besideSwapAhead
		check(w.send(goOrder(start, start+each*gap, 0, false, "-", arrivals)))
		answered := w.answerGo(ctx, holdAnswer).DoneNs
		if len(answered) < each {
			fail("%s finished %d of %d requests in time", w.name, len(answered), each)
		}
		latenciesNs = append(latenciesNs, answered...)
	}
	return latenciesNs
}

// callsThatWaited is how many calls of a program found no room at once, whether or not its own memory may go.
func callsThatWaited(config string, w *worker) (uint64, error) {
	p, _, err := memoryPeer(config, w)
	if err != nil || p.Memory == nil {
		return 0, err
	}
	return p.Memory.Waits, nil
}

// besideSwappers serves while two BE programs take turns on memory that does not suffice for both, and tells what they did.
func (s *session) besideSwappers(ctx context.Context, config string, share uint64, serve func()) (note string) {
	var swappers []*worker
	defer func() { s.finishAll(swappers) }()
	for range 2 {
		swappers = append(swappers, s.startHolding(ctx, "be", config, share))
	}
	before, out := uint64(0), uint64(0)
	for _, w := range swappers {
		check(w.awaitReady(ctx, nil))
	}
	for _, w := range swappers {
		check(w.ask(ctx, holdAnswer, nil, "start"))
		before += must(s.memory(config, w)).OutBytes
	}
	began := time.Now()
	serve()
	seconds := time.Since(began).Seconds()
	for _, w := range swappers {
		out += must(s.memory(config, w)).OutBytes
		check(w.ask(ctx, holdAnswer, &beResult{}, "stop"))
	}
	return fmt.Sprintf("%.1f GB of BE went out in %.0f s", float64(out-before)/gb, seconds)
}
