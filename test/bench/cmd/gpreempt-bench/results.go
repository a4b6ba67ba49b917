package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/test/bench"
)

// reportCommand is `gpreempt bench report`.
func reportCommand() *cobra.Command {
	var into string
	command := &cobra.Command{
		Use:   "report DIR...",
		Short: "Show the results of folders",
		Long: "Reads partial results in folders and prints a table for each suite. Where several have the same case, the last one\n" +
			"counts.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(fmt.Errorf("report: which folder of result files?"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			reports, err := bench.ReadParts(args...)
			if err != nil {
				return err
			}
			for _, one := range reports {
				if into == "" {
					err = errors.Join(err, one.Print(command.OutOrStdout()))
					continue
				}
				path, failed := one.Into(into)
				if failed == nil {
					_, failed = fmt.Fprintln(command.OutOrStdout(), path)
				}
				err = errors.Join(err, failed)
			}
			return err
		},
	}
	command.Flags().StringVar(&into, "into", "", "only write the results of each suite into this folder, as GPU-SUITE.json; earlier ones\n"+
		"with cases that these lack stay, which is an error")
	return command
}
