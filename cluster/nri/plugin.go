// Package nri is a plugin of container runtimes (containerd, CRI-O), by the Node Resource Interface. It gives the containers of pods what
// they need to run under the library: mounts and variables, never hooks.
//
// A runtime that gets an error from a plugin does not create the container. So there is none: what cannot be given is counted, and
// the container runs without the library.
package nri

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/inject"
)

// lookers is how many requests may look at the host's files at once. A file system that hangs keeps no more threads than that.
const lookers = 4

// Plugin decides about containers, and counts what it decided.
type Plugin struct {
	config  *Config
	log     zerolog.Logger
	looks   chan struct{}
	find    func(level int) ([]mount, error) // what a level gets
	counted *prometheus.CounterVec

	mutex      sync.Mutex
	registered bool
	err        error                // why it is not
	missed     map[string]bool      // containers that ought to be under the library and are not, by id
	requests   map[uint64]time.Time // that are not answered yet
	next       uint64
}

// New makes a plugin.
func New(config *Config, log zerolog.Logger) *Plugin {
	p := &Plugin{config: config, log: log, looks: make(chan struct{}, lookers), find: config.mounts, missed: map[string]bool{}, requests: map[uint64]time.Time{}}
	p.counted = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpreempt_nri_containers_total",
		Help: "Containers that were created, by what the plugin did"}, []string{"result"})
	for _, result := range Results {
		p.counted.WithLabelValues(string(result))
	}
	return p
}

// Register adds the plugin's metrics.
func (p *Plugin) Register(registry prometheus.Registerer) {
	registry.MustRegister(p.counted,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpreempt_nri_registered", Help: "1 while the runtime asks the plugin, else 0"}, func() float64 {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			if p.registered {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpreempt_nri_missed_containers",
			Help: "Containers that are there, ought to be under the library, and are not"}, func() float64 {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			return float64(len(p.missed))
		}))
}

// CreateContainer is the runtime's question about a container. The error is always nil.
func (p *Plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	defer p.request()()
	change, result, err := p.decide(pod, container)
	p.counted.WithLabelValues(string(result)).Inc()
	p.note(pod, container, result, err)
	return change, nil, nil
}

func (p *Plugin) decide(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, Result, error) {
	level, result := p.config.wish(pod, container)
	if !result.given() {
		return nil, result, nil
	}
	settings, partly, wrong := annotations(pod, container)
	mounts, err := p.look(level, func() { p.tell(pod, container) })
	if err != nil {
		return nil, Unavailable, err
	}
	if mounts == nil {
		return nil, Slow, nil
	}
	change, became := adjust(container, level, settings, mounts)
	switch {
	case became == Injected && wrong != nil:
		return change, partly, wrong
	case became == Injected:
		return change, result, nil
	}
	return nil, became, nil
}

// tell writes the pod of a container for the broker, before the container starts. If that fails the policy treats the container like one of
// a pod that it does not know.
func (p *Plugin) tell(pod *api.PodSandbox, container *api.Container) {
	if p.config.Pods == "" {
		return
	}
	told, all := pods.Of(pod.GetNamespace(), pod.GetName(), pod.GetAnnotations())
	err := pods.Write(p.config.Pods, container.GetId(), told)
	if err != nil || !all {
		p.log.Warn().Str("namespace", pod.GetNamespace()).Str("pod", pod.GetName()).Str("container", container.GetName()).Bool("annotations", all).Err(err).
			Msg("the broker does not know all of the pod")
	}
}

// look finds the mounts of a level, and then works on the host's files, within the budget. It does neither if the files do not answer.
func (p *Plugin) look(level int, then func()) ([]mount, error) {
	type answer struct {
		mounts []mount
		err    error
	}
	answers := make(chan answer, 1)
	done := p.within(func() {
		mounts, err := p.find(level)
		if err == nil {
			then()
		}
		answers <- answer{mounts, err}
	})
	if !done {
		return nil, nil
	}
	a := <-answers
	return a.mounts, a.err
}

// within does something with the host's files, and says whether that was done within the budget.
func (p *Plugin) within(do func()) bool {
	done, limit := make(chan struct{}), time.NewTimer(p.config.Budget)
	defer limit.Stop()
	select {
	case p.looks <- struct{}{}:
	case <-limit.C:
		return false
	}
	go func() {
		defer func() { <-p.looks }()
		do()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-limit.C:
		return false
	}
}

