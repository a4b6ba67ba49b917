package exports_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The C layer is tested as a library of its own: with a core that prints (testdata/hooks.c), a driver that prints (testdata/driver.c), and
// one program (testdata/program.c).
type bench struct {
	testing.TB
	dir    string
	stderr *bytes.Buffer // of the last run, if wanted
}

func (b bench) cc(out string, args ...string) {
	b.Helper()
	args = append([]string{"-O2", "-Wall", "-std=gnu11", "-I../..", "-o", filepath.Join(b.dir, out)}, args...)
	if text, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		b.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// undefined lists the symbols that an object file takes from elsewhere.
func (b bench) undefined(object string) []string {
	b.Helper()
	names, err := exec.Command("nm", "--undefined-only", "--format=just-symbols", filepath.Join(b.dir, object)).Output()
	if err != nil || len(names) == 0 {
		b.Fatalf("nm: %v", err)
	}
	return strings.Fields(string(names))
}

// built is the folder of the files that all tests need. The first of them builds them.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		if err := os.RemoveAll(built); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// build returns a folder that a test may change.
func build(tb testing.TB) bench {
	tb.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		tb.Skip("no C compiler")
	}
	if built == "" {
		dir, err := os.MkdirTemp("", "gpreempt-exports")
		if err != nil {
			tb.Fatal(err)
		}
		built = dir
		buildAll(bench{TB: tb, dir: dir})
	}
	b := bench{TB: tb, dir: tb.TempDir()}
	if err := os.CopyFS(b.dir, os.DirFS(built)); err != nil {
		tb.Fatal(err)
	}
	return b
}

func buildAll(b bench) {
	b.Helper()
	sources, err := filepath.Glob("../../exports/*.c")
	if err != nil {
		b.Fatal(err)
	}
	sources = slices.DeleteFunc(sources, func(source string) bool { return strings.HasSuffix(source, "_test.c") })
	// -Bsymbolic: as Go links a library.
	b.cc("libgp.so", append(sources, "-shared", "-fPIC", "-Wextra", "-Wno-unused-parameter", "testdata/hooks.c", "-Wl,-Bsymbolic",
		"-Wl,--version-script=../../exports/exports.map", "-Wl,--wrap=sigaction")...)
	b.cc("libcuda.so.1", "-shared", "-fPIC", "testdata/driver.c", "-Wl,-soname,libcuda.so.1")
	driver := filepath.Join(b.dir, "libcuda.so.1")
	// NVIDIA's has no symbol versions, but dlvsym finds nothing without.
	version := filepath.Join(b.dir, "version.map")
	if err := os.WriteFile(version, []byte("ANY { *; };\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.dir, "versioned"), 0o700); err != nil {
		b.Fatal(err)
	}
	b.cc("versioned/libcuda.so.1", "-shared", "-fPIC", "testdata/driver.c", "-Wl,-soname,libcuda.so.1",
		"-Wl,--version-script="+version)
	b.cc("libprogram.so", "-shared", "-fPIC", "-DLINKED", "testdata/program.c", driver)
	b.cc("linked", "-DLINKED", "testdata/program.c", driver)
	b.cc("program", "testdata/program.c")
	b.cc("libnext.so", "-shared", "-fPIC", "-DFIRST", `-DNAME="itself"`, "testdata/next.c")
	b.cc("libafter.so", "-shared", "-fPIC", `-DNAME="next"`, "testdata/next.c")
}

// run runs the program with the library preloaded ahead of others, and returns what it, the core and the driver
// print.
func (b bench) run(program, way string, env []string, preload ...string) string {
	b.Helper()
	for i := range preload {
		preload[i] = filepath.Join(b.dir, preload[i])
	}
	cmd := exec.Command(filepath.Join(b.dir, program), way)
	libraries := b.dir
	if way == "dlvsym" {
		libraries = filepath.Join(b.dir, "versioned")
	}
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + libraries, "LD_PRELOAD=" + strings.Join(preload, ":")}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if b.stderr != nil {
		b.stderr.Write(stderr.Bytes())
	}
	if err != nil {
		b.Fatalf("%s %s: %v\n%s%s", program, way, err, out, &stderr)
	}
	return string(out)
}

var active = []string{"GPREEMPT_PRIORITY=5"}

