package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// measureCommand is `gpreempt bench`. Its worker processes are `gpreempt-bench bench-worker`, which never gets
// here: see test/bench/worker/worker.c.
func measureCommand() *cobra.Command {
	m := measurement{}
	command := &cobra.Command{
		Use:         "gpreempt-bench",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "gpreempt bench"},
		Short:       "Measure co-location on this machine's GPU: alone, default time slicing, gpreempt",
		Long: "Runs a latency-critical (LC) process beside best-effort (BE) ones and prints the LC latencies and BE rates\n" +
			"alone, with the driver's time slicing and under the library. The results of each case are kept in a folder: the\n" +
			"same command goes on where an earlier one was interrupted. Suites:\n\n" + suites(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usage(fmt.Errorf("%q: there are no arguments here; --suite names what is measured", args[0]))
			}
			return nil
		},
		RunE: m.run,
	}
	flags := command.Flags()
	o := &m.Options
	flags.StringVar(&o.Suite, "suite", "quick", "what is measured")
	flags.StringSliceVar(&o.Only, "only", nil, "only these cases or workloads of the suite")
	flags.StringVar(&o.Folder, "out", "", "folder of partial results; what is in it is not measured again (default: build/SUITE)")
	flags.StringVar(&m.file, "json", "", "write the results to this file")
	flags.BoolVarP(&m.quiet, "quiet", "q", false, "no progress on standard error")
	flags.Float64Var(&o.Minutes, "minutes", 0, "how long it may take: nothing is begun that would end later (0: as long as all takes)")
	flags.StringVar(&o.Library, "library", "", "path of libgpreempt.so (default: beside the command, or ../lib)")
	flags.BoolVar(&o.Busy, "busy", false, "measure although other programs use the GPU")
	flags.BoolVar(&m.list, "list", false, "list what the suite measures")
	flags.BoolVar(&m.plan, "plan", false, "say what would be measured and about how long it takes; needs no GPU")
	flags.StringVar(&m.compare, "compare", "", "say what is worse than in this result file, or in GPU-SUITE.json of this folder; what looks worse is\n"+
		"measured once more before it counts, for which a quarter of --minutes is kept; with --json")
	flags.BoolVar(&m.strict, "strict", false, "exit with an error when a target is missed")
	flags.IntVar(&o.Requests, "requests", 0, "LC requests of a run (default: as the case says), or in all runs of a workload under a system (default: no number)")
	flags.Float64Var(&o.Seconds, "seconds", 0, "length of a run, or of a case (default: as the suite says)")
	flags.IntVar(&o.Repeats, "repeats", 0, "runs of each workload under each system, or rounds (default: as the suite says)")
	flags.StringSliceVar(&o.Systems, "systems", nil, "only these systems, or files that describe others (.toml)")
	flags.StringVar(&o.Rivals, "rivals", "", "folder with other systems, which are measured too; what it lacks is skipped")
	flags.StringVar(&o.Part, "part", "", "i/n, only the i-th of n parts of the suite")
	flags.StringVar(&o.Against, "against", "", "path of an earlier build's libgpreempt.so, to be compared with")
	flags.StringVar(&o.Python, "python", "python3", "a Python with PyTorch and torchvision")
	return command
}

