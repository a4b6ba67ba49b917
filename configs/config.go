// Package configs reads gpreempt's TOML files and environment variables. It is strict: a key that it
// does not know or a value that makes no sense is an error of one line that says what is allowed.
package configs

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"
)

// Config is everything that can be set. Its fields are described in default.toml.
type Config struct {
	Mechanisms Mechanisms
	Timeslice  struct{ BEUs, PreemptingUs, FairUs, EqualsMinUs, EqualsUs uint64 }
	Window     struct{ GraceMinUs, GraceMaxUs, GraceEqualsUs uint64 }
	Hold       struct {
		MaxMs, StepUs      uint64
		Chain              int
		WhileSynchronizing bool
	}
	Turns struct{ QuantumMs uint64 }
	Share struct {
		MinBE      float64
		Max, MaxBE float64 // 1: no limit
		PeriodMs   uint64
	}
	Objective Objective
	Hints     struct {
		Sources  HintSources
		NVTX     [MaxRanges]string // names of ranges; "" beyond the last
		MaxCost  float64
		LingerUs uint64
		Log      string
	}
	BLP struct {
		CacheDirectory string
		CacheMB        uint64
		LCStreams      bool
	}
	Memory struct {
		HostMB, WaitMs, ReserveMB uint64
		Limit                     MemoryLimit
		LC                        bool
		LCIdleS                   uint64
		TurnMs, TurnMinMs         uint64
	}
	Segment struct{ Directory, Group, Broker string }
	Log     struct{ Level, File string }
}

//go:generate go run ./generate

//go:embed default.toml
var defaults []byte

// Default returns the configuration of the embedded default.toml.
func Default() Config {
	config, err := overlay(Config{}, "default.toml", defaults)
	if err != nil {
		panic(err) // the file is part of the program, and a test reads it
	}
	return config
}

// Load reads the file at path over the defaults.
func Load(path string) (Config, error) {
	data, err := read(path, false)
	if err != nil {
		return Config{}, fmt.Errorf("read config: %s: %w", path, err)
	}
	return Parse(path, data)
}

var errDirectory = errors.New("is a directory")

// read never waits, for example for the writer of a FIFO: the program's cuInit would wait too. If this user is root, a file that was
// found, not named, must belong to root. Errors do not name the path.
func read(path string, found bool) ([]byte, error) {
	fd, err := open(path, found)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, err
	}
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, errDirectory
	default:
		return nil, errors.New("must be a regular file")
	}
	if found {
		if err := OwnedByRoot(&info); err != nil {
			return nil, err
		}
	}
	const most = 1 << 20 // bytes
	data, size := make([]byte, most+1), 0
	for size < len(data) {
		n, err := unix.Read(fd, data[size:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return data[:size], nil
		}
		size += n
	}
	return nil, fmt.Errorf("must be at most %d bytes", most)
}

// open follows a link to a file that was found, not named: if this user is root, only where the link is root's too: it says which file is
// read.
func open(path string, found bool) (fd int, err error) {
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if !found || os.Geteuid() != 0 {
		return unix.Open(path, flags, 0)
	}
	if fd, err = unix.Open(path, flags|unix.O_NOFOLLOW, 0); !errors.Is(err, unix.ELOOP) {
		return fd, err
	}
	link, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) // it stays the same one, also when its name goes
	if err != nil {
		return -1, err
	}
	defer unix.Close(link)
	var info unix.Stat_t
	if err := unix.Fstat(link, &info); err != nil {
		return -1, err
	}
	if info.Uid != 0 {
		return -1, fmt.Errorf("a link of user %d: %w", info.Uid, ErrOthers)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(link, "", target)
	if err != nil {
		return -1, err
	}
	if to := string(target[:n]); filepath.IsAbs(to) {
		path = to
	} else {
		path = filepath.Dir(path) + "/" + to
	}
	return unix.Open(path, flags, 0)
}

// Parse reads data over the defaults. The name is for error messages.
func Parse(name string, data []byte) (Config, error) {
	return overlay(Default(), name, data)
}

