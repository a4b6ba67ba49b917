package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Limits of device memory are read where the driver reads them, and from the driver's answers to programs. Without a limit doctor says
// nothing.
func TestCapFindings(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"proc/self/cgroup": "0::/a/b\n", "cgroup/a/dmem.max": "drm/0000:03:00.0/vram0 1073741824\ndrm/0000:04:00.0/vram0 max\n", "cgroup/a/b/dmem.max": "drm/0000:03:00.0/vram0 max\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	capped := []segment.Peer{{}, {Memory: &segment.Memory{MemoryCounters: segment.MemoryCounters[uint64]{Cap: 3 << 30}}}}
	for _, c := range []struct {
		cgroup string
		limit  string
		peers  []segment.Peer
		want   string
	}{
		{"none", "", capped[:1], ""},
		{"none", "", capped, "a program's device memory is capped: the driver lets it have 3.0 GiB"},
		{"none", "0=2G", nil, "a program's device memory is capped: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G"},
		{"cgroup", "", nil, "a program's device memory is capped: cgroup /a: dmem.max of drm/0000:03:00.0/vram0 is 1.0 GiB"},
	} {
		t.Setenv(pinnedLimit, c.limit)
		d := &doctor{machine: hostMachine{dir + "/proc", filepath.Join(dir, c.cgroup)}}
		d.sayCaps(c.peers)
		var said []string
		for _, f := range d.findings {
			said = append(said, f.Reason)
		}
		if want := slices.DeleteFunc([]string{c.want}, func(s string) bool { return s == "" }); !slices.Equal(said, want) {
			t.Errorf("%+v: %q", c, said)
		}
	}
}
