package nri

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/cluster/nri/nritest"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/inject"
)

// run runs a plugin for the rest of the test, or until the returned function is called.
func run(t *testing.T, p *Plugin, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx, socket)
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

func (p *Plugin) isRegistered() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.registered
}

func (p *Plugin) count(result Result) int {
	return int(testutil.ToFloat64(p.counted.WithLabelValues(string(result))))
}

func (p *Plugin) misses() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return len(p.missed)
}

// started is a runtime with a plugin.
func started(t *testing.T) (*nritest.Runtime, *Plugin) {
	t.Helper()
	return startedWith(t, host(t))
}

func startedWith(t *testing.T, c *Config) (*nritest.Runtime, *Plugin) {
	t.Helper()
	r, p := nritest.New(t), New(c, zerolog.New(zerolog.NewTestWriter(t)))
	p.config.Default = Rule{Best: 0, Role: -1}
	r.Start()
	run(t, p, r.Socket)
	nritest.Until(t, "the plugin registers", p.isRegistered)
	return r, p
}

var number int // of containers

// one is a container of a pod, as NRI shows it, with the rest of its OCI specification.
type one struct {
	pod       *api.PodSandbox
	container *api.Container
	spec      *specs.Spec
}

const withGPU = "NVIDIA_VISIBLE_DEVICES=GPU-1"

