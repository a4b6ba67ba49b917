package guest

import (
	"os/exec"
	"strings"
	"testing"
)

// Runtimes of sanitizers look libc's functions up before anything else runs. The library may come before the runtime or behind it.
func TestSanitizers(t *testing.T) {
	const want = "read 1.0 0\n"
	for _, test := range []struct {
		name, runtime string
		variables     []string
	}{
		{"address", "libasan.so", []string{"ASAN_OPTIONS=verify_asan_link_order=0"}},
		{"thread", "libtsan.so", nil},
		{"undefined", "libubsan.so", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			program := cc(t, "sanitized", "-fsanitize="+test.name, "testdata/sanitized.c", "-ldl", "-lpthread")
			static := cc(t, "static", "-fsanitize="+test.name, "-static-lib"+strings.TrimSuffix(strings.TrimPrefix(test.runtime, "lib"), ".so"),
				"testdata/sanitized.c", "-ldl", "-lpthread")
			path, err := exec.Command("cc", "-print-file-name="+test.runtime).Output()
			if err != nil {
				t.Fatal(err)
			}
			runtime := strings.TrimSpace(string(path))
			for _, role := range []string{"off", "lc"} {
				variables := append([]string{"GPREEMPT_PRIORITY=" + role}, test.variables...)
				for _, got := range []result{same(t, []string{program}, variables...), same(t, []string{static}, variables...),
					run(t, []string{program}, append(variables, "LD_PRELOAD="+runtime+":"+library(t))...)} {
					if got.status != "exit status 0" || got.stdout != want {
						t.Errorf("role %s: %v", role, got)
					}
				}
			}
		})
	}
}
