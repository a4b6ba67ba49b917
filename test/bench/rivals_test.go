package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/report"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// standIn is a daemon that notes down when it begins to serve, and when it is asked to end how many of our processes have its
// variables then. It leaves a child behind.
const standIn = `#!/usr/bin/env python3
import glob, os, signal, socket, subprocess, sys
where, mark, log = %q, %q, %q
def note(text):
    with open(log, "a") as file:
        file.write(text + "\n")
def clients():
    count = 0
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            count += mark.encode() in open(path, "rb").read()
        except OSError:
            pass
    return count
def stop(*_):
    note("stop, %%d clients" %% clients())
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
note("start %%s, child %%d" %% (" ".join(sys.argv[1:]), subprocess.Popen(["sleep", "1000"]).pid))
if where.startswith("/"):
    os.makedirs(os.path.dirname(where), exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(where)
else:
    server = socket.create_server(("127.0.0.1", int(where)))
server.listen()
while True:
    server.accept()[0].close()
`

// rivals is a folder with stand-ins for the parts of rivals, and systems that use them.
type rivals struct {
	folder, log, socket  string
	xsched, tsg, nvshare string // files that describe the systems
	tools                string
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func fakeRivals(t *testing.T) rivals {
	t.Helper()
	folder := t.TempDir()
	r := rivals{folder: folder, log: filepath.Join(folder, "log"), socket: filepath.Join(folder, "run", "nvshare", "s"), tools: fakeMPS(t)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	source := write(t, filepath.Join(folder, "empty.c"), "")
	for _, library := range []string{"xsched/lib/libshimcuda.so", "nvshare/libnvshare.so"} {
		path := filepath.Join(folder, library)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-shared", "-o", path, source).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	if err := os.Symlink("libshimcuda.so", folder+"/xsched/lib/libcuda.so.1"); err != nil {
		t.Fatal(err)
	}
	mark := folder + "/nvshare/libnvshare.so"
	write(t, folder+"/xsched/bin/xserver", fmt.Sprintf(standIn, port, folder+"/xsched/lib", r.log))
	write(t, folder+"/nvshare/nvshare-scheduler", fmt.Sprintf(standIn, r.socket, mark, r.log))
	write(t, folder+"/nvshare/nvsharectl", "#!/bin/sh\necho \"set $*\" >> "+r.log+"\n")
	write(t, r.tools+"/nvidia-smi", "#!/bin/sh\ncase \"$*\" in *memory.used*) echo 1000, 80000;; *uuid*) echo GPU-1-2;; esac\n")
	// The simulated driver is preloaded, so that nothing is found by the folders of libraries.
	preload := "LD_PRELOAD = \"{rivals}/xsched/lib/libshimcuda.so\"\nXSCHED_SCHEDULER"
	r.xsched = r.system(t, "xsched-queues", "50000", port, "XSCHED_SCHEDULER", preload)
	r.tsg = r.system(t, "xsched-tsg", "50000", port, "XSCHED_SCHEDULER", preload)
	r.nvshare = r.system(t, "nvshare", "/var/run/nvshare/scheduler.sock", r.socket, "root = true", "")
	return r
}

// system is a file that describes a built-in system with some changes.
func (r rivals) system(t *testing.T, name string, changes ...string) string {
	t.Helper()
	text, err := os.ReadFile("workload/systems/" + name + ".toml")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		if !bytes.Contains(text, []byte(changes[i])) {
			t.Fatalf("%s has no %s", name, changes[i])
		}
	}
	return write(t, filepath.Join(r.folder, "systems", name+".toml"), strings.NewReplacer(changes...).Replace(string(text)))
}

func (r rivals) options(t *testing.T, progress *bytes.Buffer, systems ...string) Options {
	t.Helper()
	return Options{Suite: "smoke", Library: builtLibrary(t), Progress: progress, Systems: systems, Repeats: 1, Seconds: .5,
		Folder: t.TempDir(), Python: "python3", Busy: true, Rivals: r.folder, tests: forTests{environment: simulated(t), tools: r.tools}}
}

// said is what the stand-ins noted down, without the numbers of their children, which have to be gone.
func (r rivals) said(t *testing.T) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line, child, started := strings.Cut(strings.TrimSpace(line), ", child ")
		if lines = append(lines, line); !started {
			continue
		}
		pid, err := strconv.Atoi(child)
		if err != nil {
			t.Fatal(err)
		}
		awaitGone(t, pid)
	}
	return lines
}

