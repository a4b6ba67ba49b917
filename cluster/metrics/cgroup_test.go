package metrics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
)

func TestParseCgroup(t *testing.T) {
	under := strings.ReplaceAll(uid, "-", "_")
	for name, c := range map[string]struct{ text, container, pod string }{
		"v2, systemd, containerd":              {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"v2, systemd, guaranteed":              {"0::/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"v2, cgroupfs":                         {"0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", id, uid},
		"v2, systemd, CRI-O":                   {"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/crio-" + id + ".scope\n", id, uid},
		"v2, CRI-O, crun":                      {"0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-" + id + ".scope/container\n", id, uid},
		"v2, kind":                             {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"v2, in a cgroup namespace":            {"0::/../../kubepods-besteffort-pod" + under + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"v1, systemd, containerd":              {"12:pids:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-" + id + ".scope\n11:memory:/\n1:name=systemd:/\n", id, uid},
		"v1, cgroupfs":                         {"11:devices:/kubepods/burstable/pod" + uid + "/" + id + "\n10:cpu,cpuacct:/kubepods/burstable/pod" + uid + "/" + id + "\n", id, uid},
		"v1, containerd, names with colons":    {"3:cpuset:/system.slice/containerd.service/kubepods-burstable-pod" + under + ".slice:cri-containerd:" + id + "\n", id, uid},
		"hybrid":                               {"0::/\n1:name=systemd:/docker/" + id + "\n", id, ""},
		"static pod":                           {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789abcdef0123456789abcdef.slice/cri-containerd-" + id + ".scope\n", id, "0123456789abcdef0123456789abcdef"},
		"Docker, systemd":                      {"0::/system.slice/docker-" + id + ".scope\n", id, ""},
		"Docker, cgroupfs, v1":                 {"5:memory:/docker/" + id + "\n", id, ""},
		"Docker, rootless":                     {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + id + ".scope\n", id, ""},
		"Podman":                               {"0::/machine.slice/libpod-" + id + ".scope/container\n", id, ""},
		"Podman, rootless":                     {"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container\n", id, ""},
		"Podman, cgroupfs":                     {"0::/libpod_parent/libpod-" + id + "\n", id, ""},
		"nerdctl":                              {"0::/system.slice/nerdctl-" + id + ".scope\n", id, ""},
		"containerd, k8s.io":                   {"0::/k8s.io/" + id + "\n", id, ""},
		"in a container, in a pod's container": {"0::/kubepods/pod" + uid + "/" + id + "/docker/" + strings.Repeat("f", 64) + "\n", strings.Repeat("f", 64), uid},
		"a pod within another's container":     {"0::/docker/" + id + "/kubepods/pod" + uid + "\n", "", uid},
		"no container":                         {"0::/user.slice/user-1000.slice/session-2.scope\n", "", ""},
		"a service":                            {"0::/system.slice/pod.service\n", "", ""},
		"a digest too short":                   {"0::/docker/" + id[1:] + "\n", "", ""},
		"a digest too long":                    {"0::/docker/0" + id + "\n", "", ""},
		"no path":                              {"0::\n1\n::::\n\n", "", ""},
		"nothing":                              {"", "", ""},
	} {
		if container, pod := ParseCgroup(c.text); container != c.container || pod != c.pod {
			t.Errorf("%s: container %q, pod %q; want %q, %q", name, container, pod, c.container, c.pod)
		}
	}
}

func TestByCgroup(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "17"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "17", "cgroup"), []byte("0::/kubepods/pod"+uid+"/"+id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	find := ByCgroup(root, "")
	for owner, want := range map[int32]Group{17: {Pod: uid, Container: id[:12]}, 18: {}, 0: {}, -1: {}} {
		if got := find(&segment.Peer{Owner: owner, Pid: 17}); got != want { // what the slot says does not count
			t.Errorf("process %d: %+v, want %+v", owner, got, want)
		}
	}
	// The namespace of a pod is known where the plugin of the container runtime tells it.
	folder := t.TempDir()
	if err := pods.Write(folder, id, pods.Pod{Namespace: "prod", Name: "web-0"}); err != nil {
		t.Fatal(err)
	}
	find = ByCgroup(root, folder)
	for _, p := range []segment.Peer{{Owner: 17}, {Cgroup: "/../pod" + uid + "/" + id}} { // one that a broker has read
		if got, want := find(&p), (Group{Namespace: "prod", Pod: uid, Container: id[:12]}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if got := find(&segment.Peer{Cgroup: "/../pod" + uid + "/" + strings.Repeat("f", 64)}); got.Namespace != "" || got.Pod != uid {
		t.Errorf("of a container that nobody has told: %+v", got)
	}
}
