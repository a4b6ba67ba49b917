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
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Programs under fire whose memory goes out at random moments, and comes back by itself when they go on.

const memoryFireSeconds = 200 // the longest under fire: an eviction waits for the work that is queued

func memoryFireCases() (cases []Case) {
	for _, program := range slices.Concat(torchFire, nativeFire) {
		cases = append(cases, Case{"memory-fire-" + program, fireGoal.text, []string{memoryFireSuite, memoryFireMPSSuite}, 100, func(ctx context.Context, s *session, name string) error {
			f := &memoryFire{fire: fire{session: s, program: program}}
			return f.measure(ctx, name)
		}})
	}
	return cases
}

type memoryFire struct {
	fire
	memory segment.Memory
}

func (f *memoryFire) measure(ctx context.Context, name string) error {
	first, err := f.alone(ctx)
	if err != nil {
		return err
	}
	quiet, fired, err := f.evicted(ctx, first)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m, notes := f.memory, f.notes
	if err != nil {
		notes = append(notes, err.Error())
	}
	if beside := fired.beside(quiet); beside != "" {
		notes = append(notes, fmt.Sprintf("%s; %.1f GB went out, %.1f GB came in, %d calls waited, %d moves failed",
			beside, float64(m.OutBytes)/gb, float64(m.InBytes)/gb, m.Waits, m.Failures))
	}
	passed := err == nil && !f.different
	if said := f.said(f.program); !passed && said != "" {
		notes = append(notes, "log: "+said)
	}
	row := valued(name, float64(m.Evictions), "evictions", fireGoal, passed, "%s", strings.Join(notes, "; "))
	f.add(row)
	if !*row.Pass {
		f.keepLog(f.program, name)
	}
	return nil
}

// evicted sends the program's memory out at random.
func (f *memoryFire) evicted(ctx context.Context, first []string) (quiet, fired rounds, err error) {
	if f.config, err = f.swapConfig(f.program); err != nil {
		return quiet, fired, err
	}
	return f.asBE(ctx, first, func(ctx context.Context, w *worker) (rounds, error) {
		fired, err := f.rounds(ctx, w, "under fire", func() error { return f.evictAtRandom(ctx, w) })
		if now, lookErr := f.session.memory(f.config, w); lookErr == nil {
			f.memory = now
		}
		return fired, err
	})
}

// evictAtRandom asks for evictions, some of which the program's work holds up.
func (f *memoryFire) evictAtRandom(ctx context.Context, w *worker) error {
	random := workload.Seed(f.program)
	limit := time.Duration(cmp.Or(f.options.Seconds, memoryFireSeconds) * float64(time.Second))
	for deadline := time.Now().Add(limit); time.Now().Before(deadline) && !w.hasEnded(); {
		if err := pause(ctx, time.Duration(1+random.IntN(80))*time.Millisecond); err != nil {
			return err
		}
		if _, err := f.swap(ctx, f.config, w, segment.AskedOut); err != nil && (errors.Is(err, errNoAnswer) || ctx.Err() != nil) {
			return err
		}
		m, err := f.session.memory(f.config, w)
		if err != nil {
			return err
		}
		if f.memory = m; float64(m.Evictions) >= fireGoal.least {
			return nil
		}
	}
	return nil
}
