package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

const (
	startAhead = 40 * time.Millisecond  // from the order of a run to its start
	calibrated = 700 * time.Millisecond // a run that tells how long a request takes
	tries      = 2                      // of a system that fails, in a workload; and of one that hangs, in all workloads
)

const (
	defaultRepeats = 3
	defaultSeconds = 4 // of a run
)

// evaluation is one call of evaluate.
type evaluation struct {
	session *session
	options Options
	systems []workload.System
	remove  func()            // the session's folders
	configs map[string]string // by system: path of the library's configuration
	running map[string]*worker
	hung    map[string]int    // by system: how often its programs were waited for in vain
	mps     *mpsDaemon        // that serves those under MPS; nil: none runs
	skipped map[string]string // by system: what it needs and this machine lacks
	known   *result.Evaluation
	began   time.Time // the first workload
	length  time.Duration
}

func newEvaluation(options Options) *evaluation {
	return &evaluation{options: options, session: newSession(options), remove: func() {},
		running: map[string]*worker{}, configs: map[string]string{}, hung: map[string]int{},
		skipped: map[string]string{}}
}

// evaluate measures the workloads of a suite under every system, interleaved, and returns the results of all
// that the folder has by then. Workloads that could not be measured make an error beside the results of the
// others.
func evaluate(ctx context.Context, options Options) (*result.Evaluation, error) {
	e := newEvaluation(options)
	picked, err := e.pick()
	if err != nil {
		return nil, err
	}
	defer e.close()
	e.session.log("%s: %d workloads, about %s; partial results are in %s", options.Suite, len(picked), clock(result.Sum(e.costs(picked))), options.Folder)
	if err := e.prepare(ctx); err != nil {
		return nil, err
	}
	if e.known, err = result.ReadEvaluation(options.Folder); err != nil && !errors.Is(err, result.ErrNoEvaluation) {
		return nil, err
	}
	if e.known != nil {
		if err := e.result().CheckGoOn(options.Folder, e.known.Head); err != nil {
			return nil, err
		}
	}
	var todo []workload.Workload
	for _, w := range picked {
		if err := e.checkLength(w); err != nil {
			return nil, err
		}
		if e.runs(w) == 0 {
			e.session.log("%s: measured already, in %s", w.Name, options.Folder)
			continue
		}
		todo = append(todo, w)
	}
	e.unknownFirst(todo)
	costs := e.costs(todo)
	e.began = time.Now()
	var failed []error
	var left []string
	for i, w := range todo {
		if first := costs[i] - e.runSeconds(e.runs(w)-e.firstRuns(w)); i > 0 && !e.timeFor(first) {
			e.session.log("%d workloads are left for another call with the same --out: the next is %s", len(todo)-i, w.Name)
			left = append(left, names(todo[i:])...)
			break
		}
		e.session.log("%s: %d of %d, about %s left", w.Name, i+1, len(todo), clock(result.Sum(costs[i:])))
		whole, err := e.measure(ctx, w)
		if err != nil && ctx.Err() != nil {
			failed, left = append(failed, fmt.Errorf("workload %s: %w", w.Name, ctx.Err())), append(left, names(todo[i:])...)
			break
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("workload %s: %w", w.Name, err))
			e.session.log("%v", failed[len(failed)-1])
			e.keepOnly(nil)
		}
		if !whole && err == nil {
			left = append(left, w.Name)
		}
		e.keepOnly(todo[i+1:])
	}
	results, err := result.ReadEvaluation(options.Folder)
	if err != nil {
		return nil, errors.Join(append(failed, err)...)
	}
	results.Left = left
	return results, errors.Join(failed...)
}

func names(workloads []workload.Workload) (all []string) {
	for _, w := range workloads {
		all = append(all, w.Name)
	}
	return all
}

