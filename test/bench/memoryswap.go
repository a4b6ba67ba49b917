package bench

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Rates of swapping, and latency-critical programs whose memory grows or comes back.

// measureSwap swaps a program out and in, and two at once.
func measureSwap(ctx context.Context, s *session, name string) {
	bytes := s.sized(20)
	needsHost(bytes)
	copies := s.measurePinned(ctx, bytes)
	config := s.swapConfig(name, hostMB(bytes))
	w := s.hold(ctx, "be", config, bytes)
	defer s.finish(w)
	s.measureOutAndIn(ctx, name, config, w, bytes, copies)
	s.measureBothWays(ctx, name, config, w, bytes, copies)
}

func (s *session) measureOutAndIn(ctx context.Context, name, config string, w *worker, bytes uint64, copies pinned) {
	before := w.sum(ctx)
	var out, in, outMoving, inMoving []float64
	var first [2]swapped // pins the host memory
	for round := range 1 + swapRounds {
		for i, what := range []segment.Asked{segment.AskedOut, segment.AskedIn} {
			moved := s.swap(ctx, config, w, what)
			switch {
			case moved.bytes < bytes/10*9:
				fail("%d of %d bytes moved", moved.bytes, bytes)
			case round == 0:
				first[i] = moved
			case i == 0:
				out, outMoving = append(out, moved.rate()), append(outMoving, moved.moving)
			default:
				in, inMoving = append(in, moved.rate()), append(inMoving, moved.moving)
			}
		}
	}
	after := w.sum(ctx)
	row := func(way string, rates, moving []float64, of float64, first swapped) result.Row {
		rate := result.Median(rates)
		return valued(name+"-"+way, rate/of, "of pinned copies", swapGoal, before == after,
			"%.1f GB at %.1f GB/s from the request to its answer, %.0f ms of which %.0f are moving; pinned copies at %.1f GB/s; the first time %.1f; %s",
			float64(bytes)/gb, rate, float64(bytes)/gb/rate*1000, result.Median(moving)*1000, of, first.rate(), map[bool]string{true: "same contents", false: "CONTENTS DIFFER"}[before == after])
	}
	s.add(row("out", out, outMoving, copies.out, first[0]), row("in", in, inMoving, copies.in, first[1]))
}

// measureBothWays has one program come in while another goes out.
func (s *session) measureBothWays(ctx context.Context, name, config string, w *worker, bytes uint64, copies pinned) {
	needsHost(2 * bytes)
	other := s.hold(ctx, "be", config, bytes)
	defer s.finish(other)
	both := [2]*worker{w, other}
	s.swap(ctx, config, w, segment.AskedOut)
	var rates []float64
	for round := range 1 + swapRounds {
		var moved [2]swapped
		began := time.Now()
		atOnce(2, func(i int) {
			moved[i] = s.swap(ctx, config, both[(round+i)%2], []segment.Asked{segment.AskedIn, segment.AskedOut}[i])
		})
		if round > 0 { // the other's host memory is pinned in the first
			rates = append(rates, float64(moved[0].bytes+moved[1].bytes)/time.Since(began).Seconds()/gb)
		}
	}
	rate := result.Median(rates)
	s.add(valued(name+"-both-ways", rate/copies.both, "of pinned copies", bothWaysGoal, true, "2 x %.1f GB at %.1f GB/s in all, pinned copies both ways at %.1f",
		float64(bytes)/gb, rate, copies.both))
}

// grow has a program allocate so many bytes more, and use them.
func (w *worker) grow(ctx context.Context, bytes uint64) (ms float64) {
	var grown struct {
		Ns    uint64 `json:"ns"`
		Error int    `json:"error"`
	}
	check(w.ask(ctx, holdAnswer, &grown, fmt.Sprint("grow ", bytes)))
	ms = float64(grown.Ns) / 1e6
	if grown.Error != 0 {
		fail("%s: allocation: CUDA error %d after %.0f ms", w.name, grown.Error, ms)
	}
	return ms
}

// measureGrowth lets an LC program allocate while a BE program has all the rest, without and with a reserve.
func measureGrowth(ctx context.Context, s *session, name string) {
	bytes := s.sized(20)
	needsHost(bytes)
	copies := s.measurePinned(ctx, bytes)
	plain := s.hold(ctx, "", "", memoryUnit)
	alone := func() float64 {
		defer s.finish(plain)
		return plain.grow(ctx, bytes)
	}()
	for _, reserve := range []bool{false, true} {
		s.growBesideBE(ctx, name, bytes, reserve, alone, copies)
	}
}

