package workload

import (
	"math"
	"slices"
	"testing"
	"time"

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
	if some, err := Systems([]string{"other", "mps"}, System{Name: "other"}); err != nil || len(some) != 2 || some[0].Name != "other" || !some[1].MPS {
		t.Errorf("two by name: %+v, %v", some, err)
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
