package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// sim is the cubin with the simulated driver's kernels.
func sim(name string) string { return filepath.Join(root, "test/simcuda/kernels", name) }

// PTX of which the simulated driver's linker makes sim.cubin.
const ptx = ".version 8.0\n.target sm_90\n.visible .entry sim_chain(.param .u64 data)\n.visible .entry sim_increment(.param .u64 data)\n"

func writePTX(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sim.ptx")
	if err := os.WriteFile(path, []byte(ptx), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loads is what testdata/code.c printed.
type loads struct{ program, driver []string }

// The image of the library's own kernels for memsets and copies, which are rewritten too.
const ownImages, ownKernels = 1, 4

// runLoads runs it until it has loaded so many images besides the library's own, and says a text.
func runLoads(m *machine, role, program string, count uint64, says string, images ...string) (got loads, blp segment.BLP, stderr string) {
	m.t.Helper()
	cmd := m.command(role, program, images...)
	cmd.Dir = m.t.TempDir()
	p := m.startAs(cmd)
	for line := p.hear(); line != "done"; line = p.hear() {
		if text, driver := strings.CutPrefix(line, "driver "); driver {
			got.driver = append(got.driver, text)
		} else {
			got.program = append(got.program, line)
		}
	}
	if count > 0 {
		m.until("the images are counted", func() bool {
			if peer := m.peer(p); peer.BLP != nil {
				blp = *peer.BLP
			}
			return blp.Images == count+ownImages
		})
	}
	p.says(says, 1)
	_, stderr = p.finish()
	return got, blp, stderr
}

// cacheIn returns the setting for a cache in a folder, and a function that lists its files for the simulated driver's kernels.
func cacheIn(t *testing.T) (setting string, files func() []string) {
	dir := filepath.Join(t.TempDir(), "cache")
	return fmt.Sprintf("mechanisms = [\"blp\"]\n[blp]\ncache_directory = %q\n", dir), func() []string {
		found, err := filepath.Glob(dir + "/*.blp")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(found, func(path string) bool { return !strings.Contains(read(t, path), "sim_chain") })
	}
}

const (
	shown  = "0+8 8+4 12+4 16+4" // of sim_chain
	hidden = " 24+8"
)

// driverSees is the driver's answer about a module or library of the program code.c.
func driverSees(rewritten bool) (module, library []string) {
	if rewritten {
		return []string{shown + hidden}, []string{shown + hidden, "another library 1", "unloaded 1 1"}
	}
	return []string{shown}, []string{shown, "another library 0", "unloaded 1 1"}
}

func expect(rewritten bool, modules, libraries int) (lines []string) {
	module, library := driverSees(rewritten)
	for range modules {
		lines = append(lines, module...)
	}
	for range libraries {
		lines = append(lines, library...)
	}
	return lines
}

// A program under block-level preemption sees its own code, although the driver has rewritten code.
func TestLoadsLookTheSame(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/code.c")
	images := []string{sim("sim.fatbin"), sim("sim.cubin")}
	plain, _, _ := runLoads(newMachine(t, ""), "", program, 0, "", images...)
	if want := slices.Concat(expect(false, 4, 3), expect(false, 3, 3)); !slices.Equal(plain.driver, want) {
		t.Fatalf("without the library the driver sees %q, want %q", plain.driver, want)
	}
	setting, files := cacheIn(t)
	m := newMachine(t, setting)
	for run, cached := range []uint64{11, 13 + ownImages} { // of the first run, the first of each image is not
		got, blp, stderr := runLoads(m, "be", program, 13, "", images...)
		if !slices.Equal(got.program, plain.program) {
			t.Errorf("run %d: the program sees\n%q, without the library\n%q", run, got.program, plain.program)
		}
		if want := slices.Concat(expect(true, 4, 3), expect(true, 3, 3)); !slices.Equal(got.driver, want) {
			t.Errorf("run %d: the driver sees\n%q, want\n%q", run, got.driver, want)
		}
		if blp.ImagesCached != cached || blp.KernelsSeen != 13*6+ownKernels || blp.KernelsGuarded != 13*6+ownKernels || len(blp.KernelsRefused) != 0 || stderr != "" {
			t.Errorf("run %d: %+v, %s", run, blp, stderr)
		}
	}
	if len(files()) != 2 {
		t.Errorf("%d files in the cache, want 2", len(files()))
	}
}

// CUDA runtimes make a context current that the driver has not initialised yet. The library's kernels are loaded later then, and that is no
// refusal of code.
func TestLoadsBeforeTheContextIsInitialised(t *testing.T) {
	t.Parallel()
	program, refusal := compile(t, "testdata/code.c"), "simulated CUDA driver: call 1 of cuModuleLoadData fails\n"
	m := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "SIMCUDA_FAIL=cuModuleLoadData:1:709")
	_, blp, stderr := runLoads(m, "be", program, 7, "", sim("sim.fatbin"))
	if want := uint64(7*6 + ownKernels); blp.KernelsGuarded != want || len(blp.KernelsRefused) != 0 || stderr != refusal {
		t.Errorf("%+v, want %d guarded kernels; %s", blp, want, stderr)
	}
}

// PTX is compiled by the driver's linker, once.
func TestLoadsOfPTX(t *testing.T) {
	t.Parallel()
	program, text := compile(t, "testdata/code.c"), writePTX(t)
	setting, files := cacheIn(t)
	m := newMachine(t, setting, "SIMCUDA_CUBIN="+sim("sim.cubin"))
	got, blp, stderr := runLoads(m, "be", program, 6, "", text)
	if want := expect(true, 3, 3); !slices.Equal(got.driver, want) || blp.ImagesCached != 5 || stderr != "" {
		t.Errorf("the driver sees %q, want %q; %+v, %s", got.driver, want, blp, stderr)
	}
	if len(files()) != 1 {
		t.Errorf("%d files in the cache, want 1", len(files()))
	}
	m.environment = nil // no linker any more: what it made is there
	if _, blp, stderr = runLoads(m, "be", program, 6, "", text); blp.ImagesCached != 6+ownImages || stderr != "" {
		t.Errorf("the second time %+v, %s", blp, stderr)
	}
	uncached := newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "SIMCUDA_CUBIN="+sim("sim.cubin"))
	got, blp, stderr = runLoads(uncached, "be", compile(t, "testdata/code.c", "-DNO_CONTEXT"), 6, "", text)
	if want := expect(true, 3, 3); !slices.Equal(got.driver, want) || stderr != "" {
		t.Errorf("while no context is current the driver sees %q, want %q; %+v, %s", got.driver, want, blp, stderr)
	}
	if err := os.Remove(files()[0]); err != nil {
		t.Fatal(err)
	}
	plain, _, _ := runLoads(newMachine(t, ""), "", program, 0, "", text)
	got, blp, stderr = runLoads(m, "be", program, 6, "not preemptible: cuLinkAddData: CUDA error", text)
	if !slices.Equal(got.program, plain.program) || !slices.Equal(got.driver, plain.driver) || blp.KernelsRefused["image"] != 6 || len(blp.KernelsRefused) != 1 ||
		strings.Count(stderr, "not preemptible") != 1 {
		t.Errorf("without a linker the program sees\n%q, the driver %q; %+v, %s", got.program, got.driver, blp, stderr)
	}
}

