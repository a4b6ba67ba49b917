package workload

import (
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

func TestArrivals(t *testing.T) {
	const length = 200 * time.Second
	for _, arrival := range []string{"", "poisson", "bursty"} {
		task := Task{RateHz: 100, Arrival: arrival}
		times := task.Arrivals(length, Seed("a"))
		if !slices.Equal(times, task.Arrivals(length, Seed("a"))) {
			t.Errorf("%q: another sequence from the same seed", arrival)
		}
		if slices.Equal(times, task.Arrivals(length, Seed("b"))) {
			t.Errorf("%q: the same sequence from another seed", arrival)
		}
		if !slices.IsSorted(times) || times[0] < 0 || times[len(times)-1] >= length {
			t.Errorf("%q: arrivals out of order or out of time", arrival)
		}
		if rate := float64(len(times)) / length.Seconds(); math.Abs(rate-100) > 8 {
			t.Errorf("%q: %.1f requests/s, want 100", arrival, rate)
		}
		var gaps []float64
		for i := range times[1:] {
			gaps = append(gaps, (times[i+1] - times[i]).Seconds())
		}
		average, squares := 0.0, 0.0
		for _, gap := range gaps {
			average += gap / float64(len(gaps))
		}
		for _, gap := range gaps {
			squares += (gap - average) * (gap - average)
		}
		variation := math.Sqrt(squares/float64(len(gaps))) / average
		if low, high := map[string]float64{"": 0, "poisson": .95, "bursty": 1.2}[arrival], map[string]float64{"": .2, "poisson": 1.05, "bursty": 3}[arrival]; variation < low || variation > high {
			t.Errorf("%q: gaps vary by %.2f of their mean, want %g to %g", arrival, variation, low, high)
		}
	}
}

func TestPhasesAreDrawnAnew(t *testing.T) {
	task := Task{RateHz: 100}
	a, b := task.Arrivals(time.Minute, Seed("lc")), task.Arrivals(time.Minute, Seed("be"))
	quarters := [4]int{}
	for i := range min(len(a), len(b)) {
		offset := math.Mod(float64(a[i]-b[i])/float64(10*time.Millisecond)+2, 1)
		quarters[int(4*offset)]++
	}
	for quarter, count := range quarters {
		if count < len(a)/8 {
			t.Errorf("tasks of equal rates: offsets of %d/4 of a period in %d of %d requests", quarter, count, len(a))
		}
	}
}

func TestSystems(t *testing.T) {
	all, err := Systems(nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, system := range all {
		names = append(names, system.Name)
	}
	if want := []string{"default", "mps", "mps-priority", "gpreempt", "gpreempt-hints", "gpreempt-mps"}; !slices.Equal(names, want) {
		t.Errorf("systems %v, want %v", names, want)
	}
	if some, err := Systems([]string{"other", "mps"}, System{Name: "other"}); err != nil || len(some) != 2 || some[0].Name != "other" || !some[1].MPS {
		t.Errorf("two by name: %+v, %v", some, err)
	}
	if _, err := Systems([]string{"none"}); err == nil || !strings.Contains(err.Error(), "mps-priority") {
		t.Errorf("unknown system: %v", err)
	}
	by := map[string]System{}
	for _, system := range all {
		by[system.Name] = system
	}
	if by["default"].Processes("be") != (System{}).Processes("be") {
		t.Error("processes without the library are not shared")
	}
	if by["mps"].Processes("lc") != by["mps-priority"].Processes("lc") || by["mps"].Processes("be") == by["mps-priority"].Processes("be") {
		t.Error("MPS with priorities differs in the BE processes, and only in these")
	}
	if by["gpreempt"].Processes("lc") == by["gpreempt-hints"].Processes("lc") {
		t.Error("systems with the library share processes")
	}
	for _, system := range systems {
		if _, err := configs.Parse(system.Name, []byte(system.LibraryConfig("/"))); err != nil {
			t.Errorf("%s: %v", system.Name, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	var ours unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		t.Fatal(err)
	}
	places := map[Place]unix.CPUSet{}
	for _, p := range []Place{anywhere, OwnPlace, TheRest} {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		err := p.Put(cmd.Process.Pid)
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
	own, rest := places[OwnPlace], places[TheRest]
	if own.Count() != ownProcessors || rest.Count() != ours.Count()-ownProcessors {
		t.Errorf("%d and %d of %d processors", own.Count(), rest.Count(), ours.Count())
	}
	for i := range len(ours) * 64 {
		if own.IsSet(i) && rest.IsSet(i) {
			t.Errorf("processor %d is both's", i)
		}
	}
}
