package bench

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPlaces(t *testing.T) {
	var ours unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		t.Fatal(err)
	}
	places := map[place]unix.CPUSet{}
	for _, p := range []place{anywhere, ownPlace, theRest} {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		err := p.put(cmd.Process.Pid)
		if few := ours.Count() <= ownProcessors; p != anywhere && few != (err != nil) {
			t.Fatalf("%d processors, %q: %v", ours.Count(), p, err)
		}
		if err != nil {
			continue
		}
		var its unix.CPUSet
		if err := unix.SchedGetaffinity(cmd.Process.Pid, &its); err != nil {
			t.Fatal(err)
		}
		places[p] = its
	}
	if places[anywhere] != ours {
		t.Errorf("moved from %v to %v", ours, places[anywhere])
	}
	if len(places) < 3 {
		return // too few processors
	}
	own, rest := places[ownPlace], places[theRest]
	if own.Count() != ownProcessors || rest.Count() != ours.Count()-ownProcessors {
		t.Errorf("%d and %d of %d processors", own.Count(), rest.Count(), ours.Count())
	}
	for i := range len(ours) * 64 {
		if own.IsSet(i) && rest.IsSet(i) {
			t.Errorf("processor %d is both's", i)
		}
	}
}
