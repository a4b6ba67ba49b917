package exports_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// testdata/versions.txt has the functions of the drivers of each CUDA version. Every function that puts work on streams is exported, in as
// many forms as there are, up to the version that hooks.h names. By its name each could be told from the others.
func TestDriverFunctions(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	exported := map[string]bool{}
	for _, word := range strings.FieldsFunc(read("../../exports/exports.map"), func(r rune) bool { return strings.ContainsRune(" \t\n;{}", r) }) {
		exported[word] = true
	}
	forms, newest, others := map[string]int{}, 0, []string{}
	for _, line := range strings.Split(read("testdata/versions.txt"), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		version, err := strconv.Atoi(words[0])
		if err != nil {
			t.Fatal(err)
		}
		newest = max(newest, version)
		if version == 0 {
			others = append(others, words[1:]...)
			continue
		}
		for _, name := range words[1:] {
			forms[name]++
		}
	}
	if known := "#define GP_NEWEST_DRIVER " + strconv.Itoa(newest) + "\n"; !strings.Contains(read("../../preempt/driver/hooks.h"), known) {
		t.Errorf("hooks.h does not say %q", known)
	}
	program := filepath.Join(t.TempDir(), "names")
	main := filepath.Join(t.TempDir(), "main.c")
	if err := os.WriteFile(main, []byte(`#include "exports/layer.h"
#include <stdio.h>
int main(void) { for (char name[128]; scanf("%127s", name) == 1;) printf("%s %d\n", name, gp_may_submit(name)); }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-std=gnu11", "-I../..", "-o", program, main, "../../exports/names.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	var all []string
	for name := range forms {
		all = append(all, name)
	}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(strings.Join(append(all, others...), "\n"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(all) < 100 || len(others) < 100 || len(said) != len(all)+len(others) {
		t.Fatalf("%d and %d functions, %d answers", len(all), len(others), len(said))
	}
	for _, line := range said {
		name, may, _ := strings.Cut(line, " ")
		if want := forms[name] > 0; (may == "1") != want {
			t.Errorf("%s: may put work on streams: %s, want %t", name, may, want)
		}
	}
	for name, want := range forms {
		base, thread, is := strings.Cut(name, "_pt")
		if is {
			thread = "_pt" + thread
		}
		have := 0
		for _, form := range []string{"", "_v2", "_v3", "_v4"} {
			if exported[base+form+thread] {
				have++
			}
		}
		if have < want {
			t.Errorf("%s: %d of %d forms are exported", name, have, want)
		}
	}
}
