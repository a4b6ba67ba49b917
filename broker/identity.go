package broker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/pods"
)

// identity is who is at the other end of a connection, as the kernel says; of its pod, as the plugin of the container runtime says.
type identity struct {
	pid      int32 // in the broker's PID namespace
	uid, gid uint32
	groups   []uint32
	cgroup   string
	started  uint64  // when, in clock ticks since the start of the machine
	nested   []int32 // its pids, from the broker's PID namespace to its own
	space    string  // its PID namespace, where that is another one than the broker's; "": it cannot be told
	pidfd    int     // readable once it has ended
	pod      pods.Pod
}

var errNotSeen = errors.New("the process cannot be seen from here: the broker needs the host's PID namespace")

const soPeerPidfd = 77 // SO_PEERPIDFD, of Linux 6.5

// proc can be replaced by tests.
var proc = "/proc"

// peerOf finds out who connected. The pidfd is the caller's. What is read of the process is of the one that the pidfd is for: it
// lived after all was read.
func peerOf(socket int) (who identity, err error) {
	who.pidfd = -1
	defer func() {
		if err != nil && who.pidfd >= 0 {
			unix.Close(who.pidfd)
			who.pidfd = -1
		}
	}()
	credentials, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return who, err
	}
	who.pid, who.uid, who.gid = credentials.Pid, credentials.Uid, credentials.Gid
	if who.pid <= 0 {
		return who, errNotSeen
	}
	known := true // that the pidfd is of who connected
	if who.pidfd, err = unix.GetsockoptInt(socket, unix.SOL_SOCKET, soPeerPidfd); err != nil {
		known = false
		if who.pidfd, err = unix.PidfdOpen(int(who.pid), 0); err != nil {
			who.pidfd = -1
			return who, fmt.Errorf("pidfd of process %d: %w", who.pid, err)
		}
	}
	unix.CloseOnExec(who.pidfd)
	folder := filepath.Join(proc, strconv.Itoa(int(who.pid)))
	status, err := os.ReadFile(filepath.Join(folder, "status"))
	if err != nil {
		return who, err
	}
	cgroups, err := os.ReadFile(filepath.Join(folder, "cgroup"))
	if err != nil {
		return who, err
	}
	var uid uint32
	uid, who.groups, who.nested = parseStatus(status)
	who.cgroup, who.started = parseCgroup(cgroups), startOf(who.pid)
	if len(who.nested) > 1 {
		who.space, _ = os.Readlink(filepath.Join(folder, "ns/pid")) // else its pid is told to nobody in there
	}
	if !known && uid != who.uid { // the pid was given to another process; one of the same user is no worse
		return who, fmt.Errorf("process %d is user %d's, and was user %d's when it connected", who.pid, uid, who.uid)
	}
	if ended(who.pidfd) {
		return who, fmt.Errorf("process %d: %w", who.pid, unix.ESRCH)
	}
	return who, nil
}

func ended(pidfd int) bool {
	ready := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 0)
	return err == nil && n > 0
}

// parseStatus reads the effective uid, the groups and the pids of /proc/PID/status.
func parseStatus(status []byte) (uid uint32, groups []uint32, nested []int32) {
	for line := range bytes.Lines(status) {
		key, values, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(values)
		switch {
		case key == "Uid" && len(fields) > 1: // real, effective, saved, file system
			uid = uint32(number(fields[1]))
		case key == "Groups":
			for _, f := range fields {
				groups = append(groups, uint32(number(f)))
			}
		case key == "NSpid":
			for _, f := range fields {
				nested = append(nested, int32(number(f)))
			}
		}
	}
	return uid, groups, nested
}

func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// parseCgroup reads the path of /proc/PID/cgroup: of version 2, or of the first hierarchy of version 1 that is not the root.
func parseCgroup(lines []byte) (path string) {
	for line := range strings.Lines(string(lines)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" && parts[1] == "" && parts[2] != "/" {
			return parts[2]
		}
		if path == "" || path == "/" {
			path = parts[2]
		}
	}
	return path
}

// containers are the paths that runtimes of the system make, of which the last part is the id. Below another one, as a user's own slice,
// anybody can name a cgroup like that.
var containers = regexp.MustCompile(`^/(?:(?:docker|kubepods[^/]*)/(?:[^/]+/)*|(?:system|machine)\.slice/|kubepods\.slice/(?:kubepods-[^/]+\.slice/)*)(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?$`)

// relatives are the rest of such a path for a broker that is in a container itself: with a cgroup namespace of its own, as pods have it,
// the kernel shows it the way from its own cgroup. What they have in common is left out, so the rest begins anywhere below kubepods, or
// beside the broker's own container. Nobody but the system makes cgroups there.
var relatives = regexp.MustCompile(`^/(?:kubepods-[^/]+\.slice/)*(?:(?:(?:burstable|besteffort)/)?pod[^/]+/)?(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?$`)

// containerOf is the container's id in the path of its cgroup; "" where there is none.
func containerOf(cgroup string) string {
	rest := cgroup
	for strings.HasPrefix(rest, "/../") {
		rest = rest[len("/.."):]
	}
	if found := containers.FindStringSubmatch(rest); found != nil {
		return found[1]
	}
	if found := relatives.FindStringSubmatch(rest); found != nil && rest != cgroup {
		return found[1]
	}
	return ""
}

// pidFor is the pid of a process as another one sees it, 0 if it does not.
func pidFor(asker, target *identity) int32 {
	depth := len(asker.nested)
	switch {
	case depth == 0 || len(target.nested) < depth:
		return 0
	case depth == 1: // as the broker does
		return target.pid
	}
	// The asker is in a namespace below the broker's: so must the target be, or in one below that. A process of the same depth
	// can be in another one.
	if asker.space == "" || asker.space != target.space {
		return 0
	}
	return target.nested[depth-1]
}

// startOf is when a process started; 0: there is none.
func startOf(pid int32) uint64 {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(int(pid)), "stat"))
	if err != nil {
		return 0
	}
	const field = 22 - 3 // starttime; the first behind the name, which may hold anything, is the third
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= field {
		return 0
	}
	started, err := strconv.ParseUint(fields[field], 10, 64)
	if err != nil {
		return 0
	}
	return started
}
