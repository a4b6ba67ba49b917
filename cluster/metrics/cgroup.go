package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// shownDigits of a container's ID, as docker ps and podman ps show it.
const shownDigits = 12

var (
	// The ID of a container ends the name of its cgroup: ID, docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope,
	// SLICE:cri-containerd:ID.
	containerID = regexp.MustCompile(`(?:^|[-:_])([0-9a-f]{64})(?:\.scope)?$`)
	// podUID, with the cgroupfs driver, ...-podUID.slice with the systemd driver, which has _ instead of -. UIDs of static pods are
	// hashes without either.
	podUID = regexp.MustCompile(`(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
)

// ByCgroup finds out from /proc/PID/cgroup, below root, in which container and pod a process is: of the container the beginning of its ID,
// of the pod its UID. The kernel says which process it is, not the segment. A broker has read the cgroup of its members, which may have
// ended. The plugin of the container runtime writes the pod's namespace into folder; "": there is none.
func ByCgroup(root, folder string) Finder {
	groupOf := func(cgroup string) Group {
		container, pod := ParseCgroup(cgroup)
		of := Group{Pod: pod, Container: container[:min(len(container), shownDigits)]}
		if folder != "" {
			told, _, _ := pods.Read(folder, container) // else the namespace is not known
			of.Namespace = told.Namespace
		}
		return of
	}
	return func(p *segment.Peer) Group {
		if p.Cgroup != "" {
			return groupOf("0::" + p.Cgroup)
		}
		if p.Owner <= 0 {
			return Group{}
		}
		text, err := os.ReadFile(filepath.Join(root, strconv.Itoa(int(p.Owner)), "cgroup"))
		if err != nil { // it has ended
			return Group{}
		}
		return groupOf(string(text))
	}
}

// ParseCgroup reads the ID of a container and the UID of a pod from /proc/PID/cgroup, of version 1 or 2. Both are empty where there
// are none.
func ParseCgroup(text string) (container, pod string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path, where the path may have colons
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		container, pod = "", ""
		for name := range strings.SplitSeq(fields[2], "/") {
			for part := range strings.SplitSeq(name, ":") {
				if found := podUID.FindStringSubmatch(part); found != nil {
					pod, container = strings.ReplaceAll(found[1], "_", "-"), ""
				}
				if found := containerID.FindStringSubmatch(part); found != nil {
					container = found[1]
				}
			}
		}
		if container != "" || pod != "" {
			return container, pod
		}
	}
	return "", ""
}
