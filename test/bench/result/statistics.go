package result

import (
	"math"
	"slices"
)

// Quantile of sorted values, between two in proportion.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	place := q * float64(len(sorted)-1)
	below := int(place)
	if below+1 == len(sorted) {
		return sorted[below]
	}
	return sorted[below] + (place-float64(below))*(sorted[below+1]-sorted[below])
}

// Median is the middle value, or the mean of the two in the middle.
func Median(values []float64) float64 { return Quantile(slices.Sorted(slices.Values(values)), .5) }

// SortedFloats returns values in ascending order, divided by unit.
func SortedFloats(values []uint64, unit float64) []float64 {
	sorted := make([]float64, len(values))
	for i, value := range values {
		sorted[i] = float64(value) / unit
	}
	slices.Sort(sorted)
	return sorted
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / float64(len(values))
}

// fewest is the number of values from which on two of them hold the median with 95 % confidence.
const fewest = 6

// orderInterval holds a quantile of what sorted values are of with 95 % confidence, if they are independent, whatever their distribution:
// from one of them to another, since as many lie below the quantile as a binomial distribution tells. Where so few are above it that none
// is surely so, the largest one stands for the upper end. It leaves out differences from run to run.
func orderInterval(sorted []float64, q float64) [2]float64 {
	n := len(sorted)
	if n < fewest {
		return [2]float64{}
	}
	low, high := max(binomialQuantile(n, q, .025), 1), min(binomialQuantile(n, q, .975)+1, n)
	return [2]float64{Round(sorted[low-1], 1), Round(sorted[high-1], 1)}
}

// binomialQuantile is the least number of successes, of n tries, that is not exceeded with that probability.
func binomialQuantile(n int, p, probability float64) int {
	logFactorial := func(k int) float64 { l, _ := math.Lgamma(float64(k) + 1); return l }
	mean := float64(n) * p
	negligible := 8 * math.Sqrt(mean*(1-p)) // that far below there is next to nothing
	sum := 0.0
	for k := max(int(mean-negligible)-1, 0); k < n; k++ {
		sum += math.Exp(logFactorial(n) - logFactorial(k) - logFactorial(n-k) + float64(k)*math.Log(p) + float64(n-k)*math.Log(1-p))
		if sum >= probability {
			return k
		}
	}
	return n
}

// ratioInterval is that of a ratio, from those of its two independent parts: their distances, as ratios, are added like standard
// deviations (the method of variance estimates recovery). None where a part has none.
func ratioInterval(a, b float64, ofA, ofB [2]float64) [2]float64 {
	if !(ofA[0] > 0 && ofB[0] > 0) {
		return [2]float64{}
	}
	low := math.Hypot(math.Log(a/ofA[0]), math.Log(ofB[1]/b))
	high := math.Hypot(math.Log(ofA[1]/a), math.Log(b/ofB[0]))
	return [2]float64{Round(a/b*math.Exp(-low), 3), Round(a/b*math.Exp(high), 3)}
}

// meanInterval holds the mean of what values are of with 95 % confidence, if they are many and independent.
func meanInterval(values []float64) [2]float64 {
	if len(values) < fewest {
		return [2]float64{}
	}
	m, squares := mean(values), 0.0
	for _, value := range values {
		squares += (value - m) * (value - m)
	}
	half := 1.96 * math.Sqrt(squares) / float64(len(values)) // nearly: of the squares' sum by n - 1
	return [2]float64{Round(m-half, 1), Round(m+half, 1)}
}

// Round rounds to so many digits after the point.
func Round(value float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(value*scale) / scale
}
