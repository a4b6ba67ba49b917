package hints

import "slices"

const (
	padNs       = 30_000
	switchNs    = 200_000 // of an H200; what a prediction saves at most
	heldUpNs    = 500_000 // nobody waits for a request that is later than the others by more
	earliestOf  = 48      // of so many requests one may come earlier than expected
	heldUpOf    = 32      // and one later
	plannedPart = 0.75    // of the cost that is allowed: the rest is for surprises
)

// target is when to have the GPU, relative to a prediction, and how long to keep it.
type target struct {
	from, to float64 // nanoseconds
	loss     float64 // what it costs, in nanoseconds a request
}

// budget is what waiting for one request may cost, in nanoseconds.
func budget(maxCost, interval float64) float64 { return plannedPart * maxCost * interval }

// aim chooses from the errors of earlier predictions. The GPU is taken as late as hardly any request would have
// noticed, and later where waiting would cost the others more than the budget: who comes before the GPU is there
// loses only what is left of the switch. It is not worth it where most would come before a switch has begun to
// pay.
func aim(errors []float64, budget float64) (t target, ok bool) {
	sorted := slices.Sorted(slices.Values(errors))
	n := len(sorted)
	last := sorted[n-1-n/heldUpOf]
	pad := max(padNs, min(budget/10, 3*padNs))
	t.from = max(sorted[n/earliestOf]-pad, affordable(sorted, last+heldUpNs, budget))
	t.to = max(t.from, last+padNs)
	useful := 0
	for _, e := range sorted {
		if e > t.from-switchNs/2 {
			useful++
		}
		t.loss += max(0, min(e, last+heldUpNs)-t.from) + 4*min(switchNs, max(0, t.from-e))
	}
	t.loss /= float64(n)
	return t, useful*4 >= n*3
}

// affordable is the earliest time from which the mean wait for the requests, until end at most, is within budget.
func affordable(sorted []float64, end, budget float64) float64 {
	total, allowed := 0.0, budget*float64(len(sorted))
	for i := len(sorted) - 1; i >= 0; i-- {
		total += min(sorted[i], end)
		from := (total - allowed) / float64(len(sorted)-i)
		if i == 0 || from >= sorted[i-1] {
			return from
		}
	}
	return 0
}
