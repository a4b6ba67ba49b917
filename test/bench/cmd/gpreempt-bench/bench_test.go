package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/test/bench"
)

// built holds the command.
var built string

func TestMain(m *testing.M) {
	os.Exit(clitest.Main(m, &built, ".", func(string) error { return nil }))
}

type outcome struct {
	status         int
	stdout, stderr string
}

// run runs the command in an empty directory with a clean environment plus env.
func run(t *testing.T, env []string, arguments ...string) outcome {
	t.Helper()
	status, stdout, stderr := clitest.Run(t, built+"/gpreempt-bench", env, arguments...)
	return outcome{status, stdout, stderr}
}

// simulated is the environment of a command that finds the simulated driver.
func simulated(t *testing.T) []string {
	t.Helper()
	driver, err := filepath.Abs("../../../../build/sim/libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{driver, "../../../../build/gpreempt-bench", "../../../../build/libgpreempt.so"} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("not built: %v; make builds it", err)
		}
	}
	return []string{"LD_PRELOAD=" + driver, "LD_LIBRARY_PATH=" + filepath.Dir(driver), "SIMCUDA_DIR=" + t.TempDir()}
}

// An option that would be passed over is an error, for it was given for a reason.
func TestBenchRefusesOptions(t *testing.T) {
	for _, c := range []struct {
		options, want string
	}{
		{"--suite foundation --seconds 3", `--seconds does not apply to suite "foundation"`},
		{"--suite identity --requests 3", `--requests does not apply to suite "identity"`},
		{"--suite blp-mps --systems mps", `--systems does not apply to suite "blp-mps"`},
		{"--suite blp-fire --requests 3", `--requests does not apply to suite "blp-fire"`},
		{"--suite blp-fire --repeats 2", `--repeats does not apply to suite "blp-fire"`},
		{"--suite paper --plan --minutes 1", "--minutes does not apply to --plan"},
		{"--suite foundation --requests 0", "--requests 0: must be more than 0"},
		{"--suite paper --seconds -1", "--seconds -1: must be more than 0"},
		{"--suite slow", `no suite "slow"; there are foundation`},
		{"--suite blp-mps --only idle", `--only: suite "blp-mps" has no case "idle"; --suite blp-mps --plan lists them`},
		{"--suite paper --plan --systems slow", `--systems: no system "slow"; there are default, `},
		{"--requests 3", "which suite? --suite names it"},
		{"--seconds x", `--seconds "x": must be a number`},
		{"foundation", `"foundation": there are no arguments here; --suite names what is measured`},
	} {
		r := run(t, nil, strings.Fields(c.options)...)
		if r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%s: %+v, want 2 and %s", c.options, r, c.want)
		}
	}
	for options, want := range map[string]string{"": "\nUsage: gpreempt bench", "--plan": "  foundation  "} {
		if r := run(t, nil, strings.Fields(options)...); r.status != 0 || !strings.Contains(r.stdout, want) || r.stderr != "" {
			t.Errorf("%q without a suite: %+v", options, r)
		}
	}
	for _, options := range []string{"--suite paper --plan --seconds 1 --repeats 2", "--suite stalls --plan --requests 100",
		"--suite stalls --plan --only load-50", "--suite blp-fire --plan --only fire-graphs"} {
		if r := run(t, nil, strings.Fields(options)...); r.status != 0 || r.stdout == "" {
			t.Errorf("%s: %+v", options, r)
		}
	}
	known := map[string]bool{}
	for _, suite := range bench.Suites {
		if r := run(t, nil, "--suite", suite.Name, "--plan"); r.status != 0 || r.stdout == "" {
			t.Errorf("--suite %s --plan: %+v", suite.Name, r)
		}
		measureCommand().Flags().VisitAll(func(flag *pflag.Flag) { known[flag.Name] = known[flag.Name] || suite.HasFlag(flag.Name) })
	}
	for name, isKnown := range known {
		if !isKnown && name != "version" {
			t.Errorf("no suite has --%s", name)
		}
	}
}

