// Timeline reads what SIMCUDA_TRACE wrote. It says for each process and direction when copies were on the bus, and where it was idle
// meanwhile. It also says what the process called in such a gap.
package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// event is a line of the trace.
type event struct {
	ns              uint64
	process, thread int
	what, name      string // begin or end, and a function; bus or free, and a direction
	bytes           uint64
}

func read(from io.Reader) (events []event, err error) {
	lines := bufio.NewScanner(from)
	for number := 1; lines.Scan(); number++ {
		var e event
		if _, err := fmt.Sscanf(lines.Text(), "%d %d %d %s %s %d", &e.ns, &e.process, &e.thread, &e.what, &e.name, &e.bytes); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", number, lines.Text(), err)
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(a.ns) - int(b.ns) }) // a line is written after its time is taken
	return events, lines.Err()
}

// way is the copies of a process in one direction.
type way struct {
	process     int
	direction   string
	first, last uint64 // when the bus was taken first, and free last
	busy, bytes uint64
	copies      int
	gaps        []gap
}

type gap struct{ began, ended uint64 }

func (g gap) length() uint64 { return g.ended - g.began }

// waysOf are the ways of all processes, in the order of their first copies.
func waysOf(events []event) (ways []*way) {
	known, taken := map[string]*way{}, map[string]uint64{}
	for _, e := range events {
		key := fmt.Sprint(e.process, e.name)
		switch e.what {
		case "bus":
			w := known[key]
			if w == nil {
				w = &way{process: e.process, direction: e.name, first: e.ns}
				known[key], ways = w, append(ways, w)
			} else if e.ns > w.last {
				w.gaps = append(w.gaps, gap{w.last, e.ns})
			}
			w.copies++
			taken[key] = e.ns
		case "free":
			if w := known[key]; w != nil {
				w.last, w.busy, w.bytes = e.ns, w.busy+e.ns-taken[key], w.bytes+e.bytes
			}
		}
	}
	return ways
}

// during are the calls of a process in a gap, with the milliseconds that each took of it.
func during(events []event, process int, g gap) string {
	type call struct {
		thread int
		name   string
	}
	began, took := map[call]uint64{}, map[string]uint64{}
	for _, e := range events {
		c := call{e.thread, e.name}
		switch {
		case e.process != process:
		case e.what == "begin":
			began[c] = e.ns
		case e.what == "end" && e.ns > g.began && began[c] != 0 && began[c] < g.ended:
			took[e.name] += min(e.ns, g.ended) - max(began[c], g.began)
		}
	}
	names := slices.SortedFunc(maps.Keys(took), func(a, b string) int { return int(took[b]) - int(took[a]) })
	var parts []string
	for _, name := range names[:min(len(names), 3)] {
		parts = append(parts, fmt.Sprintf("%s %.2f", name, ms(took[name])))
	}
	return strings.Join(parts, ", ")
}

func ms(ns uint64) float64 { return float64(ns) / 1e6 }

// tell writes the ways, each with its longest gaps. Times are milliseconds since the first line.
func tell(to io.Writer, events []event) {
	const most = 5
	for _, w := range waysOf(events) {
		idle := uint64(0)
		for _, g := range w.gaps {
			idle += g.length()
		}
		fmt.Fprintf(to, "process %d %s the device: %d copies, %.1f MB, from %.2f to %.2f; busy %.2f, idle between copies %.2f\n", w.process, w.direction,
			w.copies, float64(w.bytes)/1e6, ms(w.first-events[0].ns), ms(max(w.last, w.first)-events[0].ns), ms(w.busy), ms(idle))
		slices.SortFunc(w.gaps, func(a, b gap) int { return int(b.length()) - int(a.length()) })
		for _, g := range w.gaps[:min(len(w.gaps), most)] {
			fmt.Fprintf(to, "\tidle %.2f at %.2f: %s\n", ms(g.length()), ms(g.began-events[0].ns), during(events, w.process, g))
		}
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: timeline FILE")
		os.Exit(2)
	}
	file, err := os.Open(os.Args[1])
	if err == nil {
		var events []event
		if events, err = read(file); err == nil {
			tell(os.Stdout, events)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "timeline:", err)
		os.Exit(1)
	}
}
