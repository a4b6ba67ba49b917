package bench

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// logger writes lines of progress.
type logger struct {
	mutex sync.Mutex
	out   io.Writer
	last  time.Time
}

func (l *logger) log(format string, arguments ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.last = time.Now()
	fmt.Fprintf(l.out, format+"\n", arguments...)
}

// quietFor is the time since the last line.
func (l *logger) quietFor() time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return time.Since(l.last)
}

const tellEvery = 10 * time.Second

// keepTelling says what goes on where nothing was said for a while, until stop.
func (l *logger) keepTelling(state func() (what string, secondsLeft float64)) (stop func()) {
	ended := make(chan struct{})
	var teller sync.WaitGroup
	teller.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
			}
			if l.quietFor() >= tellEvery {
				what, left := state()
				l.log("%s: goes on; about %s left", what, clock(left))
			}
		}
	})
	return func() {
		close(ended)
		teller.Wait()
	}
}

// countdown is what goes on, and for about how long.
type countdown struct {
	mutex   sync.Mutex
	what    string
	seconds float64 // that are left
	since   time.Time
}

func (c *countdown) set(what string, seconds float64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.what, c.seconds, c.since = what, seconds, time.Now()
}

func (c *countdown) state() (what string, secondsLeft float64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.what, max(c.seconds-time.Since(c.since).Seconds(), 0)
}

// left is about how long it goes on, for people.
func (c *countdown) left() string {
	_, seconds := c.state()
	return clock(seconds)
}

func clock(seconds float64) string {
	return fmt.Sprintf("%d:%02d", int(math.Round(seconds))/60, int(math.Round(seconds))%60)
}