func TestEveryWayToTheDriver(t *testing.T) {
	b := build(t)
	golden, err := os.ReadFile("testdata/intercepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	var driverLines strings.Builder
	for _, line := range strings.SplitAfter(string(golden), "\n") {
		if strings.HasPrefix(line, "driver") {
			driverLines.WriteString(line)
		}
	}
	// Its own two calls of the driver are the core's, not the program's.
	passive := strings.Replace(driverLines.String(), "driver cuDeviceGetCount\ndriver cuInit\n", "", 1)
	for _, way := range []string{"linked", "dlsym", "dlvsym", "default", "proc1", "proc2", "deepbind"} {
		program := "program"
		if way == "linked" {
			program = "linked"
		}
		t.Run(way, func(t *testing.T) {
			b := bench{TB: t, dir: b.dir}
			if got := b.run(program, way, active, "libgp.so"); got != string(golden) {
				t.Errorf("active: got\n%s\nwant\n%s", got, golden)
			}
			for _, env := range []string{"GPREEMPT_PRIORITY=off", "GPREEMPT_PRIORITY=", "UNSET="} {
				if got := b.run(program, way, []string{env}, "libgp.so"); got != passive {
					t.Errorf("%s: got\n%s\nwant\n%s", env, got, passive)
				}
			}
			if got := b.run(program, way, nil); got != passive {
				t.Errorf("without the library: got\n%s\nwant\n%s", got, passive)
			}
		})
	}
}

// A call that is out of memory is made again as long as the core says so, three times here. The core hears of each try as of a
// call of its own where it puts work on a stream or waits.
func TestCallsAreMadeAgain(t *testing.T) {
	b := build(t)
	again := b.run("program", "dlsym", append([]string{"TEST_REFUSE=2"}, active...), "libgp.so")
	in := func(text string, want int) {
		t.Helper()
		if got := strings.Count(again, text); got != want {
			t.Errorf("%q: %d times, want %d, in\n%s", text, got, want, again)
		}
	}
	in("driver cuDevicePrimaryCtxRetain\n  out of memory on 0, 0\ndriver cuDevicePrimaryCtxRetain\n  out of memory on 0, 1\ndriver cuDevicePrimaryCtxRetain\n  context 0xc0 current\n", 1)
	in("driver cuGraphLaunch\n  end graph: 42 2\n  out of memory on -1, ", 2)
	in("driver cuGraphLaunch\n  end graph: 42 0\n", 1)
	in("driver cuMemFree_v2\n  end wait for memory 0x1: 2\n  out of memory on -1, ", 2)
	in("driver cuMemFree_v2\n  end wait for memory 0x1: 0\n", 1)
	in("driver cuGraphInstantiateWithFlags\n  out of memory on -1, 1\ndriver cuGraphInstantiateWithFlags\n  end wait", 1)
	in("driver cuStreamCreateWithPriority\n  out of memory on -1, 1\ndriver cuStreamCreateWithPriority\n  end wait", 1)

	again = b.run("program", "dlsym", append([]string{"TEST_REFUSE=9"}, active...), "libgp.so")
	in("driver cuGraphLaunch\n  end graph: 42 2\n", 3)
	in("graph 0x60 instantiated", 0)
}

func TestLookups(t *testing.T) {
	b := build(t)
	for _, test := range []struct {
		name, way string
		env       []string
		preload   []string
		want      string
	}{
		{"dlsym substitutes", "where", active, []string{"libgp.so"}, "libgp.so\n"},
		{"dlsym passive", "where", nil, []string{"libgp.so"}, "libcuda.so.1\n"},
		{"RTLD_NEXT active", "next", active, []string{"libgp.so", "libnext.so", "libafter.so"}, "next\n"},
		{"RTLD_NEXT passive", "next", nil, []string{"libgp.so", "libnext.so", "libafter.so"}, "next\n"},
		{"RTLD_NEXT ahead", "next", active, []string{"libnext.so", "libgp.so", "libafter.so"}, "next\n"},
		{"not in the driver", "missing", active, []string{"libgp.so"}, "500\n1\n1\n"},
		{"ioctl passive", "ioctl", nil, []string{"libgp.so", "libnext.so"}, "driver cuInit\n1 1\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (bench{TB: t, dir: b.dir}).run("program", test.way, test.env, test.preload...); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	t.Run("ioctl active", func(t *testing.T) {
		got := bench{TB: t, dir: b.dir}.run("program", "ioctl", active, "libgp.so", "libnext.so")
		if strings.Count(got, "  ioctl 0xc004462a") != 1 || !strings.HasSuffix(got, "1 1\n") {
			t.Errorf("got\n%s", got)
		}
	})
	// The core carries the copy out and knows that the event has happened; what it says of the wait for the stream counts.
	t.Run("without the driver", func(t *testing.T) {
		want := "driver cuInit\ndriver cuInit\n" +
			"  begin copy on 0x1:\n  begin wait for event 0xe0\n  end wait for event 0xe0: 0\n" +
			"  begin wait for stream 0x1\ndriver cuStreamSynchronize\n  end wait for stream 0x1: 0\n77 0 78\n"
		got := bench{TB: t, dir: b.dir}.run("program", "results", append(active, "TEST_CARRY_OUT=1"), "libgp.so")
		if !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s", got)
		}
	})
	// A function of the core stands for the driver's below the interceptor, in this process alone. The driver lacks the last one.
	t.Run("substitute", func(t *testing.T) {
		got := bench{TB: t, dir: b.dir}.run("program", "substitute", append(active, "TEST_SUBSTITUTE=1"), "libgp.so")
		want := "driver cuInit\n" +
			"  begin wait for memory 0x1\n  free of 0x1\n  end wait for memory 0x1: 31\n31\n" +
			"  begin wait for memory 0x2\n  free of 0x2\n  end wait for memory 0x2: 31\n31\n" +
			"  attribute 3 of 0x4\n32\n500\ndriver cuMemFree_v2\n"
		if !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s", got)
		}
		got = bench{TB: t, dir: b.dir}.run("program", "substitute", active, "libgp.so")
		if strings.Count(got, "driver cuMemFree_v2\n") != 3 || strings.Count(got, "driver cuPointerGetAttribute\n0\n") != 1 {
			t.Errorf("got\n%s", got)
		}
	})
	t.Run("early child", func(t *testing.T) {
		got := bench{TB: t, dir: b.dir}.run("program", "child", active, "libgp.so")
		if !strings.HasPrefix(got, "  start, environment kept\n") || !strings.HasSuffix(got, "driver cuInit\n0, SIGCHLD open\n") {
			t.Errorf("got\n%s", got)
		}
		if got, want := (bench{TB: t, dir: b.dir}).run("program", "child", nil, "libgp.so"), "driver cuInit\n0, SIGCHLD open\n"; got != want {
			t.Errorf("passive: got %q, want %q", got, want)
		}
	})
	t.Run("no core", func(t *testing.T) {
		b := bench{TB: t, dir: b.dir}
		b.stderr = new(bytes.Buffer)
		got := b.run("program", "ioctl", append(active, "TEST_NO_START=1"), "libgp.so", "libnext.so")
		if !strings.HasSuffix(got, "driver cuInit\n1 1\n") || b.stderr.String() != "gpreempt: the library's core is not there; running without preemption\n" {
			t.Errorf("got\n%s%s", got, b.stderr)
		}
	})
	t.Run("no driver", func(t *testing.T) {
		if err := os.Remove(filepath.Join(b.dir, "libcuda.so.1")); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct{ way, want string }{
			{"no driver", "not there\n"},
			{"linked nevertheless", "303\n"}, // CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
		} {
			for _, env := range [][]string{nil, active} {
				if got := (bench{TB: t, dir: b.dir}).run("program", test.way, env, "libgp.so"); !strings.HasSuffix(got, test.want) {
					t.Errorf("%s %q: got %q, want %q", test.way, env, got, test.want)
				}
			}
		}
	})
}

