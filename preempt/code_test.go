package preempt

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// What is known of kernels and loads is C, and so is its test (testdata/code.c), which the sanitizers watch too.
func TestCode(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	for _, sanitizer := range []string{"", "-fsanitize=address,undefined", "-fsanitize=thread"} {
		t.Run(sanitizer, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "code")
			build := exec.Command("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-o", program, "testdata/code.c", "code.c", "load.c", "modules.c", "libraries.c", "request.c", "core.c", "-lpthread")
			if sanitizer != "" {
				build.Args = append(build.Args, sanitizer)
			}
			if out, err := build.CombinedOutput(); err != nil {
				if sanitizer != "" {
					t.Skipf("no such sanitizer: %s", out)
				}
				t.Fatalf("cc: %v\n%s", err, out)
			}
			if out, err := exec.Command(program).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
