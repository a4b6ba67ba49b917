// Package units runs the tests of single houses of the C core, without Go: NAME_test.c beside the code. The first line of
// such a file names the sources that it is linked with, and says "with", or "interleaved with" where its threads run in every order.
package units

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// sources are those that the first line of a test names.
func sources(t *testing.T, test string) (list []string, interleaved bool) {
	text, err := os.ReadFile(test)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	_, names, found := strings.Cut(line, " - with ")
	if !found {
		if _, names, interleaved = strings.Cut(line, " - interleaved with "); !interleaved {
			t.Fatalf("%s: the first line must be // NAME_test.c - with SOURCE..., or interleaved with SOURCE...", test)
		}
	}
	for _, pattern := range strings.Fields(names) {
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

func compile(arguments ...string) error {
	flags := []string{"-std=gnu11", "-O1", "-g", "-Wall", "-I" + root}
	if out, err := exec.Command("cc", append(flags, arguments...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cc %s: %w\n%s", strings.Join(arguments, " "), err, out)
	}
	return nil
}

// run builds a test with the flags of a sanitizer, if any, and runs it.
func run(t *testing.T, program string, arguments ...string) {
	t.Helper()
	if err := compile(append(arguments, "-o", program, "-lpthread", "-lm")...); err != nil {
		t.Fatal(err) // also where a sanitizer is missing: what it would find stays unseen
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
	for _, test := range tests(t) {
		sources, interleaved := sources(t, test)
		name := strings.TrimPrefix(test, root+"/")
		if interleaved {
			t.Run(name, func(t *testing.T) { interleave(t, test, sources) })
			continue
		}
		for _, sanitizer := range []string{"", "-fsanitize=address,undefined", "-fsanitize=thread"} {
			t.Run(name+sanitizer, func(t *testing.T) {
				arguments := append(sources, test)
				if sanitizer != "" {
					arguments = append(arguments, sanitizer)
				}
				run(t, filepath.Join(t.TempDir(), "test"), arguments...)
			})
		}
	}
}

// interleave builds a test whose sources tell of their accesses (interleave.c), and runs it.
func interleave(t *testing.T, test string, sources []string) {
	folder := t.TempDir()
	scheduler := filepath.Join(root, "test/units/interleave/interleave.c")
	objects := []string{scheduler, "-no-pie"}
	for i, source := range append(sources, test) {
		if source == scheduler {
			continue
		}
		object := filepath.Join(folder, fmt.Sprintf("%d.o", i))
		if err := compile("-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-fno-pie", "-c", source, "-o", object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	run(t, filepath.Join(folder, "test"), objects...)
}