// A function that stands for one that is not intercepted would never be called.
func TestSubstitutesAreIntercepted(t *testing.T) {
	list, err := os.ReadFile("../../preempt/memory/substitutes.h")
	if err != nil {
		t.Fatal(err)
	}
	exported, err := os.ReadFile("../../exports/exports.map")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`\n(?:SUBSTITUTE|COUNTED)\((cu\w+),`).FindAllStringSubmatch(string(list), -1)
	for _, row := range rows {
		name := row[1]
		if !strings.Contains(string(exported), "\t"+name+";\n") {
			t.Errorf("%s has no row in exports/table.h", name)
		}
	}
	if len(rows) < 30 {
		t.Errorf("%d rows: these are not all", len(rows))
	}
}

func TestExportMapIsGenerated(t *testing.T) {
	want, err := exec.Command("sh", "../../exports/map.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../exports/exports.map")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("exports.map is not what map.sh prints from table.h: run make generate")
	}
}

// BenchmarkLaunch reports an asynchronous call's time: the driver's own, through the library while nothing is armed.
func BenchmarkLaunch(b *testing.B) {
	built := build(b)
	built.cc("libcuda.so.1", "-shared", "-fPIC", "testdata/quiet.c", "-Wl,-soname,libcuda.so.1")
	for _, test := range []struct {
		name string
		env  []string
	}{{"direct", nil}, {"unarmed", []string{active[0], "TEST_UNARMED=1"}}, {"armed", []string{active[0], "TEST_QUIET=1"}}} {
		b.Run(test.name, func(b *testing.B) {
			out := bench{TB: b, dir: built.dir}.run("program", "overhead", test.env, "libgp.so")
			lines := strings.Fields(out)
			ns, err := strconv.ParseFloat(lines[len(lines)-1], 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ns, "ns/call")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// Launches write what they name of their operation, and clear nothing else: see GP_LAUNCH_ON.
func TestLaunchesClearNothing(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		return // what compilers make of it elsewhere is another question
	}
	b := build(t)
	code, err := exec.Command("objdump", "-d", "--no-show-raw-insn", filepath.Join(b.dir, "libgp.so")).Output()
	if err != nil {
		t.Fatal(err)
	}
	clears := map[string]bool{}
	for _, function := range strings.Split(string(code), "\n\n") {
		if name := regexp.MustCompile(`^[0-9a-f]+ <(armed_(?:cuLaunch(?:Cooperative)?Kernel(?:_ptsz)?|launch_ex))>:`).FindStringSubmatch(function); name != nil {
			clears[name[1]] = strings.Contains(function, "rep stos")
		}
	}
	if len(clears) != 5 {
		t.Errorf("of the functions that launch kernels these were found: %v", clears)
	}
	for name, does := range clears {
		if does {
			t.Errorf("%s has `rep stos`: a member of struct gp_operation is missing in GP_LAUNCH_ON, in .launch, or in GP_NOTHING_FOUND", name)
		}
	}
}
