package nri

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/inject"
)

// Rule is the best level that a namespace's containers may have, and the level of those that do not ask for one.
type Rule struct {
	Best int // A level.
	Role int // A level; -1: containers that do not ask are left alone.
}

// Config says who gets what, and where it is on the host.
type Config struct {
	Library    string // Folder that containers get as inject.Folder, or a link to it.
	Sockets    string // Directory of the broker's sockets, a directory for each level.
	Pods       string // Folder for the broker with the pods; "": the plugin writes none.
	Default    Rule
	Namespaces map[string]Rule
	Excluded   []string // Namespaces that are always left alone.
	Budget     time.Duration
}

// DefaultBudget is how long a container may be kept waiting for the host's files. All containers of a node wait for each other at their
// runtime.
const DefaultBudget = 200 * time.Millisecond

// system is a namespace whose containers are never touched: without them there is no cluster.
const system = "kube-system"

var defaultRule = Rule{Best: 7, Role: -1}

type ruleFile struct {
	Level any
	Role  string
}

// Parse reads who gets what, in TOML. The name is for messages.
func Parse(name string, text []byte) (*Config, error) {
	var file struct {
		Exclude   []string
		Default   ruleFile
		Namespace map[string]ruleFile
	}
	meta, err := toml.Decode(string(text), &file)
	var parse toml.ParseError
	if errors.As(err, &parse) {
		return nil, fmt.Errorf("%s: line %d: %s", name, parse.Position.Line, parse.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf(`%s: %s: unknown key, must be "exclude", or "level" or "role" of [default] or of [namespace.NAME]`, name, unknown[0])
	}
	c := &Config{Excluded: append(file.Exclude, system), Namespaces: map[string]Rule{}, Budget: DefaultBudget}
	if c.Default, err = file.Default.rule(defaultRule); err != nil {
		return nil, fmt.Errorf("%s: default.%w", name, err)
	}
	for _, namespace := range slices.Sorted(maps.Keys(file.Namespace)) {
		if c.Namespaces[namespace], err = file.Namespace[namespace].rule(c.Default); err != nil {
			return nil, fmt.Errorf("%s: namespace.%s.%w", name, namespace, err)
		}
	}
	return c, nil
}

// rule puts what a file says over what holds otherwise.
func (f ruleFile) rule(otherwise Rule) (Rule, error) {
	rule := otherwise
	var known bool
	if f.Level != nil {
		if rule.Best, known = inject.Level(fmt.Sprint(f.Level)); !known {
			return rule, fmt.Errorf(`level = "%v", must be %s`, f.Level, allowed)
		}
	}
	if f.Role != "" {
		if rule.Role, known = inject.Level(f.Role); !known {
			return rule, fmt.Errorf(`role = %q, must be %s`, f.Role, allowed)
		}
	}
	return rule, nil
}

const allowed = `"lc", "be" or a level from 0 to 7`

// Load reads a file. For an empty path it returns the configuration without a file.
func Load(path string) (*Config, error) {
	if path == "" {
		return Parse("", nil)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

func (c *Config) rule(namespace string) Rule {
	if rule, is := c.Namespaces[namespace]; is {
		return rule
	}
	return c.Default
}

// tells says whether the broker can be told of pods; if not, why.
func (c *Config) tells() error {
	if c.Pods == "" {
		return nil
	}
	if err := unix.Access(c.Pods, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: %w", c.Pods, err)
	}
	return nil
}

// mount is what a container gets of the host's.
type mount struct{ source, destination string }

// mounts lists the mounts of a container of a level. An error names a missing source: the runtime would fail to create a container with
// such a mount.
func (c *Config) mounts(level int) ([]mount, error) {
	library, err := filepath.EvalSymlinks(c.Library) // That of a version: containers keep it when the link leads to another.
	if err != nil {
		return nil, fmt.Errorf("the library: %w", err)
	}
	for _, place := range inject.Libraries() {
		info, err := os.Stat(filepath.Join(library, strings.TrimPrefix(place, inject.Folder)))
		if err != nil {
			return nil, fmt.Errorf("the library: %w", err)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o005 != 0o005 {
			return nil, fmt.Errorf("the library: %s: mode %v, must be a file that everybody may run", library+place, info.Mode())
		}
	}
	sockets := filepath.Join(c.Sockets, fmt.Sprint(level))
	if info, err := os.Stat(sockets); err != nil {
		return nil, fmt.Errorf("the broker's sockets: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("the broker's sockets: %s: must be a directory", sockets)
	}
	return []mount{{library, inject.Folder}, {sockets, inject.Socket}}, nil
}
