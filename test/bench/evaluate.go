package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

const (
	startAhead     = 40 * time.Millisecond // from the order of a run to its start
	defaultRepeats = 3
	defaultSeconds = 4 // of a run
)

// evaluation is what measures workloads: their programs under each system, which run on from one workload to the next.
type evaluation struct {
	session *session
	options Options
	systems []workload.System
	configs map[string]string // by system: path of the library's configuration
	running map[string]*worker
	mps     *mpsDaemon // that serves those under MPS; nil: none runs
	length  time.Duration
}

func newEvaluation(s *session) *evaluation {
	return &evaluation{options: s.options, session: s, running: map[string]*worker{}, configs: map[string]string{}}
}

// withSystems lets the session measure workloads.
func withSystems(_ context.Context, s *session) (end func()) {
	e := newEvaluation(s)
	e.systems = must(workload.Systems(s.options.Systems, s.options.tests.systems...))
	e.options.Repeats = cmp.Or(e.options.Repeats, defaultRepeats)
	e.length = time.Duration(cmp.Or(e.options.Seconds, defaultSeconds) * float64(time.Second))
	if e.length < 2*result.WarmUp {
		fail("runs of %s: at least %s", e.length, 2*result.WarmUp)
	}
	e.configure()
	s.evaluation = e
	return e.close
}

const workloadSeconds = 80 // of one under five systems, 1000 requests each

func paperCases() (cases []Case) {
	for _, w := range workload.All {
		cases = append(cases, Case{w.Name, "", []string{workload.Suite}, workloadSeconds, func(ctx context.Context, s *session, _ string) {
			s.add(s.evaluation.measure(ctx, w)...)
		}})
	}
	return cases
}

// repeats are how many runs of a workload there are under each system: as many as are asked for, and so many that their LC requests are as
// many as are asked for.
func (e *evaluation) repeats(w workload.Workload) int {
	repeats, requests := 0, 0
	for repeats < e.options.Repeats || requests < e.options.Requests {
		repeats++
		for _, m := range members(w, false) {
			for _, arrival := range m.arrivals(w, repeats, e.length) {
				if arrival >= result.WarmUp {
					requests++
				}
			}
		}
	}
	return repeats
}

// arrivals are those of a member's requests in a repeat, the same under all systems.
func (m member) arrivals(w workload.Workload, repeat int, length time.Duration) []time.Duration {
	return m.Arrivals(length, workload.Seed(w.Name, repeat, m.role, m.Program, m.index))
}

// configure makes what each system needs. Without MPS on this machine its systems are left out.
func (e *evaluation) configure() {
	if _, err := e.session.findMPS(); err != nil && slices.ContainsFunc(e.systems, func(s workload.System) bool { return s.MPS }) {
		e.session.log("systems under MPS are left out: %v", err)
		e.systems = slices.DeleteFunc(e.systems, func(s workload.System) bool { return s.MPS })
	}
	for _, system := range e.systems {
		segment := filepath.Join(e.session.folder, "segment-"+system.Name)
		text := system.LibraryConfig(segment)
		if text == "" {
			continue
		}
		path := filepath.Join(e.session.folder, system.Name+".toml")
		check(os.MkdirAll(segment, 0o700)) // an earlier case may have made it
		check(os.WriteFile(path, []byte(text), 0o600))
		e.configs[system.Name] = path
	}
}

func (e *evaluation) close() {
	e.end(func(string, *worker) bool { return true })
	e.stopMPS()
}

// monotonic is the clock of the times that workers get.
func monotonic() time.Duration {
	var now unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return time.Duration(now.Nano())
}

// run lets the programs serve a run, which all of them begin at the same time.
func (e *evaluation) run(ctx context.Context, system workload.System, w workload.Workload, repeat int, length time.Duration, wanted []member) result.RunResult {
	stop := filepath.Join(e.session.folder, "stop")
	if err := os.Remove(stop); !errors.Is(err, os.ErrNotExist) {
		check(err)
	}
	begin := monotonic() + startAhead
	run := result.RunResult{Length: length}
	all := make([][]time.Duration, len(wanted))
	for i, m := range wanted {
		prepare, hint, until := 0, false, stop
		if m.role == "lc" {
			prepare, hint, until = workload.PrepareUs, system.Hints == "given", "-"
		}
		if m.RateHz > 0 {
			all[i] = m.arrivals(w, repeat, length)
			if all[i] == nil {
				all[i] = []time.Duration{}
			}
		}
		check(m.program.send(goOrder(begin, begin+length, prepare, hint, until, all[i])))
	}
	stopped := false
	for i, m := range wanted {
		if m.role != "lc" && !stopped { // the LC ones, which come first, have answered
			check(os.WriteFile(stop, nil, 0o600))
			stopped = true
		}
		a := m.program.answerGo(ctx, startAhead+length+result.Drain+m.program.limits.answer)
		if len(a.DoneNs) > len(all[i]) {
			fail("%s: %d requests done, %d came", m.program.name, len(a.DoneNs), len(all[i]))
		}
		if m.role == "lc" && system.Hints == "given" && !a.Hinted {
			fail("%s: the library takes no hints: it has no gpreempt_hint", m.program.name)
		}
		task := result.TaskRun{Role: m.role, Completed: a.Completed}
		if m.role == "lc" {
			task.Arrivals, task.DoneNs = all[i], a.DoneNs
		}
		run.Tasks = append(run.Tasks, task)
	}
	return run
}

