package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A program allocates what its limit leaves beside its context, and the row has what the driver's tool says of it.
func TestMemoryLimit(t *testing.T) {
	const tool = `#!/bin/sh
for process in /proc/[0-9]*; do
	case $(tr '\0' ' ' <$process/cmdline 2>/dev/null) in
	*"limit.py driver"*) echo "${process#/proc/}, 90" ;;
	esac
done
`
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte(tool), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	var progress bytes.Buffer
	options := simulatedOptions(t, memoryEnginesSuite, &progress, "limit")
	options.tests.environment = append(options.tests.environment, smallGPU...)
	report, err := suiteOfCases(t, memoryEnginesSuite).Measure(t.Context(), options)
	if err != nil || len(report.Cases) != 1 {
		t.Fatalf("%v, %+v\n%s", err, report.Cases, &progress)
	}
	row := report.Cases[0]
	if want := "the process has 90 MiB on the GPU, of 84; it allocated 80"; row.Case != "limit-driver" || *row.Value != 6 || row.Note != want {
		t.Errorf("%+v\n%s", row, &progress)
	}
}
