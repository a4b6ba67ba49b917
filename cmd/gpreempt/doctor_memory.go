package main

import (
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file finds out which memory can leave the GPU, and where to.

func (d *doctor) checkMemory() {
	if len(d.devices) == 0 {
		return
	}
	for _, v := range d.devices {
		d.sayDeviceMemory(v)
	}
	d.sayHostMemory()
	snapshots, err := d.snapshots()
	if err != nil {
		return // which checkDirectory or checkBroker said
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
	if !d.swapIsNamed() {
		d.say("memory", ok, about+reason, "")
		return
	}
	d.say("memory", warned, about+reason, advice)
}

// swapIsNamed says whether somebody asked for it: what "auto" finds lacking it does without.
func (d *doctor) swapIsNamed() bool {
	return !d.config.Mechanisms.Auto && d.config.Mechanisms.Use(configs.Swap)
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
	if most < largest/4 && d.swapIsNamed() {
		d.say("memory", warned, reason, "this is little beside the GPU's: what does not fit there does not leave the GPU")
		return
	}
	d.say("memory", ok, reason, "")
}

// pinnedLimit is what people set for clients of MPS servers, and the driver reads.
const pinnedLimit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

// sayCaps names what bounds the device memory of programs that are started from here, whatever the GPU has: the driver told the probes, or
// somebody has written it where the driver reads it.
func (d *doctor) sayCaps(peers []segment.Peer) {
	var caps []string
	for _, p := range peers {
		if p.Memory != nil && p.Memory.Cap != 0 {
			caps = append(caps, "the driver lets it have "+amount(p.Memory.Cap))
			break
		}
	}
	if limit := os.Getenv(pinnedLimit); limit != "" {
		caps = append(caps, pinnedLimit+"="+limit)
	}
	caps = append(caps, d.machine.deviceLimits()...)
	if len(caps) == 0 {
		return
	}
	d.say("memory", warned, "a program's device memory is capped: "+strings.Join(caps, ", "),
		"beyond that it is out of memory at once, though the GPU has room and others could give some")
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
		d.say("memory", ok, fmt.Sprintf("%s: processes with swap: %d; %s of theirs can go, %s are out, %s cannot go", heading(&s), processes, rounded(can), rounded(out), rounded(cannot)), "")
	}
}

func rounded(bytes float64) string { return amount(uint64(min(bytes, math.MaxInt64))) }
