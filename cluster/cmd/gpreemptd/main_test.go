package main

import (
	"bufio"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

var (
	update  = flag.Bool("update", false, "write the manual page")
	command string // gpreemptd, built
)

// soon is a bound on what takes milliseconds, for a machine that is slow and busy.
const soon = 20 * time.Second

// asksFor, in the environment, has this program ask the broker at a socket what it would get, instead of running tests.
const asksFor = "GPREEMPT_TEST_ASK"

func TestMain(m *testing.M) {
	var folder string
	if socket := os.Getenv(asksFor); socket != "" {
		got, err := join.Query(socket, 0, segment.Version, soon)
		fmt.Println("level", got.Level, err)
		return
	}
	flag.Parse()
	os.Exit(clitest.Main(m, &folder, ".", func(folder string) error { command = filepath.Join(folder, "gpreemptd"); return nil }))
}

func TestHelpFitsOnAScreen(t *testing.T) { clitest.CheckHelp(t, rootCommand()) }

func TestManualIsCurrent(t *testing.T) {
	var p clitest.Page
	root := rootCommand()
	p.Head(root.Name(), 8, "l"+root.Short[1:], "cluster/cmd/gpreemptd/main_test.go")
	p.Synopsis(root)
	p.Line(".SH DESCRIPTION")
	p.Text("Without it, programs of one user find each other by files, and programs of several users know nothing of each other.")
	p.Commands(root)
	p.Line(".SH EXIT STATUS\n0 after SIGTERM, or 1 where something failed, or 2 for wrong arguments.")
	p.Line(".SH FILES\n.TP\n.B %s\nThe policy.\n.SH SEE ALSO\n.BR gpreempt (1)", policyPath)
	clitest.CheckPage(t, "../../../docs/man/gpreemptd.8", p.Bytes(), *update)
}

// process is a gpreemptd that runs.
type process struct {
	*exec.Cmd
	t     *testing.T
	lines *bufio.Scanner
	began string // the line that says so
}

func run(t *testing.T, c *exec.Cmd) *process {
	t.Helper()
	out, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := &process{Cmd: c, t: t, lines: bufio.NewScanner(out)}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() }) // it has ended, or shall
	d.began = d.says("serving")
	return d
}

// says waits for a line of the log.
func (d *process) says(what string) string {
	d.t.Helper()
	var said []string
	for d.lines.Scan() {
		if said = append(said, d.lines.Text()); strings.Contains(said[len(said)-1], what) {
			return said[len(said)-1]
		}
	}
	d.t.Fatalf("it did not say %q but %q", what, said)
	return ""
}

func (d *process) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

func joined(t *testing.T, directory string) *join.Client {
	t.Helper()
	c, err := join.Join(join.SocketIn(directory, 0), join.Options{Layout: segment.Version, GPU: segment.GPU{UUID: [16]byte{1}}, Name: "test", Within: soon})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestServing(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "run")
	path := clitest.Write(t, "policy.toml", "[default]\nlevel = 3\n")
	d := run(t, exec.Command(command, "--directory", directory, "--policy", path))
	if !strings.Contains(d.began, fmt.Sprintf(`"directory":%q`, directory)) {
		t.Errorf("it does not say where it serves: %s", d.began)
	}
	c := joined(t, directory)
	if c.Welcome.Policy.Level != 3 {
		t.Errorf("%+v", c.Welcome)
	}
	for level := range configs.Levels {
		info, err := os.Stat(join.SocketIn(directory, level))
		if err != nil || info.Mode() != os.ModeSocket|0o666 {
			t.Errorf("level %d: %v, %v", level, info.Mode(), err)
		}
	}
	if info, err := os.Stat(join.AdminIn(directory)); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the administrator's socket: %v, %v", info.Mode(), err)
	}
	for name, level := range map[string]string{"lc": "0", "be": "7"} {
		if to, err := os.Readlink(filepath.Join(directory, name)); to != level || err != nil {
			t.Errorf("%s: %s, %v", name, to, err)
		}
	}
	// Another policy on SIGHUP, unless it is wrong.
	for _, next := range []struct {
		text, said string
		level      uint8
	}{{"[default]\nlevel = 5\n", "another policy is in force", 5}, {"[default]\nlevel = 8\n", "the policy stays as it was", 5}, {"[default]\nlevel = 2\n", "another policy", 2}} {
		if err := os.WriteFile(path, []byte(next.text), 0o600); err != nil {
			t.Fatal(err)
		}
		d.signal(syscall.SIGHUP)
		d.says(next.said)
		for end := time.Now().Add(soon); c.Welcome.Policy.Level != next.level; {
			e, err := c.Next(time.Until(end))
			if err != nil {
				t.Fatal(err)
			}
			wire.CloseAll([]int{e.FD})
		}
	}
	// A directory has one broker.
	if status, _, said := clitest.Run(t, command, nil, "--directory", directory, "--policy", path); status != 1 || !strings.Contains(said, "another broker's") {
		t.Errorf("a second one: %d, %s", status, said)
	}
	d.signal(syscall.SIGTERM)
	d.says("ended")
	if err := d.Wait(); err != nil {
		t.Error(err)
	}
	if left, err := leftIn(directory); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// leftIn are the sockets in a directory.
