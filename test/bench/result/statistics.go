package result

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Distribution sums up latencies. Intervals hold the true value with 95 % confidence (bootstrap).
type Distribution struct {
	N        int        `json:"n"`
	MeanUs   float64    `json:"mean_us"`
	P50Us    float64    `json:"p50_us"`
	P95Us    float64    `json:"p95_us"`
	P99Us    float64    `json:"p99_us"`
	P999Us   float64    `json:"p999_us"`
	MaxUs    float64    `json:"max_us"`
	P50CIUs  [2]float64 `json:"p50_ci_us,omitzero"`
	P99CIUs  [2]float64 `json:"p99_ci_us,omitzero"`
	MeanCIUs [2]float64 `json:"mean_ci_us,omitzero"`
}

// Ratios compare with the same LC tasks alone.
type Ratios struct {
	Mean   float64    `json:"mean"`
	P50    float64    `json:"p50"`
	P99    float64    `json:"p99"`
	MeanCI [2]float64 `json:"mean_ci"`
	P99CI  [2]float64 `json:"p99_ci"`
}

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

const resamplings = 400

// estimates are the statistics of as many resamplings: of the runs first, whose conditions differ, and of the
// requests of each run then.
type estimates struct{ mean, p50, p99 []float64 }

func bootstrap(runs [][]float64, random *rand.Rand) estimates {
	var e estimates
	sorted := slices.Sorted(slices.Values(slices.Concat(runs...)))
	if len(sorted) == 0 {
		return e
	}
	places := make([][]int, len(runs)) // of a run's values among all: what is drawn is counted there, not sorted
	for i, run := range runs {
		for _, value := range run {
			place, _ := slices.BinarySearch(sorted, value)
			places[i] = append(places[i], place)
		}
	}
	times := make([]int, len(sorted))
	for range resamplings {
		clear(times)
		n := 0
		for range places {
			run := places[random.IntN(len(places))]
			for range run {
				times[run[random.IntN(len(run))]]++
			}
			n += len(run)
		}
		if n == 0 {
			continue
		}
		total := 0.0
		for place, count := range times {
			total += float64(count) * sorted[place]
		}
		e.mean = append(e.mean, total/float64(n))
		e.p50 = append(e.p50, quantileOfCounted(sorted, times, n, .5))
		e.p99 = append(e.p99, quantileOfCounted(sorted, times, n, .99))
	}
	return e
}

// quantileOfCounted is the quantile of n values, each of the sorted ones being there so many times.
func quantileOfCounted(sorted []float64, times []int, n int, q float64) float64 {
	place := q * float64(n-1)
	below, before := int(place), 0
	for i, count := range times {
		if before += count; before <= below {
			continue
		}
		low, high := sorted[i], sorted[i]
		if below+1 >= before { // the next one is another
			for j := i + 1; j < len(times); j++ {
				if times[j] > 0 {
					high = sorted[j]
					break
				}
			}
		}
		return low + (place-float64(below))*(high-low)
	}
	return math.NaN()
}

