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

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
)

// measureCommand is `gpreempt bench`. Its worker processes are `gpreempt-bench bench-worker`, which never gets
// here: see test/bench/worker.c.
func measureCommand() *cobra.Command {
	options := bench.Options{Suite: "quick"}
	var resultFile string
	var list, quiet, strict bool
	var evaluation evaluationFlags
	command := &cobra.Command{
		Use:         "gpreempt-bench",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "gpreempt bench"},
		Short:       "Measure co-location on this machine's GPU: alone, default time slicing, gpreempt",
		Long: "Runs a latency-critical (LC) process beside best-effort (BE) ones, all small programs of its own,\n" +
			"and prints the LC latencies and BE rates alone, with the driver's time slicing and under the library.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			out := command.OutOrStdout()
			if err := checkOptions(command, options.Suite); err != nil {
				return cli.Usage(err)
			}
			if list {
				return listCases(out, options)
			}
			if options.Suite == bench.PairedSuite && command.Flags().Changed("repeats") {
				if options.Rounds = evaluation.Repeats; options.Rounds < 1 {
					return cli.Usage(fmt.Errorf("--repeats %d: at least 1", options.Rounds))
				}
			}
			evaluation.settle(command, options)
			if evaluation.plan {
				return evaluation.printPlan(out)
			}
			if options.Library == "" {
				library, err := cli.FindLibrary()
				if err != nil {
					return fmt.Errorf("%w, or name it with --library", err)
				}
				options.Library = library
			}
			for _, library := range []string{options.Library, options.Against} {
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
			options.Command = commandLine(os.Args[1:])
			options.Version = cli.Version(version)
			options.Progress = command.ErrOrStderr()
			if quiet {
				options.Progress = io.Discard
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if bench.IsEvaluation(options.Suite) {
				return evaluation.run(ctx, out, options, resultFile)
			}
			var report *bench.Report
			var err error
			if options.Suite == bench.StallsSuite {
				report, err = evaluation.measureStalls(ctx, options)
			} else {
				report, err = bench.Run(ctx, options)
			}
			if report == nil {
				return err
			}
			if printed := report.Print(out); printed != nil {
				return printed
			}
			if resultFile != "" && len(report.Cases) > 0 { // also what there was before an interruption
				err = errors.Join(err, report.Write(resultFile))
			}
			if failed := report.Failed(); err == nil && failed > 0 {
				err = fmt.Errorf("%d cases could not be measured", failed)
			}
			if missed := report.Missed(); err == nil && missed > 0 && strict {
				err = fmt.Errorf("%d targets missed", missed)
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Suite, "suite", options.Suite, "foundation, hints, quick, blp-mps, blp-stream, paired or stalls")
	flags.StringSliceVar(&options.Only, "only", nil, "measure only these cases of the suite")
	flags.IntVar(&options.Requests, "requests", 0, "LC requests of a run (0: as the case says)")
	flags.StringVar(&options.Library, "library", "", "path of libgpreempt.so (default: beside the command, or ../lib)")
	flags.StringVar(&options.Against, "against", "", "paired: path of an earlier build's libgpreempt.so, to be compared with")
	flags.StringVar(&resultFile, "json", "", "write the results to this file")
	flags.BoolVar(&list, "list", false, "list the cases of the suite")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress on standard error")
	flags.BoolVar(&strict, "strict", false, "exit with an error when a target is missed")
	evaluation.add(command)
	return command
}

// What options are for, beside the suites of cases.
const (
	forCases = 1 << iota
	forEvaluations
	forStalls
	forPaired
	forLists  // --list
	forPlans  // --plan
	forSuites = forCases | forPaired | forEvaluations | forStalls
)

// optionIsFor says which suites an option is for, and whether listing and planning take notice of it.
var optionIsFor = map[string]int{
	"suite": forSuites | forLists | forPlans, "only": forSuites | forLists | forPlans, "help": forSuites | forLists | forPlans,
	"list": forSuites | forLists, "plan": forEvaluations | forStalls | forPlans,
	"library": forSuites, "json": forSuites, "quiet": forSuites, "strict": forCases | forPaired | forStalls,
	"requests": forCases | forPaired | forStalls | forPlans, "repeats": forEvaluations | forPaired | forPlans,
	"against": forPaired, "part": forEvaluations | forPlans,
	"seconds": forEvaluations | forStalls | forPlans, "systems": forEvaluations | forStalls | forPlans,
	"minutes": forEvaluations | forStalls, "out": forEvaluations | forStalls,
	"python": forEvaluations | forStalls, "busy": forEvaluations | forStalls,
}

// checkOptions refuses options that would be passed over.
func checkOptions(command *cobra.Command, suite string) (err error) {
	kind := forCases
	switch {
	case bench.IsEvaluation(suite):
		kind = forEvaluations
	case suite == bench.StallsSuite:
		kind = forStalls
	case suite == bench.PairedSuite:
		kind = forPaired
	}
	list, plan := command.Flags().Changed("list"), command.Flags().Changed("plan")
	command.Flags().Visit(func(flag *pflag.Flag) {
		takes := optionIsFor[flag.Name]
		switch {
		case err != nil:
		case takes&kind == 0:
			err = fmt.Errorf("--%s does not apply to suite %q", flag.Name, suite)
		case list && takes&forLists == 0:
			err = fmt.Errorf("--%s does not apply to --list", flag.Name)
		case plan && takes&forPlans == 0:
			err = fmt.Errorf("--%s does not apply to --plan", flag.Name)
		}
	})
	return err
}

func listCases(out io.Writer, options bench.Options) error {
	if bench.IsEvaluation(options.Suite) {
		return listWorkloads(out, options)
	}
	if options.Suite == bench.StallsSuite {
		return bench.ListStallCases(out, options.Only)
	}
	cases, err := bench.Cases(options.Suite, options.Only)
	if err != nil {
		return err
	}
	for _, c := range cases {
		if _, err := fmt.Fprintf(out, "%-24s %s\n", c.Name, c.Target); err != nil {
			return fmt.Errorf("list the cases: %w", err)
		}
	}
	return nil
}

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