func leftIn(directory string) (sockets []string, err error) {
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type() == fs.ModeSocket {
			sockets = append(sockets, path)
		}
		return err
	})
	return sockets, err
}

// A killed broker leaves its sockets, also one that is half made. The next one takes their place, and leaves nothing when it ends.
func TestAfterAKill(t *testing.T) {
	directory := t.TempDir()
	path := clitest.Write(t, "policy.toml", "")
	half := join.SocketIn(directory, 3) + ".new"
	if err := os.Mkdir(filepath.Dir(half), 0o755); err != nil {
		t.Fatal(err)
	}
	left, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(left)
	if err := unix.Bind(left, &unix.SockaddrUnix{Name: half}); err != nil {
		t.Fatal(err)
	}
	var generation uint64
	for range 3 {
		d := run(t, exec.Command(command, "--directory", directory, "--policy", path))
		c := joined(t, directory)
		if c.Welcome.Generation == generation {
			t.Error("the same generation again")
		}
		generation = c.Welcome.Generation
		d.signal(syscall.SIGKILL)
		if err := d.Wait(); err == nil {
			t.Error("it was not killed")
		}
	}
	d := run(t, exec.Command(command, "--directory", directory, "--policy", path))
	d.signal(syscall.SIGTERM)
	if err := d.Wait(); err != nil {
		t.Error(err)
	}
	if left, err := leftIn(directory); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// notified listens as systemd does. told waits for the next notification.
func notified(t *testing.T, directory string) (environment string, told func() string) {
	t.Helper()
	path := filepath.Join(directory, "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close() })
	return "NOTIFY_SOCKET=" + path, func() string {
		t.Helper()
		_ = notify.SetReadDeadline(time.Now().Add(soon)) // of a socket that is open
		text := make([]byte, 100)
		n, err := notify.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(text[:n])
	}
}

// A setting by people is in force again after the broker was killed, and after it ended, wherever its sockets come from.
func TestWhatPeopleSetStays(t *testing.T) {
	policy := clitest.Write(t, "policy.toml", "[default]\nlevel = 1\n")
	for _, runtimeDirectory := range []string{"", t.TempDir()} {
		directory, kept := t.TempDir(), runtimeDirectory
		if kept == "" {
			kept = directory
		}
		serves := func() (*process, *join.Client) {
			c := exec.Command(command, "--directory", directory, "--policy", policy)
			c.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+runtimeDirectory)
			return run(t, c), joined(t, directory)
		}
		d, c := serves()
		if n, err := join.Set(join.SocketIn(directory, 0), &wire.Set{Pid: int32(os.Getpid()), Fields: wire.SetLevel, Level: 5}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(kept, "set.json")); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM} {
			d.signal(how)
			_ = d.Wait() // which of both it was does not matter
			c.Close()
			if d, c = serves(); c.Welcome.Policy.Level != 5 {
				t.Errorf("after %v: %+v", how, c.Welcome.Policy)
			}
		}
	}
}

