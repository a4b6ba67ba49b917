package main

import "strings"

// remembered is how far back sparklines go.
const remembered = uint64(60e9) // nanoseconds

// history is a part of the time, from 0 to 1, over the last minute.
type history []stretch

// stretch is what a sample said of the time since the one before.
type stretch struct {
	fromNs, toNs uint64
	value        float64
}

// add adds a sample, and forgets those that are too old.
func (h *history) add(fromNs, toNs uint64, value float64) {
	for len(*h) > 0 && (*h)[0].toNs+remembered <= toNs {
		*h = (*h)[1:]
	}
	if fromNs < toNs {
		*h = append(*h, stretch{fromNs, toNs, min(max(value, 0), 1)})
	}
}

// Characters of sparklines, from 0 to 1, and for terminals that show only ASCII.
var (
	blocks = []rune("▁▂▃▄▅▆▇█")
	dots   = []rune("_.-=+*%#")
)

// sparkline draws the last minute, each character the mean over its part of it. A part without a value is blank.
func (h history) sparkline(nowNs uint64, width int, ramp []rune) string {
	var line strings.Builder
	begin := float64(nowNs) - float64(remembered)
	step := float64(remembered) / float64(width)
	for i := range width {
		from, to := begin+float64(i)*step, begin+float64(i+1)*step
		known, sum := 0.0, 0.0
		for _, s := range h {
			if part := min(float64(s.toNs), to) - max(float64(s.fromNs), from); part > 0 {
				known += part
				sum += part * s.value
			}
		}
		if known == 0 {
			line.WriteRune(' ')
		} else {
			line.WriteRune(ramp[min(int(sum/known*float64(len(ramp))), len(ramp)-1)])
		}
	}
	return line.String()
}
