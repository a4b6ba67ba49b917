package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
	"github.com/gpreempt/gpreempt/test/bench/report"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// reportCommand is `gpreempt bench report`.
func reportCommand() *cobra.Command {
	var folder, merged, into string
	command := &cobra.Command{
		Use:   "report DIR|FILE...",
		Short: "Show the results of a folder; of an evaluation, make the report with plots",
		Long: "Reads result files of `gpreempt bench --suite paper`, also those in folders, as one and writes evaluation.md\n" +
			"and its plots (SVG). Where several files have the same case, the last one counts. The same files give the same\n" +
			"report. For folders with partial results of other suites it prints their tables.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(fmt.Errorf("report: which folder of result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if into != "" {
				return writeInto(command, args, into)
			}
			results, err := result.ReadEvaluation(args...)
			if errors.Is(err, result.ErrNoEvaluation) {
				return showParts(command, args, merged)
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
			path, err := report.Write(results, folder)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), path)
			return err
		},
	}
	command.Flags().StringVarP(&folder, "out", "o", "", "folder of the report (default: the first DIR, or where the first FILE is)")
	command.Flags().StringVar(&merged, "json", "", "write the results of all files to this one")
	command.Flags().StringVar(&into, "into", "", "only write the results of each suite into this folder, as GPU-SUITE.json; earlier ones\n"+
		"with cases that these lack stay, which is an error")
	command.MarkFlagsMutuallyExclusive("into", "out")
	command.MarkFlagsMutuallyExclusive("into", "json")
	return command
}

// writeInto writes the results of each suite in folders to files of their own.
func writeInto(command *cobra.Command, folders []string, into string) error {
	evaluations, parts := map[string][]string{}, []string{} // folders, by suite, and of other suites
	for _, folder := range folders {
		one, err := result.ReadEvaluation(folder)
		switch {
		case errors.Is(err, result.ErrNoEvaluation):
			parts = append(parts, folder)
		case err != nil:
			return err
		default:
			evaluations[one.Benchmark] = append(evaluations[one.Benchmark], folder)
		}
	}
	var results []interface {
		Into(folder string) (path string, err error)
	}
	for _, suite := range slices.Sorted(maps.Keys(evaluations)) {
		one, err := result.ReadEvaluation(evaluations[suite]...)
		if err != nil {
			return err
		}
		results = append(results, one)
	}
	if len(parts) > 0 {
		reports, err := bench.ReadParts(parts...)
		if err != nil {
			return err
		}
		for _, one := range reports {
			results = append(results, one)
		}
	}
	var failed error
	for _, one := range results {
		path, err := one.Into(into)
		if err == nil {
			_, err = fmt.Fprintln(command.OutOrStdout(), path)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// showParts prints what the partial results of folders give, and writes them to a file that is named.
func showParts(command *cobra.Command, folders []string, file string) error {
	reports, err := bench.ReadParts(folders...)
	if err != nil {
		return err
	}
	if file != "" && len(reports) > 1 {
		var names []string
		for _, r := range reports {
			names = append(names, r.Benchmark)
		}
		return cli.Usage(fmt.Errorf("--json %s: there are results of several suites: %v", file, names))
	}
	for _, r := range reports {
		if err := r.Print(command.OutOrStdout()); err != nil {
			return err
		}
		if file != "" {
			return r.Write(file)
		}
	}
	return nil
}

// compareCommand is `gpreempt bench compare`.
func compareCommand() *cobra.Command {
	var tolerance float64
	command := &cobra.Command{
		Use:   "compare COMMITTED NEW",
		Short: "Say what is worse in a new result file of gpreempt bench than in an earlier one",
		Long: "Compares two result files, as ratios to what the same machine gave alone. A figure is worse if it differs by more\n" +
			"than the tolerance and than the confidence intervals explain: a file without them gets the other's. They tell how\n" +
			"requests of a run differ, not how runs do; --compare of gpreempt bench measures again. The status is 1 if any is.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(fmt.Errorf("compare: which two result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			comparison, err := result.Compare(args[0], args[1], tolerance)
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
	command.Flags().Float64Var(&tolerance, "tolerance", result.Tolerance, "a smaller difference is noise; 0.1 is 10 %")
	return command
}

// staleCommand is `gpreempt bench stale`.
func staleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stale [FILE...]",
		Short: "Say which results that the documents show are older than the library",
		Long: "In a clone of the repository: for each result file that a document shows, how many commits have changed the\n" +
			"library since it was measured, without those of which test/bench/results/unchanged.txt says why they cannot\n" +
			"change it. Of files that are named it lists these commits. The status is 1 if any file has one, if a file's\n" +
			"commit is not in the history, and where the history is not there or not whole.",
		RunE: func(command *cobra.Command, args []string) error {
			ages, err := report.Ages(command.Context(), ".")
			if err != nil {
				return err
			}
			if err := report.PrintAges(command.OutOrStdout(), ages, args); err != nil {
				return err
			}
			stale := 0
			for _, age := range ages {
				if age.Stale() {
					stale++
				}
			}
			if stale > 0 {
				return cli.Exit{Status: 1, Err: fmt.Errorf("%d of %d files may no longer be what the library gives", stale, len(ages))}
			}
			return nil
		},
	}
}
