// Package units runs the tests of single houses of the C core, without Go: NAME_test.c beside the code. The first line of such a file names
// the sources that it is linked with. It says "with", or "interleaved with" where its threads run in every order.
package units

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const root = "../.."

// most is how long a program may run. They take seconds: one that takes longer hangs.
const most = 5 * time.Minute

// tests are the C tests, from the root on.
func tests(t *testing.T) (list []string) {
	for _, house := range []string{"preempt", "hints", "exports", "test/units"} {
		err := filepath.WalkDir(filepath.Join(root, house), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.c") {
				list = append(list, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(list) == 0 {
		t.Fatal("there are no tests")
	}
	return list
}

// sources are the sources that the first line of a test names.
func sources(t *testing.T, test string) (list []string, interleaved bool) {
	text, err := os.ReadFile(test)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	_, names, found := strings.Cut(line, " - with ")
	if !found {
		if _, names, interleaved = strings.Cut(line, " - interleaved with "); !interleaved {
			t.Fatalf("%s: the first line must be // NAME_test.c - with SOURCE... and a full stop, or interleaved with SOURCE...", test)
		}
	}
	for _, pattern := range strings.Fields(strings.TrimSuffix(names, ".")) {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(matches) == 0 {
			t.Fatalf("%s: %s: %v: no such file", test, pattern, err)
		}
		for _, source := range matches {
			if !strings.HasSuffix(source, "_test.c") {
				list = append(list, source)
			}
		}
	}
	return list, interleaved
}

// sanitizersOf are the sanitizers that a test runs under: the one for threads where it has several, the one for memory where it has one. With
// GPREEMPT_DEEP a test of several threads runs under both, and under none, at its own speed.
func sanitizersOf(threads bool) []string {
	const memory, races = "-fsanitize=address,undefined", "-fsanitize=thread"
	switch {
	case !threads:
		return []string{memory}
	case os.Getenv("GPREEMPT_DEEP") == "":
		return []string{races}
	}
	return []string{memory, races, ""}
}

// thread matches a call that starts a thread.
var thread = regexp.MustCompile(`(pthread_create|gp_thread_start)\(&`)

// hasThreads says whether any of a test's files starts a thread.
func hasThreads(t *testing.T, files []string) bool {
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return thread.Match(text)
	})
}

var common = []string{"-std=gnu11", "-O1", "-g1", "-Wall", "-I" + root}

func compile(arguments ...string) error {
	if out, err := exec.Command("cc", slices.Concat(common, arguments)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cc %s: %w\n%s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// objects are the objects of all tests. A source is compiled once with the same flags, and again when a file that it includes has changed.
type objects struct {
	mutex sync.Mutex
	made  map[string]func() (string, error)
}

var version = sync.OnceValues(func() ([]byte, error) { return exec.Command("cc", "--version").Output() })

// object compiles a source, unless an earlier run compiled the same text.
func object(source string, flags []string) (string, error) {
	text, err := exec.Command("cc", slices.Concat(common, flags, []string{"-E", source})...).Output()
	if err != nil {
		return "", fmt.Errorf("cc -E %s: %w", source, err)
	}
	compiler, err := version()
	if err != nil {
		return "", fmt.Errorf("cc --version: %w", err)
	}
	kept := filepath.Join(root, "build/units", fmt.Sprintf("%x.o", sha256.Sum256(fmt.Appendf(nil, "%s %q %q %s", compiler, common, flags, text))))
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return "", fmt.Errorf("keep objects: %w", err)
	}
	fresh := fmt.Sprintf("%s.%d", kept, os.Getpid())
	if err := compile(slices.Concat(flags, []string{"-c", source, "-o", fresh})...); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, kept); err != nil { // whole or not at all, for runs at once
		return "", fmt.Errorf("keep objects: %w", err)
	}
	return kept, nil
}

func (o *objects) of(t *testing.T, source string, flags ...string) string {
	t.Helper()
	o.mutex.Lock()
	key := fmt.Sprint(source, flags)
	if o.made[key] == nil {
		o.made[key] = sync.OnceValues(func() (string, error) { return object(source, flags) })
	}
	made := o.made[key]
	o.mutex.Unlock()
	path, err := made()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run links a test and runs it. If a sanitizer is missing the test fails: else its findings would stay unseen.
func run(t *testing.T, arguments ...string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "test")
	if err := compile(append(arguments, "-o", program, "-lpthread", "-lm")...); err != nil {
		t.Fatal(err)
	}
	limit, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	out, err := exec.CommandContext(limit, program).CombinedOutput()
	switch {
	case limit.Err() != nil:
		t.Errorf("it has not ended within %v\n%s", most, out)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	default:
		t.Logf("%s", bytes.TrimSpace(out))
	}
}

func TestUnits(t *testing.T) {
	made := &objects{made: map[string]func() (string, error){}}
	for _, test := range tests(t) {
		sources, interleaved := sources(t, test)
		files := append(sources, test)
		name := strings.TrimPrefix(test, root+"/")
		if interleaved {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				interleave(t, made, files)
			})
			continue
		}
		for _, sanitizer := range sanitizersOf(hasThreads(t, files)) {
			t.Run(name+sanitizer, func(t *testing.T) {
				t.Parallel()
				flags := strings.Fields(sanitizer)
				arguments := slices.Clone(flags)
				for _, file := range files {
					arguments = append(arguments, made.of(t, file, flags...))
				}
				run(t, arguments...)
			})
		}
	}
}

// interleave builds a test whose files tell of their accesses (interleave.c), and runs it.
func interleave(t *testing.T, made *objects, files []string) {
	scheduler := filepath.Join(root, "test/units/interleave/interleave.c")
	arguments := []string{"-no-pie", made.of(t, scheduler, "-fno-pie")}
	for _, file := range files {
		if file != scheduler {
			arguments = append(arguments, made.of(t, file, "-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-fno-pie"))
		}
	}
	run(t, arguments...)
}