// Read returns the configuration in force and its file, "" for the defaults. It is an error if GPREEMPT_CONFIG names no
// readable file. Passed says which files at the usual places root ignores, because another user could have written them.
// With an error the configuration is the default one.
func Read(getenv func(string) string) (config Config, path string, passed, err error) {
	config = Default()
	if path = getenv("GPREEMPT_CONFIG"); path != "" {
		found, err := named(path)
		if err != nil {
			return config, "", nil, err
		}
		return found, path, nil, nil
	}
	for _, place := range places(getenv) {
		data, err := read(place, true)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, fs.ErrPermission) && hidden(place):
			continue
		case errors.Is(err, errDirectory):
			passed = errors.Join(passed, fmt.Errorf("%s: a directory is passed over", place))
			continue
		case errors.Is(err, ErrOthers):
			passed = errors.Join(passed, fmt.Errorf("%s: %w", place, err))
			continue
		case err != nil:
			return config, place, passed, fmt.Errorf("read config: %s: %w", place, err)
		}
		found, err := Parse(place, data)
		if err != nil {
			return config, place, passed, err
		}
		return found, place, passed, nil
	}
	return config, "", passed, nil
}

// hidden says that a folder on the way to a file may not be searched: for this user there is no file.
func hidden(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrPermission)
}

func named(path string) (Config, error) {
	data, err := read(path, false)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, fmt.Errorf("GPREEMPT_CONFIG = %q: no such file", path)
	case errors.Is(err, errDirectory):
		return Config{}, fmt.Errorf("GPREEMPT_CONFIG = %q: is a directory, must be a TOML file", path)
	case err != nil:
		return Config{}, fmt.Errorf("GPREEMPT_CONFIG = %q: %w", path, err)
	}
	return Parse(path, data)
}

func places(getenv func(string) string) []string {
	list := []string{"gpreempt.toml"}
	if home := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(home) {
		list = append(list, filepath.Join(home, "gpreempt/gpreempt.toml"))
	} else if home := getenv("HOME"); filepath.IsAbs(home) {
		list = append(list, filepath.Join(home, ".config/gpreempt/gpreempt.toml"))
	}
	return append(list, "/etc/gpreempt/gpreempt.toml")
}

// ErrOthers is wrapped by errors about files that root neither reads nor writes, since others may have prepared them.
var ErrOthers = errors.New("root passes over what another user owns or can write")

// OwnedByRoot returns an error if this process is root's and another user could have prepared the open file.
func OwnedByRoot(info *unix.Stat_t) error {
	const othersWrite = 0o022
	if os.Geteuid() == 0 && (info.Uid != 0 || info.Mode&othersWrite != 0) {
		return fmt.Errorf("owned by user %d, mode %04o: %w", info.Uid, info.Mode&0o7777, ErrOthers)
	}
	return nil
}

// Value is a key with the value in force, as TOML writes it. FromFile: a file sets it, it is not the default.
type Value struct {
	Key, Value string
	FromFile   bool
}

// Values lists every key, in the order of default.toml, under the file at path; "" for the defaults. The file need not make sense.
func Values(path string) (list []Value, err error) {
	var all, own map[string]any
	if path != "" {
		data, err := read(path, false)
		if err == nil {
			err = toml.Unmarshal(data, &own)
		}
		if err != nil {
			return nil, fmt.Errorf("read config: %s: %s", path, oneLine(err.Error()))
		}
	}
	meta, err := toml.Decode(string(defaults), &all)
	for _, key := range meta.Keys() {
		value := first(lookup(all, key))
		if _, isTable := value.(map[string]any); isTable {
			continue
		}
		given := first(lookup(own, key))
		if given != nil {
			value = given
		}
		list = append(list, Value{key.String(), show(value), given != nil})
	}
	return list, err
}

// setting is one key of the file: what it may hold and where that goes. set returns false for a value
// that is not allowed.
type setting struct {
	key     string
	allowed string
	set     func(c *Config, value any) bool
}

