package learner

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// traffic plays announcements and arrivals to a learner, in order of time.
type traffic struct {
	l         *learner
	estimates map[uint64]estimate
	likely    map[connection]float64
	events    []event
}

type event struct {
	atNs      uint64
	announced *announcement // nil: a request
}

func newTraffic(maxCost float64) *traffic {
	t := &traffic{l: newLearner(maxCost, switchNs), estimates: map[uint64]estimate{}, likely: map[connection]float64{}}
	t.l.publish = func(_ uint32, key uint64, e estimate) { t.estimates[key] = e }
	t.l.publishFor = func(c connection, likely float64) { t.likely[c] = likely }
	return t
}

func (t *traffic) announce(atNs float64, key uint64, fd uint32) {
	t.events = append(t.events, event{uint64(atNs), &announcement{uint64(atNs), key, 0, connection{fd, 0}}})
}

func (t *traffic) arrive(atNs float64) { t.events = append(t.events, event{uint64(atNs), nil}) }

func (t *traffic) play() {
	slices.SortStableFunc(t.events, func(a, b event) int { return int(int64(a.atNs - b.atNs)) })
	for _, e := range t.events {
		if e.announced != nil {
			t.l.announced(*e.announced)
		} else {
			t.l.arrived(e.atNs)
		}
	}
}

func TestDelayIsLearnt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tr, at := newTraffic(0.02), 1e9
	for range 300 {
		at += 5*ms + random.ExpFloat64()*10*ms
		tr.announce(at, 80, 5)
		tr.arrive(at + 3*ms + 100_000*random.Float64())
	}
	tr.play()
	e := tr.estimates[80]
	if e.delayNs < 2_900_000 || e.delayNs > 3_050_000 || e.validNs > 200_000 || e.likely < 0.95 {
		t.Errorf("%+v, must be 3.0 to 3.1 ms", e)
	}
}

// Waiting from the earliest time on would cost more than is allowed: the start moves, or the estimate is given up.
func TestWaitingIsBoundedByTheBudget(t *testing.T) {
	for _, c := range []struct {
		spreadNs float64
		useful   bool
	}{{0.2 * ms, true}, {0.5 * ms, true}, {20 * ms, false}} {
		random := rand.New(rand.NewPCG(1, 2))
		tr, at := newTraffic(0.02), 1e9
		for range 300 {
			at += 10 * ms
			tr.announce(at, 80, 5)
			tr.arrive(at + 3*ms + c.spreadNs*random.Float64())
		}
		tr.play()
		e := tr.estimates[80]
		if useful := e.likely > 0.5; useful != c.useful {
			t.Errorf("spread %v ns: %+v", c.spreadNs, e)
			continue
		}
		wait := 0.0
		for range 1000 {
			wait += max(0, 3*ms+c.spreadNs*random.Float64()-float64(e.delayNs)) / 1000
		}
		if c.useful && wait > 0.02*10*ms {
			t.Errorf("spread %v ns: %+v waits %v ns for a request", c.spreadNs, e, wait)
		}
	}
}

// Two ports share what waiting may cost.
func TestPortsShareTheBudget(t *testing.T) {
	wait := func(ports int) (ns float64) {
		random := rand.New(rand.NewPCG(1, 2))
		tr, at := newTraffic(0.02), 1e9
		for i := range 600 {
			at += 10 * ms
			tr.announce(at, uint64(80+i%ports), uint32(5+i%ports))
			tr.arrive(at + 3*ms + 0.5*ms*random.Float64())
		}
		tr.play()
		for range 1000 {
			ns += max(0, 3*ms+0.5*ms*random.Float64()-float64(tr.estimates[80].delayNs)) / 1000
		}
		return ns
	}
	if one, two := wait(1), wait(2); two > 1.1*one {
		t.Errorf("waits %v ns for a request on one port, %v on one of two", one, two)
	}
}

// The connection of a metrics scraper uses the port of the requests, which go on meanwhile.
func TestConnectionsAreToldApart(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tr, at := newTraffic(0.02), 1e9
	for i := range 1000 {
		at += random.ExpFloat64() * 20 * ms
		tr.announce(at, 80, 5)
		tr.arrive(at + 3*ms + 100_000*random.Float64())
		if i%5 == 0 {
			tr.announce(at+2*ms, 80, 6)
		}
	}
	tr.play()
	if e := tr.estimates[80]; e.delayNs < 2_500_000 || e.delayNs > 3_050_000 {
		t.Errorf("%+v, must be 3.0 to 3.1 ms", e)
	}
	if requests, metrics := tr.likely[connection{5, 0}], tr.likely[connection{6, 0}]; requests < 0.9 || metrics > 0.4 {
		t.Errorf("likely %v for requests, %v for metrics", requests, metrics)
	}
}

// A control socket of another port gives no hints, with any traffic.
func TestPortsWithoutWork(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tr, at := newTraffic(0.02), 1e9
	for range 500 {
		at += random.ExpFloat64() * 50 * ms
		tr.announce(at, 9000, 7)
		if random.IntN(3) == 0 {
			tr.arrive(at + random.ExpFloat64()*30*ms) // nothing to do with it
		}
	}
	tr.play()
	if e := tr.estimates[9000]; e.likely >= 0.5 {
		t.Errorf("%+v", e)
	}
}

func TestRequestsInParallel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tr, at := newTraffic(0.02), 1e9
	for i := range 1000 {
		at += random.ExpFloat64() * 10 * ms
		tr.announce(at, 80, uint32(i%16))
		tr.arrive(at + 5*ms + 50_000*random.Float64())
	}
	tr.play()
	if e := tr.estimates[80]; e.delayNs < 4_000_000 || e.delayNs > 5_050_000 || e.likely < 0.8 {
		t.Errorf("%+v, must be 5 ms", e)
	}
}

func TestLearnerIsBounded(t *testing.T) {
	l := newLearner(0.02, switchNs)
	for i := range 20000 {
		at := uint64(i) * 1000
		l.announced(announcement{at, uint64(i), uint32(i), connection{uint32(i), 0}})
		if i%3 == 0 {
			l.arrived(at)
		}
	}
	if len(l.keys) > mostKeys || len(l.connections) > mostConnections || len(l.outstanding) > mostOutstanding {
		t.Errorf("%d keys, %d connections, %d outstanding", len(l.keys), len(l.connections), len(l.outstanding))
	}
}