// suites are all, a line each.
func suites() string {
	var text strings.Builder
	for _, s := range bench.Suites() {
		fmt.Fprintf(&text, "  %-16s %s\n", s.Name, s.About)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

type measurement struct {
	bench.Options
	file                      string // of the results
	compare                   string // earlier ones, or a folder of such
	list, plan, quiet, strict bool
}

func (m *measurement) run(command *cobra.Command, _ []string) error {
	suite, err := bench.FindSuite(m.Suite)
	if err == nil {
		err = m.check(command.Flags(), suite)
	}
	if err != nil {
		return cli.Usage(err)
	}
	out := command.OutOrStdout()
	switch {
	case m.list:
		return suite.List(out, m.Options)
	case m.plan:
		return suite.Plan(out, m.Options)
	}
	if m.Folder == "" {
		m.Folder = suite.Folder()
	}
	if err := m.checkPaths(); err != nil {
		return err
	}
	m.Command, m.Version, m.Progress = commandLine(os.Args[1:]), cli.Version(version), command.ErrOrStderr()
	if m.quiet {
		m.Progress = io.Discard
	}
	ctx, interrupted := interruptible()
	began, options := time.Now(), m.Options
	if m.compare != "" {
		if err := m.findEarlier(ctx, suite); err != nil {
			return err
		}
		options.Minutes *= partBeforeAgain
	}
	measured, err := suite.Measure(ctx, options)
	if measured != nil {
		err = errors.Join(err, m.show(out, measured))
	}
	if m.compare != "" && measured != nil && ctx.Err() == nil {
		if verdict := m.judge(ctx, suite, out, began); err == nil {
			err = verdict
		} else if verdict != nil {
			err = fmt.Errorf("%w; %s", err, verdict.Error()) // with the status of what failed
		}
	}
	if status := interrupted(); status != 0 {
		return cli.Exit{Status: status, Err: fmt.Errorf("interrupted; what was measured is in %s, and the same command goes on from there", m.Folder)}
	}
	if err != nil {
		return err
	}
	if missed := measured.Missed(); missed > 0 && m.strict {
		return fmt.Errorf("%d targets missed", missed)
	}
	if left := measured.Unmeasured(); len(left) > 0 {
		return cli.Exit{Status: notWhole, Err: fmt.Errorf("--minutes did not suffice for %d more, the same command goes on with them: %s", len(left), strings.Join(left, ", "))}
	}
	return nil
}

// partBeforeAgain is the part of --minutes that is left for what looks worse.
const partBeforeAgain = .75

// findEarlier finds the results that are compared with, before anything is measured.
func (m *measurement) findEarlier(ctx context.Context, suite bench.Suite) error {
	info, err := os.Stat(m.compare)
	if err == nil && info.IsDir() {
		var here result.Head
		if here, err = suite.Look(ctx, m.Options); err != nil {
			return err
		}
		m.compare = filepath.Join(m.compare, here.FileName())
		_, err = os.Stat(m.compare)
	}
	if err != nil {
		return fmt.Errorf("--compare: %w", err)
	}
	return nil
}

// judge says what is worse than in the earlier results, and measures that once more first, in the time that is left.
func (m *measurement) judge(ctx context.Context, suite bench.Suite, out io.Writer, began time.Time) error {
	comparison, err := result.Compare(m.compare, m.file, result.Tolerance)
	if err != nil {
		return err
	}
	unconfirmed := 0
	if rows := comparison.WorseRows(); len(rows) > 0 {
		second, err := m.again(ctx, suite, rows, began)
		if err != nil {
			return errors.Join(err, comparison.Print(out))
		}
		unconfirmed = comparison.Confirm(second)
	}
	if err := comparison.Print(out); err != nil {
		return err
	}
	switch n := comparison.Worse(); {
	case n > 0:
		return cli.Exit{Status: 1, Err: fmt.Errorf("%d figures got worse", n)}
	case unconfirmed > 0:
		return cli.Exit{Status: notWhole, Err: fmt.Errorf("%d figures look worse, and were not measured again", unconfirmed)}
	}
	return nil
}

// again compares what a second measurement of rows gives.
func (m *measurement) again(ctx context.Context, suite bench.Suite, rows []string, began time.Time) (*result.Comparison, error) {
	nothing := &result.Comparison{}
	options := m.Options
	if m.Minutes > 0 {
		if options.Minutes = m.Minutes - time.Since(began).Minutes(); options.Minutes <= 0 {
			return nothing, nil
		}
	}
	var err error
	if options.Only, err = suite.CasesOf(m.Folder, rows); err != nil || len(options.Only) == 0 {
		return nothing, err
	}
	options.Folder, options.Part = filepath.Join(m.Folder, "again"), ""
	fmt.Fprintf(m.Progress, "measures again what looks worse: %s\n", strings.Join(options.Only, ", "))
	measured, err := suite.Measure(ctx, options)
	if measured == nil {
		return nil, err
	}
	file := strings.TrimSuffix(m.file, ".json") + "-again.json"
	if err := measured.Write(file); err != nil {
		return nil, err
	}
	second, err := result.Compare(m.compare, file, result.Tolerance)
	if errors.Is(err, result.ErrNothingCompared) {
		return nothing, nil
	}
	return second, err
}

// notWhole is the status of a measurement that ends in time although not all is measured.
const notWhole = 3

// show prints the results and writes them to the file that is asked for.
func (m *measurement) show(out io.Writer, measured bench.Result) error {
	if err := measured.Print(out); err != nil {
		return err
	}
	if m.file != "" {
		if err := measured.Write(m.file); err != nil {
			return err
		}
	}
	if failed := measured.Failed(); len(failed) > 0 {
		return fmt.Errorf("%d cases could not be measured, or not to the end: %s", len(failed), strings.Join(failed, ", "))
	}
	return nil
}

// check refuses options that would be passed over.
func (m *measurement) check(flags *pflag.FlagSet, suite bench.Suite) (err error) {
	refuse := func(format string, arguments ...any) {
		if err == nil {
			err = fmt.Errorf(format, arguments...)
		}
	}
	flags.Visit(func(flag *pflag.Flag) {
		switch name := flag.Name; {
		case !suite.HasFlag(name):
			refuse("--%s does not apply to suite %q", name, suite.Name)
		case m.list && !bench.ListHasFlag(name):
			refuse("--%s does not apply to --list", name)
		case m.plan && !bench.PlanHasFlag(name):
			refuse("--%s does not apply to --plan", name)
		}
	})
	if m.compare != "" && m.file == "" {
		refuse("--compare needs --json")
	}
	for name, value := range map[string]float64{"requests": float64(m.Requests), "seconds": m.Seconds, "repeats": float64(m.Repeats), "minutes": m.Minutes} {
		if flags.Changed(name) && !(value > 0) {
			refuse("--%s %g: must be more than 0", name, value)
		}
	}
	return err
}

// checkPaths sees that the library loads and that results can be written, before anything is measured.
func (m *measurement) checkPaths() error {
	if m.Library == "" {
		library, err := cli.FindLibrary()
		if err != nil {
			return fmt.Errorf("%w, or name it with --library", err)
		}
		m.Library = library
	}
	for _, library := range []string{m.Library, m.Against} {
		if library == "" {
			continue
		}
		library, err := filepath.Abs(library)
		if err == nil {
			err = cli.CheckLibrary(library) // the loader would pass over it in silence
		}
		if err != nil {
			return err
		}
	}
	if err := bench.CheckFolder(m.Folder); err != nil {
		return fmt.Errorf("--out %s: %w", m.Folder, err)
	}
	if m.file == "" {
		return nil
	}
	if err := bench.CheckFile(m.file); err != nil {
		return fmt.Errorf("--json %s: %w", m.file, err)
	}
	return nil
}

// interruptible is a context that ends at the first signal which asks for that; status is then what a shell expects. Later
// ones change nothing: the processes are ended already, which takes seconds.
func interruptible() (ctx context.Context, status func() int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range signals {
			cancel(signalled{s})
		}
	}()
	return ctx, func() int {
		var s signalled
		if errors.As(context.Cause(ctx), &s) {
			if number, known := s.Signal.(syscall.Signal); known {
				return 128 + int(number)
			}
		}
		return 0
	}
}

// signalled is why a measurement ends.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// commandLine is the command as a report shows it: whose folders they were is nobody's business.
func commandLine(arguments []string) string {
	words := []string{"gpreempt", "bench"}
	for _, argument := range arguments {
		if filepath.IsAbs(argument) {
			argument = filepath.Base(argument)
		}
		words = append(words, argument)
	}
	return strings.Join(words, " ")
}
