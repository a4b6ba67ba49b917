// Package bench measures how a latency-critical (LC) process fares beside best-effort (BE) ones on this machine's GPU:
// alone, with the driver's default time slicing, and under the library. Suites plan, run, judge and report; the processes
// that use the GPU are workers, which serve the protocol that PROTOCOL.md describes.
package bench

import (
	"errors"
	"slices"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// measured is the least that a case is expected to do.
const measured = "measured"

type lcResult struct {
	StartNs     uint64   `json:"start_ns"`
	EndNs       uint64   `json:"end_ns"`
	LatenciesNs []uint64 `json:"latencies_ns"`
}

type beResult struct {
	TimesNs []uint64 `json:"times_ns"`
	Counts  []uint64 `json:"counts"`
}

type launchResult struct {
	LeastNs float64 `json:"least_ns"`
	MoreNs  float64 `json:"more_ns"` // with an objective
}

type idleResult struct {
	CPUNs  uint64 `json:"cpu_ns"`
	WallNs uint64 `json:"wall_ns"`
	RSSKb  uint64 `json:"rss_kb"`
}

// completed is the number of kernels that a BE process had completed at a time, between two samples in
// proportion.
func (r *beResult) completed(at uint64) float64 {
	after, exact := slices.BinarySearch(r.TimesNs, at)
	switch {
	case exact:
		return float64(r.Counts[after])
	case len(r.TimesNs) == 0:
		return 0
	case after == 0:
		return float64(r.Counts[0])
	case after == len(r.TimesNs):
		return float64(r.Counts[after-1])
	}
	before := after - 1
	part := float64(at-r.TimesNs[before]) / float64(r.TimesNs[after]-r.TimesNs[before])
	return float64(r.Counts[before]) + part*float64(r.Counts[after]-r.Counts[before])
}

// rate is in kernels a second over an interval.
func (r *beResult) rate(startNs, endNs uint64) float64 {
	return (r.completed(endNs) - r.completed(startNs)) / (float64(endNs-startNs) / 1e9)
}

var errNothingCompleted = errors.New("the BE process completed nothing")

// ownRate is the rate over all of a process's samples.
func (r *beResult) ownRate() (float64, error) {
	if len(r.TimesNs) < 2 {
		return 0, errNothingCompleted
	}
	return r.rate(r.TimesNs[0], r.TimesNs[len(r.TimesNs)-1]), nil
}

// mean is the mean latency in nanoseconds.
func (r *lcResult) mean() float64 {
	var sum uint64
	for _, ns := range r.LatenciesNs {
		sum += ns
	}
	return float64(sum) / float64(len(r.LatenciesNs))
}

// Units of BE rates.
const (
	kernelsPerSecond = "kernels/s"
	stepsPerSecond   = "steps/s"
)

// share is the rate of BE, of its rate alone and of what the requests beside it leave. Where nobody makes way for them
// they mostly wait for BE: what they take alone counts there.
func share(rate, beAlone float64, lc, alone *lcResult, makesWay bool) *result.Share {
	mean := lc.mean()
	if !makesWay {
		mean = alone.mean()
	}
	s := rateOf(rate, beAlone, kernelsPerSecond)
	s.Share = 0
	if busy := mean * float64(len(lc.LatenciesNs)) / float64(lc.EndNs-lc.StartNs); busy < 1 {
		s.Share = result.Round(rate/beAlone/(1-busy), 3)
	}
	return s
}

// rateOf is a rate of BE, and its part of the rate alone.
func rateOf(rate, beAlone float64, unit string) *result.Share {
	digits := 2
	if unit == stepsPerSecond { // there are few
		digits = 3
	}
	return &result.Share{Share: result.Round(rate/beAlone, 4), Alone: result.Round(beAlone, digits), Now: result.Round(rate, digits), Unit: unit}
}
