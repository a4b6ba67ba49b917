package dist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// podman is Podman of Debian's packages, with all that it writes in a folder of the test. Version 4.3 looks for devices in /run/cdi only, so
// it has a /run of its own.
func podman(t *testing.T, cdi string) func(arguments ...string) *exec.Cmd {
	t.Helper()
	folder := t.TempDir()
	var libraries []string
	for _, name := range []string{"libgpgme11", "libassuan0", "libgpg-error0", "libsubid4", "libdevmapper1.02.1", "libglib2.0-0", "libseccomp2"} {
		libraries = append(libraries, filepath.Join(debian(t, name), "usr/lib/x86_64-linux-gnu"), filepath.Join(debian(t, name), "lib/x86_64-linux-gnu"))
	}
	program, conmon, runc := filepath.Join(debian(t, "podman"), "usr/bin/podman"), filepath.Join(folder, "conmon"), filepath.Join(debian(t, "runc"), "usr/sbin/runc")
	path := "LD_LIBRARY_PATH=" + strings.Join(libraries, ":")
	for name, text := range map[string]string{
		// Podman keeps the variable from conmon, which starts podman again when the container has ended. podman waits 20 s for that.
		"conmon":          fmt.Sprintf("#!/bin/sh\nexport %s\nexec %s \"$@\"\n", path, filepath.Join(debian(t, "conmon"), "usr/bin/conmon")),
		"containers.conf": fmt.Sprintf("[engine]\nconmon_path = [%q]\nruntime = \"runc\"\nevents_logger = \"none\"\ncgroup_manager = \"cgroupfs\"\nlock_type = \"file\"\n[engine.runtimes]\nrunc = [%q]\n", conmon, runc),
		"storage.conf":    fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", folder+"/graph", folder+"/run"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const own = `mount -t tmpfs run /run && mkdir /run/cdi && cp "$0"/* /run/cdi && exec "$@"`
	return func(arguments ...string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-c", own, cdi, program, "run", "--rm", "--network=none", "--cgroups=no-conmon", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"}, arguments...)...)
		command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, path,
			"CONTAINERS_CONF=" + filepath.Join(folder, "containers.conf"), "CONTAINERS_STORAGE_CONF=" + filepath.Join(folder, "storage.conf")}
		return command
	}
}

// Podman gives containers the devices that `gpreempt cdi generate` describes.
func TestPodman(t *testing.T) {
	m := newMachine(t, "amd64")
	cdi := filepath.Join(m.dir, "cdi")
	if out, err := m.command("", nil, filepath.Join(m.folder, "gpreempt"), "cdi", "generate", "--output", cdi).CombinedOutput(); err != nil {
		t.Fatalf("cdi generate: %v %s", err, out)
	}
	run := podman(t, cdi)
	removesGroups(t, "libpod_parent")
	image := filepath.Join(t.TempDir(), "image")
	for _, name := range []string{"usr", "proc", "dev", "sys", "tmp", "etc", "run", "opt", "var"} {
		if err := os.MkdirAll(filepath.Join(image, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+link, filepath.Join(image, link)); err != nil {
			t.Fatal(err)
		}
	}
	hello := m.program("cluster/dist/testdata/hello.c")
	if err := os.Chmod(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	container := func(options string, program ...string) *exec.Cmd {
		all := append(strings.Fields(options), "--volume=/usr:/usr:ro", "--volume="+m.dir+":"+m.dir+":ro", "--rootfs", image)
		return run(append(all, program...)...)
	}
	if out, err := container("", "true").CombinedOutput(); err != nil {
		t.Skipf("no container can be run here: %v %s", err, out)
	}
	const ours, other = "/opt/gpreempt/$LIB/libgpreempt.so", "/usr/lib/x86_64-linux-gnu/libm.so.6"
	const tell = `echo "$LD_PRELOAD $GPREEMPT_PRIORITY"`
	said(t, container("", hello), "hello 0\n")
	said(t, container("--device=gpreempt.io/role=be", hello), "hello 1\n")
	said(t, container("--device=gpreempt.io/role=be --read-only --user=1000", hello), "hello 1\n")
	said(t, container("--device=gpreempt.io/role=lc", "sh", "-c", tell), ours+" lc\n")
	// The role's device replaces the LD_PRELOAD of the image.
	said(t, container("--device=gpreempt.io/role=3 --env=LD_PRELOAD="+other, "sh", "-c", tell), ours+" 3\n")
	said(t, container("--device=gpreempt.io/files=3 --env=LD_PRELOAD="+other, "sh", "-c", tell), other+" 3\n")
	said(t, container("--device=gpreempt.io/files=3 --env=LD_PRELOAD="+other, "/opt/gpreempt/bin/gpreempt", "run", "--", "sh", "-c", tell), other+":"+ours+" 3\n")
	if out, err := container("--device=gpreempt.io/role=off", "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "unresolvable CDI devices gpreempt.io/role=off") {
		t.Errorf("a device that is none: %v %s", err, out)
	}
}