// broken is a library that ends every process which it is preloaded into as lc or be.
func broken(t *testing.T) string {
	t.Helper()
	source := clitest.Write(t, "broken.c", `#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void __attribute__((constructor)) end(void)
{
	const char *role = getenv("GPREEMPT_PRIORITY");
	if (role && strcmp(role, "off"))
		_exit(3);
}
`)
	library := filepath.Join(t.TempDir(), "libgpreempt.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return library
}

// The exit status shows that a case could not be measured; cases that were are printed and kept.
func TestBenchSaysWhatFailed(t *testing.T) {
	env, library := simulated(t), broken(t)
	results := filepath.Join(t.TempDir(), "results.json")
	folder := t.TempDir()
	r := run(t, env, "--suite", "foundation", "--only", "be-alone", "--library", library, "--out", folder, "--json", results)
	if r.status != 1 || !strings.Contains(r.stderr, "1 cases could not be measured") || strings.Count(r.stdout, "MISSED: ") != 1 {
		t.Errorf("cases: %+v", r)
	}
	if text, err := os.ReadFile(results); err != nil || !bytes.Contains(text, []byte("be-alone")) {
		t.Errorf("the results: %v\n%s", err, text)
	}
	if again := run(t, nil, "report", folder); again.status != 0 || again.stdout != r.stdout {
		t.Errorf("the report: %+v, want %s", again, r.stdout)
	}
	if into := run(t, nil, "report", folder, "--into", folder); into.status != 0 || into.stdout != folder+"/simulated-h200-foundation.json\n" {
		t.Errorf("the report into a folder: %+v", into)
	}
	torch, err := filepath.Abs("../../testdata/python") // a stand-in
	if err != nil {
		t.Fatal(err)
	}
	r = run(t, append(env, "PYTHONPATH="+torch, "PYTHONDONTWRITEBYTECODE=1"), "--suite", "paper", "--only", "A", "--systems", "default,gpreempt", "--seconds", "0.5",
		"--repeats", "1", "--library", library, "--out", t.TempDir())
	if r.status != 1 || !strings.Contains(r.stderr, "1 cases could not be measured, or not to the end: A under gpreempt") || !strings.Contains(r.stdout, "default") {
		t.Errorf("an evaluation: %+v", r)
	}
	if none := run(t, nil, "report", t.TempDir()); none.status != 1 || !strings.Contains(none.stderr, "no partial results of any suite") {
		t.Errorf("the report of nothing: %+v", none)
	}
}

// The table and the exit status show cases that there was no time for.
func TestBenchSaysWhatItLeft(t *testing.T) {
	env := simulated(t)
	library, err := filepath.Abs("../../../../build/libgpreempt.so")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, env, "--suite", "blp-stream", "--only", "stream-10us-blocks,stream-100us-blocks", "--requests", "1", "--minutes", "0.001", "--library", library,
		"--out", t.TempDir())
	if r.status != 3 || !strings.Contains(r.stdout, "alone") || !strings.Contains(r.stdout, "NOT WHOLE, there was no time for 1: stream-100us-blocks\n") ||
		!strings.Contains(r.stderr, "the same command goes on with them: stream-100us-blocks\n") {
		t.Errorf("a part: %+v", r)
	}
}

// A library that does not load would be measured as one that costs nothing.
func TestBenchWantsALibraryThatLoads(t *testing.T) {
	none := clitest.Write(t, "libgpreempt.so", "no library")
	r := run(t, simulated(t), "--suite", "foundation", "--library", none)
	if r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, none+" does not load") {
		t.Errorf("%+v", r)
	}
}

// An interruption ends the command with the status that a shell expects, and it says how to go on.
func TestBenchIsInterrupted(t *testing.T) {
	folder := t.TempDir()
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		command := exec.Command(built+"/gpreempt-bench", "--suite", "foundation", "--only", "four-be", "--out", folder, "--library", "../../../../build/libgpreempt.so")
		command.Env = append(os.Environ(), simulated(t)...)
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		said := ""
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said += lines.Text() + "\n"
			if strings.Contains(lines.Text(), "four-be: begins, takes about") {
				if err := command.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = command.Wait() // the status says how it went
		if got := command.ProcessState.ExitCode(); got != status || !strings.Contains(said, "interrupted; what was measured is in "+folder+", and the same command goes on from there") {
			t.Errorf("%v: status %d, %s", signal, got, said)
		}
	}
}

// Where results cannot be written nothing is measured.
func TestBenchChecksPathsFirst(t *testing.T) {
	env := simulated(t)
	library, err := filepath.Abs("../../../../build/libgpreempt.so")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, test := range []struct{ out, file, want string }{
		{"/dev/null/parts", "", "--out /dev/null/parts: make the folder of results"},
		{folder, "/none/results.json", "--json /none/results.json: write results"},
		{folder, folder, "--json " + folder + ": write results: " + folder + " is there and is no file"},
	} {
		options := []string{"--suite", "foundation", "--library", library, "--out", test.out}
		if test.file != "" {
			options = append(options, "--json", test.file)
		}
		if r := run(t, env, options...); r.status != 1 || r.stdout != "" || !strings.Contains(r.stderr, test.want) || strings.Contains(r.stderr, "looks at the GPU") {
			t.Errorf("%+v: %+v", test, r)
		}
	}
}
