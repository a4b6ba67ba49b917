package units

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every C name that other files can use has the prefix that CONTRIBUTING.md gives it, or is one that programs call
// (exports/exports.map). Asks the objects that make has built.
func TestNames(t *testing.T) {
	exported, err := os.ReadFile(filepath.Join(root, "exports/exports.map"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, house := range []string{"preempt", "hints", "exports"} {
		err := filepath.WalkDir(filepath.Join(root, house), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".c") || strings.HasSuffix(path, "_test.c") {
				return err
			}
			source, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			object := filepath.Join(root, "build/c", strings.TrimSuffix(source, ".c")+".o")
			names, err := exec.Command("nm", "--defined-only", "--extern-only", "--format=just-symbols", object).Output()
			if err != nil {
				t.Fatalf("nm %s: %v; run make first", object, err)
			}
			for _, name := range strings.Fields(string(names)) {
				checked++
				ours := strings.HasPrefix(name, "gp_") || strings.HasPrefix(name, "gpreempt_") ||
					(strings.HasPrefix(name, "blp_") && filepath.Dir(source) == "preempt/blp") ||
					strings.HasPrefix(name, "__wrap_") // the linker's name for a replacement (-Wl,--wrap)
				if !ours && !strings.Contains(string(exported), "\t"+name+";\n") {
					t.Errorf("%s: %s has no prefix, or another house's", source, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 500 {
		t.Errorf("%d names: these are not all", checked)
	}
}
