package result

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Causes, in the order in which they are asked for: the first that explains half of what a request took too long is it.
const (
	causeQueue   = "queue"        // it waited for a request before it, and took no longer itself than it may
	causeCPU     = "cpu"          // the thread got no processor, was late to submit, or went on late when its work was done
	causeSubmit  = "submission"   // calls that submit work took long though the thread ran or slept of its own accord
	causeExpired = "hold-limit"   // a hold ended by its own limit meanwhile
	causeCut     = "window-cut"   // the window was at its limit, so lower levels had the GPU
	causeOtherLC = "other-lc"     // another process of the same level had its window open
	causeStalled = "hold-stall"   // the host engine was found with another TSG while a hold ran
	causeSlice   = "be-timeslice" // a process of a lower level had work and a long timeslice
	causeGuest   = "guest"        // a process began or ended its use of the GPU, then or just before
	causeWatch   = "cpu-at-large" // the watch itself got no processor: the machine was short of them
	causeSeveral = "several"      // none of these alone, but the measured ones together
	CauseUnknown = "unknown"
)

const (
	shortStall  = 1000.0 // microseconds: less explains no stall
	DriverSlice = 2048   // microseconds, of a TSG that nobody set
	turnsWaited = 2      // a request waits for two turns of each of the others, if not all fits in one of its own
)

// StallsListed are in a result file, whatever their causes.
const StallsListed = 10

// Stall is what was seen of a request that took long.
type Stall struct {
	AtS       float64 `json:"at_s"` // its arrival, since the case began
	LatencyUs float64 `json:"latency_us"`
	UsualUs   float64 `json:"usual_us"` // the median: alone, where that is known
	Cause     string  `json:"cause"`

	WaitedUs       float64 `json:"waited_us,omitempty"`             // for the request before
	LateUs         float64 `json:"late_us,omitempty"`               // until submission began, beside waiting and preparation
	SubmitUs       float64 `json:"submit_us,omitempty"`             // that submission took; of programs that tell
	DelayUs        float64 `json:"run_delay_us,omitempty"`          // that the thread waited for a processor, since the request before
	Switches       uint64  `json:"switches,omitempty"`              // that it did not ask for, in that time
	OtherLCUs      float64 `json:"other_lc_us,omitempty"`           // that another process of the level had its window open
	OtherLCSliceUs uint32  `json:"other_lc_timeslice_us,omitempty"` // the timeslices of those at once
	BESliceUs      uint32  `json:"be_timeslice_us,omitempty"`       // the longest of a process of a lower level with work
	WatchGapUs     float64 `json:"watch_gap_us,omitempty"`          // the longest time between two looks
	Guests         string  `json:"guests,omitempty"`                // who came or went
	Hint           string  `json:"hint,omitempty"`                  // that it found no end
	// What the library counted in its process meanwhile.
	Counted map[string]uint64 `json:"counted,omitempty"`
}

// Explanation names the first cause that explains the stall. A request that took no longer than the limit is no stall.
func (s Stall) Explanation(limitUs float64) string {
	tooLong := s.LatencyUs - s.WaitedUs - s.UsualUs
	explains := func(us float64) bool { return us >= shortStall && 2*us >= tooLong }
	switch {
	case s.LatencyUs-s.WaitedUs <= limitUs:
		return causeQueue
	case explains(s.DelayUs), explains(s.LateUs), explains(s.afterWindowUs()):
		return causeCPU
	case explains(s.SubmitUs):
		return causeSubmit
	case s.Counted["holds_expired"] > 0:
		return causeExpired
	case s.Counted["windows_cut"] > 0:
		return causeCut
	case explains(s.otherLCTurnsUs()):
		return causeOtherLC
	case s.Counted["holds_stalled"] > 0:
		return causeStalled
	case explains(s.beTurnsUs()):
		return causeSlice
	case s.Guests != "":
		return causeGuest
	case explains(s.WatchGapUs):
		return causeWatch
	case explains(s.measuredUs()):
		return causeSeveral
	}
	return CauseUnknown
}

// measuredUs is the sum of the times that witnesses measured. The thread may wait for a processor while it is late or
// submits: what of these is longer counts.
func (s Stall) measuredUs() float64 {
	thread := max(s.DelayUs, s.LateUs+s.SubmitUs)
	return thread + s.otherLCTurnsUs() + s.beTurnsUs()
}

// afterWindowUs is for how long the program did not go on when the library had closed the request's window, since its work was done. If the
// thread's switches and DelayUs tell of nothing, the host of the virtual machine took the processor.
func (s Stall) afterWindowUs() float64 {
	if s.Counted["windows"] != 1 || s.Counted["window_ns"] == 0 {
		return 0
	}
	return s.LatencyUs - s.WaitedUs - s.LateUs - s.SubmitUs - float64(s.Counted["window_ns"])/1000
}

// otherLCTurnsUs is for how long a request can have waited for others of the level.
func (s Stall) otherLCTurnsUs() float64 {
	return min(s.OtherLCUs, turnsWaited*float64(s.OtherLCSliceUs))
}

// beTurnsUs is for how long a request can have waited for a process of a lower level.
func (s Stall) beTurnsUs() float64 { return turnsWaited * float64(s.BESliceUs) }

// Stalls are the requests of a row that took too long.
type Stalls struct {
	LimitUs float64            `json:"limit_us"` // above which a request is one
	Seconds float64            `json:"seconds"`
	RateHz  float64            `json:"rate_hz"`
	Above   int                `json:"above"`
	Causes  map[string]int     `json:"causes"`
	Seen    map[string]float64 `json:"seen_by_all,omitempty"` // of files up to 348fcb66
	List    []Stall            `json:"list"`                  // slowest first

	Came   int     `json:"guests_came,omitempty"` // how many, and in what time, the median
	CameMs float64 `json:"guests_came_ms,omitempty"`
}

// GuestList says how many guests came; "" where none did.
func (s *Stalls) GuestList() string {
	if s.Came == 0 {
		return ""
	}
	return fmt.Sprintf("guests came %d times, in %.0f ms (median)", s.Came, s.CameMs)
}

// listed are those in a result file: the slowest, and all whose cause is unknown.
func (s *Stalls) listed() []Stall {
	list := []Stall{}
	for i, stall := range s.List {
		if i < StallsListed || stall.Cause == CauseUnknown {
			list = append(list, stall)
		}
	}
	return list
}

// CauseList names the causes, each with the number of its stalls.
func (s *Stalls) CauseList() string {
	var words []string
	for _, cause := range slices.Sorted(maps.Keys(s.Causes)) {
		words = append(words, fmt.Sprintf("%s %d", cause, s.Causes[cause]))
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// more is what people read of them in a table.
func (s *Stalls) more() string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("%d above %.0f us: %s", s.Above, s.LimitUs, s.CauseList())
	if guests := s.GuestList(); guests != "" {
		text += "; " + guests
	}
	return text
}
