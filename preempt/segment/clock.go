package segment

import (
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// In a time namespace CLOCK_MONOTONIC is another one than the host's. Processes tell each other times of the host's.

// Now is CLOCK_MONOTONIC of the host, the clock of the segment's times, in nanoseconds.
func Now() uint64 { return uint64(monotonic() - ClockAhead()) }

// monotonic is this process's own clock, which the kernel takes times of.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0 // cannot fail for this clock
	}
	return t.Nano()
}

// ClockAhead is how much this process's CLOCK_MONOTONIC is ahead of the host's, in nanoseconds.
var ClockAhead = sync.OnceValue(func() int64 { return readAhead("/proc/self") })

// readAhead reads the offset of a process's time namespace. The file is about the namespace of the process's children: where that is
// another one, which an exec enters, nothing is known, and nothing is corrected.
func readAhead(process string) int64 {
	own, err := os.Readlink(process + "/ns/time")
	children, errChildren := os.Readlink(process + "/ns/time_for_children")
	if err != nil || errChildren != nil || own != children {
		return 0
	}
	text, err := os.ReadFile(process + "/timens_offsets")
	if err != nil {
		return 0
	}
	return parseAhead(string(text))
}

// parseAhead reads /proc/PID/timens_offsets: of each clock its name, seconds and nanoseconds.
func parseAhead(text string) int64 {
	const most = math.MaxInt64 / int64(time.Second) / 2 // as the kernel has it, so that no clock overflows
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "monotonic" {
			continue
		}
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		rest, errRest := strconv.ParseInt(fields[2], 10, 64)
		if err != nil || errRest != nil || seconds < -most || seconds > most || rest < 0 || rest >= int64(time.Second) {
			return 0
		}
		return seconds*int64(time.Second) + rest
	}
	return 0
}
