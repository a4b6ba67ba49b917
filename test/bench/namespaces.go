package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are kinds of them, of which each worker gets its own, by their names in /proc/PID/ns. With one of users, the user that the
// worker would have had is root there.
type namespaces []string

// The driver names its threads in /proc when it starts, by the numbers that its own PID namespace gives them, and fails with error 304
// where it cannot. So a PID namespace needs a /proc of its own, which takes a mount namespace, and a user who may mount there.
var (
	allNamespaces = namespaces{"user", "pid", "mnt", "net", "ipc", "uts"}
	// someNamespaces are tried in this order until the driver starts in one of them.
	someNamespaces = []namespaces{
		allNamespaces,
		{"user", "pid", "mnt"},
		{"user", "mnt", "net", "ipc", "uts"}, // /proc cannot be mounted in a container that hides parts of its own
		{"user"},
		{"mnt", "net", "ipc", "uts"},
	}
	cloneFlags = map[string]uintptr{"user": unix.CLONE_NEWUSER, "pid": unix.CLONE_NEWPID, "mnt": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS}
)

func (n namespaces) String() string { return strings.Join(n, ", ") }

// isolate lets a process begin in namespaces of its own.
func (n namespaces) isolate(attributes *syscall.SysProcAttr) {
	for _, kind := range n {
		attributes.Cloneflags |= cloneFlags[kind]
	}
	if !slices.Contains(n, "user") {
		return
	}
	uid, gid := 0, 0
	if c := attributes.Credential; c != nil {
		uid, gid = int(c.Uid), int(c.Gid)
	}
	attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	attributes.Credential = &syscall.Credential{NoSetGroups: true}
}

// procCommand makes the command mount /proc anew, and then be another program: gpreempt-bench bench-proc PROGRAM [ARGUMENT ...].
const procCommand = "bench-proc"

// Like hostileCommand it runs before main.
func init() {
	if len(os.Args) < 3 || os.Args[1] != procCommand {
		return
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: mount /proc: %v\n", procCommand, err)
		os.Exit(1)
	}
	err = unix.Exec(os.Args[2], os.Args[2:], os.Environ())
	fmt.Fprintf(os.Stderr, "%s: %s: %v\n", procCommand, os.Args[2], err)
	os.Exit(1)
}

// wrap is the command of a worker of this program, which begins with a /proc of its own where it has a PID namespace.
func (n namespaces) wrap(arguments []string) []string {
	if !slices.Contains(n, "pid") {
		return arguments
	}
	return append([]string{arguments[0], procCommand}, arguments...)
}
