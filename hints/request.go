package hints

import (
	"encoding/json"

	"golang.org/x/sys/unix"
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

// requestLog is the file, or -1.
type requestLog int

func openRequestLog(path string) requestLog {
	if path == "" {
		return -1
	}
	// Not an os.File: nothing of the runtime's poller is wanted in somebody else's process.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1
	}
	return requestLog(fd)
}

func (r requestLog) write(request Request) {
	if r < 0 {
		return
	}
	line, err := json.Marshal(request)
	if err != nil {
		return
	}
	_, _ = unix.Write(int(r), append(line, '\n'))
}
