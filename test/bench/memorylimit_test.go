package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program allocates what its limit leaves beside its context, and the row has what the driver's tool says of it.
func TestMemoryLimit(t *testing.T) {
	const tool = `#!/bin/sh
for process in /proc/[0-9]*; do
	case $(tr '\0' ' ' <$process/cmdline 2>/dev/null) in
	*"limit.py driver"*) echo "${process#/proc/}, 70" ;;
	esac
done
`
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte(tool), 0o700); err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	alone := filepath.Join(folder, "python") // without the machine's packages
	if err := os.WriteFile(alone, []byte("#!/bin/sh\nexec "+python+" -S \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	var progress bytes.Buffer
	options := simulatedOptions(t, memoryEnginesSuite, &progress, "limit")
	options.Python = alone
	options.tests.environment = append(options.tests.environment, smallGPU...)
	report, err := suiteOfCases(t, memoryEnginesSuite).Measure(t.Context(), options)
	if err != nil || len(report.Cases) != 1 {
		t.Fatalf("%v, %+v\n%s", err, report.Cases, &progress)
	}
	row := report.Cases[0]
	if want := "the process has 70 MiB on the GPU, of 64; it allocated 48; NOT TRIED: native, "; row.Case != "limit-driver" || *row.Value != 6 || !strings.HasPrefix(row.Note, want) {
		t.Errorf("%+v\n%s", row, &progress)
	}
}
