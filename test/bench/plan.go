package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Times beside the runs themselves, as seen on an H200 with 16 processors.
const (
	aroundRun   = 20 * time.Millisecond  // from the end of a run to the order of the next, beside startAhead
	backlog     = 130 * time.Millisecond // after a run, on average: where LC requests pile up they take 1 s to end
	importTorch = 4 * time.Second        // in a process, which keeps a processor busy
	processors  = 16
	startTorch  = 600 * time.Millisecond // a process, its context, a model and its graph
	startOwn    = 200 * time.Millisecond
)

// costs are about how many seconds each of the workloads takes after the ones before.
func (e *evaluation) costs(workloads []workload.Workload) []float64 {
	var all []float64
	running := map[string]bool{}
	for _, w := range workloads {
		starting, _ := e.starting(w, running)
		runs := 0
		for _, v := range e.variants(w) {
			if v.skipped == "" {
				runs += e.runsOf(v, w)
			}
		}
		all = append(all, (starting + time.Duration(runs)*(e.length+startAhead+aroundRun+backlog)).Seconds())
	}
	return all
}

// starting is about how long a workload's programs take to be ready, and how many they are. Running is what runs already
// and becomes what runs then.
func (e *evaluation) starting(w workload.Workload, running map[string]bool) (time.Duration, int) {
	var total time.Duration
	torch := 0
	needed := map[string]bool{}
	for _, v := range e.variants(w) {
		for _, m := range v.tasks {
			k := m.key(v.system)
			switch {
			case needed[k] || running[k]:
			case m.own():
				total += startOwn
			default:
				torch++
				total += startTorch
			}
			needed[k] = true
		}
	}
	if torch > 0 {
		total += max(importTorch, importTorch*time.Duration(torch)/processors)
	}
	clear(running)
	for k := range needed {
		running[k] = true
	}
	return total, len(needed)
}

// planEvaluation says what evaluate would do and about how long it would take, without a GPU.
func planEvaluation(out io.Writer, options Options) error {
	e := &evaluation{options: options}
	picked, err := e.pick()
	if err != nil {
		return err
	}
	names := []string{result.LCAlone, result.BEAlone}
	for _, system := range e.systems {
		names = append(names, system.Name)
	}
	requests := ""
	if e.options.Requests > 0 {
		requests = fmt.Sprintf(", and so many more that they have %d LC requests,", e.options.Requests)
	}
	fmt.Fprintf(out, "%d runs of %s (%s: 1)%s of each workload under each of: %s\n\n", e.options.Repeats, e.length, result.BEAlone, requests, strings.Join(names, ", "))
	t := result.NewTable(out, "workload", "systems", "runs", "processes", "seconds", "until", "what")
	running := map[string]bool{}
	costs := e.costs(picked)
	total := 0.0
	for i, w := range picked {
		_, processes := e.starting(w, running)
		total += costs[i]
		t.Row(w.Name, strconv.Itoa(len(e.systems)), strconv.Itoa(e.repeats(w)), strconv.Itoa(processes), fmt.Sprintf("%.0f", costs[i]), clock(total), w.About)
	}
	if err := t.End(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAbout %s in all, estimated from an H200 with %d processors.\n", clock(total), processors)
	return nil
}
