package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// `sudo make install` has sudo's PATH, often without Go: it installs what was built. Other targets say that they need Go, and an install that
// lacks a file says which before it puts one.
func TestInstallsWithoutGo(t *testing.T) {
	t.Parallel()
	tree, tools, prefix := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "prefix")
	for _, name := range []string{"sh", "bash", "make", "awk", "basename", "cat", "cp", "date", "dirname", "find", "git", "grep", "install", "ln", "mkdir", "rm", "rmdir", "sed", "sha256sum", "sort", "uname"} {
		if path, err := exec.LookPath(name); err == nil {
			if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755), os.WriteFile(filepath.Join(tree, name), []byte("made"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(tree, "packaging"), os.DirFS(filepath.Join(root, "packaging"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "Makefile"), []byte(text(t, "Makefile")), 0o644); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text(t, "packaging/gpreempt.files") + text(t, "packaging/gpreemptd.files")) {
		parts := strings.Fields(line)
		if source := parts[1]; parts[0] != "#" && parts[0] != "link" && !strings.HasPrefix(source, "packaging/") {
			write(strings.Replace(source, "BUILT/", "build/", 1))
		}
	}
	run := func(arguments ...string) (string, error) {
		make := exec.Command(filepath.Join(tools, "make"), arguments...)
		make.Dir, make.Env = tree, []string{"PATH=" + tools, "HOME=" + tree}
		out, err := make.CombinedOutput()
		return string(out), err
	}
	installed := filepath.Join(prefix, "bin", "gpreempt")
	for _, targets := range [][]string{nil, {"all"}, {"install", "test"}} {
		if out, err := run(targets...); err == nil || !strings.Contains(out, "make needs Go 1.26 or 1.27 on the PATH") {
			t.Errorf("make %q: %v\n%s", targets, err, out)
		}
	}
	lacks := filepath.Join(tree, "build", "completion", "gpreempt.zsh")
	if err := os.Remove(lacks); err != nil {
		t.Fatal(err)
	}
	if out, err := run("install", "PREFIX="+prefix); err == nil || !strings.Contains(out, "build/completion/gpreempt.zsh is not built yet") || !strings.Contains(out, "first say make, with Go") {
		t.Errorf("with a file that is missing: %v\n%s", err, out)
	}
	if _, err := os.Stat(prefix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it began: %v", err)
	}
	write("build/completion/gpreempt.zsh")
	if out, err := run("install", "PREFIX="+prefix); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(installed); err != nil {
		t.Error(err)
	}
	if out, err := run("uninstall", "PREFIX="+prefix); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(installed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not uninstalled: %v", err)
	}
}
