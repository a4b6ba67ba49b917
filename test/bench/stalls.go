package bench

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// The stalls suite: so many requests that the slowest of a thousand, and of all, can be compared with those of the LC program alone.

// stallTarget judges the library with hints.
const stallTarget = "lc p99.9 <= 1.15 x alone, max <= alone max + 2 ms"

func isWithoutStalls(lc, alone *result.Latency) bool {
	return lc.P999Us <= 1.15*alone.P999Us && lc.MaxUs <= alone.MaxUs+2000
}

const (
	stallsRequests = 50_000
	stallsRound    = 30 * time.Second
	stallsLoad     = .5                     // of the GPU's time
	stallsRate     = 450                    // requests a second on an H200, for how long it takes
	calibrated     = 700 * time.Millisecond // a run that tells how long a request takes
)

func stallsCases() []Case {
	return []Case{{"load-50", stallTarget, []string{result.StallsSuite}, 2 * (15 + stallsRequests/stallsRate), measureStalls}}
}

// measureStalls measures the LC program alone, and at the same rate of requests beside BE.
func measureStalls(ctx context.Context, s *session, name string) {
	e := newEvaluation(s)
	defer e.close()
	e.systems = must(workload.Systems([]string{"gpreempt-hints"}))
	e.configure()
	w := workload.Workload{Name: name, LC: []workload.Task{{Program: "vgg19", Arrival: "poisson"}}, BE: []workload.Task{{Program: "resnet152"}}}
	var us []float64
	during(result.LCAlone, func() { us = e.manyRequests(ctx, workload.System{Name: result.LCAlone}, &w, false) })
	alone := result.LatencyOfMany(us)
	s.add(result.Row{Case: name, System: result.LCAlone, LC: alone})
	system := e.systems[0]
	during(system.Name, func() { us = e.manyRequests(ctx, system, &w, true) })
	lc := result.LatencyOfMany(us)
	row := result.Row{Case: name, System: system.Name, LC: lc, LCAlone: alone, Ratio: result.RatioOf(lc, alone)}
	s.add(row.Judged(stallTarget, isWithoutStalls(lc, alone)))
}

// manyRequests are the sorted latencies of a workload's requests under a system, in rounds of one process. Where the workload has no rate yet,
// it gets the one that makes the load.
func (e *evaluation) manyRequests(ctx context.Context, system workload.System, w *workload.Workload, besideBE bool) (us []float64) {
	defer e.keepOnly(nil)
	all := members(*w, besideBE)
	e.start(ctx, system, all)
	ready(ctx, all)
	if w.LC[0].RateHz == 0 {
		all[0].RateHz = 20
		usual := result.Median(e.run(ctx, workload.System{}, *w, 0, calibrated, all[:1]).Latencies())
		w.LC[0].RateHz = result.Round(stallsLoad*1e6/usual, 1)
	}
	all[0].RateHz = w.LC[0].RateHz
	wanted := cmp.Or(e.options.Requests, stallsRequests)
	for round := 1; len(us) < wanted; round++ {
		left := time.Duration(float64(wanted-len(us)) / all[0].RateHz * float64(time.Second))
		run := e.run(ctx, system, *w, round, min(left+2*result.WarmUp, stallsRound), all)
		us = append(us, run.Latencies()...)
		e.session.log("%-14s %-16s %s; %d of %d requests", w.Name, system.Name, run.Brief(), len(us), wanted)
	}
	slices.Sort(us)
	return us
}
