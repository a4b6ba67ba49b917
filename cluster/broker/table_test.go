package broker

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The table of docs/broker.md: who may say what about whom. Each of those below is a process of its own, really of that user and in those
// namespaces. It joins, and then asks about itself and all others.

// cannot passes over a test that this machine cannot run. In CI it fails.
func cannot(t testing.TB, why ...any) {
	t.Helper()
	if os.Getenv("GPREEMPT_CI") != "" {
		t.Fatal(why...)
	}
	t.Skip(why...)
}

func needsRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		cannot(t, "only root makes processes of other users")
	}
}

const sandboxed = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

func as(uid uint32, flags uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Cloneflags: flags}
}

// someone is a process that joins by the socket of a level, and asks by that or by the administrator's.
type someone struct {
	level int
	admin bool
	bare  bool // without capabilities
	how   *syscall.SysProcAttr
	has   []string // whose processes are its own
}

var everybody = map[string]someone{
	"administrator":             {level: 0, admin: true, has: []string{"administrator", "root", "root without capabilities", "user", "user, by be", "other user", "container", "next container", "rootless container", "user in a container"}},
	"root":                      {level: 0, has: []string{"administrator", "root", "root without capabilities", "container", "next container"}},
	"root without capabilities": {level: 0, bare: true, has: []string{"administrator", "root", "root without capabilities", "container", "next container"}},
	"user":                      {level: 0, how: as(4242, 0), has: []string{"user", "user, by be", "rootless container", "user in a container"}},
	"user, by be":               {level: 7, how: as(4242, 0), has: []string{"user, by be"}},
	"other user":                {level: 0, how: as(4243, 0), has: []string{"other user"}},
	"container":                 {level: 7, bare: true, how: as(0, sandboxed), has: []string{"container"}},
	"next container":            {level: 7, bare: true, how: as(0, sandboxed), has: []string{"next container"}},
	"rootless container":        {level: 0, how: isolated(4242), has: []string{"rootless container"}},
	"user in a container":       {level: 0, how: as(4242, sandboxed), has: []string{"user in a container"}},
}

// asker is the process of someone.
type asker struct {
	*process
	someone
	id  uint64
	pid int // as the test sees it
	own int // as it sees itself
}

// asks has it ask something, and returns the answer.
func (a *asker) asks(format string, arguments ...any) string {
	a.t.Helper()
	a.tell(format, arguments...)
	return a.says("answer ")
}

func (b *bench) everybody(t *testing.T) map[string]*asker {
	t.Helper()
	all := map[string]*asker{}
	for name, who := range everybody {
		what := "ask"
		if who.bare {
			what = "ask bare"
		}
		asks := join.SocketIn(b.directory, who.level)
		if who.admin {
			asks = join.AdminIn(b.directory)
		}
		p := begin(t, what, join.SocketIn(b.directory, who.level)+" "+asks, who.how)
		a := &asker{process: p, someone: who, pid: p.c.Process.Pid}
		if _, err := fmt.Sscan(p.says("joined "), &a.id, &a.own); err != nil {
			t.Fatal(name, err)
		}
		all[name] = a
	}
	return all
}

