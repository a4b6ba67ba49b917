package nri

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/inject"
)

// Annotations of pods. An annotation of a container ends in the container's name, and wins.
const (
	RoleAnnotation   = "gpreempt.io/role"
	InjectAnnotation = "gpreempt.io/inject" // "false" leaves containers alone
	ContainerRole    = "role.gpreempt.io/container."
	ContainerInject  = "inject.gpreempt.io/container."

	ObjectiveAnnotation = "gpreempt.io/objective"
	ContainerObjective  = "objective.gpreempt.io/container."

	MemoryAnnotation = "gpreempt.io/memory-limit"
	ContainerMemory  = "memory-limit.gpreempt.io/container."
)

// NVIDIA's device plugin, its runtime and drivers for dynamic resources give these to containers with a GPU.
const (
	gpuVariable = "NVIDIA_VISIBLE_DEVICES"
	gpuMounts   = "/var/run/nvidia-container-devices/" // another way to say which
	gpuDevices  = "/dev/nvidia"
	gpuVendor   = "nvidia.com/"
)

// emptyVolumes is in the host's path of volumes of type emptyDir.
const emptyVolumes = "/volumes/kubernetes.io~empty-dir/"

// Result is what became of a container.
type Result string

// Results.
const (
	Injected      Result = "injected"
	Lowered       Result = "lowered"         // Injected, at the namespace's best level instead of the level asked for.
	NoObjective   Result = "no_objective"    // Injected, without an objective: the annotation makes no sense.
	NoMemoryLimit Result = "no_memory_limit" // Injected, without a limit of its memory, in the same way.
	Present       Result = "present"         // The container had all already.
	Excluded      Result = "excluded"        // The configuration excludes its namespace.
	OptedOut      Result = "opted_out"       // By annotation.
	NoRole        Result = "no_role"         // Neither an annotation nor the configuration gives a role.
	NoGPU         Result = "no_gpu"          // A container without a GPU needs an annotation of its own.
	Invalid       Result = "invalid"         // The annotation names no role.
	Duplicate     Result = "duplicate"       // LD_PRELOAD is there twice: runtimes lose a change of it.
	Conflict      Result = "conflict"        // Something else is mounted there, or no mount is possible.
	Unavailable   Result = "unavailable"     // The library or the sockets are not on the host.
	Slow          Result = "slow"            // The host's files did not answer in time.
)

// Results are all of them.
var Results = []Result{Injected, Lowered, NoObjective, NoMemoryLimit, Present, Excluded, OptedOut, NoRole, NoGPU, Invalid, Duplicate, Conflict, Unavailable, Slow}

// given says that a container gets the library.
func (r Result) given() bool { return r == Injected || r == Lowered || r.partly() }

// partly says that a container got the library without all that its pod asks for.
func (r Result) partly() bool { return r == NoObjective || r == NoMemoryLimit }

// missed says that a container ought to be under the library and is not.
func (r Result) missed() bool {
	return r == Invalid || r == Duplicate || r == Conflict || r == Unavailable || r == Slow
}

// wish finds out whether a container is to be under the library, and at what level. Any other result than those that are given says why not.
func (c *Config) wish(pod *api.PodSandbox, container *api.Container) (level int, result Result) {
	notes, name := pod.GetAnnotations(), container.GetName()
	if slices.Contains(c.Excluded, pod.GetNamespace()) {
		return 0, Excluded
	}
	wanted, said := notes[ContainerInject+name]
	if !said {
		wanted = notes[InjectAnnotation]
	}
	if wanted == "false" {
		return 0, OptedOut
	}
	rule := c.rule(pod.GetNamespace())
	role, own := notes[ContainerRole+name]
	if !own {
		role = notes[RoleAnnotation]
	}
	if role == "" && rule.Role < 0 {
		return 0, NoRole
	}
	if !own && !hasGPU(container) {
		return 0, NoGPU
	}
	level = rule.Role
	if role != "" {
		var known bool
		if level, known = inject.Level(role); !known {
			return 0, Invalid
		}
	}
	if level < rule.Best {
		return rule.Best, Lowered
	}
	return level, Injected
}

// annotated are variables that annotations of pods set: how slow programs may be, and how much GPU memory each may have.
var annotated = []struct {
	variable, ofPod, ofContainer string
	without                      Result // what becomes of a container if the value makes no sense
	check                        func(value string) error
}{
	{inject.ObjectiveVariable, ObjectiveAnnotation, ContainerObjective, NoObjective, func(value string) error {
		_, err := configs.ParseObjective(configs.Objective{}, value)
		return err
	}},
	{inject.MemoryVariable, MemoryAnnotation, ContainerMemory, NoMemoryLimit, func(value string) error {
		_, err := configs.ParseOwnMemoryLimit(value)
		return err
	}},
}

