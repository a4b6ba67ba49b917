package configs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"
)

// TestDefault proves that default.toml sets every key, and to what is promised.
func TestDefault(t *testing.T) {
	want := Config{Mechanisms: Mechanisms{Auto: true}}
	want.Timeslice.BEUs, want.Timeslice.PreemptingUs, want.Timeslice.FairUs, want.Timeslice.EqualsMinUs, want.Timeslice.EqualsUs = 1, 100000, 2048, 2048, 16000
	want.Window.GraceMinUs, want.Window.GraceMaxUs, want.Window.GraceEqualsUs = 20, 500, 500
	want.Hold.MaxMs, want.Hold.StepUs, want.Hold.Chain, want.Hold.WhileSynchronizing = 100, 2000, 2, true
	want.Turns.QuantumMs = 100
	want.Share.MinBE, want.Share.Max, want.Share.MaxBE, want.Share.PeriodMs = 0.03, 1, 1, 1000
	want.Objective = Objective{OverSteps: 64, Percentile: 99, MinSlotMs: 8, MaxSlotMs: 32}
	want.Hints.Sources = 1<<HintExplicit | 1<<HintCopy | 1<<HintSocket | 1<<HintArrival
	want.Hints.MaxCost, want.Hints.LingerUs = 0.02, 500
	want.BLP.CacheMB = 2048
	want.Memory.WaitMs, want.Memory.TurnMinMs = 10000, 2000
	want.Segment.Directory, want.Segment.Broker = "/dev/shm", "/run/gpreempt"
	want.Log.Level = "warn"
	if got := Default(); got != want {
		t.Errorf("Default() = %+v, want %+v", got, want)
	}
	var tree map[string]any
	meta, err := toml.Decode(string(defaults), &tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if !meta.IsDefined(strings.Split(s.key, ".")...) {
			t.Errorf("default.toml does not set %s", s.key)
		}
	}
}

// TestEveryFieldHasASetting sees that no field of Config is out of a file's reach.
func TestEveryFieldHasASetting(t *testing.T) {
	fields := 0
	config := reflect.TypeFor[Config]()
	for i := range config.NumField() {
		if config.Field(i).Name == "Mechanisms" {
			fields++
			continue
		}
		fields += config.Field(i).Type.NumField()
	}
	fields += len(HintRows) - 2 // Hints.Sources is of all sources but one, which has a field for its names
	if fields != len(settings) {
		t.Errorf("Config has %d fields, settings are %d", fields, len(settings))
	}
}

func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("examples/*.toml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	for _, path := range examples {
		config, err := Load(path)
		if err != nil {
			t.Error(err)
		}
		if config == Default() {
			t.Errorf("%s changes nothing", path)
		}
	}
}

func TestParse(t *testing.T) {
	config, err := Parse("gpreempt.toml", []byte(`
mechanisms = ["timeslice", "gate"]
hold.chain = 8
[share]
min_be = 0
[segment]
directory = "/run/gpreempt"
group = "gpu"
[memory]
host_mb = 65536
reserve_mb = 2048
limit = "40%"
lc = true
lc_idle_s = 60
turn_ms = 30000
`))
	want := Default()
	want.Mechanisms = Mechanisms{Named: Timeslice | Gate}
	want.Hold.Chain = 8
	want.Share.MinBE = 0
	want.Segment.Directory, want.Segment.Group = "/run/gpreempt", "gpu"
	want.Memory.HostMB, want.Memory.ReserveMB, want.Memory.Limit = 65536, 2048, MemoryLimit{Part: 0.4}
	want.Memory.LC, want.Memory.LCIdleS, want.Memory.TurnMs = true, 60, 30000
	if err != nil || config != want {
		t.Errorf("got %+v, %v; want %+v", config, err, want)
	}
	if config, err := Parse("f", []byte(`mechanisms = ["blp", "mps"]`)); err != nil || config.Mechanisms != (Mechanisms{Named: BLP | MPS}) {
		t.Errorf("blp and mps: %+v, %v", config.Mechanisms, err)
	}
	if config, err := Parse("f", []byte("mechanisms = []")); err != nil || config.Mechanisms != (Mechanisms{}) {
		t.Errorf("no mechanisms: %+v, %v", config.Mechanisms, err)
	}
}

