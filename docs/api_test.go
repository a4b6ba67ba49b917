package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The programs of api.md compile without a warning, and run without the library, as they are printed.
func TestProgramsOfTheAPIRun(t *testing.T) {
	t.Parallel()
	page, dir := text(t, "docs/api.md"), t.TempDir()
	api, err := filepath.Abs(filepath.Join(root, "api"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, arguments ...string) {
		t.Helper()
		command := exec.Command(name, arguments...)
		command.Dir = dir
		command.Env = append(os.Environ(), "PYTHONPATH="+api+"/python", "PYTHONDONTWRITEBYTECODE=1", "LD_PRELOAD=")
		if said, err := command.CombinedOutput(); err != nil || len(said) == 0 && name != "gcc" && name != "g++" {
			t.Errorf("%s %q: %v\n%s", name, arguments, err, said)
		}
	}
	programs := map[string]int{}
	for _, block := range regexp.MustCompile("(?ms)^```(c|python)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		programs[block[1]]++
		source := filepath.Join(dir, "program."+block[1])
		if err := os.WriteFile(source, []byte(block[2]), 0o644); err != nil {
			t.Fatal(err)
		}
		if block[1] == "python" {
			run("python3", "-W", "error", "-c", block[2]+"\nprint()")
			continue
		}
		run("gcc", "-std=c99", "-Wall", "-Wextra", "-Waddress", "-Werror", "-I", api, "-o", "program", source)
		run("sh", "-c", "./program && echo")
	}
	if programs["c"] < 2 || programs["python"] < 3 {
		t.Errorf("%v programs: the expression is wrong", programs)
	}
	for _, name := range regexp.MustCompile(`(?m)^extern int (gpreempt_\w+)`).FindAllStringSubmatch(text(t, "api/gpreempt.h"), -1) {
		if rest, of := strings.CutPrefix(name[1], "gpreempt_stream"); !strings.Contains(page, "`"+name[1]+"`") && (!of || !strings.Contains(page, "`"+rest+"`")) {
			t.Errorf("api.md does not name %s", name[1])
		}
	}
	_, names, _ := strings.Cut(text(t, "api/python/gpreempt.py"), "__all__ = [")
	names, _, _ = strings.Cut(names, "]")
	for _, name := range regexp.MustCompile(`"([a-z_]+)"`).FindAllStringSubmatch(names, -1) {
		if !strings.Contains(page, "`"+name[1]+"`") {
			t.Errorf("api.md does not name %s of the Python module", name[1])
		}
	}
	// The bounds are the configuration's.
	run("python3", "-c", `import gpreempt
for wrong in [{"slowdown": 0.9}, {"slowdown": 21}, {"step_ms": 0.09}, {"step_ms": 60001}, {"slowdown": 1.5, "step_ms": 20},
              {"slowdown": 1.5, "first_ms": 0.05}, {"slowdown": 1.5, "first_ms": 60001}, {"first_ms": 200}, {"step_ms": float("nan")}]:
    try: gpreempt.objective(**wrong)
    except ValueError as error: print(error)
    else: raise SystemExit(f"{wrong} is taken")
for right in [{"step_ms": 0.1, "first_ms": 0.1}, {"slowdown": 20, "first_ms": 60000}, {"step_ms": 60000}, {}]:
    gpreempt.objective(**right)`)
	// A string would be run letter by letter.
	run("python3", "-c", "import gpreempt\ntry:\n    gpreempt.run('true')\nexcept TypeError as error:\n    print(error)")
	run("python3", "-c", `import gpreempt
try: gpreempt.enable("foo")
except TypeError as error: said = str(error)
assert said.startswith("stream = 'foo': must be a stream of torch, "), said
print(said)`)
}