var settings = slices.Concat([]setting{
	{"mechanisms", mechanismsAllowed(), setMechanisms},
	integer("timeslice.be_us", 1, 1_000_000, "us", func(c *Config) *uint64 { return &c.Timeslice.BEUs }),
	integer("timeslice.preempting_us", 1, 1_000_000, "us", func(c *Config) *uint64 { return &c.Timeslice.PreemptingUs }),
	integer("timeslice.fair_us", 1, 1_000_000, "us", func(c *Config) *uint64 { return &c.Timeslice.FairUs }),
	integer("timeslice.equals_min_us", 1, 1_000_000, "us", func(c *Config) *uint64 { return &c.Timeslice.EqualsMinUs }),
	integer("timeslice.equals_us", 1, 1_000_000, "us", func(c *Config) *uint64 { return &c.Timeslice.EqualsUs }),
	integer("window.grace_min_us", 0, 1_000_000, "us", func(c *Config) *uint64 { return &c.Window.GraceMinUs }),
	integer("window.grace_max_us", 0, 1_000_000, "us", func(c *Config) *uint64 { return &c.Window.GraceMaxUs }),
	integer("window.grace_equals_us", 0, 1_000_000, "us", func(c *Config) *uint64 { return &c.Window.GraceEqualsUs }),
	integer("hold.max_ms", 1, 10_000, "ms", func(c *Config) *uint64 { return &c.Hold.MaxMs }),
	integer("hold.step_us", 500, 1_000_000, "us", func(c *Config) *uint64 { return &c.Hold.StepUs }),
	integer("hold.chain", 1, 8, "kernels", func(c *Config) *int { return &c.Hold.Chain }),
	boolean("hold.while_synchronizing", func(c *Config) *bool { return &c.Hold.WhileSynchronizing }),
	integer("turns.quantum_ms", 1, 10_000, "ms", func(c *Config) *uint64 { return &c.Turns.QuantumMs }),
	fraction("share.min_be", "a number from 0 to less than 1 (part of the GPU's time)", 1, func(c *Config) *float64 { return &c.Share.MinBE }),
	most("share.max", func(c *Config) *float64 { return &c.Share.Max }),
	most("share.max_be", func(c *Config) *float64 { return &c.Share.MaxBE }),
	integer("share.period_ms", 10, 60_000, "ms", func(c *Config) *uint64 { return &c.Share.PeriodMs }),
}, objectiveSettings, hintSettings(), []setting{
	fraction("hints.max_cost", "a number from 0 to less than 0.5 (part of the GPU's time)", 0.5, func(c *Config) *float64 { return &c.Hints.MaxCost }),
	integer("hints.linger_us", 1, 100_000, "us", func(c *Config) *uint64 { return &c.Hints.LingerUs }),
	text("hints.log", `an absolute path, or ""`, isFile, func(c *Config) *string { return &c.Hints.Log }),
	text("blp.cache_directory", `an absolute path, or ""`, isFile, func(c *Config) *string { return &c.BLP.CacheDirectory }),
	boolean("blp.lc_streams", func(c *Config) *bool { return &c.BLP.LCStreams }),
	integer("blp.cache_mb", 0, 1_000_000, "MB", func(c *Config) *uint64 { return &c.BLP.CacheMB }),
	integer("memory.host_mb", 0, 100_000_000, "MB", func(c *Config) *uint64 { return &c.Memory.HostMB }),
	integer("memory.wait_ms", 1, 3_600_000, "ms", func(c *Config) *uint64 { return &c.Memory.WaitMs }),
	integer("memory.reserve_mb", 0, 1_000_000, "MB", func(c *Config) *uint64 { return &c.Memory.ReserveMB }),
	{"memory.limit", MemoryLimitAllowed, func(c *Config, value any) (ok bool) {
		text, is := value.(string)
		c.Memory.Limit, ok = ParseMemoryLimit(text)
		return is && ok
	}},
	boolean("memory.lc", func(c *Config) *bool { return &c.Memory.LC }),
	integer("memory.lc_idle_s", 0, 86_400, "s", func(c *Config) *uint64 { return &c.Memory.LCIdleS }),
	integer("memory.turn_ms", 0, 3_600_000, "ms", func(c *Config) *uint64 { return &c.Memory.TurnMs }),
	integer("memory.turn_min_ms", 1, 3_600_000, "ms", func(c *Config) *uint64 { return &c.Memory.TurnMinMs }),
	text("segment.directory", "an absolute path", filepath.IsAbs, func(c *Config) *string { return &c.Segment.Directory }),
	text("segment.group", `the name or number of a group, or ""`, isGroup, func(c *Config) *string { return &c.Segment.Group }),
	text("segment.broker", `an absolute path, or ""`, isFile, func(c *Config) *string { return &c.Segment.Broker }),
	text("log.level", levelsAllowed, isLevel, func(c *Config) *string { return &c.Log.Level }),
	text("log.file", `an absolute path, or "" for standard error`, isFile, func(c *Config) *string { return &c.Log.File }),
})

