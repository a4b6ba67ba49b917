package bench

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A drift of the machine that both builds have in common drops out, and an interval holds the ratio.
func TestCompareRounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var before, same, slower []float64
	for range 40 {
		machine := 1000 * (1 + random.Float64()) // drifts
		noise := func() float64 { return 1 + .02*(random.Float64()-.5) }
		before, same, slower = append(before, machine*noise()), append(same, machine*noise()), append(slower, machine*1.05*noise())
	}
	verdict := func(p result.Paired, moreIsBetter bool) string {
		pass, undecided := p.Judge(moreIsBetter)
		switch {
		case pass == nil:
			return undecided
		case undecided != "":
			return "two verdicts"
		case *pass:
			return "reached"
		}
		return "missed"
	}
	for _, test := range []struct {
		name                     string
		before, now              []float64
		low, high, widest        float64
		lessBetter, moreIsBetter string
	}{
		{"the same", before, same, 1, 1, .02, "reached", "reached"},
		{"5 % more", before, slower, 1.05, 1.05, .02, "missed", "reached"},
		{"5 % less", slower, before, 1 / 1.05, 1 / 1.05, .02, "reached", "missed"},
		{"one round", []float64{10}, []float64{11}, 1.1, 1.1, 0, "of 1 rounds", "of 1 rounds"},
		{"5 rounds", before[:5], before[:5], 1, 1, 0, "of 5 rounds", "of 5 rounds"},
		{"6 rounds", before[:6], before[:6], 1, 1, 0, "reached", "reached"},
		// One lucky round of seven hides no cost.
		{"14 % more but once", slices.Repeat([]float64{100}, 7), []float64{95, 110, 112, 114, 115, 118, 133}, 1.14, 1.14, .4, "95 %: 0.9500 to 1.3300", "95 %: 0.9500 to 1.3300"},
		{"surely more, by little", slices.Repeat([]float64{1000}, 7), []float64{1002, 1003, 1004, 1005, 1006, 1007, 1008}, 1.005, 1.005, .01, "reached", "reached"},
		{"perhaps more", slices.Repeat([]float64{1000}, 7), []float64{1002, 1003, 1004, 1005, 1006, 1007, 1012}, 1.005, 1.005, .011, "95 %: 1.0020 to 1.0120", "reached"},
	} {
		p := compareRounds(test.before, test.now)
		if p.Rounds != len(test.now) || p.CI[0] > test.low || p.CI[1] < test.high || p.CI[1]-p.CI[0] > test.widest {
			t.Errorf("%s: %+v", test.name, p)
		}
		if less, more := verdict(p, false), verdict(p, true); less != test.lessBetter || more != test.moreIsBetter {
			t.Errorf("%s: %+v: %s where less is better, %s where more is", test.name, p, less, more)
		}
	}
}

func TestPairedOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := Options{Suite: PairedSuite, Only: []string{"launch-be", "launch-be-blp", "lc-1x40us"}, Library: builtLibrary(t), Progress: &progress, Repeats: 2, Requests: 20, Folder: t.TempDir(), Busy: true,
		tests: forTests{environment: simulated(t)}}
	suite := suiteOfCases(t, PairedSuite)
	if _, err := suite.measure(context.Background(), options); err == nil || !strings.Contains(err.Error(), "--against") {
		t.Errorf("with one build: %v", err)
	}
	options.Against = "/none/libgpreempt.so"
	if _, err := suite.measure(context.Background(), options); err == nil || !strings.Contains(err.Error(), "/none/libgpreempt.so") {
		t.Errorf("with a build that there is not: %v", err)
	}
	options.Against = options.Library
	report, err := suite.measure(context.Background(), options)
	if err != nil || len(report.Failed()) != 0 || len(report.Cases) != 3 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for _, row := range report.Cases {
		if p := row.Paired; p == nil || p.Rounds != 2 || p.Before <= 0 || p.Now <= 0 || p.Ratio != *row.Value || p.CI[0] > p.Ratio || p.CI[1] < p.Ratio {
			t.Errorf("%+v, %+v", row, row.Paired)
		}
	}
	if !slices.Equal([]string{report.Cases[0].Case, report.Cases[1].Case, report.Cases[2].Case}, options.Only) {
		t.Errorf("%+v", report.Cases)
	}
}
