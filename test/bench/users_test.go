package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Several LC processes leave what their requests would take alone; BE counts while all of them were measured.
func TestSumUp(t *testing.T) {
	alone := lcResult{StartNs: 0, EndNs: 1e9, LatenciesNs: []uint64{1e8, 1e8}}
	lc := []lcResult{
		{StartNs: 0, EndNs: 2e9, LatenciesNs: []uint64{2e8, 4e8}},
		{StartNs: 1e9, EndNs: 3e9, LatenciesNs: []uint64{2e8, 2e8}},
	}
	be := []beResult{{TimesNs: []uint64{0, 1e9, 2e9}, Counts: []uint64{0, 100, 130}}, {TimesNs: []uint64{0, 2e9}, Counts: []uint64{0, 40}}}
	r, err := sumUp(lc, &alone, be)
	if err != nil || r.be != 50 || r.left != .8 || r.latency.N != 4 || r.latency.MaxUs != 4e5 {
		t.Errorf("%v, %+v, %+v", err, r, r.latency)
	}
	if r, err = sumUp(lc[:1], &alone, be); err != nil || r.be != 85 || r.left != .7 {
		t.Errorf("one LC: %v, %+v", err, r)
	}
	if _, err := sumUp([]lcResult{{}}, &alone, be); err == nil {
		t.Error("an LC process without requests")
	}
	lc[1].StartNs = 2e9
	if _, err := sumUp(lc, &alone, be); err == nil {
		t.Error("LC processes one after another")
	}
}

func TestBounds(t *testing.T) {
	row := func(p99, be, share float64) result.Row {
		return result.Row{LC: &result.Latency{P99Us: p99}, BE: &result.Share{Now: be, Share: share}}
	}
	b := bound{p99: 1.05, be: .95, share: .9}
	if text := b.text("x"); text != "lc p99 <= 1.05 x x, BE >= 0.95 x, BE >= 0.9 of what LC leaves" {
		t.Error(text)
	}
	before := row(100, 100, 1)
	if !b.met(row(105, 95, .9), before) {
		t.Error("what is as good as it must be")
	}
	for _, missed := range []result.Row{row(105.1, 95, .9), row(105, 94.9, .9), row(105, 95, .899)} {
		if b.met(missed, before) {
			t.Errorf("%+v, %+v", missed.LC, missed.BE)
		}
	}
}