func integer[T uint64 | int](key string, low, high int64, unit string, field func(*Config) *T) setting {
	return setting{key, fmt.Sprintf("an integer from %d to %d (%s)", low, high, unit), func(c *Config, value any) bool {
		n, ok := value.(int64)
		if !ok || n < low || n > high {
			return false
		}
		*field(c) = T(n)
		return true
	}}
}

func text(key, allowed string, valid func(string) bool, field func(*Config) *string) setting {
	return setting{key, allowed, func(c *Config, value any) bool {
		s, ok := value.(string)
		if !ok || strings.ContainsFunc(s, unicode.IsControl) || !valid(s) {
			return false
		}
		*field(c) = s
		return true
	}}
}

func fraction(key, allowed string, limit float64, field func(*Config) *float64) setting {
	return setting{key, allowed, func(c *Config, value any) bool {
		part, ok := value.(float64)
		if n, isInteger := value.(int64); isInteger {
			part, ok = float64(n), true
		}
		if !ok || !(part >= 0 && part < limit) { // not NaN either
			return false
		}
		*field(c) = math.Abs(part) // no negative zero
		return true
	}}
}

// most is a limit of the GPU's time.
func most(key string, field func(*Config) *float64) setting {
	return setting{key, "a number above 0, at most 1 (part of the GPU's time; 1: no limit)", func(c *Config, value any) bool {
		part, ok := value.(float64)
		if n, isInteger := value.(int64); isInteger {
			part, ok = float64(n), true
		}
		if !ok || !(part > 0 && part <= 1) { // not NaN either
			return false
		}
		*field(c) = part
		return true
	}}
}

func boolean(key string, field func(*Config) *bool) setting {
	return setting{key, "true or false", func(c *Config, value any) bool {
		b, ok := value.(bool)
		if ok {
			*field(c) = b
		}
		return ok
	}}
}

const levelsAllowed = `"trace", "debug", "info", "warn", "error" or "off"`

func isLevel(s string) bool {
	return slices.Contains(LogLevels, s)
}

func isFile(s string) bool  { return s == "" || filepath.IsAbs(s) }
func isGroup(s string) bool { return !strings.ContainsAny(s, ":/ ") && !strings.HasPrefix(s, "-") }

// overlay changes base by what data says. Errors are one line each; the returned Config is then zero.
func overlay(base Config, name string, data []byte) (Config, error) {
	var tree map[string]any
	meta, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&tree)
	if err != nil {
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return Config{}, fmt.Errorf("%s: line %d: %s", name, parse.Position.Line, oneLine(parse.Message))
		}
		return Config{}, fmt.Errorf("%s: %s", name, oneLine(strings.TrimPrefix(err.Error(), "toml: ")))
	}
	for _, key := range meta.Keys() { // in the order of the file, so the first mistake is reported
		if err := set(&base, tree, key); err != nil {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := base.consistent(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	return base, nil
}

// set sets one key of the file. Tables are keys too.
func set(c *Config, tree map[string]any, key toml.Key) error {
	value, parent := lookup(tree, key)
	if parent != nil { // inside a value that is no table, such as an array of tables: that is reported
		key, value = parent, first(lookup(tree, parent))
	}
	if i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key.String() }); i >= 0 {
		if !settings[i].set(c, value) {
			return fmt.Errorf("%s = %s: must be %s", key, show(value), settings[i].allowed)
		}
		return nil
	}
	if now, is := renamed[key.String()]; is {
		return fmt.Errorf("%s: unknown key; it is called %s now", key, now)
	}
	if len(key) == 1 && slices.Contains(below(""), key[0]) {
		if _, isTable := value.(map[string]any); !isTable {
			return fmt.Errorf("%s = %s: must be a table with the keys %s", key, show(value), list(below(key[0])))
		}
		return nil
	}
	if len(key) == 1 {
		return fmt.Errorf("%s: unknown key; the keys allowed here are %s", oneLine(key.String()), list(below("")))
	}
	return fmt.Errorf("%s: unknown key; the keys allowed in [%s] are %s", oneLine(key.String()), key[0], list(below(key[0])))
}

