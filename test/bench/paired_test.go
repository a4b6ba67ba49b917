package bench

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// What both builds have in common drops out, and an interval holds the ratio.
func TestCompareRounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var before, same, slower []float64
	for range 40 {
		machine := 1000 * (1 + random.Float64()) // drifts
		noise := func() float64 { return 1 + .02*(random.Float64()-.5) }
		before, same, slower = append(before, machine*noise()), append(same, machine*noise()), append(slower, machine*1.05*noise())
	}
	p := compareRounds(before, same)
	if p.Rounds != 40 || p.CI[0] > 1 || p.CI[1] < 1 || !pairedNotWorse(p, false) || !pairedNotWorse(p, true) {
		t.Errorf("the same: %+v", p)
	}
	p = compareRounds(before, slower)
	if p.CI[0] > 1.05 || p.CI[1] < 1.05 || p.CI[1]-p.CI[0] > .02 || pairedNotWorse(p, false) || !pairedNotWorse(p, true) {
		t.Errorf("5 %% more: %+v", p)
	}
	if p = compareRounds(slower, before); !pairedNotWorse(p, false) || pairedNotWorse(p, true) {
		t.Errorf("5 %% less: %+v", p)
	}
	if p = compareRounds([]float64{10}, []float64{11}); p.Rounds != 1 || p.Ratio != 1.1 || p.CI != [2]float64{1.1, 1.1} {
		t.Errorf("one round: %+v", p)
	}
}

func TestPairedOnTheSimulatedDriver(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := Options{Suite: PairedSuite, Only: []string{"launch-be", "lc-1x40us"}, Library: builtLibrary(t), Progress: &progress, Repeats: 2, Requests: 20, Folder: t.TempDir(), Busy: true,
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
	if err != nil || len(report.Failed()) != 0 || len(report.Cases) != 2 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for _, row := range report.Cases {
		if p := row.Paired; p == nil || p.Rounds != 2 || p.Before <= 0 || p.Now <= 0 || p.Ratio != *row.Value || p.CI[0] > p.Ratio || p.CI[1] < p.Ratio {
			t.Errorf("%+v, %+v", row, row.Paired)
		}
	}
	if !slices.Equal([]string{report.Cases[0].Case, report.Cases[1].Case}, options.Only) {
		t.Errorf("%+v", report.Cases)
	}
}
