package dist

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The C core's tests of single houses, on arm64. Two are not for an emulator: one starts itself again, which the kernel refuses,
// and one counts descriptors, of which qemu keeps those that a message has too many of.
func TestUnitsOnArm64(t *testing.T) {
	m := newMachine(t, "arm64")
	libgcc := filepath.Join(debian(t, "libgcc-s1-arm64-cross"), "usr/aarch64-linux-gnu/lib") // pthread_exit loads it
	tests, err := filepath.Glob(filepath.Join(root, "preempt/*/*_test.c"))
	if err != nil || len(tests) < 10 {
		t.Fatalf("%d tests, %v", len(tests), err)
	}
	for _, test := range tests {
		name := strings.TrimSuffix(filepath.Base(test), ".c")
		if slices.Contains([]string{"move_test", "ticket_socket_test"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(test)
			if err != nil {
				t.Fatal(err)
			}
			line, _, _ := strings.Cut(string(text), "\n")
			_, patterns, _ := strings.Cut(line, " - with ")
			program := filepath.Join(m.dir, name)
			arguments := []string{"cc", "-target", m.target, "-std=gnu11", "-O1", "-I.", "-o", program, test}
			for _, pattern := range strings.Fields(patterns) {
				sources, err := filepath.Glob(filepath.Join(root, pattern))
				if err != nil || len(sources) == 0 {
					t.Fatalf("%s: %v: no such file", pattern, err)
				}
				arguments = append(arguments, slices.DeleteFunc(sources, func(source string) bool { return strings.HasSuffix(source, "_test.c") })...)
			}
			compile(t, append(arguments, "-lpthread")...)
			command := m.command("", nil, program)
			command.Env = append(command.Env, "LD_LIBRARY_PATH="+libgcc)
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("%q: %v\n%s", command.Args, err, out)
			}
		})
	}
}
