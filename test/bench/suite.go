package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// commonFlags are those of all suites.
var commonFlags = []string{"suite", "only", "out", "json", "minutes", "library", "plan", "help"}

// planFlags are those that planning takes notice of.
var planFlags = []string{"suite", "only", "plan", "help", "seconds", "systems", "requests", "repeats"}

// HasFlag says whether an option applies to the suite.
func (c Suite) HasFlag(name string) bool {
	return slices.Contains(commonFlags, name) || slices.Contains(c.flags, name)
}

// PlanHasFlag says whether an option applies where a plan is made.
func PlanHasFlag(name string) bool { return slices.Contains(planFlags, name) }

// DefaultFolder is where partial results lie if the caller names no folder.
func (c Suite) DefaultFolder() string { return filepath.Join("build", c.Name) }

// Case is one situation that a suite measures.
type Case struct {
	Name    string
	Target  string
	suites  []string
	seconds float64 // that it takes, about, on an H200
	// measure adds the case's rows to the session's report. It raises what goes wrong (steps.go).
	measure func(ctx context.Context, s *session, name string)
}

// leftOut is why a case cannot be measured on this machine. That is no failure, and the next call tries again.
type leftOut string

func (l leftOut) Error() string { return string(l) }

// Suite is what one call measures: cases, one after another.
type Suite struct {
	Name, About, mode string
	flags             []string // that it has beside those that all have
	jobs              int      // cases at once; 0: one
	// begin prepares the session for all cases, until end, as a step; it may be nil.
	begin func(ctx context.Context, s *session) (end func())
}

// cases picks those that are named; without names all.
func (c Suite) cases(only []string) ([]Case, error) {
	all := slices.DeleteFunc(slices.Clone(allCases), func(one Case) bool { return !slices.Contains(one.suites, c.Name) })
	for _, name := range only {
		if !slices.ContainsFunc(all, func(one Case) bool { return one.Name == name }) {
			return nil, fmt.Errorf("suite %q has no case %q; --suite %s --plan lists them", c.Name, name, c.Name)
		}
	}
	return slices.DeleteFunc(all, func(one Case) bool { return len(only) > 0 && !slices.Contains(only, one.Name) }), nil
}

// Check says which names of cases and systems are none.
func (c Suite) Check(o Options) error {
	if _, err := c.cases(o.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if _, err := workload.Systems(o.Systems, o.tests.systems...); err != nil {
		return fmt.Errorf("--systems: %w", err)
	}
	return nil
}

// Plan says what would be measured and about how long that takes. It needs no GPU.
func (c Suite) Plan(out io.Writer, options Options) error {
	cases, err := c.cases(options.Only)
	if err != nil {
		return err
	}
	rows := [][]string{{"case", "seconds", "target"}}
	for _, one := range cases {
		rows = append(rows, []string{one.Name, fmt.Sprintf("%.0f", one.seconds), one.Target})
	}
	if err := result.PrintTable(out, rows); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nAbout %s in all%s.\n", clock(c.left(cases)), map[bool]string{true: fmt.Sprintf(", %d at once", c.jobs)}[c.jobs > 1])
	return err
}

// left is about how many seconds the cases take together.
func (c Suite) left(cases []Case) (seconds float64) {
	longest := 0.0
	for _, one := range cases {
		seconds += one.seconds
		longest = max(longest, one.seconds)
	}
	return max(seconds/float64(max(c.jobs, 1)), longest)
}

// casePart is the partial result of a case.
type casePart struct {
	result.Report
	Part  string `json:"part"`            // the case
	Asked string `json:"asked,omitempty"` // by options; where these are others now, the case is measured again
	file  string
}

func (c Suite) partPath(folder, name string) string {
	return filepath.Join(folder, c.Name+"-"+name+".json")
}

// isDone says whether the case need not be measured again.
func (p *casePart) isDone(options Options) bool {
	return p != nil && len(p.Failed()) == 0 && p.Asked == options.asked()
}

// asked are the options by which figures differ.
func (o Options) asked() string {
	if o.Requests == 0 && o.Seconds == 0 && o.Repeats == 0 && o.Systems == nil {
		return ""
	}
	return fmt.Sprint(o.Requests, o.Seconds, o.Repeats, o.Systems)
}

// readParts reads the partial results of folders, by case.
func (c Suite) readParts(folders ...string) (map[string]*casePart, error) {
	parts := map[string]*casePart{}
	var files []string
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join(folder, c.Name+"-*.json")) // sorted
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		p := &casePart{}
		if err := json.Unmarshal(text, p); err != nil || p.Schema != 1 || p.Benchmark != c.Name || p.Part == "" {
			continue // a result file of this suite or of another
		}
		p.file = file
		parts[p.Part] = p
	}
	return parts, nil
}

