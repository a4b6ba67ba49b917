// Package guest tests that a program without a role, and most with one, runs as if the library were not there: nothing in it
// needs CUDA.
package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// library is the path of the library that make has built.
func library(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("../../build/libgpreempt.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run make first", err)
	}
	return path
}

// cc compiles a program or a library, and returns its path.
func cc(t testing.TB, out string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), out)
	args = append([]string{"-O1", "-g", "-std=gnu11", "-o", path}, args...)
	if text, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return path
}

// A result is the outside of a program's run.
type result struct{ status, stdout, stderr string }

func (r result) String() string {
	return fmt.Sprintf("%s\nstdout: %s\nstderr: %s", r.status, strings.TrimSpace(r.stdout), strings.TrimSpace(r.stderr))
}

// tooLong is for a program that hangs: no test waits for it otherwise.
const tooLong = 5 * time.Minute

// run runs a command to its end, in a directory of its own, with the environment's variables and these.
func run(t testing.TB, command []string, variables ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), variables...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", strings.Join(command, " "), err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%s: has not ended in %v", strings.Join(command, " "), tooLong)
	}
	return result{cmd.ProcessState.String(), stdout.String(), stderr.String()}
}

// same runs a command without the library and with it, and returns what both did alike.
func same(t testing.TB, command []string, variables ...string) result {
	t.Helper()
	without := run(t, command, variables...)
	with := run(t, command, append([]string{"LD_PRELOAD=" + library(t)}, variables...)...)
	if with != without {
		t.Errorf("%s %s:\nwithout the library: %v\nwith it: %v", strings.Join(variables, " "), strings.Join(command, " "), without, with)
	}
	return without
}