// note remembers and logs what became of a container.
func (p *Plugin) note(pod *api.PodSandbox, container *api.Container, result Result, err error) {
	event := p.log.Debug()
	switch {
	case result.missed(), result.partly():
		event = p.log.Warn()
	case result.given():
		event = p.log.Info()
	}
	event.Str("namespace", pod.GetNamespace()).Str("pod", pod.GetName()).Str("container", container.GetName()).Str("result", string(result)).Err(err).Msg("container")
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if result.missed() {
		p.missed[container.GetId()] = true
	} else {
		delete(p.missed, container.GetId())
	}
}

// Synchronize gets the runtime's containers, once when the plugin has registered. Containers that were created while there was no plugin
// cannot be changed any more. They are counted, and named in the log.
func (p *Plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	defer p.request()()
	byID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	missed, there := map[string]bool{}, map[string]bool{}
	for _, container := range containers {
		there[container.GetId()] = true
	}
	p.forgetAllBut(there) // the runtime creates no container until this has returned, so none is forgotten that it has not listed
	for _, container := range containers {
		pod := byID[container.GetPodSandboxId()]
		if pod == nil || container.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		preload, _ := variable(container, inject.PreloadVariable)
		_, result := p.config.wish(pod, container)
		if inject.Has(preload) {
			p.tell(pod, container)
		}
		if inject.Has(preload) || !result.given() && !result.missed() {
			continue
		}
		missed[container.GetId()] = true
		p.log.Warn().Str("namespace", pod.GetNamespace()).Str("pod", pod.GetName()).Str("container", container.GetName()).
			Msg("runs without the library: it was created while the plugin was not there, or could not give it")
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.missed, p.registered, p.err = missed, true, nil
	p.log.Info().Int("containers", len(containers)).Int("missed", len(missed)).Msg("registered with the runtime")
	return nil, nil
}

// forgetAllBut removes the pods' files of containers that are not there any more.
func (p *Plugin) forgetAllBut(there map[string]bool) {
	if p.config.Pods == "" {
		return
	}
	if err := pods.Keep(p.config.Pods, there); err != nil {
		p.log.Warn().Err(err).Msg("what the broker was told of containers that have gone stays")
	}
}

// RemoveContainer is a call of the runtime. The error is always nil.
func (p *Plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	if p.config.Pods != "" {
		p.within(func() {
			if err := pods.Remove(p.config.Pods, container.GetId()); err != nil {
				p.log.Warn().Err(err).Msg("what the broker was told of a container that has gone stays")
			}
		})
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.missed, container.GetId())
	return nil
}

// lost says that the runtime asks no more.
func (p *Plugin) lost(err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.registered, p.err = false, err
}

// request is one of the runtime's, until the returned function is called.
func (p *Plugin) request() (answered func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	number := p.next
	p.next++
	p.requests[number] = time.Now()
	return func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		delete(p.requests, number)
	}
}

// stuckAfter is twice what a runtime waits for an answer.
const stuckAfter = 2 * api.DefaultPluginRequestTimeout

// Healthy says whether the plugin answers; if not, it should be started anew.
func (p *Plugin) Healthy() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, since := range p.requests {
		if waits := time.Since(since); waits > stuckAfter {
			return fmt.Errorf("a request of the runtime has waited for %v", waits.Round(time.Millisecond))
		}
	}
	return nil
}

// Ready says whether containers that are created now are injected, and the broker knows their pods; if not, why.
func (p *Plugin) Ready() error {
	p.mutex.Lock()
	registered, err := p.registered, p.err
	p.mutex.Unlock()
	if !registered && err != nil {
		return fmt.Errorf("not registered with the runtime, so pods start without the library: %w", err)
	}
	if !registered {
		return fmt.Errorf("not registered with the runtime, so pods start without the library")
	}
	var cannotTell error
	mounts, err := p.look(defaultRule.Best, func() { cannotTell = p.config.tells() })
	if err == nil && mounts == nil {
		err = fmt.Errorf("the host's files do not answer within %v", p.config.Budget)
	}
	if err != nil {
		return fmt.Errorf("pods start without the library: %w", err)
	}
	if cannotTell != nil { // the look has ended
		return fmt.Errorf("the broker does not know pods that start, so its policy grants them what it grants strangers: %w", cannotTell)
	}
	return nil
}
