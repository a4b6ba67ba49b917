package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// reportCommand is `gpreempt bench report`.
func reportCommand() *cobra.Command {
	var merged, into string
	command := &cobra.Command{
		Use:   "report DIR|FILE...",
		Short: "Show the results of folders",
		Long: "Reads result files of one suite, also those in folders, as one and prints their table. Where several files have the\n" +
			"same case, the last one counts.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(fmt.Errorf("report: which folder of result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if into != "" && merged != "" {
				return cli.Usage(errors.New("report: --into and --json cannot be given together"))
			}
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
			if merged != "" {
				if err := results.Write(merged); err != nil {
					return err
				}
			}
			return results.Print(command.OutOrStdout())
		},
	}
	command.Flags().StringVar(&merged, "json", "", "write the results of all files to this one")
	command.Flags().StringVar(&into, "into", "", "only write the results of each suite into this folder, as GPU-SUITE.json; earlier ones\n"+
		"with cases that these lack stay, which is an error")
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
