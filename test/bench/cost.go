package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// These cases measure what block-level preemption costs where nobody preempts, and what it covers: which launches of PyTorch programs can
// be stopped. The costs are the throughput of best-effort programs beside the same without the library, and what rewriting adds to a
// program's start.

const (
	costCovered, costShare     = 0.95, 0.98
	firstPercent, cachePercent = 30, 3
	coverageSeconds            = 3 * time.Second
	countersCopied             = time.Second // to where others see them, from time to time
	throughputRounds           = 10
	throughputTurn             = 600 * time.Millisecond
	loadRounds, loadFirst      = 4, 2
)

var coveredPrograms = []string{"resnet50-training", "transformer-training", "transformer-generation", "cublas"}

func costCases() []Case {
	cases := []Case{{"blp-coverage", fmt.Sprintf(">= %g of launches can be stopped", costCovered), []string{"blp-cost"}, 50, measureCoverage}}
	for _, one := range []struct {
		name, kind string
		besideIdle bool
	}{{"train", "train", false}, {"infer", "infer", false}, {"gemmfp64", "gemmfp64", false}, {"train-beside-idle", "train", true}, {"infer-beside-idle", "infer", true}} {
		cases = append(cases, Case{"blp-throughput-" + one.name, fmt.Sprintf("BE >= %g of without the library", costShare), []string{"blp-cost"}, 30,
			func(ctx context.Context, s *session, name string) {
				s.measureThroughput(ctx, name, one.kind, one.besideIdle)
			}})
	}
	return append(cases, Case{"blp-load", fmt.Sprintf("<= %d %% added to a start, from the cache <= %d %%", firstPercent, cachePercent), []string{"blp-cost"}, 75, measureLoad})
}

// costScript is a worker that shares what Triton compiles; one with a configuration is BE.
func (s *session) costScript(name, config string, arguments ...string) script {
	one := script{name: name, config: config, arguments: arguments, environment: []string{"TRITON_CACHE_DIR=" + filepath.Join(s.files, "triton")}}
	if config != "" {
		one.role = "be"
	}
	return one
}

// counters are what the library counted in a process; where there is nothing, that.
func (s *session) counters(ctx context.Context, config string, w *worker) (c result.Counted) {
	check(pause(ctx, countersCopied))
	if counted := s.count(config, w.pid()); counted != nil {
		c = *counted
	}
	return c
}

// notInForce is for a note: where nothing can be stopped no figure counts.
func notInForce(c result.Counted) string {
	if slices.Contains(c.Mechanisms, "blp") {
		return ""
	}
	return fmt.Sprintf("; in force: %s, not in force: %s", list(c.Mechanisms), list(c.Fallbacks))
}

// measureCoverage looks at all programs at once.
func measureCoverage(ctx context.Context, s *session, name string) {
	rows := make([]result.Row, len(coveredPrograms))
	atOnce(len(rows), func(i int) {
		during(coveredPrograms[i], func() { rows[i] = s.coverage(ctx, name+"-"+coveredPrograms[i], coveredPrograms[i]) })
	})
	s.add(rows...)
}

// coverage says which of a program's launches can be stopped.
func (s *session) coverage(ctx context.Context, name, program string) result.Row {
	config := s.blpConfig("coverage-"+program, "cache")
	w := s.startScript(ctx, s.costScript("fire/torch_programs.py", config, program))
	defer s.finish(w)
	w.begin(ctx)
	check(pause(ctx, coverageSeconds))
	check(w.ask(ctx, stepLimit, nil, "stop"))
	c := s.counters(ctx, config, w)
	launched := result.Round(float64(c.Launches)/float64(max(c.Launches+c.Uncovered, 1)), 4)
	row := result.Figure(name+"-launches", launched, "of launches", fmt.Sprintf("%d launches covered, %d not; kernels: %d seen, %d rewritten, refused: %s",
		c.Launches, c.Uncovered, c.KernelsSeen, c.KernelsGuarded, refusals(c.KernelsRefused))+notInForce(c))
	row.BLP = &c
	return row.Judged(fmt.Sprintf(">= %g of launches can be stopped", costCovered), launched >= costCovered)
}

// withAndWithout is the rate of a BE program under the library relative to the same one without it; note says from what.
// Look sees the former before it ends. Both processes live throughout and take short turns on the same processors, so that
// what drifts does so for both: a step of training keeps a processor busy for two thirds of its time, and processors differ
// by more than the library costs.
func (s *session) withAndWithout(ctx context.Context, kind, config string, look func(ours *worker)) (be *result.Share, note string) {
	plain, ours := s.costScript("be.py", "", kind, "--fixed-algorithms"), s.costScript("be.py", config, kind, "--fixed-algorithms")
	plain.onLast, ours.onLast = true, true
	workers := s.startScripts(ctx, plain, ours)
	defer s.finishAll(workers)
	rates := inTurns(ctx, workers)
	look(workers[1])
	var ratios []float64
	for i := range rates[0] {
		ratios = append(ratios, rates[1][i]/rates[0][i])
	}
	be = rateOf(result.Median(rates[1]), result.Median(rates[0]), stepsPerSecond)
	be.Share = result.Round(result.Median(ratios), 4)
	return be, fmt.Sprintf("median of %d rounds from %.4f to %.4f", throughputRounds, slices.Min(ratios), slices.Max(ratios))
}

