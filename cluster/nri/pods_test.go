package nri

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/cluster/nri/nritest"
	"github.com/gpreempt/gpreempt/cluster/pods"
)

// identified gives a container an ID as runtimes do, which its cgroup ends in.
func (o *one) identified() *one {
	o.container.Id = fmt.Sprintf("%064x", number)
	return o
}

// told are the pods of which a folder tells, by container.
func told(t *testing.T, folder string) map[string]pods.Pod {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]pods.Pod{}
	for _, e := range entries {
		p, known, err := pods.Read(folder, e.Name())
		if err != nil || !known {
			t.Fatalf("%s: %v, %v", e.Name(), known, err)
		}
		all[e.Name()] = p
	}
	return all
}

// The broker learns the pods of containers with the library before they start, and knows them as long as they are there.
func TestBrokerIsToldOfPods(t *testing.T) {
	c := host(t)
	c.Pods = t.TempDir()
	r, p := startedWith(t, c)
	lc := lcOne().identified().in("prod")
	lc.pod.Name, lc.pod.Annotations["team"] = "web-0", "red"
	create(t, r, lc)
	create(t, r, newOne([]string{withGPU}).identified()) // it asks for nothing
	long := lcOne().identified()
	long.pod.Annotations["note"] = strings.Repeat("x", pods.MostAnnotations)
	create(t, r, long)
	create(t, r, lcOne()) // an ID that is none is nobody's
	want := map[string]pods.Pod{
		lc.container.Id:   {Namespace: "prod", Name: "web-0", Annotations: map[string]string{RoleAnnotation: "lc", "team": "red"}},
		long.container.Id: {Namespace: "dev", Name: "pod"},
	}
	if got := told(t, c.Pods); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, must be %+v", got, want)
	}
	if err := r.Remove(lc.pod, lc.container); err != nil {
		t.Fatal(err)
	}
	delete(want, lc.container.Id)
	nritest.Until(t, "the broker is told that it has gone", func() bool { return reflect.DeepEqual(told(t, c.Pods), want) })
	if injected := p.count(Injected); injected != 3 {
		t.Errorf("%d injected", injected)
	}
}

// A plugin that starts writes the pods of containers that are there, and removes those of others.
func TestPluginTellsAgain(t *testing.T) {
	c := host(t)
	c.Pods = t.TempDir()
	r, p := nritest.New(t), New(c, zerolog.Nop())
	p.config.Default.Best = 0
	r.Start()
	stop := run(t, p, r.Socket)
	nritest.Until(t, "the plugin registers", p.isRegistered)
	stays, goes := create(t, r, lcOne().identified()), create(t, r, lcOne().identified())
	stop()
	create(t, r, lcOne().identified()) // nobody was asked: it has no library
	r.Stop()
	r.Start()
	goesAway(r, goes)
	if err := pods.Remove(c.Pods, stays.container.Id); err != nil {
		t.Fatal(err)
	}
	again := New(c, zerolog.Nop())
	run(t, again, r.Socket)
	nritest.Until(t, "the next one registers", again.isRegistered)
	if got := told(t, c.Pods); len(got) != 1 || got[stays.container.Id].Namespace != "dev" {
		t.Errorf("%+v, must be of %s", got, stays.container.Id)
	}
}

// goesAway removes a container while there is no plugin.
func goesAway(r *nritest.Runtime, o *one) {
	if err := r.Remove(o.pod, o.container); err != nil {
		panic(err) // there is nobody who could refuse
	}
}

// The broker cannot be told: containers start with the library all the same, and the probe says it.
func TestBrokerCannotBeTold(t *testing.T) {
	c := host(t)
	c.Pods = filepath.Join(t.TempDir(), "none")
	r, p := startedWith(t, c)
	if o := create(t, r, lcOne().identified()); !o.injected() {
		t.Errorf("%q", o.spec.Process.Env)
	}
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "the broker does not know pods") {
		t.Errorf("ready: %v", err)
	}
	if err := os.Mkdir(c.Pods, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	o := create(t, r, lcOne().identified())
	if got := told(t, c.Pods); len(got) != 1 || got[o.container.Id].Namespace != "dev" {
		t.Errorf("%+v", got)
	}
}
