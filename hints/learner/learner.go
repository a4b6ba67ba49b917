package learner

import (
	"math"
	"slices"
)

// A learner finds out which announcements are followed by work on the GPU, and after how long. Each request is matched with
// the announcement that fits best. Announcements that no request follows were no requests.
type learner struct {
	maxCost     float64
	switchNs    float64 // what a hint saves at most
	keys        map[uint64]*keyRecord
	connections map[connection]*record
	outstanding []announcement
	lastNs      uint64
	interval    float64 // nanoseconds between announcements that work followed, smoothed; of all keys, which share the allowed cost
	publish     func(estimate uint32, key uint64, e estimate)
	publishFor  func(c connection, likely float64)
}

type announcement struct {
	atNs     uint64
	key      uint64
	estimate uint32 // its place in C
	connection
}

type connection struct{ fd, generation uint32 }

// estimate: with the probability likely, work comes between delayNs and delayNs + validNs later.
type estimate struct {
	delayNs, validNs uint64
	likely           float64
}

// record counts what followed announcements; recent ones weigh more.
type record struct{ followed, count float64 }

func (r *record) add(followed bool) {
	const memory = 32
	if r.count >= memory {
		r.followed *= (memory - 1) / r.count
		r.count = memory - 1
	}
	r.count++
	if followed {
		r.followed++
	}
}

type keyRecord struct {
	record
	estimate uint32
	delays   []float64 // the latest, in nanoseconds
}

const (
	longestDelayNs  = 250_000_000 // work that comes later was not announced
	mostOutstanding = 64
	mostKeys        = 256
	mostConnections = 4096
	enoughDelays    = 8
	longestPause    = 4 // intervals
	keptDelays      = 64
)

func newLearner(maxCost, switchNs float64) *learner {
	return &learner{maxCost: maxCost, switchNs: switchNs, keys: map[uint64]*keyRecord{}, connections: map[connection]*record{}}
}

// announced takes note of an announcement.
func (l *learner) announced(a announcement) {
	k := l.keys[a.key]
	if k == nil {
		if len(l.keys) >= mostKeys {
			clear(l.keys)
		}
		k = &keyRecord{}
		l.keys[a.key] = k
	}
	k.estimate = a.estimate
	if len(l.outstanding) >= mostOutstanding {
		l.settle(0, false)
	}
	l.outstanding = append(l.outstanding, a)
}

// arrived matches a request with an announcement.
func (l *learner) arrived(atNs uint64) {
	l.expire(atNs)
	best, bestError := -1, math.Inf(1)
	for i, a := range l.outstanding {
		if a.atNs > atNs {
			continue
		}
		delay := float64(atNs - a.atNs)
		distance := 1e9 + delay // nothing known: the latest one
		if k := l.keys[a.key]; k != nil && len(k.delays) >= enoughDelays/2 {
			// An announcement that is off by more than the usual spread is like one of which nothing is known.
			middle, spread := k.middle()
			if off := math.Abs(delay - middle); off <= 4*spread+200_000 {
				distance = off
			}
			if r := l.connections[a.connection]; r != nil && r.count >= enoughDelays && r.followed < r.count/4 {
				distance += 0.5e9 // if two fit, not the one that work never follows
			}
		}
		if distance < bestError {
			best, bestError = i, distance
		}
	}
	if best < 0 {
		return
	}
	a := l.outstanding[best]
	l.pace(a.atNs)
	if k := l.keys[a.key]; k != nil {
		if len(k.delays) >= keptDelays {
			k.delays = k.delays[1:]
		}
		k.delays = append(k.delays, float64(atNs-a.atNs))
	}
	l.settle(best, true)
}

func (l *learner) pace(atNs uint64) {
	if l.lastNs != 0 && atNs > l.lastNs {
		interval := float64(atNs - l.lastNs)
		if l.interval == 0 {
			l.interval = interval
		}
		interval = min(interval, longestPause*l.interval) // after a pause it would allow too much for a while
		l.interval += (interval - l.interval) / 16
	}
	l.lastNs = max(l.lastNs, atNs)
}

// expire removes announcements that no work followed in time.
func (l *learner) expire(nowNs uint64) {
	for len(l.outstanding) > 0 && l.outstanding[0].atNs+longestDelayNs < nowNs {
		l.settle(0, false)
	}
}

func (l *learner) settle(i int, followed bool) {
	a := l.outstanding[i]
	l.outstanding = slices.Delete(l.outstanding, i, i+1)
	k := l.keys[a.key]
	if k == nil {
		return
	}
	k.add(followed)
	c := l.connections[a.connection]
	if c == nil {
		if len(l.connections) >= mostConnections {
			clear(l.connections)
		}
		c = &record{}
		l.connections[a.connection] = c
	}
	c.add(followed)
	if l.publish != nil {
		l.publish(a.estimate, a.key, k.estimated(budget(l.maxCost, l.interval), l.switchNs))
		l.publishFor(a.connection, c.likely(&k.record))
	}
}

// likely of a connection starts at the value of its key.
func (r *record) likely(usual *record) float64 {
	const prior = 4
	return (r.followed + prior*usual.followed/usual.count) / (r.count + prior)
}

// middle is the median delay, spread the mean distance from it.
func (k *keyRecord) middle() (middle, spread float64) {
	sorted := slices.Sorted(slices.Values(k.delays))
	middle = sorted[len(sorted)/2]
	for _, d := range sorted {
		spread += math.Abs(d - middle)
	}
	return middle, spread / float64(len(sorted))
}

// estimated is when to expect work: as early as the cost of waiting allows. There is no estimate if half of the requests
// would come before it.
func (k *keyRecord) estimated(budget, switchNs float64) estimate {
	if len(k.delays) < enoughDelays || k.count == 0 {
		return estimate{}
	}
	t, ok := aim(k.delays, budget, switchNs)
	if !ok {
		return estimate{}
	}
	return estimate{uint64(max(0, t.from)), uint64(t.to - max(0, t.from)), k.followed / k.count}
}
