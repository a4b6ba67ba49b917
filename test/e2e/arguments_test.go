package e2e

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// A row of exports/table.h, as the preprocessor prints it.
var rowPattern = regexp.MustCompile(`@@ (\w+) \(([^)]*)\)`)

// parameter is one of a row's: its type, spelled as in the row, and its name.
type parameter struct{ typ, name string }

type row struct {
	name       string
	parameters []parameter
	simulated  bool // by the simulated driver
}

// tableRows reads exports/table.h.
func tableRows(t *testing.T) (rows []row) {
	t.Helper()
	driver, err := elf.Open(built("sim/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	symbols, err := driver.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	simulated := map[string]bool{}
	for _, symbol := range symbols {
		simulated[symbol.Name] = simulated[symbol.Name] || symbol.Section != elf.SHN_UNDEF
	}
	command := exec.Command("gcc", "-E", "-P", "-I"+root, "-x", "c", "-")
	command.Stdin = strings.NewReader("#define ROW(kind, name, stream, parameters, ...) @@ name parameters\n#define CALLED(...)\n#include \"exports/table.h\"\n")
	text, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range rowPattern.FindAllStringSubmatch(strings.Join(strings.Fields(string(text)), " "), -1) {
		r := row{name: found[1], simulated: simulated[found[1]]}
		if found[2] != "void" {
			for _, p := range strings.Split(found[2], ",") {
				cut := strings.LastIndexAny(p, " *") + 1
				r.parameters = append(r.parameters, parameter{strings.ReplaceAll(strings.TrimSpace(p[:cut]), " *", "*"), p[cut:]})
			}
		}
		rows = append(rows, r)
	}
	if n := strings.Count(string(text), "@@"); len(rows) != n || n < 300 {
		t.Fatalf("%d of %d rows are read", len(rows), n)
	}
	return rows
}

// class is the kind of values that testdata/arguments.c has for a type. A type that it does not know ends the test: it needs values.
func (p parameter) class(t *testing.T) string {
	t.Helper()
	switch p.typ {
	case "CUcontext", "CUstream", "CUevent", "CUfunction", "CUmodule", "CUlibrary", "CUgraph":
		return strings.ToUpper(p.typ[2:])
	case "CUgraphExec":
		return "INSTANCE"
	case "CUdevice":
		return "DEVICE"
	case "CUdeviceptr":
		return "ADDRESS"
	case "unsigned int":
		if slices.Contains([]string{"dstDevice", "srcDevice", "dptr"}, p.name) { // as addresses were before CUDA 3.2
			return "ADDRESS"
		}
		return "INTEGER"
	case "int", "unsigned char", "unsigned short", "uint32_t", "uint64_t", "size_t", "unsigned long long":
		return "INTEGER"
	case "CUipcMemHandle", "CUipcEventHandle", "CUmemLocation", "CUeglFrame":
		return "VALUE"
	}
	if !strings.HasSuffix(p.typ, "*") {
		t.Fatalf("%s: a type for which testdata/arguments.c has no values", p.typ)
	}
	return "POINTER"
}

// argument is a parameter's value, from an array of numbers.
func (p parameter) argument(t *testing.T, i int) string {
	switch p.class(t) {
	case "VALUE":
		return fmt.Sprintf("*(%s *)(uintptr_t)v[%d]", p.typ, i)
	case "INTEGER", "DEVICE", "ADDRESS":
		return fmt.Sprintf("(%s)v[%d]", p.typ, i)
	}
	return fmt.Sprintf("(%s)(uintptr_t)v[%d]", p.typ, i)
}

// rowsHeader is rows.h of testdata/arguments.c.
func rowsHeader(t *testing.T, rows []row) string {
	t.Helper()
	var calls, table strings.Builder
	for _, r := range rows {
		var arguments, parameters []string
		for i, p := range r.parameters {
			arguments = append(arguments, p.argument(t, i))
			parameters = append(parameters, fmt.Sprintf("{%s, %q, sizeof(%s)}, ", p.class(t), p.name, p.typ))
		}
		fmt.Fprintf(&calls, "static int call_%s(void *f, const uint64_t *v) { (void)v; return ((CUresult(*)(%s))f)(%s); }\n", r.name, r.types(), strings.Join(arguments, ", "))
		fmt.Fprintf(&table, "\t{%q, %t, call_%s, %d, (const struct parameter[]){%s{0}}},\n", r.name, r.simulated, r.name, len(parameters), strings.Join(parameters, ""))
	}
	return calls.String() + "static const struct row rows[] = {\n" + table.String() + "};\n"
}

func (r row) types() string {
	var types []string
	for _, p := range r.parameters {
		types = append(types, p.typ)
	}
	return cmp.Or(strings.Join(types, ", "), "void")
}

// size is how many bytes a driver reads behind a parameter, as C.
func (p parameter) size(r row) string {
	count := func(name string) string {
		return fmt.Sprintf("(uint64_t)p%d", slices.IndexFunc(r.parameters, func(p parameter) bool { return p.name == name }))
	}
	switch p.name {
	case "dstArray", "srcArray", "hArray", "hMipmappedArray", "hTexRef", "hNode", "hCtx", "extMem", "extSem", "resource", "pCudaResource", "eglframe", "pool", "userData", "fn", "callback", "callbackFunc":
		return "0" // handles, and what is the program's
	case "nodeParams":
		return "sizeof(struct gp_graph_node)"
	case "mapInfoList":
		return "sizeof(struct gp_array_mapping) * " + count("count")
	case "launchParamsList":
		return "sizeof(struct gp_launch_params) * " + count("numDevices")
	}
	return "1"
}

// restOfDriver is the source of those functions of the table that the simulated driver lacks. Their return value tells which arguments they
// were given.
func restOfDriver(t *testing.T, rows []row) string {
	t.Helper()
	source := `#include "preempt/driver/cuda.h"
typedef struct gp_ipc_handle CUipcMemHandle, CUipcEventHandle;
typedef struct gp_location CUmemLocation;
typedef struct gp_egl_frame CUeglFrame;
static CUresult add(CUresult *sum, uint64_t value) { return *sum = (CUresult)((*sum * 31u + value + 1) % 65521); }
static void look(const void *p, uint64_t bytes)
{
	for (uint64_t i = 0; p && i < bytes; i += 8)
		(void)*((const volatile char *)p + i);
}
static uint64_t kind_of(const void *p) { return !p ? 0 : p == (void *)~0ull ? 1 : 2; }
`
	for _, r := range rows {
		if r.simulated {
			continue
		}
		if r.name == "cuIpcOpenMemHandle" { // drivers have one function for both
			source += "CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int);\n" +
				"CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags) { return cuIpcOpenMemHandle_v2(p, handle, flags); }\n"
			continue
		}
		var parameters []string
		body := ""
		for i, p := range r.parameters {
			parameters = append(parameters, fmt.Sprintf("%s p%d", p.typ, i))
			if p.name == "memptr" { // of memory of cuMemAlloc, which cannot be bound, the library gives 0
				continue
			}
			switch p.class(t) {
			case "VALUE":
				body += fmt.Sprintf("add(&sum, *(unsigned char *)&p%d); ", i)
			case "INTEGER", "DEVICE":
				if strings.HasSuffix(p.name, "Handle") {
					break // the library has numbers of its own for them
				}
				body += fmt.Sprintf("add(&sum, (uint64_t)p%d); ", i)
			case "POINTER":
				body += fmt.Sprintf("look(p%d, %s); ", i, p.size(r))
				fallthrough
			default:
				body += fmt.Sprintf("add(&sum, kind_of((void *)(uintptr_t)p%d)); ", i)
			}
		}
		source += fmt.Sprintf("CUresult %s(%s) { CUresult sum = 0; %sreturn sum + 1000; }\n", r.name, cmp.Or(strings.Join(parameters, ", "), "void"), body)
	}
	return source
}

// wholeDriver builds a driver that has all functions of the table: it is the simulated one, and the rest beside it. It is called
// libcuda.so.1, and needs the simulated one by another name.
func wholeDriver(t *testing.T, dir string, rows []row) string {
	t.Helper()
	source, simulated, driver := filepath.Join(dir, "rest.c"), filepath.Join(dir, "simulated.so"), filepath.Join(dir, "libcuda.so.1")
	write(t, source, restOfDriver(t, rows))
	write(t, filepath.Join(dir, "empty.c"), "")
	for _, arguments := range [][]string{
		{"-o", simulated, filepath.Join(dir, "empty.c")},
		{"-I" + root, "-Wall", "-Werror", "-o", driver, source, "-Wl,--no-as-needed,-soname,libcuda.so.1", simulated},
	} {
		if out, err := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-O1"}, arguments...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	if err := errors.Join(os.Remove(simulated), os.Symlink(built("sim/libcuda.so.1"), simulated)); err != nil {
		t.Fatal(err)
	}
	return driver
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The states of a call of testdata/arguments.c.
const (
	notMade, begun, made, skipped = 0, 1, 2, 3
	calls                         = 1 << 15
)

// answer is a result of testdata/arguments.c.
type answer struct {
	State, Row    uint32
	Status, After int32
	Written       uint64
}

func (a answer) String() string {
	if a.State != made {
		return "the process ended"
	}
	return fmt.Sprintf("%d, then %d, written %#x", a.Status, a.After, a.Written)
}

// caller runs the program on a machine of its own, in one role.
type caller struct {
	*machine
	program, driver, role string
	library               bool // is preloaded
	seconds               int  // that a call may take
}

func (c caller) command(results string, first int, more ...string) *exec.Cmd {
	image := filepath.Join(root, "test/simcuda/kernels/sim.cubin")
	command := c.machine.command(c.role, c.program, append([]string{results, image, strconv.Itoa(first), strconv.Itoa(c.seconds)}, more...)...)
	// The driver needs the simulated one, which has to come before libc.
	preload := []string{c.driver, filepath.Join(filepath.Dir(c.driver), "simulated.so")}
	if c.library {
		preload = append([]string{built("libgpreempt.so")}, preload...)
	}
	command.Env = append(command.Env, "LD_PRELOAD="+strings.Join(preload, ":"))
	return command
}

// answers makes the calls that want says were made.
func (c caller) answers(want []answer) []answer {
	c.t.Helper()
	results, all := filepath.Join(c.dir, "results"), make([]answer, calls)
	for i := range want {
		if want[i].State != made {
			all[i].State = skipped
		}
	}
	c.save(results, all)
	for first := 0; ; {
		out, err := c.command(results, first).CombinedOutput()
		all = c.load(results)
		if err == nil {
			return all
		}
		last := len(all) - 1
		for last >= first && all[last].State != begun && all[last].State != made {
			last--
		}
		if last < first { // it ended before its first call
			c.t.Fatalf("%v at call %d\n%s", err, first, out)
		}
		first = last + 1
	}
}

// answer makes one call, in a process of its own.
func (c caller) answer(call int) answer {
	c.t.Helper()
	results := filepath.Join(c.dir, "result")
	c.save(results, make([]answer, calls))
	out, err := c.command(results, call, "once").CombinedOutput()
	a := c.load(results)[call]
	if a.State == notMade {
		c.t.Fatalf("%v at call %d\n%s", err, call, out)
	}
	return a
}

// says prints the call.
func (c caller) says(call int) string {
	out, err := c.command("-", call).Output()
	return fmt.Sprint(strings.TrimSpace(string(out)), strings.TrimPrefix(fmt.Sprint(err), "<nil>"))
}

// raw are the bytes of answers, as the program has them.
func raw(all []answer) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(all))), len(all)*int(unsafe.Sizeof(answer{})))
}

