package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The memory suite: programs that do not fit on the GPU together. Sizes are those of an 80 GB GPU, and smaller in proportion on
// a smaller one. Each figure is compared with the same work alone, or with pinned copies, in the same case.

const (
	memorySuite        = "memory"
	memoryEnginesSuite = "memory-engines"
	memoryFireSuite    = "memory-fire"
	memoryFireMPSSuite = "memory-fire-mps"
	memoryMechanisms   = `"auto"`
)

// goal is what a figure must reach: at least, or at most.
type goal struct {
	text        string
	least, most float64 // 0: no limit
}

func (g goal) reached(value float64) bool {
	return !math.IsNaN(value) && (g.least == 0 || value >= g.least) && (g.most == 0 || value <= g.most)
}

// The goals of the suite.
var (
	swapGoal     = goal{text: "swap >= 0.85 of pinned copies, same contents", least: .85}
	bothWaysGoal = goal{text: "out and in at once >= 0.75 of pinned copies both ways", least: .75}
	pairGoal     = goal{text: "two at once >= 0.9 of one after the other, bit-identical", least: .9}
	besideGoal   = goal{text: "lc p99 <= 1.25 x alone, no allocation of LC waits", most: 1.25}
	growGoal     = goal{text: "within bytes / bus rate + 100 ms"}
	reserveGoal  = goal{text: "no wait"}
	returnGoal   = goal{text: "first answer <= bytes / bus rate + 50 ms"}
	startsGoal   = goal{text: "each start, identical"}
	limitGoal    = goal{text: "out of memory within 64 MiB of the limit"}
	wakeGoal     = goal{text: "awake within bytes / 0.85 of the bus rate + 200 ms, identical"}
	fireGoal     = goal{text: "bit-identical, no hang, >= 200 evictions", least: 200}
	quietGoal    = goal{text: "BE >= 0.99 of without the library", least: .99}
)

// memoryCases are those of the suite, of memory-engines, and of memory-fire.
func memoryCases() []Case {
	of := func(suite, name string, g goal, seconds float64, measure func(ctx context.Context, s *session, name string)) Case {
		return Case{name, g.text, []string{suite}, seconds, measure}
	}
	one := func(name string, g goal, seconds float64, measure func(ctx context.Context, s *session, name string)) Case {
		return of(memorySuite, name, g, seconds, measure)
	}
	cases := []Case{
		one("swap-20", swapGoal, 50, measureSwap),
		one("grow", growGoal, 40, measureGrowth),
		one("idle-lc", returnGoal, 40, measureReturn),
		one("lc-beside-swapping", besideGoal, 90, measureBesideSwapping),
		one("pair-steps", pairGoal, 150, measurePair),
		of(memoryEnginesSuite, "limit", limitGoal, 30, measureLimit),
		of(memoryEnginesSuite, "be-behind-engine", startsGoal, 150, measureBEBehindEngine),
		of(memoryEnginesSuite, "engine-sleep", wakeGoal, 300, measureSleep),
		of(memoryEnginesSuite, "engine-behind-be", startsGoal, 500, measureEngineBehindBE),
		of(memoryEnginesSuite, "engine-beside-be", startsGoal, 500, measureEngineBesideBE),
	}
	for _, kind := range []string{"train", "infer", "gemmfp64"} {
		cases = append(cases, one("quiet-"+kind, quietGoal, 30, func(ctx context.Context, s *session, name string) { s.measureQuiet(ctx, name, kind) }))
	}
	return append(cases, memoryFireCases()...)
}

const (
	gb           = 1e9
	nearlyAll    = .97 // of the GPU's memory: what contexts leave of it
	memoryOf     = 80  // GB of the GPU that the cases' sizes are of
	memoryUnit   = 2 << 20
	swapRounds   = 3
	swapAnswer   = 2 * time.Minute // of a process that is asked to swap
	holdAnswer   = 3 * time.Minute
	pairSeconds  = 40.0 // of a program alone, where no time is asked for
	pollInterval = 2 * time.Millisecond
)

// sized is so many GB, or the same part of a smaller GPU.
func (s *session) sized(gigabytes float64) uint64 {
	return s.whole(min(gigabytes*gb, float64(s.info.MemoryBytes)*gigabytes/memoryOf))
}

