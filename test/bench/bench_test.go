package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestRates(t *testing.T) {
	be := beResult{TimesNs: []uint64{1e9, 2e9, 4e9}, Counts: []uint64{10, 20, 60}}
	for at, want := range map[uint64]float64{
		0: 10, 1e9: 10, 15e8: 15, 2e9: 20, 3e9: 40, 35e8: 50, 4e9: 60, 9e9: 60,
	} {
		if got := be.completed(at); got != want {
			t.Errorf("completed at %d ns: %g, want %g", at, got, want)
		}
	}
	if got := be.rate(15e8, 35e8); got != 17.5 {
		t.Errorf("rate %g, want 17.5 kernels/s", got)
	}
	if got, err := be.ownRate(); err != nil || math.Abs(got-50.0/3) > 1e-9 {
		t.Errorf("own rate %g, %v, want 50 kernels in 3 s", got, err)
	}
	for _, few := range []beResult{{}, {TimesNs: []uint64{5}, Counts: []uint64{1}}} {
		if _, err := few.ownRate(); !errors.Is(err, errNothingCompleted) {
			t.Errorf("%d samples: %v", len(few.TimesNs), err)
		}
	}
	if got := (&beResult{}).completed(5); got != 0 {
		t.Errorf("completed without samples: %g", got)
	}
}

// suiteOfCases finds a suite of cases.
func suiteOfCases(t *testing.T, name string) Suite {
	t.Helper()
	suite, err := FindSuite(name)
	if err != nil {
		t.Fatal(err)
	}
	return suite
}

func TestCases(t *testing.T) {
	names := func(cases []Case) (names []string) {
		for _, c := range cases {
			names = append(names, c.Name)
		}
		return names
	}
	of := map[string]int{}
	for _, suite := range Suites {
		cases, err := suite.cases(nil)
		if err != nil || len(cases) == 0 {
			t.Errorf("%s: %v, %v", suite.Name, names(cases), err)
		}
		for i, c := range cases {
			of[c.Name]++
			if slices.Contains(names(cases[:i]), c.Name) {
				t.Errorf("%s: two cases are called %s", suite.Name, c.Name)
			}
			if c.seconds <= 0 {
				t.Errorf("%s: nobody knows how long %s takes", suite.Name, c.Name)
			}
		}
	}
	if len(of) != len(allCases) {
		t.Errorf("%d cases, of them in suites: %v", len(allCases), of)
	}
	two, err := suiteOfCases(t, "foundation").cases([]string{"idle", "be-alone"})
	if err != nil || !slices.Equal(names(two), []string{"be-alone", "idle"}) {
		t.Errorf("two by name: %v, %v", names(two), err)
	}
}

func TestLCOptions(t *testing.T) {
	s := &session{info: info{SharedBytes: 100 << 10, Multiprocessors: 132}}
	if err := caught(func() { s.lcOptions(t.Context(), synced(20, 200)) }); err == nil || !strings.Contains(err.Error(), "102400 bytes of shared memory here, the case needs 204800") {
		t.Errorf("a block larger than the device allows: %v", err)
	}
}

func TestLastProcessors(t *testing.T) {
	var ours, its unix.CPUSet
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := errors.Join(unix.SchedGetaffinity(0, &ours), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(runOnLast(cmd.Process.Pid), unix.SchedGetaffinity(cmd.Process.Pid, &its), cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for i, left := 0, ours.Count(); left > 0; i++ {
		if ours.IsSet(i) {
			if its.IsSet(i) != (left <= 4) {
				t.Errorf("processor %d, behind which %d are: %v", i, left-1, its.IsSet(i))
			}
			left--
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("GPREEMPT_PRIORITY", "be")
	t.Setenv("LD_PRELOAD", "/old/libgpreempt.so:/sim/libcuda.so.1 /other.so")
	t.Setenv("KEPT", "a=b")
	s := &session{library: "/new/libgpreempt.so"}
	for role, want := range map[string]struct{ preload, priority string }{
		"":   {"/sim/libcuda.so.1:/other.so", ""},
		"lc": {"/new/libgpreempt.so:/sim/libcuda.so.1:/other.so", "lc"},
	} {
		found := map[string][]string{}
		for _, entry := range s.environment(role) {
			name, value, _ := strings.Cut(entry, "=")
			found[name] = append(found[name], value)
		}
		if got := found["LD_PRELOAD"]; !slices.Equal(got, []string{want.preload}) {
			t.Errorf("role %q: LD_PRELOAD %q, want %q", role, got, want.preload)
		}
		if got := strings.Join(found["GPREEMPT_PRIORITY"], "|"); got != want.priority {
			t.Errorf("role %q: GPREEMPT_PRIORITY %q", role, got)
		}
		if !slices.Equal(found["KEPT"], []string{"a=b"}) {
			t.Errorf("role %q: KEPT %q", role, found["KEPT"])
		}
	}
}

// A process is not missing because its segment could not be read.
func TestSegmentThatCannotBeRead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config, segments := filepath.Join(folder, "gpreempt.toml"), segment.Directory(folder, os.Getuid())
	if err := errors.Join(os.Mkdir(segments, 0o700), os.WriteFile(config, fmt.Appendf(nil, "[segment]\ndirectory = %q\n", folder), 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := segment.Open(segments, segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	files, err := filepath.Glob(filepath.Join(segments, "*.seg"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if err := os.Truncate(files[0], 3); err != nil {
		t.Fatal(err)
	}
	if found, _, err := peer(config, os.Getpid()); err == nil || !strings.Contains(err.Error(), files[0]+": ") {
		t.Errorf("%+v, %v", found, err)
	}
}