// awaitGone waits until a process that was killed is not there any more.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || bytes.Contains(status, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d runs on", pid)
		}
	}
}

// Daemons are there before their programs and end after them; both systems of XSched have one. Nothing is left.
func TestRivalsAreMeasured(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	var progress bytes.Buffer
	options := r.options(t, &progress, "default", r.xsched, r.tsg, r.nvshare, "nice", "mps-25", "reset")
	results, err := evaluate(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	for _, system := range []string{"default", "xsched-queues", "xsched-tsg", "nvshare", "nice", "mps-25", "reset"} {
		c := results.Of("spin", system)
		if c == nil || c.Note != "" || c.Mark() != "" || len(c.Runs) != 1 {
			t.Errorf("%s: %+v\n%s", system, c, &progress)
			continue
		}
		lc, be := c.Runs[0].Tasks[0], c.Runs[0].Tasks[1]
		if reset := be.Again != nil; lc.Again != nil || reset != (system == "reset") || reset && *be.Again == 0 {
			t.Errorf("%s: BE kernels were reset: %v; LC's: %v", system, be.Again, lc.Again)
		}
	}
	lines := r.said(t)
	slices.Sort(lines)
	if want := []string{"set -T 1", "start ", "start HPF 50000", "stop, 0 clients", "stop, 0 clients"}; !slices.Equal(lines, slices.Sorted(slices.Values(portless(lines, want)))) {
		t.Errorf("the daemons: %q, want %q", lines, want)
	}
	if exists(filepath.Dir(r.socket)) {
		t.Error("the scheduler's folder is still there")
	}
}

// portless is want with the port that was drawn.
func portless(lines, want []string) []string {
	for _, line := range lines {
		if port, ok := strings.CutPrefix(line, "start HPF "); ok {
			want = slices.Clone(want)
			want[slices.Index(want, "start HPF 50000")] = "start HPF " + port
		}
	}
	return want
}

// started starts the programs of the workload spin under a system.
func started(t *testing.T, e *evaluation, name string) (lc, be *worker) {
	t.Helper()
	system, err := workload.Systems([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	w, err := workload.Workloads("smoke", nil)
	if err != nil {
		t.Fatal(err)
	}
	tasks := members(w[0], true, true)
	if err := e.start(t.Context(), system[0], tasks); err != nil {
		t.Fatal(err)
	}
	return tasks[0].program, tasks[1].program
}

func environmentOf(t *testing.T, w *worker) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.pid()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\x00")
}

func preparedEvaluation(t *testing.T, options Options) *evaluation {
	t.Helper()
	e := newEvaluation(options)
	t.Cleanup(e.close)
	if _, err := e.pick(); err != nil {
		t.Fatal(err)
	}
	if err := e.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEnvironmentOfRivals(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	var progress bytes.Buffer
	options := r.options(t, &progress)
	e := preparedEvaluation(t, options)
	shim, driver := r.folder+"/xsched/lib", valueOf(options.tests.environment, "LD_PRELOAD")
	nvshare := r.folder + "/nvshare/libnvshare.so:" + driver
	for _, test := range []struct {
		system string
		lc, be map[string]string
	}{
		{r.xsched, map[string]string{"LD_LIBRARY_PATH": shim + ":" + filepath.Dir(driver), "LD_PRELOAD": shim + "/libshimcuda.so:" + driver,
			"XSCHED_SCHEDULER": "GLB", "XSCHED_AUTO_XQUEUE": "ON", "XSCHED_AUTO_XQUEUE_PRIORITY": "1", "XSCHED_AUTO_XQUEUE_LEVEL": "1"},
			map[string]string{"XSCHED_AUTO_XQUEUE_PRIORITY": "0", "XSCHED_AUTO_XQUEUE_THRESHOLD": "4", "XSCHED_CUDA_LV3_IMPL": ""}},
		{r.tsg, map[string]string{"XSCHED_AUTO_XQUEUE_LEVEL": "3"}, map[string]string{"XSCHED_AUTO_XQUEUE_LEVEL": "3", "XSCHED_CUDA_LV3_IMPL": "TSG"}},
		{r.nvshare, map[string]string{"LD_PRELOAD": nvshare, "LD_LIBRARY_PATH": r.folder + "/nvshare:" + filepath.Dir(driver)}, map[string]string{"LD_PRELOAD": nvshare}},
		{"mps-50", map[string]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PIPE_DIRECTORY": e.folder + "/mps"},
			map[string]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PIPE_DIRECTORY": e.folder + "/mps"}},
		{"default", map[string]string{"LD_PRELOAD": driver}, map[string]string{"XSCHED_SCHEDULER": "", "CUDA_MPS_PIPE_DIRECTORY": e.folder + "/none"}},
	} {
		lc, be := started(t, e, test.system)
		for i, want := range []map[string]string{test.lc, test.be} {
			environment := environmentOf(t, []*worker{lc, be}[i])
			for name, value := range want {
				if got := valueOf(environment, name); got != value {
					t.Errorf("%s, %s: %s=%q, want %q", filepath.Base(test.system), []string{"LC", "BE"}[i], name, got, value)
				}
			}
		}
	}
	ours, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	lc, be := started(t, e, "nice")
	for w, want := range map[*worker]int{lc: ours, be: max(ours-19, 1)} { // as the system call returns it: 20 less the nice value
		if err := initialise([]member{{program: w}}); err != nil {
			t.Fatal(err)
		}
		if err := w.awaitReady(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if got, err := syscall.Getpriority(syscall.PRIO_PROCESS, w.pid()); err != nil || got != want {
			t.Errorf("%s: priority %d, want %d; %v", w.name, got, want, err)
		}
	}
}

// What goes wrong with a rival is told in its case, costs the others nothing, and leaves nothing.
func TestRivalsThatFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, text, want string }{
		"ends":      {"nvshare/nvshare-scheduler", "#!/bin/sh\necho no GPU here >&2\nexit 1\n", "start nvshare-scheduler: the daemon ended: no GPU here"},
		"not set":   {"nvshare/nvsharectl", "#!/bin/sh\necho who are you >&2\nexit 1\n", "nvsharectl: exit status 1: who are you"},
		"no loader": {"nvshare/libnvshare.so", "no library", "libnvshare.so was not loaded into it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := fakeRivals(t)
			write(t, filepath.Join(r.folder, test.file), test.text)
			var progress bytes.Buffer
			results, err := evaluate(t.Context(), r.options(t, &progress, "default", r.nvshare))
			if err != nil {
				t.Fatalf("%v\n%s", err, &progress)
			}
			if c := results.Of("spin", "default"); c == nil || c.Note != "" || len(c.Runs) != 1 {
				t.Errorf("default: %+v", c)
			}
			if c := results.Of("spin", "nvshare"); c == nil || !strings.Contains(c.Note, test.want) || c.Mark() != "" {
				t.Errorf("nvshare: %+v, want %q", c, test.want)
			}
			if !slices.Equal(results.Failed(), []string{"spin under nvshare"}) {
				t.Errorf("failed: %v", results.Failed())
			}
			if exists(r.socket) {
				t.Error("its socket is still there")
			}
			if name != "ends" {
				if lines := r.said(t); lines[len(lines)-1] != "stop, 0 clients" {
					t.Errorf("the daemon: %q", lines)
				}
			}
		})
	}
}

// What is tried again does not keep the calls that have a limit of time from what was never measured.
func TestWhatIsUnknownGoesFirst(t *testing.T) {
	t.Parallel()
	runs := []result.RunResult{{Repeat: 1}, {Repeat: 2}}
	e := &evaluation{options: Options{Repeats: 2}}
	todo := []workload.Workload{{Name: "A"}, {Name: "B"}, {Name: "C"}, {Name: "D"}}
	e.unknownFirst(todo)
	e.known = &result.Evaluation{Cases: []result.EvaluationCase{{Case: "A", System: result.LCAlone, Runs: runs}, {Case: "B", System: "default", Runs: runs}, {Case: "D", System: result.LCAlone, Runs: runs[:1]}}}
	e.unknownFirst(todo)
	if got := strings.Join(names(todo), ""); got != "BCDA" {
		t.Errorf("order %s, want BCDA", got)
	}
}

// Managed memory that may not fit is refused.
func TestManagedMemoryHasToFit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, want string }{
		"fits":         {"1000, 80000", "31000, 30000", ""},
		"does not fit": {"1000, 80000", "31001, 30000", "refused: the other programs take 30001 MiB, and 30000 MiB are free"},
		"unknown":      {"", "", "refused: nvidia-smi does not say"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := fakeRivals(t)
			// The first time that it is asked nothing runs yet.
			write(t, r.tools+"/nvidia-smi", "#!/bin/sh\ncase \"$*\" in *memory.used*) if mkdir "+r.folder+"/asked 2> /dev/null; then echo '"+
				test.before+"'; else echo '"+test.after+"'; fi;; esac\n")
			var progress bytes.Buffer
			results, err := evaluate(t.Context(), r.options(t, &progress, "default", r.nvshare))
			if err != nil {
				t.Fatalf("%v\n%s", err, &progress)
			}
			c := results.Of("spin", "nvshare")
			if c == nil || !strings.Contains(c.Skipped, test.want) || (c.Skipped == "") != (test.want == "") || (len(c.Runs) == 0) != (test.want != "") {
				t.Errorf("%+v, want %q", c, test.want)
			}
			if len(results.Failed()) > 0 {
				t.Errorf("a refusal is a failure: %v", results.Failed())
			}
		})
	}
}

