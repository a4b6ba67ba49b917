package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build is a sanitizer of the compiler, "thread" or "address", that watches the C parts of the library, the simulated
// driver and the programs of the tests; "": none does. make sanitize sets it.
type build string

var sanitizer = build(os.Getenv("GPREEMPT_SANITIZER"))

// built is a file of the build that is tested.
func built(name string) string {
	if sanitizer == "" || strings.HasPrefix(name, "gpreempt") { // commands are watched by none
		return filepath.Join(root, "build", name)
	}
	return filepath.Join(root, "build", "sanitize", string(sanitizer), name)
}

// compiler is the command that compiles a program. One that a sanitizer watches calls the library's lookups by names of
// their own (see the Makefile), for which it is linked with it.
func compiler(program string, arguments ...string) []string {
	command := append([]string{"gcc", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program}, arguments...)
	if sanitizer != "" {
		command = append(command, "-g", "-fsanitize="+string(sanitizer), "-Ddlsym=gp_dlsym", "-Ddlvsym=gp_dlvsym", "-Ddlopen=gp_dlopen",
			built("libgpreempt.so"), "-Wl,--unresolved-symbols=ignore-in-shared-libs")
	}
	return append(command, "-ldl", "-lpthread")
}

// runtime is the sanitizer's library, which has to come before all others.
func (b build) runtime() []string {
	if b == "" {
		return nil
	}
	path, err := exec.Command("gcc", "-print-file-name=lib"+string(b[0])+"san.so").Output()
	if err != nil {
		panic(err)
	}
	return []string{strings.TrimSpace(string(path))}
}

const report = "sanitizer-report"

// options make processes leave what is found in a folder.
func (b build) options(dir string) []string {
	switch log := "log_path=" + filepath.Join(dir, report); b {
	case "thread":
		return []string{"TSAN_OPTIONS=exitcode=0:" + log}
	case "address":
		return []string{"ASAN_OPTIONS=detect_leaks=0:" + log}
	}
	return nil
}

// reports fails the test for each report in the folder.
func (b build) reports(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, report+".*"))
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		t.Errorf("%s", read(t, file))
	}
}
