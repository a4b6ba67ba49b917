// Package clitest holds what the tests of the commands share: building a command, running it, and its manual page.
package clitest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Version is what Build gives a command as its version.
const Version = "v1.2.3-test"

// Main runs a package's tests with a new folder, at *folder. It holds the built command, whose package is in the folder command, and the
// files of prepare. Main returns the exit status.
func Main(m *testing.M, folder *string, command string, prepare func(folder string) error) int {
	built, err := os.MkdirTemp("", "gpreempt-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(built)
	*folder = built
	if err := Build("go", "build", "-C", command, "-ldflags", "-X main.version="+Version, "-o", built+"/", "."); err != nil {
		panic(err)
	}
	if err := prepare(built); err != nil {
		panic(err)
	}
	return m.Run()
}

// Driver puts beside a command a library that can be preloaded and does nothing, and a CUDA driver, of a source.
func Driver(folder, source string) error {
	nothing := filepath.Join(folder, "nothing.c")
	return errors.Join(
		os.WriteFile(nothing, []byte("int gpreempt_test_nothing;\n"), 0o600),
		Build("gcc", "-shared", "-fPIC", "-o", folder+"/libgpreempt.so", nothing),
		Build("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder+"/libcuda.so.1", source),
	)
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

// Output is what a running process has written so far.
type Output struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

func (o *Output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}
