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
func measureSwap(ctx context.Context, s *session, name string) error {
	bytes := s.sized(20)
	if err := needsHost(bytes); err != nil {
		return err
	}
	copies, err := s.measurePinned(ctx, bytes)
	if err != nil {
		return err
	}
	config, err := s.swapConfig(name, hostMB(bytes))
	if err != nil {
		return err
	}
	w, err := s.hold(ctx, "be", config, bytes)
	if err != nil {
		return err
	}
	defer s.finish(w)
	if err := s.measureOutAndIn(ctx, name, config, w, bytes, copies); err != nil {
		return err
	}
	return s.measureBothWays(ctx, name, config, w, bytes, copies)
}

func (s *session) measureOutAndIn(ctx context.Context, name, config string, w *worker, bytes uint64, copies pinned) error {
	before, err := w.sum(ctx)
	if err != nil {
		return err
	}
	var out, in, outMoving, inMoving []float64
	var first [2]swapped // pins the host memory
	for round := range 1 + swapRounds {
		for i, what := range []segment.Asked{segment.AskedOut, segment.AskedIn} {
			moved, err := s.swap(ctx, config, w, what)
			switch {
			case err != nil:
				return err
			case moved.bytes < bytes/10*9:
				return fmt.Errorf("%d of %d bytes moved", moved.bytes, bytes)
			case round == 0:
				first[i] = moved
			case i == 0:
				out, outMoving = append(out, moved.rate()), append(outMoving, moved.moving)
			default:
				in, inMoving = append(in, moved.rate()), append(inMoving, moved.moving)
			}
		}
	}
	after, err := w.sum(ctx)
	if err != nil {
		return err
	}
	row := func(way string, rates, moving []float64, of float64, first swapped) result.Row {
		rate := result.Median(rates)
		return valued(name+"-"+way, rate/of, "of pinned copies", swapGoal, before == after,
			"%.1f GB at %.1f GB/s from the request to its answer, %.0f ms of which %.0f are moving; pinned copies at %.1f GB/s; the first time %.1f; %s",
			float64(bytes)/gb, rate, float64(bytes)/gb/rate*1000, result.Median(moving)*1000, of, first.rate(), map[bool]string{true: "same contents", false: "CONTENTS DIFFER"}[before == after])
	}
	s.add(row("out", out, outMoving, copies.out, first[0]), row("in", in, inMoving, copies.in, first[1]))
	return nil
}

// measureBothWays has one program come in while another goes out.
func (s *session) measureBothWays(ctx context.Context, name, config string, w *worker, bytes uint64, copies pinned) error {
	if err := needsHost(2 * bytes); err != nil {
		return err
	}
	other, err := s.hold(ctx, "be", config, bytes)
	if err != nil {
		return err
	}
	defer s.finish(other)
	both := [2]*worker{w, other}
	if _, err := s.swap(ctx, config, w, segment.AskedOut); err != nil {
		return err
	}
	var rates []float64
	for round := range 1 + swapRounds {
		var moved [2]swapped
		began := time.Now()
		err := atOnce(2, func(i int) (err error) {
			moved[i], err = s.swap(ctx, config, both[(round+i)%2], []segment.Asked{segment.AskedIn, segment.AskedOut}[i])
			return err
		})
		if err != nil {
			return err
		}
		if round > 0 { // the other's host memory is pinned in the first
			rates = append(rates, float64(moved[0].bytes+moved[1].bytes)/time.Since(began).Seconds()/gb)
		}
	}
	rate := result.Median(rates)
	s.add(valued(name+"-both-ways", rate/copies.both, "of pinned copies", bothWaysGoal, true, "2 x %.1f GB at %.1f GB/s in all, pinned copies both ways at %.1f",
		float64(bytes)/gb, rate, copies.both))
	return nil
}

// grownBy is a program's answer to the order to allocate.
type grownBy struct {
	Ns    uint64 `json:"ns"`
	Error int    `json:"error"`
}

