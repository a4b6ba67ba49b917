package bench

import (
	"cmp"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Witnesses that look at the same clock tell what requests waited for. They are the program itself, the memory that the processes share,
// and the list of processes that came and went. The watch looks at the shared memory thousands of times a
// second.

const (
	watchEvery   = 200 * time.Microsecond
	guestsBefore = 20 * time.Millisecond // a process that came or went so long before counts
)

// tracedRequest is a request by CLOCK_MONOTONIC.
type tracedRequest struct {
	arrival, before, submitted, queued, done uint64 // before: the end of the request before; queued: 0 where unknown
	delayNs, switches                        uint64
	served                                   bool
}

// requestOf is the i-th request of an LC program's run.
func requestOf(run result.RunResult, t *result.TaskRun, i int) tracedRequest {
	s := t.Times
	at := func(d time.Duration) uint64 { return uint64(run.Begin + s.Arrival[i] + d) }
	r := tracedRequest{arrival: at(0)}
	if i > 0 && i-1 < len(s.Done) {
		r.before = uint64(run.Begin + s.Arrival[i-1] + s.Done[i-1])
	}
	if i >= len(s.Done) { // it found no end
		r.submitted, r.done = at(0), uint64(run.Begin+run.Length()+result.Drain)
		return r
	}
	r.served, r.submitted, r.done = true, at(s.Submitted[i]), at(s.Done[i])
	if len(t.Trace.QueuedNs) > i {
		r.delayNs, r.switches = t.Trace.DelayNs[i], t.Trace.Switches[i]
		if t.Trace.QueuedNs[i] > 0 {
			r.queued = at(time.Duration(t.Trace.QueuedNs[i]))
		}
	}
	return r
}

// witnesses are those of a round.
type witnesses struct {
	watch     *watch
	visits    []visit
	prepareUs int
}

func us(from, to uint64) float64 {
	if to <= from {
		return 0
	}
	return result.Round(float64(to-from)/1000, 1)
}

// see says what can be told of any request.
func (w witnesses) see(r tracedRequest) result.Stall {
	s := result.Stall{LatencyUs: us(r.arrival, r.done)}
	s.OtherLCUs, s.OtherLCSliceUs, s.BESliceUs = w.watch.others(r.arrival, r.done)
	for _, v := range w.visits {
		if v.from <= r.done && v.to >= r.arrival-min(r.arrival, uint64(guestsBefore)) {
			s.Guests = strings.TrimPrefix(s.Guests+", "+v.what, ", ")
		}
	}
	return s
}

// explain adds what is asked only of requests that took long.
func (w witnesses) explain(r tracedRequest, s *result.Stall) {
	s.WaitedUs = min(us(r.arrival, r.before), s.LatencyUs)
	s.LateUs = max(0, result.Round(us(max(r.arrival, r.before), r.submitted)-float64(w.prepareUs), 1))
	if r.queued > 0 {
		s.SubmitUs = us(r.submitted, r.queued)
	}
	s.DelayUs, s.Switches = us(0, r.delayNs), r.switches
	s.Counted, s.WatchGapUs = w.watch.between(r.arrival, r.done)
	if !r.served {
		s.Hint = "found no end"
	}
}

// watch looks at a segment again and again.
type watch struct {
	ending    atomic.Bool
	ended     chan struct{}
	pid       int32
	directory string
	lastNs    uint64 // the latest look
	changes   []change
}

// change is a look that differs from the one before, or came late after it.
type change struct {
	beforeNs, atNs uint64 // the look before, and this
	known          bool   // the process that is looked at has a slot
	others         others
	counters       segment.Counters
}

// others are the other processes at a time.
type others struct {
	open        bool   // one of the same level has its window open
	openSliceUs uint32 // the timeslices of all such
	sliceUs     uint32 // and of one of a lower level that has work
}

const lateLook = time.Millisecond

// startWatch watches the process of a pid in the first segment that comes to be in a folder, until stop.
func startWatch(directory string, pid int) *watch {
	w := &watch{ended: make(chan struct{}), pid: int32(pid), directory: directory}
	go w.run()
	return w
}

func (w *watch) stop() {
	w.ending.Store(true)
	<-w.ended
}

func (w *watch) run() {
	defer close(w.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var reader *segment.Reader
	pause := unix.NsecToTimespec(int64(watchEvery)) // the runtime's own timers may be a millisecond late
	for !w.ending.Load() {
		_ = unix.Nanosleep(&pause, nil) // a signal makes a look come earlier
		if reader == nil {
			reader = openFirst(w.directory)
		}
		if reader == nil {
			w.note(segment.Look{TakenNs: segment.Now()}) // whether we get a processor shows all the same
			continue
		}
		if look, err := reader.Look(); err == nil { // what was not seen shows as a gap
			w.note(look)
		}
	}
	if reader != nil {
		reader.Close()
	}
}

// openFirst gives nothing while there is no segment that can be read.
func openFirst(directory string) *segment.Reader {
	files, err := filepath.Glob(filepath.Join(directory, "*.seg"))
	if err != nil || len(files) == 0 {
		return nil
	}
	reader, err := segment.OpenReader(files[0])
	if err != nil {
		return nil
	}
	return reader
}

func (w *watch) note(look segment.Look) {
	now := change{beforeNs: w.lastNs, atNs: look.TakenNs}
	level := uint32(0)
	for _, p := range look.Peers {
		if p.Pid == w.pid {
			now.known, now.counters, level = true, p.Counters, p.Level
		}
	}
	for _, p := range look.Peers {
		switch {
		case p.Pid == w.pid:
		case p.Level == level && p.Open:
			now.others.open = true
			now.others.openSliceUs += cmp.Or(p.TimesliceUs, result.DriverSlice)
		case p.Level > level && p.Busy:
			now.others.sliceUs = max(now.others.sliceUs, cmp.Or(p.TimesliceUs, result.DriverSlice))
		}
	}
	w.lastNs = look.TakenNs
	if len(w.changes) > 0 {
		last := w.changes[len(w.changes)-1]
		same := now.known == last.known && now.others == last.others && now.counters == last.counters
		if same && now.atNs-now.beforeNs < uint64(lateLook) {
			return
		}
	} else {
		now.beforeNs = now.atNs
	}
	w.changes = append(w.changes, now)
}

// lastBy is the index of the last change that was seen by a time, or -1.
func (w *watch) lastBy(at uint64) int {
	i, _ := slices.BinarySearchFunc(w.changes, at+1, func(c change, at uint64) int { return cmp.Compare(c.atNs, at) })
	return i - 1
}

// others returns for how long of an interval another process of the level was seen to have its window open, in microseconds. It also
// returns the timeslices of such processes at once, and the longest one of a process of a lower level with work. Time without looks does
// not count.
func (w *watch) others(from, to uint64) (openUs float64, openSliceUs, sliceUs uint32) {
	for i := max(w.lastBy(from), 0); i < len(w.changes) && w.changes[i].atNs < to; i++ {
		end := min(to, w.lastNs)
		if i+1 < len(w.changes) {
			end = min(end, w.changes[i+1].beforeNs+uint64(watchEvery))
		}
		seen := us(max(from, w.changes[i].atNs), end)
		if w.changes[i].others.open {
			openUs += seen
		}
		if seen > 0 {
			openSliceUs = max(openSliceUs, w.changes[i].others.openSliceUs)
			sliceUs = max(sliceUs, w.changes[i].others.sliceUs)
		}
	}
	return result.Round(openUs, 1), openSliceUs, sliceUs
}

// between is by how much each counter of the process grew in an interval, and the longest time between two looks, in
// microseconds.
func (w *watch) between(from, to uint64) (grew map[string]uint64, gapUs float64) {
	first := max(w.lastBy(from), 0)
	last := first
	for i := first; i < len(w.changes) && w.changes[i].beforeNs < to; i++ {
		last = i
		if w.changes[i].atNs > from {
			gapUs = max(gapUs, us(w.changes[i].beforeNs, w.changes[i].atNs))
		}
	}
	if last >= len(w.changes) || !w.changes[first].known || !w.changes[last].known {
		return nil, gapUs
	}
	return growth(w.changes[first].counters, w.changes[last].counters), gapUs
}

// growth is by how much each counter grew, by its name; those that did.
func growth(before, after segment.Counters) map[string]uint64 {
	grew := map[string]uint64{}
	a, b := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range a.NumField() {
		if x, y := a.Field(i).Uint(), b.Field(i).Uint(); y > x {
			grew[a.Type().Field(i).Tag.Get("json")] = y - x
		}
	}
	return grew
}
