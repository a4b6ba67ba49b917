package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The machine and each cgroup above a process bound the memory that it may still have.
func TestMemoryLeft(t *testing.T) {
	meminfo := "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n" // kept: a sixteenth, 1 GiB
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes uint64
		whose string
	}{
		{"no cgroups", map[string]string{"proc/meminfo": meminfo}, 7 << 30, "the machine"},
		{"nothing known", nil, 0, "the machine"},
		{"nonsense", map[string]string{"proc/meminfo": "MemTotal: 99999999999999999999 kB\nMemAvailable: 18446744073709551615 kB\n: 1\n\n"}, math.MaxUint64 >> 10 << 10, "the machine"},
		{"no limits", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/memory.max": "max\n"}, 7 << 30, "the machine"},
		{"the cgroup above", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "cgroup/a/memory.max": "1600\n", "cgroup/a/memory.current": "800\n",
			"cgroup/a/memory.stat": "anon 1\ninactive_file 300\n", "cgroup/a/b/memory.max": "max\n", "cgroup/a/b/memory.current": "1\n", "cgroup/memory.max": "9999\n", "cgroup/memory.current": "1",
		}, 1000, "cgroup /a"},
		{"a high mark", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "max\n", "cgroup/a/memory.high": "1600\n", "cgroup/a/memory.current": "0\n",
		}, 1500, "cgroup /a"},
		{"a container's own root", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "cgroup/memory.max": "1600", "cgroup/memory.current": "0"}, 1500, "cgroup /"},
		{"more in use than allowed", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "1\n", "cgroup/a/memory.current": "77"}, 0, "cgroup /a"},
		{"version 1", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "3:cpu,cpuacct:/x\n9:hugetlb,memory:/docker/1\n0::/\n",
			"cgroup/memory/docker/1/memory.limit_in_bytes": "1600", "cgroup/memory/docker/1/memory.usage_in_bytes": "600", "cgroup/memory/docker/1/memory.stat": "total_inactive_file 100",
			"cgroup/memory/memory.limit_in_bytes": "9223372036854771712", "cgroup/memory/memory.usage_in_bytes": "600",
		}, 1000, "cgroup /docker/1"},
		{"a path that climbs", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../..\nnonsense\n", "cgroup/memory.max": "1600", "cgroup/memory.current": "100"}, 1400, "cgroup /"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if bytes, whose := (hostMachine{dir + "/proc", dir + "/cgroup"}).left(); bytes != c.bytes || whose != c.whose {
				t.Errorf("left() = %d, %s; want %d, %s", bytes, whose, c.bytes, c.whose)
			}
		})
	}
}

// The findings of doctor about memory, where it is to swap and where it is not.
func TestMemoryFindings(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/meminfo", []byte("MemTotal: 16777216 kB\nMemAvailable: 34603008 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	swaps := func(resident, swapped, pinned uint64) segment.Peer {
		return segment.Peer{Memory: &segment.Memory{MemoryCounters: segment.MemoryCounters[uint64]{Resident: resident, Swapped: swapped, Pinned: pinned}}}
	}
	peers := []segment.Peer{{}, swaps(1<<30, 0, math.MaxUint64), swaps(2<<30, 2<<30, math.MaxUint64)}
	const processes = "GPU-01: processes with swap: 2; 3.0 GiB of theirs can go, 2.0 GiB are out, 8589934592.0 GiB cannot go"
	const can = "GPU: 80.0 GiB; the driver lets memory go to host memory and come back at the same addresses"
	const little = "this is little beside the GPU's: what does not fit there does not leave the GPU"
	for _, c := range []struct {
		name, config string
		want         []finding
	}{
		{"off", "", []finding{{"memory", ok, can, ""}, {"memory", ok, "16.0 GiB of host memory may hold what leaves GPUs (memory.host_mb = 0: half of the 32.0 GiB that the machine leaves)", ""}, {"memory", ok, processes, ""}}},
		{"on", `mechanisms = ["swap"]`, []finding{{"memory", ok, can, ""}, {"memory", warned, "16.0 GiB of host memory may hold what leaves GPUs (memory.host_mb = 0: half of the 32.0 GiB that the machine leaves)", little}, {"memory", ok, processes, ""}}},
		{"bounded", "mechanisms = [\"swap\"]\nmemory.host_mb = 24576", []finding{{"memory", ok, can, ""}, {"memory", ok, "24.0 GiB of host memory may hold what leaves GPUs (memory.host_mb = 24576; the machine leaves 32.0 GiB)", ""}, {"memory", ok, processes, ""}}},
		{"bounded by more than there is", "memory.host_mb = 100000000", []finding{{"memory", ok, can, ""}, {"memory", ok, "32.0 GiB of host memory may hold what leaves GPUs (memory.host_mb = 100000000; the machine leaves 32.0 GiB)", ""}, {"memory", ok, processes, ""}}},
	} {
		config, err := configs.Parse(c.name, []byte(c.config))
		if err != nil {
			t.Fatal(err)
		}
		config.Segment.Directory = base
		d := &doctor{machine: hostMachine{dir, dir}, config: config, devices: []device{{uuid: "GPU", memory: 80 << 30, vmm: true}}}
		d.checkMemory()
		d.sayProcesses(segment.Snapshot{GPU: "GPU-01", Peers: peers})
		d.sayProcesses(segment.Snapshot{GPU: "GPU-02", Peers: peers[:1]}) // nothing to say
		if !slices.Equal(d.findings, c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.name, d.findings, c.want)
		}
	}
}
