package workload

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Needs is what a system needs that not every machine has.
type Needs struct {
	Files []string // below the folder of rivals
	CUDA  int      // of the driver, as 13010
	Root  bool
}

// Daemon is a program that the processes of a system need while they run.
type Daemon struct {
	Command []string // the program is below the folder of rivals
	Ready   string   // what shows that it serves: "tcp:PORT" of this machine, or the path of a socket that it makes
	Then    []string // a command that sets it up, below the folder of rivals too
}

// Properties of workloads that a system may be unable to take.
const (
	defaultStream = "default-stream" // a program's work is on the legacy default stream
	severalGPUs   = "several-gpus"
	otherKernels  = "other-kernels" // than those of `spin-`
)

var properties = []string{defaultStream, severalGPUs, otherKernels}

// IsSpin says whether a program is one of a number of kernels of equal length.
func IsSpin(program string) bool { return strings.HasPrefix(program, "spin-") }

// has says whether a workload has a property. Programs of PyTorch use its current stream, which is the legacy default one.
func (w Workload) has(property string) bool {
	switch property {
	case defaultStream:
		return slices.ContainsFunc(slices.Concat(w.LC, w.BE), func(t Task) bool { return OwnPrograms[t.Program] == nil })
	case severalGPUs:
		return w.Devices() > 1
	case otherKernels:
		return slices.ContainsFunc(slices.Concat(w.LC, w.BE), func(t Task) bool { return !IsSpin(t.Program) })
	}
	return false
}

// CannotTake says why the system cannot take a workload; "" where it can.
func (s System) CannotTake(w Workload) string {
	for _, property := range slices.Sorted(maps.Keys(s.Cannot)) {
		if w.has(property) {
			return s.Cannot[property]
		}
	}
	return ""
}

// Rivals are the built-in systems that a folder of rivals adds.
func Rivals() ([]System, error) {
	all, err := builtIn()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(s System) bool { return !s.Rival }), nil
}

// IsRival says whether a system is one of those.
func IsRival(name string) bool {
	known, err := Rivals()
	return err == nil && slices.ContainsFunc(known, func(s System) bool { return s.Name == name })
}

// Lacks says what a machine lacks that the system needs; "" where nothing is missing. The folder is "" where there is none, cuda
// the driver's version.
func (s System) Lacks(folder string, cuda int) string {
	for _, file := range s.Needs.Files {
		if folder == "" {
			return "not there: " + file + " of a folder that --rivals names"
		}
		if _, err := os.Stat(filepath.Join(folder, file)); err != nil {
			return "not there: " + file + " of the folder of rivals"
		}
	}
	if cuda < s.Needs.CUDA {
		version := func(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
		return fmt.Sprintf("needs a driver of CUDA %s, this one is of %s", version(s.Needs.CUDA), version(cuda))
	}
	if s.Needs.Root && os.Geteuid() != 0 {
		return "needs root"
	}
	return ""
}

// inFolder stands in variables for the folder of rivals.
const inFolder = "{rivals}"

// Searched are the variables that are lists of what the loader looks at: a system's value goes before what is there.
var Searched = []string{"LD_PRELOAD", "LD_LIBRARY_PATH"}

// Variables are those of the environment of processes of a role.
func (s System) Variables(role, folder string) map[string]string {
	given := s.BE
	if role == "lc" {
		given = s.LC
	}
	all := map[string]string{}
	for name, value := range given {
		all[name] = strings.ReplaceAll(value, inFolder, folder)
	}
	return all
}

// Server is a key of what serves the processes of the system: systems with equal ones share it. "" is none.
func (s System) Server() string {
	switch {
	case s.Daemon != nil:
		return strings.Join(slices.Concat(s.Daemon.Command, s.Daemon.Then), " ")
	case s.MPS:
		return fmt.Sprintf("MPS %d", s.BEChunks)
	}
	return ""
}

// Port is that of a daemon which serves on one.
func (d Daemon) Port() (port string, ok bool) {
	port, ok = strings.CutPrefix(d.Ready, "tcp:")
	return port, ok
}

// checkRival finds what is wrong with the keys of rivals.
func (s System) checkRival() error {
	files := slices.Clone(s.Needs.Files)
	if d := s.Daemon; d != nil {
		if len(d.Command) == 0 {
			return errors.New("daemon.command is missing")
		}
		files = append(files, d.Command[0])
		if len(d.Then) > 0 {
			files = append(files, d.Then[0])
		}
		port, tcp := d.Port()
		if _, err := strconv.ParseUint(port, 10, 16); tcp && err != nil || !tcp && !filepath.IsAbs(d.Ready) {
			return fmt.Errorf("daemon.ready = %q: must be tcp:PORT, or an absolute path", d.Ready)
		}
		for _, file := range files[len(s.Needs.Files):] {
			if !slices.Contains(s.Needs.Files, file) {
				return fmt.Errorf("needs.files lacks %q, which is started", file)
			}
		}
	}
	for _, file := range files {
		if !filepath.IsLocal(file) {
			return fmt.Errorf("file %q: must be a path below the folder of rivals", file)
		}
	}
	for _, variables := range []map[string]string{s.LC, s.BE} {
		for name, value := range variables {
			if strings.Contains(value, inFolder) && len(files) == 0 {
				return fmt.Errorf("%s is of the folder of rivals, and needs.files says nothing of it", name)
			}
		}
	}
	for property, reason := range s.Cannot {
		if !slices.Contains(properties, property) {
			return fmt.Errorf("cannot.%s: there are %s", property, strings.Join(properties, ", "))
		}
		if reason == "" {
			return fmt.Errorf("cannot.%s: the reason is missing", property)
		}
	}
	switch {
	case s.MPS && s.Daemon != nil:
		return errors.New("mps and daemon: a system has one of them")
	case s.BEChunks < 0 || s.BEChunks > 0 && !s.MPS:
		return fmt.Errorf("be_chunks = %d: must be more than 0, beside mps = true", s.BEChunks)
	case s.Nice < 0 || s.Nice > 19:
		return fmt.Errorf("nice = %d: must be 0 to 19", s.Nice)
	case s.Reset && s.Cannot[otherKernels] == "":
		return fmt.Errorf("reset = true: cannot.%s is missing", otherKernels)
	case strings.Contains(s.Loads, "/"):
		return fmt.Errorf("loads = %q: must be the name of a file, without folders", s.Loads)
	}
	return nil
}
