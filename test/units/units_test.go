// Package units runs the tests of single houses of the C core, without Go: NAME_test.c beside the code. The first line of
// such a file names the sources that it is linked with.
package units

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// tests are the C tests below preempt/, hints/ and exports/, from the root on.
func tests(t *testing.T) (list []string) {
	for _, house := range []string{"preempt", "hints", "exports"} {
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
func sources(t *testing.T, test string) (list []string) {
	text, err := os.ReadFile(test)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, names, found := strings.Cut(string(line), " - with ")
	if !found {
		t.Fatalf("%s: the first line must be // NAME_test.c - with SOURCE...", test)
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
	return append(list, test)
}

func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	for _, test := range tests(t) {
		for _, sanitizer := range []string{"", "-fsanitize=address,undefined", "-fsanitize=thread"} {
			t.Run(strings.TrimPrefix(test, root+"/")+sanitizer, func(t *testing.T) {
				program := filepath.Join(t.TempDir(), "test")
				build := exec.Command("cc", append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-I" + root, "-o", program}, sources(t, test)...)...)
				build.Args = append(build.Args, "-lpthread", "-lm")
				if sanitizer != "" {
					build.Args = append(build.Args, sanitizer)
				}
				if out, err := build.CombinedOutput(); err != nil {
					if sanitizer != "" {
						t.Skipf("no such sanitizer: %s", out)
					}
					t.Fatalf("cc: %v\n%s", err, out)
				}
				if out, err := exec.Command(program).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}
