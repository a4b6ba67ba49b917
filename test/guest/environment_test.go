package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// simulated is the environment of a program on the simulated driver, with a role, these mechanisms and libraries.
func simulated(t *testing.T, role, mechanisms string, preload ...string) []string {
	t.Helper()
	directory, err := filepath.Abs("../../build/sim")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "gpreempt.toml")
	text := fmt.Sprintf("mechanisms = [%q]\n[segment]\ndirectory = %q\n", mechanisms, t.TempDir())
	if mechanisms == "auto" {
		text = strings.NewReplacer("[\"auto\"]", "\"auto\"").Replace(text)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	preload = append(preload, filepath.Join(directory, "libcuda.so.1"))
	return []string{"GPREEMPT_CONFIG=" + config, "GPREEMPT_PRIORITY=" + role, "GPREEMPT_LOG=warn", "SIMCUDA_DIR=" + t.TempDir(),
		"LD_LIBRARY_PATH=" + directory, "XDG_CACHE_HOME=" + t.TempDir(), "LD_PRELOAD=" + strings.Join(preload, ":")}
}

// The library reads the variables that the driver reads when it initialises the driver, and not when it is loaded.
func TestVariablesThatTheProgramSets(t *testing.T) {
	program := cc(t, "late_variable", "testdata/late_variable.c", "-ldl")
	for _, test := range []struct {
		set, early string
		said       bool
	}{{"1", "", true}, {"0", "1", false}} {
		got := run(t, []string{program, "CUDA_FORCE_PTX_JIT", test.set}, append(simulated(t, "be", "blp", library(t)), "CUDA_FORCE_PTX_JIT="+test.early)...)
		if got.status != "exit status 0" || got.stdout != "0\n" || strings.Contains(got.stderr, "CUDA_FORCE_PTX_JIT") != test.said {
			t.Errorf("%q at the start, %q when CUDA is initialised: %v", test.early, test.set, got)
		}
	}
}

// A library that limits memory does so whatever the role, and whatever the memory of the program is made of.
func TestLimitsOfOthersHold(t *testing.T) {
	program := cc(t, "allocate", "testdata/allocate.c", "-ldl")
	quota := cc(t, "quota.so", "testdata/quota.c", "-shared", "-fPIC", "-ldl")
	for _, role := range []string{"off", "lc", "be"} {
		for _, mechanisms := range []string{"timeslice", "swap", "auto"} {
			for name, preload := range map[string][]string{"alone": {quota}, "behind": {library(t), quota}, "ahead": {quota, library(t)}} {
				got := run(t, []string{program}, simulated(t, role, mechanisms, preload...)...)
				if got.status != "exit status 0" || got.stdout != "4\n" {
					t.Errorf("role %s, %s, %s: %v", role, mechanisms, name, got)
				}
			}
		}
	}
}