// part is a part of the GPU's memory.
func (s *session) part(share float64) uint64 { return s.whole(float64(s.info.MemoryBytes) * share) }

func (s *session) whole(bytes float64) uint64 { return max(uint64(bytes)/memoryUnit, 1) * memoryUnit }

// hostAvailable is the host memory that may be pinned: what the machine and the cgroup have left.
func hostAvailable() uint64 {
	available := uint64(math.MaxUint64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemAvailable:" {
				kilobytes, _ := strconv.ParseUint(fields[1], 10, 64)
				available = kilobytes << 10
			}
		}
	}
	number := func(path string) uint64 {
		text, _ := os.ReadFile(path) // there may be none
		value, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil { // "max"
			return math.MaxUint64
		}
		return value
	}
	if limit, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current"); limit != math.MaxUint64 && used <= limit {
		available = min(available, limit-used)
	}
	return available
}

// needsHost sees that so much host memory can be pinned and leaves as much as programs need beside it.
func needsHost(bytes uint64) {
	if available := hostAvailable(); bytes > available/10*8 {
		fail("%.1f GB of host memory are needed, %.1f GB are available", float64(bytes)/gb, float64(available)/gb)
	}
}

// fitting is what each of two programs takes of so much memory of the GPU: a share, or less where the host's memory
// does not suffice for what does not fit, of both in turn.
func (s *session) fitting(memory uint64, share float64) (each, missing uint64) {
	each = s.whole(min(float64(memory)*share, float64(memory)/2+.75*float64(hostAvailable())/4))
	if 2*each <= memory {
		fail("two programs of %.1f GB fit, and the host's memory does not suffice for more", float64(each)/gb)
	}
	return each, 2*each - memory
}

// swapConfig is one for programs that swap. A request that arrives on a socket is a hint. Settings are lines of [memory].
func (s *session) swapConfig(name string, settings ...string) (path string) {
	return s.worldConfig(name, configs.HintsFrom(configs.HintSocket), append([]string{"[memory]"}, settings...)...)
}

// hostMB is a line of [memory] for programs of so many bytes.
func hostMB(bytes uint64) string { return fmt.Sprintf("host_mb = %d", bytes/1e6+1024) }

// hold starts a C program with so much device memory.
func (s *session) hold(ctx context.Context, role, config string, bytes uint64) *worker {
	w := s.startHolding(ctx, role, config, bytes)
	err := w.awaitReady(ctx, nil)
	if err == nil && role == "be" {
		err = s.inForce(ctx, config, w)
	}
	if err != nil {
		s.finish(w)
	}
	check(err)
	return w
}

// startHolding does not wait until the program has its memory.
func (s *session) startHolding(ctx context.Context, role, config string, bytes uint64, options ...any) *worker {
	piece := min(uint64(1)<<30, s.whole(float64(bytes)/4))
	w := s.configuredBy(config, role).start(ctx, role, "hold", words(append([]any{"--bytes", bytes, "--piece", piece, "--limit", 1000}, options...)...)...)
	w.limits.start = holdAnswer
	return w
}

func (w *worker) sum(ctx context.Context) string {
	var told struct {
		Sum string `json:"sum"`
	}
	check(w.ask(ctx, holdAnswer, &told, "sum"))
	if told.Sum == "" {
		fail("%s tells no checksum", w.name)
	}
	return told.Sum
}

// interval is when a worker did something.
type interval struct {
	BeganNs uint64 `json:"began_ns"`
	EndedNs uint64 `json:"ended_ns"`
}

func (i interval) seconds() float64 { return float64(i.EndedNs-i.BeganNs) / 1e9 }

// memoryPeer finds a process that swaps, and its segment.
func memoryPeer(config string, w *worker) (found *segment.Peer, path string, err error) {
	if found, path, err = peer(config, w.pid()); err == nil && found == nil {
		err = errors.New("not under the library")
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", w.name, err)
	}
	return found, path, nil
}

// memory is what the library says of a process's memory.
func (s *session) memory(config string, w *worker) (segment.Memory, error) {
	p, _, err := memoryPeer(config, w)
	if err != nil {
		return segment.Memory{}, err
	}
	if p.Memory == nil || p.InForce&configs.Swap == 0 {
		return segment.Memory{}, fmt.Errorf("%s: swap is not in force; in force: %s, not in force: %s", w.name, list(p.Mechanisms), list(p.Fallbacks))
	}
	return *p.Memory, nil
}

