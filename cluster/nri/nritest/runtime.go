// Package nritest is a container runtime for tests: what containerd and CRI-O have of NRI, on a socket, without the containers.
package nritest

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/log"
	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-tools/generate"
)

// Patience is for what takes milliseconds, on a machine that is slow and busy.
const Patience = 30 * time.Second

// Runtime asks plugins about containers.
type Runtime struct {
	Socket string

	t        *testing.T
	current  *adaptation.Adaptation
	listener net.Listener
	mutex    sync.Mutex
	open     []net.Conn
	pods     []*api.PodSandbox
	there    []*api.Container
}

// New makes a runtime that is not started.
func New(t *testing.T) *Runtime {
	t.Helper()
	folder, err := os.MkdirTemp("", "nri-") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{t: t, Socket: filepath.Join(folder, "nri.sock")}
	t.Cleanup(func() {
		r.Stop()
		os.RemoveAll(folder)
	})
	return r
}

// Start lets plugins come.
func (r *Runtime) Start() {
	r.t.Helper()
	folder := filepath.Dir(r.Socket)
	var err error
	r.current, err = adaptation.New("test", "v2.3.0", r.synchronize,
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(r.inner()), adaptation.WithPluginPath(filepath.Join(folder, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(folder, "conf.d")))
	if err == nil {
		err = r.current.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	listener, err := net.Listen("unix", r.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mutex.Lock()
	r.listener = listener
	r.mutex.Unlock()
	go r.forward(listener)
}

func (r *Runtime) inner() string { return r.Socket + ".inner" }

// forward passes on what plugins and the runtime say, so that Stop can end it: a runtime that is stopped in its process keeps connections
// open that end with the process.
func (r *Runtime) forward(listener net.Listener) {
	for {
		plugin, err := listener.Accept()
		if err != nil {
			return // closed
		}
		runtime, err := net.Dial("unix", r.inner())
		if err != nil {
			plugin.Close()
			continue
		}
		r.mutex.Lock()
		stopped := r.listener != listener
		r.open = append(r.open, plugin, runtime)
		r.mutex.Unlock()
		if stopped {
			plugin.Close()
			runtime.Close()
			return
		}
		for _, pair := range [][2]net.Conn{{plugin, runtime}, {runtime, plugin}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1]) // until one of them ends
				pair[0].Close()
				pair[1].Close()
			}()
		}
	}
}

// Stop ends the runtime; its containers go on.
func (r *Runtime) Stop() {
	if r.current == nil {
		return
	}
	r.listener.Close()
	r.mutex.Lock()
	r.listener = nil
	for _, conn := range r.open {
		conn.Close()
	}
	r.open = nil
	r.mutex.Unlock()
	r.current.Stop()
	r.current = nil
}

func (r *Runtime) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	r.mutex.Lock()
	pods, there := r.pods, r.there
	r.mutex.Unlock()
	_, err := tell(ctx, pods, there)
	return err
}

// Create makes a container: plugins change its specification. If there is no runtime, no plugin is asked.
func (r *Runtime) Create(pod *api.PodSandbox, container *api.Container, spec *specs.Spec) error {
	r.t.Helper()
	container.Env, container.Mounts = spec.Process.Env, api.FromOCIMounts(spec.Mounts)
	if r.current != nil {
		block := r.current.BlockPluginSync()
		defer block.Unblock()
		answer, err := r.current.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: container})
		if err != nil {
			return err
		}
		stock := generate.NewFromSpec(spec)
		if err := nrigenerate.SpecGenerator(&stock).Adjust(answer.GetAdjust()); err != nil {
			return err
		}
	}
	container.Env, container.Mounts = spec.Process.Env, api.FromOCIMounts(spec.Mounts)
	container.State = api.ContainerState_CONTAINER_RUNNING
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.pods, r.there = append(r.pods, pod), append(r.there, container)
	return nil
}

// Remove forgets a container.
func (r *Runtime) Remove(pod *api.PodSandbox, container *api.Container) error {
	r.mutex.Lock()
	kept := []*api.Container{}
	for _, c := range r.there {
		if c.GetId() != container.GetId() {
			kept = append(kept, c)
		}
	}
	r.there = kept
	r.mutex.Unlock()
	block := r.current.BlockPluginSync() // a plugin that has got the list of containers gets every later event
	defer block.Unblock()
	return r.current.RemoveContainer(context.Background(), &api.RemoveContainerRequest{Pod: pod, Container: container})
}

// Until waits for a condition.
func Until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen that %s", what)
		}
	}
}

func init() {
	log.Set(quiet{})
	WaitForPlugins(Patience)
}

// WaitForPlugins sets how long runtimes wait for an answer: by default until a machine that is slow and busy has it.
func WaitForPlugins(limit time.Duration) { adaptation.SetPluginRequestTimeout(limit) }

type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}
