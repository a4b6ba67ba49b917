package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// These cases measure what swap costs where all fit, and many services of which each is asked rarely.

type allocationTimes struct {
	Bytes   []uint64  `json:"bytes"`
	AllocNs []float64 `json:"alloc_ns"`
	FreeNs  []float64 `json:"free_ns"`
}

// measureCalls compares medians of calls in programs that run in turns: without the library, with swap, and with all but swap,
// which says where the cost of the second one is.
func measureCalls(ctx context.Context, s *session, name string) error {
	config, err := s.swapConfig(name)
	if err != nil {
		return err
	}
	rest := *s
	rest.mechanisms = restMechanisms
	others, err := rest.swapConfig(name + "-not-swapping")
	if err != nil {
		return err
	}
	const turns = 3
	var times [3][]allocationTimes
	for range turns {
		for i, config := range []string{"", config, others} {
			t, err := s.callTimes(ctx, config, i == 1)
			if err != nil {
				return err
			}
			times[i] = append(times[i], t)
		}
	}
	worst, sizes := 0.0, times[0][0].Bytes
	var notes []string
	for size, bytes := range sizes {
		median := func(i int, of func(t allocationTimes) []float64) float64 {
			var values []float64
			for _, t := range times[i] {
				values = append(values, of(t)[size])
			}
			return result.Median(values)
		}
		for call, of := range map[string]func(t allocationTimes) []float64{"cuMemAlloc": func(t allocationTimes) []float64 { return t.AllocNs },
			"cuMemFree": func(t allocationTimes) []float64 { return t.FreeNs }} {
			before, now := median(0, of), median(1, of)
			worst = max(worst, now/max(before, 1))
			notes = append(notes, fmt.Sprintf("%s of %d KiB %.1f us, %.1f without, %.1f with all but swap", call, bytes>>10, now/1000, before/1000,
				median(2, of)/1000))
		}
	}
	slices.Sort(notes)
	s.add(valued(name, worst, "x without, the worst", callsGoal, true, "medians: %s", strings.Join(notes, "; ")))
	return nil
}

// callTimes starts a program without the library where there is no configuration.
func (s *session) callTimes(ctx context.Context, config string, swaps bool) (t allocationTimes, err error) {
	role := ""
	if config != "" {
		role = "be"
	}
	w, err := s.configuredBy(config, role).start(ctx, role, "allocate")
	if err != nil {
		return t, err
	}
	defer s.finish(w)
	if err = w.awaitReady(ctx, nil); err == nil && swaps {
		err = s.inForce(ctx, config, w)
	}
	if err != nil {
		return t, err
	}
	return t, w.ask(ctx, workerLimit, &t, "run")
}

// measureQuiet is a BE program's rate where there is room for all.
func (s *session) measureQuiet(ctx context.Context, name, kind string) error {
	config, err := s.swapConfig(name)
	if err != nil {
		return err
	}
	var m segment.Memory
	be, note, err := s.withAndWithout(ctx, kind, config, func(ours *worker) (err error) {
		m, err = s.memory(config, ours)
		return err
	})
	if err != nil {
		return err
	}
	row := result.Row{Case: name, System: "gpreempt", BE: be,
		Note: fmt.Sprintf("%s; %.1f GB can go out, %.1f GB cannot", note, float64(m.Resident)/gb, float64(m.Pinned)/gb)}
	s.add(row.Judged(quietGoal.text, quietGoal.reached(be.Share) && m.Evictions == 0))
	return nil
}

const (
	services        = 8
	serviceGB       = 15
	serviceMeanGap  = 8 * time.Second // between the requests of one
	servicesSeconds = 60.0
)

