package agent

import "github.com/gpreempt/gpreempt/preempt/segment"

// Processes of one level, above the lowest, wait for each other's timeslices. A slice is as long as the windows of the process mostly are,
// so that its requests are not cut. A process that works on and on, or has just begun and loads what it needs, keeps the others off for the
// shortest slice only.

const (
	// leastWindows is how many windows say how long a process's windows are.
	leastWindows = 8
	// mostWindows is how many count at most; then each counts half. So a program that changes has another slice some hundreds of
	// windows later.
	mostWindows = 256
	// outliers is the part of the windows, one in so many, that may be longer than the slice.
	outliers = 10
	// endlessNs is how long a window is open in a process that works on and on.
	endlessNs = 1e9
)

// windowTimes is how long the windows of this process were of late: how many, by bucket of segment.Histogram.
type windowTimes struct {
	seen   [segment.TimeBuckets]uint64 // what the slot counted until now
	recent [segment.TimeBuckets]uint64
	total  uint64 // of recent
	bucket int    // whose bound the slice is; 0: too few windows are known
}

// note adds the windows that closed since the last call.
func (w *windowTimes) note(counted *segment.Histogram[uint64]) {
	for i, n := range counted.Buckets {
		if n > w.seen[i] { // else another slot's
			more := min(n-w.seen[i], 1<<32) // whoever writes over the segment overruns no sum
			w.recent[i] += more
			w.total += more
		}
		w.seen[i] = n
	}
	for w.total > mostWindows {
		w.total = 0
		for i := range w.recent {
			w.recent[i] /= 2
			w.total += w.recent[i]
		}
	}
	w.decide()
}

// forget is for a process that has no windows, or one without an end: what it did before says nothing of that.
func (w *windowTimes) forget() { *w = windowTimes{seen: w.seen} }

// decide takes the least bucket that no more than one window in so many is beyond. To set a timeslice preempts what runs, so a shorter one is
// taken only where half as many are beyond it.
func (w *windowTimes) decide() {
	if w.total < leastWindows {
		w.bucket = 0
		return
	}
	beyond := w.total
	for i, n := range w.recent {
		if beyond -= n; beyond*outliers <= w.total && (i >= w.bucket || 2*beyond*outliers <= w.total) {
			w.bucket = i
			return
		}
	}
}

func (a *agent) noteWindows(p peers, now uint64) {
	times := a.own().ReadTimes()
	a.windows.note(&times.Windows)
	if since := a.segment.Line(a.slot).WindowOpenedNs.Load(); p.lower == 0 || since != 0 && since < now && now-since > endlessNs {
		a.windows.forget()
	}
}

// us is the timeslice, in microseconds, that the windows need, between two bounds.
func (w *windowTimes) us(least, most uint64) uint64 {
	const second = uint64(1e6)
	return min(max(second<<w.bucket>>segment.FirstBucket, least), most)
}
