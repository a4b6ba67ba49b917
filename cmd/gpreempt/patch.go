package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
)

func patchCommand() *cobra.Command {
	var (
		asJSON bool
		output string
		sm     int
	)
	command := &cobra.Command{
		Use:   "patch FILE",
		Short: "Show how the kernels of a cubin, fatbin, program or library are made preemptible",
		Long: "Shows for every kernel of a cubin, a fatbin, or the fatbins embedded in a host program or library\n" +
			"whether it can be given the guard that makes its blocks preemptible, and why not; and whether its blocks\n" +
			"are independent, or may wait for each other.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("patch: must be followed by one file, for example: gpreempt patch libexample.so"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			guards, err := patch.ParseGuards(kernels.Guard)
			if err != nil {
				return err
			}
			results, err := patchFile(args[0], output, sm, patch.Options{Guards: guards, Refuse: patch.WaitsForPeers})
			if errors.Is(err, errOutput) {
				return err
			}
			if err != nil {
				return fmt.Errorf("patch %s: %w", args[0], cli.Cause(err))
			}
			if asJSON {
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(results)
			}
			return printPatch(command.OutOrStdout(), results)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	command.Flags().StringVarP(&output, "output", "o", "", "write the rewritten cubin or fatbin to this `file`")
	command.Flags().IntVar(&sm, "sm", 0, "only what a GPU of this compute capability can run, for example 90 (fatbins)")
	return command
}

// errOutput begins an error about the file to write.
var errOutput = errors.New("--output")

// patchFile rewrites every image of a file as the library does. sm is the compute capability of the GPU, 0 for all.
func patchFile(path, output string, sm int, options patch.Options) ([][]patch.FatbinEntry, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	images, err := patch.Images(file)
	if err != nil {
		return nil, err
	}
	if output != "" && len(images) != 1 {
		return nil, cli.Usage(fmt.Errorf("-o takes a file with one cubin or fatbin; this one has %d", len(images)))
	}
	var results [][]patch.FatbinEntry
	for _, image := range images {
		rewritten, entries, err := patchImage(image, sm, options)
		missing := errors.Is(err, patch.ErrNothing) || errors.Is(err, patch.ErrPTX)
		if err != nil && (!missing || output != "") {
			return nil, err
		}
		if missing { // of one image of several
			entries = []patch.FatbinEntry{{Kind: "other", SM: sm, Reason: err.Error()}}
		}
		results = append(results, entries)
		if output == "" {
			continue
		}
		if err := os.WriteFile(output, rewritten, 0o644); err != nil {
			return nil, fmt.Errorf("%w %q: %w", errOutput, output, cli.Cause(err))
		}
	}
	return results, nil
}

func patchImage(image patch.Image, sm int, options patch.Options) ([]byte, []patch.FatbinEntry, error) {
	if sm != 0 {
		var err error
		if image, err = patch.Pick(bytes.NewReader(image.Data), sm, nil); err != nil {
			return nil, nil, err
		}
	}
	return patch.Rewrite(image, options)
}

func printPatch(out io.Writer, images [][]patch.FatbinEntry) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ARCH\tREGISTERS\tPARAMETERS\tBYTES\tRESULT\tBLOCKS\tKERNEL")
	kernels, guarded, independent := 0, 0, 0
	for _, entries := range images {
		for _, entry := range entries {
			if len(entry.Report.Kernels) == 0 && entry.Reason != "" {
				fmt.Fprintf(table, "%s sm_%d\t\t\t\tnot rewritten: %s\t\t\n", entry.Kind, entry.SM, entry.Reason)
			}
			for _, k := range entry.Report.Kernels {
				registers, result, blocks := fmt.Sprint(k.Registers), "guarded", "may wait: "+k.Dependence
				if k.Independent {
					blocks = "independent"
					independent++
				}
				if !k.Guarded {
					result, blocks = "refused: "+k.Reason, ""
				} else if k.GuardedRegisters != k.Registers {
					registers = fmt.Sprintf("%d -> %d", k.Registers, k.GuardedRegisters)
				}
				fmt.Fprintf(table, "sm_%d\t%s\t%d\t%d\t%s\t%s\t%s\n", entry.Report.SM, registers, k.Parameters, k.ParameterBytes, result, blocks, k.Name)
			}
			kernels += len(entry.Report.Kernels)
			guarded += entry.Report.Guarded()
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d kernels guarded, the blocks of %d independent\n", guarded, kernels, independent)
	return err
}