func (w *worker) grow(ctx context.Context, bytes uint64) (ms float64, err error) {
	var g grownBy
	if err := w.ask(ctx, holdAnswer, &g, fmt.Sprint("grow ", bytes)); err != nil {
		return 0, err
	}
	if g.Error != 0 {
		return 0, fmt.Errorf("%s: allocation: CUDA error %d after %.0f ms", w.name, g.Error, float64(g.Ns)/1e6)
	}
	return float64(g.Ns) / 1e6, nil
}

// measureGrowth lets an LC program allocate while a BE program has all the rest, without and with a reserve.
func measureGrowth(ctx context.Context, s *session, name string) error {
	bytes := s.sized(20)
	if err := needsHost(bytes); err != nil {
		return err
	}
	copies, err := s.measurePinned(ctx, bytes)
	if err != nil {
		return err
	}
	plain, err := s.hold(ctx, "", "", memoryUnit)
	if err != nil {
		return err
	}
	alone, err := plain.grow(ctx, bytes)
	s.finish(plain)
	if err != nil {
		return err
	}
	for _, reserve := range []bool{false, true} {
		if err := s.growBesideBE(ctx, name, bytes, reserve, alone, copies); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) growBesideBE(ctx context.Context, name string, bytes uint64, reserve bool, alone float64, copies pinned) error {
	world, reserved, rest := name, uint64(0), s.part(nearlyAll)
	if reserve {
		world, reserved = name+"-reserve", bytes
		rest -= bytes
	}
	// How long it takes is the result, however long it is: it must not end as out of memory.
	settings := []string{hostMB(rest), fmt.Sprintf("reserve_mb = %d", (reserved+1<<20-1)>>20), fmt.Sprintf("wait_ms = %d", holdAnswer.Milliseconds()), "lc = true"}
	config, err := s.swapConfig(world, settings...)
	if err != nil {
		return err
	}
	lc, err := s.hold(ctx, "lc", config, memoryUnit)
	if err != nil {
		return err
	}
	defer s.finish(lc)
	be, err := s.hold(ctx, "be", config, rest)
	if err != nil {
		return err
	}
	defer s.finish(be)
	if err := be.ask(ctx, holdAnswer, nil, "start"); err != nil {
		return err
	}
	var ahead float64
	if !reserve {
		if ahead, err = s.pinnedAhead(ctx, config, be, bytes); err != nil {
			return err
		}
	}
	took, err := lc.grow(ctx, bytes)
	if err != nil {
		return err
	}
	m, err := s.memory(config, be)
	if err != nil {
		return err
	}
	if err := lc.ask(ctx, holdAnswer, nil, "shrink"); err != nil { // BE goes on when all of it fits again
		return err
	}
	if err := be.ask(ctx, holdAnswer, &beResult{}, "stop"); err != nil {
		return err
	}
	note := fmt.Sprintf("%.1f GB in %.0f ms while BE works in %.1f GB, alone in %.0f ms; %.1f GB of BE went out; pinned %.1f s ahead", float64(bytes)/gb, took,
		float64(rest)/gb, alone, float64(m.OutBytes)/gb, ahead)
	if reserve {
		g := reserveGoal
		s.add(valued(name+"-with-reserve", took, "ms", g, m.OutBytes == 0 && took <= 2*alone+20, "%s", note))
		return nil
	}
	limit := float64(bytes)/gb/copies.out*1000 + 100
	s.add(valued(name, took, "ms", growGoal, took <= limit, "%s; limit %.0f ms, of pinned copies at %.1f GB/s", note, limit, copies.out))
	return nil
}

// pinnedAhead waits until a program has pinned the host memory for so many bytes, and gives the seconds.
func (s *session) pinnedAhead(ctx context.Context, config string, w *worker, bytes uint64) (seconds float64, err error) {
	began := time.Now()
	err = awaited(ctx, swapAnswer, func() error {
		m, err := s.memory(config, w)
		if err == nil && m.Host < bytes {
			err = fmt.Errorf("%s has pinned %.1f GB of host memory in %s, and needs %.1f", w.name, float64(m.Host)/gb, swapAnswer, float64(bytes)/gb)
		}
		return err
	})
	return time.Since(began).Seconds(), err
}

// client is a connection to a program that serves.
type client struct{ connection net.Conn }

func (w *worker) serve(ctx context.Context) (*client, error) {
	var told struct {
		Port int `json:"port"`
	}
	if err := w.ask(ctx, answerLimit, &told, "serve"); err != nil {
		return nil, err
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(told.Port)))
	if err != nil {
		return nil, fmt.Errorf("%s: connect: %w", w.name, err)
	}
	return &client{connection}, nil
}

