package docs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A person who ends make demo reads neither that results are kept, which are removed, nor what the shell says of its jobs.
func TestDemoIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ script, begins, says string }{
		{"test/demo.sh", "Watch them", "demo: interrupted; nothing is kept\n"},
		{"test/demo_objective.sh", "A served model", ""},
	} {
		t.Run(c.script, func(t *testing.T) {
			t.Parallel()
			tree, began := t.TempDir(), filepath.Join(t.TempDir(), "began")
			write := func(name, content string) string {
				t.Helper()
				path := filepath.Join(tree, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o755)); err != nil {
					t.Fatal(err)
				}
				return path
			}
			waits := "#!/bin/sh\ntrap 'echo \"interrupted; what was measured is in FOLDER\" >&2; exit 130' INT\n: >" + began + "\nwhile :; do sleep 0.1; done\n"
			script := write(c.script, text(t, c.script))
			write("build/gpreempt", "#!/bin/sh\n[ \"$1\" != doctor ] || exit 1\n"+strings.TrimPrefix(waits, "#!/bin/sh\n"))
			compiler := write("cc", "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\ncp "+write("waits", waits)+" \"$2\"\n")
			demo := exec.Command("bash", script)
			var said bytes.Buffer
			demo.Stdout, demo.Stderr, demo.Env = &said, &said, append(os.Environ(), "CC="+compiler, "TMPDIR="+t.TempDir())
			demo.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a terminal's foreground job
			if err := demo.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(-demo.Process.Pid, syscall.SIGKILL) }() // else it has ended
			for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(began); err == nil {
					break
				}
				if time.Now().After(until) {
					t.Fatal("it did not begin")
				}
			}
			if err := syscall.Kill(-demo.Process.Pid, syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			err := demo.Wait()
			got := said.String()
			if err == nil || !strings.Contains(got, c.begins) || !strings.HasSuffix(got, c.says) || strings.Contains(got, "what was measured") || strings.Contains(got, "Terminated") {
				t.Errorf("%v\n%s", err, got)
			}
		})
	}
}