// measure measures a workload under all systems, in a new order in each repeat. The rows say what went wrong. Where the programs cannot even
// run without any system, that is raised.
func (e *evaluation) measure(ctx context.Context, w workload.Workload) (rows []result.Row) {
	variants := e.variants(w)
	e.keepOnly(variants)
	if err := caught(func() { e.measureVariants(ctx, w, variants) }); err != nil {
		e.keepOnly(nil)
		check(err)
	}
	var plain result.Row
	for _, v := range variants {
		row := v.row(w)
		if row.System == "default" {
			plain = row
		}
		rows = append(rows, row)
	}
	alone := rows[0]
	for i := range rows[1:] {
		row := &rows[1+i]
		if row.Throughput == nil {
			continue
		}
		row.LCAlone, row.Ratio = alone.LC, result.RatioOf(row.LC, alone.LC)
		if plain.Throughput != nil && plain.Throughput.BE > 0 {
			row.Throughput.BEOfDefault = result.Round(row.Throughput.BE/plain.Throughput.BE, 3)
			row.Throughput.OfDefault = result.Round((row.Throughput.LC+row.Throughput.BE)/(plain.Throughput.LC+plain.Throughput.BE), 3)
		}
		row.JudgePaper()
	}
	return rows
}

// row is what was measured of a workload under a variant.
func (v *variant) row(w workload.Workload) result.Row {
	row := result.Row{Case: w.Name, System: v.system.Name, Note: v.note}
	if v.note != "" {
		return row.Judged(measured, false)
	}
	var us []float64
	var lc, be, seconds float64
	for _, run := range v.runs {
		us = append(us, run.Latencies()...)
		lc, be, seconds = lc+run.Completed("lc"), be+run.Completed("be"), seconds+run.Length.Seconds()
	}
	slices.Sort(us)
	row.LC = result.LatencyOfMany(us)
	row.Throughput = &result.Throughput{LC: result.Round(lc/seconds, 2), BE: result.Round(be/seconds, 2)}
	return row
}

// measureVariants measures a workload. A variant that fails is over.
func (e *evaluation) measureVariants(ctx context.Context, w workload.Workload, variants []*variant) {
	began := time.Now()
	fail := func(v *variant, err error, mps bool) {
		v.note = err.Error()
		e.session.log("%s under %s: %v", w.Name, v.system.Name, err)
		e.forget(v.tasks, mps)
	}
	step := func(v *variant, work func()) {
		if v.note != "" {
			return
		}
		err := caught(work)
		if v.system.Name == result.LCAlone || ctx.Err() != nil {
			check(err)
		}
		if err != nil {
			fail(v, err, false) // it has done nothing to others
		}
	}
	for _, v := range variants {
		step(v, func() { e.start(ctx, v.system, v.tasks) })
	}
	for _, phase := range startPhases(variants) {
		for _, v := range phase {
			step(v, func() { initialise(v.tasks) })
		}
		for _, v := range phase {
			step(v, func() { awaitReady(ctx, v.tasks) })
		}
	}
	e.session.log("%s: %d processes, started in %.1f s", w.Name, len(e.running), time.Since(began).Seconds())
	repeats := e.repeats(w)
	for repeat := 1; repeat <= repeats; repeat++ {
		shuffled := slices.DeleteFunc(slices.Clone(variants), func(v *variant) bool { return v.note != "" })
		random := workload.Seed(w.Name, repeat)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, v := range shuffled {
			var run result.RunResult
			err := caught(func() {
				// A process that ended when a run failed is started again, also one of another system with the same programs.
				e.start(ctx, v.system, v.tasks)
				ready(ctx, v.tasks)
				run = e.run(ctx, v.system, w, repeat, e.length, v.tasks)
			})
			check(ctx.Err())
			if err != nil {
				fail(v, fmt.Errorf("repeat %d: %w", repeat, err), v.system.MPS)
				continue
			}
			v.runs = append(v.runs, run)
			e.session.log("%-10s %d/%d %-18s %s", w.Name, repeat, repeats, v.system.Name, run.Brief())
		}
	}
}
