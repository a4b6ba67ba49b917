package learner

import "math"

// Prediction is when the next request is expected.
type Prediction struct {
	FromNs, ToNs uint64 // CLOCK_MONOTONIC
	Confidence   float64
}

const (
	maxLag      = 4      // Requests of a repeating pattern.
	remembered  = 64     // Residuals and arrivals, at most.
	enough      = 12     // Predictions that must have been right for a confidence of one half.
	trusted     = 64     // More make no difference.
	warmUp      = 4      // Repetitions before anything is predicted.
	togetherNs  = 50_000 // Arrivals that are closer belong to one request.
	maxCycleNs  = 5_000_000_000
	worthMissNs = 400_000 // A prediction that is off by more was wrong.
	randomPart  = 10      // So was one that is off by more than this part of the usual interval: it may be right by chance.
	believable  = 1.5     // An expert whose loss is at most so many times the best one's may be right where that is not.
	leastNoise  = 5_000   // Nanoseconds; no program is more regular.
)

// Arrivals learns online whether requests come in a regular pattern. It runs a few simple predictors side by
// side, and believes one only after it was right many times. A prediction comes with its errors, which decide
// how early the GPU has to be taken: see aim.
type Arrivals struct {
	maxCost  float64
	switchNs float64  // what a hint saves at most
	times    []uint64 // the latest, oldest first
	experts  []expert
}

// expert predicts that the request of lag requests ago comes again after a cycle. gain 1 measures the cycle from the last
// request, as fits a program that sleeps between requests; a small gain follows a clock through jitter.
type expert struct {
	lag   int
	gain  float64
	phase []float64 // of the last lag requests, smoothed, oldest first
	cycle float64
	noise float64 // the usual error of a prediction
	// since the start or the last break of the pattern
	first     []float64 // the lag phases with which it began
	seen      int
	right     float64 // predictions, see trusted
	wrong     int     // in a row
	residuals []float64
}

// NewArrivals makes a predictor that spends at most this part of the time waiting for predicted requests, each of which saves a switch.
func NewArrivals(maxCost, switchNs float64) *Arrivals {
	a := &Arrivals{maxCost: maxCost, switchNs: switchNs}
	for lag := 1; lag <= maxLag; lag++ {
		for _, gain := range []float64{1, 0.25, 1.0 / 16} {
			a.experts = append(a.experts, expert{lag: lag, gain: gain})
		}
	}
	return a
}

// Arrived takes note of a request and says when the next one is expected, if it knows.
func (a *Arrivals) Arrived(atNs uint64) (next Prediction, ok bool) {
	if n := len(a.times); n > 0 {
		if atNs < a.times[n-1]+togetherNs {
			return Prediction{}, false
		}
		if atNs-a.times[n-1] > maxCycleNs {
			*a = *NewArrivals(a.maxCost, a.switchNs)
		}
	}
	a.times = appendBounded(a.times, atNs)
	interval := a.interval()
	for i := range a.experts {
		a.experts[i].arrived(float64(atNs), min(interval/randomPart, worthMissNs))
	}
	var best *candidate
	candidates := make([]candidate, 0, len(a.experts))
	for i := range a.experts {
		e := &a.experts[i]
		if e.confidence() < 0.5 || len(e.residuals) < enough {
			continue
		}
		t, ok := aim(e.residuals, budget(a.maxCost, interval), a.switchNs)
		if !ok {
			continue
		}
		candidates = append(candidates, candidate{e, t})
		if c := &candidates[len(candidates)-1]; best == nil || c.loss < best.loss {
			best = c
		}
	}
	if best == nil {
		return Prediction{}, false
	}
	from, to := best.predicted()+best.from, best.predicted()+best.to
	// Was the request held up, or is there a new pace? Only the next one tells: it is expected at all times that fit.
	for _, c := range candidates {
		apart := math.Abs(c.predicted() - best.predicted())
		if apart > best.usual()+padNs && apart < min(2*worthMissNs, interval/4) && c.loss < believable*best.loss {
			from, to = max(float64(atNs)+1, min(from, c.predicted()+c.from)), max(to, c.predicted()+c.to)
		}
	}
	return Prediction{uint64(from), uint64(to), best.confidence()}, from > float64(atNs)
}

// candidate is an expert that may be believed, and when it would have the GPU.
type candidate struct {
	*expert
	target
}

// interval is the mean interval of the latest requests, in nanoseconds.
func (a *Arrivals) interval() float64 {
	if len(a.times) < 2 {
		return 0
	}
	return float64(a.times[len(a.times)-1]-a.times[0]) / float64(len(a.times)-1)
}

func (e *expert) confidence() float64 { return e.right / (e.right + enough) }

func (e *expert) predicted() float64 { return e.phase[0] + e.cycle }

// usual is the largest error of a prediction for a request that is not held up.
func (e *expert) usual() float64 { return 3*e.noise + leastNoise }

func (e *expert) begin(at float64) {
	*e = expert{lag: e.lag, gain: e.gain, first: []float64{at}, phase: []float64{at}}
}

func (e *expert) arrived(at, tolerance float64) {
	if e.seen == 0 {
		e.begin(at)
		e.seen = 1
		return
	}
	e.seen++
	if e.seen <= e.lag*warmUp { // measure the cycle
		if e.seen <= e.lag {
			e.first = append(e.first, at)
		} else {
			turns := (e.seen - 1) / e.lag
			e.cycle = (at - e.first[(e.seen-1)%e.lag]) / float64(turns)
		}
		e.push(at)
		return
	}
	expected := e.predicted()
	residual := at - expected
	// Requests that did not come are one mistake, not the end of the pattern.
	missed := 0
	if e.lag == 1 {
		for ; residual > e.cycle/2 && missed < 8; missed++ {
			residual -= e.cycle
			expected += e.cycle
		}
	}
	phase, cycle := e.gains()
	correction := residual
	if e.gain < 1 { // a request that was held up says little about the next one
		correction = max(-e.usual(), min(e.usual(), residual))
	}
	if residual > tolerance || residual < -tolerance {
		e.miss()
		if e.wrong > 2 {
			e.begin(at)
			e.seen = 1
			return
		}
		e.push(expected + phase*correction)
		return
	}
	if missed > 0 {
		e.miss()
	} else {
		e.right, e.wrong = min(e.right+1, trusted), 0
		e.residuals = appendBounded(e.residuals, residual)
	}
	e.noise += (math.Abs(residual) - e.noise) / 16
	e.cycle += cycle * correction / float64(e.lag)
	e.push(expected + phase*correction)
}

// gains returns by which parts a prediction's error corrects the phase and the cycle: at first such that they fit a line
// through all requests, in the end such that they follow a clock that drifts.
func (e *expert) gains() (phase, cycle float64) {
	n := float64(e.seen-1) / float64(e.lag)
	if e.gain == 1 {
		return 1, 1 / min(n, remembered/2)
	}
	return max(e.gain, 2*(2*n-1)/(n*(n+1))), max(e.gain*e.gain/2, 6/(n*(n+1)))
}

// miss counts a wrong prediction. One may happen with the most regular program; two in a row end all trust.
func (e *expert) miss() {
	e.right /= 2
	e.wrong++
	if e.wrong > 1 {
		e.right = 0
	}
}

func (e *expert) push(phase float64) {
	e.phase = append(e.phase, phase)
	if len(e.phase) > e.lag {
		e.phase = e.phase[1:]
	}
}

func appendBounded[T any](list []T, value T) []T {
	if len(list) >= remembered {
		copy(list, list[1:])
		list = list[:len(list)-1]
	}
	return append(list, value)
}
