package main

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/inject"
)

// The form of the Container Device Interface (https://tags.cncf.io/container-device-interface), as far as descriptions here need it.
type (
	cdiDevices struct {
		Version        string      `json:"cdiVersion"`
		Kind           string      `json:"kind"`
		Devices        []cdiDevice `json:"devices"`
		ContainerEdits cdiEdits    `json:"containerEdits"`
	}
	cdiDevice struct {
		Name           string   `json:"name"`
		ContainerEdits cdiEdits `json:"containerEdits"`
	}
	cdiEdits struct {
		Env    []string   `json:"env,omitempty"`
		Mounts []cdiMount `json:"mounts,omitempty"`
	}
	cdiMount struct {
		HostPath      string   `json:"hostPath"`
		ContainerPath string   `json:"containerPath"`
		Options       []string `json:"options,omitempty"`
	}
)

// cdiVersion is the first version in which names of devices may begin with a digit. Older runtimes refuse a version newer than necessary.
const cdiVersion = "0.5.0"

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
func cdiSpec(files cdiFiles, preloaded bool) cdiDevices {
	spec := cdiDevices{Version: cdiVersion, Kind: "gpreempt.io/files"}
	if preloaded {
		spec.Kind = "gpreempt.io/role"
	}
	for _, place := range inject.Libraries() {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.library, place))
	}
	spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.command, inject.Command))
	if files.segmentHost != "" {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, cdiMount{
			HostPath: files.segmentHost, ContainerPath: files.segmentInside,
			Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"},
		})
	}
	for _, name := range inject.Roles() {
		device := cdiDevice{Name: name}
		device.ContainerEdits.Env = []string{inject.PriorityVariable + "=" + name}
		if preloaded {
			device.ContainerEdits.Env = append(device.ContainerEdits.Env, inject.PreloadVariable+"="+inject.Append(strings.Join(files.preload, ":")))
		}
		if level, is := inject.Level(name); is && files.sockets != "" {
			device.ContainerEdits.Mounts = append(device.ContainerEdits.Mounts, readOnly(filepath.Join(files.sockets, strconv.Itoa(level)), inject.Socket))
		}
		spec.Devices = append(spec.Devices, device)
	}
	return spec
}

func readOnly(host, inside string) cdiMount {
	return cdiMount{HostPath: host, ContainerPath: inside, Options: inject.Options(inside)}
}
