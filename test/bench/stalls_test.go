package bench

import (
	"bytes"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

func TestStallTarget(t *testing.T) {
	alone := &result.Latency{P999Us: 2000, MaxUs: 5000}
	for _, test := range []struct {
		p999, most float64
		pass       bool
	}{{2300, 7000, true}, {2301, 7000, false}, {2300, 7001, false}} {
		if got := isWithoutStalls(&result.Latency{P999Us: test.p999, MaxUs: test.most}, alone); got != test.pass {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// A program of PyTorch, which a stand-in is for, is measured alone and beside BE, until there are requests enough.
func TestStalls(t *testing.T) {
	t.Parallel()
	python, torch := standInTorch(t)
	var progress bytes.Buffer
	options := simulatedOptions(t, result.StallsSuite, &progress, "load-50")
	options.tests.environment = append(options.tests.environment, torch...)
	options.Python, options.Requests = python, 60
	report, err := suiteOfCases(t, result.StallsSuite).Measure(t.Context(), options)
	if err != nil || len(report.Cases) != 2 || len(report.Failed()) > 0 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for i, row := range report.Cases {
		if row.LC == nil || row.LC.N < 60 || row.LC.P999Us < row.LC.P99Us || (row.Ratio != nil) != (i == 1) {
			t.Errorf("%+v\n%s", row, &progress)
		}
	}
}
