package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/cluster/broker"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/cluster/nri/nritest"
	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/inject"
	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

var (
	update  = flag.Bool("update", false, "write the manual page")
	command string // gpreempt-nri, built
)

func TestMain(m *testing.M) {
	var folder string
	flag.Parse()
	os.Exit(clitest.Main(m, &folder, ".", func(folder string) error { command = filepath.Join(folder, "gpreempt-nri"); return nil }))
}

func TestHelpFitsOnAScreen(t *testing.T) { clitest.CheckHelp(t, rootCommand()) }

func TestManualIsCurrent(t *testing.T) {
	var p clitest.Page
	root := rootCommand()
	p.Head(root.Name(), 8, "g"+root.Short[1:], "cluster/cmd/gpreempt-nri/main_test.go")
	p.Synopsis(root)
	p.Line(".SH DESCRIPTION")
	p.Text("Without it, pods start and run as if gpreempt were not there.")
	p.Commands(append([]*cobra.Command{root}, clitest.All(root)...)...)
	p.Line(".SH EXIT STATUS\n0 after SIGTERM, or 1 where something failed, or 2 for wrong arguments.")
	p.Line(".SH SEE ALSO\n.BR gpreempt (1),\n.BR gpreemptd (8)")
	clitest.CheckPage(t, "../../../docs/man/gpreempt-nri.8", p.Bytes(), *update)
}

