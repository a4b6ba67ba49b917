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
	startAhead     = 40 * time.Millisecond // from the order of a run to its start
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
	mps     *mpsDaemon        // that serves those under MPS; nil: none runs
	skipped map[string]string // by system: what it needs and this machine lacks
	length  time.Duration
}

func newEvaluation(s *session) *evaluation {
	return &evaluation{options: s.options, session: s, remove: func() {},
		running: map[string]*worker{}, configs: map[string]string{}, skipped: map[string]string{}}
}

// evaluate measures the workloads that the folder lacks, each under every system, interleaved. The results are of all that it has by then. A
// workload that could not be measured makes an error beside the results of the others.
func evaluate(ctx context.Context, options Options) (*result.Evaluation, error) {
	e := newEvaluation(newSession(options))
	picked, err := e.pick()
	if err != nil {
		return nil, err
	}
	defer e.close()
	e.session.log("%s: %d workloads, about %s; partial results are in %s", options.Suite, len(picked), clock(result.Sum(e.costs(picked))), options.Folder)
	if err := e.prepare(ctx); err != nil {
		return nil, err
	}
	todo, err := e.lacking(picked)
	if err != nil {
		return nil, err
	}
	costs, began := e.costs(todo), time.Now()
	var failed []error
	var left []string
	for i, w := range todo {
		if limit := options.Minutes * 60; limit > 0 && i > 0 && time.Since(began).Seconds()+costs[i] > limit {
			e.session.log("%d workloads are left for another call with the same --out: the next is %s", len(todo)-i, w.Name)
			left = names(todo[i:])
			break
		}
		e.session.log("%s: %d of %d, about %s left", w.Name, i+1, len(todo), clock(result.Sum(costs[i:])))
		err := e.measure(ctx, w)
		if err != nil {
			failed = append(failed, fmt.Errorf("workload %s: %w", w.Name, err))
			e.session.log("%v", failed[len(failed)-1])
			e.keepOnly(nil)
		}
		if ctx.Err() != nil {
			left = names(todo[i:])
			break
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

// partial is the file with the results of a workload.
func (e *evaluation) partial(w workload.Workload) string {
	return filepath.Join(e.options.Folder, w.Name+".json")
}

// lacking are the workloads that the folder does not have whole.
func (e *evaluation) lacking(picked []workload.Workload) (todo []workload.Workload, err error) {
	known, err := result.ReadEvaluation(e.options.Folder)
	if errors.Is(err, result.ErrNoEvaluation) {
		return picked, nil
	}
	if err == nil {
		err = e.result().CheckGoOn(e.options.Folder, known.Head)
	}
	if err != nil {
		return nil, err
	}
	for _, w := range picked {
		if slices.ContainsFunc(e.variants(w), func(v *variant) bool { return !e.has(known.Of(w.Name, v.name()), v, w) }) {
			todo = append(todo, w)
		} else {
			e.session.log("%s: measured already, in %s", w.Name, e.options.Folder)
		}
	}
	return todo, nil
}

// has says whether a case is what measuring a variant of a workload would give.
func (e *evaluation) has(c *result.EvaluationCase, v *variant, w workload.Workload) bool {
	switch {
	case c == nil || c.Note != "":
		return false
	case v.skipped != "":
		return true
	}
	return len(c.Runs) >= e.runsOf(v, w) && c.Runs[0].Seconds == e.length.Seconds()
}

// repeats are how many runs of a workload there are under each system: as many as are asked for, and so many that their LC requests are as
// many as are asked for.
func (e *evaluation) repeats(w workload.Workload) int {
	repeats, requests := 0, 0
	for repeats < e.options.Repeats || requests < e.options.Requests {
		repeats++
		for _, m := range members(w, true, false) {
			for _, arrival := range m.arrivals(w, repeats, e.length) {
				if arrival >= result.WarmUp {
					requests++
				}
			}
		}
	}
	return repeats
}

func (e *evaluation) runsOf(v *variant, w workload.Workload) int {
	if v.once {
		return 1
	}
	return e.repeats(w)
}

// arrivals are those of a member's requests in a repeat, the same under all systems.
func (m member) arrivals(w workload.Workload, repeat int, length time.Duration) []time.Duration {
	return m.Arrivals(length, workload.Seed(w.Name, repeat, m.role, m.Program, m.index))
}

func names(workloads []workload.Workload) (all []string) {
	for _, w := range workloads {
		all = append(all, w.Name)
	}
	return all
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
	return e.configure()
}

// configure makes what each system needs.
func (e *evaluation) configure() error {
	for _, system := range e.systems {
		if _, err := e.session.findMPS(); system.MPS && err != nil {
			e.skipped[system.Name] = err.Error()
			e.session.log("%s: skipped: %v", system.Name, err)
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

// measure measures a workload under all systems, in a new order in each repeat. The result's notes say what went wrong; where the programs
// cannot even run without any system, err says it, too.
func (e *evaluation) measure(ctx context.Context, w workload.Workload) error {
	variants := e.variants(w)
	err := e.measureVariants(ctx, w, slices.DeleteFunc(slices.Clone(variants), func(v *variant) bool { return v.skipped != "" }))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	one := e.result()
	for _, v := range variants {
		if err != nil && v.skipped == "" {
			v.note = cmp.Or(v.note, err.Error())
		}
		one.Cases = append(one.Cases, result.EvaluationCase{Case: w.Name, System: v.name(), About: w.About, PrepareUs: w.PrepareUs, Claimed: w.Claimed,
			Note: v.note, Skipped: v.skipped, Runs: v.runs})
	}
	one.Summarise()
	return errors.Join(err, result.WriteJSON(e.partial(w), one, " "))
}

// measureVariants measures a workload. A variant that fails is over.
func (e *evaluation) measureVariants(ctx context.Context, w workload.Workload, variants []*variant) error {
	began := time.Now()
	fail := func(v *variant, err error, mps bool) {
		v.note = err.Error()
		e.session.log("%s under %s: %v", w.Name, v.name(), err)
		e.forget(v.tasks, mps)
	}
	step := func(v *variant, work func() error) error {
		if v.note != "" {
			return nil
		}
		err := work()
		if err == nil || v.system.Name == result.LCAlone || ctx.Err() != nil {
			return err
		}
		fail(v, err, false) // it has done nothing to others
		return nil
	}
	for _, v := range variants {
		if err := step(v, func() error { return e.start(ctx, v.system, v.tasks) }); err != nil {
			return err
		}
	}
	for _, phase := range startPhases(variants) {
		for _, v := range phase {
			if err := step(v, func() error { return initialise(v.tasks) }); err != nil {
				return err
			}
		}
		for _, v := range phase {
			if err := step(v, func() error { return awaitReady(ctx, v.tasks) }); err != nil {
				return err
			}
		}
	}
	e.session.log("%s: %d processes, started in %.1f s", w.Name, len(e.running), time.Since(began).Seconds())
	repeats := e.repeats(w)
	for repeat := 1; repeat <= repeats; repeat++ {
		shuffled := slices.DeleteFunc(slices.Clone(variants), func(v *variant) bool { return v.note != "" || v.once && repeat > 1 })
		random := workload.Seed(w.Name, repeat)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, v := range shuffled {
			err := e.restart(ctx, v)
			var run result.RunResult
			if err == nil {
				run, err = e.run(ctx, v.system, w, repeat, e.length, v.tasks)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				fail(v, fmt.Errorf("repeat %d: %w", repeat, err), v.system.MPS)
				continue
			}
			v.runs = append(v.runs, run)
			e.session.log("%-10s %d/%d %-18s %s", w.Name, repeat, repeats, v.name(), run.Brief())
		}
	}
	return nil
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
