package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/configs"
)

type status string

const (
	ok     status = "ok"
	warned status = "warn" // it works, with less
	failed status = "fail" // it cannot work
)

type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Reason string `json:"reason"`
	Advice string `json:"advice,omitempty"`
}

// doctor collects findings. What later checks need of earlier ones is in its fields.
type doctor struct {
	findings []finding
	machine  hostMachine
	config   configs.Config
	library  string
	devices  []device
	broker   bool // there is one that lets this user's programs join
}

func (d *doctor) say(check string, s status, reason, advice string) {
	d.findings = append(d.findings, finding{check, s, reason, advice})
}

func (d *doctor) failed() bool {
	return slices.ContainsFunc(d.findings, func(f finding) bool { return f.Status == failed })
}

func doctorCommand() *cobra.Command {
	var asJSON bool
	var config, report string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the library can work on this machine, and what it would use",
		Long: "Checks the driver, the devices, the library and the configuration, and tries the library in two small\n" +
			"programs of its own. The exit status is 0, or 1 when something that is needed is missing.\n" +
			"With --report it also writes one file to attach to a bug report, which begins with a list of what it contains:\n" +
			"versions, what doctor found, settings, variables of the environment, the processes under the library, the end of the\n" +
			"log, and what nvidia-smi prints. Look through it before you give it away.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			d := &doctor{machine: thisMachine}
			d.examine(config)
			if err := d.print(command.OutOrStdout(), asJSON); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			if report != "" {
				if err := d.writeReport(report, config); err != nil {
					return cli.Exit{Status: 2, Err: fmt.Errorf("--report: %w", err)}
				}
			}
			if d.failed() {
				return cli.Exit{Status: 1}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	command.Flags().StringVarP(&config, "config", "c", "", "configuration file; default as in default.toml")
	command.Flags().StringVar(&report, "report", "", "`file` to write a report to, which must not be there yet")
	return command
}

func (d *doctor) examine(config string) {
	d.checkConfig(config)
	d.checkDirectory()
	d.checkBroker()
	d.checkLibrary()
	d.checkKernelDriver()
	d.checkDevices()
	d.checkControlFile()
	d.checkMPS()
	d.checkMemory()
	d.checkWorlds()
	d.checkOthers()
	if d.library != "" && len(d.devices) > 0 {
		d.tryLibrary(config)
	}
}

func (d *doctor) print(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			OK       bool      `json:"ok"`
			Findings []finding `json:"findings"`
		}{!d.failed(), d.findings})
	}
	for _, f := range d.findings {
		line := fmt.Sprintf("%-4s  %-9s  %s", f.Status, f.Check, f.Reason)
		if f.Advice != "" {
			line += "; " + f.Advice
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