// A process in a container's control group has what the policy grants its pod, of which the plugin of the runtime has told.
func TestPods(t *testing.T) {
	root, container := "/sys/fs/cgroup/systemd", strings.Repeat("0123456789abcdef", 4)
	if _, err := os.Stat(root); err != nil { // version 2
		root = "/sys/fs/cgroup"
	}
	pod := filepath.Join(root, fmt.Sprintf("kubepods/besteffort/pod%d", os.Getpid()))
	group := filepath.Join(pod, container)
	t.Cleanup(func() {
		_, _, _, _ = os.Remove(group), os.Remove(pod), os.Remove(filepath.Dir(pod)), os.Remove(filepath.Join(root, "kubepods"))
	})
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Skip("no control group can be made here: ", err)
	}
	within := func(environment string, arguments ...string) string {
		t.Helper()
		c := exec.Command("sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group}, arguments...)...)
		c.Env = append(os.Environ(), environment)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Skipf("nothing can be put into a control group here: %v %s", err, out)
		}
		return string(out)
	}
	for line := range strings.Lines(within("", "cat", "/proc/self/cgroup")) { // the broker looks at the first that is not the root
		if path := strings.SplitN(strings.TrimSpace(line), ":", 3)[2]; path != "/" {
			if !strings.HasSuffix(path, container) {
				t.Skip("the control group that counts here is ", line)
			}
			break
		}
	}
	directory, folder := t.TempDir(), t.TempDir()
	policy := clitest.Write(t, "policy.toml", "[[rule]]\nname = 'prod'\nwhen = 'pod_namespace == \"prod\"'\nlevel = 2\n")
	run(t, exec.Command(command, "--directory", directory, "--policy", policy, "--pods", folder))
	ask := asksFor + "=" + join.SocketIn(directory, 0)
	if got := within(ask, os.Args[0]); got != "level 7 <nil>\n" {
		t.Errorf("nobody has told of the pod: %s", got)
	}
	if err := pods.Write(folder, container, pods.Pod{Namespace: "prod", Name: "web-0"}); err != nil {
		t.Fatal(err)
	}
	if got := within(ask, os.Args[0]); got != "level 2 <nil>\n" {
		t.Errorf("a pod of prod: %s", got)
	}
}

// The broker notifies systemd's watchdog again and again that it lives.
func TestWatchdog(t *testing.T) {
	directory := t.TempDir()
	environment, told := notified(t, directory)
	c := exec.Command(command, "--directory", directory, "--policy", clitest.Write(t, "policy.toml", ""))
	c.Env = append(os.Environ(), environment, "WATCHDOG_USEC=30000")
	run(t, c)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := told(); got != want {
			t.Errorf("systemd was told %q instead of %q", got, want)
		}
	}
}

