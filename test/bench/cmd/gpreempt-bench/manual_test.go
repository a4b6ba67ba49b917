package main

import (
	"bytes"
	"flag"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/test/bench"
)

var update = flag.Bool("update", false, "write the manual page")

// The manual page is made from the command itself.
func TestManualIsCurrent(t *testing.T) {
	page := commandPage(rootCommand())
	clitest.CheckPage(t, "../../../../docs/man/gpreempt-bench.1", page, *update)
	for _, suite := range bench.Suites {
		if !bytes.Contains(page, []byte("\n.B "+clitest.Roff(suite.Name)+"\n")) {
			t.Errorf("gpreempt-bench(1) lacks suite %s", suite.Name)
		}
	}
	for _, c := range append(rootCommand().Commands(), rootCommand()) {
		if !bytes.Contains(page, []byte("\n.B "+clitest.Roff(c.CommandPath()))) {
			t.Errorf("gpreempt-bench(1) lacks %s", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !bytes.Contains(page, []byte(clitest.Roff("--"+f.Name))) {
				t.Errorf("gpreempt-bench(1) lacks --%s of %s", f.Name, c.CommandPath())
			}
		})
	}
}

func TestHelpFitsOnAScreen(t *testing.T) { clitest.CheckHelp(t, rootCommand()) }

const (
	statuses    = `0, or 1 where something could not be measured, or 2 for wrong arguments, or 3 where \-\-minutes did not suffice for all: the same command goes on from there. 130 and 143 are those of a measurement that SIGINT or SIGTERM ended: the same command goes on from there.`
	environment = `.TP
.B GPREEMPT_LIBRARY
Path of libgpreempt.so, where it is not beside the command, in ../lib/gpreempt/lib, in ../lib, or in those of /usr/local and /usr. \-\-library goes before it.
.TP
.B GPREEMPT_CONFIG
A configuration file; what the measured systems set goes before what it says.
.TP
.B CUDA_VISIBLE_DEVICES
The GPUs that may be used, as for every CUDA program.`
)

// commandPage is gpreempt-bench(1).
func commandPage(root *cobra.Command) []byte {
	var p clitest.Page
	p.Head("gpreempt-bench", 1, "m"+root.Short[1:], "test/bench/cmd/gpreempt-bench/manual_test.go")
	p.Synopsis(append([]*cobra.Command{root}, root.Commands()...)...)
	p.Line(".SH DESCRIPTION\n.I gpreempt bench\nruns this program.\n.PP")
	p.Text(root.Long)
	p.Line(".PP")
	p.Text(root.Annotations[cli.Manual])
	p.Line(".SH OPTIONS\nA suite refuses an option that it has no use for.")
	p.Flags(root)
	p.Commands(root.Commands()...)
	p.Line(".SH EXIT STATUS\n%s\n.SH ENVIRONMENT\n%s\n.SH SEE ALSO\n.BR gpreempt (1),\n.BR gpreempt.toml (5)", statuses, environment)
	return p.Bytes()
}
