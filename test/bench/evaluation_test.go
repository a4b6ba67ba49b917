package bench

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// fakeMPS makes a folder with a stand-in for the MPS control daemon: it ends at the order quit, and its child does not.
func fakeMPS(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	script := "#!/bin/sh\ncd" + ` "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
	sleep 1000 & echo $! > server
	mkfifo quit && : > control && read line < quit && exit 0
fi
read line && echo "$line" > "$(dirname "$0")/told" && echo "$line" > quit

`
	if err := os.WriteFile(filepath.Join(folder, "nvidia-cuda-mps-control"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestMPSDaemon(t *testing.T) {
	t.Parallel()
	tools, folder := fakeMPS(t), t.TempDir()
	s := &session{options: Options{tests: forTests{tools: tools}}}
	var m *mpsDaemon
	var pid int
	succeed(t, func() {
		m = s.startMPS(context.Background(), folder)
		pid = must(strconv.Atoi(strings.TrimSpace(string(must(os.ReadFile(filepath.Join(folder, "mps", "server")))))))
	})
	m.stop()
	if told, err := os.ReadFile(filepath.Join(tools, "told")); err != nil || string(told) != "quit -t 5\n" {
		t.Errorf("told %q, %v", told, err)
	}
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || bytes.Contains(status, []byte(") Z ")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server runs on")
		}
	}
	if _, err := os.Stat(m.pipes); err == nil {
		t.Error("its pipes are still there")
	}
	if err := os.WriteFile(filepath.Join(tools, "nvidia-cuda-mps-control"), []byte("#!/bin/sh\necho no GPU >&2; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := caught(func() { s.startMPS(context.Background(), t.TempDir()) }); err == nil || !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("a daemon that ends: %v", err)
	}
}

// evaluated measures workloads on the simulated driver.
func evaluated(t *testing.T, options Options) *result.Report {
	t.Helper()
	r, err := suiteOfCases(t, workload.Suite).Measure(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, options.Progress)
	}
	return r
}

// under is the row of a workload under a system.
func under(r *result.Report, name, system string) *result.Row {
	for i := range r.Cases {
		if r.Cases[i].Case == name && r.Cases[i].System == system {
			return &r.Cases[i]
		}
	}
	return &result.Row{}
}

// Workloads on the simulated driver, with a stand-in for PyTorch. So many repeats are measured that there are as many requests as are asked for.
func TestEvaluateOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := failing(t, &progress, "STUB_CUDA=1")
	options.Only, options.Systems, options.Repeats, options.Requests, options.Seconds = []string{"A", "D"}, []string{"default", "gpreempt-hints"}, 1, 150, .8
	r := evaluated(t, options)
	if !r.Simulated || len(r.Failed()) > 0 || len(r.Cases) != 6 {
		t.Fatalf("%+v\n%s", r, &progress)
	}
	for _, row := range r.Cases { // 100 requests a second for 0.6 s that count: 150 are 3 repeats
		if row.LC == nil || row.LC.N < 150 || row.System != result.LCAlone && row.Throughput.BE <= 0 {
			t.Errorf("%+v\n%s", row, &progress)
		}
	}
	if row := under(r, "A", "gpreempt-hints"); row.Ratio == nil || row.Ratio.Mean <= 0 || row.Throughput.BEOfDefault <= 0 {
		t.Errorf("%+v", row)
	}
	progress.Reset()
	if evaluated(t, options); !strings.Contains(progress.String(), "D: measured already") {
		t.Errorf("again:\n%s", &progress)
	}
	options.Only, options.Requests, options.Systems = []string{"A"}, 0, nil
	options.measureUnder(workload.System{Name: "deaf", Hints: "given"})
	if r := evaluated(t, options); len(r.Cases) != 5 || !strings.Contains(under(r, "A", "deaf").Note, "takes no hints") {
		t.Errorf("hints that nobody takes, by another system than before: %+v", r)
	}
	options.Systems, options.Python = []string{"default"}, "no-such-python"
	if r := evaluated(t, options); len(r.Failed()) != 1 || !strings.Contains(r.Cases[0].Note, "needs no-such-python with PyTorch") {
		t.Errorf("without Python: %+v", r)
	}
}

// standInTorch is a Python whose PyTorch is a stand-in that does nothing, in this environment.
func standInTorch(t *testing.T) (python string, environment []string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	return python, standIns(t)
}

// standIns is an environment in which Python finds stand-ins for PyTorch and vLLM.
func standIns(t *testing.T) []string {
	t.Helper()
	folder, err := filepath.Abs("testdata/python")
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PYTHONPATH=" + folder, "PYTHONDONTWRITEBYTECODE=1"}
}

// failing is an evaluation whose programs fail as stub, environment variables, tells the stand-in for PyTorch.
func failing(t *testing.T, progress *bytes.Buffer, stub ...string) Options {
	t.Helper()
	python, torch := standInTorch(t)
	options := simulatedOptions(t, workload.Suite, progress, "A")
	options.Python, options.Systems, options.Repeats, options.Seconds = python, []string{"default"}, 2, .4
	options.tests.environment = slices.Concat(options.tests.environment, torch, stub)
	return options
}

// measureUnder has systems of a test's own measured, after those that are there by name.
func (o *Options) measureUnder(systems ...workload.System) {
	o.tests.systems = systems
	for _, system := range systems {
		o.Systems = append(o.Systems, system.Name)
	}
}

// A failure in one system is noted in its case, and costs the others nothing.
func TestFailuresAreTheirOwn(t *testing.T) {
	t.Parallel()
	type row struct {
		workload, system, note string
	}
	as := func(how string) map[string]string { return map[string]string{"STUB_FAILS": how} }
	for name, test := range map[string]struct {
		systems []workload.System
		rows    []row
	}{
		"in a run": {[]workload.System{{Name: "ends", MPS: true, LC: as("in-run")}, {Name: "beside", MPS: true}, {Name: "waits", LC: as("hangs-in-run")}}, []row{
			{"A", "default", ""}, {"A", "beside", ""}, {"B", "default", ""}, {"B", "beside", ""},
			{"A", "ends", "repeat 1: lc vgg19 (ends): the program ended: as told"}, {"B", "ends", "as told"},
			{"A", "waits", "repeat 1: lc vgg19 (waits): no answer in"}, {"B", "waits", "no answer in"},
		}},
		"at the start": {[]workload.System{{Name: "refuses", BE: as("at-start")}, {Name: "never", BE: as("hangs-at-start")}}, []row{
			{"A", "alone", ""}, {"A", "default", ""}, {"B", "default", ""},
			{"A", "refuses", "be resnet152 (refuses): the program ended: as told"},
			{"A", "never", "be resnet152 (never): no answer in"}, {"B", "never", "be resnet152 (never): no answer in"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var progress bytes.Buffer
			options := failing(t, &progress)
			options.Only = []string{"A", "B"}
			options.tests.tools = fakeMPS(t)
			// Programs that hang are waited for as long; for others it is enough.
			options.tests.limits = limits{start: 15 * time.Second, answer: 5 * time.Second}
			options.measureUnder(test.systems...)
			r := evaluated(t, options)
			for _, want := range test.rows {
				row := under(r, want.workload, want.system)
				if !strings.Contains(row.Note, want.note) || (want.note == "") != (row.Throughput != nil) {
					t.Errorf("%s under %s: %+v, want %q", want.workload, want.system, row, want.note)
				}
			}
		})
	}
}

// Programs that several systems share are started again for the others.
func TestSharedProgramThatFailedOnce(t *testing.T) {
	t.Parallel()
	once := filepath.Join(t.TempDir(), "once")
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	options := failing(t, &progress, "STUB_ONCE="+once, "STUB_FAILS=in-run")
	options.measureUnder(workload.System{Name: "other"})
	notes := 0
	for _, row := range evaluated(t, options).Cases {
		if strings.Contains(row.Note, "as told") {
			notes++
		} else if row.Throughput == nil {
			t.Errorf("%+v", row)
		}
	}
	if notes != 1 {
		t.Errorf("a program that failed once: %d notes\n%s", notes, &progress)
	}
}

// A workload whose programs do not even run alone is tried again.
func TestProgramsThatDoNotStart(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := failing(t, &progress, "STUB_FAILS=at-start")
	if r := evaluated(t, options); len(r.Cases) != 1 || len(r.Failed()) != 1 || !strings.Contains(r.Cases[0].Note, "the program ended: as told") {
		t.Fatalf("no program starts: %+v", r)
	}
	options.tests.environment = append(options.tests.environment, "STUB_FAILS=")
	if r := evaluated(t, options); under(r, "A", "default").LC == nil {
		t.Errorf("tried again: %+v\n%s", r, &progress)
	}
}

func builtLibrary(t *testing.T) string {
	t.Helper()
	library, err := filepath.Abs("../../build/libgpreempt.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	return library
}

// simulated is an environment with a simulated driver, whose GPUs are of this call.
func simulated(t *testing.T) (environment []string) {
	t.Helper()
	driver, err := filepath.Abs("../../build/sim/libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(driver); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	return []string{"LD_PRELOAD=" + driver, "LD_LIBRARY_PATH=" + filepath.Dir(driver), "SIMCUDA_DIR=" + t.TempDir()}
}

// A program sees the first GPU that we may use. An MPS server that sees one GPU of several numbers it 0, whatever number it has for us.
func TestVisibleDevice(t *testing.T) {
	for _, test := range []struct{ ours, first, ofMPS string }{{"", "", ""}, {"3", "3", "0"}, {"3,5", "3", "0"}, {"GPU-a", "GPU-a", "0"}} {
		if first, ofMPS := visibleDevice(test.ours, false), visibleDevice(test.ours, true); first != test.first || ofMPS != test.ofMPS {
			t.Errorf("%+v: %q, of MPS %q", test, first, ofMPS)
		}
	}
	if got := clientOfMPS("/pipes", "2,3"); !slices.Equal(got, []string{"CUDA_MPS_PIPE_DIRECTORY=/pipes", "CUDA_VISIBLE_DEVICES=0"}) {
		t.Errorf("%q", got)
	}
}

// Requests that wait at the end of a run are served, unless the run is over for a program because the file is there.
func TestRunsEnd(t *testing.T) {
	t.Parallel()
	e := newEvaluation(prepared(t, failing(t, &bytes.Buffer{})))
	defer e.close()
	succeed(t, func() {
		stop := filepath.Join(e.session.folder, "stop")
		check(os.WriteFile(stop, nil, 0o600))
		p := e.startProgram(t.Context(), workload.System{}, "be", workload.Task{Program: "vgg19"})
		defer p.end()
		ready(t.Context(), []member{{program: p}})
		arrivals := make([]time.Duration, 3) // all when the run begins and ends
		for _, test := range []struct {
			stop     string
			unserved int
		}{{stop, 3}, {"-", 0}, {filepath.Join(e.session.folder, "none"), 0}} {
			now := monotonic()
			check(p.send(goOrder(now, now, 0, false, test.stop, arrivals)))
			if a := p.answerGo(t.Context(), time.Minute); len(a.DoneNs) != len(arrivals)-test.unserved {
				t.Errorf("stop %q: %d done", filepath.Base(test.stop), len(a.DoneNs))
			}
		}
	})
}
