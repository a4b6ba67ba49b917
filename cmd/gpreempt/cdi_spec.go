package main

import (
	"path/filepath"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpreempt/gpreempt/inject"
)

// cdiFiles is what containers get, by paths of the host; inside they have the places below.
type cdiFiles struct {
	library, command string
	segmentHost      string // "": none
	segmentInside    string
	sockets          string   // directory of a broker, with one for each level; "": none
	preload          []string // libraries of the image that go before ours
}

// cdiSpec describes a device per priority. CDI replaces variables and cannot add to them: an image with an LD_PRELOAD of its own
// needs preload, or the devices without LD_PRELOAD.
func cdiSpec(files cdiFiles, preloaded bool) *specs.Spec {
	spec := &specs.Spec{Kind: "gpreempt.io/files"}
	if preloaded {
		spec.Kind = "gpreempt.io/role"
	}
	for _, place := range inject.Libraries() {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.library, place))
	}
	spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.command, inject.Command))
	if files.segmentHost != "" {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, &specs.Mount{
			HostPath: files.segmentHost, ContainerPath: files.segmentInside,
			Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"},
		})
	}
	for _, name := range inject.Roles() {
		device := specs.Device{Name: name}
		device.ContainerEdits.Env = []string{inject.PriorityVariable + "=" + name}
		if preloaded {
			device.ContainerEdits.Env = append(device.ContainerEdits.Env, inject.PreloadVariable+"="+inject.Append(strings.Join(files.preload, ":")))
		}
		if level, is := inject.Level(name); is && files.sockets != "" {
			device.ContainerEdits.Mounts = append(device.ContainerEdits.Mounts, readOnly(filepath.Join(files.sockets, strconv.Itoa(level)), inject.Socket))
		}
		spec.Devices = append(spec.Devices, device)
	}
	spec.Version, _ = specs.MinimumRequiredVersion(spec) // it never fails; older runtimes refuse what is newer than need be
	return spec
}

func readOnly(host, inside string) *specs.Mount {
	return &specs.Mount{HostPath: host, ContainerPath: inside, Options: inject.Options(inside)}
}
