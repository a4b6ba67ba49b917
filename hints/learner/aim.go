package learner

import "slices"

const (
	padNs       = 30_000
	usefulPart  = 0.4     // The part of a switch that a prediction must save.
	heldUpNs    = 500_000 // How long the GPU is kept for a request that is held up; the default of hints.linger_us.
	earliestOf  = 48      // One of so many requests may come earlier than expected.
	lateWeighs  = 4       // Weight of time that requests lose, relative to time that the GPU waits.
	plannedPart = 0.75    // Of the allowed cost; the rest is for surprises.
)

// One of so many requests, and one more, may be held up longer.
var heldUpOf = [...]int{24, 12, 8, 6}

// target says when to have the GPU, relative to a prediction, and how long to keep it.
type target struct {
	from, to float64 // nanoseconds
	loss     float64 // its cost, in nanoseconds per request
}

// budget is what waiting for one request may cost, in nanoseconds.
func budget(maxCost, interval float64) float64 { return plannedPart * maxCost * interval }

// aim chooses a target by the errors of earlier predictions. The GPU is taken so late that hardly any request would have come before. It
// is taken later still if waiting would cost the others more than the budget: a request that comes early loses only the rest of the
// switch, which takes switchNs. The GPU is kept until all but a few requests would have come. ok is false if too little of the switches
// would be saved.
func aim(errors []float64, budget, switchNs float64) (best target, ok bool) {
	sorted := slices.Sorted(slices.Values(errors))
	n := len(sorted)
	pad := max(padNs, min(budget/10, 3*padNs))
	for _, part := range heldUpOf {
		last := sorted[max(0, n-2-n/part)]
		t := target{from: max(sorted[n/earliestOf]-pad, affordable(sorted, last+heldUpNs, budget, switchNs))}
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

// affordable is the earliest time to take the GPU with which the mean wait for a request is within budget. A wait ends at
// end; a request that comes later costs its switch in addition.
func affordable(sorted []float64, end, budget, switchNs float64) float64 {
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
