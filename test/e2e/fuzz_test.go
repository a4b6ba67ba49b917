package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A fuzzer that hardly ran is no check: test/fuzz.sh counts what each of them ran on.
func TestFuzzersAreCounted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, c := range []struct{ says, want string }{
		{"echo 'fuzz: elapsed: 6s, execs: 23 (0/sec)'", "ran on 23 of 1000 inputs"},
		{"echo ok", "ran on 0 of 1000 inputs"},
		{"echo 'fuzz: elapsed: 6s, execs: 1000 (0/sec)'; exit 1", "failed"},
		{"echo 'fuzz: elapsed: 3s, execs: 23 (9/sec)'; echo 'fuzz: elapsed: 6s, execs: 1000 (0/sec)'", ""},
	} {
		stub := filepath.Join(folder, "go")
		if err := os.WriteFile(stub, []byte("#!/bin/sh\n"+c.says+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(filepath.Join(root, "test", "fuzz.sh"), "1000")
		command.Env = append(os.Environ(), "GO="+stub)
		out, err := command.CombinedOutput()
		if (err == nil) != (c.want == "") || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, want %q\n%s", c.says, err, c.want, out)
		}
		if err == nil && !strings.Contains(string(out), "FuzzCubin of patch: 1000 inputs\n") {
			t.Errorf("not all fuzzers ran:\n%s", out)
		}
	}
}
