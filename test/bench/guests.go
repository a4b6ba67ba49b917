package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Guests are processes that come and go beside those that are measured: each one's turn at the GPU is a process of its own.

// How long guests stay, and for how long at most there is none in the place of one that has gone.
const shortestStay, longestStay, longestAway = time.Second, 8 * time.Second, 1500 * time.Millisecond

const guestFailures = 3 // in a row, after which there is no point in going on

// visit is a time in which a guest made or gave up its use of the GPU.
type visit struct {
	from, to uint64 // CLOCK_MONOTONIC
	what     string
}

const comes = " comes" // the end of what, of a guest that makes its use

// came is how long guests took to come, in milliseconds, of those that began to in a time and have come.
func (w witnesses) came(from, to uint64) (ms []float64) {
	for _, v := range w.visits {
		if strings.HasSuffix(v.what, comes) && v.from >= from && v.from < to && v.to != underWay {
			ms = append(ms, result.Round(us(v.from, v.to)/1000, 1))
		}
	}
	return ms
}

const underWay = ^uint64(0) // the end of a visit that has none yet

// visits are those of all guests.
type visits struct {
	mutex sync.Mutex
	list  []*visit
	err   error
}

// begin notes what begins now and ends when end is called.
func (v *visits) begin(what string) (end func()) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	one := &visit{segment.Now(), underWay, what}
	v.list = append(v.list, one)
	return func() {
		v.mutex.Lock()
		defer v.mutex.Unlock()
		one.to = segment.Now()
	}
}

// since are those that touch the time from then on. The earlier ones are forgotten.
func (v *visits) since(ns uint64) (some []visit) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	var kept []*visit
	for _, one := range v.list {
		if one.to >= ns {
			some, kept = append(some, *one), append(kept, one)
		}
	}
	v.list = kept
	return some
}

func (v *visits) fail(err error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.err = errors.Join(v.err, err)
}

// failed is why a guest comes no more.
func (v *visits) failed() error {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	return v.err
}

// receiveGuests lets them come and go until stop.
func (m *stallMeasurement) receiveGuests(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i, g := range m.guests {
		random := workload.Seed(m.name, m.system.Name, "guest", i)
		all.Go(func() {
			for failures := 0; ctx.Err() == nil && failures < guestFailures; failures++ {
				err := m.visit(ctx, g, fmt.Sprintf("%s %d", g.role, i+1), random)
				if err == nil {
					failures = -1
				} else if failures+1 == guestFailures && ctx.Err() == nil {
					m.visits.fail(fmt.Errorf("guest %d: %w", i+1, err))
				}
				_ = pause(ctx, time.Duration(random.Float64()*float64(longestAway)))
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// visit starts a guest's process, lets it use the GPU for a while, and ends it: every second one by SIGKILL in the middle.
func (m *stallMeasurement) visit(ctx context.Context, g guest, name string, random *rand.Rand) error {
	var p *worker
	if err := caught(func() { p = m.e.startProgram(ctx, m.system, g.role, g.task) }); err != nil {
		return err
	}
	leave := func(how string) {
		gone := m.visits.begin(name + " " + how)
		p.end()
		gone()
		m.e.session.passOn(p)
	}
	here := m.visits.begin(name + comes)
	err := caught(func() { ready(ctx, []member{{Task: g.task, role: g.role, program: p}}) })
	here()
	if err != nil {
		_ = p.killGroup() // it may have ended by itself
		leave("fails")
		return err
	}
	stay := shortestStay + time.Duration(random.Float64()*float64(longestStay-shortestStay))
	killed := random.IntN(2) == 0
	length := stay
	if killed {
		length += 10 * time.Second
	}
	err = caught(func() {
		var arrivals []time.Duration
		if g.task.RateHz > 0 {
			arrivals = g.task.Arrivals(length, random)
		}
		now := monotonic()
		// Best-effort work goes on after the end for as long as some file is not there: this one is.
		check(p.send(goOrder(now+startAhead, now+startAhead+length, 0, false, "/", arrivals)))
		if killed {
			_ = pause(ctx, stay) // where it ends early, so does the visit
		} else {
			p.answerGo(ctx, startAhead+length+result.Drain+p.limits.answer)
		}
	})
	if killed || err != nil {
		_ = p.killGroup()
		leave("is killed")
		return err
	}
	leave("goes")
	return nil
}
