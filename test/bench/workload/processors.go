package workload

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Place says which of the processors that we may use a program runs on. A process that begins or ends holds a processor in the kernel for
// up to tens of milliseconds. A thread that waits for that processor waits as long.
type Place string

const (
	anywhere  Place = ""
	OwnPlace  Place = "own"    // the first ownProcessors of them, which nobody else gets
	TheRest   Place = "others" // all but those
	LastPlace Place = "last"   // the last lastProcessors of all
)

const ownProcessors, lastProcessors = 2, 4

// Put moves a process to these processors. It has one thread so far; threads that it makes later run there, too.
func (p Place) Put(pid int) error {
	if p == anywhere {
		return nil
	}
	var ours, its unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		return fmt.Errorf("read which processors we may use: %w", err)
	}
	if p != LastPlace && ours.Count() <= ownProcessors {
		return fmt.Errorf("%d processors are too few: %d are for one program, and the others need some", ours.Count(), ownProcessors)
	}
	seen := 0
	for i := range len(ours) * 64 {
		if !ours.IsSet(i) {
			continue
		}
		if p == LastPlace && seen >= ours.Count()-lastProcessors || p == OwnPlace && seen < ownProcessors || p == TheRest && seen >= ownProcessors {
			its.Set(i)
		}
		seen++
	}
	if err := unix.SchedSetaffinity(pid, &its); err != nil {
		return fmt.Errorf("choose its processors: %w", err)
	}
	return nil
}
