// Package inject is the one list of what a container needs to run its programs under the library. CDI and NRI put it there.
package inject

import (
	"path"
	"runtime"
	"strconv"
	"strings"
)

// Folders of a container. The command finds the library, and its name with $LIB, as where it is installed.
const (
	Folder  = "/opt/gpreempt"
	Command = Folder + "/bin/gpreempt"
	// Preload is the library's name in LD_PRELOAD. glibc's loader puts one of Libraries there. musl's does not know $LIB, finds no such
	// file and says nothing: the library would end each of its programs.
	Preload = Folder + "/$LIB/libgpreempt.so"
	// Socket is the directory of the broker's socket. Which one of the host's it is says what level the container may have at best.
	Socket = "/run/gpreempt/broker"

	PreloadVariable  = "LD_PRELOAD"
	PriorityVariable = "GPREEMPT_PRIORITY"
	// ObjectiveVariable says how slow a latency-critical program may be.
	ObjectiveVariable = "GPREEMPT_OBJECTIVE"
	// MemoryVariable says how much GPU memory a program may have.
	MemoryVariable = "GPREEMPT_MEMORY_LIMIT"
)

const levels = 8 // as in package configs, which this one does not need

// triplets are what Debian's $LIB ends with.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// Libraries are the library's places in a container: one for each value of $LIB.
func Libraries() (places []string) {
	for _, lib := range []string{"lib", "lib64", "lib/" + triplets[runtime.GOARCH]} {
		places = append(places, strings.ReplaceAll(Preload, "$LIB", lib))
	}
	return places
}

// Options are those of a mount at a place in a container. It changes nothing of the host. Programs are loaded from that of the library, and
// nothing from that of the socket, where nothing is mounted below either.
func Options(destination string) []string {
	if destination == Socket {
		return []string{"ro", "nosuid", "nodev", "noexec", "bind", "rprivate"}
	}
	return []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
}

// Append puts the library behind what LD_PRELOAD has, unless that names one already.
func Append(preload string) string {
	if Has(preload) {
		return preload
	}
	return strings.TrimLeft(strings.TrimRight(preload, ": ")+":"+Preload, ":")
}

// Has says whether an LD_PRELOAD names the library, this one or one of the image's own. The loader takes blanks for colons.
func Has(preload string) bool {
	for name := range strings.FieldsFuncSeq(preload, func(r rune) bool { return r == ':' || r == ' ' }) {
		if path.Base(name) == path.Base(Preload) {
			return true
		}
	}
	return false
}

// Roles are what a container may be given: lc, be, and the levels.
func Roles() []string {
	names := []string{"lc", "be"}
	for level := range levels {
		names = append(names, strconv.Itoa(level))
	}
	return names
}

// Level is a role's level, from 0 (lc) to 7 (be).
func Level(role string) (level int, known bool) {
	switch role {
	case "lc":
		return 0, true
	case "be":
		return levels - 1, true
	}
	if len(role) != 1 || role[0] < '0' || role[0] >= '0'+levels {
		return 0, false
	}
	return int(role[0] - '0'), true
}

// Role is a level's name.
func Role(level int) string {
	switch level {
	case 0:
		return "lc"
	case levels - 1:
		return "be"
	}
	return strconv.Itoa(level)
}