// fatbinOf makes a fatbin of entries of a kind (1: PTX, 2: a cubin) for an architecture.
func fatbinOf(entries ...struct {
	kind, sm int
	data     string
}) string {
	le := binary.LittleEndian
	var all []byte
	for _, e := range entries {
		header := make([]byte, 64)
		le.PutUint16(header, uint16(e.kind))
		le.PutUint32(header[4:], 64)
		data := append([]byte(e.data), make([]byte, 8-len(e.data)%8)...)
		le.PutUint64(header[8:], uint64(len(data)))
		le.PutUint32(header[28:], uint32(e.sm))
		all = append(append(all, header...), data...)
	}
	head := make([]byte, 16)
	le.PutUint32(head, 0xba55ed50)
	le.PutUint16(head[6:], 16)
	le.PutUint64(head[8:], uint64(len(all)))
	return string(head) + string(all)
}

// The linker gets the PTX of a fatbin that has no cubin for the GPU.
func TestLoadsOfPTXInFatbins(t *testing.T) {
	t.Parallel()
	type entry = struct {
		kind, sm int
		data     string
	}
	program, image := compile(t, "testdata/code.c"), filepath.Join(t.TempDir(), "sim.fatbin")
	fatbin := fatbinOf(entry{2, 80, "a cubin for another GPU"}, entry{1, 80, ptx}, entry{2, 75, "and another"})
	if err := os.WriteFile(image, []byte(fatbin), 0o600); err != nil {
		t.Fatal(err)
	}
	setting, files := cacheIn(t)
	m := newMachine(t, setting, "SIMCUDA_CUBIN="+sim("sim.cubin"))
	for run, cached := range []uint64{6, 7 + ownImages} {
		got, blp, stderr := runLoads(m, "be", program, 7, "", image)
		if want := expect(true, 4, 3); !slices.Equal(got.driver, want) || blp.ImagesCached != cached || stderr != "" {
			t.Errorf("run %d: the driver sees %q, want %q; %+v, %s", run, got.driver, want, blp, stderr)
		}
	}
	if len(files()) != 1 {
		t.Errorf("%d files in the cache, want 1", len(files()))
	}
}