// prefix is a place where the package's files are, whose library says a text.
func prefix(t *testing.T, text string) string {
	t.Helper()
	from := t.TempDir()
	for _, place := range []string{"bin/gpreempt", "lib/gpreempt/lib/libgpreempt.so"} {
		path := filepath.Join(from, place)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return from
}

// A broker that refuses answers; one that says nothing does not.
func TestProbeOfABroker(t *testing.T) {
	directory, err := os.MkdirTemp("", "gpreempt-") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	none, err := policy.Parse("policy.toml", []byte("[default]\nadmit = false\n"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := broker.New(segment.Version, none, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := broker.Bind(join.SocketIn(directory, lowest), 0o755, -1)
	if err == nil {
		err = server.Listen(fd, lowest)
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run() }()
	if status, _, said := clitest.Run(t, command, nil, "probe", "--broker", directory); status != 0 {
		t.Errorf("a broker that refuses: %d, %s", status, said)
	}
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if status, _, said := clitest.Run(t, command, nil, "probe", "--broker", directory); status != 1 || !strings.Contains(said, "the broker does not answer") {
		t.Errorf("a broker that has ended: %d, %s", status, said)
	}
}

// processes is a /proc with processes that have mounted some folders.
func processes(t *testing.T, mounted ...string) string {
	t.Helper()
	proc := t.TempDir()
	for i, path := range append(mounted, "/") {
		folder := filepath.Join(proc, fmt.Sprint(i+1))
		line := "36 35 98:0 " + path + " /inside ro,noatime - ext4 /dev/root rw\n"
		if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "mountinfo"), []byte(line), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

// installed installs a library, and returns the folder of its version.
func installed(t *testing.T, text, to, proc string) string {
	t.Helper()
	status, out, said := clitest.Run(t, command, nil, "install", "--from", prefix(t, text), "--to", to, "--proc", proc)
	if status != 0 || said != "" {
		t.Fatalf("install: %d, %s", status, said)
	}
	return strings.TrimSpace(out)
}

// Each version has a folder of its own, which is never written into; those that nobody can want are removed.
func TestInstall(t *testing.T) {
	to := filepath.Join(t.TempDir(), "opt/gpreempt")
	none := processes(t)
	first := installed(t, "one", to, none)
	if !strings.HasPrefix(first, to+"/v1.2.3-test-") {
		t.Errorf("the folder is %s", first)
	}
	for _, place := range append(inject.Libraries(), inject.Command) {
		path := filepath.Join(to, currentLink, strings.TrimPrefix(place, inject.Folder))
		info, err := os.Stat(path)
		text, unread := os.ReadFile(path)
		if err != nil || unread != nil || info.Mode() != 0o755 || string(text) != "one" {
			t.Errorf("%s: %v, %v, %v, %q", place, info, err, unread, text)
		}
	}
	before, err := os.Stat(filepath.Join(first, "lib/libgpreempt.so"))
	if err != nil {
		t.Fatal(err)
	}
	if again := installed(t, "one", to, none); again != first {
		t.Errorf("the same again is in %s", again)
	}
	if after, err := os.Stat(filepath.Join(first, "lib/libgpreempt.so")); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the library that was there was replaced, or is gone: %v", err)
	}
	second := installed(t, "two", to, none)
	third := installed(t, "three", to, none)
	there := func(folder string) bool { _, err := os.Stat(folder); return err == nil }
	if !there(first) || !there(second) {
		t.Error("what was just replaced is gone: a container may be about to get it")
	}
	long := time.Now().Add(-2 * mayBeWanted)
	half, foreign := filepath.Join(to, unfinished+"1"), filepath.Join(to, "README")
	if err := errors.Join(os.Mkdir(half, 0o755), os.WriteFile(foreign, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	others := []string{filepath.Join(to, "lib"), filepath.Join(to, "v1.2.3-other-0123456789ab"), filepath.Join(to, "notes-0123456789ab")}
	for _, folder := range others { // an installation by hand, and what somebody else keeps there
		if err := os.MkdirAll(filepath.Join(folder, "lib"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(to, "lib/lib/libgpreempt.so"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, old := range append(others, first, second, third, half, foreign) {
		if err := os.Chtimes(old, long, long); err != nil {
			t.Fatal(err)
		}
	}
	// The first is mounted in a container; below / of the host, or of a partition.
	if again := installed(t, "three", to, processes(t, "/gpreempt/"+filepath.Base(first))); again != third || !there(first) || there(second) || !there(third) || there(half) || !there(foreign) {
		t.Errorf("%s; %v, %v, %v, %v, %v", again, there(first), there(second), there(third), there(half), there(foreign))
	}
	for _, folder := range others {
		if !there(folder) {
			t.Errorf("%s is gone, which install did not make", folder)
		}
	}
	if link, err := os.Readlink(filepath.Join(to, currentLink)); link != filepath.Base(third) || err != nil {
		t.Errorf("the link holds %s, %v", link, err)
	}
	// Where no process is seen nothing is removed.
	status, _, said := clitest.Run(t, command, nil, "install", "--from", prefix(t, "three"), "--to", to, "--proc", t.TempDir())
	if status != 1 || !strings.Contains(said, "no process is seen") || !there(first) {
		t.Errorf("%d, %s", status, said)
	}
}

func TestRefuses(t *testing.T) {
	for want, arguments := range map[string][]string{
		"--to is missing": {"install"},
		"no such file":    {"install", "--from", t.TempDir(), "--to", t.TempDir()},
		"--log loud":      {"--log", "loud"},
		"--budget 0s":     {"--budget", "0s"},
		"--config: ":      {"--config", clitest.Write(t, "nri.toml", "speed = 1")},
		`--listen "nowhere": must be HOST:PORT or :PORT, as 127.0.0.1:9406, `: {"--listen", "nowhere"},
		"--pods: ":                        {"--pods", "/proc/none"},
		"probe: of what?":                 {"probe"},
		"the broker does not answer":      {"probe", "--broker", t.TempDir()},
		"connection refused":              {"probe", "--url", "http://127.0.0.1:1/readyz"},
		"gpreempt-nri: takes no argument": {"more"},
	} {
		if status, _, said := clitest.Run(t, command, nil, arguments...); status == 0 || !strings.Contains(said, want) {
			t.Errorf("%q: %d, %s", arguments, status, said)
		}
	}
}

// serving runs the plugin, and returns its address.
func serving(t *testing.T, r *nritest.Runtime, arguments ...string) (process *os.Process, url string) {
	t.Helper()
	c := exec.Command(command, append([]string{"--listen", "127.0.0.1:0", "--budget", nritest.Patience.String(), "--socket", r.Socket}, arguments...)...)
	out, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() }) // it has ended, or shall
	var line struct{ Address string }
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err = errors.Join(err, json.Unmarshal([]byte(first), &line)); err != nil {
		t.Fatalf("%q: %v", first, err)
	}
	go io.Copy(io.Discard, lines)
	return c.Process, "http://" + line.Address
}

func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	answer, err := (&http.Client{Timeout: nritest.Patience}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

var created int

// create makes a container with a GPU that asks for a role, and says whether it has the library.
func create(t *testing.T, r *nritest.Runtime) bool {
	t.Helper()
	created++
	pod := &api.PodSandbox{Id: fmt.Sprint("pod", created), Namespace: "prod", Annotations: map[string]string{"gpreempt.io/role": "lc"}}
	spec := &specs.Spec{Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=0"}}, Linux: &specs.Linux{}}
	if err := r.Create(pod, &api.Container{Id: fmt.Sprintf("%064d", created), PodSandboxId: pod.Id}, spec); err != nil {
		t.Fatal(err)
	}
	return slices.Contains(spec.Process.Env, "GPREEMPT_PRIORITY=lc")
}

// stopped says whether no thread of a process runs.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of process %d: %q, %v", pid, threads, err)
	}
	return !slices.ContainsFunc(threads, func(thread string) bool {
		text, err := os.ReadFile(thread)
		return err != nil || !strings.Contains(string(text), ") T ")
	})
}

// The plugin as a process: killed, stopped, and started again. Containers always start.
func TestServing(t *testing.T) {
	to, sockets := t.TempDir(), t.TempDir()
	installed(t, "one", to, processes(t))
	for _, level := range []string{"0", "7"} {
		if err := os.Mkdir(filepath.Join(sockets, level), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := clitest.Write(t, "nri.toml", "[namespace.prod]\nlevel = 'lc'\n")
	r := nritest.New(t)
	r.Start()
	folder := filepath.Join(t.TempDir(), "new", "pods")
	arguments := []string{"--config", config, "--library", filepath.Join(to, currentLink), "--sockets", sockets, "--pods", folder}
	ready := func(url string) func() bool {
		return func() bool { status, _ := get(t, url+"/readyz"); return status == http.StatusOK }
	}
	first, url := serving(t, r, arguments...)
	nritest.Until(t, "the plugin is ready", ready(url))
	if status, _, said := clitest.Run(t, command, nil, "probe", "--url", url+"/readyz"); status != 0 {
		t.Errorf("the probe says %s", said)
	}
	if !create(t, r) {
		t.Error("the container has no library")
	}
	if p, _, err := pods.Read(folder, fmt.Sprintf("%064d", created)); err != nil || p.Namespace != "prod" {
		t.Errorf("the broker is told %+v, %v", p, err)
	}
	if err := errors.Join(first.Kill()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	if create(t, r) {
		t.Error("nobody can have been asked")
	}
	second, url := serving(t, r, arguments...)
	nritest.Until(t, "the next one is ready", ready(url))
	if _, text := get(t, url+"/metrics"); !strings.Contains(text, "\ngpreempt_nri_missed_containers 1\n") || !strings.Contains(text, "\ngpreempt_nri_registered 1\n") {
		t.Errorf("%s", text)
	}
	// It hangs: the runtime goes on without it after a time of its own, and it comes back when it can.
	if err := second.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nritest.Until(t, "all its threads have stopped", func() bool { return stopped(t, second.Pid) })
	nritest.WaitForPlugins(100 * time.Millisecond)
	if create(t, r) {
		t.Error("a stopped process answered")
	}
	nritest.WaitForPlugins(nritest.Patience)
	if err := second.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	nritest.Until(t, "containers have the library again", func() bool { return create(t, r) })
	nritest.Until(t, "it is ready again", ready(url))
	// The broker's directory goes: said by the probe, with the reason.
	if err := os.RemoveAll(filepath.Join(sockets, "7")); err != nil {
		t.Fatal(err)
	}
	if status, _, said := clitest.Run(t, command, nil, "probe", "--url", url+"/readyz"); status != 1 || !strings.Contains(said, "pods start without the library: the broker's sockets") {
		t.Errorf("the probe says %d, %s", status, said)
	}
	if status, text := get(t, url+"/healthz"); status != http.StatusOK || text != "ok\n" {
		t.Errorf("/healthz: %d, %s", status, text)
	}
	if status, _ := get(t, url+"/"); status != http.StatusNotFound {
		t.Errorf("/: %d", status)
	}
	if err := second.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if state, err := second.Wait(); err != nil || state.ExitCode() != 0 {
		t.Errorf("after SIGTERM: %v, %v", state, err)
	}
}
