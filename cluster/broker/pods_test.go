package broker

import (
	"os"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const ofPods = `
[[rule]]
name = "gold"
when = 'pod_namespace == "prod" && "tier" in annotations && annotations["tier"] == "gold"'
level = "lc"
[[rule]]
name = "prod"
when = 'pod_namespace == "prod" && pod.startsWith("web-")'
level = 3
[[rule]]
name = "banned"
when = 'pod_namespace == "banned"'
admit = false
[control]
when = 'asker.pod_namespace == "admin" && target.pod_namespace == "prod"'
`

// container is the ID of a container, of a digit.
func container(digit string) string { return strings.Repeat(digit, 64) }

// in makes a client of a container, by the cgroup that the kernel shows a broker in a pod.
func (b *bench) in(digit string) {
	b.cgroup.Store("/../../kubepods-burstable-pod1_2.slice/cri-containerd-" + container(digit) + ".scope")
}

func tell(t *testing.T, folder, digit string, p pods.Pod) {
	t.Helper()
	if err := pods.Write(folder, container(digit), p); err != nil {
		t.Fatal(err)
	}
}

// The policy knows the pod of a client by its container, as the plugin of the runtime has told.
func TestPolicyOfPods(t *testing.T) {
	folder := t.TempDir()
	b := start(t, ofPods, func(s *Server) { s.SetPods(folder) })
	tell(t, folder, "1", pods.Pod{Namespace: "prod", Name: "db-0", Annotations: map[string]string{"tier": "gold"}})
	tell(t, folder, "2", pods.Pod{Namespace: "prod", Name: "web-0"})
	tell(t, folder, "3", pods.Pod{Namespace: "dev", Name: "web-0", Annotations: map[string]string{"tier": "gold"}})
	tell(t, folder, "4", pods.Pod{Namespace: "banned"})
	tell(t, folder, "5", pods.Pod{Namespace: "admin"})
	for digit, want := range map[string]uint8{"1": 0, "2": 3, "3": 7, "5": 7, "6": 7} {
		b.in(digit)
		if got := b.join(1, 0).Welcome.Policy.Level; got != want {
			t.Errorf("container %s has level %d, must have %d", digit, got, want)
		}
	}
	b.in("4")
	if _, err := b.try(options(1, 0), 0); !refused(err, wire.RefusedPolicy) {
		t.Errorf("a pod of a banned namespace: %v", err)
	}
	// A cgroup that anybody can make names no container.
	b.cgroup.Store("/user.slice/user-1000.slice/docker-" + container("1") + ".scope")
	if got := b.join(1, 0).Welcome.Policy.Level; got != 7 {
		t.Errorf("level %d", got)
	}
	// Nor does a folder that others can write.
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	b.in("1")
	if got := b.join(1, 0).Welcome.Policy.Level; got != 7 {
		t.Errorf("level %d", got)
	}
}

// The control condition, which says who may set whose priority, knows pods too.
func TestControlByPods(t *testing.T) {
	folder := t.TempDir()
	b := start(t, ofPods, func(s *Server) { s.SetPods(folder) })
	for digit, namespace := range map[string]string{"1": "prod", "2": "dev", "3": "admin"} {
		tell(t, folder, digit, pods.Pod{Namespace: namespace, Name: "web-0"})
	}
	for digit, want := range map[string]bool{"1": true, "2": false} {
		b.do(func(s *Server) {
			target := &client{who: identity{pod: podIn(t, s, digit)}, gpu: &gpu{}}
			target.facts = factsOf(&target.who, segment.GPU{UUID: [16]byte{}}, 0, 0)
			if got := s.may(&connection{who: identity{pod: podIn(t, s, "3")}}, target); got != want {
				t.Errorf("on container %s: %v", digit, got)
			}
		})
	}
}

func podIn(t *testing.T, s *Server, digit string) pods.Pod {
	t.Helper()
	p, err := s.podOf(container(digit))
	if err != nil {
		t.Error(err)
	}
	return p
}

// A broker that started before the plugin learns later of which pod its clients are: they have what the policy grants from then on.
func TestPodsThatAreToldLater(t *testing.T) {
	folder := t.TempDir()
	b := start(t, ofPods, func(s *Server) { s.SetPods(folder) })
	b.in("2")
	p, gone := b.join(1, 0), b.join(1, 0)
	b.cgroup.Store("/user.slice")
	host := b.join(1, 0)
	if p.Welcome.Policy.Level != 7 {
		t.Errorf("nobody has told: %+v", p.Welcome.Policy)
	}
	gone.Leave()
	eventually(t, "the broker forgets who has left", func() bool { return b.clients() == 2 })
	b.do(func(s *Server) {
		for c := range s.podless {
			if len(s.podless) != 1 || c.id != p.Welcome.ID {
				t.Errorf("client %d is looked up", c.id)
			}
		}
	})
	tell(t, folder, "2", pods.Pod{Namespace: "prod", Name: "web-0"})
	p.wait("the client is told its level", func() bool { return p.Welcome.Policy.Level == 3 })
	if host.common.Common().Level[p.slot()].Load() != 3 {
		t.Error("others do not see the level")
	}
	b.do(func(s *Server) {
		if len(s.podless) != 0 {
			t.Errorf("%d clients are looked up for ever", len(s.podless))
		}
	})
}