// unknownFirst puts workloads first that were not measured to their end alone: those of which a system is tried again, perhaps in vain,
// could take all the time of each call.
func (e *evaluation) unknownFirst(todo []workload.Workload) {
	again := func(w workload.Workload) int {
		w = e.rated(w)
		if c := e.knownCase(w, result.LCAlone); c != nil && len(c.Runs) >= e.repeats(w) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(todo, func(a, b workload.Workload) int { return again(a) - again(b) })
}

// pick is what the options ask for.
func (e *evaluation) pick() ([]workload.Workload, error) {
	picked, err := workload.Workloads(e.options.Only)
	if err != nil {
		return nil, err
	}
	if e.systems, err = workload.Systems(e.options.Systems); err != nil {
		return nil, err
	}
	e.options.Repeats = cmp.Or(e.options.Repeats, defaultRepeats)
	e.options.Seconds = cmp.Or(e.options.Seconds, defaultSeconds)
	e.length = time.Duration(e.options.Seconds * float64(time.Second))
	if e.options.Repeats < 1 || e.length < 2*result.WarmUp {
		return nil, fmt.Errorf("%d repeats of %s: at least 1 repeat of %s", e.options.Repeats, e.length, 2*result.WarmUp)
	}
	return picked, nil
}

// prepare looks at the machine, and makes what the programs need.
func (e *evaluation) prepare(ctx context.Context) error {
	err := e.session.prepare(ctx)
	if err != nil {
		return err
	}
	if e.remove, err = e.session.makeFolders(); err != nil {
		e.remove = func() {}
		return err
	}
	if e.session.python == "" {
		e.session.log("no %s: workloads with PyTorch cannot be measured", e.options.Python)
	}
	for _, system := range e.systems {
		if lacks := e.session.lacks(system); lacks != "" {
			e.skipped[system.Name] = lacks
			e.session.log("%s: skipped: %s", system.Name, lacks)
			continue
		}
		segment := filepath.Join(e.session.folder, "segment-"+system.Name)
		text, err := system.LibraryConfig(segment)
		if err != nil {
			return fmt.Errorf("system %s: %w", system.Name, err)
		}
		if text == "" {
			continue
		}
		path := filepath.Join(e.session.folder, system.Name+".toml")
		if err := os.Mkdir(segment, 0o700); err != nil {
			return fmt.Errorf("make a folder for system %s: %w", system.Name, err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the configuration of system %s: %w", system.Name, err)
		}
		e.configs[system.Name] = path
	}
	return nil
}

func (e *evaluation) close() {
	e.end(func(string, *worker) bool { return true })
	e.stopMPS()
	e.remove()
}

func monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// run lets the programs serve a run, which all of them begin at the same time.
func (e *evaluation) run(ctx context.Context, system workload.System, w workload.Workload, repeat int, length time.Duration, wanted []member) (result.RunResult, error) {
	run := result.RunResult{Repeat: repeat, Seconds: length.Seconds()}
	now, err := monotonic()
	if err != nil {
		return run, err
	}
	stop := filepath.Join(e.session.folder, "stop")
	if err := os.Remove(stop); err != nil && !errors.Is(err, os.ErrNotExist) {
		return run, fmt.Errorf("begin a run: %w", err)
	}
	begin := now + startAhead
	run.Begin = begin
	all := make([][]time.Duration, len(wanted))
	for i, m := range wanted {
		prepare, hint, until := 0, false, stop
		if m.role == "lc" {
			prepare, hint, until = w.PrepareUs, system.Hints == "given", "-"
		}
		if m.RateHz > 0 {
			all[i] = m.arrivals(w, repeat, length)
			if all[i] == nil {
				all[i] = []time.Duration{}
			}
		}
		if err := m.program.send(goOrder(begin, begin+length, prepare, hint, until, all[i])); err != nil {
			return run, err
		}
	}
	stopped := false
	for i, m := range wanted {
		if m.role != "lc" && !stopped { // the LC ones, which come first, have answered
			if err := os.WriteFile(stop, nil, 0o600); err != nil {
				return run, fmt.Errorf("end a run: %w", err)
			}
			stopped = true
		}
		a, err := m.program.answerGo(ctx, startAhead+length+result.Drain+m.program.limits.answer)
		if err != nil {
			return run, err
		}
		if a.ArrivalNs != nil {
			all[i] = all[i][:0]
			for _, ns := range a.ArrivalNs {
				all[i] = append(all[i], time.Duration(ns))
			}
		}
		if len(a.DoneNs)+a.Unserved != len(all[i]) {
			return run, fmt.Errorf("%s: %d of %d requests accounted for", m.program.name, len(a.DoneNs)+a.Unserved, len(all[i]))
		}
		if m.role == "lc" && system.Hints == "given" && !a.Hinted {
			return run, fmt.Errorf("%s: the library takes no hints: it has no gpreempt_hint", m.program.name)
		}
		task := result.TaskRun{Task: m.Task, Role: m.role, Offered: len(all[i]), Completed: result.Round(a.Completed, 3), Unserved: a.Unserved,
			CPUSeconds: result.Round(float64(a.CPUNs)/1e9, 4), Identical: a.Identical}
		if m.role == "lc" {
			task.Set(all[i], a.SubmittedNs, a.DoneNs)
			task.Trace = a.Trace
		}
		run.Tasks = append(run.Tasks, task)
	}
	return run, nil
}

// calibrate sets the rates that are given as a load, unless an earlier call did.
func (e *evaluation) calibrate(ctx context.Context, w *workload.Workload, wanted []member) error {
	for i := range wanted {
		m := &wanted[i]
		if m.Load == 0 || w.LC[i].RateHz > 0 {
			continue
		}
		m.RateHz, m.Arrival = 20, ""
		run, err := e.run(ctx, workload.System{}, *w, 0, calibrated, []member{*m})
		if err != nil {
			return err
		}
		latencies, _ := run.Tasks[0].Latencies(calibrated)
		slices.Sort(latencies)
		w.LC = slices.Clone(w.LC)
		w.LC[i].RateHz = result.Round(w.LC[i].Load*1e6/result.Quantile(latencies, .5), 1)
	}
	return nil
}

// measure measures what the folder lacks of a workload under all systems, in a new order in each repeat. It is whole where the time
// sufficed. The result's notes say what went wrong; where the programs cannot even run without any system, err says it, too.
func (e *evaluation) measure(ctx context.Context, w workload.Workload) (whole bool, err error) {
	w = e.rated(w)
	variants := e.variants(w)
	lacks := func(v *variant) bool {
		for repeat := range e.repeats(w) {
			if v.lacks(repeat + 1) {
				return true
			}
		}
		return false
	}
	var measured []*variant
	for _, v := range variants {
		if lacks(v) {
			measured = append(measured, v)
		}
	}
	whole, err = e.measureVariants(ctx, &w, measured, func() error { return e.save(w, variants, false) })
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	aloneToo := slices.ContainsFunc(variants, func(v *variant) bool { return v.name() == result.LCAlone && len(v.runs) > v.recalled })
	for _, v := range variants {
		switch {
		case v.skipped != "":
		case err != nil && v.note == "" && len(v.runs) == 0:
			v.note = err.Error()
		case v.note == "" && v.lc && v.recalled == 0 && len(v.runs) > 0 && !aloneToo:
			v.note = result.AnotherRun
		}
	}
	return whole, errors.Join(err, e.save(w, variants, whole || err != nil))
}

// measureVariants measures what variants lack of a workload, and saves it after each run. It ends before a repeat for which there is no time,
// but not before the first.
func (e *evaluation) measureVariants(ctx context.Context, w *workload.Workload, variants []*variant, save func() error) (whole bool, err error) {
	began := time.Now()
	fail := func(v *variant, err error, times int) {
		v.failures += times
		v.note = err.Error()
		e.session.log("%s under %s: %v", w.Name, v.name(), err)
		hung := errors.Is(err, errNoAnswer)
		if hung {
			e.hung[v.name()]++
		}
		e.forget(v.tasks, v.system.MPS && (hung || times < tries)) // one that does not even start has done nothing to others
	}
	step := func(v *variant, work func() error) error {
		if v.failures >= tries {
			return nil
		}
		err := work()
		if err == nil || v.system.Name == result.LCAlone || ctx.Err() != nil {
			return err
		}
		fail(v, err, tries) // it would fail again
		return nil
	}
	for _, v := range variants {
		if e.hung[v.name()] >= tries && v.system.Name != result.LCAlone { // each time costs a minute
			v.failures, v.note = tries, "not tried: it did not answer in earlier workloads"
		}
	}
	for _, v := range variants {
		if err := step(v, func() error { return e.start(ctx, v.system, v.tasks) }); err != nil {
			return false, err
		}
	}
	for _, phase := range startPhases(variants) {
		for _, v := range phase {
			if err := step(v, func() error { return initialise(v.tasks) }); err != nil {
				return false, err
			}
		}
		for _, v := range phase {
			if err := step(v, func() error { return awaitReady(ctx, v.tasks) }); err != nil {
				return false, err
			}
		}
	}
	e.session.log("%s: %d processes, started in %.1f s", w.Name, len(e.running), time.Since(began).Seconds())
	if err := e.calibrate(ctx, w, variants[0].tasks); err != nil {
		return false, err
	}
	for _, v := range variants {
		fresh := members(*w, v.lc, v.be)
		for i := range v.tasks {
			v.tasks[i].Task = fresh[i].Task
		}
	}
	repeats, first := e.repeats(*w), true
	for repeat := 1; repeat <= repeats; repeat++ {
		shuffled := slices.DeleteFunc(slices.Clone(variants), func(v *variant) bool { return v.failures >= tries || !v.lacks(repeat) })
		if len(shuffled) == 0 {
			continue
		}
		if !first && !e.timeFor(e.runSeconds(len(shuffled))) {
			e.session.log("%s: another call with the same --out goes on with repeat %d of %d", w.Name, repeat, repeats)
			return false, nil
		}
		first = false
		random := workload.Seed(w.Name, repeat)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, v := range shuffled {
			err := e.restart(ctx, v)
			var run result.RunResult
			if err == nil {
				run, err = e.run(ctx, v.system, *w, repeat, e.length, v.tasks)
			}
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			if err != nil {
				fail(v, fmt.Errorf("repeat %d: %w", repeat, err), 1)
				continue
			}
			v.runs = append(v.runs, run)
			if err := save(); err != nil {
				return false, err
			}
			e.session.log("%-10s %d/%d %-18s %s", w.Name, repeat, repeats, v.name(), run.Brief())
		}
	}
	return true, nil
}

// restart starts again what ended when a run failed, be it another system's that has the same programs.
func (e *evaluation) restart(ctx context.Context, v *variant) error {
	if err := e.start(ctx, v.system, v.tasks); err != nil {
		return err
	}
	return ready(ctx, v.tasks)
}

// result is the head of a result file of this machine.
func (e *evaluation) result() *result.Evaluation {
	result := &result.Evaluation{Head: newHead(e.session.info, e.options, "time-sliced and MPS"),
		Environment: map[string]string{"processors": strconv.Itoa(runtime.NumCPU()), "user": strconv.Itoa(os.Getuid())}}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		result.Environment["kernel"] = strings.TrimSpace(string(kernel))
	}
	return result
}