// While the loop stands still, systemd gets no notification.
func TestWatchdogOfAHang(t *testing.T) {
	directory := t.TempDir()
	environment, told := notified(t, directory)
	name, value, _ := strings.Cut(environment, "=")
	t.Setenv(name, value)
	server, err := broker.New(segment.Version, policy.Default(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	stands, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server.Do(func() {
		close(stands)
		<-goOn
		if _, err := daemon.SdNotify(false, "STATUS=it goes on"); err != nil {
			t.Error(err)
		}
	})
	done := make(chan error)
	go func() { done <- server.Run() }()
	<-stands
	began, returned := make(chan struct{}), make(chan struct{})
	go func() { close(began); tellAlive(server, time.Millisecond, ended); close(returned) }()
	<-began
	close(goOn)
	for _, want := range []string{"STATUS=it goes on", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := told(); got != want {
			t.Errorf("systemd was told %q instead of %q", got, want)
		}
	}
	close(ended)
	<-returned
	server.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Sockets come from systemd, which the broker notifies when it serves and when it stops.
func TestSocketActivation(t *testing.T) {
	directory := t.TempDir()
	environment, told := notified(t, directory)
	if err := os.Mkdir(filepath.Join(directory, "4"), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: join.SocketIn(directory, 4), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	path := clitest.Write(t, "policy.toml", "[default]\nlevel = 0\n")
	// The shell knows the pid that the command is going to have.
	c := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" --policy "$1"`, command, path)
	c.Env = append(os.Environ(), "LISTEN_FDS=1", environment)
	c.ExtraFiles = []*os.File{file}
	d := run(t, c)
	if got := told(); got != "READY=1" {
		t.Errorf("systemd was told %q", got)
	}
	client, err := join.Join(join.SocketIn(directory, 4), join.Options{Layout: segment.Version, Within: soon})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if client.Welcome.Policy.Level != 4 {
		t.Errorf("level %d by the socket of level 4", client.Welcome.Policy.Level)
	}
	d.signal(syscall.SIGTERM)
	if got := told(); got != "STOPPING=1" {
		t.Errorf("systemd was told %q", got)
	}
	d.says("ended")
	if _, err := os.Stat(join.SocketIn(directory, 4)); err != nil {
		t.Error("systemd's socket was removed: ", err)
	}
}

func TestChecking(t *testing.T) {
	good := clitest.Write(t, "policy.toml", "[default]\nlevel = 'lc'\n")
	bad := clitest.Write(t, "policy.toml", "[default]\nlevel = 'fast'\n")
	for _, c := range []struct {
		arguments    []string
		status       int
		out, problem string
	}{
		{[]string{"--check", "--policy", good}, 0, good + ": no mistakes\n", ""},
		{[]string{"--check", "--policy", bad}, 1, "", "gpreemptd: " + bad + `: default.level = "fast", must be "lc", "be" or an integer from 0 to 7` + "\n"},
		{[]string{"--check", "--policy", good + "x"}, 2, "", `gpreemptd: --policy "` + good + `x": no such file` + "\n"},
		{[]string{"--check", "--policy", filepath.Dir(good)}, 2, "", `": must be a regular file of at most 1048576 bytes` + "\n"},
		{[]string{"--check", "--policy", good, "--log", "loud"}, 2, "", "--log loud: must be one of trace, debug, info, warn, error, off"},
		{[]string{"--directory", good, "--policy", good}, 2, "", `gpreemptd: --directory "` + good + `": not a directory` + "\n"},
		{[]string{"--log", "loud"}, 2, "", "--log loud: must be one of trace, debug, info, warn, error, off"},
		{[]string{"--directory", t.TempDir(), "--group", "no-such-group"}, 2, "", `--group "no-such-group": there is no such group; must be the name or number of one`},
		{[]string{"serve"}, 2, "", `gpreemptd: takes no argument, but was given "serve"`},
	} {
		status, out, said := clitest.Run(t, command, nil, c.arguments...)
		if status != c.status || out != c.out || !strings.Contains(said, c.problem) {
			t.Errorf("%v: %d\n%s%s", c.arguments, status, out, said)
		}
	}
}

// With a group, only it reaches the higher levels.
func TestGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a folder can only be given to another group by root")
	}
	directory := t.TempDir()
	run(t, exec.Command(command, "--directory", directory, "--policy", clitest.Write(t, "policy.toml", ""), "--group", "1234"))
	for level := range configs.Levels {
		info, err := os.Stat(filepath.Join(directory, strconv.Itoa(level)))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprint(os.FileMode(0o750), 1234)
		if level == configs.Levels-1 {
			want = fmt.Sprint(os.FileMode(0o755), 0)
		}
		if got := fmt.Sprint(info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Gid); got != want {
			t.Errorf("level %d: %s, want %s", level, got, want)
		}
	}
}