func TestValues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpreempt.toml")
	if err := os.WriteFile(path, []byte("mechanisms = [\"gate\"]\nhold.chain = 99\n[segment]\ngroup = \"a\\nb\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := Values(path)
	if err != nil || len(list) != len(settings) {
		t.Fatalf("%v: %d values of %d settings", err, len(list), len(settings))
	}
	want := map[string]Value{"mechanisms": {"mechanisms", `["gate"]`, true}, "hold.chain": {"hold.chain", "99", true}, "segment.group": {"segment.group", `"a\nb"`, true},
		"hold.max_ms": {"hold.max_ms", "100", false}}
	for _, v := range list {
		if w, is := want[v.Key]; v.FromFile != w.FromFile || is && v != w {
			t.Errorf("%+v, want %+v", v, w)
		}
	}
	for _, text := range []string{"a =", "\xff"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := Values(path); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	if list, err := Values(""); err != nil || len(list) != len(settings) {
		t.Errorf("defaults: %v, %d values", err, len(list))
	}
}

func TestSwaps(t *testing.T) {
	const lc, be = 0, Levels - 1
	for _, c := range []struct {
		text   string
		lc, be bool
	}{
		{"", false, true},
		{"memory.host_mb = 1000", false, true},
		{"memory.lc = true", true, true},
		{"memory.reserve_mb = 1", false, true},
		{`memory.limit = "1MB"`, false, true},
		{`mechanisms = ["swap"]`, true, true},
		{"mechanisms = [\"turns\"]\nmemory.lc = true", false, false},
	} {
		config, err := Parse("test", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if config.Swaps(lc) != c.lc || config.Swaps(be) != c.be {
			t.Errorf("%q: lc %v, be %v; want %v, %v", c.text, config.Swaps(lc), config.Swaps(be), c.lc, c.be)
		}
	}
}

// A renamed key is one that there is.
func TestRenamedKeys(t *testing.T) {
	for was, is := range renamed {
		if known := func(name string) bool {
			return slices.ContainsFunc(settings, func(s setting) bool { return s.key == name })
		}; known(was) || !known(is) {
			t.Errorf("%s, which is %s now", was, is)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[hold]\nmax_ms = -1", `hold.max_ms = -1: must be an integer from 1 to 10000 (ms)`},
		{"hold.max_ms = 10001", `hold.max_ms = 10001: must be an integer from 1 to 10000 (ms)`},
		{"hold.max_ms = \"7\"", `hold.max_ms = "7": must be an integer from 1 to 10000 (ms)`},
		{"hold.max_ms = 1.5", `hold.max_ms = 1.5: must be an integer from 1 to 10000 (ms)`},
		{"hold.max_ms = true", `hold.max_ms = true: must be an integer from 1 to 10000 (ms)`},
		{"hold.max_ms = [1, \"a\"]", `hold.max_ms = [1, "a"]: must be an integer from 1 to 10000 (ms)`},
		{"[share]\nover_ms = 1000", `share.over_ms: unknown key; it is called share.period_ms now`},
		{"hints.wait_us = 500", `hints.wait_us: unknown key; it is called hints.linger_us now`},
		{"timeslice.yielding_us = 1", `timeslice.yielding_us: unknown key; it is called timeslice.be_us now`},
		{"hold.max_ms.x = 1", `hold.max_ms.x: unknown key; the keys allowed in [hold] are max_ms, step_us, chain`},
		{"hold.chain = 9", `hold.chain = 9: must be an integer from 1 to 8 (kernels)`},
		{"[hold]\nmax = 1", `hold.max: unknown key; the keys allowed in [hold] are max_ms, step_us, chain`},
		{"holds = 1", `holds: unknown key; the keys allowed here are mechanisms, timeslice, window, hold, turns, share, objective, hints, blp, memory, segment, log`},
		{"[holds]\nx = 1", `holds: unknown key; the keys allowed here are mechanisms, timeslice, window, hold, turns, share, objective, hints, blp, memory, segment, log`},
		{"\"a\\nb\" = 1", `"a\nb": unknown key; the keys allowed here are mechanisms, timeslice, window, hold, turns, share, objective, hints, blp, memory, segment, log`},
		{"\"hold.chain\" = 1", `"hold.chain": unknown key; the keys allowed here are mechanisms, timeslice, window, hold, turns, share, objective, hints, blp, memory, segment, log`},
		{"hold = 3", `hold = 3: must be a table with the keys max_ms, step_us, chain`},
		{"[[hold]]\nmax_ms = 3", `hold = a table: must be a table with the keys max_ms, step_us, chain`},
		{"mechanisms = \"all\"", `mechanisms = "all": must be "auto" or an array of "timeslice", "hold", "gate", "turns", "blp", "mps", "swap"`},
		{"mechanisms = [\"auto\"]", `mechanisms = ["auto"]: must be "auto" or an array of "timeslice", "hold", "gate", "turns", "blp", "mps", "swap"`},
		{"mechanisms = [\"gate\", \"spatial\"]", `mechanisms = ["gate", "spatial"]: must be "auto" or an array of "timeslice", "hold", "gate", "turns", "blp", "mps", "swap"`},
		{"mechanisms = [[1]]", `mechanisms = [[1]]: must be "auto" or an array of "timeslice", "hold", "gate", "turns", "blp", "mps", "swap"`},
		{"share.min_be = 1", `share.min_be = 1: must be a number from 0 to less than 1 (part of the GPU's time)`},
		{"share.min_be = nan", `share.min_be = NaN: must be a number from 0 to less than 1 (part of the GPU's time)`},
		{"share.max = 0", `share.max = 0: must be a number above 0, at most 1 (part of the GPU's time; 1: no limit)`},
		{"share.max_be = 1.01", `share.max_be = 1.01: must be a number above 0, at most 1`},
		{"share.max_be = nan", `share.max_be = NaN: must be a number above 0, at most 1`},
		{"share.max = \"half\"", `share.max = "half": must be a number above 0, at most 1`},
		{"[share]\nmax_be = 0.2\nmin_be = 0.3", `share.max_be = 0.2: must not be below share.min_be = 0.3`},
		{"share.min_be = -0.1", `share.min_be = -0.1: must be a number from 0 to less than 1 (part of the GPU's time)`},
		{"segment.directory = \"shm\"", `segment.directory = "shm": must be an absolute path`},
		{"segment.directory = \"/a\\nb\"", `segment.directory = "/a\nb": must be an absolute path`},
		{"segment.group = \"a b\"", `segment.group = "a b": must be the name or number of a group, or ""`},
		{"log.level = \"loud\"", `log.level = "loud": must be "trace", "debug", "info", "warn", "error" or "off"`},
		{"hints.log = \"x\"", `hints.log = "x": must be an absolute path, or ""`},
		{"log.file = \"x\"", `log.file = "x": must be an absolute path, or "" for standard error`},
		{"window.grace_min_us = 501", `window.grace_min_us = 501: must not be above window.grace_max_us = 500`},
		{"hold.step_us = 6000\nhold.max_ms = 11\ntimeslice.preempting_us = 11000", `hold.step_us = 6000: must not be above half of hold.max_ms = 11`},
		{"hints.linger_us = 50001", `hints.linger_us = 50001: must not be above half of hold.max_ms = 100`},
		{"hold.max_ms = 4\nhints.linger_us = 2001", `hints.linger_us = 2001: must not be above half of hold.max_ms = 4`},
		{"timeslice.preempting_us = 1999", `hold.step_us = 2000: must not be above timeslice.preempting_us = 1999`},
		{"timeslice.preempting_us = 5\ntimeslice.be_us = 6", `timeslice.be_us = 6: must not be above timeslice.preempting_us = 5`},
		{"memory.host_mb = -1", `memory.host_mb = -1: must be an integer from 0 to 100000000 (MB)`},
		{"memory.wait_ms = 0", `memory.wait_ms = 0: must be an integer from 1 to 3600000 (ms)`},
		{"memory.lc = 1", `memory.lc = 1: must be true or false`},
		{`memory.limit = "0%"`, `memory.limit = "0%": must be a whole number with MB or GB (1 GB = 1024 MB), as "10GB", or with %, 1 to 100, as "40%" of the GPU's memory; or "" for no limit`},
		{"memory.swap = 1", `memory.swap: unknown key; the keys allowed in [memory] are host_mb, wait_ms, reserve_mb, limit, lc, lc_idle_s, turn_ms, turn_min_ms`},
		{"memory.lc_idle_s = 30", `memory.lc_idle_s = 30: must be 0 unless memory.lc = true`},
		{"hold.max_ms = 1\nhold.max_ms = 2", `line 2: Key 'hold.max_ms' has already been defined.`},
		{"x = ", "line 1: "},
	} {
		config, err := Parse("gpreempt.toml", []byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), "gpreempt.toml: "+c.want) {
			t.Errorf("%q:\n got %v\nwant gpreempt.toml: %s", c.text, err, c.want)
		}
		if config != (Config{}) {
			t.Errorf("%q: an error and a config", c.text)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	if config, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || config != (Config{}) {
		t.Errorf("got %v, %v", config, err)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(path string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	env := map[string]string{"HOME": dir + "/home", "XDG_CONFIG_HOME": dir + "/xdg"}
	getenv := func(key string) string { return env[key] }
	check := func(want string) {
		t.Helper()
		if config, path, passed, err := Read(getenv); path != want || passed != nil || err != nil || config != Default() {
			t.Errorf("Read() = %q, %v, %v; want %q", path, passed, err, want)
		}
	}
	home := write(dir + "/home/.config/gpreempt/gpreempt.toml")
	delete(env, "XDG_CONFIG_HOME")
	check(home)
	env["XDG_CONFIG_HOME"] = dir + "/xdg"
	check(write(dir + "/xdg/gpreempt/gpreempt.toml"))
	write(dir + "/gpreempt.toml")
	check("gpreempt.toml")
	env["GPREEMPT_CONFIG"] = write(dir + "/mine.toml")
	check(dir + "/mine.toml")
	for _, bad := range []string{dir + "/none.toml", dir} {
		env["GPREEMPT_CONFIG"] = bad
		if config, path, passed, err := Read(getenv); err == nil || passed != nil || path != "" || !strings.Contains(err.Error(), bad) || config != Default() {
			t.Errorf("Read() with GPREEMPT_CONFIG=%s = %q, %v, %v", bad, path, passed, err)
		}
	}
}

// A home that may not be searched has no file, as far as this user can tell; a file that may not be read is an error, and a directory in
// a file's place is said.
func TestUnreadableHome(t *testing.T) {
	t.Chdir(t.TempDir())
	home := t.TempDir()
	folder := filepath.Join(home, ".config/gpreempt")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(home, 0)); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // as nobody; never unlocked, so the thread ends with the test
	defer func() { _ = errors.Join(unix.Setfsuid(os.Getuid()), os.Chmod(home, 0o755)) }()
	if err := unix.Setfsuid(65534); err != nil {
		t.Fatal(err)
	}
	root := func(do func() error) {
		t.Helper()
		if err := errors.Join(unix.Setfsuid(os.Getuid()), do(), unix.Setfsuid(65534)); err != nil {
			t.Fatal(err)
		}
	}
	getenv := func(key string) string { return map[string]string{"HOME": home}[key] }
	if config, path, passed, err := Read(getenv); config != Default() || path != "" || passed != nil || err != nil {
		t.Errorf("hidden: %q, %v, %v", path, passed, err)
	}
	file := folder + "/gpreempt.toml"
	root(func() error { return errors.Join(os.Chmod(home, 0o755), os.WriteFile(file, nil, 0)) })
	if _, path, passed, err := Read(getenv); path != file || passed != nil || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("unreadable: %q, %v, %v", path, passed, err)
	}
	root(func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) })
	if _, path, passed, err := Read(getenv); path != "" || passed == nil || !strings.Contains(passed.Error(), file+": a directory is passed over") || err != nil {
		t.Errorf("a directory: %q, %v, %v", path, passed, err)
	}
}

// Root's programs in a folder of another user do not obey the files there.
func TestRootPassesOverOthersFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	t.Chdir(dir)
	env := map[string]string{"HOME": dir}
	getenv := func(key string) string { return env[key] }
	for name, prepare := range map[string]func(file string) error{
		"another's":          func(file string) error { return os.Chown(file, 4711, 0) },
		"a group's to write": func(file string) error { return os.Chmod(file, 0o664) },
		"everybody's":        func(file string) error { return os.Chmod(file, 0o602) },
		"a link to another's": func(file string) error {
			if err := os.Rename(file, "other"); err != nil {
				return err
			}
			if err := os.Chown("other", 4711, 0); err != nil {
				return err
			}
			return os.Symlink("other", file)
		},
		"another's link": func(file string) error {
			if err := errors.Join(os.Rename(file, "own"), os.Symlink("own", file)); err != nil {
				return err
			}
			if config, path, passed, err := Read(getenv); config.Hold.MaxMs != 77 || path != file || passed != nil || err != nil {
				t.Errorf("root's own link: %q, %v, %v", path, passed, err)
			}
			return os.Lchown(file, 4711, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const file = "gpreempt.toml"
			defer os.Remove(file)
			if err := os.WriteFile(file, []byte("hold.max_ms = 77"), 0o600); err != nil {
				t.Fatal(err)
			}
			if config, path, passed, err := Read(getenv); config.Hold.MaxMs != 77 || path != file || passed != nil || err != nil {
				t.Errorf("root's own: %q, %v, %v", path, passed, err)
			}
			if err := prepare(file); err != nil {
				t.Fatal(err)
			}
			if config, path, passed, err := Read(getenv); config != Default() || path != "" || passed == nil || err != nil || !strings.Contains(passed.Error(), "gpreempt.toml: owned by user ") && !strings.Contains(passed.Error(), "gpreempt.toml: a link of user 4711: ") {
				t.Errorf("Read() = %q, %v, %v", path, passed, err)
			}
			env["GPREEMPT_CONFIG"] = dir + "/" + file
			if config, path, _, err := Read(getenv); config.Hold.MaxMs != 77 || path == "" || err != nil {
				t.Errorf("named: %q, %v", path, err)
			}
			delete(env, "GPREEMPT_CONFIG")
		})
	}
}

func TestParsePriority(t *testing.T) {
	for value, want := range map[string]Priority{
		"": {}, "off": {}, "lc": {true, 0}, "be": {true, 7}, "0": {true, 0}, "3": {true, 3}, "7": {true, 7},
	} {
		got, err := ParsePriority(value)
		if err != nil || got != want {
			t.Errorf("ParsePriority(%q) = %v, %v", value, got, err)
		}
		if again, err := ParsePriority(got.String()); err != nil || again != got {
			t.Errorf("%v.String() = %q", got, got.String())
		}
	}
	for _, value := range []string{"8", "-1", "LC", " lc", "07", "high\n"} {
		if got, err := ParsePriority(value); err == nil || got != (Priority{}) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ParsePriority(%q) = %v, %v", value, got, err)
		}
	}
}

func TestApplyLogEnv(t *testing.T) {
	for value, want := range map[string][2]string{
		"": {"warn", "/log"}, "debug": {"debug", "/log"}, "off:/a:b": {"off", "/a:b"},
	} {
		c := Default()
		c.Log.File = "/log"
		if err := ApplyLogEnv(&c, value); err != nil || c.Log.Level != want[0] || c.Log.File != want[1] {
			t.Errorf("ApplyLogEnv(%q): %v, %v", value, c.Log, err)
		}
	}
	for _, value := range []string{"loud", "debug:", "debug:relative", ":/x", "/x"} {
		c := Default()
		if err := ApplyLogEnv(&c, value); err == nil || c != Default() {
			t.Errorf("ApplyLogEnv(%q): %v, %v", value, c.Log, err)
		}
	}
}

// FuzzParse: an error comes with a zero Config and is one line; without one the Config is possible.
func FuzzParse(f *testing.F) {
	f.Add(defaults)
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Parse("f", data)
		if (err != nil) != (config == Config{}) {
			t.Fatalf("config %+v with error %v", config, err)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		if err := config.consistent(); err != nil {
			t.Fatal(err)
		}
		if c := config.Hold.Chain; c < 1 || c > 8 {
			t.Fatalf("hold.chain = %d", c)
		}
		if s := config.Share.MinBE; !(s >= 0 && s < 1) {
			t.Fatalf("share.min_be = %v", s)
		}
		if m := config.Memory; m.WaitMs < 1 || m.TurnMinMs < 1 || m.LCIdleS > 0 && !m.LC {
			t.Fatalf("memory: %+v", m)
		}
	})
}