// measureServices has more services than fit, each asked rarely and at random.
func measureServices(ctx context.Context, s *session, name string) error {
	// Each may pin as much host memory as it has: all that the host allows.
	bytes := min(s.sized(serviceGB), s.whole(.75*float64(hostAvailable())/services))
	room := s.whole(services * float64(bytes) / 1.5)
	anew, err := s.loadAnew(ctx, bytes)
	if err != nil {
		return err
	}
	config, err := s.swapConfig(name, hostMB(bytes), "lc = true", "lc_idle_s = 1")
	if err != nil {
		return err
	}
	if s.info.MemoryBytes > room+memoryUnit { // somebody has the rest
		filler, err := s.hold(ctx, "", "", s.whole(float64(s.info.MemoryBytes-room)))
		if err != nil {
			return err
		}
		defer s.finish(filler)
	}
	var workers []*worker
	var clients []*client
	defer func() {
		for _, c := range clients {
			_ = c.connection.Close() // the program goes, too
		}
		s.finishAll(workers)
	}()
	for range services {
		w, err := s.hold(ctx, "lc", config, bytes)
		if err != nil {
			return fmt.Errorf("service %d: %w", len(workers)+1, err)
		}
		workers = append(workers, w)
		c, err := w.serve(ctx)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	served, err := s.askServices(ctx, config, workers, clients)
	if err != nil {
		return err
	}
	all, out := result.LatencyOf(slices.Concat(served.here, served.out)), result.LatencyOf(served.out)
	if all == nil {
		return errors.New("no request in the time")
	}
	note := fmt.Sprintf("%d services of %.1f GB on %.1f GB, a request every %s each; loading anew %.0f ms (median of %d)", services, float64(bytes)/gb,
		float64(min(room, s.info.MemoryBytes))/gb, serviceMeanGap, anew/1e6, swapRounds)
	s.add(result.Row{Case: name, System: "gpreempt", LC: all, Note: note})
	if out == nil {
		return fmt.Errorf("none of %d requests came while its service was out", all.N)
	}
	row := result.Row{Case: name + "-first-answers", System: "gpreempt", LC: out, Note: note}
	s.add(row.Judged(servicesGoal.text, out.P99Us*1000 < anew))
	return nil
}

// loadAnew is the median time, in nanoseconds, from the start of a program to its first answer.
func (s *session) loadAnew(ctx context.Context, bytes uint64) (float64, error) {
	var times []float64
	for range swapRounds {
		began := time.Now()
		w, err := s.hold(ctx, "", "", bytes)
		if err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(began)))
		s.finish(w)
	}
	return result.Median(times), nil
}

// servedRequests are latencies of requests to programs whose memory was in, or out.
type servedRequests struct{ here, out []uint64 }

// askServices asks each service at random, and counts from when a request was due.
func (s *session) askServices(ctx context.Context, config string, workers []*worker, clients []*client) (all servedRequests, err error) {
	served := make([]servedRequests, len(workers))
	err = atOnce(len(workers), func(i int) (err error) {
		served[i], err = s.askService(ctx, config, workers[i], clients[i], i)
		return err
	})
	for _, one := range served {
		all.here, all.out = append(all.here, one.here...), append(all.out, one.out...)
	}
	return all, err
}

func (s *session) askService(ctx context.Context, config string, w *worker, c *client, number int) (served servedRequests, err error) {
	random := workload.Seed("services", number)
	length := cmp.Or(s.options.Seconds, servicesSeconds)
	began := time.Now()
	for due := time.Duration(0); ; {
		due += time.Duration(random.ExpFloat64() * float64(serviceMeanGap))
		if due.Seconds() > length {
			return served, nil
		}
		if err := pause(ctx, time.Until(began.Add(due))); err != nil {
			return served, err
		}
		m, err := s.memory(config, w)
		if err != nil {
			return served, err
		}
		if _, err := c.request(); err != nil {
			return served, fmt.Errorf("%s: %w", w.name, err)
		}
		took := uint64(time.Since(began.Add(due)))
		if m.Swapped > 0 {
			served.out = append(served.out, took)
		} else {
			served.here = append(served.here, took)
		}
	}
}
