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
		{"for longer", 2000, 0, 0, least},
	} {
		if w.note(windowsOf(c.short, c.middle, c.long)); w.us(least, most) != c.us {
			t.Errorf("%s: %d us, want %d: %v", c.name, w.us(least, most), c.us, w.recent)
		}
	}
	if w.us(3000, 1000) != 1000 {
		t.Errorf("with a shortest one above the longest: %d us", w.us(3000, 1000))
	}
}

// A busy service closes thousands of windows between two looks.
func TestSliceGoesByPartsOfTheWindows(t *testing.T) {
	for _, c := range []struct{ short, long, us uint64 }{{970, 30, 2048}, {2970, 30, 2048}, {9500, 500, 2048}, {880, 120, 16000}, {8800, 1200, 16000}} {
		var w windowTimes
		for i := range uint64(200) {
			w.note(windowsOf((i+1)*c.short, 0, (i+1)*c.long))
		}
		if w.us(2048, 16000) != c.us {
			t.Errorf("%d short windows and %d long ones at a time: %d us, want %d", c.short, c.long, w.us(2048, 16000), c.us)
		}
	}
}

func TestSliceOfWhoHasNoWindowsIsTheShortest(t *testing.T) {
	const now = 10 * endlessNs
	a := claimed(t)
	opened := &a.segment.Line(a.slot).WindowOpenedNs
	for _, c := range []struct {
		name   string
		lower  uint64
		opened uint64
		us     uint64
	}{
		{"windows close", 2, 0, 16000},
		{"one is open", 2, now - endlessNs, 16000},
		{"it is without an end", 2, now - endlessNs - 1, 2048},
		{"later", 2, 0, 2048},
	} {
		if c.us == 16000 {
			a.own().Times.Windows.Buckets[20].Add(leastWindows)
		}
		opened.Store(c.opened)
		if a.noteWindows(peers{lower: c.lower}, now); a.windows.us(2048, 16000) != c.us {
			t.Errorf("%s: %d us, want %d", c.name, a.windows.us(2048, 16000), c.us)
		}
	}
	a.own().Times.Windows.Buckets[20].Add(leastWindows)
	if a.noteWindows(peers{lower: 2}, now); a.windows.us(2048, 16000) != 16000 {
		t.Errorf("windows close again: %d us", a.windows.us(2048, 16000))
	}
	if a.noteWindows(peers{}, now); a.windows.us(2048, 16000) != 2048 {
		t.Errorf("nobody is below: %d us", a.windows.us(2048, 16000))
	}
}

// A slice stays within its bounds, whatever a process that shares the segment writes there.
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
