// Command gpreempt runs programs under libgpreempt.so, shows what the library does, checks that it can
// work on this machine, and measures what it achieves.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the Makefile.
var version string

var subcommands = []func() *cobra.Command{runCommand, topCommand, doctorCommand, benchCommand, reportCommand, compareCommand, patchCommand}

// exitError ends the command with a status of its own; with a nil error it says nothing.
type exitError struct {
	status int
	err    error
}

func (e exitError) Error() string { return fmt.Sprint(e.err) }
func (e exitError) Unwrap() error { return e.err }

// usage marks an error as the caller's: status 2.
func usage(err error) error { return exitError{2, err} }

func main() {
	root := &cobra.Command{
		Use:           "gpreempt",
		Short:         "Preempt best-effort CUDA programs for latency-critical ones, unmodified, on the stock driver",
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	for _, subcommand := range subcommands {
		root.AddCommand(subcommand())
	}
	if err := root.Execute(); err != nil {
		os.Exit(report(err))
	}
}

func report(err error) (status int) {
	status = 1
	var exit exitError
	if errors.As(err, &exit) {
		status = exit.status
	}
	if exit.status == 0 || exit.err != nil {
		fmt.Fprintln(os.Stderr, "gpreempt:", err)
	}
	return status
}

func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return info.Main.Version + " " + setting.Value
		}
	}
	return info.Main.Version
}