// setting is a variable's value that a pod asks for.
type setting struct{ variable, value string }

// annotations are the variables that a pod's annotations set in a container. The error names those that make no sense, and the result says
// what the container lacks for the first of them.
func annotations(pod *api.PodSandbox, container *api.Container) (all []setting, result Result, wrong error) {
	notes, result := pod.GetAnnotations(), Injected
	for _, a := range annotated {
		key := a.ofContainer + container.GetName()
		value, said := notes[key]
		if !said {
			key = a.ofPod
			value, said = notes[key]
		}
		if !said {
			continue
		}
		if err := a.check(value); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("annotation %s: %w", key, err))
			if result == Injected {
				result = a.without
			}
			continue
		}
		all = append(all, setting{a.variable, value})
	}
	return all, result, wrong
}

// hasGPU finds a GPU among devices, mounts and variables. It cannot see what NVIDIA's runtime adds later, when runc is called. It sees the
// variable that tells the runtime to.
func hasGPU(container *api.Container) bool {
	for _, device := range container.GetLinux().GetDevices() {
		if strings.HasPrefix(device.GetPath(), gpuDevices) {
			return true
		}
	}
	for _, device := range container.GetCDIDevices() {
		if strings.HasPrefix(device.GetName(), gpuVendor) {
			return true
		}
	}
	for _, m := range container.GetMounts() {
		if strings.HasPrefix(m.GetDestination(), gpuMounts) {
			return true
		}
	}
	value, _ := variable(container, gpuVariable)
	return value != "" && value != "void" && value != "none"
}

// variable is the last value of a variable, and how often it is there.
func variable(container *api.Container, name string) (value string, times int) {
	for _, entry := range container.GetEnv() {
		if key, v, _ := strings.Cut(entry, "="); key == name {
			value, times = v, times+1
		}
	}
	return value, times
}

// adjust makes a container's adjustment. It gives nothing that the container has already, so a second instance of the plugin changes
// nothing.
func adjust(container *api.Container, level int, settings []setting, mounts []mount) (*api.ContainerAdjustment, Result) {
	change, changed := &api.ContainerAdjustment{}, false
	preload, times := variable(container, inject.PreloadVariable)
	if times > 1 {
		return nil, Duplicate
	}
	preloaded := inject.Has(preload)
	for _, m := range mounts {
		switch found := place(container, m.destination); {
		case found == free:
			change.AddMount(&api.Mount{Source: m.source, Destination: m.destination, Type: "bind", Options: inject.Options(m.destination)})
			changed = true
		case found == blocked, !preloaded: // if it is preloaded, another instance or CDI put there what is mounted
			return nil, Conflict
		}
	}
	if !preloaded {
		// Without the first an earlier plugin that set the variable would make the runtime fail.
		change.RemoveEnv(inject.PreloadVariable)
		change.AddEnv(inject.PreloadVariable, inject.Append(preload))
		changed = true
	}
	// A level of the container's own stays: it may ask for less, and the socket bounds it.
	if _, times := variable(container, inject.PriorityVariable); times == 0 {
		change.AddEnv(inject.PriorityVariable, inject.Role(level))
		changed = true
	}
	for _, s := range settings {
		if _, times := variable(container, s.variable); times == 0 {
			change.AddEnv(s.variable, s.value)
			changed = true
		}
	}
	if !changed {
		return nil, Present
	}
	return change, Injected
}

// States of a mount's destination; a greater one counts before a smaller one.
const (
	free    = iota
	taken   // it, or something in it, is a mount
	blocked // the runtime cannot make the mount point, and would fail
)

// place finds out the state of a destination, by its own name and by the one that most images have a link for: a volume at /var/run is
// mounted over /run.
func place(container *api.Container, destination string) int {
	found := lies(container, destination)
	if found != blocked && strings.HasPrefix(destination, "/run/") {
		found = max(found, lies(container, "/var"+destination))
	}
	return found
}

func lies(container *api.Container, destination string) int {
	found := free
	for _, m := range container.GetMounts() {
		other := path.Clean(m.GetDestination())
		switch {
		case other == destination, strings.HasPrefix(other, destination+"/"):
			found = taken
		case strings.HasPrefix(destination, other+"/") && !writable(m):
			return blocked
		}
	}
	return found
}

// writable says that a runtime can make a mount point in a mount, and that only the pod sees it.
func writable(m *api.Mount) bool {
	scratch := m.GetType() == "tmpfs" || strings.Contains(m.GetSource(), emptyVolumes)
	return scratch && !slices.ContainsFunc(m.GetOptions(), func(o string) bool { return o == "ro" || o == "rro" })
}
