// Command gpreempt runs programs under libgpreempt.so, shows what the library does, and checks that it can
// work on this machine.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
)

var subcommands = []func() *cobra.Command{runCommand, topCommand, swapCommand, suspendCommand, resumeCommand, setCommand, policyCommand, doctorCommand, benchCommand, patchCommand, versionCommand, cdiCommand}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "gpreempt",
		Short:   "Preempt best-effort CUDA programs for latency-critical ones, unmodified, on the stock driver",
		Version: cli.Version(version),
	}
	for _, subcommand := range subcommands {
		root.AddCommand(subcommand())
	}
	return root
}

func main() { os.Exit(cli.Run(rootCommand())) }
