package learner

import "slices"

const (
	padNs       = 30_000
	switchNs    = 200_000 // of an H200; what a prediction saves at most
	usefulPart  = 0.4     // of that it must save
	heldUpNs    = 500_000 // hints.wait_us by default: for so long the GPU is kept for a request that is held up
	earliestOf  = 48      // of so many requests one may come earlier than expected
	lateWeighs  = 4       // time that requests lose against time that the GPU waits
	plannedPart = 0.75    // of the cost that is allowed: the rest is for surprises
)

// One of so many requests, and one more, may be held up longer.
var heldUpOf = [...]int{24, 12, 8, 6}

// target is when to have the GPU, relative to a prediction, and how long to keep it.
type target struct {
	from, to float64 // nanoseconds
	loss     float64 // what it costs, in nanoseconds a request
}

// budget is what waiting for one request may cost, in nanoseconds.
func budget(maxCost, interval float64) float64 { return plannedPart * maxCost * interval }

// aim chooses from the errors of earlier predictions. The GPU is taken as late as hardly any request would have
// noticed, and later where waiting would cost the others more than the budget: who comes before the GPU is there
// loses only what is left of the switch. It is kept for all but a few, the fewer the less they would cost. Where too
// little of the switches would be saved it is not worth it.
func aim(errors []float64, budget float64) (best target, ok bool) {
	sorted := slices.Sorted(slices.Values(errors))
	n := len(sorted)
	pad := max(padNs, min(budget/10, 3*padNs))
	for _, part := range heldUpOf {
		last := sorted[max(0, n-2-n/part)]
		t := target{from: max(sorted[n/earliestOf]-pad, affordable(sorted, last+heldUpNs, budget))}
		t.to = max(t.from, last+padNs)
		saved := 0.0
		for _, e := range sorted {
			wait, late := min(e, last+heldUpNs)-t.from, min(switchNs, max(0, t.from-e))
			if e > last+heldUpNs {
				wait, late = wait+switchNs, switchNs
			}
			saved += switchNs - late
			t.loss += (max(0, wait) + lateWeighs*late) / float64(n)
		}
		if saved >= usefulPart*switchNs*float64(n) && (!ok || t.loss < best.loss) {
			best, ok = t, true
		}
	}
	return best, ok
}

// affordable is the earliest time from which the mean wait for the requests is within budget: until end at most, and
// then for the switch to them all the same.
func affordable(sorted []float64, end, budget float64) float64 {
	total, allowed := 0.0, budget*float64(len(sorted))
	for i := len(sorted) - 1; ; i-- {
		total += min(sorted[i], end)
		if sorted[i] > end {
			allowed -= switchNs
		}
		from := (total - allowed) / float64(len(sorted)-i)
		if i == 0 || from >= sorted[i-1] {
			return from
		}
	}
}