// What a rival cannot take, and what the machine lacks, is marked in each row, in the report and in the file; it is no failure.
func TestRivalsAreMarked(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	python, torch := standInTorch(t)
	var progress bytes.Buffer
	options := r.options(t, &progress, "default", r.xsched, "xsched-tsg", "mps-partition")
	options.Suite, options.Only, options.Python = "full", []string{"A", "spin"}, python
	options.Rivals = t.TempDir() // empty
	options.tests.environment = append(options.tests.environment, torch...)
	for again := range 2 {
		progress.Reset()
		results, err := evaluate(t.Context(), options)
		if err != nil {
			t.Fatalf("%v\n%s", err, &progress)
		}
		if measured := 2 - strings.Count(progress.String(), "measured already"); (measured == 0) != (again == 1) {
			t.Errorf("again, %d workloads are measured:\n%s", measured, &progress)
		}
		for _, want := range []struct{ workload, system, mark, why string }{
			{"A", "default", "", ""}, {"spin", "default", "", ""},
			{"A", "xsched-queues", "cannot", "legacy default stream"}, {"A", "xsched-tsg", "cannot", "legacy default stream"},
			{"spin", "xsched-queues", "skipped", "not there: xsched/bin/xserver"},
			{"A", "mps-partition", "skipped", "needs a driver of CUDA 13.1, this one is of 13.0"},
		} {
			c := results.Of(want.workload, want.system)
			if c == nil || c.Mark() != want.mark || !strings.Contains(c.Cannot+c.Skipped, want.why) || (len(c.Runs) > 0) != (want.mark == "") {
				t.Errorf("%s under %s: %+v, want %s: %s", want.workload, want.system, c, want.mark, want.why)
			}
		}
		if len(results.Failed()) > 0 {
			t.Errorf("failed: %v", results.Failed())
		}
		var table bytes.Buffer
		if err := results.Print(&table); err != nil || !strings.Contains(table.String(), "**cannot**: XSched passes by") {
			t.Errorf("the table: %v\n%s", err, &table)
		}
		folder := t.TempDir()
		path, err := report.Write(results, folder)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("**cannot**: XSched passes by")) || !bytes.Contains(text, []byte("**skipped**: not there: xsched/bin/xserver")) {
			t.Errorf("the report: %v\n%s", err, text)
		}
		file := filepath.Join(folder, "results.json")
		if err := results.Write(file); err != nil {
			t.Fatal(err)
		}
		var read struct {
			Cases []map[string]any `json:"cases"`
		}
		if text, err = os.ReadFile(file); err == nil {
			err = json.Unmarshal(text, &read)
		}
		marked := 0
		for _, c := range read.Cases {
			if c["cannot"] != nil || c["skipped"] != nil {
				marked++
			}
		}
		if err != nil || marked != 6 {
			t.Errorf("the file: %d of 6 marks, %v", marked, err)
		}
	}
	options.Rivals, options.Only = r.folder, []string{"spin"} // now it is there
	results, err := evaluate(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if c := results.Of("spin", "xsched-queues"); c == nil || c.Mark() != "" || len(c.Runs) != 1 {
		t.Errorf("what was skipped and is there now: %+v", c)
	}
}