// usersOptions are those of the suite on a simulated driver that any user may use. Processes of other users run programs of here.
func usersOptions(t *testing.T, progress *bytes.Buffer, only ...string) Options {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root makes processes of other users")
	}
	options := simulatedOptions(t, usersSuite, progress, only...)
	options.tests.environment = append(options.tests.environment, "SIMCUDA_NAME_THREADS=1") // as the driver does
	if _, err := os.Stat(filepath.Join(filepath.Dir(options.Library), "gpreemptd")); err != nil {
		t.Skipf("not built: %v; make builds it", err)
	}
	directory := ""
	for _, entry := range options.tests.environment {
		if path, is := strings.CutPrefix(entry, "SIMCUDA_DIR="); is {
			directory = path
		}
	}
	s := newSession(options)
	if err := s.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context(), &mixResult{}, "", "mix", "--launches", "1", "--words", "1024"); err != nil { // makes the simulated GPU
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	modes := map[string]os.FileMode{filepath.Dir(directory): 0o755, directory: 0o777}
	for _, path := range files {
		modes[path] = 0o666
	}
	for path, mode := range modes {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	driver := filepath.Join(filepath.Dir(options.Library), "sim", "libcuda.so.1") // of which there is no copy
	for path, need := range map[string]os.FileMode{driver: 0o4, os.TempDir(): 0o1} {
		for at := path; at != "/"; at, need = filepath.Dir(at), 0o1 {
			if info, err := os.Stat(at); err != nil || info.Mode()&need == 0 {
				t.Skipf("other users do not reach %s: %s: %v", path, at, err)
			}
		}
	}
	if options.tests.temporary, err = os.MkdirTemp("", "users-"); err != nil { // the paths of sockets are short
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(options.tests.temporary) })
	if err := os.Chmod(options.tests.temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	return options
}

// Each case is measured to its end: users find each other, in namespaces too, attacks are under way, and a broker is replaced.
func TestUsersSuite(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := usersOptions(t, &progress)
	options.Requests, options.Repeats, options.Seconds = 20, 1, .1
	names := measureUsers(t, options, &progress)
	want := []string{"users-one", "users-one", "users-two-before", "users-two", "users-namespaces-before", "users-namespaces",
		"users-hostile-page-before", "users-hostile-page", "users-hostile-flood-before", "users-hostile-flood", "users-hostile-open-before",
		"users-hostile-open", "users-hostile-stop-before", "users-hostile-stop", "users-killed", "users-broker-join", "users-broker-memory", "users-broker-cpu"}
	if !slices.Equal(names, want) {
		t.Errorf("rows %v\n%s", names, &progress)
	}
	options.Only, options.Repeats, options.Folder = []string{"users-two", "users-killed"}, 2, t.TempDir()
	if names := measureUsers(t, options, &progress); len(names) != 3 {
		t.Errorf("rows of two rounds %v\n%s", names, &progress)
	}
	if left, err := os.ReadDir(options.tests.temporary); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// measureUsers names the rows, which it looks at.
func measureUsers(t *testing.T, options Options, progress *bytes.Buffer) (names []string) {
	t.Helper()
	report, err := suiteOfCases(t, usersSuite).measure(t.Context(), options)
	if err != nil || len(report.Failed()) != 0 {
		t.Fatalf("%v, %+v\n%s", err, report.Failed(), progress)
	}
	for _, row := range report.Cases {
		if strings.HasPrefix(row.Note, "left out: no worker starts in namespaces of its own") {
			t.Log(row.Note)
			names = append(names, row.Case+"-before", row.Case)
			continue
		}
		names = append(names, row.Case)
		if row.Case == "users-namespaces" && procCanBeMounted() && !strings.HasPrefix(row.Note, "four users in namespaces (user, pid, mnt, net, ipc, uts), by the broker;") {
			t.Errorf("in %s", row.Note)
		}
		if row.Value == nil && (row.LC == nil || row.LC.N == 0 || row.BE == nil || row.BE.Now <= 0) {
			t.Errorf("%+v", row)
		}
		rounds := options.Repeats
		if row.Value != nil || row.Case == "users-one" {
			rounds = 0
		}
		requests := 0 // a slow machine has fewer in the time
		for _, r := range row.Rounds {
			requests += r.LC.N
		}
		if len(row.Rounds) != rounds || rounds > 0 && row.LC.N != requests {
			t.Errorf("%s: %d rounds, want %d: %+v, %+v", row.Case, len(row.Rounds), rounds, row.LC, row.Rounds)
		}
	}
	return names
}

// procCanBeMounted says whether this machine lets the root of a user namespace mount /proc: a container may hide parts of its own.
func procCanBeMounted() bool {
	return exec.Command("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true").Run() == nil
}

// A program that ends while the broker is replaced fails the case.
func TestProgramThatFailsWithoutBroker(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	s := newSession(usersOptions(t, &progress))
	if err := s.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	remove, err := s.makeFolders()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	end, err := withBroker(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	options, err := s.workOptions(t.Context(), bestEffort)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.gather(t.Context(), party{what: "one", be: []uint32{tenant}, broker: true}, nil, append(options, "--seconds", "50"))
	if err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	defer g.kill()
	if took, err := s.users.replace(t.Context(), g); err != nil || took <= 0 || took > time.Minute {
		t.Errorf("%v, %v", took, err)
	}
	g.be[0].kill()
	if _, err := s.users.replace(t.Context(), g); err == nil || !strings.Contains(err.Error(), "the program ended") {
		t.Errorf("a program that was killed: %v", err)
	}
}
