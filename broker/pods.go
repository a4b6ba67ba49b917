package broker

import "github.com/gpreempt/gpreempt/pods"

// SetPods says in which folder the plugin of the container runtime tells which pod a container is of. To be called before Run.
//
// It tells that before the container's first process starts, so a client's pod is known when it joins. One that joins a broker that
// started before the plugin is looked up again at each heartbeat until it is: what the policy grants its pod, it has from then on.
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
