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

	"github.com/gpreempt/gpreempt/cluster/pods"
)

// identity is who is at the other end of a connection, as the kernel says; of its pod, as the plugin of the container runtime says.
type identity struct {
	pid      int32 // in the broker's PID namespace
	uid, gid uint32
	groups   []uint32
	cgroup   string
	started  uint64  // clock ticks since the start of the machine
	nested   []int32 // its pids, from the broker's PID namespace to its own
	space    string  // its PID namespace, if other than the broker's; "": unknown
	users    users
	admin    bool // it has CAP_SYS_ADMIN
	pidfd    int  // readable once it has ended
	pod      pods.Pod
}

// users is a user namespace: its name, where the broker may look at it, and the map of its users, which everybody may read.
type users struct {
	name, mapped string
	own          bool // the broker's
}

// errIdentity is wrapped by errors about a process that is not the one that connected, or not any more.
var errIdentity = errors.New("the process is not what it was when it connected")

var (
	errNotSeen   = errors.New("the process cannot be seen from here: the broker needs the host's PID namespace")
	errNotStated = errors.New("/proc does not say which user, capabilities and pids it has")
)

const (
	soPeerPidfd = 77 // SO_PEERPIDFD, of Linux 6.5
	// mostGroups is how many a process may have beside its first one: a condition of the policy looks through them.
	mostGroups = 1024
)

// proc can be replaced by tests.
var proc = "/proc"

// peerPidfd can be replaced by tests, which stand for old kernels.
var peerPidfd = func(socket int) (pidfd int, err error) {
	return unix.GetsockoptInt(socket, unix.SOL_SOCKET, soPeerPidfd)
}

// peerOf finds out which process connected. The pidfd is the caller's. accepted is the time since the start of the machine, in clock
// ticks, when the connection had been made.
//
// The kernel says of the moment when it connected: pid, uid, gid and groups. Everything else is read of the process that has the pid now.
// Two processes can be confused: another one that has got the pid since, and the same one after it has become another user. Exec of a
// program with the setuid bit does that. The first is ruled out by SO_PEERPIDFD, which is of the process that connected, and lives after
// all was read. The second is ruled out by the uid and gid, which are the same before and after. Before Linux 6.5 the process must have
// started before the connection was accepted: who makes another process of its user get its pid in between passes for that one. That is why
// nothing is granted for being root but at the administrator's socket.
func peerOf(socket int, accepted uint64) (who identity, err error) {
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
	if who.groups, err = peerGroups(socket); err != nil {
		return who, fmt.Errorf("groups of process %d: %w", who.pid, err)
	}
	known := true // that the pidfd is of the process that connected
	who.pidfd, err = peerPidfd(socket)
	if errors.Is(err, unix.ENOPROTOOPT) { // Linux before 6.5. Any other error says that the process has ended
		known = false
		who.pidfd, err = unix.PidfdOpen(int(who.pid), 0)
	}
	if err != nil {
		who.pidfd = -1
		return who, fmt.Errorf("pidfd of process %d: %w", who.pid, err)
	}
	unix.CloseOnExec(who.pidfd)
	if err := who.read(); err != nil {
		return who, err
	}
	if !known && who.started > accepted {
		return who, fmt.Errorf("process %d: %w: it started later", who.pid, errIdentity)
	}
	if ended(who.pidfd) {
		return who, fmt.Errorf("process %d: %w", who.pid, unix.ESRCH)
	}
	return who, nil
}

// read reads what /proc says of the process.
func (who *identity) read() error {
	folder := filepath.Join(proc, strconv.Itoa(int(who.pid)))
	status, err := os.ReadFile(filepath.Join(folder, "status"))
	if err != nil {
		return err
	}
	cgroups, err := os.ReadFile(filepath.Join(folder, "cgroup"))
	if err != nil {
		return err
	}
	said, err := parseStatus(status)
	if err != nil {
		return fmt.Errorf("process %d: %w", who.pid, err)
	}
	if said.uid != who.uid || said.gid != who.gid {
		return fmt.Errorf("process %d: %w: it is user %d's and group %d's, and was user %d's and group %d's", who.pid, errIdentity, said.uid, said.gid, who.uid, who.gid)
	}
	who.nested, who.admin = said.nested, said.admin
	who.cgroup, who.started = parseCgroup(cgroups), startOf(who.pid)
	if len(who.nested) > 1 {
		who.space, _ = os.Readlink(filepath.Join(folder, "ns/pid")) // else processes in there do not see its pid
	}
	who.users, err = usersOf(folder)
	return err
}

