package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/inject"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const otherVendor = `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {
	"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1"}]}}]}`

// generated runs the command, and returns a cache of what it wrote beside another vendor's device.
func generated(t *testing.T, arguments ...string) (folder string, cache *cdi.Cache) {
	t.Helper()
	folder = t.TempDir()
	config := write(t, "gpreempt.toml", fmt.Sprintf("[segment]\ndirectory = %q\n", folder))
	r := gpreempt(t, []string{"GPREEMPT_CONFIG=" + config}, append([]string{"cdi", "generate", "--glibc", "2.99", "--output", filepath.Join(folder, "cdi")}, arguments...)...)
	if r.status != 0 || r.stderr != "" || strings.Count(r.stdout, "\n") != 2 {
		t.Fatalf("cdi generate: %+v", r)
	}
	for path := range strings.Lines(r.stdout) {
		info, err := os.Stat(strings.TrimSpace(path))
		if err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "cdi", "nvidia.json"), []byte(otherVendor), 0o644); err != nil {
		t.Fatal(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Join(folder, "cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"role", "files"} {
		spec, err := cdi.ReadSpec(filepath.Join(folder, "cdi", "gpreempt.io-"+kind+".json"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if oldest, err := cdispecs.MinimumRequiredVersion(spec.Spec); err != nil || spec.Version != oldest {
			t.Errorf("%s: version %s, and %s has all that is used; %v", kind, spec.Version, oldest, err)
		}
	}
	for path, errs := range cache.GetErrors() {
		t.Errorf("%s: %v", path, errs)
	}
	return folder, cache
}

// A container gets its role, and what the image says stays but for LD_PRELOAD, which the library of CDI replaces.
func TestCDIIsInjected(t *testing.T) {
	folder, cache := generated(t)
	const ours, images = "LD_PRELOAD=/opt/gpreempt/$LIB/libgpreempt.so", "LD_PRELOAD=/jemalloc.so"
	for _, c := range []struct{ device, priority, preload string }{
		{"gpreempt.io/role=lc", "lc", ours}, {"gpreempt.io/role=be", "be", ours}, {"gpreempt.io/role=0", "0", ours}, {"gpreempt.io/role=7", "7", ours},
		{"gpreempt.io/files=lc", "lc", images}, {"gpreempt.io/files=3", "3", images},
	} {
		container := &specs.Spec{Process: &specs.Process{Env: []string{"PATH=/bin", images}}, Mounts: []specs.Mount{{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"}}}
		if unknown, err := cache.InjectDevices(container, "nvidia.com/gpu=all", c.device); err != nil || len(unknown) > 0 {
			t.Fatalf("%s: %q, %v", c.device, unknown, err)
		}
		for _, want := range []string{"PATH=/bin", c.preload, "GPREEMPT_PRIORITY=" + c.priority, "NVIDIA_VISIBLE_DEVICES=void"} {
			if !slices.Contains(container.Process.Env, want) {
				t.Errorf("%s: no %s in %q", c.device, want, container.Process.Env)
			}
		}
		if len(container.Process.Env) != 4 {
			t.Errorf("%s: %q", c.device, container.Process.Env)
		}
		sources := map[string]string{}
		shm, segments := -1, -1
		for i, m := range container.Mounts {
			sources[m.Destination] = m.Source
			switch m.Destination {
			case "/dev/shm":
				shm = i
			case "/dev/shm/gpreempt-0":
				segments = i
			}
			if readonly := slices.Contains(m.Options, "ro"); readonly != strings.HasPrefix(m.Destination, "/opt/gpreempt/") {
				t.Errorf("%s: %+v", c.device, m)
			}
		}
		directory := segment.Directory(folder, os.Geteuid())
		for inside, host := range map[string]string{
			"/opt/gpreempt/lib/libgpreempt.so": built + "/libgpreempt.so", "/opt/gpreempt/lib64/libgpreempt.so": built + "/libgpreempt.so",
			inject.Libraries()[2]:        built + "/libgpreempt.so",
			"/opt/gpreempt/bin/gpreempt": built + "/gpreempt",
			"/dev/shm/gpreempt-0":        directory, "/usr/lib/libcuda.so.1": "/usr/lib/libcuda.so.1",
		} {
			if sources[inside] != host {
				t.Errorf("%s: %s is %q, must be %s", c.device, inside, sources[inside], host)
			}
		}
		if shm > segments {
			t.Errorf("%s: /dev/shm is mounted over the segments: %+v", c.device, container.Mounts)
		}
		if err := segment.CheckDirectory(directory, -1); err != nil {
			t.Errorf("the library refuses the directory: %v", err)
		}
	}
	if unknown, err := cache.InjectDevices(&specs.Spec{}, "gpreempt.io/role=off"); err == nil {
		t.Errorf("role=off is a device: %q", unknown)
	}
}

func TestCDIOptions(t *testing.T) {
	_, cache := generated(t, "--no-segment", "--with-preload", "/a.so", "--with-preload", "/b.so")
	container := &specs.Spec{}
	if _, err := cache.InjectDevices(container, "gpreempt.io/role=be"); err != nil {
		t.Fatal(err)
	}
	if want := "LD_PRELOAD=/a.so:/b.so:/opt/gpreempt/$LIB/libgpreempt.so"; !slices.Contains(container.Process.Env, want) {
		t.Errorf("%q lacks %s", container.Process.Env, want)
	}
	if n := len(container.Mounts); n != 4 {
		t.Errorf("%d mounts without segments: %+v", n, container.Mounts)
	}
}

// With a broker a container gets the socket of its level, and no directory that others write.
func TestCDIByABroker(t *testing.T) {
	folder := t.TempDir()
	sockets := filepath.Join(folder, "run")
	config := write(t, "gpreempt.toml", fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", folder, sockets))
	generate := func() result {
		return gpreempt(t, []string{"GPREEMPT_CONFIG=" + config}, "cdi", "generate", "--broker", "--glibc", "2.99", "--output", filepath.Join(folder, "cdi"))
	}
	for level := range configs.Levels {
		if r := generate(); r.status != 2 || r.stdout != "" || !strings.Contains(r.stderr, fmt.Sprintf("%s/%d is not there", sockets, level)) {
			t.Errorf("without level %d: %+v", level, r)
		}
		if err := os.MkdirAll(filepath.Join(sockets, fmt.Sprint(level)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if r := generate(); r.status != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	if _, err := os.Stat(segment.Directory(folder, os.Geteuid())); !os.IsNotExist(err) {
		t.Errorf("a directory of segments was made: %v", err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Join(folder, "cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	for device, level := range map[string]string{"role=lc": "0", "role=be": "7", "files=be": "7", "role=3": "3"} {
		container := &specs.Spec{}
		if unknown, err := cache.InjectDevices(container, "gpreempt.io/"+device); err != nil || len(unknown) > 0 {
			t.Fatalf("%s: %q, %v", device, unknown, err)
		}
		i := slices.IndexFunc(container.Mounts, func(m specs.Mount) bool { return m.Destination == "/run/gpreempt/broker" })
		if i < 0 || len(container.Mounts) != 5 || container.Mounts[i].Source != filepath.Join(sockets, level) || !slices.Contains(container.Mounts[i].Options, "noexec") {
			t.Errorf("%s: %+v", device, container.Mounts)
		}
		for _, m := range container.Mounts { // the socket of its level, and no other; all read-only
			if reaches := strings.HasPrefix(sockets+"/", m.Source+"/") || strings.HasPrefix(m.Source, sockets); reaches != (m.Destination == inject.Socket) || !slices.Contains(m.Options, "ro") {
				t.Errorf("%s: %+v", device, m)
			}
		}
	}
}