// inForce waits until a process's memory may go: it says so some time after it has a context.
func (s *session) inForce(ctx context.Context, config string, w *worker) error {
	return awaited(ctx, answerLimit, func() error {
		_, err := s.memory(config, w)
		return err
	})
}

// swapped is what became of a request to swap.
type swapped struct {
	bytes   uint64
	seconds float64
	moving  float64 // of these the library says that it moved
}

func (m swapped) rate() float64 { return float64(m.bytes) / m.seconds / gb }

var swapAnswers = map[segment.Answer]string{segment.AnswerBusy: "its work did not end in time", segment.AnswerNoHost: "no host memory",
	segment.AnswerNoRoom: "no room", segment.AnswerFailed: "the driver refused a call", segment.AnswerNothing: "nothing to move"}

// swap asks a process to move its memory, as gpreempt swap does, and waits until it has.
func (s *session) swap(ctx context.Context, config string, w *worker, what segment.Asked) (moved swapped) {
	before := must(s.memory(config, w))
	p, path, err := memoryPeer(config, w)
	check(err)
	reader := must(segment.OpenReader(path))
	defer reader.Close()
	began := time.Now()
	request := must(reader.Ask(p.Slot, p.StartedNs, what))
	for deadline := began.Add(swapAnswer); ; check(pause(ctx, pollInterval)) {
		after := must(s.memory(config, w))
		if answer, answered := after.AnswerTo(request); answered {
			moved.seconds = time.Since(began).Seconds()
			moved.bytes = after.OutBytes - before.OutBytes + after.InBytes - before.InBytes
			moved.moving = float64(after.OutNs-before.OutNs+after.InNs-before.InNs) / 1e9
			if answer != segment.AnswerDone {
				fail("%s: %s", w.name, cmp.Or(swapAnswers[answer], fmt.Sprint("answer ", answer)))
			}
			return moved
		}
		if time.Now().After(deadline) {
			fail("%s: %w in %s when asked to swap", w.name, errNoAnswer, swapAnswer)
		}
	}
}

// pinned are the rates of pinned copies in GB/s, each way and both at once.
type pinned struct{ in, out, both float64 }

// measurePinned copies so many bytes without the library.
func (s *session) measurePinned(ctx context.Context, bytes uint64) pinned {
	w := s.configuredBy("", "").start(ctx, "", "copies", words("--bytes", bytes, "--limit", 200)...)
	defer s.finish(w)
	check(w.awaitReady(ctx, nil))
	var in, out, both []float64
	rate := func(bytes, ns uint64) float64 { return float64(bytes) / float64(max(ns, 1)) }
	for range swapRounds {
		for _, way := range []string{"to", "from", "both"} {
			var taken struct {
				ToNs   uint64 `json:"to_ns"`
				FromNs uint64 `json:"from_ns"`
			}
			check(w.ask(ctx, holdAnswer, &taken, "copy "+way))
			switch way {
			case "to":
				in = append(in, rate(bytes, taken.ToNs))
			case "from":
				out = append(out, rate(bytes, taken.FromNs))
			default:
				both = append(both, rate(2*bytes, max(taken.ToNs, taken.FromNs)))
			}
		}
	}
	return pinned{result.Median(in), result.Median(out), result.Median(both)}
}

// valued is the row of a figure that has to reach a goal.
func valued(name string, value float64, unit string, g goal, pass bool, format string, arguments ...any) result.Row {
	return result.Figure(name, result.Round(value, 4), unit, fmt.Sprintf(format, arguments...)).Judged(g.text, pass && g.reached(value))
}

// measureQuiet is a BE program's rate where there is room for all.
func (s *session) measureQuiet(ctx context.Context, name, kind string) {
	config := s.swapConfig(name)
	var m segment.Memory
	be, note := s.withAndWithout(ctx, kind, config, func(ours *worker) { m = must(s.memory(config, ours)) })
	row := result.Row{Case: name, System: "gpreempt", BE: be,
		Note: fmt.Sprintf("%s; %.1f GB can go out, %.1f GB cannot", note, float64(m.Resident)/gb, float64(m.Pinned)/gb)}
	s.add(row.Judged(quietGoal.text, quietGoal.reached(be.Share) && m.Evictions == 0))
}
