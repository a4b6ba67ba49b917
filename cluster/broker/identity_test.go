package broker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

// connected is the broker's end of a connection of this process.
func connected(t *testing.T) int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0]
}

// The broker finds out the same of this process as the process knows of itself.
func TestWhoConnected(t *testing.T) {
	before := descriptors(t)
	fd := connected(t)
	who, err := peerOf(fd, ticks())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, held, _ := strings.Cut(string(status), "CapEff:\t")
	var capabilities uint64
	if _, err := fmt.Sscanf(held, "%x", &capabilities); err != nil {
		t.Fatal(err)
	}
	if who.pid != int32(os.Getpid()) || who.uid != uint32(os.Geteuid()) || who.gid != uint32(os.Getegid()) || fmt.Sprint(who.groups) != fmt.Sprint(groups) ||
		who.started == 0 || who.started > ticks() || len(who.nested) != 1 || who.nested[0] != who.pid || !who.users.own || who.admin != (capabilities>>unix.CAP_SYS_ADMIN&1 == 1) {
		t.Errorf("%+v", who)
	}
	flags, err := unix.FcntlInt(uintptr(who.pidfd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 || ended(who.pidfd) {
		t.Errorf("its pidfd has flags %#x, %v", flags, err)
	}
	unix.Close(who.pidfd)
	if now := descriptors(t); now != before+2 {
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

// peerOf refuses a process that it cannot tell from another one. On an old kernel that is one that started after the connection was made.
// On a new kernel it is one of which the kernel says that it has ended. It is also one that is another user by now, or of which /proc says
// too little.
func TestWhoCannotBeTold(t *testing.T) {
	var known func(int) (int, error)
	known, peerPidfd = peerPidfd, nil
	defer func() { peerPidfd = known }()
	before := descriptors(t)
	fd := connected(t)
	for _, c := range []struct {
		name     string
		kernel   error // of SO_PEERPIDFD
		accepted uint64
		status   func(string) string
		want     error
	}{
		{"known", nil, 0, nil, nil},
		{"old kernel", unix.ENOPROTOOPT, ticks(), nil, nil},
		{"old kernel, it started later", unix.ENOPROTOOPT, startOf(int32(os.Getpid())) - 1, nil, errIdentity},
		{"it has ended", unix.ESRCH, ticks(), nil, unix.ESRCH},
		{"another user", nil, 0, func(s string) string { return strings.Replace(s, "\nUid:\t", "\nUid:\t7\t7\t", 1) }, errIdentity},
		{"another group", nil, 0, func(s string) string { return strings.Replace(s, "\nGid:\t", "\nGid:\t7\t7\t", 1) }, errIdentity},
		{"no user", nil, 0, func(s string) string { return strings.Replace(s, "\nUid:", "\nuid:", 1) }, errNotStated},
		{"no group", nil, 0, func(s string) string { return strings.Replace(s, "\nGid:", "\ngid:", 1) }, errNotStated},
		{"no pids", nil, 0, func(s string) string { return strings.Replace(s, "\nNSpid:", "\nnspid:", 1) }, errNotStated},
		{"no capabilities", nil, 0, func(s string) string { return strings.Replace(s, "\nCapEff:", "\ncapeff:", 1) }, errNotStated},
		{"a user that is none", nil, 0, func(s string) string { return strings.Replace(s, "\nUid:\t", "\nUid:\tx\tx\t", 1) }, errIdentity},
	} {
		peerPidfd = func(fd int) (int, error) {
			if c.kernel != nil {
				return -1, c.kernel
			}
			return known(fd)
		}
		if c.status != nil {
			proc = procWith(t, c.status)
		}
		who, err := peerOf(fd, c.accepted)
		proc = "/proc"
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, must be %v", c.name, err, c.want)
		}
		if (who.pidfd >= 0) != (c.want == nil) {
			t.Errorf("%s: pidfd %d", c.name, who.pidfd)
		}
		if err == nil {
			unix.Close(who.pidfd)
		}
	}
	if now := descriptors(t); now != before+2 {
		t.Errorf("%d descriptors, %d before", now, before)
	}
}

// procWith is /proc with another status of this process.
func procWith(t *testing.T, change func(string) string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	own := filepath.Join(folder, fmt.Sprint(os.Getpid()))
	if err := errors.Join(os.Mkdir(own, 0o700), os.Symlink("/proc/self", filepath.Join(folder, "self"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cgroup", "uid_map", "stat", "status"} {
		text, err := os.ReadFile("/proc/self/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "status" {
			changed := change(string(text))
			if changed == string(text) {
				t.Fatal("nothing is changed of", changed)
			}
			text = []byte(changed)
		}
		if err := os.WriteFile(filepath.Join(own, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// pretender connects, becomes somebody else, and asks then.
func pretender(what, socket string) {
	fd, err := join.Dial(socket, soon)
	must(err)
	switch what {
	case "pretend user": // as exec of a program with the setuid bit does, the other way
		must(syscall.Setuid(4242))
	case "pretend groups":
		must(syscall.Setgroups([]int{27}))
	case "pretend child": // another process has the connection, and who made it has ended
		if os.Getenv(childOf) == "" {
			must(unix.Dup3(fd, 7, 0))
			c := exec.Command("/proc/self/exe")
			c.Env = append(os.Environ(), childOf+"=1")
			c.Stdout, c.ExtraFiles = os.Stdout, []*os.File{os.NewFile(7, "connection")}
			must(c.Start())
			return
		}
		fd = 3
		for parent := os.Getppid(); os.Getppid() == parent && parent != 1; {
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
	}
	must(wire.Send(fd, &wire.Query{Layout: layout}))
	m, _, err := wire.Receive(fd, 0)
	must(err)
	switch m := m.(type) {
	case *wire.Changed:
		fmt.Println("answer level", m.Policy.Level)
	case *wire.Refused:
		fmt.Println("answer", m.Reason)
	}
}

const childOf = "GPREEMPT_TEST_CHILD"

// The broker answers about the process that connected, in its state of then.
func TestWhoPretends(t *testing.T) {
	needsRoot(t)
	b := start(t, "[[rule]]\nname = 'group'\nwhen = '27 in groups'\nlevel = 2\n[[rule]]\nname = 'root'\nwhen = 'uid == 0'\nlevel = 4", real)
	for what, want := range map[string]string{
		"pretend nothing": "level 4", "pretend groups": "level 4", "pretend user": wire.RefusedIdentity.String(), "pretend child": wire.RefusedIdentity.String(),
	} {
		attributes := &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{}}}
		if got := begin(t, what, join.SocketIn(b.directory, 0), attributes).says("answer "); got != want {
			t.Errorf("%s: %s, must be %s", what, got, want)
		}
	}
	groups := make([]uint32, mostGroups+1)
	for i := range groups {
		groups[i] = uint32(27 + i)
	}
	for n, want := range map[int]string{1: "level 2", mostGroups: "level 2", mostGroups + 1: wire.RefusedIdentity.String()} {
		attributes := &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: groups[:n]}}
		if got := begin(t, "pretend nothing", join.SocketIn(b.directory, 0), attributes).says("answer "); got != want {
			t.Errorf("of %d groups: %s, must be %s", n, got, want)
		}
	}
}

// Whom a process sees, where the broker may look at namespaces and where it may not.
func TestSandboxes(t *testing.T) {
	one, two := "/docker/"+strings.Repeat("1", 64), "/docker/"+strings.Repeat("2", 64)
	host := func() identity {
		return identity{pid: 5, nested: []int32{5}, users: users{mapped: "0 0 4294967295", own: true}, cgroup: "/"}
	}
	in := func(change ...func(who *identity)) *identity {
		who := host()
		for _, do := range change {
			do(&who)
		}
		return &who
	}
	cgroup := func(path string) func(*identity) { return func(who *identity) { who.cgroup = path } }
	pids := func(space string, nested ...int32) func(*identity) {
		return func(who *identity) { who.space, who.nested = space, nested }
	}
	space := func(name, mapped string) func(*identity) {
		return func(who *identity) { who.users = users{name: name, mapped: mapped} }
	}
	uid := func(uid uint32) func(*identity) { return func(who *identity) { who.uid = uid } }
	for _, c := range []struct {
		name          string
		asker, target *identity
		sees          bool
	}{
		{"of the host, one in a container", in(), in(cgroup(one), pids("pid:[1]", 5, 1), space("user:[1]", "0 1000 1")), true},
		{"of the same container", in(cgroup(one), pids("pid:[1]", 5, 1)), in(cgroup(one), pids("pid:[1]", 6, 2)), true},
		{"of a group that the container made", in(cgroup(one+"/a/b"), pids("pid:[1]", 5, 1)), in(cgroup(one), pids("pid:[1]", 6, 2)), true},
		{"of the host, by a container with its PIDs", in(cgroup(one)), in(), false},
		{"of the next container, with its PIDs", in(cgroup(one)), in(cgroup(two)), false},
		{"of the next container, of equal namespaces", in(cgroup(one), pids("", 5, 1)), in(cgroup(two), pids("", 6, 1)), false},
		{"of the same container, namespaces cannot be told", in(cgroup(one), pids("", 5, 1)), in(cgroup(one), pids("", 6, 2)), true},
		{"of the same container, from a namespace below", in(cgroup(one), pids("", 5, 3, 1)), in(cgroup(one), pids("", 6, 2)), false},
		{"of the same container, of a namespace beside", in(cgroup(one), pids("pid:[1]", 5, 1)), in(cgroup(one), pids("pid:[2]", 6, 2)), false},
		{"of no container, namespaces cannot be told", in(pids("", 5, 1)), in(pids("", 6, 2)), false},
		{"of the same PID namespace", in(pids("pid:[1]", 5, 1)), in(pids("pid:[1]", 6, 2)), true},
		{"of the host, from a PID namespace", in(pids("pid:[1]", 5, 1)), in(), false},
		{"of the host, from a user namespace", in(space("user:[1]", "0 1000 1")), in(), false},
		{"of the same user namespace", in(space("user:[1]", "0 1000 1")), in(space("user:[1]", "0 1000 1")), true},
		{"of another user namespace of the same map", in(space("user:[1]", "0 1000 1")), in(space("user:[2]", "0 1000 1")), false},
		{"of a user namespace that has the same map, as far as is known", in(space("", "0 1000 1")), in(space("user:[2]", "0 1000 1")), true},
		{"of a user namespace that has another map", in(space("", "0 1000 1")), in(space("", "0 2000 1")), false},
		{"of a PID namespace of nobody", in(pids("")), in(), false},
	} {
		if got := c.asker.sees(c.target); got != c.sees {
			t.Errorf("a process %s: %v", c.name, got)
		}
		if got := c.asker.has(c.target); got != c.sees {
			t.Errorf("a process %s, of its user: %v", c.name, got)
		}
		uid(7)(c.target)
		if c.asker.has(c.target) {
			t.Errorf("a process %s, of another user, is its own", c.name)
		}
	}
	facts := policy.Facts{UID: 9, GID: 9, Groups: []uint32{9}}
	for _, c := range []struct {
		name string
		who  *identity
		kept bool
	}{
		{"a user", in(uid(9)), true}, {"root", in(func(who *identity) { who.admin = true }), true}, {"root without rights", in(), false},
		{"root of a container with rights", in(cgroup(one), func(who *identity) { who.admin = true }), false},
		{"a user of a PID namespace", in(uid(9), pids("pid:[1]", 5, 1)), false}, {"a user of a user namespace", in(uid(9), space("user:[1]", "0 9 1")), false},
	} {
		got := abroad(c.who, facts)
		if kept := got.UID == 9 && got.GID == 9 && len(got.Groups) == 1; kept != c.kept || !kept && (got.UID != stranger || got.GID != stranger || got.Groups != nil) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// The part of a cgroup's path that is counted is the system's: nobody has more by making groups below its own.
func TestGroupOf(t *testing.T) {
	id := strings.Repeat("0af9", 16)
	for path, want := range map[string]string{
		"/": "/", "/a/b": "/a/b", "": "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope": "/user.slice/user-1000.slice",
		"/user.slice/user-1000.slice":                                     "/user.slice/user-1000.slice",
		"/user.slice/user-1000.slice/session-3.scope":                     "/user.slice/user-1000.slice",
		"/system.slice/a.service":                                         "/system.slice/a.service",
		"/system.slice/a.service/b/c":                                     "/system.slice/a.service",
		"/machine.slice/libpod-" + id + ".scope/container":                id,
		"/docker/" + id + "/a/" + strings.Repeat("1", 64):                 id,
		"/../../user-1000.slice/x.scope":                                  "/../../user-1000.slice",
	} {
		if got := groupOf(path); got != want {
			t.Errorf("%s: %s, must be %s", path, got, want)
		}
	}
}

// When a process started is in its stat file, whatever its name holds. A file that makes no sense is of no process.
func TestWhenAProcessStarted(t *testing.T) {
	defer func() { proc = "/proc" }()
	proc = t.TempDir()
	rest := strings.Repeat(" 7", 19)
	for text, want := range map[string]uint64{
		"5 (a) R" + rest[2:] + " 123 9": 123, "5 (a) 1 2 (b) R" + rest[2:] + " 123": 123, "": 0, "5 (a) R" + rest[2:]: 0, "5 (a) R" + rest[2:] + " x": 0,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Join(proc, "5"), 0o700), os.WriteFile(filepath.Join(proc, "5/stat"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got := startOf(5); got != want {
			t.Errorf("%q: %d, must be %d", text, got, want)
		}
	}
	if got := startOf(6); got != 0 {
		t.Errorf("of no process: %d", got)
	}
}

// The cgroup is the one of version 2, unless that is the root. Else it is the first of version 1 that is not the root.
func TestParseCgroup(t *testing.T) {
	for lines, want := range map[string]string{
		"0::/a/b\n": "/a/b", "0::/\n": "/", "": "", "nonsense\n0::/a\n": "/a", "0::/a:b\n": "/a:b", "3:cpu:/a\n0::/b\n": "/b", "0::/\n3:cpu:/a\n": "/a",
		"3:cpu:/\n2:pids:/a\n1:name=systemd:/b\n0::/\n": "/a", "0:cpu:/b\n3:cpu:/a\n": "/b", "3::/a\n2:pids:/b\n0::/c\n": "/c",
	} {
		if got := parseCgroup([]byte(lines)); got != want {
			t.Errorf("%q: %q, must be %q", lines, got, want)
		}
	}
}
