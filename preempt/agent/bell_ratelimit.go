package agent

import (
	"math/bits"
	"time"
)

const (
	hearEvery  = uint64(5 * time.Millisecond)
	hearAtOnce = 64
)

// deaf returns the slots that the agent does not listen to now, and how long until it listens to the first of them.
func (h *hearing) deaf(now uint64) (slots uint64, until time.Duration) {
	until = heartbeat
	for slot, due := range h.due {
		if ahead := due - min(due, now); ahead > hearAtOnce*hearEvery {
			slots |= 1 << slot
			until = min(until, time.Duration(ahead-hearAtOnce*hearEvery))
		}
	}
	return slots, until
}

// heard takes note of bells that made the agent look.
func (h *hearing) heard(slots, now uint64) {
	for ; slots != 0; slots &= slots - 1 {
		slot := bits.TrailingZeros64(slots)
		h.due[slot] = max(h.due[slot], now) + hearEvery
	}
}
