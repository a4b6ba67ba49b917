package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// An evaluation is made of runs, each of a workload, a variant and a repeat. The folder has a file for each workload, which is written
// anew after each run: a call measures the runs that the folder lacks.

// assumedRequest is what a request of a task with a load is taken to need before that is measured: VGG-19 with its preparation, on an H200.
const assumedRequest = 1250 * time.Microsecond

// arrivals are those of a member's requests in a repeat, the same under all systems.
func (m member) arrivals(w workload.Workload, repeat int, length time.Duration) []time.Duration {
	return m.Arrivals(length, workload.Seed(w.Name, repeat, m.role, m.Program, m.index))
}

// repeats are how many runs of a workload there are under each system: as many as are asked for, and so many that their LC requests are as
// many as are asked for.
func (e *evaluation) repeats(w workload.Workload) int {
	repeats, requests := 0, 0
	for repeats < e.options.Repeats || requests < e.options.Requests {
		repeats++
		for _, m := range members(w, true, false) {
			if m.RateHz == 0 {
				m.RateHz = m.Load / assumedRequest.Seconds()
			}
			for _, arrival := range m.arrivals(w, repeats, e.length) {
				if arrival >= result.WarmUp {
					requests++
				}
			}
		}
	}
	return repeats
}

// rated gives tasks with a load the rate that they have in the folder, which was measured in an earlier call.
func (e *evaluation) rated(w workload.Workload) workload.Workload {
	c := e.knownCase(w, result.LCAlone)
	if c == nil || len(c.Runs) == 0 {
		return w
	}
	w.LC = slices.Clone(w.LC)
	for i, t := range c.Runs[0].Of("lc") {
		if i < len(w.LC) && w.LC[i].Load > 0 {
			w.LC[i].RateHz = t.RateHz
		}
	}
	return w
}

func (e *evaluation) knownCase(w workload.Workload, system string) *result.EvaluationCase {
	if e.known == nil {
		return nil
	}
	return e.known.Of(w.Name, system)
}

// recall gives a variant what the folder has of it. Where no systems are asked for, what failed or was left out stays so; a workload that
// could not even be measured alone is tried again.
func (e *evaluation) recall(v *variant, w workload.Workload) {
	c, alone := e.knownCase(w, v.name()), e.knownCase(w, result.LCAlone)
	if c == nil || alone == nil || v.skipped != "" {
		return
	}
	failed, asked := c.Note != "" && c.Note != result.AnotherRun, len(e.options.Systems) > 0
	switch {
	case c.Skipped != "" && !asked && len(c.Runs) == 0:
		v.skipped = c.Skipped
	case failed && len(c.Runs) == 0 && asked: // is tried again
	default:
		v.runs, v.note, v.recalled = slices.Clone(c.Runs), c.Note, len(c.Runs)
		if failed {
			for _, run := range alone.Runs {
				v.over = append(v.over, run.Repeat)
			}
		}
	}
}

// lacks says whether the variant has a repeat before it.
func (v *variant) lacks(repeat int) bool {
	if v.skipped != "" || v.once && len(v.runs) > 0 || slices.Contains(v.over, repeat) {
		return false
	}
	return !slices.ContainsFunc(v.runs, func(run result.RunResult) bool { return run.Repeat == repeat })
}

// lacking counts the runs that the folder lacks of a workload, by repeat; a variant that is measured once has one.
func (e *evaluation) lacking(w workload.Workload) (byRepeat []int) {
	w = e.rated(w)
	variants := e.variants(w)
	for repeat := 1; repeat <= e.repeats(w); repeat++ {
		n := 0
		for _, v := range variants {
			if v.lacks(repeat) && (!v.once || repeat == 1) {
				n++
			}
		}
		byRepeat = append(byRepeat, n)
	}
	return byRepeat
}

func (e *evaluation) runs(w workload.Workload) (all int) {
	for _, n := range e.lacking(w) {
		all += n
	}
	return all
}

// runSeconds is about how long that many runs take.
func (e *evaluation) runSeconds(runs int) float64 {
	return float64(runs) * (e.length + startAhead + aroundRun + backlog).Seconds()
}

// firstRuns are the runs of the first repeat of a workload that the folder does not have whole.
func (e *evaluation) firstRuns(w workload.Workload) int {
	for _, n := range e.lacking(w) {
		if n > 0 {
			return n
		}
	}
	return 0
}

// timeFor says whether so many seconds are left.
func (e *evaluation) timeFor(seconds float64) bool {
	limit := e.options.Minutes * 60
	return limit == 0 || time.Since(e.began).Seconds()+seconds <= limit
}

// checkLength sees that the runs which the folder has of a workload are as long as those that come: a repeat has the same requests under all
// systems.
func (e *evaluation) checkLength(w workload.Workload) error {
	if e.known == nil {
		return nil
	}
	for _, c := range e.known.OfWorkload(w.Name).Cases {
		for _, run := range c.Runs {
			if run.Seconds != e.length.Seconds() {
				return fmt.Errorf("%s: seconds is %g, and %g now: give --seconds %g, or name another folder with --out", e.partial(w), run.Seconds, e.length.Seconds(), run.Seconds)
			}
		}
	}
	return nil
}

func (e *evaluation) partial(w workload.Workload) string {
	return filepath.Join(e.options.Folder, w.Name+".json")
}

// save writes what there is of a workload to its file. A result that is not whole names the workload as left.
func (e *evaluation) save(w workload.Workload, variants []*variant, whole bool) error {
	one := e.result()
	for _, v := range variants {
		one.Cases = append(one.Cases, result.EvaluationCase{Case: w.Name, System: v.name(), About: w.About, PrepareUs: w.PrepareUs, Claimed: w.Claimed,
			Note: v.note, Skipped: v.skipped, Runs: v.runs})
	}
	if !whole {
		one.Left = []string{w.Name}
	}
	if e.known != nil && len(e.known.OfWorkload(w.Name).Cases) > 0 { // under other systems, too
		one = e.known.OfWorkload(w.Name).With(one)
	}
	if whole {
		if err := one.Summarise(); err != nil {
			return err
		}
	}
	return result.WriteJSON(e.partial(w), one, " ")
}
