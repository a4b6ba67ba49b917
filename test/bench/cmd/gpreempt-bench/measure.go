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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// measureCommand is `gpreempt bench`. Its worker processes are `gpreempt-bench bench-worker`, which never gets
// here: see test/bench/worker/worker.c.
func measureCommand() *cobra.Command {
	m := measurement{}
	command := &cobra.Command{
		Use:         "gpreempt-bench",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "gpreempt bench", cli.Manual: "Suites:\n\n" + suites()},
		Short:       "Measure co-location on this machine's GPU: alone, default time slicing, gpreempt",
		Long: "Runs a latency-critical (LC) process beside best-effort (BE) ones and prints the LC latencies and BE rates\n" +
			"alone, with the driver's time slicing and under the library. The results of each case are kept in a folder: the\n" +
			"same command goes on where an earlier one was interrupted. --plan alone names the suites.",
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
	flags.StringVar(&o.Suite, "suite", "", "what is measured")
	flags.StringSliceVar(&o.Only, "only", nil, "only these cases or workloads of the suite")
	flags.StringVar(&o.Folder, "out", "", "`folder` of partial results, which are not measured again (default: build/SUITE)")
	flags.StringVar(&m.file, "json", "", "write the results to this `file`")
	flags.Float64Var(&o.Minutes, "minutes", 0, "begin nothing that would end later (default: no limit)")
	flags.StringVar(&o.Library, "library", "", "`path` of libgpreempt.so (default: the installed one)")
	flags.BoolVar(&m.plan, "plan", false, "say what would be measured, and how long it takes; alone: which suites there are")
	flags.IntVar(&o.Requests, "requests", 0, "LC requests of a run, or of a workload under a system")
	flags.Float64Var(&o.Seconds, "seconds", 0, "length of a run, or of a case")
	flags.IntVar(&o.Repeats, "repeats", 0, "runs of a workload under each system")
	flags.StringSliceVar(&o.Systems, "systems", nil, "only these systems")
	flags.StringVar(&o.Python, "python", "python3", "a `program`: Python with PyTorch and torchvision")
	return command
}

// suites are all, a line each.
func suites() string {
	var text strings.Builder
	for _, s := range bench.Suites {
		fmt.Fprintf(&text, "  %-16s %s\n", s.Name, s.About)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

type measurement struct {
	bench.Options
	file string // of the results
	plan bool
}

func (m *measurement) run(command *cobra.Command, _ []string) error {
	if m.Suite == "" {
		if command.Flags().NFlag() == 0 {
			return command.Help()
		}
		if m.plan && command.Flags().NFlag() == 1 {
			_, err := fmt.Fprintln(command.OutOrStdout(), suites())
			return err
		}
		return cli.Usage(errors.New("which suite? --suite names it, --plan alone names all"))
	}
	suite, err := bench.FindSuite(m.Suite)
	if err == nil {
		err = m.check(command.Flags(), suite)
	}
	if err != nil {
		return cli.Usage(err)
	}
	out := command.OutOrStdout()
	if m.plan {
		return suite.Plan(out, m.Options)
	}
	if m.Folder == "" {
		m.Folder = suite.DefaultFolder()
	}
	if err := m.checkPaths(); err != nil {
		return err
	}
	m.Command, m.Version, m.Progress = commandLine(os.Args[1:]), cli.Version(version), command.ErrOrStderr()
	ctx, interrupted := interruptible()
	measured, err := suite.Measure(ctx, m.Options)
	if measured != nil {
		err = errors.Join(err, m.show(out, measured))
	}
	if status := interrupted(); status != 0 {
		return cli.Exit{Status: status, Err: fmt.Errorf("interrupted; what was measured is in %s, and the same command goes on from there", m.Folder)}
	}
	if err != nil {
		return err
	}
	if left := measured.Left; len(left) > 0 {
		return cli.Exit{Status: notWhole, Err: fmt.Errorf("--minutes did not suffice for %d more, the same command goes on with them: %s", len(left), strings.Join(left, ", "))}
	}
	return nil
}

// notWhole is the status of a measurement that ends in time although not all is measured.
const notWhole = 3

// show prints the results and writes them to the file that is asked for.
func (m *measurement) show(out io.Writer, measured *result.Report) error {
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
		case m.plan && !bench.PlanHasFlag(name):
			refuse("--%s does not apply to --plan", name)
		}
	})
	for name, value := range map[string]float64{"requests": float64(m.Requests), "seconds": m.Seconds, "repeats": float64(m.Repeats), "minutes": m.Minutes} {
		if flags.Changed(name) && !(value > 0) {
			refuse("--%s %g: must be more than 0", name, value)
		}
	}
	if none := suite.Check(m.Options); none != nil {
		refuse("%w", none)
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
	library, err := filepath.Abs(m.Library)
	if err == nil {
		err = cli.CheckLibrary(library) // the loader would pass over it in silence
	}
	if err != nil {
		return err
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
