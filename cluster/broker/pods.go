package broker

import "github.com/gpreempt/gpreempt/cluster/pods"

// SetPods sets the folder in which the plugin of the container runtime writes which pod a container is of. To be called before Run.
//
// The plugin writes that before the container's first process starts, so a client's pod is known when it joins. If the broker started
// before the plugin, it looks such a client up again at each heartbeat until its pod is known. From then on the client has what the policy
// grants its pod.
func (s *Server) SetPods(folder string) { s.pods = folder }

func (s *Server) podOf(container string) (pods.Pod, error) {
	if s.pods == "" || container == "" {
		return pods.Pod{}, nil
	}
	pod, _, err := pods.Read(s.pods, container)
	return pod, err
}

// findPods looks up whose pods are not known.
func (s *Server) findPods() {
	for c := range s.podless {
		pod, err := s.podOf(c.facts.Container)
		if err != nil || pod.Namespace == "" { // an error was said when it joined
			continue
		}
		delete(s.podless, c)
		c.who.pod = pod
		c.facts = factsOf(&c.who, c.gpu.id, c.socket, c.wanted)
		c.judge(s)
	}
}
