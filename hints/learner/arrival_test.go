package learner

import (
	"math"
	"math/rand/v2"
	"testing"
)

const ms = 1_000_000

// outcome is what the hints of a series of arrivals did: covered requests came while one was in force.
type outcome struct {
	requests, given, covered int
	waitedNs                 float64
	overNs                   float64
}

func (o outcome) cost() float64 { return o.waitedNs / o.overNs }

func play(a *Arrivals, arrivals []float64) (o outcome) {
	const keptNs = 500_000 // past the end, as hints.linger_us
	var p Prediction
	var hinted bool
	for i, at := range arrivals {
		if hinted && at >= float64(p.FromNs) {
			end := float64(p.ToNs) + keptNs
			if at <= end {
				o.covered++
			}
			o.waitedNs += min(at, end) - float64(p.FromNs)
		}
		if p, hinted = a.Arrived(uint64(at)); hinted {
			o.given++
		}
		if i > 0 {
			o.overNs += at - arrivals[i-1]
		}
	}
	o.requests = len(arrivals)
	return o
}

func periodic(random *rand.Rand, hz float64, n int, jitterNs float64) []float64 {
	times := make([]float64, n)
	for i := range times {
		times[i] = 1e9 + float64(i)*1e9/hz + math.Abs(random.NormFloat64())*jitterNs
	}
	return times
}

func TestPeriodicArrivalsArePredicted(t *testing.T) {
	for _, c := range []struct{ hz, jitterNs float64 }{{20, 0}, {20, 100_000}, {100, 20_000}, {100, 40_000}, {220, 15_000}} {
		o := play(NewArrivals(0.02, switchNs), periodic(rand.New(rand.NewPCG(1, 2)), c.hz, 2000, c.jitterNs))
		t.Logf("%v Hz, jitter %v ns: %+v, cost %.4f", c.hz, c.jitterNs, o, o.cost())
		if o.covered < 1940 || o.cost() > 0.02 {
			t.Errorf("%v Hz, jitter %v ns: %d of %d requests met a hint, cost %.4f", c.hz, c.jitterNs, o.covered, o.requests, o.cost())
		}
	}
}

// A program that sleeps after each request has no clock to return to.
func TestSleepingProgramIsPredicted(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	times, at := []float64{}, 1e9
	for range 2000 {
		at += 10*ms + 60_000 + 10_000*random.NormFloat64()
		times = append(times, at)
	}
	if o := play(NewArrivals(0.02, switchNs), times); o.covered < 1940 || o.cost() > 0.02 {
		t.Errorf("%+v, cost %.4f", o, o.cost())
	}
}

func TestDriftIsFollowed(t *testing.T) {
	times, at, interval := []float64{}, 1e9, 10.0*ms
	for range 4000 {
		at += interval
		interval *= 1.0002 // 2 % faster or slower a second
		times = append(times, at)
	}
	if o := play(NewArrivals(0.02, switchNs), times); o.covered < 3800 || o.cost() > 0.02 {
		t.Errorf("%+v, cost %.4f", o, o.cost())
	}
}

// Bursts of three requests, every 50 ms.
func TestRepeatingBurstsArePredicted(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	times := []float64{}
	for i := range 500 {
		for _, offset := range []float64{0, 2 * ms, 7 * ms} {
			times = append(times, 1e9+float64(i)*50*ms+offset+20_000*random.Float64())
		}
	}
	if o := play(NewArrivals(0.02, switchNs), times); o.covered < 1350 || o.cost() > 0.02 {
		t.Errorf("%+v, cost %.4f", o, o.cost())
	}
}

func TestIrregularArrivalsGiveNoHints(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, hz := range []float64{20, 100, 220, 1000} {
		times, at := []float64{}, 1e9
		for range 20000 {
			at += random.ExpFloat64() * 1e9 / hz
			times = append(times, at)
		}
		if o := play(NewArrivals(0.02, switchNs), times); o.given > 0 {
			t.Errorf("Poisson at %v Hz: %+v", hz, o)
		}
	}
	times, at := []float64{}, 1e9
	for range 20000 { // bursts of random length
		at += 5 * ms
		if random.IntN(4) == 0 {
			at += random.ExpFloat64() * 100 * ms
		}
		times = append(times, at)
	}
	if o := play(NewArrivals(0.02, switchNs), times); o.cost() > 0.002 {
		t.Errorf("random bursts: %+v, cost %.4f", o, o.cost())
	}
}

// Confidence is earned slowly and lost at once.
func TestConfidence(t *testing.T) {
	a := NewArrivals(0.02, switchNs)
	at, first := 1e9, 0
	for i := range 100 {
		at += 10 * ms
		if _, ok := a.Arrived(uint64(at)); ok && first == 0 {
			first = i
		}
	}
	if first < 10 || first > 20 {
		t.Errorf("the first hint after %d requests", first)
	}
	at += 13 * ms
	a.Arrived(uint64(at))
	at += 14 * ms
	if p, ok := a.Arrived(uint64(at)); ok {
		t.Errorf("%+v after two misses", p)
	}
	for i := range 8 {
		at += 10 * ms
		if p, ok := a.Arrived(uint64(at)); ok {
			t.Errorf("%+v %d requests after two misses", p, i)
		}
	}
}

// A pattern that stops costs one hint: without requests there are no predictions.
func TestOneMissedRequestDoesNotEndThePattern(t *testing.T) {
	times := periodic(rand.New(rand.NewPCG(1, 2)), 100, 1000, 10_000)
	times = append(times[:500], times[502:]...)
	if o := play(NewArrivals(0.02, switchNs), times); o.covered < 960 {
		t.Errorf("%+v", o)
	}
}

func TestTooExpensivePredictionsAreNotMade(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	times := make([]float64, 1000)
	for i := range times {
		times[i] = 1e9 + float64(i)*10*ms + 600*us*random.Float64()
	}
	if o := play(NewArrivals(0.0001, switchNs), times); o.given > 5 {
		t.Errorf("%+v", o)
	}
	if o := play(NewArrivals(0.02, switchNs), times); o.given < 900 || o.cost() > 0.02 {
		t.Errorf("where more is allowed: %+v, cost %.4f", o, o.cost())
	}
}
