package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Correctness under fire: programs run without the library (twice), and as best-effort processes with block-level preemption. First no
// process preempts these, then a latency-critical process does, at random, a thousand times and more. All must compute the same, bit by
// bit, and none may hang.

const onlyStops = `["blp"]`

const (
	fireStops       = 1000
	fireSeconds     = 45 // the longest under fire: a stop of blocks that wait for each other takes 20 ms
	fireUndisturbed = 2 * time.Second
	fireStart       = 200 * time.Second // many start at once, and some are compiled
	fireAnswer      = 40 * time.Second  // a round of the slowest, preempted all the time
)

var (
	nativeFire = []string{"in-place", "atomics", "scans", "cooperative", "clusters", "streams", "copies", "graphs",
		"marlin", "lamport", "exceeding"}
	torchFire = []string{"resnet50-training", "transformer-training", "transformer-generation", "cublas", "triton-stream-k"}
)

// Programs whose blocks wait for each other, and so for room on the GPU for all of them (of resnet50-training, cuDNN's persistent batch
// normalisation). Under MPS two such programs may each have a part of the room and wait for ever, also without the library.
var waitingFire = []string{"resnet50-training", "cooperative", "marlin", "lamport", "exceeding"}

var fireTarget = fmt.Sprintf("bit-identical, no hang, >= %d stops, cuts", fireStops)

func fireCases() (cases []Case) {
	for _, program := range slices.Concat(torchFire, nativeFire) { // the slow ones first
		cases = append(cases, Case{"fire-" + program, fireTarget, []string{"blp-fire", "blp-fire-mps"}, 55, func(ctx context.Context, s *session, name string) {
			(&fire{session: s, program: program, ordeal: stops{}}).measure(ctx, name)
		}})
	}
	return cases
}

// keepLog copies what the library logged to the folder of partial results.
func (s *session) keepLog(program, name string) {
	text, err := os.ReadFile(s.logFile(program))
	if errors.Is(err, os.ErrNotExist) { // it said nothing
		return
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.options.Folder, name+".log"), text, 0o644)
	}
	if err != nil {
		s.log("%s: keep the library's log: %v", name, err)
	}
}

// firing has programs under fire, with these mechanisms, and all processes clients of an MPS server or none.
func firing(mechanisms string, overMPS bool) func(context.Context, *session) func() {
	return func(ctx context.Context, s *session) (end func()) {
		quit := func() {}
		if overMPS {
			quit = s.underMPS(ctx)
			s.addMPS = append(s.addMPS, "CUDA_MPS_CLIENT_PRIORITY=0") // with a lower one stops would wait, for windows to be over by then
			s.apart = make(chan struct{}, 1)
		}
		s.mechanisms = mechanisms
		return quit
	}
}

// rounds is what a worker did between start and stop.
type rounds struct {
	Rounds    int     `json:"rounds"`
	Different int     `json:"different"`
	First     [2]int  `json:"first_different"` // round and step
	Seconds   float64 `json:"seconds"`
}

// fire is a case while it is measured.
type fire struct {
	*session
	program      string
	ordeal       ordeal
	config       string
	notes        []string
	counted      result.Counted
	memory       segment.Memory
	quiet, fired rounds
	different    bool
	peerRequests int
}

// ordeal is what disturbs a program under fire.
type ordeal interface {
	config(f *fire) (path string)
	// underFire lets the program go on until it has been disturbed often enough, or too long.
	underFire(ctx context.Context, f *fire, w *worker)
	// row says how often it was, and told what there was besides.
	row(f *fire, name string, passed bool, notes []string) result.Row
	told(f *fire) (beside string, more []string)
}

func (f *fire) note(format string, arguments ...any) {
	f.notes = append(f.notes, fmt.Sprintf(format, arguments...))
}

// begin starts the program; a role needs the configuration. A program without a role is no client of our MPS server: it would be more
// urgent there than programs under fire. Such a client can have them stand still (docs/limits.md).
func (f *fire) begin(ctx context.Context, role string) *worker {
	environment := []string{"TRITON_CACHE_DIR=" + filepath.Join(f.files, "triton")}
	if role != "" {
		environment = append(environment, f.addMPS...)
	}
	name := "fire/torch_programs.py"
	if slices.Contains(nativeFire, f.program) {
		name = "fire/native.py"
	}
	return f.startScript(ctx, script{name: name, arguments: []string{f.program}, role: role, config: f.config, environment: environment})
}

