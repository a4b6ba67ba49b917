package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file checks the machine. Its checks need no program under the library.

func (d *doctor) checkConfig(file string) {
	config, path, passed, err := loadConfig(file)
	if err == nil {
		_, err = configs.ParsePriority(os.Getenv("GPREEMPT_PRIORITY"))
	}
	if err == nil {
		err = cmp.Or(configs.ApplyObjectiveEnv(&config, os.Getenv("GPREEMPT_OBJECTIVE")), configs.ApplyMemoryLimitEnv(&config, os.Getenv("GPREEMPT_MEMORY_LIMIT")))
	}
	d.config = config
	if passed != nil {
		advice := "remove it, or name another file by GPREEMPT_CONFIG"
		if errors.Is(passed, configs.ErrOthers) {
			advice = "give it to root alone, or name it by GPREEMPT_CONFIG"
		}
		d.say("config", warned, strings.ReplaceAll(passed.Error(), "\n", "; "), advice)
	}
	switch {
	case err != nil:
		d.config = configs.Default()
		d.say("config", failed, err.Error(), "correct "+toCorrect(err, path, file)+"; until then programs run without preemption")
	case path == "":
		d.say("config", ok, "no gpreempt.toml: the defaults are in force", "")
	default:
		d.say("config", ok, path, "")
	}
}

// toCorrect is what an error of the configuration is about: a variable, the flag, or the file that is named or was found.
func toCorrect(err error, path, file string) string {
	if name := regexp.MustCompile(`^(GPREEMPT_[A-Z_]+|--config)\b`).FindString(err.Error()); name != "" {
		return name
	}
	return cmp.Or(path, file, os.Getenv("GPREEMPT_CONFIG"), "it")
}

func (d *doctor) checkDirectory() {
	dir := d.config.Segment.Directory
	const advice = "set segment.directory to a tmpfs that every program under the library can write to"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		d.say("segment", failed, fmt.Sprintf("%s: %v", dir, err), advice)
		return
	}
	own, gid, err := segmentDirectory(d.config)
	if err == nil {
		err = segment.CheckDirectory(own, gid)
	}
	if err != nil { // says itself what to do
		d.say("segment", failed, err.Error(), "")
		return
	}
	if err := writable(own); err != nil {
		d.say("segment", failed, err.Error(), advice)
		return
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		d.say("segment", warned, dir+" is not in memory", advice)
		return
	}
	d.say("segment", ok, dir+" is writable", "")
}

// segmentDirectory returns the directory of the segments, and the group that shares them: -1 for none.
func segmentDirectory(config configs.Config) (dir string, gid int, err error) {
	if config.Segment.Group == "" {
		return segment.Directory(config.Segment.Directory, os.Getuid()), -1, nil
	}
	gid, err = segment.GroupID(config.Segment.Group)
	return segment.GroupDirectory(config.Segment.Directory, gid), gid, err
}

// writable tries a file in dir, or above it where dir does not exist yet.
func writable(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir)
	}
	file, err := os.CreateTemp(dir, ".gpreempt-doctor-")
	if err != nil {
		return err
	}
	file.Close()
	return os.Remove(file.Name())
}

func (d *doctor) checkLibrary() {
	path, err := cli.FindLibrary()
	if err == nil {
		path, err = cli.Preload(path)
	}
	if err != nil {
		d.say("library", failed, err.Error(), "")
		return
	}
	d.library = path
	d.say("library", ok, path+" preloads", "")
}

func (d *doctor) checkKernelDriver() {
	switch version := kernelDriver(); {
	case version == "": // the devices tell
	case strings.ContainsAny(version, " "):
		d.say("kernel", warned, "NVIDIA driver "+version, "")
	default:
		d.say("kernel", ok, "NVIDIA driver "+version, "")
	}
}

func (d *doctor) checkDevices() {
	p, err := startProbe(os.Environ())
	if err != nil {
		d.say("driver", failed, err.Error(), "")
		return
	}
	defer p.end()
	lines, err := p.report(probeLimit)
	for _, line := range lines {
		d.readProbe(line)
	}
	if err != nil {
		d.say("driver", failed, "the probe of libcuda.so.1 "+err.Error(), "see whether nvidia-smi works")
		return
	}
	if len(d.devices) == 0 && !d.failed() {
		d.say("device", failed, "no CUDA device", "see CUDA_VISIBLE_DEVICES and whether nvidia-smi -L lists one")
	}
}

// readProbe understands a line of probe.c.
func (d *doctor) readProbe(line string) {
	what, rest, _ := strings.Cut(line, " ")
	f := strings.SplitN(rest, " ", 4)
	switch {
	case what == "driver":
		d.say("driver", ok, "libcuda.so.1 for CUDA "+rest, "")
	case what == "device" && len(f) == 4:
		v := device{uuid: f[0], capability: f[1], name: f[3]}
		d.devices = append(d.devices, v)
		d.sayDevice(v, f[2])
	case what == "memory" && len(f) == 3:
		if i := slices.IndexFunc(d.devices, func(v device) bool { return v.uuid == f[0] }); i >= 0 {
			d.devices[i].vmm = f[1] == "1"
			d.devices[i].memory, _ = strconv.ParseUint(f[2], 10, 64)
		}
	case what == "error":
		d.say("driver", failed, cli.ProbeError(rest), "install the NVIDIA driver, or pass the GPU into this container")
	}
}

func (d *doctor) sayDevice(v device, computeMode string) {
	about := fmt.Sprintf("%s, compute capability %s, %s", v.name, v.capability, v.uuid)
	if gpu, err := segment.ParseGPU(v.uuid); err == nil && gpu.Slice {
		about += ", a slice of a GPU (MIG), which was tried with the simulated driver only"
	}
	sm, _ := strconv.Atoi(strings.ReplaceAll(v.capability, ".", ""))
	known := kernels.Architectures()
	row := slices.IndexFunc(known, func(a kernels.Architecture) bool { return a.SM == sm })
	switch { // CUcomputemode, cuda.h
	case computeMode == "2":
		d.say("device", warned, about+": compute mode is prohibited", "nvidia-smi --compute-mode=DEFAULT")
	case computeMode == "3":
		d.say("device", warned, about+": compute mode is exclusive, one process at a time", "nvidia-smi --compute-mode=DEFAULT")
	case sm < known[0].SM:
		d.say("device", warned, about+": older than Ampere, never tried", "")
	case row < 0:
		d.say("device", warned, fmt.Sprintf("%s: never tried, and kernels made for sm_%d itself are not rewritten", about, sm), "")
	case !known[row].Measured:
		d.say("device", ok, about+": expected to work, never measured", "")
	default:
		d.say("device", ok, about, "")
	}
}

func (d *doctor) checkControlFile() {
	const path = "/dev/nvidiactl"
	if d.simulated() {
		d.say("control", ok, path+" is not needed: the driver is simulated", "")
		return
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		d.say("control", failed, fmt.Sprintf("open %s: %v", path, err), "load the NVIDIA kernel module, or pass the device into this container")
		return
	}
	unix.Close(fd)
	d.say("control", ok, path+" opens", "")
}