// runOnLast has a process run on the last few of the processors that we may use. It has one thread so far; threads that it makes later run there,
// too.
func runOnLast(pid int) error {
	const few = 4
	var ours, its unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		return fmt.Errorf("read which processors we may use: %w", err)
	}
	for i, left := 0, ours.Count(); left > 0; i++ {
		if ours.IsSet(i) {
			if left <= few {
				its.Set(i)
			}
			left--
		}
	}
	return unix.SchedSetaffinity(pid, &its)
}

// inTurns are the rates of two workers that take short turns, which one first changing from round to round.
func inTurns(ctx context.Context, workers []*worker) (rates [2][]float64) {
	for _, w := range workers {
		w.rateAlone(ctx, time.Second)
	}
	for round := range throughputRounds {
		for turn := range workers {
			i := (round + turn) % 2
			rates[i] = append(rates[i], workers[i].rateAlone(ctx, throughputTurn))
		}
	}
	return rates
}

// measureThroughput measures beside a latency-critical program that has no work, or beside nobody. Only beside one launches are logged.
func (s *session) measureThroughput(ctx context.Context, name, kind string, besideIdle bool) {
	config := s.blpConfig(strings.TrimPrefix(name, "blp-"), "cache")
	if besideIdle {
		idle := s.startScript(ctx, script{name: "be.py", role: "lc", config: config, arguments: []string{"gemmfp64"}})
		defer s.finish(idle)
		check(idle.awaitReady(ctx, nil))
	}
	var c result.Counted
	be, note := s.withAndWithout(ctx, kind, config, func(ours *worker) { c = s.counters(ctx, config, ours) })
	row := result.Row{Case: name, System: "gpreempt", BE: be, BLP: &c,
		Note: fmt.Sprintf("%s; %d launches covered, %d not", note, c.Launches, c.Uncovered) + notInForce(c)}
	s.add(row.Judged(fmt.Sprintf("BE >= %g of without the library", costShare), be.Share >= costShare && c.Launches > 0))
}

// firstStep is the seconds from the start of a process to the end of its first step, and what the library counted.
func (s *session) firstStep(ctx context.Context, config string) (seconds float64, c result.Counted) {
	began := time.Now()
	w := s.startScript(ctx, s.costScript("first_step.py", config))
	defer s.finish(w)
	check(w.awaitReady(ctx, nil))
	seconds = time.Since(began).Seconds()
	if config != "" {
		c = s.counters(ctx, config, w)
	}
	return seconds, c
}

// measureLoad starts programs one after another, with and without the library in turn.
func measureLoad(ctx context.Context, s *session, name string) {
	s.firstStep(ctx, "") // what the disk has to give is then in memory
	var plain []float64
	taken, counted := map[string][]float64{}, map[string]result.Counted{}
	measure := func(which, config string) {
		seconds, c := s.firstStep(ctx, config)
		taken[which] = append(taken[which], seconds)
		counted[which] = c
	}
	var cached string
	for i := range loadRounds {
		if i < loadFirst {
			config := s.blpConfig(fmt.Sprint("load-", i), fmt.Sprint("cache-", i))
			if i == 0 {
				cached = config
			}
			measure("first", config)
		}
		seconds, _ := s.firstStep(ctx, "")
		plain = append(plain, seconds)
		measure("cached", cached)
	}
	usual := result.Median(plain)
	for _, of := range []struct {
		name, what string
		limit      float64
	}{{"first", "first time", firstPercent}, {"cached", "from the cache", cachePercent}} {
		times, c := taken[of.name], counted[of.name]
		added := result.Round(100*(result.Median(times)/usual-1), 2)
		row := result.Figure(name+"-"+of.name, added, "% added", fmt.Sprintf(
			"median of %d: %.2f s (%.2f to %.2f), without %.2f s (%.2f to %.2f, %d runs); %d images, %d from the cache, loads waited %.0f ms",
			len(times), result.Median(times), slices.Min(times), slices.Max(times), usual, slices.Min(plain), slices.Max(plain), len(plain),
			c.Images, c.ImagesCached, float64(c.LoadNs)/1e6)+notInForce(c))
		row.BLP = &c
		s.add(row.Judged(fmt.Sprintf("<= %g %% added to import torch and a first step, %s", of.limit, of.what), added <= of.limit && c.Launches > 0))
	}
}