// answer reads an answer. A worker that gives none hangs.
func (f *fire) answer(ctx context.Context, w *worker, limit time.Duration, result any, what string) {
	err := w.answer(ctx, limit, result)
	if errors.Is(err, errNoAnswer) {
		f.count(w)
		err = fmt.Errorf("HANG: %w", err)
		w.kill()
	}
	if err != nil {
		fail("%s: %w", what, err)
	}
}

func (f *fire) ready(ctx context.Context, w *worker, what string) (steps []string) {
	var first struct {
		Steps []string `json:"steps"`
	}
	f.answer(ctx, w, fireStart, &first, what)
	w.starting = false
	if len(first.Steps) == 0 {
		fail("%s: no steps", what)
	}
	return first.Steps
}

func (f *fire) count(w *worker) result.Counted {
	if f.config == "" {
		return f.counted
	}
	if c := f.session.count(f.config, w.pid()); c != nil {
		f.counted = *c
	}
	return f.counted
}

// rounds lets the program go on until enough returns; all rounds must be like the first.
func (f *fire) rounds(ctx context.Context, w *worker, what string, enough func()) (r rounds) {
	check(w.send("start"))
	f.answer(ctx, w, fireAnswer, nil, what)
	enough()
	check(w.send("stop"))
	f.answer(ctx, w, fireAnswer, &r, what)
	if r.Rounds == 0 {
		fail("%s: no rounds", what)
	}
	if r.Different > 0 {
		f.different = true
		f.note("%s: %d of %d rounds different, first round %d, step %d", what, r.Different, r.Rounds, r.First[0], r.First[1])
	}
	return r
}

// alone returns the steps of two processes without the library.
func (f *fire) alone(ctx context.Context) (first []string) {
	const what = "without the library"
	var workers []*worker
	defer func() { f.finishAll(workers) }()
	var steps [2][]string
	during(what, func() {
		for range steps {
			workers = append(workers, f.begin(ctx, ""))
		}
	})
	for i := range steps {
		steps[i] = f.ready(ctx, workers[i], what)
	}
	f.rounds(ctx, workers[0], what, func() { check(pause(ctx, 200*time.Millisecond)) })
	if !slices.Equal(steps[0], steps[1]) || f.different {
		check(errors.New(strings.Join(append([]string{"NOT DETERMINISTIC without the library"}, f.notes...), ": ")))
	}
	return steps[0]
}

// asBE lets the program run as BE, undisturbed and then under fire.
func (f *fire) asBE(ctx context.Context, first []string) {
	f.config = f.ordeal.config(f)
	w := f.begin(ctx, "be")
	defer f.finish(w)
	steps := f.ready(ctx, w, "as BE")
	if i := firstDifference(first, steps); i >= 0 {
		f.different = true
		f.note("as BE: different from step %d of %d on", i, len(first))
	}
	f.quiet = f.rounds(ctx, w, "as BE, undisturbed", func() { check(pause(ctx, fireUndisturbed)) })
	f.ordeal.underFire(ctx, f, w)
}

// measure measures the case. Its row says which ways under the library went wrong.
func (f *fire) measure(ctx context.Context, name string) {
	first := f.alone(ctx)
	if f.apart != nil && slices.Contains(waitingFire, f.program) {
		select {
		case f.apart <- struct{}{}:
			defer func() { <-f.apart }()
		case <-ctx.Done():
			check(ctx.Err())
		}
	}
	err := caught(func() { f.asBE(ctx, first) })
	check(ctx.Err())
	var notes []string
	if err != nil {
		notes = append(notes, err.Error())
	}
	for _, note := range f.notes {
		if err == nil || !strings.Contains(err.Error(), note) {
			notes = append(notes, note)
		}
	}
	beside, more := f.ordeal.told(f)
	if f.fired.Rounds > 0 && f.quiet.Seconds > 0 {
		each := func(r rounds) float64 { return r.Seconds / float64(r.Rounds) }
		notes = append(notes, fmt.Sprintf("%d rounds under fire, each %.1f x as long; %s", f.fired.Rounds, each(f.fired)/each(f.quiet), beside))
	}
	row := f.ordeal.row(f, name, err == nil && !f.different, append(notes, more...))
	if !*row.Pass {
		if said := f.said(f.program); said != "" {
			row.Note = strings.TrimPrefix(row.Note+"; log: "+said, "; ")
		}
		f.keepLog(f.program, name)
	}
	f.add(row)
}

// stops are those of an LC process at random.
type stops struct{}

func (stops) config(f *fire) string { return f.blpConfig(f.program, "cache") }

