package workload

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/gpreempt/gpreempt/configs"
)

// System is a way to share the GPU: what is measured beside the LC program alone. Each is a file of
// systems/; a file of the caller's own adds another.
type System struct {
	Name     string `toml:"-"`
	About    string
	Order    int
	Optional bool              // only where it is asked for
	MPS      bool              // the processes are clients of an MPS server
	Config   string            // of the library, which is preloaded where this is not empty
	Hints    string            // of the library: "off", or "given" by the LC program
	LC, BE   map[string]string // environment variables
}

//go:embed systems/*.toml
var systemFiles embed.FS

// builtIn are the systems of systems/.
var builtIn = sync.OnceValues(func() ([]System, error) {
	var known []System
	entries, err := systemFiles.ReadDir("systems")
	if err != nil {
		return nil, fmt.Errorf("read the systems: %w", err)
	}
	for _, entry := range entries {
		text, err := systemFiles.ReadFile("systems/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the systems: %w", err)
		}
		system, err := parseSystem(entry.Name(), text)
		if err != nil {
			return nil, err
		}
		known = append(known, system)
	}
	slices.SortStableFunc(known, func(a, b System) int { return a.Order - b.Order })
	return known, nil
})

// Systems returns the named systems, names ending in .toml being files; without names all that are not
// optional.
func Systems(names []string) ([]System, error) {
	all, err := builtIn()
	if err != nil {
		return nil, err
	}
	known := slices.Clone(all)
	if len(names) == 0 {
		return slices.DeleteFunc(known, func(s System) bool { return s.Optional }), nil
	}
	var picked []System
	for _, name := range names {
		if strings.HasSuffix(name, ".toml") {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("read system: %w", err)
			}
			system, err := parseSystem(filepath.Base(name), text)
			if err != nil {
				return nil, err
			}
			picked = append(picked, system)
			continue
		}
		i := slices.IndexFunc(known, func(s System) bool { return s.Name == name })
		if i < 0 {
			var all []string
			for _, s := range known {
				all = append(all, s.Name)
			}
			return nil, fmt.Errorf("no system %q; there are %s, and files that end in .toml", name, strings.Join(all, ", "))
		}
		picked = append(picked, known[i])
	}
	return picked, nil
}

func parseSystem(file string, text []byte) (System, error) {
	system := System{Name: strings.TrimSuffix(file, ".toml")}
	meta, err := toml.Decode(string(text), &system)
	if err == nil && len(meta.Undecoded()) > 0 {
		err = fmt.Errorf("unknown key %s", meta.Undecoded()[0])
	}
	if err == nil && system.About == "" {
		err = errors.New("about is missing")
	}
	if err == nil {
		_, err = system.LibraryConfig("/")
	}
	if err != nil {
		return System{}, fmt.Errorf("read system %s: %w", file, err)
	}
	return system, nil
}

// LibraryConfig is the library's configuration file for the system; "" where the library is not preloaded.
// Systems have segments of their own: their processes must not know of one another.
func (s System) LibraryConfig(segment string) (string, error) {
	if s.Config == "" {
		return "", nil
	}
	text := s.Config + "\n"
	switch s.Hints {
	case "", "given":
	case "off":
		text += configs.HintsFrom()
	default:
		return "", fmt.Errorf("hints = %q: must be \"off\" or \"given\"", s.Hints)
	}
	text += fmt.Sprintf("[segment]\ndirectory = %q\n", segment)
	if _, err := configs.Parse(s.Name, []byte(text)); err != nil {
		return "", fmt.Errorf("config of the library: %w", err)
	}
	return text, nil
}

// Variables are those of the environment of processes of a role.
func (s System) Variables(role string) map[string]string {
	if role == "lc" {
		return s.LC
	}
	return s.BE
}

// IsSpin says whether a program is one of a number of kernels of equal length.
func IsSpin(program string) bool { return strings.HasPrefix(program, "spin-") }

// Processes is a key. Systems with equal keys use the same processes: they differ only in what a request does.
func (s System) Processes(role string) string {
	key := fmt.Sprint(s.MPS, s.Variables(role))
	if s.Config != "" {
		key += s.Name
	}
	return key
}
