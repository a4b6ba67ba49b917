// Package clitest holds what the tests of the commands share: building a command, running it, and its manual page.
package clitest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Version is what Build gives a command as its version.
const Version = "v1.2.3-test"

// Main runs a package's tests with a folder, at *folder, that holds the command of the package, built, and what prepare
// puts there. It returns the exit status.
func Main(m *testing.M, folder *string, prepare func(folder string) error) int {
	built, err := os.MkdirTemp("", "gpreempt-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(built)
	*folder = built
	if err := Build("go", "build", "-ldflags", "-X main.version="+Version, "-o", built+"/", "."); err != nil {
		panic(err)
	}
	if err := prepare(built); err != nil {
		panic(err)
	}
	return m.Run()
}

// Build runs a compiler; what it says is the error.
func Build(command ...string) error {
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return errors.New(strings.Join(command, " ") + ": " + err.Error() + "\n" + string(out))
	}
	return nil
}

// Run runs a command in an empty directory with a clean environment plus env.
func Run(t *testing.T, command string, env []string, arguments ...string) (status int, stdout, stderr string) {
	t.Helper()
	c := exec.Command(command, arguments...)
	c.Dir = t.TempDir()
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.Dir}, env...)
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), said.String()
}

// Write writes a file, that may be executed, into a directory of its own and returns its path.
func Write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Squat makes the directory of this user's segments below a base, and gives it to user 4711.
func Squat(t *testing.T) (base, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	base = t.TempDir()
	dir = segment.Directory(base, os.Getuid())
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 4711, 4711)); err != nil {
		t.Fatal(err)
	}
	return base, dir
}
