package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The benchmarks are found beside the command first, then on the PATH, and get all arguments.
func TestBenchIsFound(t *testing.T) {
	folder := t.TempDir()
	command := filepath.Join(folder, "gpreempt")
	if err := os.Link(built+"/gpreempt", command); err != nil {
		t.Fatal(err)
	}
	stand := func(where, name string) {
		t.Helper()
		script := "#!/bin/sh\necho " + name + " \"$@\"\nexit 7\n"
		if err := os.WriteFile(filepath.Join(where, benchName), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bench := func(path string) (out string, status int) {
		run := exec.Command(command, "bench", "--suite", "foundation", "--help", "a b")
		run.Env = []string{"PATH=" + path}
		text, _ := run.CombinedOutput() // the status says how it went
		return string(text), run.ProcessState.ExitCode()
	}
	if out, status := bench("/nowhere"); status != 127 || !strings.Contains(out, "gpreempt-bench is neither beside "+command+" nor on the PATH; make") {
		t.Errorf("without one: %d, %s", status, out)
	}
	elsewhere := t.TempDir()
	stand(elsewhere, "elsewhere")
	if out, status := bench("/nowhere:" + elsewhere); status != 7 || out != "elsewhere --suite foundation --help a b\n" {
		t.Errorf("on the PATH: %d, %s", status, out)
	}
	stand(folder, "beside")
	if out, status := bench(elsewhere); status != 7 || out != "beside --suite foundation --help a b\n" {
		t.Errorf("beside: %d, %s", status, out)
	}
}

// The command and the library are of few modules: nothing of the benchmarks, of containers' libraries, of Prometheus.
func TestModulesAreFew(t *testing.T) {
	const most = 15
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".", "../../shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	modules = slices.DeleteFunc(slices.Compact(modules), func(name string) bool { return name == "github.com/gpreempt/gpreempt" })
	if len(modules) < 5 || len(modules) > most {
		t.Errorf("%d modules, at most %d are few: %s", len(modules), most, strings.Join(modules, " "))
	}
}
