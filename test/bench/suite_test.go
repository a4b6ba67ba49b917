package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// simulatedOptions are those of a suite on the simulated driver.
func simulatedOptions(t *testing.T, suite string, progress *bytes.Buffer, only ...string) Options {
	t.Helper()
	return Options{Suite: suite, Only: only, Library: builtLibrary(t), Version: "test", Progress: progress, Folder: t.TempDir(),
		Python: "python3", tests: forTests{environment: simulated(t)}}
}

// rowsOfAStream are those of a case of blp-stream: four systems, and the stops under the library.
const rowsOfAStream = 5

// Cases that a folder has are not measured again, those that failed are, and results of several calls are one.
func TestPartialResults(t *testing.T) {
	t.Parallel()
	suite := suiteOfCases(t, "blp-stream")
	var progress bytes.Buffer
	options := simulatedOptions(t, suite.Name, &progress, "stream-10us-blocks")
	options.Requests = 1
	first, err := suite.Measure(t.Context(), options)
	if err != nil || len(first.Cases) != rowsOfAStream || !first.Simulated {
		t.Fatalf("%v, %+v\n%s", err, first, &progress)
	}
	for _, want := range []string{"blp-stream: 1 cases, about 0:25; partial results are in " + options.Folder + "\nblp-stream: looks at the GPU\n",
		"stream-10us-blocks: begins, takes about 25 s"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("the progress lacks %q:\n%s", want, &progress)
		}
	}
	progress.Reset()
	options.Only = []string{"stream-10us-blocks", "stream-100us-blocks"}
	both, err := suite.Measure(t.Context(), options)
	if err != nil || len(both.Cases) != 2*rowsOfAStream || strings.Count(progress.String(), "measured already") != 1 {
		t.Fatalf("%v, %+v\n%s", err, both, &progress)
	}
	if !reflect.DeepEqual(both.Cases[:rowsOfAStream], first.Cases) {
		t.Errorf("%+v, earlier %+v", both.Cases, first.Cases)
	}
	reports, err := ReadParts(options.Folder)
	if err != nil || len(reports) != 1 || reports[0].Benchmark != suite.Name || len(reports[0].Cases) != len(both.Cases) {
		t.Errorf("read: %v, %+v", err, reports)
	}
	path := suite.partPath(options.Folder, "stream-10us-blocks")
	options.Version = "another"
	if _, err := suite.Measure(t.Context(), options); err == nil || !strings.Contains(err.Error(), ": commit is \"test\", and \"another\" now: name another folder with --out") {
		t.Errorf("went on from another build's results: %v", err)
	}
	options.Version = "test"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	failed := strings.Replace(string(text), `"cases": [`, `"cases": [{"case": "stream-10us-blocks", "system": "gpreempt", "target": "x", "pass": false, "note": "it hung"},`, 1)
	if err := os.WriteFile(path, []byte(failed), 0o600); err != nil {
		t.Fatal(err)
	}
	progress.Reset()
	if again, err := suite.Measure(t.Context(), options); err != nil || len(again.Failed()) != 0 || len(again.Left) != 0 || strings.Count(progress.String(), "measured already") != 1 {
		t.Errorf("what failed: %v, %v\n%s", err, again.Failed(), &progress)
	}
	if _, err := ReadParts(t.TempDir()); err == nil {
		t.Error("a report of nothing")
	}
}

// prepared is a session that has looked at its GPU and has its folders.
func prepared(t *testing.T, options Options) *session {
	t.Helper()
	s := newSession(options)
	succeed(t, func() {
		s.prepare(t.Context())
		t.Cleanup(s.makeFolders())
	})
	return s
}

// preparedSession is one of a suite with programs in Python, on the simulated driver.
func preparedSession(t *testing.T, suite string, environment ...string) *session {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("no Python: %v", err)
	}
	options := simulatedOptions(t, suite, &bytes.Buffer{})
	options.Python = python
	options.tests.environment = append(options.tests.environment, environment...)
	return prepared(t, options)
}

// succeed is a test of steps that are to succeed.
func succeed(t *testing.T, steps func()) {
	t.Helper()
	if err := caught(steps); err != nil {
		t.Fatal(err)
	}
}

