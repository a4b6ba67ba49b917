package dist

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/gpreempt/gpreempt/cluster/nri/nritest"
	"github.com/gpreempt/gpreempt/preempt/member"
)

// serve starts a program of the DaemonSet for the rest of the test, and returns its first line.
func (m *machine) serve(arguments ...string) string {
	m.t.Helper()
	command := exec.Command(filepath.Join(m.folder, arguments[0]), arguments[1:]...)
	out, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() }) // it serves until then
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err != nil {
		m.t.Fatalf("%q: %q, %v", arguments, first, err)
	}
	go io.Copy(io.Discard, lines)
	return first
}

// removesGroups removes, after the test, the control group in which a runtime makes those of containers.
func removesGroups(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		groups, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
		if err != nil {
			t.Error(err)
		}
		for _, group := range append(groups, "/sys/fs/cgroup/"+name) {
			_ = os.Remove(group) // fails where it is not there, or is others' too
		}
	})
}

// Pods of two namespaces, each in a container of its own: the plugin gives both the library as the chart's DaemonSet installs it, and they
// share a GPU by the broker, whose policy knows their pods. They have no /dev/shm, no PIDs and no network in common.
func TestPods(t *testing.T) {
	m := newMachine(t, "amd64")
	r := nritest.New(t)
	node := filepath.Dir(r.Socket) // the paths of sockets are short
	prefix, opt, sockets := filepath.Join(m.dir, "usr"), filepath.Join(m.dir, "opt"), filepath.Join(node, "run")
	policy, roles := filepath.Join(m.dir, "policy.toml"), filepath.Join(m.dir, "nri.toml")
	err := errors.Join(os.MkdirAll(filepath.Join(prefix, "bin"), 0o755), os.MkdirAll(filepath.Join(prefix, "lib/gpreempt/lib"), 0o755),
		os.Symlink(filepath.Join(m.folder, "gpreempt"), filepath.Join(prefix, "bin/gpreempt")),
		os.Symlink(filepath.Join(m.folder, library), filepath.Join(prefix, "lib/gpreempt/lib", library)),
		os.WriteFile(policy, []byte("[[rule]]\nname = 'inference'\nwhen = 'pod_namespace == \"inference\" && annotations[\"gpreempt.io/role\"] == \"lc\"'\nlevel = 'lc'\n"), 0o600), os.WriteFile(roles, []byte("[namespace.inference]\nlevel = 'lc'\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(m.folder, "gpreempt-nri"), "install", "--from", prefix, "--to", opt).CombinedOutput(); err != nil {
		t.Fatalf("install: %v %s", err, out)
	}
	told := filepath.Join(m.dir, "pods")
	m.serve("gpreemptd", "--directory", sockets, "--policy", policy, "--pods", told)
	r.Start()
	var plugin struct{ Address string }
	line := m.serve("gpreempt-nri", "--socket", r.Socket, "--config", roles, "--library", filepath.Join(opt, "current"), "--sockets", sockets, "--pods", told, "--listen", "127.0.0.1:0",
		"--budget", nritest.Patience.String())
	if err := json.Unmarshal([]byte(line), &plugin); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	nritest.Until(t, "the plugin is ready", func() bool {
		answer, err := http.Get("http://" + plugin.Address + "/readyz")
		if err == nil {
			answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})

	removesGroups(t, "kubepods")
	containers := 0
	pod := func(name, namespace, role string, program ...string) *exec.Cmd {
		t.Helper()
		containers++
		id := fmt.Sprintf("%064x", containers)
		spec := m.spec(name, program...)
		spec.Linux.CgroupsPath = "/kubepods/" + id // as kubelets have it: so the broker knows the container
		spec.Process.Env = append(spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
		p := &api.PodSandbox{Id: "pod-" + name, Name: name, Namespace: namespace, Annotations: map[string]string{"gpreempt.io/role": role}}
		if err := r.Create(p, &api.Container{Id: id, Name: "main", PodSandboxId: p.Id}, spec); err != nil {
			t.Fatal(err)
		}
		return m.contained(spec)
	}
	hello := m.program("cluster/dist/testdata/hello.c")
	if out, err := pod("first", "batch", "be", "/usr/bin/true").CombinedOutput(); err != nil {
		t.Skipf("no container can be run here: %v %s", err, out)
	}
	said(t, pod("loaded", "batch", "be", hello), "hello 1\n")
	said(t, pod("lowered", "batch", "lc", "/usr/bin/sh", "-c", "echo $GPREEMPT_PRIORITY; ls /run/gpreempt; touch /opt/gpreempt/x 2>/dev/null || echo read-only"), "be\nbroker\nread-only\n")

	m.driver()
	worker := m.program("test/e2e/testdata/worker.c")
	start := fmt.Sprintf(`GPREEMPT_LOG=debug LD_PRELOAD="$LD_PRELOAD:%s" exec %s`, filepath.Join(m.dir, "libcuda.so.1"), worker)
	be := m.run(pod("be", "batch", "be", "/usr/bin/sh", "-c", start))
	lc := m.run(pod("lc", "inference", "lc", "/usr/bin/sh", "-c", start))
	if answer := be.ask("be"); answer != "running 1" {
		t.Fatalf("be: %s", answer)
	}
	var peers []string
	nritest.Until(t, "BE gives way to LC", func() bool {
		lc.ask("lc 5 3 40 3000 stream")
		all, err := member.Snapshots(sockets)
		if err != nil {
			t.Fatal(err)
		}
		peers = nil
		for _, s := range all {
			for _, peer := range s.Peers {
				peers = append(peers, fmt.Sprintf("%s %v %v", peer.Role, peer.TimesliceUs == 1, peer.Counters.Windows > 0))
			}
		}
		slices.Sort(peers)
		return strings.Join(peers, ", ") == "be true false, lc false true"
	})
	lc.end()
	be.end()
}
