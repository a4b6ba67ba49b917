package result

import (
	"fmt"
)

// ServingSuite is the name of the suite whose rows have Serving.
const ServingSuite = "serving"

// ServingUnderMPS is a system of the suite: the library, where all are clients of an MPS server. With an objective -2x and the like follow.
const ServingUnderMPS = "gpreempt-mps"

// Serving is what became of the requests to a model server, beside the times per output token, which are the row's LC.
type Serving struct {
	First   *Latency `json:"ttft"`    // to the first token
	Between *Latency `json:"itl"`     // between tokens
	Goodput float64  `json:"goodput"` // requests a second with a TTFT up to 200 ms and a TPOT up to 25 ms
	Failed  int      `json:"failed,omitempty"`

	FirstRatio *Ratio `json:"ttft_ratio,omitempty"` // to the same server alone

	// Under an objective, and of systems that are compared with it: the bound for the time per output token, and the part of requests
	// within it.
	BoundMs float64 `json:"bound_ms,omitempty"`
	Held    float64 `json:"held,omitempty"`

	Steps *Steps `json:"steps,omitempty"`

	Requests []Answered `json:"requests,omitempty"` // in partial results only, by their arrival
}

// Answered is a request and when its tokens came. Times are in milliseconds, the arrival's since the first one's.
type Answered struct {
	At      float64 `json:"at"`
	First   float64 `json:"ttft"`
	Token   float64 `json:"tpot"`
	Longest float64 `json:"longest"` // between tokens
}

// Steps is what the library counted in the server while the requests were served, and how many steps the server itself counted.
type Steps struct {
	Found  uint64  `json:"found"`
	Made   uint64  `json:"made"` // 0: the server does not say
	Means  uint64  `json:"means"`
	Over   uint64  `json:"over"` // of the means, those above the objective
	LentMs float64 `json:"lent_ms"`
	Slots  uint64  `json:"slots"`

	// Of the server's windows: how many opened, of these how many beside work of best effort, and how long they were open. The GPU's
	// other time is what time slicing can leave to best effort.
	Windows  uint64  `json:"windows"`
	Switches uint64  `json:"switches"`
	OpenMs   float64 `json:"open_ms"`
	ServedMs float64 `json:"served_ms"` // from the first request to the last answer
	Holds    uint64  `json:"holds"`
	Collided uint64  `json:"holds_collided"` // times they made room for kernels that need every SM
}

// Left is the part of the time in which no window was open; below 0 where several processes had one at once.
func (s *Steps) Left() float64 { return 1 - s.OpenMs/s.ServedMs }

// more is what people read of it in a table.
func (s *Serving) more() string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("TTFT p99 %.1f ms", s.First.P99Us/1000)
	if s.FirstRatio != nil {
		text += fmt.Sprintf(", %.2f x alone", s.FirstRatio.P99)
	}
	if s.BoundMs > 0 {
		text += fmt.Sprintf("; %.1f %% within %.1f ms", 100*s.Held, s.BoundMs)
	}
	if s.Steps != nil && s.Steps.Found > 0 {
		text += fmt.Sprintf("; %d steps found of %d", s.Steps.Found, s.Steps.Made)
	}
	return text
}
