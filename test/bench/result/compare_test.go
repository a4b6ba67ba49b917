package result

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

// The interval of a quantile holds it in 95 of 100 samples at least, whatever the distribution; at the end of few samples it may be cut off.
func TestOrderInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const rounds = 1000
	for _, test := range []struct {
		n        int
		q, least float64
	}{{6, .5, .95}, {300, .5, .95}, {300, .99, .925}, {1000, .99, .95}, {1000, .999, .6}} {
		held := 0
		for range rounds {
			sample := make([]float64, test.n)
			for i := range sample {
				sample[i] = 1000 * random.Float64() // the quantile is 1000 q
			}
			slices.Sort(sample)
			ci := orderInterval(sample, test.q)
			if ci[0] <= 1000*test.q && 1000*test.q <= ci[1] {
				held++
			}
		}
		if part := float64(held) / rounds; part < test.least-.02 {
			t.Errorf("%g of %d: held in %.3f, want %.3f", test.q, test.n, part, test.least)
		}
	}
	if ci := orderInterval([]float64{1, 2, 3, 4, 5}, .5); ci != [2]float64{} {
		t.Errorf("of five: %v", ci)
	}
	for _, test := range []struct {
		n        int
		p, level float64
		want     int
	}{{10, .5, .025, 2}, {10, .5, .975, 8}, {300, .99, .025, 293}, {300, .99, .975, 300}, {1000000, .5, .5, 500000}} {
		if k := binomialQuantile(test.n, test.p, test.level); k != test.want {
			t.Errorf("%+v: %d", test, k)
		}
	}
}

// latencies are those of requests whose logarithms are normal, in a run that is up to some per cent slower or faster as a whole; tail makes
// the slowest of 20 longer.
func latencies(random *rand.Rand, n int, spread, tail float64) *Latency {
	run := math.Exp(.01 * random.NormFloat64())
	ns := make([]uint64, n)
	for i := range ns {
		at := random.NormFloat64()
		us := 1000 * run * math.Exp(spread*at)
		if at > 1.645 {
			us *= tail
		}
		ns[i] = uint64(1000 * us)
	}
	return LatencyOf(ns)
}

// The same is not worse, and a p99 that is worse by 30 % is found, if what looks worse is measured twice; also against a file that has no
// intervals.
func TestCompareKnowsNoiseFromChange(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, random *rand.Rand, spread, tail float64, intervals bool) string {
		alone, now := latencies(random, 600, spread/2, 1), latencies(random, 600, spread, tail)
		row := Row{Case: "a", System: "gpreempt", LC: now, LCAlone: alone, Ratio: RatioOf(now, alone)}
		if !intervals {
			row.Ratio = &Ratio{P50: row.Ratio.P50, P99: row.Ratio.P99}
		}
		r := Report{Head: Head{Schema: 1, Benchmark: "quick"}, Cases: []Row{row}}
		path := filepath.Join(folder, name)
		if err := r.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const seeds = 100
	for _, test := range []struct {
		what                string
		spread, tail        float64
		intervals           bool
		leastWorse, atWorst int
	}{
		{"the same", .1, 1, true, 0, 1},
		{"the same, widely spread", .3, 1, true, 0, 1},
		{"the same, the first without intervals", .3, 1, false, 0, 1},
		{"30 % worse", .1, 1.3, true, seeds, seeds},
		{"30 % worse, the first without intervals", .1, 1.3, false, seeds, seeds},
		{"30 % worse, widely spread", .2, 1.3, true, 95, seeds},
	} {
		once, worse := 0, 0
		for seed := range uint64(seeds) {
			random := rand.New(rand.NewPCG(seed, 1))
			before := write("before.json", random, test.spread, 1, test.intervals)
			compare := func() *Comparison {
				comparison, err := Compare(before, write("after.json", random, test.spread, test.tail, true), Tolerance)
				if err != nil {
					t.Fatal(err)
				}
				return comparison
			}
			comparison := compare()
			if comparison.Worse() == 0 {
				continue
			}
			once++
			if comparison.Confirm(compare()); comparison.Worse() > 0 {
				worse++
			}
		}
		t.Logf("%s: worse in %d of %d, and again in %d", test.what, once, seeds, worse)
		if worse < test.leastWorse || worse > test.atWorst {
			t.Errorf("%s: worse in %d of %d, want %d to %d", test.what, worse, seeds, test.leastWorse, test.atWorst)
		}
	}
}

// What looked worse counts if it does again.
func TestConfirm(t *testing.T) {
	first := func() *Comparison {
		return &Comparison{Lines: []Difference{{Case: "a, role lc", System: "s", Figure: "f", Worse: true, row: "a"}, {Case: "b", System: "s", Figure: "f", Worse: true, row: "b"},
			{Case: "b", System: "s", Figure: "g", Worse: true, row: "b"}, {Case: "c", System: "s", Figure: "f", row: "c"}}}
	}
	c := first()
	if rows := c.WorseRows(); !slices.Equal(rows, []string{"a", "b"}) {
		t.Errorf("%v", rows)
	}
	again := &Comparison{Lines: []Difference{{Case: "a, role lc", System: "s", Figure: "f", Worse: true, row: "a"}, {Case: "b", System: "s", Figure: "f", row: "b"},
		{Case: "b", System: "s", Figure: "g", row: "b"}, {Case: "c", System: "s", Figure: "f", Worse: true, row: "c"}}}
	if unconfirmed := c.Confirm(again); unconfirmed != 0 || c.Worse() != 1 || !c.Lines[0].Worse {
		t.Errorf("%d, %+v", unconfirmed, c)
	}
	c = first()
	if unconfirmed := c.Confirm(&Comparison{Lines: again.Lines[:1]}); unconfirmed != 2 || c.Worse() != 1 {
		t.Errorf("%d, %+v", unconfirmed, c)
	}
}

// Rounds differ by more than their requests tell: the interval of all holds each.
func TestIntervalsOfRounds(t *testing.T) {
	alone := &Latency{P50Us: 100, P99Us: 200, P50CIUs: [2]float64{100, 100}, P99CIUs: [2]float64{200, 200}}
	round := func(p50, p99 float64) Row {
		return Row{LC: &Latency{N: 10, P50Us: p50, P99Us: p99, P50CIUs: [2]float64{p50 - 10, p50 + 10}, P99CIUs: [2]float64{p99 - 20, p99 + 20}}, BE: &Share{}}
	}
	rounds := []Row{round(200, 400), round(150, 500), round(210, 300)}
	row := OfRounds(rounds, alone)
	if row.LC.P50CIUs != [2]float64{140, 220} || row.LC.P99CIUs != [2]float64{280, 520} || row.Ratio.P99CI != [2]float64{1.4, 2.6} {
		t.Errorf("%+v, %+v", row.LC, row.Ratio)
	}
	rounds[1].LC.P99CIUs = [2]float64{}
	if row := OfRounds(rounds, alone); row.LC.P99CIUs != [2]float64{} || row.Ratio.P99CI != [2]float64{} {
		t.Errorf("one has none: %+v, %+v", row.LC, row.Ratio)
	}
}