func (stops) underFire(ctx context.Context, f *fire, w *worker) {
	before := f.count(w).Stops
	if !slices.Contains(f.counted.Mechanisms, "blp") {
		f.note("in force: %s, not in force: %s", list(f.counted.Mechanisms), list(f.counted.Fallbacks))
	}
	peer := f.startPeer(ctx, f.config)
	defer f.finish(peer)
	limit := time.Duration(cmp.Or(f.options.Seconds, fireSeconds) * float64(time.Second))
	err := caught(func() {
		f.fired = f.rounds(ctx, w, "under fire", func() {
			for deadline := time.Now().Add(limit); time.Now().Before(deadline) && !w.hasEnded() && !peer.hasEnded(); {
				check(pause(ctx, 500*time.Millisecond))
				if f.count(w).Stops-before >= fireStops {
					break
				}
			}
		})
	})
	f.count(w)
	f.counted.Stops -= min(before, f.counted.Stops)
	check(err)
	var served lcResult
	during("the LC process", func() { check(peer.ask(ctx, answerLimit, &served, "stop")) })
	f.peerRequests = len(served.LatenciesNs)
}

func (stops) told(f *fire) (beside string, more []string) {
	if c := f.counted; c.Launches > 0 {
		more = append(more, fmt.Sprintf("%d launches cut, %d blocks resumed, drain %.0f us mean, %.0f us most; %d launches covered, %d not, %d barriers; kernels refused: %s",
			c.Cuts, c.ResumedBlocks, float64(c.DrainNs)/1000/float64(max(c.Stops, 1)), float64(c.DrainMaxNs)/1000, c.Launches, c.Uncovered, c.Barriers, refusals(c.KernelsRefused)))
		if c.Beside > 0 {
			more = append(more, fmt.Sprintf("%d launches were parted whose blocks wait for later ones", c.Beside))
		}
		if c.GivenUp > 0 {
			more = append(more, fmt.Sprintf("GIVEN UP %d times", c.GivenUp))
		}
	}
	return fmt.Sprintf("%d LC requests", f.peerRequests), more
}

func (stops) row(f *fire, name string, passed bool, notes []string) result.Row {
	row := result.Figure(name, float64(f.counted.Stops), "stops", strings.Join(notes, "; "))
	row.BLP = &f.counted
	return row.Judged(fireTarget, passed && enoughStops(f.counted))
}

// enoughStops says whether a program was stopped as often as the target says.
func enoughStops(c result.Counted) bool { return c.Stops >= fireStops && c.Cuts > 0 && c.GivenUp == 0 }

// startPeer starts an LC process with a tiny kernel every 1 to 11 ms: each of its windows stops the BE processes.
func (s *session) startPeer(ctx context.Context, config string) *worker {
	w := s.configuredBy(config, "lc").start(ctx, "lc", "lc", "--blocks", "1", "--threads", "32", "--iterations", "2000", "--kernels", "1",
		"--requests", "1000000", "--warm-up", "0", "--gap-us", "6000", "--gap-least-us", "1000",
		"--seconds", "170", "--limit", "180")
	during("the LC process", func() {
		if err := caught(func() { w.begin(ctx) }); err != nil {
			s.finish(w)
			check(err)
		}
	})
	return w
}

// firstDifference is the first place at which lists differ, or -1.
func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

func list(words []string) string { return cmp.Or(strings.Join(words, " "), "nothing") }

func refusals(reasons map[string]uint64) string {
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		words = append(words, fmt.Sprintf("%s %d", reason, reasons[reason]))
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// blpConfig is one for block-level preemption; cache is the folder of rewritten code.
func (s *session) blpConfig(name, cache string) (path string) {
	return s.worldConfig(name, configs.HintsFrom(), "[blp]", fmt.Sprintf("cache_directory = %q", filepath.Join(s.files, cache)))
}

// worldConfig makes a configuration whose processes know only of one another. Hints are a section, settings the lines of others.
func (s *session) worldConfig(name, hints string, settings ...string) (path string) {
	segments := filepath.Join(s.folder, name)
	if err := os.Mkdir(segments, 0o700); !errors.Is(err, os.ErrExist) {
		check(err)
	}
	path = filepath.Join(s.files, name+".toml")
	text := fmt.Sprintf("mechanisms = %s\n%s[segment]\ndirectory = %q\n[log]\nlevel = \"info\"\nfile = %q\n%s\n",
		s.mechanisms, hints, segments, s.logFile(name), strings.Join(settings, "\n"))
	check(os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (s *session) logFile(name string) string { return filepath.Join(s.files, name+".log") }

// said is the end of what the library logged.
func (s *session) said(name string) string {
	text, err := os.ReadFile(s.logFile(name))
	if err != nil {
		return "" // it said nothing
	}
	return lastLines(text)
}
