package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
)

const patchSeeds = "../../patch/testdata/seeds/"

// runPatch runs the command and returns what it prints.
func runPatch(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	command := patchCommand()
	command.SilenceUsage, command.SilenceErrors = true, true
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetArgs(arguments)
	err := command.Execute()
	return out.String(), err
}

// A file that cannot be written is named by its flag, not as the one that was read.
func TestPatchOutputFails(t *testing.T) {
	output := filepath.Join(t.TempDir(), "no", "file")
	if _, err := runPatch(t, patchSeeds+"sm_90.cubin", "-o", output); err == nil || err.Error() != `--output "`+output+`": no such file or directory` {
		t.Error(err)
	}
}

func TestPatchTable(t *testing.T) {
	guards, err := patch.ParseGuards(kernels.Guard)
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(patchSeeds + "sm_90.cubin")
	if err != nil {
		t.Fatal(err)
	}
	_, report, err := patch.Cubin(image, patch.Options{Guards: guards})
	if err != nil {
		t.Fatal(err)
	}
	registers := strconv.Itoa(report.Kernels[0].GuardedRegisters) // the guard's, more than its own 4
	out, err := runPatch(t, patchSeeds+"sm_90.cubin")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, expected := range [][]string{
		{"ARCH", "REGISTERS", "PARAMETERS", "BYTES", "RESULT", "BLOCKS", "KERNEL"},
		{"sm_90", "4", "->", registers, "0", "0", "guarded", "independent", "empty"},
		{"sm_90", "24", "2", "12", "guarded", "may", "wait:", "atomic", "whose", "result", "is", "used", "at", "0x290", "seed"},
		{"2", "of", "2", "kernels", "guarded,", "the", "blocks", "of", "1", "independent"},
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != strings.Join(expected, " ") {
			t.Fatalf("line %d is not %v:\n%s", i, expected, out)
		}
	}
}

func TestPatchJSONAndOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.fatbin")
	out, err := runPatch(t, "--json", "--sm", "90", "-o", path, patchSeeds+"zstd.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	var results [][]patch.FatbinEntry
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(results) != 1 || len(results[0]) != 1 || results[0][0].SM != 90 || results[0][0].Report.Guarded() != 2 {
		t.Fatalf("%+v", results)
	}
	out, err = runPatch(t, path)
	if err != nil || strings.Count(out, "refused: has a guard") != 2 || !strings.Contains(out, "0 of 2 kernels guarded") {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = runPatch(t, "--sm", "100", patchSeeds+"zstd.fatbin")
	if err != nil || !strings.Contains(out, "not rewritten: PTX") || !strings.Contains(out, "0 of 0 kernels guarded") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err = runPatch(t, "--sm", "100", "-o", path, patchSeeds+"zstd.fatbin"); !errors.Is(err, patch.ErrPTX) {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestPatchErrors(t *testing.T) {
	if _, err := runPatch(t, "patch_test.go"); !errors.Is(err, patch.ErrFormat) {
		t.Errorf("of a source file: %v", err)
	}
	if _, err := runPatch(t, "no such file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	library := filepath.Join(t.TempDir(), "two.fatbins")
	one, err := os.ReadFile(patchSeeds + "zstd.fatbin")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(library, append(bytes.Clone(one), one...), 0o644); err != nil {
		t.Fatal(err)
	}
	var exit cli.Exit
	if _, err := runPatch(t, "-o", "/dev/null", library); !errors.As(err, &exit) || exit.Status != 2 {
		t.Errorf("-o of two fatbins: %v", err)
	}
}
