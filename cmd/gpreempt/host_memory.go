package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// How much host memory this machine, or a cgroup, leaves to page-lock.

// hostMachine is where a machine says what memory it has.
type hostMachine struct{ proc, cgroups string }

var thisMachine = hostMachine{"/proc", "/sys/fs/cgroup"}

// keepPart: a sixteenth of what there is stays for others.
const keepPart = 16

// left is how much host memory can still be page-locked, and what bounds it: the machine, or a cgroup of this process. It
// reckons as preempt/memory/host.c does.
func (h hostMachine) left() (bytes uint64, whose string) {
	bytes, whose = h.available(), "the machine"
	for _, g := range h.groups() {
		if room, bounded := g.of.room(g.folder); bounded && room < bytes {
			bytes, whose = room, "cgroup "+g.path
		}
	}
	return bytes, whose
}

// group is a control group that bounds memory of this process.
type group struct {
	path, folder string
	of           hierarchy
}

// groups are the control groups of this process, each with all above it.
func (h hostMachine) groups() (all []group) {
	text, err := os.ReadFile(h.proc + "/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(f) != 3 {
			continue
		}
		base, of := h.cgroups, version2
		switch {
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			base, of = base+"/memory", version1
		case f[1] != "":
			continue
		}
		for path := filepath.Clean("/" + f[2]); ; path = filepath.Dir(path) {
			all = append(all, group{path, filepath.Join(base, path), of})
			if path == "/" {
				break
			}
		}
	}
	return all
}

// deviceLimits are the limits of device memory of this process's control groups: lines of dmem.max, each a region and bytes or "max".
func (h hostMachine) deviceLimits() (all []string) {
	for _, g := range h.groups() {
		text, err := os.ReadFile(g.folder + "/dmem.max")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			region, limit, _ := strings.Cut(strings.TrimSpace(line), " ")
			if bytes, err := strconv.ParseUint(limit, 10, 64); err == nil {
				all = append(all, fmt.Sprintf("cgroup %s: dmem.max of %s is %s", g.path, region, amount(bytes)))
			}
		}
	}
	return all
}

// hierarchy has the names of the files of a version of cgroups.
type hierarchy struct {
	limits           []string
	use, reclaimable string
}

var (
	version1 = hierarchy{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"}
	version2 = hierarchy{[]string{"memory.max", "memory.high"}, "memory.current", "inactive_file"}
)

// room is what a cgroup leaves, if it has a limit. Files in memory that were not used lately are taken back at need.
func (of hierarchy) room(folder string) (bytes uint64, bounded bool) {
	most := uint64(math.MaxUint64)
	for _, name := range of.limits {
		if n, is := numbers(folder + "/" + name)[""]; is { // else "max", or no such cgroup here
			most, bounded = min(most, n), true
		}
	}
	used, known := numbers(folder + "/" + of.use)[""]
	if !bounded || !known {
		return 0, false
	}
	most -= most / keepPart
	return grown(grown(numbers(folder + "/memory.stat")[of.reclaimable], used), most), true
}

// numbers are the numbers of a file, by the words in front of them; "" where there is no word.
func numbers(path string) map[string]uint64 {
	found := map[string]uint64{}
	text, err := os.ReadFile(path)
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(strings.Replace(line, ":", " ", 1))
		for i, word := range words[:min(2, len(words))] {
			if n, err := strconv.ParseUint(word, 10, 64); err == nil {
				found[strings.Join(words[:i], "")] = n
				break
			}
		}
	}
	return found
}

func (h hostMachine) available() uint64 {
	kb := numbers(h.proc + "/meminfo")
	const most = math.MaxUint64 >> 10
	return grown(min(kb["MemTotal"], most)<<10/keepPart, min(kb["MemAvailable"], most)<<10)
}
