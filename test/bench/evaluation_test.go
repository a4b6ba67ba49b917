package bench

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
	m, err := s.startMPS(context.Background(), folder)
	if err != nil {
		t.Fatal(err)
	}
	server, err := os.ReadFile(filepath.Join(folder, "mps", "server"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(server)))
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := s.startMPS(context.Background(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("a daemon that ends: %v", err)
	}
}

// A workload without PyTorch on the simulated driver. So many repeats are measured that there are as many requests as are asked for.
func TestEvaluateOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := Options{Suite: "paper", Only: []string{"spin"}, Library: builtLibrary(t), Progress: &progress, Systems: []string{"default", "gpreempt"},
		Repeats: 1, Requests: 150, Seconds: .8, Folder: t.TempDir(), Python: "python3", tests: forTests{environment: simulated(t)}}
	results, err := evaluate(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if !results.Simulated || len(results.Failed()) > 0 || len(results.Unmeasured()) > 0 {
		t.Errorf("simulated %v, failed %v, left %v", results.Simulated, results.Failed(), results.Unmeasured())
	}
	// 100 requests a second for 0.6 s that count: 150 are 3 repeats.
	for system, runs := range map[string]int{"alone": 3, "be-alone": 1, "default": 3, "gpreempt": 3} {
		c := results.Of("spin", system)
		if c == nil || len(c.Runs) != runs || system != "be-alone" && (c.LC == nil || c.LC.N < 150) || system != "alone" && (c.BE == nil || c.BE.Share <= 0) {
			t.Errorf("%s: %+v\n%s", system, c, &progress)
		}
	}
	progress.Reset()
	if _, err := evaluate(t.Context(), options); err != nil || !strings.Contains(progress.String(), "spin: measured already") {
		t.Errorf("again: %v\n%s", err, &progress)
	}
	other := options
	other.Version = "another"
	if _, err := evaluate(t.Context(), other); err == nil || !strings.Contains(err.Error(), options.Folder+`: commit is "", and "another" now: name another folder with --out`) {
		t.Errorf("goes on from another build's results: %v", err)
	}
	options.Requests, options.Systems = 0, []string{systemFile(t, "deaf", `hints = "given"`)}
	if results, err := evaluate(t.Context(), options); err != nil || !strings.Contains(results.Of("spin", "deaf").Note, "takes no hints") || results.Of("spin", "gpreempt") != nil {
		t.Errorf("hints that nobody takes, by another system than before: %v", err)
	}
	options.Systems, options.Folder = []string{"default", "gpreempt"}, t.TempDir()
	options.Only, options.Python = []string{"A", "spin"}, "no-such-python"
	if results, err := evaluate(t.Context(), options); err == nil || !strings.Contains(err.Error(), "workload A") || results.Of("spin", "gpreempt") == nil {
		t.Errorf("without Python: %v, results %v", err, results)
	}
	options.Folder, options.Minutes = t.TempDir(), .001
	if results, err := evaluate(t.Context(), options); err == nil || results == nil || !slices.Equal(results.Unmeasured(), []string{"spin"}) {
		t.Errorf("no time for the second: %v, results %+v", err, results)
	}
}

// standInTorch is a Python whose PyTorch is a stand-in that does nothing, in this environment.
func standInTorch(t *testing.T) (python string, environment []string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	stub, err := filepath.Abs("testdata/python")
	if err != nil {
		t.Fatal(err)
	}
	return python, []string{"PYTHONPATH=" + stub, "PYTHONDONTWRITEBYTECODE=1"}
}