// fireSession is a session in which a program that computes what its name says stands in for those of PyTorch.
func fireSession(t *testing.T, suite string, environment ...string) *session {
	t.Helper()
	s := preparedSession(t, suite, append(standIns(t), environment...)...)
	text, err := os.ReadFile("testdata/fire_program.py")
	if err == nil {
		err = os.WriteFile(filepath.Join(s.files, "fire", "torch_programs.py"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A wrong result of a program under fire is found.
func TestFireFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := fireSession(t, "blp-fire")
	s.options.Seconds = .2
	s.mechanisms = onlyStops
	measured := func(program string) (*fire, result.Row) {
		one := *s
		one.report, one.options.Folder = &result.Report{}, t.TempDir()
		f := &fire{session: &one, program: program, ordeal: stops{}}
		succeed(t, func() { f.measure(t.Context(), "fire-"+program) })
		return f, one.report.Cases[0]
	}
	for program, want := range map[string]string{
		"same":             "rounds under fire",
		"different-as-be":  "as BE: different from step 1 of 3 on",
		"different-rounds": "as BE, undisturbed: 2 of 5 rounds different, first round 3, step 1",
	} {
		f, row := measured(program)
		if row.Pass == nil || *row.Pass || !strings.Contains(row.Note, want) || row.System != "gpreempt" || row.Unit != "stops" {
			t.Errorf("%s: %+v, want %q", program, row, want)
		}
		if (program == "same") == f.different {
			t.Errorf("%s: different: %v", program, f.different)
		}
	}
	s.options.Seconds = 2
	f, row := measured("kernels")
	// A slow machine gets more rounds.
	for deadline := time.Now().Add(time.Minute); (row.BLP.Stops < 20 || f.peerRequests < 20) && time.Now().Before(deadline); {
		f, row = measured("kernels")
	}
	if row.BLP.Stops < 20 || row.BLP.Cuts == 0 || *row.Value != float64(row.BLP.Stops) || f.different || strings.Contains(row.Note, "HANG") ||
		row.Target != fireTarget || f.peerRequests < 20 || !strings.Contains(row.Note, "LC requests; ") || !slices.Contains(row.BLP.Mechanisms, "blp") {
		t.Errorf("what the GPU does: %+v, %+v, %d LC requests", row, row.BLP, f.peerRequests)
	}
	for stops, enough := range map[uint64]bool{1000: true, 999: false} {
		var counted result.Counted
		if counted.Stops, counted.Cuts = stops, 1; enoughStops(counted) != enough {
			t.Errorf("enough with %d stops: %v", stops, !enough)
		}
	}
	for program, want := range map[string]string{
		"random": "NOT DETERMINISTIC without the library", "ends": "the program ended: as told", "silent": "no steps",
	} {
		f := &fire{session: s, program: program}
		if err := caught(func() { f.alone(t.Context()) }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", program, err, want)
		}
	}
}

// Programs tell by their environment in which way they run, on the simulated driver.
func TestProgramsAreComparedInEachWay(t *testing.T) {
	t.Parallel()
	s := preparedSession(t, programsSuite)
	succeed(t, func() { s.configure("") })
	const settings = "import os, sys; role = os.environ.get('GPREEMPT_PRIORITY', ''); blp = role and '[\"blp\"]' in open(os.environ['GPREEMPT_CONFIG']).read()\n"
	for program, test := range map[string]struct{ text, ways, note string }{
		"same":   {"print(42)", "be same, blp same, blp-fire same, not stopped, fire same, lc same, off same, swap same, not evicted", ""},
		"other":  {"print(bool(blp))", "be same, blp different, blp-fire different, fire same, lc same, off same, swap same, not evicted", "blp: printed"},
		"fails":  {"sys.exit('as told' if role == 'lc' else 0)", "be same, blp same, blp-fire same, not stopped, fire same, lc fails, off same, swap same, not evicted", "lc: exit status 1: as told"},
		"random": {"print(os.urandom(4))", "", "NOT DETERMINISTIC without the library"},
		"import": {"import there_is_no_such_module", "", "without the library: ModuleNotFoundError"},
		"lacks":  {"print('no such package', file=sys.stderr); sys.exit(77)", "", "without the library: no such package"},
		"more":   {"print(42)", "", "needs 2 GPUs"},
	} {
		if err := os.WriteFile(filepath.Join(s.files, "programs", program+".py"), []byte(settings+test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		one := s
		one.report = &result.Report{}
		listed := workload.Program{Name: program}
		if program == "more" {
			listed.GPUs = 2
		}
		err := caught(func() { eachWay.measure(t.Context(), one, "program-"+program, listed) })
		if test.ways == "" {
			var left leftOut
			if err == nil || !strings.Contains(err.Error(), test.note) || errors.As(err, &left) != slices.Contains([]string{"lacks", "more", "import"}, program) {
				t.Errorf("%s: %v", program, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var ways []string
		for _, way := range slices.Sorted(maps.Keys(one.report.Cases[0].Ways)) {
			ways = append(ways, way+" "+one.report.Cases[0].Ways[way])
		}
		row := one.report.Cases[0]
		if got := strings.Join(ways, ", "); got != test.ways || *row.Pass != (program == "same") || !strings.HasPrefix(row.Note, test.note) {
			t.Errorf("%s: %s, %+v", program, got, row)
		}
	}
	s.report = &result.Report{}
	succeed(t, func() { eachRole.measure(t.Context(), s, "identity-fails", workload.Program{Name: "fails"}) })
	if row := s.report.Cases[0]; *row.Value != 2 || row.Unit != "of 3 identical" || *row.Pass || row.Note != "lc: exit status 1: as told" {
		t.Errorf("%+v", row)
	}
}

// watch sees what the library does in a program's processes while they run, and their memory goes out.
func TestProgramsAreWatched(t *testing.T) {
	t.Parallel()
	s := preparedSession(t, programsSuite)
	s.mechanisms = memoryMechanisms
	succeed(t, func() {
		path := s.swapConfig("watched")
		w := s.hold(t.Context(), "be", path, 64<<20)
		defer s.finish(w)
		before := w.sum(t.Context())
		directory := must(configs.Load(path)).Segment.Directory
		what := seen{stops: map[int32]uint64{}, evictions: map[int32]uint64{}}
		check(awaited(t.Context(), time.Minute, func() error {
			if lookAt(directory, w.pid(), true, &what); !strings.Contains(what.text(), " evictions") {
				return fmt.Errorf("seen: %q", what.text())
			}
			return nil
		}))
		if after := w.sum(t.Context()); after != before {
			t.Errorf("%s, before %s", after, before)
		}
		others := seen{stops: map[int32]uint64{}, evictions: map[int32]uint64{}}
		if lookAt(directory, os.Getpid(), true, &others); len(others.evictions) > 0 {
			t.Errorf("of another group: %v", others)
		}
	})
}

// Each program has a row, and each row a program.
func TestProgramsAreThere(t *testing.T) {
	files, err := torchPrograms.ReadDir("torch/programs")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, file := range files {
		if name, isProgram := strings.CutSuffix(file.Name(), ".py"); isProgram {
			there[name] = true
		}
	}
	for _, program := range workload.Programs {
		if !there[program.Name] {
			t.Errorf("%s is not there", program.Name)
		}
		delete(there, program.Name)
	}
	if len(there) > 0 {
		t.Errorf("no rows for %v", there)
	}
	if n := len(programCases()); n != 11+len(workload.Programs) {
		t.Errorf("%d cases", n)
	}
}

// A stop from a width is compared with the whole one before it.
func TestStopsFromAWidth(t *testing.T) {
	stop := func(name, system string, p99 float64) result.Row {
		return result.Row{Case: name, System: system, LC: &result.Latency{N: 9, P50Us: 9, P99Us: p99}}
	}
	rows := []result.Row{stop("other-stop", "gpreempt-width-16", 1), stop("x", "gpreempt", 1), stop("x-stop", "gpreempt", 100), stop("x", "gpreempt-width-16", 1),
		stop("x-stop", "gpreempt-width-16", 110), stop("x-stop", "gpreempt-width-32", 110.2)}
	if err := judgeStops(rows, "x", "as long"); err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		switch judged := i > 3; {
		case (row.Pass != nil) != judged:
			t.Errorf("%s under %s: %v", row.Case, row.System, row.Pass)
		case judged && (*row.Pass != (i == 4) || row.LCAlone.P99Us != 100 || row.Target != "as long"):
			t.Errorf("%+v", row)
		}
	}
	if err := judgeStops(rows[4:], "x", ""); err == nil {
		t.Error("compared with nothing")
	}
}

// An interruption leaves no process, no MPS server and no file behind.
func TestSuiteInterrupted(t *testing.T) {
	t.Parallel()
	for suite, only := range map[string]string{"foundation": "four-be", "blp-mps": "mps-1x40us-beside-10us-blocks"} {
		var progress bytes.Buffer
		options := simulatedOptions(t, suite, &progress, only)
		options.tests.tools, options.tests.temporary = fakeMPS(t), t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		report, err := suiteOfCases(t, suite).Measure(ctx, options)
		cancel()
		if err == nil || report != nil {
			t.Errorf("%s: %v, %+v\n%s", suite, err, report, &progress)
		}
		if left, err := os.ReadDir(options.tests.temporary); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", suite, left, err)
		}
		for deadline := time.Now().Add(time.Minute); ; { // what is killed may be there for a while
			left := processesWith(t, options.tests.environment)
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: processes %v are left", suite, left)
			}
		}
	}
}

// processesWith are the processes that were started with this environment's simulated driver.
func processesWith(t *testing.T, environment []string) (found []string) {
	t.Helper()
	variable := environment[slices.IndexFunc(environment, func(entry string) bool { return strings.HasPrefix(entry, "SIMCUDA_DIR=") })]
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err == nil && slices.Contains(strings.Split(string(text), "\x00"), variable) {
			found = append(found, path)
		}
	}
	return found
}

// An LC process counts a request, however soon the order to stop comes, also while it warms up.
func TestStoppedLCHasARequest(t *testing.T) {
	t.Parallel()
	s := prepared(t, simulatedOptions(t, "foundation", &bytes.Buffer{}))
	succeed(t, func() {
		options := append(s.lcOptions(t.Context(), single), "--warm-up", "1000000", "--seconds", "55")
		w := s.start(t.Context(), "", "lc", options...)
		defer s.finish(w)
		var lc lcResult
		w.begin(t.Context())
		if check(w.ask(t.Context(), answerLimit, &lc, "stop")); len(lc.LatenciesNs) == 0 {
			t.Errorf("%+v", lc)
		}
	})
}
