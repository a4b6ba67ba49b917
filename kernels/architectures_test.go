package kernels_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
)

// TestArchitectures compares the list with what is committed: guard.json and every fatbin hold code for each of them.
func TestArchitectures(t *testing.T) {
	var listed []int
	for _, a := range kernels.Architectures() {
		listed = append(listed, a.SM)
	}
	text, err := os.ReadFile("architectures.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		columns := strings.Fields(line)
		if columns[0] == "#" {
			continue
		}
		sm, err := strconv.Atoi(columns[0])
		if err != nil || len(columns) < 3 || !slices.Contains(listed, sm) || columns[1] != "measured" && columns[1] != "expected" {
			t.Errorf("architectures.txt: %q: must be a number, measured or expected, and names of GPUs", line)
		}
	}
	if !slices.IsSorted(listed) || len(slices.Compact(slices.Clone(listed))) != len(listed) || len(listed) == 0 {
		t.Errorf("architectures.txt lists %v: must be rising", listed)
	}
	out, err := exec.Command("./architectures.sh").Output()
	if err != nil || strings.Trim(strings.ReplaceAll(string(out), "\n", ","), ",") != joined(listed) {
		t.Errorf("architectures.sh prints %q, %v", out, err)
	}
	var guards []patch.Guard
	if err := json.Unmarshal(kernels.Guard, &guards); err != nil {
		t.Fatal(err)
	}
	var guarded []int
	for _, g := range guards {
		guarded = append(guarded, g.SM)
	}
	if !slices.Equal(guarded, listed) {
		t.Errorf("guard.json is for %v, the list has %v: make generate", guarded, listed)
	}
	known, err := patch.ParseGuards(kernels.Guard)
	if err != nil {
		t.Fatal(err)
	}
	fatbins, err := filepath.Glob("*.fatbin")
	if err != nil || len(fatbins) == 0 {
		t.Fatal(fatbins, err)
	}
	for _, path := range fatbins {
		image, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, entries, err := patch.Fatbin(image, patch.Options{Guards: known})
		if err != nil {
			t.Fatal(err)
		}
		var cubins, ptx []int
		for _, e := range entries {
			if e.Kind == "ptx" {
				ptx = append(ptx, e.SM)
			} else {
				cubins = append(cubins, e.SM)
			}
		}
		if !slices.Equal(cubins, listed) || !slices.Equal(ptx, listed[:1]) {
			t.Errorf("%s has cubins for %v and PTX for %v, the list has %v: make generate", path, cubins, ptx, listed)
		}
	}
}

func joined(list []int) string {
	var texts []string
	for _, n := range list {
		texts = append(texts, strconv.Itoa(n))
	}
	return strings.Join(texts, ",")
}
