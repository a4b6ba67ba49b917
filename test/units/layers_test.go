package units

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// told are functions that a header declares for files above it to define. By them a lower file reports an event.
var told = map[string]string{
	"gp_thread_ends": "preempt/process/thread.h",
}

// calls says of each file of the C core, by its path without ".c", which functions of other files it uses, by file. Asks the objects that
// make has built.
func calls(t *testing.T) map[string]map[string][]string {
	t.Helper()
	var objects []string
	for _, house := range []string{"preempt", "hints", "exports"} {
		err := filepath.WalkDir(filepath.Join(root, house), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".c") && !strings.HasSuffix(path, "_test.c") && !strings.Contains(path, "/_") {
				objects = append(objects, strings.TrimSuffix(strings.TrimPrefix(path, root+"/"), ".c")+".o")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	nm := exec.Command("nm", append([]string{"--extern-only", "--format=posix"}, objects...)...)
	nm.Dir = filepath.Join(root, "build/c")
	symbols, err := nm.Output()
	if err != nil {
		t.Fatalf("nm of %d objects: %v; run make first", len(objects), err)
	}
	home, used, file := map[string]string{}, map[string][]string{}, ""
	for line := range strings.Lines(string(symbols)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 1:
			file = strings.TrimSuffix(fields[0], ".o:")
		case len(fields) > 1 && fields[1] == "U":
			used[file] = append(used[file], fields[0])
		case len(fields) > 1 && fields[1] == "T" && told[fields[0]] == "":
			home[fields[0]] = file
		}
	}
	calls := map[string]map[string][]string{}
	for file, names := range used {
		calls[file] = map[string][]string{}
		for _, name := range names {
			if to := home[name]; to != "" && to != file {
				calls[file][to] = append(calls[file][to], name)
			}
		}
	}
	return calls
}

// reach is the set of files that a file calls, also by way of others.
func reach(calls map[string]map[string][]string, from string) map[string]bool {
	reached := map[string]bool{}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for to := range calls[next[0]] {
			if !reached[to] {
				reached[to] = true
				next = append(next, to)
			}
		}
	}
	return reached
}

// A file that calls another one, and is called by it in turn, can only be understood together with it. There are few such files.
func TestCirclesOfFiles(t *testing.T) {
	const most = 2
	calls := calls(t)
	if len(calls) < 90 {
		t.Fatalf("%d files: these are not all", len(calls))
	}
	reached := map[string]map[string]bool{}
	for file := range calls {
		reached[file] = reach(calls, file)
	}
	for file := range calls {
		circle := []string{file}
		for other := range reached[file] {
			if other != file && reached[other][file] {
				circle = append(circle, other)
			}
		}
		slices.Sort(circle)
		if len(circle) > most && circle[0] == file && !strings.HasPrefix(file, "exports/") {
			t.Errorf("%s call each other", strings.Join(circle, ", "))
			for _, from := range circle {
				for to, names := range calls[from] {
					if slices.Contains(circle, to) {
						t.Logf("%s calls %s of %s", from, strings.Join(names, ", "), to)
					}
				}
			}
		}
	}
}

// The files of block-level preemption stand in preempt/blp/domain.h in an order: each calls only files above it.
func TestLayersOfBLP(t *testing.T) {
	const house, header = "preempt/blp/", "preempt/blp/domain.h"
	text, err := os.ReadFile(filepath.Join(root, header))
	if err != nil {
		t.Fatal(err)
	}
	_, layers, found := strings.Cut(string(text), "stand in layers")
	if !found {
		t.Fatalf("%s does not say where the layers begin", header)
	}
	place := map[string]int{}
	for i, section := range regexp.MustCompile(`(?m)^// (\w+)\.c\b`).FindAllStringSubmatch(layers, -1) {
		place[house+section[1]] = i + 1
	}
	if len(place) < 20 {
		t.Fatalf("%s has sections of %d files: these are not all", header, len(place))
	}
	calls := calls(t)
	for file, below := range place {
		if calls[file] == nil {
			t.Errorf("%s has a section of %s.c, and there is no such file", header, file)
		}
		for to, names := range calls[file] {
			if strings.HasPrefix(to, house) && to != house+"states" && (place[to] == 0 || place[to] > below) {
				t.Errorf("%s.c calls %s of %s.c, which is not above it in %s", file, strings.Join(names, ", "), to, header)
			}
		}
	}
}
