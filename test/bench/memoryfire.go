package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Programs under fire whose memory goes out at random moments, and comes back by itself when they go on.

const memoryFireSeconds = 200 // the longest under fire: an eviction waits for the work that is queued

func memoryFireCases() (cases []Case) {
	for _, program := range slices.Concat(torchFire, nativeFire) {
		cases = append(cases, Case{"memory-fire-" + program, fireGoal.text, []string{memoryFireSuite, memoryFireMPSSuite}, 100, func(ctx context.Context, s *session, name string) {
			(&fire{session: s, program: program, ordeal: evictions{}}).measure(ctx, name)
		}})
	}
	return cases
}

// evictions are of the program's memory, at random. The program's work holds some up.
type evictions struct{}

func (evictions) config(f *fire) string { return f.swapConfig(f.program) }

func (evictions) underFire(ctx context.Context, f *fire, w *worker) {
	defer func() {
		if now, err := f.session.memory(f.config, w); err == nil {
			f.memory = now
		}
	}()
	f.fired = f.rounds(ctx, w, "under fire", func() {
		random := workload.Seed(f.program)
		limit := time.Duration(cmp.Or(f.options.Seconds, memoryFireSeconds) * float64(time.Second))
		for deadline := time.Now().Add(limit); time.Now().Before(deadline) && !w.hasEnded() && float64(f.memory.Evictions) < fireGoal.least; {
			check(pause(ctx, time.Duration(1+random.IntN(80))*time.Millisecond))
			err := caught(func() { f.swap(ctx, f.config, w, segment.AskedOut) })
			if errors.Is(err, errNoAnswer) || ctx.Err() != nil {
				check(err)
			}
			f.memory = must(f.session.memory(f.config, w))
		}
	})
}

func (evictions) told(f *fire) (beside string, more []string) {
	m := f.memory
	return fmt.Sprintf("%.1f GB went out, %.1f GB came in, %d calls waited, %d moves failed", float64(m.OutBytes)/gb, float64(m.InBytes)/gb, m.Waits, m.Failures), nil
}

func (evictions) row(f *fire, name string, passed bool, notes []string) result.Row {
	return valued(name, float64(f.memory.Evictions), "evictions", fireGoal, passed, "%s", strings.Join(notes, "; "))
}
