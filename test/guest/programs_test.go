package guest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// installed is the path of a program. CI has those that are needed (.ci/run).
func installed(t *testing.T, name string, needed bool) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && needed && os.Getenv("GPREEMPT_CI") != "" {
		t.Fatalf("%v: .ci/run installs it", err)
	}
	if err != nil {
		t.Skip(err)
	}
	return path
}

// Others see nothing of the library in a process without a role: not in its threads, signals, descriptors, nor in its output.
func TestNothingIsSeen(t *testing.T) {
	state := cc(t, "state", "testdata/state.c", "-lpthread")
	lines := "grep -E '^(Threads|Sig[^Q]|ShdPnd)' /proc/self/status; ls /proc/self/fd"
	for _, command := range [][]string{
		{state},
		{"sh", "-c", "trap : USR1; " + lines + "; " + state},
		// The shell reads its own masks: a child might see them while the shell is between fork and wait.
		{"bash", "-c", "trap : USR1; " + lines + "; while read -r line; do case $line in Threads* | Sig[!Q]*) echo \"$line\" ;; esac; done </proc/$$/status; " +
			"ls /proc/$$/fd; kill -USR1 $$; (exit 3) | cat; exit 5"},
		{"sh", "-c", "kill -SEGV $$"},
		{"setpriv", "--no-new-privs", state},
	} {
		t.Run(filepath.Base(command[0]), func(t *testing.T) { same(t, command) })
	}
}

func TestLanguages(t *testing.T) {
	java := filepath.Join(t.TempDir(), "State.java")
	if err := os.WriteFile(java, []byte(`import java.nio.file.*;
class State {
	public static void main(String[] args) throws Exception {
		for (String line : Files.readAllLines(Path.of("/proc/self/status")))
			if (line.matches("Sig[^Q].*")) System.out.println(line);
		System.out.println(new ProcessBuilder("/bin/echo", "child").start().waitFor());
	}
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `for line in open("/proc/self/status"):
    if line.startswith(("SigP", "SigB", "SigI", "SigC", "Threads")): print(line, end="")
import os, ctypes, subprocess, threading, json, ssl, sqlite3
print(sorted(os.listdir("/proc/self/fd")))
ctypes.CDLL(None).getpid()
threading.Thread(target=lambda: print(subprocess.run(["echo", "child"], capture_output=True).stdout)).start()`
	node := `const fs = require("fs");
for (const line of fs.readFileSync("/proc/self/status", "utf8").split("\n")) if (/^(Sig[^Q]|Threads)/.test(line)) console.log(line);
console.log(require("child_process").execSync("echo child").toString());`
	for _, test := range []struct {
		name    string
		command []string
	}{
		{"python3", []string{"-c", script}},
		{"node", []string{"-e", node}},
		{"java", []string{"-XX:TieredStopAtLevel=1", java}},
		{"perl", []string{"-e", `$SIG{ALRM} = sub { print "alarm\n" }; kill "ALRM", $$; print qx(echo child)`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			same(t, append([]string{installed(t, test.name, false)}, test.command...))
		})
	}
	t.Run("go", func(t *testing.T) {
		t.Parallel()
		program := filepath.Join(t.TempDir(), "goprogram")
		build := exec.Command("go", "build", "-o", program, "./testdata/goprogram")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		same(t, []string{program})
	})
}

// Tools that look into programs, and other ways to load libraries, see no difference.
func TestTools(t *testing.T) {
	program := cc(t, "sanitized", "testdata/sanitized.c", "-ldl", "-lpthread")
	static := cc(t, "static_pie", "-static-pie", "testdata/small_stack.c", "-lpthread")
	other := cc(t, "namespace", "testdata/namespace.c", "-ldl", "-lpthread")
	t.Run("static-pie", func(t *testing.T) { same(t, []string{static}) })
	for _, how := range []string{"dlmopen", "deepbind"} {
		t.Run(how, func(t *testing.T) {
			same(t, []string{other, how, library(t)})
			for _, role := range []string{"off", "lc"} {
				if got := same(t, []string{other, how, "libm.so.6"}, "GPREEMPT_PRIORITY="+role); got.stdout != "opened 1.0\n" {
					t.Errorf("role %s: %v", role, got)
				}
			}
		})
	}
	t.Run("valgrind", func(t *testing.T) {
		command := []string{installed(t, "valgrind", true), "-q", "--error-exitcode=9", "--leak-check=full", program}
		for _, role := range []string{"off", "lc"} { // the second looks for CUDA in vain
			if got := same(t, command, "GPREEMPT_PRIORITY="+role); got.status != "exit status 0" {
				t.Errorf("role %s: %v", role, got)
			}
		}
	})
	t.Run("gdb", func(t *testing.T) {
		command := []string{installed(t, "gdb", true), "-q", "-batch", "-nx", "-ex", "set style enabled off", "-ex", "set print thread-events off", "-ex", "break main", "-ex", "run",
			"-ex", "bt", "-ex", "info threads", "-ex", "continue", program}
		numbers := regexp.MustCompile(`0x[0-9a-f]+|\b(LWP|process) [0-9]+`)
		without, with := run(t, command), run(t, command, "LD_PRELOAD="+library(t))
		for _, r := range []*result{&without, &with} {
			r.stdout = regexp.MustCompile(" +").ReplaceAllString(numbers.ReplaceAllString(r.stdout, "N"), " ") // a table is as wide as its numbers
		}
		if with != without || !strings.Contains(with.stdout, "read 1.0 0") {
			t.Errorf("without the library: %v\nwith it: %v", without, with)
		}
	})
}

// Programs of /usr/bin, each asked for its version, print the same and end alike.
func TestProgramsOfTheSystem(t *testing.T) {
	const most, atOnce = 200, 4
	paths, err := filepath.Glob("/usr/bin/*")
	if err != nil {
		t.Fatal(err)
	}
	chosen := make(chan string)
	var done sync.WaitGroup
	for range atOnce {
		done.Go(func() {
			for path := range chosen {
				without, again := run(t, []string{path, "--version"}), run(t, []string{path, "--version"})
				with := run(t, []string{path, "--version"}, "LD_PRELOAD="+library(t))
				if without == again && with != without { // else it prints the time, or the like
					t.Errorf("%s:\nwithout the library: %v\nwith it: %v", path, without, with)
				}
			}
		})
	}
	programs := 0
	for _, path := range paths {
		if programs < most && isProgram(path) {
			programs++
			chosen <- path
		}
	}
	close(chosen)
	done.Wait()
	if programs < 50 {
		t.Errorf("%d programs: these are not all", programs)
	}
}

// isProgram says whether a file is one that loads the library: linked dynamically, not set-user-ID, and not a script.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || info.Mode()&0o111 == 0 {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	start := make([]byte, 1<<10)
	_, _ = file.Read(start)
	return bytes.HasPrefix(start, []byte("\x7fELF")) && strings.Contains(string(start), "/ld-")
}
