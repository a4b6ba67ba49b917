package main

import (
	"runtime"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpreempt/gpreempt/configs"
)

// cdiFiles is what containers get, by paths of the host; inside they have the places below.
type cdiFiles struct {
	library, command string
	segmentHost      string // "": none
	segmentInside    string
	preload          []string // libraries of the image that go before ours
}

// Folders of a container. The command finds the library, and its name with $LIB, as where it is installed.
const (
	insideFolder  = "/opt/gpreempt"
	insideCommand = insideFolder + "/bin/gpreempt"
	insidePreload = insideFolder + "/$LIB/libgpreempt.so"
)

// triplets are what Debian's $LIB ends with.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// cdiSpec describes a device per priority. CDI replaces variables and cannot add to them: an image with an LD_PRELOAD of its own
// needs preload, or the devices without LD_PRELOAD.
func cdiSpec(files cdiFiles, preloaded bool) *specs.Spec {
	spec := &specs.Spec{Kind: "gpreempt.io/files"}
	if preloaded {
		spec.Kind = "gpreempt.io/role"
	}
	for _, lib := range []string{"lib", "lib64", "lib/" + triplets[runtime.GOARCH]} { // values of $LIB
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.library, strings.ReplaceAll(insidePreload, "$LIB", lib)))
	}
	spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, readOnly(files.command, insideCommand))
	if files.segmentHost != "" {
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, &specs.Mount{
			HostPath: files.segmentHost, ContainerPath: files.segmentInside,
			Options: []string{"rw", "nosuid", "nodev", "noexec", "rbind", "rprivate"},
		})
	}
	names := []string{"lc", "be"}
	for level := range configs.Levels {
		names = append(names, strconv.Itoa(level))
	}
	for _, name := range names {
		device := specs.Device{Name: name}
		device.ContainerEdits.Env = []string{"GPREEMPT_PRIORITY=" + name}
		if preloaded {
			device.ContainerEdits.Env = append(device.ContainerEdits.Env, "LD_PRELOAD="+strings.Join(append(files.preload[:len(files.preload):len(files.preload)], insidePreload), ":"))
		}
		spec.Devices = append(spec.Devices, device)
	}
	spec.Version, _ = specs.MinimumRequiredVersion(spec) // it never fails; older runtimes refuse what is newer than need be
	return spec
}

func readOnly(host, inside string) *specs.Mount {
	return &specs.Mount{HostPath: host, ContainerPath: inside, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}}
}