// usersOf is the user namespace of a process.
func usersOf(folder string) (u users, err error) {
	of := func(folder string) (u users, err error) {
		mapped, err := os.ReadFile(filepath.Join(folder, "uid_map"))
		u.mapped = strings.Join(strings.Fields(string(mapped)), " ")
		u.name, _ = os.Readlink(filepath.Join(folder, "ns/user")) // not allowed for every process
		return u, err
	}
	own, err := of(filepath.Join(proc, "self"))
	if err == nil {
		u, err = of(folder)
	}
	u.own = u.same(own)
	return u, err
}

// same says whether two are one namespace, by the facts that are known of both.
func (u users) same(other users) bool {
	if u.name != "" && other.name != "" {
		return u.name == other.name
	}
	return u.mapped == other.mapped
}

// status is what /proc/PID/status says.
type status struct {
	uid, gid uint32 // effective
	nested   []int32
	admin    bool
}

// parseStatus reads /proc/PID/status, of which it needs each line: a missing line does not count as zero.
func parseStatus(text []byte) (s status, err error) {
	found := 0
	for line := range bytes.Lines(text) {
		key, values, _ := strings.Cut(string(line), ":")
		fields := strings.Fields(values)
		switch {
		case key == "Uid" && len(fields) > 1: // real, effective, saved, file system
			s.uid, found = number(fields[1]), found|1
		case key == "Gid" && len(fields) > 1:
			s.gid, found = number(fields[1]), found|2
		case key == "NSpid" && len(fields) > 0:
			for _, f := range fields {
				s.nested = append(s.nested, int32(number(f)))
			}
			found |= 4
		case key == "CapEff" && len(fields) == 1:
			held, err := strconv.ParseUint(fields[0], 16, 64)
			s.admin = err == nil && held&(1<<unix.CAP_SYS_ADMIN) != 0
			found |= 8
		}
	}
	if found != 1|2|4|8 {
		return status{}, errNotStated
	}
	return s, nil
}

func number(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 1<<32 - 1 // no user, and no process
	}
	return uint32(n)
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

// containers are the paths that runtimes of the system make. The first part that is an ID is the container's: the container itself chooses
// the parts below. Below another path, as a user's own slice, anybody can name a cgroup like that.
var containers = regexp.MustCompile(`^/(?:(?:docker|kubepods[^/]*)/(?:[^/]+/)*?|(?:system|machine)\.slice/|kubepods\.slice/(?:kubepods-[^/]+\.slice/)*)(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?(?:/|$)`)

// relatives are the rest of such a path for a broker that is in a container itself: with a cgroup namespace of its own, as pods have it,
// the kernel shows it the way from its own cgroup. The common part is left out, so the rest begins anywhere below kubepods, or beside the
// broker's own container. Only the system makes cgroups there.
var relatives = regexp.MustCompile(`^/(?:kubepods-[^/]+\.slice/)*(?:(?:(?:burstable|besteffort)/)?pod[^/]+/)?(?:[a-z]+-)*([0-9a-f]{64})(?:\.scope)?(?:/|$)`)

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

// systems is the part of a cgroup's path that the system made: a user's slice, a service, a scope. The part below it may be delegated.
var systems = regexp.MustCompile(`^.*?/(?:user-[0-9]+\.slice|[^/]+\.service|[^/]+\.scope)(?:/|$)`)

// groupOf is the cgroup that something is counted for: the container's, or the part of the path that the system made. So it does not
// help to make cgroups below one's own.
func groupOf(cgroup string) string {
	if container := containerOf(cgroup); container != "" {
		return container
	}
	if found := systems.FindString(cgroup); found != "" {
		return strings.TrimSuffix(found, "/")
	}
	return cgroup
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