func (s *session) growBesideBE(ctx context.Context, name string, bytes uint64, reserve bool, alone float64, copies pinned) {
	world, reserved, rest := name, uint64(0), s.part(nearlyAll)
	if reserve {
		world, reserved = name+"-reserve", bytes
		rest -= bytes
	}
	// How long it takes is the result, however long it is: it must not end as out of memory.
	settings := []string{hostMB(rest), fmt.Sprintf("reserve_mb = %d", (reserved+1<<20-1)>>20), fmt.Sprintf("wait_ms = %d", holdAnswer.Milliseconds()), "lc = true"}
	config := s.swapConfig(world, settings...)
	lc := s.hold(ctx, "lc", config, memoryUnit)
	defer s.finish(lc)
	be := s.hold(ctx, "be", config, rest)
	defer s.finish(be)
	check(be.ask(ctx, holdAnswer, nil, "start"))
	var ahead float64
	if !reserve {
		ahead = s.pinnedAhead(ctx, config, be, bytes)
	}
	took := lc.grow(ctx, bytes)
	m := must(s.memory(config, be))
	check(lc.ask(ctx, holdAnswer, nil, "shrink")) // BE goes on when all of it fits again
	check(be.ask(ctx, holdAnswer, &beResult{}, "stop"))
	note := fmt.Sprintf("%.1f GB in %.0f ms while BE works in %.1f GB, alone in %.0f ms; %.1f GB of BE went out; pinned %.1f s ahead", float64(bytes)/gb, took,
		float64(rest)/gb, alone, float64(m.OutBytes)/gb, ahead)
	if reserve {
		g := reserveGoal
		s.add(valued(name+"-with-reserve", took, "ms", g, m.OutBytes == 0 && took <= 2*alone+20, "%s", note))
		return
	}
	limit := float64(bytes)/gb/copies.out*1000 + 100
	s.add(valued(name, took, "ms", growGoal, took <= limit, "%s; limit %.0f ms, of pinned copies at %.1f GB/s", note, limit, copies.out))
}

// pinnedAhead waits until a program has pinned the host memory for so many bytes, and gives the seconds.
func (s *session) pinnedAhead(ctx context.Context, config string, w *worker, bytes uint64) (seconds float64) {
	began := time.Now()
	check(awaited(ctx, swapAnswer, func() error {
		m, err := s.memory(config, w)
		if err == nil && m.Host < bytes {
			err = fmt.Errorf("%s has pinned %.1f GB of host memory in %s, and needs %.1f", w.name, float64(m.Host)/gb, swapAnswer, float64(bytes)/gb)
		}
		return err
	}))
	return time.Since(began).Seconds()
}

// serve connects to a program, which serves from then on.
func (w *worker) serve(ctx context.Context) net.Conn {
	var told struct {
		Port int `json:"port"`
	}
	check(w.ask(ctx, answerLimit, &told, "serve"))
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(told.Port)))
	if err != nil {
		fail("%s: connect: %w", w.name, err)
	}
	return connection
}

// answeredIn is how many milliseconds a program that serves takes to answer a request.
func answeredIn(service net.Conn) (ms float64) {
	began := time.Now()
	err := service.SetDeadline(began.Add(holdAnswer))
	if err == nil {
		_, err = service.Write([]byte("\n"))
	}
	if err == nil {
		_, err = service.Read(make([]byte, 1))
	}
	if err != nil {
		fail("a request: %w", err)
	}
	return time.Since(began).Seconds() * 1000
}

const returnRounds = 3

// measureReturn lets others have the room of an LC program that is idle, and then asks it something.
func measureReturn(ctx context.Context, s *session, name string) {
	bytes := s.sized(20)
	needsHost(2 * bytes)
	copies := s.measurePinned(ctx, bytes)
	config := s.swapConfig(name, hostMB(2*bytes), "lc = true", "lc_idle_s = 1")
	lc := s.hold(ctx, "lc", config, bytes)
	defer s.finish(lc)
	service := lc.serve(ctx)
	defer service.Close()
	var usual []float64
	for range 5 {
		usual = append(usual, answeredIn(service))
	}
	be := s.hold(ctx, "be", config, s.part(nearlyAll)-bytes)
	defer s.finish(be)
	s.pinnedAhead(ctx, config, lc, bytes)
	s.pinnedAhead(ctx, config, be, bytes)
	var first, out []float64
	for range returnRounds {
		took, gone := s.firstAnswer(ctx, config, lc, be, service, bytes)
		first, out = append(first, took), append(out, float64(gone)/gb)
	}
	took, limit := result.Median(first), result.Median(out)/copies.in*1000+50
	s.add(valued(name, took, "ms", returnGoal, took <= limit, "%.1f of %.1f GB were out, median of %d; limit %.0f ms, of pinned copies at %.1f GB/s; both ways at once they run at %.1f in all; an answer otherwise %.1f ms",
		result.Median(out), float64(bytes)/gb, returnRounds, limit, copies.in, copies.both, result.Median(usual)))
}

// firstAnswer has BE grow over an idle LC program. It returns the milliseconds of LC's next answer, and how many bytes of LC's memory were
// out before.
func (s *session) firstAnswer(ctx context.Context, config string, lc, be *worker, service net.Conn, bytes uint64) (ms float64, gone uint64) {
	check(pause(ctx, 1100*time.Millisecond)) // it is idle then
	during("BE in the room of the idle LC", func() { be.grow(ctx, bytes) })
	m := must(s.memory(config, lc))
	if m.Swapped < bytes/4*3 {
		fail("LC is idle, and %d of its %d bytes are out", m.Swapped, bytes)
	}
	ms = answeredIn(service) // BE's memory goes out while LC's comes in
	check(be.ask(ctx, holdAnswer, nil, "shrink"))
	return ms, m.Swapped
}
