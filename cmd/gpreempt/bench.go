package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
)

const benchName = "gpreempt-bench"

// benchCommand is `gpreempt bench`. The benchmarks are a program of their own, which replaces this one.
func benchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bench",
		Short: "Measure co-location on this machine's GPU, and report results (" + benchName + ")",
		Long: "Runs " + benchName + ", which measures a latency-critical process beside best-effort ones. All arguments are\n" +
			"its own: see gpreempt bench --help.",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return become(benchName, args...)
		},
	}
}

// findProgram looks for a program of gpreempt beside this command, then on the PATH.
func findProgram(name string) (string, error) {
	executable, err := cli.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(executable), name)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is neither beside %s nor on the PATH; make builds it, make install installs it", name, executable)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}

// become replaces this program by another one of gpreempt.
func become(name string, args ...string) error {
	path, err := findProgram(name)
	if err != nil {
		return cli.Exit{Status: 127, Err: err}
	}
	err = replaceBy(path, append([]string{name}, args...), os.Environ())
	return cli.Exit{Status: 126, Err: fmt.Errorf("run %s: %w", path, err)}
}
