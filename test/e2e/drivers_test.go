package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func startNewer(t *testing.T, environment ...string) (m *machine, be *process) {
	t.Helper()
	m = newStoppable(t, "", environment...)
	be = m.startAs(m.command("be", compile(t, "testdata/newer.c"), simulated("sim.cubin")))
	be.hears("ready")
	return m, be
}

// Work that functions of newer drivers put on a stream waits for stopped kernels.
func TestFunctionsOfNewerDriversKeepTheirPlace(t *testing.T) {
	t.Parallel()
	m, be := startNewer(t, "SIMCUDA_VERSION=13050")
	lc := m.start("lc")
	m.joined(be, lc)
	done := make(chan struct{})
	ended := fire(lc, done)
	for _, what := range []string{"copy", "copy3", "host"} {
		m.runStopped(be, 30, what+" 20")
	}
	close(done)
	<-ended
	if blp := m.peer(be).BLP; blp.Cuts == 0 || blp.GivenUp != 0 {
		t.Errorf("%+v", *blp)
	}
	lc.finish()
	be.finish()
}

// A driver that is newer than those known may have functions that overtake stopped kernels.
func TestUnknownDriversAreNotStopped(t *testing.T) {
	t.Parallel()
	m, be := startNewer(t, "SIMCUDA_VERSION=13060")
	lc := m.start("lc")
	m.joined(be, lc)
	be.say("copy 20")
	lc.request(5, 2, "stream")
	be.hears("wrong 0")
	if p := m.peer(be); p.BLP != nil || strings.Contains(strings.Join(p.Mechanisms, " "), "blp") {
		t.Errorf("%+v", p)
	}
	lc.finish()
	be.says("newer than those known", 1)
	if _, stderr := be.finish(); strings.Count(stderr, "newer than those known") != 1 {
		t.Errorf("stderr %q", stderr)
	}
}

// CUDA runtimes ask for all functions of a driver by name as they start. The functions of known drivers do not end
// block-level preemption.
func TestWhatRuntimesAskForIsKnown(t *testing.T) {
	t.Parallel()
	m, be := startNewer(t, "SIMCUDA_VERSION=13050")
	lc := m.start("lc")
	m.joined(be, lc)
	list, err := os.ReadFile("../exports/testdata/versions.txt")
	if err != nil {
		t.Fatal(err)
	}
	asked, found := 0, 0
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		for _, name := range words[1:] {
			for _, how := range []string{"dlsym", "proc"} {
				be.say("ask %s %s", name, how)
				asked++
				if be.hear() == "found 1" {
					found++
				}
			}
		}
	}
	done := make(chan struct{})
	ended := fire(lc, done)
	m.runStopped(be, 5, "host 10")
	close(done)
	<-ended
	if p := m.peer(be); asked < 1000 || found < 300 || !slices.Contains(p.Mechanisms, "blp") {
		t.Errorf("%d names, %d of the simulated driver's; %+v", asked, found, p)
	}
	lc.finish()
	if _, stderr := be.finish(); stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
}

// A program asks for a function of an unknown name: it may overtake stopped kernels, so no kernel is stopped from then on.
func TestUnknownFunctionsEndStops(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"dlsym", "proc"} {
		t.Run(how, func(t *testing.T) {
			m, be := startNewer(t)
			lc := m.start("lc")
			m.joined(be, lc)
			done := make(chan struct{})
			ended := fire(lc, done)
			m.runStopped(be, 20, "host 10")
			be.say("ask cuStreamGetFlags %s", how) // it puts nothing on a stream
			be.hear()
			m.runStopped(be, 5, "host 10")
			be.say("ask cuMemcpyHereafterAsync %s", how)
			be.hears("found 1")
			m.until("it says so to its peers", func() bool {
				return !strings.Contains(strings.Join(m.peer(be).Mechanisms, " "), "blp")
			})
			be.say("copy 20")
			be.hears("wrong 0") // a stop that had begun is over
			stops := m.stops(be)
			for range 3 {
				be.say("copy 20")
				be.hears("wrong 0")
			}
			if after := m.stops(be); after != stops {
				t.Errorf("%d stops since", after-stops)
			}
			close(done)
			<-ended
			lc.finish()
			be.says("cuMemcpyHereafterAsync", 1)
			if _, stderr := be.finish(); strings.Count(stderr, "cuMemcpyHereafterAsync") != 1 {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}