// newOne makes a container of the namespace dev, with annotations of its pod in pairs.
func newOne(env []string, annotations ...string) *one {
	number++
	o := &one{pod: &api.PodSandbox{Id: fmt.Sprint("pod", number), Name: "pod", Namespace: "dev", Annotations: map[string]string{}},
		container: &api.Container{Id: fmt.Sprint(number), Name: "main", PodSandboxId: fmt.Sprint("pod", number), Linux: &api.LinuxContainer{}},
		spec: &specs.Spec{Version: "1.2.0", Process: &specs.Process{Args: []string{"/app"}, Env: append([]string{"PATH=/bin"}, env...)}, Root: &specs.Root{Path: "rootfs"},
			Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev/shm", Type: "bind", Source: "/run/shm", Options: []string{"rbind"}}},
			Linux:  &specs.Linux{}}}
	for i := 0; i < len(annotations); i += 2 {
		o.pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return o
}

func (o *one) mounted(m ...specs.Mount) *one {
	o.spec.Mounts = append(o.spec.Mounts, m...)
	return o
}

func (o *one) in(namespace string) *one { o.pod.Namespace = namespace; return o }

func (o *one) changed(change func(*one)) *one { change(o); return o }

const preload = "LD_PRELOAD=" + inject.Preload

// Containers of all shapes: each gets what it ought to, and nothing else of it is changed. Containers that the plugin leaves alone stay
// unchanged.
func TestShapes(t *testing.T) {
	r, p := started(t)
	p.config.Namespaces = map[string]Rule{"batch": {7, 7}, "shared": {3, -1}}
	p.config.Excluded = append(p.config.Excluded, "gpreempt")
	lc := []string{RoleAnnotation, "lc"}
	gpu := func(o *one, path string) *one {
		o.container.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/null"}, {Path: path}}
		return o
	}
	empty := func(destination string, options ...string) specs.Mount {
		return specs.Mount{Destination: destination, Type: "bind", Source: "/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/x", Options: append(options, "rbind")}
	}
	volume := func(destination string) specs.Mount {
		return specs.Mount{Destination: destination, Type: "bind", Source: "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/x", Options: []string{"rbind", "ro"}}
	}
	ours := []specs.Mount{{Destination: inject.Folder, Type: "bind", Source: "/elsewhere"}, {Destination: inject.Socket, Type: "bind", Source: "/sockets"}}
	for _, c := range []struct {
		name   string
		o      *one
		result Result
		level  int      // whose sockets it has
		env    []string // that it has beside PATH; nil: unchanged
	}{
		{"a device", gpu(newOne(nil, lc...), "/dev/nvidia0"), Injected, 0, []string{preload, "GPREEMPT_PRIORITY=lc"}},
		{"a device of CDI", newOne(nil, lc...).changed(func(o *one) { o.container.CDIDevices = []*api.CDIDevice{{Name: "nvidia.com/gpu=0"}} }), Injected, 0, []string{preload, "GPREEMPT_PRIORITY=lc"}},
		{"a device as a mount", newOne(nil, lc...).mounted(specs.Mount{Destination: "/var/run/nvidia-container-devices/GPU-1", Type: "bind", Source: "/dev/null"}), Injected, 0,
			[]string{preload, "GPREEMPT_PRIORITY=lc"}},
		{"a device by a variable", newOne([]string{withGPU}, lc...), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"another's device", gpu(newOne(nil, lc...), "/dev/kfd"), NoGPU, 0, nil},
		{"no device, though it is said of the image", newOne([]string{"NVIDIA_VISIBLE_DEVICES=void"}, lc...), NoGPU, 0, nil},
		{"an LD_PRELOAD of its own", newOne([]string{withGPU, "LD_PRELOAD=/jemalloc.so", "X=1"}, lc...), Injected, 0,
			[]string{withGPU, "LD_PRELOAD=/jemalloc.so:" + inject.Preload, "X=1", "GPREEMPT_PRIORITY=lc"}},
		{"an LD_PRELOAD of several", newOne([]string{withGPU, "LD_PRELOAD=/a.so /b.so:"}, lc...), Injected, 0,
			[]string{withGPU, "LD_PRELOAD=/a.so /b.so:" + inject.Preload, "GPREEMPT_PRIORITY=lc"}},
		{"an LD_PRELOAD that is empty", newOne([]string{withGPU, "LD_PRELOAD="}, lc...), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"LD_PRELOAD twice", newOne([]string{withGPU, "LD_PRELOAD=/a.so", "LD_PRELOAD=/b.so"}, lc...), Duplicate, 0, nil},
		{"the library in the image", newOne([]string{withGPU, "LD_PRELOAD=/usr/lib/gpreempt/$LIB/libgpreempt.so"}, lc...), Injected, 0,
			[]string{withGPU, "LD_PRELOAD=/usr/lib/gpreempt/$LIB/libgpreempt.so", "GPREEMPT_PRIORITY=lc"}},
		{"all that there is", newOne([]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}, lc...).mounted(ours...), Present, 0, nil},
		{"a priority of its own", newOne([]string{withGPU, "GPREEMPT_PRIORITY=off"}, lc...), Injected, 0, []string{withGPU, "GPREEMPT_PRIORITY=off", preload}},
		{"musl", newOne([]string{withGPU, "ALPINE_VERSION=3.20"}, lc...).changed(func(o *one) { o.spec.Process.Args = []string{"/bin/busybox"} }), Injected, 0,
			[]string{withGPU, "ALPINE_VERSION=3.20", preload, "GPREEMPT_PRIORITY=lc"}},
		{"static, and nothing but /proc", newOne([]string{withGPU}, lc...).changed(func(o *one) { o.spec.Mounts = o.spec.Mounts[:1] }), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"a read-only root", newOne([]string{withGPU}, lc...).changed(func(o *one) { o.spec.Root.Readonly = true }), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"not root", newOne([]string{withGPU}, lc...).changed(func(o *one) { o.spec.Process.User = specs.User{UID: 1000, GID: 1000} }), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"no /dev/shm", newOne([]string{withGPU}, lc...).changed(func(o *one) { o.spec.Mounts = o.spec.Mounts[:1] }), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"scratch space at /run", newOne([]string{withGPU}, lc...).mounted(empty("/run/")), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"a tmpfs at /opt", newOne([]string{withGPU}, lc...).mounted(specs.Mount{Destination: "/opt", Type: "tmpfs", Source: "tmpfs"}), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"scratch space that is read-only", newOne([]string{withGPU}, lc...).mounted(empty("/run", "ro")), Conflict, 0, nil},
		{"scratch space that is read-only, with all in it", newOne([]string{withGPU}, lc...).mounted(empty("/run", "rro")), Conflict, 0, nil},
		{"scratch space that is the other name of /run", newOne([]string{withGPU}, lc...).mounted(empty("/var/run")), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"a volume at the other name of /run", newOne([]string{withGPU}, lc...).mounted(volume("/var/run")), Conflict, 0, nil},
		{"a volume at the other name of our place", newOne([]string{withGPU}, lc...).mounted(volume("/var" + inject.Socket)), Conflict, 0, nil},
		{"a volume at /opt", newOne([]string{withGPU}, lc...).mounted(volume("/opt")), Conflict, 0, nil},
		{"a volume in our place", newOne([]string{withGPU}, lc...).mounted(volume(inject.Folder)), Conflict, 0, nil},
		{"a volume below our place", newOne([]string{withGPU}, lc...).mounted(volume(inject.Folder + "/lib")), Conflict, 0, nil},
		{"a volume beside our place", newOne([]string{withGPU}, lc...).mounted(volume(inject.Folder + "x")), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"an init container", newOne([]string{withGPU}, lc...).changed(func(o *one) { o.container.Name = "init" }), Injected, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"an ephemeral container", newOne(nil, lc...).changed(func(o *one) { o.container.Name = "debugger" }), NoGPU, 0, nil},
		{"a container that is named", newOne(nil, ContainerRole+"main", "5"), Injected, 5, []string{preload, "GPREEMPT_PRIORITY=5"}},
		{"a container that is named, and its pod", newOne([]string{withGPU}, ContainerRole+"main", "be", RoleAnnotation, "lc"), Injected, 7, []string{withGPU, preload, "GPREEMPT_PRIORITY=be"}},
		{"another container is named", newOne([]string{withGPU}, ContainerRole+"other", "be"), NoRole, 0, nil},
		{"opted out", newOne([]string{withGPU}, append(lc, InjectAnnotation, "false")...), OptedOut, 0, nil},
		{"opted out by name", newOne([]string{withGPU}, append(lc, ContainerInject+"main", "false")...), OptedOut, 0, nil},
		{"opted in by name", newOne([]string{withGPU}, append(lc, ContainerInject+"main", "true", InjectAnnotation, "false")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"a level that the namespace may not have", newOne([]string{withGPU}, lc...).in("shared"), Lowered, 3, []string{withGPU, preload, "GPREEMPT_PRIORITY=3"}},
		{"a level below the namespace's best", newOne([]string{withGPU}, RoleAnnotation, "be").in("shared"), Injected, 7, []string{withGPU, preload, "GPREEMPT_PRIORITY=be"}},
		{"a namespace with a role", newOne([]string{withGPU}).in("batch"), Injected, 7, []string{withGPU, preload, "GPREEMPT_PRIORITY=be"}},
		{"opted out of the namespace's role", newOne([]string{withGPU}, InjectAnnotation, "false").in("batch"), OptedOut, 0, nil},
		{"an objective", newOne([]string{withGPU}, append(lc, ObjectiveAnnotation, "first=200ms,slowdown=1.5")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc", "GPREEMPT_OBJECTIVE=first=200ms,slowdown=1.5"}},
		{"an objective of a container that is named", newOne([]string{withGPU}, append(lc, ContainerObjective+"main", "step=20ms", ObjectiveAnnotation, "slowdown=2")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc", "GPREEMPT_OBJECTIVE=step=20ms"}},
		{"an objective of another container", newOne([]string{withGPU}, append(lc, ContainerObjective+"other", "step=20ms")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"an objective of its own", newOne([]string{withGPU, "GPREEMPT_OBJECTIVE=none"}, append(lc, ObjectiveAnnotation, "slowdown=2")...), Injected, 0,
			[]string{withGPU, "GPREEMPT_OBJECTIVE=none", preload, "GPREEMPT_PRIORITY=lc"}},
		{"an objective without a role", newOne([]string{withGPU}, ObjectiveAnnotation, "slowdown=2"), NoRole, 0, nil},
		{"an objective that is none", newOne([]string{withGPU}, append(lc, ObjectiveAnnotation, "slowdown=0.5")...), NoObjective, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"an objective that is empty", newOne([]string{withGPU}, append(lc, ObjectiveAnnotation, "")...), NoObjective, 0, []string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"a limit of memory", newOne([]string{withGPU}, append(lc, MemoryAnnotation, "40%", ObjectiveAnnotation, "slowdown=2")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc", "GPREEMPT_OBJECTIVE=slowdown=2", "GPREEMPT_MEMORY_LIMIT=40%"}},
		{"a limit of a container's memory", newOne([]string{withGPU}, append(lc, MemoryAnnotation, "40%", ContainerMemory+"main", "10GB")...), Injected, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc", "GPREEMPT_MEMORY_LIMIT=10GB"}},
		{"a limit of its own", newOne([]string{withGPU, "GPREEMPT_MEMORY_LIMIT=5GB"}, append(lc, MemoryAnnotation, "40%")...), Injected, 0,
			[]string{withGPU, "GPREEMPT_MEMORY_LIMIT=5GB", preload, "GPREEMPT_PRIORITY=lc"}},
		{"a limit that is none, beside an objective", newOne([]string{withGPU}, append(lc, MemoryAnnotation, "40", ObjectiveAnnotation, "slowdown=2")...), NoMemoryLimit, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc", "GPREEMPT_OBJECTIVE=slowdown=2"}},
		{"neither makes sense", newOne([]string{withGPU}, append(lc, MemoryAnnotation, "40", ObjectiveAnnotation, "slowdown=0")...), NoObjective, 0,
			[]string{withGPU, preload, "GPREEMPT_PRIORITY=lc"}},
		{"nothing is said", newOne([]string{withGPU}), NoRole, 0, nil},
		{"a role that is none", newOne([]string{withGPU}, RoleAnnotation, "fast"), Invalid, 0, nil},
		{"kube-system", newOne([]string{withGPU}, lc...).in("kube-system"), Excluded, 0, nil},
		{"the plugin's own namespace", newOne([]string{withGPU}, lc...).in("gpreempt"), Excluded, 0, nil},
		{"no sockets of that level", newOne([]string{withGPU}, RoleAnnotation, "4"), Unavailable, 0, nil},
	} {
		before, counted := *c.o.spec, p.count(c.result)
		process := *before.Process
		before.Process, process.Env, before.Mounts = &process, slices.Clone(process.Env), slices.Clone(before.Mounts)
		if err := r.Create(c.o.pod, c.o.container, c.o.spec); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if p.count(c.result) != counted+1 {
			t.Errorf("%s: not counted as %s", c.name, c.result)
		}
		want := before
		if c.env != nil {
			process.Env = append([]string{"PATH=/bin"}, c.env...)
			version := filepath.Join(filepath.Dir(p.config.Library), "v1")
			for _, m := range []specs.Mount{{Destination: inject.Folder, Source: version}, {Destination: inject.Socket, Source: fmt.Sprint(p.config.Sockets, "/", c.level)}} {
				m.Type, m.Options = "bind", inject.Options(m.Destination)
				want.Mounts = append(want.Mounts, m)
			}
		}
		checkSpec(t, c.name, c.o.spec, &want)
	}
}

// checkSpec compares specifications. The runtime sorts mounts: those above come before those below.
func checkSpec(t *testing.T, name string, got, want *specs.Spec) {
	t.Helper()
	order := func(a, b specs.Mount) int { return strings.Compare(a.Destination, b.Destination) }
	for i, m := range got.Mounts {
		for _, later := range got.Mounts[i+1:] {
			if strings.HasPrefix(m.Destination, strings.TrimSuffix(later.Destination, "/")+"/") && m.Destination != later.Destination {
				t.Errorf("%s: %s is mounted over %s", name, later.Destination, m.Destination)
			}
		}
	}
	g, w := *got, *want
	g.Mounts, w.Mounts = slices.SortedFunc(slices.Values(g.Mounts), order), slices.SortedFunc(slices.Values(w.Mounts), order)
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s: %+v\n%+v\nmust be %+v\n%+v", name, g.Process, g.Mounts, w.Process, w.Mounts)
	}
}

func (o *one) injected() bool { return slices.Contains(o.spec.Process.Env, preload) }

func create(t *testing.T, r *nritest.Runtime, o *one) *one {
	t.Helper()
	if err := r.Create(o.pod, o.container, o.spec); err != nil {
		t.Fatal(err)
	}
	return o
}

func lcOne() *one { return newOne([]string{withGPU}, RoleAnnotation, "lc") }

// An objective that makes no sense is said once, by annotation and value, with what may stand there.
func TestObjectiveIsNamed(t *testing.T) {
	r, p := nritest.New(t), New(host(t), zerolog.Nop())
	var log bytes.Buffer
	p.log = zerolog.New(zerolog.SyncWriter(&log))
	p.config.Default = Rule{Best: 0, Role: -1}
	r.Start()
	stop := run(t, p, r.Socket)
	nritest.Until(t, "the plugin registers", p.isRegistered)
	for key, name := range map[string]string{ObjectiveAnnotation: "main", ContainerObjective + "side": "side"} {
		o := newOne([]string{withGPU}, RoleAnnotation, "lc", key, "step=20")
		o.container.Name = name
		create(t, r, o)
	}
	stop()
	for _, want := range []string{"annotation gpreempt.io/objective: ", "annotation objective.gpreempt.io/container.side: "} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q was said %d times: %s", want, n, &log)
		}
	}
	if !strings.Contains(log.String(), "step=20") || !strings.Contains(log.String(), configs.ObjectiveAllowed) {
		t.Errorf("it said %s", &log)
	}
}

// The plugin ends, and comes back: containers in between run without the library, and are reported.
func TestPluginIsAway(t *testing.T) {
	r, p := nritest.New(t), New(host(t), zerolog.Nop())
	p.config.Default.Best = 0
	r.Start()
	stop := run(t, p, r.Socket)
	nritest.Until(t, "the plugin registers", p.isRegistered)
	if o := create(t, r, lcOne()); !o.injected() || p.Ready() != nil {
		t.Errorf("%q, %v", o.spec.Process.Env, p.Ready())
	}
	stop()
	if err := p.Ready(); p.isRegistered() || err == nil || !strings.Contains(err.Error(), "not registered") {
		t.Errorf("it has ended: %v", err)
	}
	if o := create(t, r, lcOne()); o.injected() {
		t.Errorf("nobody was asked: %q", o.spec.Process.Env)
	}
	create(t, r, newOne(nil, RoleAnnotation, "lc")) // without a GPU
	again := New(p.config, zerolog.Nop())
	run(t, again, r.Socket)
	nritest.Until(t, "the next one registers", again.isRegistered)
	if n := again.misses(); n != 1 {
		t.Errorf("%d containers are missed", n)
	}
	if o := create(t, r, lcOne()); !o.injected() {
		t.Errorf("%q", o.spec.Process.Env)
	}
}

// The runtime starts again, and the plugin registers again. Containers that were created meanwhile are reported until they are gone.
func TestRuntimeIsStartedAgain(t *testing.T) {
	r, p := started(t)
	for range 3 {
		r.Stop()
		nritest.Until(t, "the plugin sees that", func() bool { return !p.isRegistered() })
		missed := create(t, r, lcOne())
		r.Start()
		nritest.Until(t, "the plugin registers", p.isRegistered)
		if n := p.misses(); n != 1 {
			t.Errorf("%d containers are missed", n)
		}
		if err := r.Remove(missed.pod, missed.container); err != nil {
			t.Fatal(err)
		}
		nritest.Until(t, "nothing is missed", func() bool { return p.misses() == 0 })
		if o := create(t, r, lcOne()); !o.injected() {
			t.Errorf("%q", o.spec.Process.Env)
		}
	}
}

// The runtime comes later than the plugin, and some die between registering a plugin and configuring it.
func TestRuntimeDiesWhileRegistering(t *testing.T) {
	r, p := nritest.New(t), New(host(t), zerolog.Nop())
	p.config.Default.Best = 0
	run(t, p, r.Socket)
	nritest.Until(t, "there is no runtime", func() bool { err := p.Ready(); return err != nil && strings.Contains(err.Error(), "no such file") })
	for range 2 {
		registerAndDie(t, r.Socket)
	}
	r.Start()
	nritest.Until(t, "the plugin registers", p.isRegistered)
	if o := create(t, r, lcOne()); !o.injected() {
		t.Errorf("%q", o.spec.Process.Env)
	}
}

// forgetful is a runtime that takes the registration.
type forgetful struct{ took chan string }

func (f forgetful) RegisterPlugin(_ context.Context, request *api.RegisterPluginRequest) (*api.Empty, error) {
	f.took <- request.GetPluginIdx() + "-" + request.GetPluginName()
	return &api.Empty{}, nil
}

func (forgetful) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return &api.UpdateContainersResponse{}, nil
}

func registerAndDie(t *testing.T, socket string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	mux := multiplex.Multiplex(conn, multiplex.WithBlockedRead()) // what came before somebody listens would be lost
	served, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		t.Fatal(err)
	}
	mux.Unblock()
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	f := forgetful{make(chan string, 1)}
	api.RegisterRuntimeService(server, f)
	go server.Serve(t.Context(), served) // until it is closed
	if name := <-f.took; name != "95-gpreempt" {
		t.Errorf("plugin %s", name)
	}
	_ = server.Shutdown(t.Context()) // after the answer
	mux.Close()
	listener.Close()
}

// Two instances run at once, as while one replaces the other. They inject the library once.
func TestTwoInstances(t *testing.T) {
	r, p := started(t)
	second := New(p.config, zerolog.Nop())
	run(t, second, r.Socket)
	nritest.Until(t, "the second one registers", second.isRegistered)
	o := create(t, r, newOne([]string{withGPU, "LD_PRELOAD=/a.so"}, RoleAnnotation, "lc"))
	if want := "LD_PRELOAD=/a.so:" + inject.Preload; !slices.Contains(o.spec.Process.Env, want) || len(o.spec.Mounts) != 4 {
		t.Errorf("%q, %v", o.spec.Process.Env, o.spec.Mounts)
	}
	if injected, present := p.count(Injected)+second.count(Injected), p.count(Present)+second.count(Present); injected != 1 || present != 1 {
		t.Errorf("%d injected, %d present", injected, present)
	}
}

// other is another plugin that sets LD_PRELOAD.
type other struct {
	remove bool
	ready  chan struct{} // closed when the runtime is going to ask it
}

func (o other) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	change := &api.ContainerAdjustment{}
	if o.remove {
		change.RemoveEnv("LD_PRELOAD")
	}
	change.AddEnv("LD_PRELOAD", "/other.so")
	return change, nil, nil
}

func (o other) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(o.ready)
	return nil, nil
}

// Settings of another plugin that is asked earlier stay, whether that plugin removes the former ones or not.
func TestOtherPluginsFirst(t *testing.T) {
	for _, remove := range []bool{false, true} {
		r, _ := started(t)
		ready := make(chan struct{})
		one, err := stub.New(other{remove, ready}, stub.WithPluginName("other"), stub.WithPluginIdx("10"), stub.WithSocketPath(r.Socket),
			stub.WithOnClose(func() {}), stub.WithLogger(logger{zerolog.Nop()}))
		if err != nil {
			t.Fatal(err)
		}
		if err := one.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-ready
		o := create(t, r, newOne([]string{withGPU, "LD_PRELOAD=/a.so"}, RoleAnnotation, "lc"))
		if want := "LD_PRELOAD=/other.so:" + inject.Preload; !slices.Contains(o.spec.Process.Env, want) {
			t.Errorf("remove %v: %q lacks %s", remove, o.spec.Process.Env, want)
		}
		one.Stop()
	}
}

// If the library is not on the host, the plugin mounts none: the container starts without it, and the plugin logs that.
func TestLibraryIsMissing(t *testing.T) {
	r, p := started(t)
	version := filepath.Join(filepath.Dir(p.config.Library), "v1")
	if err := os.Rename(version, version+".away"); err != nil {
		t.Fatal(err)
	}
	o := create(t, r, lcOne())
	if o.injected() || len(o.spec.Mounts) != 2 || p.count(Unavailable) != 1 || p.misses() != 1 {
		t.Errorf("%q, %v, %d counted, %d missed", o.spec.Process.Env, o.spec.Mounts, p.count(Unavailable), p.misses())
	}
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "the library: ") || p.Healthy() != nil {
		t.Errorf("ready: %v, healthy: %v", err, p.Healthy())
	}
	if err := os.Rename(version+".away", version); err != nil {
		t.Fatal(err)
	}
	if o := create(t, r, lcOne()); !o.injected() || p.Ready() != nil {
		t.Errorf("%q, %v", o.spec.Process.Env, p.Ready())
	}
}

// The host's files do not answer: containers start, those that need nothing at once, and the plugin stays registered. Requests that hang
// are few.
func TestSlowHost(t *testing.T) {
	c := host(t)
	c.Budget = DefaultBudget
	r, p := startedWith(t, c)
	hangs := make(chan struct{})
	p.mutex.Lock()
	find := p.find
	p.find = func(level int) ([]mount, error) { <-hangs; return find(level) }
	p.mutex.Unlock()
	for range lookers + 2 {
		if o := create(t, r, lcOne()); o.injected() {
			t.Errorf("%q", o.spec.Process.Env)
		}
	}
	create(t, r, newOne(nil))
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "do not answer") || len(p.looks) != lookers { // nor does a probe hang
		t.Errorf("ready: %v", err)
	}
	if n := p.count(Slow); n != lookers+2 || len(p.looks) != lookers || !p.isRegistered() {
		t.Errorf("%d were slow, %d hang, registered: %v", n, len(p.looks), p.isRegistered())
	}
	close(hangs)
	nritest.Until(t, "nothing hangs", func() bool { return len(p.looks) == 0 })
	nritest.Until(t, "containers have the library again", func() bool { return create(t, r, lcOne()).injected() })
}

func TestHealthy(t *testing.T) {
	p := New(host(t), zerolog.Nop())
	answered := p.request()
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
	for number := range p.requests {
		p.requests[number] = time.Now().Add(-stuckAfter)
	}
	if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), "has waited for ") {
		t.Errorf("%v", err)
	}
	answered()
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	p, registry := New(host(t), zerolog.Nop()), prometheus.NewRegistry()
	p.Register(registry)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	if want := map[string]int{"gpreempt_nri_containers_total": len(Results), "gpreempt_nri_registered": 1, "gpreempt_nri_missed_containers": 1}; !maps.Equal(series, want) {
		t.Errorf("%v", series)
	}
}
