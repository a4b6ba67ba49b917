package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// What memory can leave the GPU, and where to.

func (d *doctor) checkMemory() {
	if len(d.devices) == 0 {
		return
	}
	for _, v := range d.devices {
		d.sayDeviceMemory(v)
	}
	d.sayHostMemory()
	snapshots, err := readSegments(d.config.Segment.Directory, d.config.Segment.Group)
	if err != nil {
		return // which checkDirectory said
	}
	for _, s := range snapshots {
		d.sayProcesses(s)
	}
}

func (d *doctor) sayDeviceMemory(v device) {
	about := fmt.Sprintf("%s: %s; ", v.uuid, amount(v.memory))
	if v.vmm {
		d.say("memory", ok, about+"the driver lets memory go to host memory and come back at the same addresses", "")
		return
	}
	reason, advice := reasonsOf(configs.FallbackNoVMM, configs.Swap)
	if !d.config.Mechanisms.Use(configs.Swap) {
		d.say("memory", ok, about+reason, "")
		return
	}
	d.say("memory", warned, about+reason, advice)
}

// sayHostMemory says how much a process that begins to swap now may page-lock.
func (d *doctor) sayHostMemory() {
	left, whose := d.machine.left()
	most, key := left/2, fmt.Sprintf("memory.host_mb = 0: half of the %s that %s leaves", amount(left), whose)
	if mb := d.config.Memory.HostMB; mb != 0 {
		most, key = min(left, mb<<20), fmt.Sprintf("memory.host_mb = %d; %s leaves %s", mb, whose, amount(left))
	}
	reason := fmt.Sprintf("%s of host memory may hold what leaves GPUs (%s)", amount(most), key)
	largest := uint64(0)
	for _, v := range d.devices {
		largest = max(largest, v.memory)
	}
	if most < largest/4 && d.config.Mechanisms.Use(configs.Swap) {
		d.say("memory", warned, reason, "this is little beside the GPU's: what does not fit there does not leave the GPU")
		return
	}
	d.say("memory", ok, reason, "")
}

// sayProcesses says what can go of the processes that run.
func (d *doctor) sayProcesses(s segment.Snapshot) {
	var can, out, cannot float64 // what peers wrote may overflow integers
	processes := 0
	for _, p := range s.Peers {
		if m := p.Memory; m != nil {
			processes++
			can, out, cannot = can+float64(m.Resident), out+float64(m.Swapped), cannot+float64(m.Pinned)
		}
	}
	if processes > 0 {
		d.say("memory", ok, fmt.Sprintf("%s: processes with swap: %d; %s of theirs can go, %s are out, %s cannot go", s.GPU, processes, rounded(can), rounded(out), rounded(cannot)), "")
	}
}

func rounded(bytes float64) string { return amount(uint64(min(bytes, math.MaxInt64))) }

// hostMachine is where a machine says what memory it has.
type hostMachine struct{ proc, cgroups string }

var thisMachine = hostMachine{"/proc", "/sys/fs/cgroup"}

// left is how much host memory can still be had, and what bounds it: the machine, or a cgroup of this process.
func (h hostMachine) left() (bytes uint64, whose string) {
	bytes, whose = h.available(), "the machine"
	text, err := os.ReadFile(h.proc + "/self/cgroup")
	if err != nil {
		return bytes, whose
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(f) != 3 {
			continue
		}
		base, limit, use := h.cgroups, "memory.max", "memory.current"
		switch {
		case f[1] == "memory": // version 1
			base, limit, use = base+"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		case f[1] != "":
			continue
		}
		for path := filepath.Clean("/" + f[2]); ; path = filepath.Dir(path) {
			if room, bounded := roomOf(filepath.Join(base, path), limit, use); bounded && room < bytes {
				bytes, whose = room, "cgroup "+path
			}
			if path == "/" {
				break
			}
		}
	}
	return bytes, whose
}

// roomOf is what a cgroup leaves, if it has a limit.
func roomOf(folder, limit, use string) (bytes uint64, bounded bool) {
	most, known := number(folder + "/" + limit)
	if !known {
		return 0, false // "max", or no such cgroup here
	}
	now, _ := number(folder + "/" + use)
	return most - min(most, now), true
}

func number(path string) (n uint64, is bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// available is MemAvailable, or what is free where an old kernel lacks it.
func (h hostMachine) available() uint64 {
	text, err := os.ReadFile(h.proc + "/meminfo")
	if err != nil {
		return 0
	}
	found := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54); err == nil {
			found[key] = kb << 10
		}
	}
	return cmp.Or(found["MemAvailable"], found["MemFree"])
}
