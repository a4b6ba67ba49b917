package workload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

// System is a way to share the GPU: what is measured beside the LC program alone.
type System struct {
	Name   string
	MPS    bool              // the processes are clients of an MPS server
	Config string            // of the library, which is preloaded where this is not empty
	Hints  string            // of the library: "off", or "given" by the LC program at a request's arrival
	LC, BE map[string]string // environment variables
}

const auto = `mechanisms = "auto"`

// systems are all, in the order of tables.
var systems = []System{
	{Name: "default"},
	{Name: "mps", MPS: true},
	{Name: "mps-priority", MPS: true, BE: map[string]string{"CUDA_MPS_CLIENT_PRIORITY": "1"}},
	{Name: "gpreempt", Config: auto, Hints: "off"},
	{Name: "gpreempt-hints", Config: auto, Hints: "given"},
	{Name: "gpreempt-mps", MPS: true, Config: auto, Hints: "off"},
}

// Systems returns the named systems, of others too; without names all.
func Systems(names []string, others ...System) (picked []System, err error) {
	known := slices.Concat(systems, others)
	if len(names) == 0 {
		return known, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(known, func(s System) bool { return s.Name == name })
		if i < 0 {
			var all []string
			for _, s := range known {
				all = append(all, s.Name)
			}
			return nil, fmt.Errorf("no system %q; there are %s", name, strings.Join(all, ", "))
		}
		picked = append(picked, known[i])
	}
	return picked, nil
}

// LibraryConfig is the library's configuration file for the system; "" where the library is not preloaded.
// Systems have segments of their own: their processes must not know of one another.
func (s System) LibraryConfig(segment string) string {
	if s.Config == "" {
		return ""
	}
	text := s.Config + "\n"
	if s.Hints == "off" {
		text += configs.HintsFrom()
	}
	return text + fmt.Sprintf("[segment]\ndirectory = %q\n", segment)
}

// Variables are those of the environment of processes of a role.
func (s System) Variables(role string) map[string]string {
	if role == "lc" {
		return s.LC
	}
	return s.BE
}

// Processes is a key. Systems with equal keys use the same processes: they differ only in what a request does.
func (s System) Processes(role string) string {
	key := fmt.Sprint(s.MPS, s.Variables(role))
	if s.Config != "" {
		key += s.Name
	}
	return key
}
