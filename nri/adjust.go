package nri

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/inject"
)

// Annotations of pods. Those of a container end in its name and win.
const (
	RoleAnnotation   = "gpreempt.io/role"
	InjectAnnotation = "gpreempt.io/inject" // "false" leaves containers alone
	ContainerRole    = "role.gpreempt.io/container."
	ContainerInject  = "inject.gpreempt.io/container."

	ObjectiveAnnotation = "gpreempt.io/objective"
	ContainerObjective  = "objective.gpreempt.io/container."
)

// What NVIDIA's device plugin, its runtime and drivers for dynamic resources give to containers with a GPU.
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
	Injected    Result = "injected"
	Lowered     Result = "lowered"      // injected, at the namespace's best level instead of what was asked
	NoObjective Result = "no_objective" // injected, without the objective that was asked, which makes no sense
	Present     Result = "present"      // it had all already
	Excluded    Result = "excluded"     // its namespace is
	OptedOut    Result = "opted_out"    // by annotation
	NoRole      Result = "no_role"      // nothing says which
	NoGPU       Result = "no_gpu"       // only an annotation for the very container does without
	Invalid     Result = "invalid"      // the role is none
	Duplicate   Result = "duplicate"    // LD_PRELOAD is there twice: runtimes lose what is changed
	Conflict    Result = "conflict"     // something else is mounted there, or nothing can be
	Unavailable Result = "unavailable"  // the library or the sockets are not on the host
	Slow        Result = "slow"         // the host's files did not answer in time
)

// Results are all of them.
var Results = []Result{Injected, Lowered, NoObjective, Present, Excluded, OptedOut, NoRole, NoGPU, Invalid, Duplicate, Conflict, Unavailable, Slow}

// given says that a container gets the library.
func (r Result) given() bool { return r == Injected || r == Lowered || r == NoObjective }

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

// objective is what the pod of a container says of that, in the form of GPREEMPT_OBJECTIVE; "" where it says nothing. The error names the
// annotation that makes no sense.
func objective(pod *api.PodSandbox, container *api.Container) (value string, err error) {
	notes, key := pod.GetAnnotations(), ContainerObjective+container.GetName()
	value, said := notes[key]
	if !said {
		key = ObjectiveAnnotation
		value, said = notes[key]
	}
	if !said {
		return "", nil
	}
	if _, err := configs.ParseObjective(configs.Objective{}, value); err != nil {
		return "", fmt.Errorf("annotation %s: %w", key, err)
	}
	return value, nil
}

// hasGPU finds a GPU among devices, mounts and variables. What NVIDIA's runtime adds later, when runc is called, is not seen here; the
// variable that tells it to is.
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

// adjust makes a container's adjustment. What it has already is not given again, so a second instance of the plugin changes nothing.
func adjust(container *api.Container, level int, objective string, mounts []mount) (*api.ContainerAdjustment, Result) {
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
	if _, times := variable(container, inject.ObjectiveVariable); times == 0 && objective != "" {
		change.AddEnv(inject.ObjectiveVariable, objective)
		changed = true
	}
	if !changed {
		return nil, Present
	}
	return change, Injected
}

// What there is at the place of a mount, in the order of what counts.
const (
	free    = iota
	taken   // it, or something in it, is a mount
	blocked // the runtime cannot make the mount point, and would fail
)

// place finds out what there is at a destination, by its own name and by the one that most images have a link for: a volume at /var/run is
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