// askAll is an asker, inside its process. It joins by the first socket and asks by the second.
func askAll(bare bool, sockets string) {
	if bare {
		dropCapabilities()
	}
	joins, asks, _ := strings.Cut(sockets, " ")
	c, err := join.Join(joins, join.Options{Layout: layout, GPU: segment.GPU{UUID: [16]byte{1}}, Wanted: 0, Name: "asker", Within: soon})
	must(err)
	fmt.Println("joined", c.Welcome.ID, os.Getpid())
	go func() { // it reads the broker's messages
		for err == nil {
			var e join.Event
			if e, err = c.Next(soon); err == nil && e.FD >= 0 {
				unix.Close(e.FD)
			}
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		number, _ := strconv.ParseUint(rest, 10, 64)
		fmt.Println("answer", askOne(asks, word, number))
	}
}

func askOne(socket, word string, number uint64) string {
	said := func(answer any, err error) string {
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(answer)
	}
	switch word {
	case "list": // ids, with the number of pages, pid and name
		var all []string
		err := join.List(socket, func(e *wire.Entry, pages []int) error {
			if e.Ended == 1 { // of an earlier question
				return nil
			}
			all = append(all, fmt.Sprintf("%d:%d:%d:%s", e.ID, len(pages), e.Pid, wire.GetText(e.Name[:])))
			return nil
		})
		slices.Sort(all)
		return said(strings.Join(all, " "), err)
	case "policy":
		text, err := join.Policy(socket)
		return said(len(text) > 0, err)
	case "query":
		p, err := join.Query(socket, 0, layout, soon)
		return said(p.Best, err)
	case "statistics":
		counted, err := join.Statistics(socket)
		return said(err == nil && counted.Members > 0, err)
	case "join":
		c, err := join.Join(socket, join.Options{Layout: layout, GPU: segment.GPU{UUID: [16]byte{2}}, Name: "asker", Within: soon})
		if err == nil {
			c.Leave()
		}
		return said(err == nil, err)
	case "set":
		n, err := join.Set(socket, &wire.Set{Pid: int32(number), Fields: wire.SetLevel, Level: 6})
		return said(n, err)
	case "share":
		n, err := join.Set(socket, &wire.Set{Pid: int32(number), Fields: wire.SetShare, Share: 900_000})
		return said(n, err)
	case "objective":
		n, err := join.Set(socket, &wire.Set{Pid: int32(number), Fields: wire.SetObjective, Objective: configs.Objective{Slowdown: 2, Percentile: 99}.Word()})
		return said(n, err)
	default: // suspend, resume, out, in
		what := map[string]uint8{"out": wire.AskOut, "in": wire.AskIn, "suspend": wire.AskSuspend, "resume": wire.AskResume}[word]
		there, err := join.Ask(socket, &wire.Ask{ID: number, Request: uint64(what)})
		return said(there, err)
	}
}

// dropCapabilities executes this program again without any, as the runtime of containers can.
func dropCapabilities() {
	status, err := os.ReadFile("/proc/thread-self/status")
	must(err)
	if strings.Contains(string(status), "CapEff:\t0000000000000000\n") {
		return
	}
	setpriv, err := exec.LookPath("setpriv")
	must(err)
	program, err := os.Executable()
	must(err)
	must(unix.Exec(setpriv, []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", program}, os.Environ()))
}

const (
	refusedByPolicy = "the broker refuses: the policy does not admit it"
	refusedForm     = "the broker refuses: a message that makes no sense"
)

func TestTableOfCommands(t *testing.T) {
	needsRoot(t)
	b := start(t, "[default]\nlevel = 0", real)
	all := b.everybody(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a := all[name]
		t.Run(name, func(t *testing.T) {
			a.t = t
			var sees []string // what list has to show: the pages of its own, and pids as it sees them
			for other, target := range all {
				may := slices.Contains(a.has, other)
				pid := target.pid
				if a.own == 1 { // in a PID namespace of its own
					pid = target.own
				}
				if may {
					sees = append(sees, fmt.Sprintf("%d:2:%d:asker", target.id, pid))
				}
				for _, word := range []string{"out", "in", "suspend", "resume"} {
					if got, want := a.asks("%s %d", word, target.id), map[bool]string{true: "true", false: refusedByPolicy}[may]; got != want {
						t.Errorf("%s of %s: %s, must be %s", word, other, got, want)
					}
				}
				want := map[bool]string{true: "1", false: refusedByPolicy}[may]
				if a.own == 1 && pid == target.pid || a.own == 1 && !may { // who is outside has no pid in there
					pid, want = target.pid, "0"
				}
				if got := a.asks("set %d", pid); got != want {
					t.Errorf("set of %s: %s, must be %s", other, got, want)
				}
				if got := a.asks("objective %d", pid); got != want {
					t.Errorf("objective of %s: %s, must be %s", other, got, want)
				}
				if !a.admin && want == "1" {
					want = refusedByPolicy // more than its rule has
				}
				if got := a.asks("share %d", pid); got != want {
					t.Errorf("share of %s: %s, must be %s", other, got, want)
				}
			}
			slices.Sort(sees)
			if got, want := a.asks("list"), strings.Join(sees, " "); got != want {
				t.Errorf("it sees %s, must see %s", got, want)
			}
			want := map[string]string{"policy": refusedByPolicy, "query": strconv.Itoa(a.level), "statistics": "true", "join": "true"}
			if a.admin {
				want = map[string]string{"policy": "true", "query": refusedForm, "statistics": "true", "join": "join by " + join.AdminIn(b.directory) + ": " + refusedForm}
			}
			for word, want := range want {
				if got := a.asks("%s", word); got != want {
					t.Errorf("%s: %s, must be %s", word, got, want)
				}
			}
		})
	}
}

// The objective of a rule is not for who has the program to change, however it came by that.
func TestTableOfObjectives(t *testing.T) {
	needsRoot(t)
	b := start(t, "[default]\nlevel = 0\nobjective = 'slowdown=1.5'", real)
	all := b.everybody(t)
	for name, a := range all {
		a.t = t
		want := refusedByPolicy
		if a.admin {
			want = "1"
		}
		if got := a.asks("objective %d", a.own); got != want {
			t.Errorf("%s: its own objective: %s, must be %s", name, got, want)
		}
	}
}

// A condition of the policy may let an asker change processes that are not its own. Its uids and groups are those of the host: they mean
// nobody in a container, and no root without rights.
func TestTableOfControl(t *testing.T) {
	needsRoot(t)
	b := start(t, "[default]\nlevel = 0", real)
	all := b.everybody(t)
	for _, c := range []struct {
		when string
		may  map[string][]string // others' processes that it may change; who is not named: none
	}{
		{"asker.uid == 0 || asker.uid == target.uid", map[string][]string{
			"root": {"user", "other user", "rootless container", "user in a container"}, "user, by be": {"user", "rootless container", "user in a container"}}},
		{"asker.gid == 4243", map[string][]string{"other user": {"user", "root", "container", "rootless container", "user in a container"}}},
		{"!asker.host && target.uid == 4243", map[string][]string{"container": {"other user"}, "next container": {"other user"}, "rootless container": {"other user"}, "user in a container": {"other user"}}},
		{"own", nil},
	} {
		p, err := policy.Parse("next.toml", []byte("[default]\nlevel = 0\n[control]\nwhen = '"+c.when+"'"))
		if err != nil {
			t.Fatal(err)
		}
		b.server.SetPolicy(p)
		for name, a := range all {
			if a.admin {
				continue
			}
			a.t = t
			for _, other := range []string{"user", "root", "container", "other user", "rootless container", "user in a container"} {
				if slices.Contains(a.has, other) {
					continue
				}
				may := slices.Contains(c.may[name], other)
				if got, want := a.asks("resume %d", all[other].id), map[bool]string{true: "true", false: refusedByPolicy}[may]; got != want {
					t.Errorf("%s: %s asks %s: %s, must be %s", c.when, name, other, got, want)
				}
				id := strconv.FormatUint(all[other].id, 10)
				seen := slices.ContainsFunc(strings.Fields(a.asks("list")), func(entry string) bool { return strings.HasPrefix(entry, id+":0:") })
				if seen != may {
					t.Errorf("%s: %s sees %s: %v, must be %v", c.when, name, other, seen, may)
				}
			}
		}
	}
}

// A condition may take rights from users that they have without a condition. They see their own processes all the same.
func TestControlForbidsItsOwn(t *testing.T) {
	needsRoot(t)
	b := start(t, "[default]\nlevel = 0\n[control]\nwhen = 'asker.uid == 4243'", real)
	p := begin(t, "ask", join.SocketIn(b.directory, 0)+" "+join.SocketIn(b.directory, 0), as(4242, 0))
	a := &asker{process: p}
	if _, err := fmt.Sscan(p.says("joined "), &a.id, &a.own); err != nil {
		t.Fatal(err)
	}
	if got := a.asks("set %d", a.own); got != refusedByPolicy {
		t.Errorf("set: %s", got)
	}
	if got, want := a.asks("list"), fmt.Sprintf("%d:2:%d:asker", a.id, a.own); got != want {
		t.Errorf("list: %s, must be %s", got, want)
	}
}