// The programs of torch/ serve the protocol, PyTorch itself being a stand-in that does nothing.
func TestTorchProgramsServe(t *testing.T) {
	t.Parallel()
	python, torch := standInTorch(t)
	var progress bytes.Buffer
	options := Options{Suite: "paper", Only: []string{"A", "D"}, Library: builtLibrary(t), Progress: &progress,
		Systems: []string{"default", "gpreempt-hints"}, Repeats: 1, Seconds: 1, Folder: t.TempDir(), Python: python,
		tests: forTests{environment: append(simulated(t), torch...)}}
	results, err := evaluate(context.Background(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for _, workload := range []string{"A", "D"} {
		for _, system := range []string{"alone", "default", "gpreempt-hints"} {
			c := results.Of(workload, system)
			if c == nil || c.Note != "" || c.LC == nil || c.LCSubmitted == nil || c.LC.N == 0 || c.LC.N+c.Unserved < 18 || c.Runs[0].Tasks[0].Offered < 18 {
				t.Fatalf("%s under %s: %+v\n%s", workload, system, c, &progress)
			}
			// A request is prepared before it is submitted.
			if c.LCSubmitted.P50Us <= 0 || c.LCSubmitted.P50Us >= c.LC.P50Us {
				t.Errorf("%s under %s: %g us from submission, %g from arrival", workload, system, c.LCSubmitted.P50Us, c.LC.P50Us)
			}
			if system != "alone" && c.Throughput.BE <= 0 {
				t.Errorf("%s under %s: BE did nothing", workload, system)
			}
		}
	}
}

// failing is an evaluation whose programs fail as stub, environment variables, tells the stand-in for PyTorch.
func failing(t *testing.T, progress *bytes.Buffer, stub ...string) Options {
	t.Helper()
	python, torch := standInTorch(t)
	return Options{Suite: "paper", Only: []string{"A"}, Library: builtLibrary(t), Progress: progress, Systems: []string{"default"},
		Repeats: 2, Seconds: 0.4, Folder: t.TempDir(), Python: python,
		tests: forTests{environment: slices.Concat(simulated(t), torch, stub)}}
}

// systemFile describes a system of one's own.
func systemFile(t *testing.T, name, settings string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".toml")
	if err := os.WriteFile(path, []byte("about = \"x\"\n"+settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A failure in one system is noted in its case, and costs the others nothing.
func TestFailuresAreTheirOwn(t *testing.T) {
	t.Parallel()
	type row struct {
		workload, system string
		runs             int
		note             string
	}
	const mps, ofLC, ofBE = "mps = true\n", "[lc]\nSTUB_FAILS = ", "[be]\nSTUB_FAILS = "
	for name, test := range map[string]struct {
		systems map[string]string
		rows    []row
	}{
		"in a run": {map[string]string{"ends": mps + ofLC + `"in-run"`, "beside": mps, "waits": ofLC + `"hangs-in-run"`}, []row{
			{"A", "default", 2, ""}, {"A", "beside", 2, ""}, {"B", "default", 2, ""}, {"B", "beside", 2, ""},
			{"A", "ends", 0, "repeat 1: lc vgg19 (ends): the program ended: as told"}, {"B", "ends", 0, "as told"},
			{"A", "waits", 0, "repeat 1: lc vgg19 (waits): no answer in"}, {"B", "waits", 0, "no answer in"},
		}},
		"at the start": {map[string]string{"refuses": ofBE + `"at-start"`, "never": ofBE + `"hangs-at-start"`}, []row{
			{"A", "alone", 2, ""}, {"A", "be-alone", 1, ""}, {"A", "default", 2, ""}, {"B", "default", 2, ""},
			{"A", "refuses", 0, "be resnet152 (refuses): the program ended: as told"},
			{"A", "never", 0, "be resnet152 (never): no answer in"}, {"B", "never", 0, "be resnet152 (never): no answer in"},
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
			for system, text := range test.systems {
				options.Systems = append(options.Systems, systemFile(t, system, text))
			}
			results, err := evaluate(t.Context(), options)
			if err != nil {
				t.Fatalf("%v\n%s", err, &progress)
			}
			for _, want := range test.rows {
				c := results.Of(want.workload, want.system)
				if c == nil || len(c.Runs) != want.runs || !strings.Contains(c.Note, want.note) || want.note == "" && c.Note != "" {
					t.Errorf("%s under %s: %+v, want %d runs and %q", want.workload, want.system, c, want.runs, want.note)
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
	options.Systems = append(options.Systems, systemFile(t, "other", ""))
	results, err := evaluate(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	runs, notes := 0, 0
	for _, c := range results.Cases {
		runs += len(c.Runs)
		if strings.Contains(c.Note, "as told") {
			notes++
		}
	}
	if notes != 1 || runs < 5 {
		t.Errorf("a program that failed once: %d runs of at most 7, %d notes\n%s", runs, notes, &progress)
	}
}

// A workload whose programs do not even run alone is tried again.
func TestProgramsThatDoNotStart(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := failing(t, &progress, "STUB_FAILS=at-start")
	results, err := evaluate(t.Context(), options)
	if err == nil || results == nil {
		t.Fatalf("no program starts: %v, %+v", err, results)
	}
	for _, c := range results.Cases {
		if !strings.Contains(c.Note, "the program ended: as told") {
			t.Errorf("A under %s: %q", c.System, c.Note)
		}
	}
	options.tests.environment = append(options.tests.environment, "STUB_FAILS=")
	if results, err = evaluate(t.Context(), options); err != nil || results.Of("A", "default").LC == nil {
		t.Errorf("tried again: %v\n%s", err, &progress)
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

func TestPlan(t *testing.T) {
	var out bytes.Buffer
	options := Options{Suite: "paper", Repeats: 2, Seconds: 1.5}
	if err := planEvaluation(&out, options); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 runs of 1.5s", "alone, be-alone, default, mps", "\nA  ", "\nREAL  "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, &out)
		}
	}
	// The first of two workloads with the same programs starts them; a system without settings needs none of its own.
	e := &evaluation{options: Options{Suite: "paper", Only: []string{"A", "B"}, Systems: []string{"default", systemFile(t, "other", "")}, Repeats: 1, Seconds: 1}}
	picked, err := e.pick()
	if err != nil {
		t.Fatal(err)
	}
	running := map[string]bool{}
	first, count := e.starting(picked[0], running)
	if first < importTorch || count != 2 || len(running) != 2 {
		t.Errorf("A: %s, %d processes", first, count)
	}
	if again, count := e.starting(picked[1], running); again != 0 || count != 2 {
		t.Errorf("B after A: %s, %d processes", again, count)
	}
}

// Requests that wait at the end of a run are served, unless the run is over for a program because the file is there.
func TestRunsEnd(t *testing.T) {
	t.Parallel()
	options := Options{Library: builtLibrary(t), Python: "python3", Progress: io.Discard}
	t.Run("C", func(t *testing.T) {
		t.Parallel()
		options := options
		options.tests.environment = simulated(t)
		runsEnd(t, options, "spin-short")
	})
	t.Run("Python", func(t *testing.T) {
		t.Parallel()
		python, torch := standInTorch(t)
		options := options
		options.Python, options.tests.environment = python, append(simulated(t), torch...)
		runsEnd(t, options, "vgg19")
	})
}

func runsEnd(t *testing.T, options Options, program string) {
	t.Helper()
	e := newEvaluation(newSession(options))
	defer e.close()
	if err := e.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := filepath.Join(e.session.folder, "stop")
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := e.startProgram(t.Context(), workload.System{}, "be", workload.Task{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	started := []member{{program: p}}
	if err := ready(t.Context(), started); err != nil {
		t.Fatal(err)
	}
	arrivals := make([]time.Duration, 3) // all when the run begins and ends
	for _, test := range []struct {
		stop     string
		unserved int
	}{{stop, 3}, {"-", 0}, {filepath.Join(e.session.folder, "none"), 0}} {
		now, err := monotonic()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.send(goOrder(now, now, 0, false, test.stop, arrivals)); err != nil {
			t.Fatal(err)
		}
		a, err := p.answerGo(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.DoneNs) != len(arrivals)-test.unserved || a.Unserved != test.unserved {
			t.Errorf("stop %q: %d done, %d unserved", filepath.Base(test.stop), len(a.DoneNs), a.Unserved)
		}
	}
}
