package bench

import (
	"errors"
	"fmt"
	"sync"
)

// A case is a list of steps. One that fails ends the case, as a failed check ends a test: fail, check and must raise what went wrong. Then
// measureCase takes it. Functions without an error among their results raise theirs.

// failure is what went wrong in a step.
type failure struct{ error }

// fail ends the case.
func fail(format string, arguments ...any) { panic(failure{fmt.Errorf(format, arguments...)}) }

// check ends the case where there is an error.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must is a value that a step needs.
func must[Value any](value Value, err error) Value {
	check(err)
	return value
}

// caught is what went wrong in some steps.
func caught(steps func()) (err error) {
	defer func() {
		switch raised := recover().(type) {
		case nil:
		case failure:
			err = raised.error
		default:
			panic(raised)
		}
	}()
	steps()
	return nil
}

// during says of what goes wrong in some steps what they are.
func during(what string, steps func()) {
	if err := caught(steps); err != nil {
		fail("%s: %w", what, err)
	}
}

// atOnce does so many things at once, and raises all that went wrong.
func atOnce(count int, do func(i int)) {
	failures := make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() { failures[i] = caught(func() { do(i) }) })
	}
	all.Wait()
	check(errors.Join(failures...))
}