func (c caller) save(path string, all []answer) {
	c.t.Helper()
	if err := os.WriteFile(path, raw(all), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c caller) load(path string) []answer {
	c.t.Helper()
	all, text := make([]answer, calls), read(c.t, path)
	if n := copy(raw(all), text); n != len(raw(all)) || n != len(text) {
		c.t.Fatalf("%s has %d bytes, must have %d", path, len(text), len(raw(all)))
	}
	return all
}

// Every intercepted function answers as without the library, whatever it is given. Which arguments the driver does not survive is found out
// first, without the library.
func TestArguments(t *testing.T) {
	t.Parallel()
	rows, dir := tableRows(t), folder(t)
	write(t, filepath.Join(dir, "rows.h"), rowsHeader(t, rows))
	program := compile(t, "testdata/arguments.c", "-I"+dir, "-I"+root, "-rdynamic")
	driver := wholeDriver(t, dir, rows)
	bare := caller{newMachine(t, ""), program, driver, "", false, 10}
	want := bare.answers(nil)
	number, of := 0, map[uint32]bool{}
	for _, a := range want {
		if a.State == made {
			of[a.Row] = true
			number++
		}
	}
	if len(of) != len(rows) || number < 20*len(rows) {
		t.Fatalf("%d calls of %d of %d functions were made", number, len(of), len(rows))
	}
	const swap = "mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\", \"blp\", \"swap\"]\n"
	for _, test := range []struct {
		name, role, beside, settings string
		environment                  []string
		deep                         bool // what differs from another case is of no call
	}{
		{"off", "off", "", "", nil, false},
		{"be", "be", "", swap, nil, true}, // between its stops "stopped be" is the same
		{"stopped be", "be", "lc", swap, nil, false},
		{"lc", "lc", "be", "", nil, false},
		{"stopped be under MPS", "be", "lc", "", []string{"SIMCUDA_MPS=1"}, false},
		{"lc under MPS", "lc", "be", "", []string{"SIMCUDA_MPS=1"}, true}, // as "lc": it is never stopped
	} {
		if test.deep && often(0, 1) == 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := caller{newMachine(t, test.settings, test.environment...), program, driver, test.role, true, int(patience.Seconds())}
			if test.beside == "be" {
				c.start("be").runBestEffort()
			} else if test.beside == "lc" {
				requests(t, c.start("lc"))
			}
			got, alone := c.answers(want), caller{newMachine(t, "", test.environment...), program, driver, "", false, 10}
			for i, failures := 0, 0; i < calls && failures < 20; i++ {
				if want[i].State != made || got[i] == want[i] {
					continue
				}
				// A process before may have left another state, and a query may find work done or not.
				if with, without := c.answer(i), alone.answer(i); with != without {
					failures++
					t.Errorf("%s: %v; without the library %v", bare.says(i), with, without)
				}
			}
		})
	}
}

// requests has a process work in short requests until the test ends.
func requests(t *testing.T, lc *process) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				if _, err := fmt.Fprintln(lc.stdin, "lc 20 1 40 3000 stream"); err != nil {
					return
				}
				if _, ok := <-lc.lines; !ok {
					return
				}
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
}
