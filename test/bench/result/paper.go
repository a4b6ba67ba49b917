package result

import (
	"fmt"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Throughput counts requests that ended within the time of a run.
type Throughput struct {
	LC float64 `json:"lc_per_s"`
	BE float64 `json:"be_per_s"`
	// Relative to default time slicing, which is no preemption.
	BEOfDefault float64 `json:"be_of_default,omitempty"`
	OfDefault   float64 `json:"total_of_default,omitempty"` // LC and BE requests
}

// Targets of suite paper, on the workloads that they are claimed for.
const (
	p99Limit, hintedP99Limit = 1.25, 1.10
	hintedMeanLimit          = 1.024 // the paper's figure, on its hardware
	throughputLimit          = 0.90
)

// IsClaimed says whether suite paper has a target for a row.
func (row *Row) IsClaimed() bool {
	return workload.Label(row.Case) != "" && (row.System == "gpreempt" || row.System == "gpreempt-hints")
}

// JudgePaper gives the row of a workload its target, and says by how much that was missed.
func (row *Row) JudgePaper() {
	if !row.IsClaimed() || row.Ratio == nil || row.Throughput == nil || row.Throughput.OfDefault == 0 {
		return
	}
	var missed []string
	atMost := func(what string, value, limit float64, ci [2]float64) {
		if value > limit {
			missed = append(missed, fmt.Sprintf("%s %.3f x alone (95 %%: %.3f to %.3f), %.3f above %g", what, value, ci[0], ci[1], value-limit, limit))
		}
	}
	target := "lc p99 <= 1.25 x alone, total >= 0.90 of default"
	if row.System == "gpreempt" {
		atMost("p99", row.Ratio.P99, p99Limit, row.Ratio.P99CI)
	} else {
		target = "lc p99 <= 1.10 x alone, mean <= 1.024 x alone, total >= 0.90 of default"
		atMost("p99", row.Ratio.P99, hintedP99Limit, row.Ratio.P99CI)
		atMost("mean", row.Ratio.Mean, hintedMeanLimit, row.Ratio.MeanCI)
	}
	if total := row.Throughput.OfDefault; total < throughputLimit {
		missed = append(missed, fmt.Sprintf("total %.3f of default, %.3f below %.2f", total, throughputLimit-total, throughputLimit))
	}
	*row = row.Judged(target, len(missed) == 0)
	row.Missed = strings.Join(missed, ", ")
}
