package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
)

// evaluationFlags are the flags of bench for the suites of workloads, and for the one that looks for stalls.
type evaluationFlags struct {
	bench.EvaluationOptions
	plan bool
}

func (e *evaluationFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.Lookup("suite").Usage += "; evaluations: " + bench.EvaluationSuites
	flags.StringSliceVar(&e.Systems, "systems", nil, "evaluation, stalls: only these systems, or files that describe others (.toml)")
	flags.IntVar(&e.Repeats, "repeats", 3, "evaluation: runs of each workload under each system, interleaved; paired: rounds (default: 15)")
	flags.Float64Var(&e.Seconds, "seconds", 4, "evaluation: length of a run; the first half second is warm-up; stalls: of a case (default: as the case says)")
	flags.StringVar(&e.Part, "part", "", "evaluation: i/n, only the i-th of n parts of the suite")
	flags.Float64Var(&e.Minutes, "minutes", 0, "evaluation, stalls: begin nothing that would not end by then (0: all)")
	flags.StringVar(&e.Folder, "out", filepath.Join("build", "evaluation"), "evaluation, stalls: folder of partial results (stalls: build/stalls); what is in it is not measured again")
	flags.StringVar(&e.Python, "python", "python3", "evaluation, stalls: a Python with PyTorch and torchvision")
	flags.BoolVar(&e.plan, "plan", false, "evaluation, stalls: say what would be measured and about how long it takes; needs no GPU")
	flags.BoolVar(&e.Busy, "busy", false, "evaluation, stalls: measure though others use the GPU")
}

// settle takes the options that all suites have.
func (e *evaluationFlags) settle(command *cobra.Command, options bench.Options) {
	e.Options = options
	if options.Suite != bench.StallsSuite {
		return
	}
	if !command.Flags().Changed("seconds") {
		e.Seconds = 0 // each case has its own
	}
	if !command.Flags().Changed("out") {
		e.Folder = filepath.Join("build", bench.StallsSuite)
	}
}

func (e *evaluationFlags) printPlan(out io.Writer) error {
	if e.Suite == bench.StallsSuite {
		return bench.PrintStallsPlan(out, e.EvaluationOptions)
	}
	return bench.PrintPlan(out, e.EvaluationOptions)
}

// goOn tells how to go on after an error.
func (e *evaluationFlags) goOn(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nWhat was measured is in %s; the same command goes on from there", err, e.Folder)
}

// run measures and prints the table; the result file is that of all partial results of the folder.
func (e *evaluationFlags) run(ctx context.Context, out io.Writer, options bench.Options, resultFile string) error {
	e.Options = options
	results, err := bench.Evaluate(ctx, e.EvaluationOptions)
	if results != nil {
		if err := results.Print(out); err != nil {
			return err
		}
		if resultFile != "" {
			if err := results.Write(resultFile); err != nil {
				return err
			}
		}
		if failed := results.Failed(); err == nil && len(failed) > 0 {
			err = fmt.Errorf("%d cases could not be measured, or not in all runs: %s", len(failed), strings.Join(failed, ", "))
		}
	}
	return e.goOn(err)
}

// measureStalls measures; the report is that of all partial results of the folder.
func (e *evaluationFlags) measureStalls(ctx context.Context, options bench.Options) (*bench.Report, error) {
	e.Options = options
	report, err := bench.MeasureStalls(ctx, e.EvaluationOptions)
	return report, e.goOn(err)
}

// reportCommand is `gpreempt bench report`.
func reportCommand() *cobra.Command {
	var folder, merged string
	command := &cobra.Command{
		Use:   "report DIR|FILE...",
		Short: "Make the report of an evaluation, with plots, from its result files",
		Long: "Reads result files of `gpreempt bench --suite paper`, those in folders too, as one and writes evaluation.md\n" +
			"and its plots (SVG). Of what several files have, the last one's counts. The same files give the same report.\n" +
			"Of a folder with partial results of the suite stalls, whatever call or GPU they are of, the table is printed.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(fmt.Errorf("report: which folder of result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			results, err := bench.ReadEvaluation(args...)
			if errors.Is(err, bench.ErrNoEvaluation) && len(args) == 1 {
				stalls, err := bench.ReadStalls(args[0])
				if err != nil {
					return err
				}
				return errors.Join(stalls.Print(command.OutOrStdout()), writeIfNamed(stalls, merged))
			}
			if err != nil {
				return err
			}
			if folder == "" {
				folder = args[0]
				if info, err := os.Stat(folder); err == nil && !info.IsDir() {
					folder = filepath.Dir(folder)
				}
			}
			if merged != "" {
				if err := results.Write(merged); err != nil {
					return err
				}
			}
			path, err := results.WriteReport(folder)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), path)
			return err
		},
	}
	command.Flags().StringVarP(&folder, "out", "o", "", "folder of the report (default: the first DIR, or where the first FILE is)")
	command.Flags().StringVar(&merged, "json", "", "write the results of all files to this one")
	return command
}

func writeIfNamed(report *bench.Report, path string) error {
	if path == "" {
		return nil
	}
	return report.Write(path)
}

// compareCommand is `gpreempt bench compare`.
func compareCommand() *cobra.Command {
	var tolerance float64
	command := &cobra.Command{
		Use:   "compare COMMITTED NEW",
		Short: "Say what is worse in a new result file of gpreempt bench than in an earlier one",
		Long: "Compares two result files, as ratios to the same machine's figures alone. Worse is what differs by more\n" +
			"than the tolerance and, where the files tell, than the confidence intervals. Status 1 when something is.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(fmt.Errorf("compare: which two result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			comparison, err := bench.Compare(args[0], args[1], tolerance)
			if err != nil {
				return err
			}
			if err := comparison.Print(command.OutOrStdout()); err != nil {
				return err
			}
			if n := comparison.Worse(); n > 0 {
				return cli.Exit{Status: 1, Err: fmt.Errorf("%d figures got worse", n)}
			}
			return nil
		},
	}
	command.Flags().Float64Var(&tolerance, "tolerance", 0.1, "a difference of less than this part is noise")
	return command
}

func listWorkloads(out io.Writer, options bench.Options) error {
	workloads, err := bench.Workloads(options.Suite, options.Only)
	if err != nil {
		return err
	}
	for _, w := range workloads {
		if _, err := fmt.Fprintf(out, "%-12s %s\n", w.Name, w.About); err != nil {
			return fmt.Errorf("list the workloads: %w", err)
		}
	}
	return nil
}
