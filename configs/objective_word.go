package configs

import "math"

// ObjectiveWord is an objective in one word, as it goes from process to process: GP_OBJECTIVE_* of preempt/segment/segment.h. Bits 0 to 25 are
// its slowdown in millionths or its step in microseconds, 26 to 45 first in tenths of a millisecond. Bits 46 to 59 are the percentile in
// hundredths, 60 and 61 the kind of word. 0 says nothing: its reader keeps its own objective.
type ObjectiveWord uint64

// The kinds of ObjectiveWord.
const (
	saysNothing = iota
	saysNone
	saysSlowdown
	saysStep
)

const (
	firstShift, percentileShift, kindShift = 26, 46, 60
	valueBits, firstBits, percentileBits   = 1<<26 - 1, 1<<20 - 1, 1<<14 - 1

	inMillionths, inUs, inTenths, inHundredths = 1e6, 1e3, 10, 100
)

// Word is what of an objective can be said to a running process.
func (o Objective) Word() ObjectiveWord {
	whole := func(value, per float64) ObjectiveWord { return ObjectiveWord(math.Round(value * per)) }
	word := whole(o.FirstMs, inTenths)<<firstShift | whole(o.Percentile, inHundredths)<<percentileShift
	switch {
	case o.Slowdown > 0:
		return word | whole(o.Slowdown, inMillionths) | saysSlowdown<<kindShift
	case o.StepMs > 0:
		return word | whole(o.StepMs, inUs) | saysStep<<kindShift
	}
	return saysNone << kindShift
}

// Says is false for a word that says nothing.
func (w ObjectiveWord) Says() bool { return w != 0 }

// Objective reads a word over an objective, of which it keeps what a word cannot say. ok is false for one that says nothing, or makes no
// sense: its writer is not trusted.
func (w ObjectiveWord) Objective(o Objective) (says Objective, ok bool) {
	o.Slowdown, o.StepMs, o.FirstMs, o.Percentile = 0, 0, 0, defaultPercentile
	value := float64(w & valueBits)
	kind := w >> kindShift
	if kind != saysNone {
		o.FirstMs = float64(w>>firstShift&firstBits) / inTenths
		o.Percentile = float64(w>>percentileShift&percentileBits) / inHundredths
	}
	switch kind {
	case saysNone:
		return o, w == saysNone<<kindShift
	case saysSlowdown:
		o.Slowdown = value / inMillionths
		ok = o.Slowdown >= 1 && o.Slowdown <= mostSlowdown
	case saysStep:
		o.StepMs = value / inUs
		ok = o.StepMs >= leastMs && o.StepMs <= mostMs
	}
	return o, ok && o.FirstMs <= mostMs && o.Percentile >= leastPercentile && o.Percentile <= mostPercentile
}

// String is what ParseObjective reads; "" for a word that says nothing, or makes no sense.
func (w ObjectiveWord) String() string {
	o, ok := w.Objective(Objective{})
	switch {
	case !ok:
		return ""
	case !o.Set():
		return "none"
	}
	return o.String()
}
