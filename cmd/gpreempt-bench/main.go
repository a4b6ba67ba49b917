// Command gpreempt-bench measures co-location on this machine's GPU, reports results and compares them. It is
// `gpreempt bench`.
package main

import (
	"os"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
)

// version is set by the Makefile.
var version string

func main() {
	root := measureCommand()
	root.Version = cli.Version(version)
	root.AddCommand(reportCommand(), compareCommand())
	os.Exit(cli.Run(root))
}
