package result

import "fmt"

// ServingSuite is the name of the suite whose rows have Serving.
const ServingSuite = "serving"

// ServingUnderMPS is a system of the suite: the library, where all are clients of an MPS server. With an objective -2x and the like follow.
const ServingUnderMPS = "gpreempt-mps"

// The same server and the same best-effort work, one after the other: what MPS takes by itself, and what MPS and the library take.
const (
	ServingAloneOfMPS    = "mps-alone"
	ServingAloneUnderMPS = "gpreempt-mps-alone"
)

// IsServedAlone says whether nothing ran beside the server.
func IsServedAlone(system string) bool {
	return system == LCAlone || system == ServingAloneOfMPS || system == ServingAloneUnderMPS
}

// Serving is what became of the requests to a model server, beside the times per output token, which are the row's LC.
type Serving struct {
	First  *Latency `json:"ttft"` // to the first token
	Failed int      `json:"failed,omitempty"`

	FirstRatio *Ratio `json:"ttft_ratio,omitempty"` // to the same server alone

	// Under an objective, and of systems that are compared with it: the bound for the time per output token, and the part of requests
	// within it.
	BoundMs float64 `json:"bound_ms,omitempty"`
	Held    float64 `json:"held,omitempty"`

	Steps *Steps `json:"steps,omitempty"`
}

// Steps is what the library counted in the server while the requests were served, and how many steps the server itself counted.
type Steps struct {
	Found uint64 `json:"found"`
	Made  uint64 `json:"made"` // 0: the server does not say

	OpenMs   float64 `json:"open_ms"`   // that the server's windows were open: time slicing can leave the rest to best effort
	ServedMs float64 `json:"served_ms"` // from the first request to the last answer
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
