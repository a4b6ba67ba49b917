package agent

import (
	"math"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// windowsOf is what a slot counts of so many windows up to 1 ms, 4 ms, and of more than 16 ms.
func windowsOf(short, middle, long uint64) *segment.Histogram[uint64] {
	h := &segment.Histogram[uint64]{}
	h.Buckets[7], h.Buckets[9], h.Buckets[14] = short, middle, long
	return h
}

func TestSliceIsAsLongAsWindows(t *testing.T) {
	const least, most = 2048, 16000
	var w windowTimes
	for _, c := range []struct {
		name                string
		short, middle, long uint64 // counted in all
		us                  uint64
	}{
		{"none is known", 0, 0, 0, least},
		{"seven long ones", 0, 0, leastWindows - 1, least},
		{"eight long ones", 0, 0, leastWindows, most},
		{"short ones, and one in eleven is long: it stays", 80, 0, leastWindows, most},
		{"one in twenty-six", 200, 0, leastWindows, least},
		{"middle ones", 200, 1000, leastWindows, 3906},
		{"another slot's, of which nothing is known", 0, 0, 0, 3906},
		{"short ones again", 1000, 0, 0, 3906},
		{"for a while", 2000, 0, 0, 3906},
		{"for longer", 3000, 0, 0, 3906},
		{"one in twenty is not", 4000, 0, 0, least},
	} {
		if w.note(windowsOf(c.short, c.middle, c.long)); w.us(least, most) != c.us {
			t.Errorf("%s: %d us, want %d: %v", c.name, w.us(least, most), c.us, w.recent)
		}
	}
	if w.us(3000, 1000) != 1000 {
		t.Errorf("with a shortest one above the longest: %d us", w.us(3000, 1000))
	}
}

// Whoever shares the segment may write anything there.
func TestSliceIsBounded(t *testing.T) {
	var w windowTimes
	for _, n := range []uint64{math.MaxUint64, 1, math.MaxUint64 - 1, 0, math.MaxUint64} {
		var h segment.Histogram[uint64]
		for i := range h.Buckets {
			h.Buckets[i] = n
		}
		if w.note(&h); w.total > mostWindows || w.us(2048, 16000) < 2048 || w.us(2048, 16000) > 16000 {
			t.Errorf("%d windows of each length: %d count, %d us", n, w.total, w.us(2048, 16000))
		}
	}
}
