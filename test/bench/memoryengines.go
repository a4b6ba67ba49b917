package bench

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// vLLM as a latency-critical program that keeps more than half of the GPU's memory, and best-effort work that wants most of it: they start in
// any order, and the engine sleeps and wakes.

const (
	enginePart   = .6 // of the GPU's memory
	engineLayers = 4
	besidePart   = .8 // of the GPU's memory; behind the engine: of what that leaves
	engineStarts = 10
	engineSleeps = 20
	wakeMs       = 200 // beside the time for the bytes
	wakeRate     = .85 // of pinned copies
)

// engineAnswer is what engine.py says.
type engineAnswer struct {
	Tokens string  `json:"tokens"`
	Ms     float64 `json:"ms"`
}

func (s *session) startEngine(ctx context.Context, role, config string) *worker {
	s.needsModule(ctx, vllm.name)
	model := filepath.Join(s.files, "small-model")
	writeModel(model, engineLayers)
	return s.startScript(ctx, script{name: "engine.py", role: role, config: config, arguments: words(model, enginePart), environment: vllm.environment(), starts: servingStarts})
}

func (w *worker) engineReady(ctx context.Context) (tokens string) {
	var told engineAnswer
	check(w.awaitReady(ctx, &told))
	return told.Tokens
}

func (w *worker) engineOrder(ctx context.Context, order string) (told engineAnswer) {
	during(order, func() { check(w.ask(ctx, holdAnswer, &told, order)) })
	return told
}

// tokensAlone are those of the engine without the library and with the GPU to itself.
func (s *session) tokensAlone(ctx context.Context) string {
	w := s.startEngine(ctx, "", "")
	defer s.finish(w)
	return w.engineReady(ctx)
}

// sumAlone is the checksum of best-effort memory that has the GPU to itself: of bytes, in pieces as whole has them.
func (s *session) sumAlone(ctx context.Context, config string, bytes, whole uint64) string {
	be := s.startHolding(ctx, "be", config, whole, "--most", bytes)
	defer s.finish(be)
	check(be.awaitReady(ctx, nil))
	return be.sum(ctx)
}

// starts adds the row of so many starts, of which each says whether all was as alone. One in which a program ends is not.
func (s *session) starts(ctx context.Context, name string, start func() bool) {
	count, right := cmp.Or(s.options.Requests, engineStarts), 0
	for i := range count {
		began := time.Now()
		err := caught(func() {
			if start() {
				right++
			}
		})
		if ctx.Err() != nil {
			check(err)
		}
		if err != nil {
			s.log("%s: start %d: %v", name, i+1, err)
		}
		s.log("%s: %d of %d starts, %.0f s", name, right, i+1, time.Since(began).Seconds())
	}
	s.add(valued(name, float64(right), "starts", startsGoal, right == count, "of %d, with the tokens of the engine alone and the contents of best-effort memory", count))
}

func measureEngineBehindBE(ctx context.Context, s *session, name string) {
	bytes := s.part(besidePart)
	tokens, config := s.tokensAlone(ctx), s.swapConfig(name, hostMB(bytes))
	be := s.hold(ctx, "be", config, bytes)
	defer s.finish(be)
	sum := be.sum(ctx)
	s.starts(ctx, name, func() bool {
		w := s.startEngine(ctx, "lc", config)
		right := func() bool {
			defer s.finish(w)
			return w.engineReady(ctx) == tokens
		}()
		return be.sum(ctx) == sum && right
	})
}

func measureEngineBesideBE(ctx context.Context, s *session, name string) {
	bytes, least := s.part(besidePart), s.part((1-enginePart)/2) // the half of what the engine leaves
	tokens, config := s.tokensAlone(ctx), s.swapConfig(name, hostMB(bytes))
	sums := map[uint64]string{} // alone, by how much it got: where the engine is first, that is less
	s.starts(ctx, name, func() bool {
		got, sum, right := s.startBoth(ctx, config, bytes, tokens)
		if sums[got] == "" {
			sums[got] = s.sumAlone(ctx, config, got, bytes)
		}
		s.log("%s: best-effort work had %.1f of %.1f GB", name, float64(got)/gb, float64(bytes)/gb)
		return right && got >= least && sum == sums[got]
	})
}

