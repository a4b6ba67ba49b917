// Package dry tries on the simulated driver the programs that are meant for machines with a GPU.
package dry

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// probed is a probe's output.
type probed struct {
	Schema   int               `json:"schema"`
	Mode     string            `json:"mode"`
	Sections map[string]string `json:"sections"`
	Figures  []struct {
		Name, Unit    string
		N             int
		P50, P99, Max float64
	} `json:"figures"`
	Facts []struct{ Name, Value string } `json:"facts"`
	Rows  []map[string]any               `json:"rows"`
}

func build(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../build", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	return path
}

// probe runs the program of that name; what it prints for people comes last.
func probe(t *testing.T, name string, environment []string, options ...string) (found probed, table string, err error) {
	t.Helper()
	driver := build(t, "sim/libcuda.so.1")
	path := filepath.Join(t.TempDir(), "probe.json")
	command := exec.Command(build(t, name), append([]string{"--quick", "--slow", "3", "--json", path}, options...)...)
	command.Env = append(os.Environ(), append([]string{"LD_PRELOAD=" + driver, "LD_LIBRARY_PATH=" + filepath.Dir(driver),
		"SIMCUDA_DIR=" + t.TempDir(), "SIMCUDA_MEMORY_MB=32768"}, environment...)...)
	printed, err := command.CombinedOutput()
	text, readErr := os.ReadFile(path)
	if readErr != nil {
		return found, string(printed), errors.Join(err, readErr)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return found, string(printed), err
}

// expected are the figures or facts that the probe has to find, by section.
var expected = map[string][]string{
	"machine":    {"device", "granularity, minimum and recommended", "device attribute VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"},
	"costs":      {"cuMemGetInfo", "cuCtxSynchronize, idle"},
	"attributes": {"cuMemAlloc: CONTEXT", "mapped: IS_LEGACY_CUDA_IPC_CAPABLE", "mapped, away: MEMORY_TYPE", "reserved: MAPPED", "pool: MEMPOOL_HANDLE", "mapped: cuMemRetainAllocationHandle", "cuMemAlloc: cuIpcGetMemHandle", "mapped: set SYNC_MEMOPS", "mapped: cuMemGetAddressRange of base + 3145728", "pitch of a width of 513, elements of 4, 8 and 16 bytes"},
	"rules":      {"cuMemUnmap of a part of a mapping", "cuMemFree of mapped memory", "cuCtxSynchronize after that launch"},
	"graphs":     {"runs of a graph after its memory was mapped again that give the same bits", "a graph's run"},
	"handles": {"cuMemCreate, 2 MiB", "cuMemMap, 64 MiB", "cuMemSetAccess, 256 MiB", "cuMemUnmap, 1024 MiB", "cuMemRelease, 1024 MiB, per GiB", "cuMemAlloc, 2 MiB", "cuMemFree, 1024 MiB",
		"cuMemSetAccess over a run, 64 MiB", "cuMemCreate, 256 MiB, shareable, for RDMA"},
	"scrubbing": {"release all, then wait until cuMemGetInfo says so", "create all, at once after the release"},
	"threads":   {"a launch, beside nothing", "cuMemMap of 2 MiB, beside launches of another thread"},
	"copies":    {"copy to the device, 2 MiB, 1 in flight", "copy both ways, to the host, 2 MiB, 2 in flight", "copy to the host, whole"},
	"beside-copies": {"same process: 4 KiB to the device, beside nothing", "second process: 256 KiB to the host, beside bulk to the device, 2 MiB, 1 in flight",
		"second process: launch and wait, beside bulk to the host, 2 MiB, 1 in flight", "bulk to the host, 2 MiB, 1 in flight, beside small copies"},
	"neighbour": {"second process: launch and wait, beside nothing", "second process: cuMemAlloc of 2 MiB, beside create and release of 256 MiB", "second process: memset of 256 MiB, beside map and unmap of 2 MiB"},
	"pinning": {"cuMemHostRegister, pieces of 64 MiB, touched by 1, huge pages, per GiB", "cuMemHostUnregister, pieces of 64 MiB, touched by 1, small pages", "touching and cuMemHostRegister, 2 threads with a part each, huge pages",
		"second process: launch and wait, beside cuMemHostRegister, pieces of 64 MiB, touched by 1, huge pages"},
}

func TestMemoryProbeFindsEverything(t *testing.T) {
	found, table, err := probe(t, "memory-probe", nil)
	if err != nil || found.Schema != 1 || found.Mode != "time-sliced" || len(found.Sections) != len(expected) {
		t.Fatalf("%v, %+v\n%s", err, found.Sections, table)
	}
	named := map[string]bool{}
	for _, f := range found.Figures {
		named[f.Name] = true
		if f.N < 1 || f.P50 > f.P99 || f.P99 > f.Max || f.Unit == "" || !strings.Contains(table, f.Name) {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range found.Facts {
		named[f.Name] = true
		if f.Value == "" || !strings.Contains(table, f.Name) {
			t.Errorf("%+v", f)
		}
		if strings.HasPrefix(f.Name, "runs of a graph") && f.Value != "5 of 5" || f.Name == "the graph changes its memory" && f.Value != "yes" {
			t.Errorf("%s: %s", f.Name, f.Value)
		}
	}
	for section, names := range expected {
		if !strings.HasPrefix(found.Sections[section], "done in ") {
			t.Errorf("%s: %s", section, found.Sections[section])
		}
		for _, name := range names {
			if !named[name] {
				t.Errorf("%s lacks %q", section, name)
			}
		}
	}
}

// A section that fails costs only itself, and the probe says so.
func TestMemoryProbeGoesOn(t *testing.T) {
	found, printed, err := probe(t, "memory-probe", []string{"SIMCUDA_FAIL=cuMemMap:1+"}, "--only", "costs,graphs,machine")
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 || len(found.Sections) != 3 || !strings.HasPrefix(found.Sections["graphs"], "failed after ") ||
		!strings.HasPrefix(found.Sections["costs"], "done") || !strings.Contains(printed, "CUDA_ERROR_UNKNOWN") {
		t.Errorf("%v, %v\n%s", err, found.Sections, printed)
	}
	found, _, err = probe(t, "memory-probe", []string{"SIMCUDA_KILL=cuMemAddressReserve:1"}, "--only", "graphs,costs")
	if err == nil || !strings.HasPrefix(found.Sections["graphs"], "signal 9") || !strings.HasPrefix(found.Sections["costs"], "done") {
		t.Errorf("%v, %v", err, found.Sections)
	}
	found, _, err = probe(t, "memory-probe", nil, "--seconds", "1", "--only", "costs")
	if err == nil || found.Sections["costs"] != "not run: no time" {
		t.Errorf("%v, %v", err, found.Sections)
	}
	if _, printed, err := probe(t, "memory-probe", nil, "--only", "cost"); err == nil || !strings.Contains(printed, "no section cost;") {
		t.Errorf("%v, %s", err, printed)
	}
}

// underMPS runs the program with a server that there only seems to be. It must be the probe's own, and end with it.
func underMPS(t *testing.T, name string, options ...string) (found probed, printed string) {
	t.Helper()
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	const tool = `#!/bin/sh
if [ "$1" = -f ]; then
	touch "$CUDA_MPS_PIPE_DIRECTORY/control"
	echo "serves $$" >> "$TOOL_LOG"
	while [ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.05; done
else
	read order
	echo "$order" >> "$TOOL_LOG"
	rm "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
`
	if err := os.WriteFile(filepath.Join(folder, "nvidia-cuda-mps-control"), []byte(tool), 0o700); err != nil {
		t.Fatal(err)
	}
	environment := []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "TMPDIR=" + folder, "TOOL_LOG=" + log, "SIMCUDA_MPS=1"}
	found, printed, err := probe(t, name, environment, append([]string{"--mps"}, options...)...)
	if err != nil || found.Mode != "MPS" {
		t.Fatalf("%v, %+v\n%s", err, found.Sections, printed)
	}
	text, err := os.ReadFile(log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err != nil || len(lines) != 2 || lines[1] != "quit -t 5" {
		t.Fatalf("%v: %q", err, text)
	}
	if _, err := os.Stat("/proc/" + strings.TrimPrefix(lines[0], "serves ")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server goes on: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(folder, name+"-*")); err != nil || len(left) > 0 {
		t.Errorf("%v are left: %v", left, err)
	}
	return found, printed
}

func TestMemoryProbeUnderMPS(t *testing.T) {
	if found, printed := underMPS(t, "memory-probe", "--only", "costs,neighbour"); len(found.Sections) != 2 {
		t.Fatalf("%+v\n%s", found.Sections, printed)
	}
}