// join is the report of partial results, in the order of the suite's cases.
func (c Suite) join(parts map[string]*casePart) (*result.Report, error) {
	var report *result.Report
	first := ""
	add := func(p *casePart) error {
		if report == nil {
			report, first = &result.Report{Head: p.Head}, p.file
		}
		if err := p.CheckJoin(p.file, report.Head, first); err != nil {
			return err
		}
		report.Date, report.Command = max(report.Date, p.Date), result.AddWords(report.Command, p.Command)
		report.Cases = append(report.Cases, p.Cases...)
		return nil
	}
	for _, one := range allCases {
		if p := parts[one.Name]; p != nil && slices.Contains(one.suites, c.Name) {
			if err := add(p); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// caseRun is a suite while it is measured.
type caseRun struct {
	Suite
	s       *session
	mutex   sync.Mutex
	parts   map[string]*casePart
	todo    []Case   // that have not begun
	untimed []string // those for which there is no time
	begun   int      // so many have
}

// Measure measures the cases that the folder does not have, and returns the report of all that it has then. A case that
// fails stays in the report with what went wrong, and is tried again by the next call.
func (c Suite) Measure(ctx context.Context, options Options) (report *result.Report, err error) {
	options.Suite = c.Name
	r := &caseRun{Suite: c, s: newSession(options)}
	err = caught(func() {
		cases := must(c.cases(options.Only))
		r.s.log("%s: %d cases, about %s; partial results are in %s", c.Name, len(cases), clock(c.left(cases)), options.Folder)
		r.s.prepare(ctx)
		defer r.s.makeFolders()()
		r.s.report = &result.Report{Head: newHead(r.s.info, options, c.mode)}
		parts := must(c.readParts(options.Folder))
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			check(r.s.report.CheckGoOn(parts[name].file, parts[name].Head))
		}
		r.parts = parts
		for _, one := range cases {
			if r.parts[one.Name].isDone(options) {
				r.s.log("%s: measured already, in %s", one.Name, options.Folder)
				continue
			}
			r.todo = append(r.todo, one)
		}
		check(r.measureAll(ctx))
	})
	report, joined := c.join(r.parts)
	if report != nil {
		report.Left = r.untimed
		if report.Simulated {
			report.WithdrawTargets()
		}
	}
	return report, errors.Join(err, joined)
}

func (r *caseRun) measureAll(ctx context.Context) error {
	if len(r.todo) == 0 {
		return nil
	}
	began := time.Now()
	if r.begin != nil {
		var end func()
		if err := caught(func() { end = r.begin(ctx, r.s) }); err != nil {
			return err
		}
		defer end()
	}
	var failed error
	var workers sync.WaitGroup
	for range max(r.jobs, 1) {
		workers.Go(func() {
			for ctx.Err() == nil {
				one, found := r.next(time.Since(began).Seconds())
				if !found {
					return
				}
				err := r.measureCase(ctx, one)
				r.mutex.Lock()
				failed = errors.Join(failed, err)
				r.mutex.Unlock()
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return failed
}

// next takes the next case, unless there is no time for it.
func (r *caseRun) next(spent float64) (one Case, found bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.todo) == 0 {
		return one, false
	}
	if limit := r.s.options.Minutes * 60; limit > 0 && len(r.parts)+r.begun > 0 && spent+r.todo[0].seconds > limit {
		r.s.log("%d cases are left for another call with the same --out: the next is %s", len(r.todo), r.todo[0].Name)
		for _, one := range r.todo {
			r.untimed = append(r.untimed, one.Name)
		}
		r.todo = nil
		return one, false
	}
	r.s.log("%s: begins, takes about %.0f s", r.todo[0].Name, r.todo[0].seconds)
	one, r.todo = r.todo[0], r.todo[1:]
	r.begun++
	return one, true
}

// measureCase measures a case and writes its partial result; the error is that it could not be written.
func (r *caseRun) measureCase(ctx context.Context, one Case) error {
	began := time.Now()
	s := r.s.forCase()
	part := &casePart{Part: one.Name, Asked: s.options.asked(), file: r.partPath(r.s.options.Folder, one.Name)}
	err := caught(func() { one.measure(ctx, s, one.Name) })
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	var left leftOut
	if errors.As(err, &left) {
		s.log("%s: left out: %s", one.Name, left)
		part.Report = result.Report{Head: s.report.Head, Cases: []result.Row{{Case: one.Name, System: "gpreempt", Note: "left out: " + string(left)}}}
		r.parts[one.Name] = part
		return nil
	}
	if err != nil {
		s.log("%s: %v", one.Name, err)
		row := result.Row{Case: one.Name, System: "gpreempt", Note: err.Error()}
		s.report.Cases = append(s.report.Cases, row.Judged(cmp.Or(one.Target, measured), false))
	}
	s.log("%-24s %5.1f s", one.Name, time.Since(began).Seconds())
	part.Report = *s.report
	r.parts[one.Name] = part
	return result.WriteJSON(part.file, part, "")
}

var errNoParts = errors.New("no partial results of any suite")