// request is how long the program takes to answer.
func (c *client) request() (time.Duration, error) {
	began := time.Now()
	if err := c.connection.SetDeadline(began.Add(holdAnswer)); err != nil {
		return 0, fmt.Errorf("a request: %w", err)
	}
	if _, err := c.connection.Write([]byte("\n")); err != nil {
		return 0, fmt.Errorf("a request: %w", err)
	}
	var answer [1]byte
	if _, err := c.connection.Read(answer[:]); err != nil {
		return 0, fmt.Errorf("an answer: %w", err)
	}
	return time.Since(began), nil
}

const returnRounds = 3

// measureReturn lets others have the room of an LC program that is idle, and then asks it something.
func measureReturn(ctx context.Context, s *session, name string) error {
	bytes := s.sized(20)
	if err := needsHost(2 * bytes); err != nil {
		return err
	}
	copies, err := s.measurePinned(ctx, bytes)
	if err != nil {
		return err
	}
	config, err := s.swapConfig(name, hostMB(2*bytes), "lc = true", "lc_idle_s = 1")
	if err != nil {
		return err
	}
	lc, err := s.hold(ctx, "lc", config, bytes)
	if err != nil {
		return err
	}
	defer s.finish(lc)
	service, err := lc.serve(ctx)
	if err != nil {
		return err
	}
	defer service.connection.Close()
	var usual []float64
	for range 5 {
		took, err := service.request()
		if err != nil {
			return err
		}
		usual = append(usual, took.Seconds()*1000)
	}
	be, err := s.hold(ctx, "be", config, s.part(nearlyAll)-bytes)
	if err != nil {
		return err
	}
	defer s.finish(be)
	if _, err := s.pinnedAhead(ctx, config, lc, bytes); err != nil {
		return err
	}
	if _, err := s.pinnedAhead(ctx, config, be, bytes); err != nil {
		return err
	}
	var first, out []float64
	for range returnRounds {
		took, gone, err := s.firstAnswer(ctx, config, lc, be, service, bytes)
		if err != nil {
			return err
		}
		first, out = append(first, took), append(out, float64(gone)/gb)
	}
	took, limit := result.Median(first), result.Median(out)/copies.in*1000+50
	s.add(valued(name, took, "ms", returnGoal, took <= limit, "%.1f of %.1f GB were out, median of %d; limit %.0f ms, of pinned copies at %.1f GB/s; both ways at once they run at %.1f in all; an answer otherwise %.1f ms",
		result.Median(out), float64(bytes)/gb, returnRounds, limit, copies.in, copies.both, result.Median(usual)))
	return nil
}

// firstAnswer has BE grow over an idle LC program. It returns the milliseconds of LC's next answer, and how many bytes of LC's memory were
// out before.
func (s *session) firstAnswer(ctx context.Context, config string, lc, be *worker, service *client, bytes uint64) (ms float64, gone uint64, err error) {
	if err := pause(ctx, 1100*time.Millisecond); err != nil { // it is idle then
		return 0, 0, err
	}
	if _, err := be.grow(ctx, bytes); err != nil {
		return 0, 0, fmt.Errorf("BE in the room of the idle LC: %w", err)
	}
	m, err := s.memory(config, lc)
	if err != nil {
		return 0, 0, err
	}
	if m.Swapped < bytes/4*3 {
		return 0, 0, fmt.Errorf("LC is idle, and %d of its %d bytes are out", m.Swapped, bytes)
	}
	took, err := service.request() // BE's memory goes out while LC's comes in
	if err != nil {
		return 0, 0, err
	}
	return took.Seconds() * 1000, m.Swapped, be.ask(ctx, holdAnswer, nil, "shrink")
}
