package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
)

// version and commit are set by the Makefile.
var version, commit string

// versions is what gpreempt version says. A part that is not there, or could not be found out, is empty, and missing says why.
type versions struct {
	Version        string `json:"version"`
	Commit         string `json:"commit,omitempty"`
	Go             string `json:"go"`
	Library        string `json:"library,omitempty"`
	LibraryVersion string `json:"library_version,omitempty"`
	Kernel         string `json:"kernel_driver,omitempty"` // of the NVIDIA driver's module
	CUDA           string `json:"cuda,omitempty"`          // that libcuda.so.1 is for
	missing        struct{ library, cuda error }
}

func versionCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this command, the library and the driver",
		Long: "Shows the versions of this command and of the Go that it was built with, which library gpreempt run would preload and\n" +
			"its version, and those of the NVIDIA driver. It exits with 0 also where there is no library or no driver.",
		Args: cli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			v := findVersions()
			out := command.OutOrStdout()
			if asJSON {
				return json.NewEncoder(out).Encode(v)
			}
			return v.print(out)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func findVersions() (v versions) {
	v.Version, v.Commit = cli.Version(version), commit
	v.Go = runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	if v.Library, v.missing.library = cli.FindLibrary(); v.missing.library == nil {
		v.LibraryVersion, v.missing.library = cli.LibraryVersion(v.Library)
	}
	v.Kernel = kernelDriver()
	v.CUDA, v.missing.cuda = cudaVersion()
	return v
}

func (v versions) print(out io.Writer) error {
	own, library, driver := v.Version, v.Library, "libcuda.so.1 for CUDA "+v.CUDA
	if v.Commit != "" {
		own += ", commit " + v.Commit
	}
	switch {
	case v.Library == "":
		library = "none: " + v.missing.library.Error()
	case v.missing.library != nil:
		library += ", of an unknown version: " + v.missing.library.Error()
	default:
		library += ", " + v.LibraryVersion
	}
	if v.CUDA == "" {
		driver = "none: " + v.missing.cuda.Error()
	}
	if v.Kernel != "" {
		driver = "NVIDIA " + v.Kernel + ", " + driver
	}
	_, err := fmt.Fprintf(out, "gpreempt  %s\ngo        %s\nlibrary   %s\ndriver    %s\n", own, v.Go, library, driver)
	return err
}

var kernelVersion = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

// kernelDriver is the version of the driver's kernel module, or "".
func kernelDriver() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return "" // a simulated driver has none
	}
	if match := kernelVersion.FindSubmatch(text); match != nil {
		return string(match[1])
	}
	return "of an unknown version: " + firstLine(string(text))
}

// cudaVersion asks libcuda.so.1, in a process of its own, without initialising it.
func cudaVersion() (string, error) {
	p, err := startProbe(os.Environ(), "version")
	if err != nil {
		return "", err
	}
	defer p.end()
	lines, err := p.report(probeLimit)
	said := ""
	for _, line := range lines {
		if version, is := strings.CutPrefix(line, "driver "); is {
			return version, nil
		}
		if text, is := strings.CutPrefix(line, "error "); is {
			said = cli.ProbeError(text)
		}
	}
	return "", errors.New(cmp.Or(said, fmt.Sprintf("the probe of libcuda.so.1 %v", err)))
}