// CUDA runtimes before 12.0 load code by a private table of the driver. The library does not see that, counts it and says so.
func TestRuntimesLoadUnseen(t *testing.T) {
	t.Parallel()
	const line = "that a CUDA runtime before 12.0 loads runs as it came"
	program := compile(t, "testdata/code.c", "-DBY_TABLE")
	setting, _ := cacheIn(t)
	plain, _, _ := runLoads(newMachine(t, ""), "", program, 0, "", sim("sim.fatbin"))
	got, blp, stderr := runLoads(newMachine(t, setting), "be", program, 7, line, sim("sim.fatbin"))
	want := slices.Concat(expect(true, 4, 0), expect(false, 1, 0), expect(true, 0, 3))
	if !slices.Equal(got.program, plain.program) || !slices.Equal(got.driver, want) {
		t.Errorf("the program sees\n%q\n%q, without the library\n%q\n%q", got.program, got.driver, plain.program, plain.driver)
	}
	if blp.KernelsRefused["runtime"] != 1 || len(blp.KernelsRefused) != 1 || strings.Count(stderr, line) != 1 {
		t.Errorf("%+v, %s", blp, stderr)
	}
}

// The library rewrites the code, and replaces damaged files, however the cache is damaged.
func TestDamagedCache(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/code.c")
	setting, files := cacheIn(t)
	m := newMachine(t, setting)
	try := func(what string, cached uint64) {
		t.Helper()
		got, blp, stderr := runLoads(m, "be", program, 6, "", sim("sim.cubin"))
		if want := expect(true, 3, 3); !slices.Equal(got.driver, want) || blp.ImagesCached != cached || stderr != "" {
			t.Errorf("%s: the driver sees %q, want %q; %+v, %s", what, got.driver, want, blp, stderr)
		}
	}
	try("empty", 5)
	file := files()[0]
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string][]byte{
		"empty file": nil, "torn": whole[:len(whole)/2], "of zeros": make([]byte, len(whole)),
		"one bit": append(slices.Clone(whole[:len(whole)-1]), whole[len(whole)-1]^1), "longer": append(slices.Clone(whole), 0),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		try(what, 5+ownImages)
		if now, err := os.ReadFile(file); err != nil || !slices.Equal(now, whole) {
			t.Errorf("%s: was not replaced: %v", what, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	try("others may look", 0)
	if len(files()) != 0 {
		t.Error("stored in a directory that is not the user's alone")
	}
	m = newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_directory = \"/proc/none\"\n")
	try("not writable", 0)
	m = newMachine(t, "mechanisms = [\"blp\"]\n[blp]\ncache_mb = 0\n", "HOME="+t.TempDir())
	try("off", 0)
	m = newMachine(t, "mechanisms = [\"blp\"]", "HOME=", "XDG_CACHE_HOME=")
	try("no home", 0)
}

// Code that cannot be rewritten runs unchanged.
func TestLoadsOfOtherImages(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/code.c")
	setting, _ := cacheIn(t)
	for what, contents := range map[string]string{
		"no image":           "neither one nor the other",
		"another GPU's":      read(t, filepath.Join(root, "patch/testdata/seeds/lz4.fatbin"))[:16],
		"a cubin cut short":  read(t, sim("sim.cubin"))[:3000],
		"a fatbin cut short": read(t, sim("sim.fatbin"))[:100],
	} {
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		plain, _, _ := runLoads(newMachine(t, ""), "", program, 0, "", image)
		got, _, stderr := runLoads(newMachine(t, setting), "be", program, 0, "code runs as it came, not preemptible: ", image)
		if !slices.Equal(got.program, plain.program) || !slices.Equal(got.driver, plain.driver) {
			t.Errorf("%s: the program sees\n%q\n%q, without the library\n%q\n%q", what, got.program, got.driver, plain.program, plain.driver)
		}
		if strings.Count(stderr, "not preemptible") != strings.Count(stderr, "\n") {
			t.Errorf("%s: stderr %q", what, stderr)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Which processes rewrite their code.
func TestWhoRewrites(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/code.c")
	home := "XDG_CACHE_HOME=" + t.TempDir()
	for _, test := range []struct {
		role, settings string
		mps, rewrites  bool
	}{
		{"be", "", true, true},
		{"3", "", true, true},
		{"lc", "", true, false},
		{"be", "", false, false},
		{"be", `mechanisms = ["gate"]`, true, false},
		{"be", `mechanisms = ["blp"]`, false, true},
		{"3", `mechanisms = ["blp"]`, false, true},
		{"lc", `mechanisms = ["blp"]`, false, false},
		{"be force", `mechanisms = ["blp"]`, false, false},
		{"off", `mechanisms = ["blp"]`, true, false},
	} {
		m := newMachine(t, test.settings, home, "CUDA_MPS_PIPE_DIRECTORY="+t.TempDir())
		if test.mps {
			m.environment = append(m.environment, "SIMCUDA_MPS=1")
		}
		role, forced := strings.CutSuffix(test.role, " force")
		if forced {
			m.environment = append(m.environment, "CUDA_FORCE_PTX_JIT=1")
		}
		got, _, stderr := runLoads(m, role, program, 0, "", sim("sim.cubin"))
		if want := expect(test.rewrites, 3, 3); !slices.Equal(got.driver, want) {
			t.Errorf("%+v: the driver sees %q, want %q; %s", test, got.driver, want, stderr)
		}
	}
}
