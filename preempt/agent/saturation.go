package agent

import "math"

// saturate adds: what is published may be anything.
func saturate(numbers ...uint64) (sum uint64) {
	for _, n := range numbers {
		if sum += n; sum < n {
			return math.MaxUint64
		}
	}
	return sum
}

func minus(a, b uint64) uint64 { return a - min(a, b) }
