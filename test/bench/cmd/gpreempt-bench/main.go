// Command gpreempt-bench measures co-location on this machine's GPU and reports results. It is
// `gpreempt bench`.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
)

// version is set by the Makefile.
var version string

func rootCommand() *cobra.Command {
	root := measureCommand()
	root.Version = cli.Version(version)
	root.AddCommand(reportCommand())
	return root
}

func main() { os.Exit(cli.Run(rootCommand())) }
