package dist

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// containerRuntime is runc of Debian's packages, by which Docker and containerd start containers.
func containerRuntime(t *testing.T) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(debian(t, "runc"), "usr/sbin/runc"), "--root", t.TempDir(), "run", "--bundle")
}

// spec is of a process in namespaces of its own with a /dev/shm of its own: programs and the driver of m, libc and tools of this system.
func (m *machine) spec(name string, program ...string) *specs.Spec {
	m.t.Helper()
	return &specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: filepath.Join(m.t.TempDir(), "rootfs"), Readonly: true}, Hostname: name,
		Process: &specs.Process{Args: program, Cwd: "/", Env: []string{"PATH=/usr/bin", "SIMCUDA_DIR=" + filepath.Join(m.dir, "sim"), "LD_LIBRARY_PATH=" + m.dir}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"}, {Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro"}},
			{Destination: m.dir, Type: "bind", Source: m.dir, Options: []string{"rbind", "rw"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}}},
	}
}

// container is such a process with what a device adds.
func (m *machine) container(cache *cdi.Cache, name, device string, program ...string) *exec.Cmd {
	m.t.Helper()
	spec := m.spec(name, program...)
	if unknown, err := cache.InjectDevices(spec, device); err != nil {
		m.t.Fatalf("%s: %q, %v", device, unknown, err)
	}
	return m.contained(spec)
}

// contained starts a container by its specification.
func (m *machine) contained(spec *specs.Spec) *exec.Cmd {
	m.t.Helper()
	root := spec.Root.Path
	if err := os.Mkdir(root, 0o755); err != nil {
		m.t.Fatal(err)
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+link, filepath.Join(root, link)); err != nil {
			m.t.Fatal(err)
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(root), "config.json"), text, 0o600); err != nil {
		m.t.Fatal(err)
	}
	command := containerRuntime(m.t)
	command.Args = append(command.Args, filepath.Dir(root), fmt.Sprintf("gpreempt-%d-%s", os.Getpid(), spec.Hostname))
	return command
}

// Containers get the roles that `gpreempt cdi generate` describes. Each has the library. Containers of one user know of each other, by the
// directory that is mounted into each. Yet each has a /dev/shm and PIDs of its own.
func TestContainers(t *testing.T) {
	m := newMachine(t, "amd64")
	out, err := m.command("", nil, filepath.Join(m.folder, "gpreempt"), "cdi", "generate", "--output", filepath.Join(m.dir, "cdi")).CombinedOutput()
	if err != nil {
		t.Fatalf("cdi generate: %v %s", err, out)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Join(m.dir, "cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	hello := m.program("cluster/dist/testdata/hello.c")
	if out, err := m.container(cache, "first", "gpreempt.io/role=be", "/usr/bin/true").CombinedOutput(); err != nil {
		t.Skipf("no container can be run here: %v %s", err, out)
	}
	said(t, m.container(cache, "loaded", "gpreempt.io/role=be", hello), "hello 1\n")
	said(t, m.container(cache, "not-loaded", "gpreempt.io/files=be", hello), "hello 0\n")
	said(t, m.container(cache, "started", "gpreempt.io/files=be", "/opt/gpreempt/bin/gpreempt", "run", "--", hello), "hello 1\n")
	said(t, m.container(cache, "read-only", "gpreempt.io/role=lc", "/usr/bin/sh", "-c", "touch /opt/gpreempt/lib/libgpreempt.so 2>/dev/null || echo $GPREEMPT_PRIORITY"), "lc\n")

	m.driver()
	worker := m.program("test/e2e/testdata/worker.c")
	// The simulated driver has to be behind the library from the start: it has the ioctl that NVIDIA's has in the kernel.
	start := fmt.Sprintf(`GPREEMPT_LOG=debug LD_PRELOAD="$LD_PRELOAD:%s" exec %s`, filepath.Join(m.dir, "libcuda.so.1"), worker)
	be := m.run(m.container(cache, "be", "gpreempt.io/role=be", "/usr/bin/sh", "-c", start))
	lc := m.run(m.container(cache, "lc", "gpreempt.io/role=lc", "/usr/bin/sh", "-c", start))
	if answer := be.ask("be"); answer != "running 1" {
		t.Fatalf("be: %s", answer)
	}
	for deadline := time.Now().Add(patience); ; {
		lc.ask("lc 5 3 40 3000 stream")
		all, err := segment.SnapshotsIn(segment.Directory(filepath.Join(m.dir, "segments"), os.Getuid()))
		var peers []string
		for _, s := range all {
			for _, peer := range s.Peers {
				peers = append(peers, fmt.Sprintf("%s %v %v", peer.Role, peer.TimesliceUs == 1, peer.Counters.Windows > 0))
			}
		}
		slices.Sort(peers)
		if strings.Join(peers, ", ") == "be true false, lc false true" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("BE does not give way: %q, %v", peers, err)
		}
	}
	lc.end()
	be.end()
}