// startBoth starts best-effort work and an engine at once. It says how much the former got, what that held, and whether the latter was right.
func (s *session) startBoth(ctx context.Context, config string, bytes uint64, tokens string) (got uint64, sum string, right bool) {
	be := s.startHolding(ctx, "be", config, bytes, "--fewer", true)
	defer s.finish(be)
	w := s.startEngine(ctx, "lc", config)
	func() {
		defer s.finish(w)
		right = w.engineReady(ctx) == tokens
	}()
	var told struct {
		Bytes uint64 `json:"bytes"`
	}
	check(be.awaitReady(ctx, &told)) // it may get its memory only when the engine has ended
	return told.Bytes, be.sum(ctx), right
}

func measureBEBehindEngine(ctx context.Context, s *session, name string) {
	bytes := s.part((1 - enginePart) * besidePart)
	tokens, config := s.tokensAlone(ctx), s.swapConfig(name, hostMB(bytes))
	sum := s.sumAlone(ctx, config, bytes, bytes)
	w := s.startEngine(ctx, "lc", config)
	defer s.finish(w)
	w.engineReady(ctx)
	s.starts(ctx, name, func() bool {
		be := s.hold(ctx, "be", config, bytes)
		defer s.finish(be)
		return be.sum(ctx) == sum && w.engineOrder(ctx, "generate").Tokens == tokens
	})
}

// measureSleep lets best-effort work have the room of an engine that sleeps, and wakes the engine.
func measureSleep(ctx context.Context, s *session, name string) {
	bytes := s.part(besidePart)
	copies, tokens, config := s.measurePinned(ctx, s.sized(20)), s.tokensAlone(ctx), s.swapConfig(name, hostMB(bytes))
	needed := float64(bytes + s.part(enginePart) - s.info.MemoryBytes)
	be := s.hold(ctx, "be", config, bytes)
	defer s.finish(be)
	sum := be.sum(ctx)
	w := s.startEngine(ctx, "lc", config)
	defer s.finish(w)
	w.engineReady(ctx)
	var wakes, outs []float64 // ms; GB of best-effort memory
	var wrong []string
	late := 0
	for i := range cmp.Or(s.options.Requests, engineSleeps) {
		w.engineOrder(ctx, "sleep")
		if be.sum(ctx) != sum { // for which its memory comes back
			wrong = append(wrong, fmt.Sprintf("best-effort memory in round %d", i+1))
		}
		before := must(s.memory(config, be)).OutBytes
		wake := w.engineOrder(ctx, "wake").Ms
		if w.engineOrder(ctx, "generate").Tokens != tokens {
			wrong = append(wrong, fmt.Sprintf("tokens in round %d", i+1))
		}
		out := min(float64(must(s.memory(config, be)).OutBytes-before), 1.1*needed) / gb // what goes out in vain is no excuse
		if wake > wakeLimit(out, copies.out) {
			late++
		}
		s.log("%s: awake after %.0f ms", name, wake)
		wakes, outs = append(wakes, wake), append(outs, out)
	}
	note := "same tokens and contents"
	if len(wrong) > 0 {
		note = "DIFFERENT: " + strings.Join(wrong, ", ")
	}
	out := result.Median(outs)
	s.add(valued(name, result.Median(wakes), "ms", wakeGoal, late == 0 && len(wrong) == 0, "median of %d, slowest %.0f; %d later than %.0f ms: %.1f GB of BE go out, of pinned copies at %.1f GB/s; %s",
		len(wakes), slices.Max(wakes), late, wakeLimit(out, copies.out), out, copies.out, note))
}

// wakeLimit is how many milliseconds an engine may take to wake. So many GB go out meanwhile; the rate is that of pinned copies, in GB/s.
func wakeLimit(out, rate float64) float64 { return out/(wakeRate*rate)*1000 + wakeMs }