func interval(values []float64, digits int) [2]float64 {
	sorted := slices.Sorted(slices.Values(values))
	return [2]float64{Round(Quantile(sorted, .025), digits), Round(Quantile(sorted, .975), digits)}
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

func distribution(runs [][]float64, e estimates) *Distribution {
	all := slices.Sorted(slices.Values(slices.Concat(runs...)))
	if len(all) == 0 {
		return nil
	}
	us := func(q float64) float64 { return Round(Quantile(all, q), 1) }
	d := &Distribution{N: len(all), MeanUs: Round(mean(all), 1), P50Us: us(.5), P95Us: us(.95), P99Us: us(.99), P999Us: us(.999), MaxUs: us(1)}
	if len(e.p50) > 0 {
		d.P50CIUs, d.P99CIUs, d.MeanCIUs = interval(e.p50, 1), interval(e.p99, 1), interval(e.mean, 1)
	}
	return d
}

// lcLatencies are a case's latencies by run, of all its LC tasks.
func (c *EvaluationCase) lcLatencies() (fromArrival, fromSubmission [][]float64) {
	for _, run := range c.Runs {
		var arrival, submission []float64
		for _, t := range run.Of("lc") {
			a, s := t.Latencies(run.Length())
			arrival, submission = append(arrival, a...), append(submission, s...)
		}
		if len(arrival) > 0 {
			fromArrival, fromSubmission = append(fromArrival, arrival), append(fromSubmission, submission)
		}
	}
	return fromArrival, fromSubmission
}

// perSecond is the throughput of a role's tasks together.
func (c *EvaluationCase) perSecond(role string) float64 {
	var completed, seconds float64
	for _, run := range c.Runs {
		seconds += run.Seconds
		for _, t := range run.Of(role) {
			completed += t.Completed
		}
	}
	return completed / seconds
}

// Sum is that of all values.
func Sum(values []float64) float64 {
	total := 0.0
	for _, value := range values {
		total += value
	}
	return total
}

// Summarise makes the figures of all cases from their runs.
func (e *Evaluation) Summarise() {
	find := func(workload, system string) *EvaluationCase {
		if c := e.Of(workload, system); c != nil && len(c.Runs) > 0 {
			return c
		}
		return nil
	}
	estimated, alone := make([]estimates, len(e.Cases)), map[string]estimates{}
	for i := range e.Cases {
		c := &e.Cases[i]
		if len(c.Runs) == 0 {
			continue
		}
		fromArrival, fromSubmission := c.lcLatencies()
		// A seed of its own makes a report the same each time.
		estimated[i] = bootstrap(fromArrival, workload.Seed(c.Case, c.System))
		c.LC = distribution(fromArrival, estimated[i])
		c.LCSubmitted = distribution(fromSubmission, estimates{})
		c.Throughput = &Throughput{LC: Round(c.perSecond("lc"), 2), BE: Round(c.perSecond("be"), 2)}
		c.CPU, c.Queued, c.Unserved = c.sumUp()
		if c.System == LCAlone {
			alone[c.Case] = estimated[i]
		}
	}
	for i := range e.Cases {
		c := &e.Cases[i]
		c.LCAlone, c.Ratio, c.BE = nil, nil, nil
		c.Target, c.Pass, c.Missed = "", nil, ""
		lc, be, plain := find(c.Case, LCAlone), find(c.Case, BEAlone), find(c.Case, "default")
		if len(c.Runs) == 0 || c.System == LCAlone {
			continue
		}
		if lc != nil && lc.LC != nil && c.LC != nil {
			c.LCAlone = lc.LC
			ratios := func(now, alone []float64) [2]float64 {
				all := make([]float64, min(len(now), len(alone)))
				for j := range all {
					all[j] = now[j] / alone[j]
				}
				return interval(all, 3)
			}
			c.Ratio = &Ratios{Mean: Round(c.LC.MeanUs/lc.LC.MeanUs, 3), P50: Round(c.LC.P50Us/lc.LC.P50Us, 3),
				P99: Round(c.LC.P99Us/lc.LC.P99Us, 3), MeanCI: ratios(estimated[i].mean, alone[c.Case].mean), P99CI: ratios(estimated[i].p99, alone[c.Case].p99)}
			if lc.Throughput.LC > 0 {
				c.Throughput.LCOfAlone = Round(c.Throughput.LC/lc.Throughput.LC, 3)
			}
		}
		if be != nil {
			if now, without := c.perSecond("be"), be.perSecond("be"); without > 0 {
				c.BE = &Share{Share: Round(now/without, 3), Alone: Round(without, 2), Now: Round(now, 2), Unit: "requests/s"}
			}
		}
		if c.System == BEAlone {
			continue
		}
		if plain != nil {
			if plain.Throughput.BE > 0 {
				c.Throughput.BEOfDefault = Round(c.Throughput.BE/plain.Throughput.BE, 3)
			}
			if total := plain.Throughput.LC + plain.Throughput.BE; total > 0 {
				c.Throughput.OfDefault = Round((c.Throughput.LC+c.Throughput.BE)/total, 3)
			}
		}
		c.judge()
	}
}

// Targets, on the workloads that they are claimed for.
const (
	p99Limit, hintedP99Limit = 1.25, 1.10
	hintedMeanLimit          = 1.024 // the paper's figure, on its hardware
	throughputLimit          = 0.90
)

// HasTarget says whether there is a target for a case.
func (c *EvaluationCase) HasTarget() bool {
	return c.Claimed && (c.System == "gpreempt" || c.System == "gpreempt-hints")
}

func (c *EvaluationCase) judge() {
	if !c.HasTarget() || c.Ratio == nil || c.Throughput.OfDefault == 0 {
		return
	}
	var missed []string
	atMost := func(what string, value, limit float64, ci [2]float64) {
		if value > limit {
			missed = append(missed, fmt.Sprintf("%s %.3f x alone (95 %%: %.3f to %.3f), %.3f above %g", what, value, ci[0], ci[1], value-limit, limit))
		}
	}
	if c.System == "gpreempt" {
		c.Target = "lc p99 <= 1.25 x alone, total >= 0.90 of default"
		atMost("p99", c.Ratio.P99, p99Limit, c.Ratio.P99CI)
	} else {
		c.Target = "lc p99 <= 1.10 x alone, mean <= 1.024 x alone, total >= 0.90 of default"
		atMost("p99", c.Ratio.P99, hintedP99Limit, c.Ratio.P99CI)
		atMost("mean", c.Ratio.Mean, hintedMeanLimit, c.Ratio.MeanCI)
	}
	if c.Throughput.OfDefault < throughputLimit {
		missed = append(missed, fmt.Sprintf("total %.3f of default, %.3f below %.2f", c.Throughput.OfDefault, throughputLimit-c.Throughput.OfDefault, throughputLimit))
	}
	pass := len(missed) == 0
	c.Pass, c.Missed = &pass, strings.Join(missed, ", ")
}

func (c *EvaluationCase) sumUp() (*CPU, int, int) {
	var lc, be, requests, seconds float64
	queued, unserved := 0, 0
	c.Identical = nil
	for _, run := range c.Runs {
		seconds += run.Seconds
		for _, t := range run.Tasks {
			if t.Identical != nil && (c.Identical == nil || *c.Identical) {
				c.Identical = t.Identical
			}
		}
		for _, t := range run.Of("be") {
			be += t.CPUSeconds
		}
		for _, t := range run.Of("lc") {
			lc += t.CPUSeconds
			requests += float64(t.Offered - t.Unserved)
			queued += t.queued()
			unserved += t.Unserved
		}
	}
	cpu := &CPU{BECores: Round(be/seconds, 3)}
	if requests > 0 {
		cpu.LCMs = Round(1000*lc/requests, 3)
	}
	return cpu, queued, unserved
}

// Round rounds to so many digits after the point.
func Round(value float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(value*scale) / scale
}