// renamed maps names of keys in earlier versions to the present ones.
var renamed = map[string]string{
	"hints.wait_us":         "hints.linger_us",
	"share.over_ms":         "share.period_ms",
	"timeslice.yielding_us": "timeslice.be_us",
}

// lookup returns the value of a key, or the part of the key that is no table.
func lookup(tree map[string]any, key toml.Key) (value any, parent toml.Key) {
	value = tree
	for i, part := range key {
		table, ok := value.(map[string]any)
		if !ok {
			return nil, key[:i]
		}
		value = table[part]
	}
	return value, nil
}

func first(value any, _ toml.Key) any { return value }

// below lists the keys of a table, "" being the top level.
func below(table string) []string {
	var keys []string
	for _, s := range settings {
		head, tail, nested := strings.Cut(s.key, ".")
		switch {
		case table == "" && !slices.Contains(keys, head):
			keys = append(keys, head)
		case nested && head == table:
			keys = append(keys, tail)
		}
	}
	return keys
}

// consistent checks values against each other.
func (c *Config) consistent() error {
	if c.Window.GraceMinUs > c.Window.GraceMaxUs {
		return fmt.Errorf("window.grace_min_us = %d: must not be above window.grace_max_us = %d", c.Window.GraceMinUs, c.Window.GraceMaxUs)
	}
	if err := c.Objective.consistent(); err != nil {
		return err
	}
	if c.Share.MaxBE < c.Share.MinBE {
		return fmt.Errorf("share.max_be = %v: must not be below share.min_be = %v", c.Share.MaxBE, c.Share.MinBE)
	}
	if c.Timeslice.BEUs > c.Timeslice.PreemptingUs {
		return fmt.Errorf("timeslice.be_us = %d: must not be above timeslice.preempting_us = %d", c.Timeslice.BEUs, c.Timeslice.PreemptingUs)
	}
	if 2*c.Hold.StepUs > 1000*c.Hold.MaxMs {
		return fmt.Errorf("hold.step_us = %d: must not be above half of hold.max_ms = %d", c.Hold.StepUs, c.Hold.MaxMs)
	}
	if c.Hold.StepUs > c.Timeslice.PreemptingUs {
		return fmt.Errorf("hold.step_us = %d: must not be above timeslice.preempting_us = %d", c.Hold.StepUs, c.Timeslice.PreemptingUs)
	}
	if 2*c.Hints.LingerUs > 1000*c.Hold.MaxMs {
		return fmt.Errorf("hints.linger_us = %d: must not be above half of hold.max_ms = %d", c.Hints.LingerUs, c.Hold.MaxMs)
	}
	if c.Memory.LCIdleS != 0 && !c.Memory.LC {
		return fmt.Errorf("memory.lc_idle_s = %d: must be 0 unless memory.lc = true", c.Memory.LCIdleS)
	}
	return nil
}

// show writes a value as TOML does, on one line and not too long.
func show(value any) string {
	var s string
	switch v := value.(type) {
	case string:
		s = strconv.Quote(v)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = show(v[i])
		}
		s = "[" + strings.Join(parts, ", ") + "]"
	case map[string]any, []map[string]any:
		s = "a table"
	default:
		s = fmt.Sprint(v)
	}
	if r := []rune(s); len(r) > 100 {
		s = string(r[:100]) + "..."
	}
	return oneLine(s)
}

func list(keys []string) string { return strings.Join(keys, ", ") }

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}
