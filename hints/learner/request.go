package learner

import (
	"encoding/json"
	"io"
)

// Request is a line of the file that hints.log names: what happened to the hints for a request.
type Request struct {
	AtNs   uint64 `json:"at_ns"`             // CLOCK_MONOTONIC
	HeldUs int64  `json:"held_us,omitempty"` // how long a hint had kept the GPU for it; 0: none did
	Ready  bool   `json:"ready,omitempty"`   // the GPU was there already
	// If no hint did: in how long the next one was due; negative: it should have been carried out before.
	DueUs   *int64 `json:"due_us,omitempty"`
	Dropped string `json:"dropped,omitempty"` // why the latest hint since the request before came to nothing
}

// In the order of enum gp_hint_dropped.
var dropped = [...]string{"", "doubtful", "off", "unpaid", "overlaps", "nobody", "wrong", "away"}

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
