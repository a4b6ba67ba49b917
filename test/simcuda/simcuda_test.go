// Package simcuda tests the simulated NVIDIA driver in driver/ with real processes.
package simcuda

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
)

var built string // the folder with libcuda.so.1, selftest, memory, sharing, and sms

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "simcuda")
	if err != nil {
		return 0, fmt.Errorf("create build folder: %w", err)
	}
	defer os.RemoveAll(dir)
	built = dir
	sources, err := filepath.Glob("driver/*.c")
	if err != nil || len(sources) == 0 {
		return 0, fmt.Errorf("find the driver's sources: %d, %w", len(sources), err)
	}
	driver := append([]string{"-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden",
		"-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete", "-Wl,--dynamic-list=driver/interposable.list",
		"-o", filepath.Join(dir, "libcuda.so.1")}, sources...)
	program := func(name string) []string {
		return []string{"-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-o", filepath.Join(dir, name),
			"selftest/" + name + ".c", "-L" + dir, "-l:libcuda.so.1", "-ldl", "-lpthread"}
	}
	if err := images(dir); err != nil {
		return 0, err
	}
	for _, arguments := range [][]string{append(driver, "-lpthread"), program("selftest"), program("memory"), program("sharing"), program("sms")} {
		if out, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("compile: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}

// images puts the images of kernels/sim.cu into the folder, unchanged and rewritten.
func images(dir string) error {
	guards, err := patch.ParseGuards(kernels.Guard)
	if err != nil {
		return fmt.Errorf("read the guard: %w", err)
	}
	options := patch.Options{Guards: guards}
	cubin, err := os.ReadFile("kernels/sim.cubin")
	if err != nil {
		return fmt.Errorf("read cubin: %w", err)
	}
	guarded, report, err := patch.Cubin(cubin, options)
	if err != nil || report.Guarded() != len(report.Kernels) {
		return fmt.Errorf("rewrite cubin: %+v, %w", report, err)
	}
	fatbin, err := os.ReadFile("kernels/sim.fatbin")
	if err != nil {
		return fmt.Errorf("read fatbin: %w", err)
	}
	guardedFatbin, _, err := patch.Fatbin(fatbin, options)
	if err != nil {
		return fmt.Errorf("rewrite fatbin: %w", err)
	}
	fill, _, err := patch.Fatbin(kernels.Fill, options)
	if err != nil {
		return fmt.Errorf("rewrite kernels.Fill: %w", err)
	}
	for name, data := range map[string][]byte{"sim.cubin": cubin, "guarded.cubin": guarded,
		"sim.fatbin": fatbin, "guarded.fatbin": guardedFatbin,
		"fill.fatbin": fill} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("write image: %w", err)
		}
	}
	return nil
}

func TestSelf(t *testing.T) {
	for _, name := range []string{"ordering", "events", "capture", "controls", "refused", "wrap", "lookup", "versions", "recaptured", "forked", "images",
		"libraries", "guarded", "waiting", "fills", "graphs", "mps",
		"slicing", "shares", "two_short", "holding", "turning", "doorbells", "locks", "connections", "connections_1", "connections_32", "killed", "stopped", "idle"} {
		t.Run(name, func(t *testing.T) { selftest(t, "selftest", name) })
	}
}

func TestMemory(t *testing.T) {
	for _, name := range []string{"failing", "killing", "misspelt", "size", "huge", "shared", "racing", "pools", "virtual", "contents",
		"faulting", "unmapping", "cut", "devices", "looks", "sharing", "rates", "behind", "between"} {
		t.Run(name, func(t *testing.T) { selftest(t, "memory", name) })
	}
}

func TestSharing(t *testing.T) {
	for _, name := range []string{"peers", "strangers", "pool_strangers", "ipc", "devices_on_the_bus", "captured", "graph_memory", "scrubbing", "creating", "calling", "calling_misspelt", "copying_nothing"} {
		t.Run(name, func(t *testing.T) { selftest(t, "sharing", name) })
	}
}

func TestSMs(t *testing.T) {
	for _, name := range []string{"green", "split", "room", "urgent", "narrow", "graphs", "cut", "placed"} {
		t.Run(name, func(t *testing.T) { selftest(t, "sms", name) })
	}
}

// Where nothing runs beside it, a launch that is placed on SMs does what one does that is not, in the same time.
func TestSelfPlaced(t *testing.T) {
	t.Setenv("SELFTEST_GREEN", "1")
	for _, name := range []string{"ordering", "events", "guarded", "waiting", "fills", "graphs", "slicing", "holding"} {
		t.Run(name, func(t *testing.T) { selftest(t, "selftest", name) })
	}
}

// Every exported function of the API is defined with CALL or DUAL, so SIMCUDA_FAIL knows it.
func TestEveryFunctionCanFail(t *testing.T) {
	driver, err := elf.Open(filepath.Join(built, "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	symbols, err := driver.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	exported := 0
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "cu") {
			exported++
		}
	}
	rows := driver.Section("sim_exported")
	if rows == nil || exported == 0 || rows.Size != uint64(8*exported) {
		t.Errorf("%d functions are exported, sim_exported has %+v", exported, rows)
	}
}

const tooSlow = 75 // the status of a program that a check of times ended: selftest/check.h

// selftest runs one test of a program. Times that are not as simulated may be the machine's fault: it runs again then, for a
// minute. A fault of the driver fails each time.
func selftest(t *testing.T, program, name string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		out, status := runSelftest(t, program, name)
		if status == 0 && strings.Contains(out, "simulated: "+name+" ok") {
			t.Log(strings.TrimSpace(out))
			return
		}
		if status != tooSlow || time.Now().After(deadline) {
			t.Fatalf("selftest %s: status %d\n%s", name, status, out)
		}
		t.Log(strings.TrimSpace(out))
	}
}

// runSelftest runs it on a device of its own.
func runSelftest(t *testing.T, program, name string) (output string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(built, program), name)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built, "IMAGES="+built, "SIMCUDA_DIR="+t.TempDir())
	// Best-effort children of a test that fails must not outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if cmd.Process == nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return out.String(), cmd.ProcessState.ExitCode()
}
