package learner

import (
	"encoding/json"
	"io"
)

// Request is what became of the hints for a request, a line of the file that hints.log names.
type Request struct {
	AtNs    uint64 `json:"at_ns"`             // CLOCK_MONOTONIC
	HeldUs  int64  `json:"held_us,omitempty"` // for so long a hint had kept the GPU for it
	Ready   bool   `json:"ready,omitempty"`   // and the GPU was there
	DueUs   *int64 `json:"due_us,omitempty"`  // none did: in so long the next one was due; negative: it should have been carried out
	Dropped string `json:"dropped,omitempty"` // the latest hint since the request before that came to nothing: why
}

// In the order of enum gp_hint_dropped.
var dropped = [...]string{"", "doubtful", "off", "unpaid", "overlaps", "nobody", "wrong"}

func request(atNs, heldNs, dueNs uint64, ready bool, why int) Request {
	r := Request{AtNs: atNs, Ready: ready}
	if why > 0 && why < len(dropped) {
		r.Dropped = dropped[why]
	}
	if heldNs != 0 {
		r.HeldUs = int64(atNs-heldNs) / 1000
	} else if dueNs != 0 {
		us := int64(dueNs-atNs) / 1000
		r.DueUs = &us
	}
	return r
}

func write(log io.Writer, request Request) {
	if log == nil {
		return
	}
	if line, err := json.Marshal(request); err == nil {
		_, _ = log.Write(append(line, '\n'))
	}
}
