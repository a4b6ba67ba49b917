package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	var config, report string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the library can work on this machine, and what it would use",
		Long: "Checks the driver, the devices, the library and the configuration, and tries the library in two small\n" +
			"programs of its own. The last line says what comes of it, and what to do next. The exit status is 0, or 1 when something that is needed is missing.\n" +
			"With --report it also writes one file to attach to a bug report, which begins with a list of what it contains:\n" +
			"versions, what doctor found, settings, variables of the environment, the processes under the library, the end of the\n" +
			"log, and what nvidia-smi prints. Look through it before you give it away.",
		Args: cli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if report != "" { // before what takes long
				if err := tryReport(report); err != nil {
					return cli.Exit{Status: 2, Err: err}
				}
			}
			d := &doctor{machine: thisMachine}
			d.examine(config)
			if err := d.print(command.OutOrStdout(), asJSON); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			if report != "" {
				if err := d.writeReport(report, config); err != nil {
					return cli.Exit{Status: 2, Err: err}
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
	d.checkObjectives()
	d.checkShares()
	d.checkWorlds()
	d.checkOthers()
	if d.library != "" && len(d.devices) > 0 {
		d.tryLibrary(config)
	} else {
		d.sayServer(nil)
	}
}
