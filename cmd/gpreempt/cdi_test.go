package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/inject"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The description of devices, for a library and a command of an x86-64 host. -update writes it.
func TestCDIIsGolden(t *testing.T) {
	files := cdiFiles{
		library: "/usr/lib/gpreempt/lib/libgpreempt.so", command: "/usr/bin/gpreempt",
		segmentHost: "/dev/shm/gpreempt-1000", segmentInside: "/dev/shm/gpreempt-0",
	}
	for name, spec := range map[string]any{
		"role": cdiSpec(files, true), "files": cdiSpec(files, false),
		"preload": cdiSpec(cdiFiles{library: files.library, command: files.command, preload: []string{"/usr/lib/libjemalloc.so.2", "/x.so"}}, true),
	} {
		got, err := json.MarshalIndent(spec, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(got), filepath.Base(filepath.Dir(inject.Libraries()[2])), "x86_64-linux-gnu") + "\n"
		golden := filepath.Join("testdata", "cdi", name+".json")
		if *update {
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != text {
			t.Errorf("%s is not current (%v): go test ./cmd/gpreempt -run TestCDI -update", golden, err)
		}
	}
}

// A directory of another user, or one open to others, is mounted into no container.
func TestCDIRefusesDirectories(t *testing.T) {
	folder := t.TempDir()
	config := write(t, "gpreempt.toml", fmt.Sprintf("[segment]\ndirectory = %q\n", folder))
	if err := os.Mkdir(segment.Directory(folder, os.Geteuid()), 0o755); err != nil {
		t.Fatal(err)
	}
	r := gpreempt(t, []string{"GPREEMPT_CONFIG=" + config}, "cdi", "generate", "--glibc", "2.99", "--output", filepath.Join(folder, "cdi"))
	if _, err := os.Stat(filepath.Join(folder, "cdi")); r.status == 0 || !strings.Contains(r.stderr, "mode 0755; must be") || !os.IsNotExist(err) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCDIRefuses(t *testing.T) {
	file := write(t, "file", "")
	for _, c := range []struct {
		arguments []string
		want      []string
	}{
		{[]string{"cdi"}, []string{"gpreempt cdi generate"}},
		{[]string{"cdi", "generate", "--with-preload", "a.so"}, []string{`--with-preload "a.so"`, "absolute path"}},
		{[]string{"cdi", "generate", "--with-preload", "/a.so:/b.so"}, []string{`--with-preload "/a.so:/b.so"`, "colons"}},
		{[]string{"cdi", "generate", "--user", "-1"}, []string{"--user -1", "from 0 on"}},
		{[]string{"cdi", "generate", "--glibc", "new"}, []string{`--glibc "new"`, "like 2.17"}},
		{[]string{"cdi", "generate", "--glibc", "2.1"}, []string{"needs glibc 2.", "make dist", "--glibc 2."}},
		{[]string{"cdi", "generate", "--no-segment", "--glibc", "2.99", "--output", file + "/below"}, []string{`--output "` + file + `/below": not a directory; must be a folder that this user can write`}},
		{[]string{"cdi", "generate", "more"}, []string{`cdi generate: takes no argument, but was given "more"`}},
		{[]string{"cdi", "foo"}, []string{"cdi foo: there is no such command; there is gpreempt cdi generate"}},
	} {
		r := gpreempt(t, nil, c.arguments...)
		if r.status == 0 || r.stdout != "" {
			t.Errorf("%q: %+v", c.arguments, r)
		}
		for _, want := range c.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%q: %q lacks %q", c.arguments, r.stderr, want)
			}
		}
	}
}
