package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The hints suite: the same LC requests under the library without and with hints.

var (
	announcedSingle = load{work: single.work, kernels: 1, gapUs: 3000, requests: 600, prepareUs: 300, hint: true}
	announcedSynced = func() load { l := synced(10, 0); l.prepareUs, l.hint = 300, true; return l }()
	wrongHints      = load{work: single.work, kernels: 1, gapUs: 20_000, requests: 300, wrongUs: 10_000}
)

// paced is a load of short requests by the clock or at random, long enough to learn a pattern first.
func paced(periodUs, poissonUs, seconds int) load {
	return load{work: single.work, kernels: 1, gapUs: 3000, requests: 100_000, periodUs: periodUs, poissonUs: poissonUs,
		seconds: seconds, warmUp: 40}
}

// Sections of the configuration, by which sources give hints.
var (
	noHints      = configs.HintsFrom(configs.HintCopy) // copies are hints that ask nothing of the application
	explicitOnly = configs.HintsFrom(configs.HintCopy, configs.HintExplicit)
	arrivalOnly  = configs.HintsFrom(configs.HintCopy, configs.HintArrival)
)

// hintTarget is one of a row with hints and the row of the same load without.
type hintTarget struct {
	text string
	met  func(with, without result.Row) bool
}

func ofAlone(c criterion) hintTarget {
	return hintTarget{c.text, func(with, _ result.Row) bool { return c.met(with) }}
}

func p99WithinOfAlone(us float64) hintTarget { return ofAlone(p99Within(us)) }
func p99TimesAlone(times float64) hintTarget { return ofAlone(p99Times(times)) }

func bothHinted(a, b hintTarget) hintTarget {
	return hintTarget{a.text + ", " + b.text, func(with, without result.Row) bool { return a.met(with, without) && b.met(with, without) }}
}

var (
	littleLost = hintTarget{"BE >= 0.98 of without hints", func(with, without result.Row) bool { return with.BE.Now >= 0.98*without.BE.Now }}
	notWorse   = hintTarget{"lc p50 and p99 <= 1.05 x without hints", func(with, without result.Row) bool {
		return with.LC.P99Us <= 1.05*without.LC.P99Us && with.LC.P50Us <= 1.05*without.LC.P50Us
	}}
)

func hinted(name string, l load, sources string, target hintTarget) Case {
	return Case{name, target.text, []string{"hints"}, 30, func(ctx context.Context, s *session, name string) error {
		beAlone, err := s.beRate(ctx, bestEffort, "")
		if err != nil {
			return fmt.Errorf("BE alone: %w", err)
		}
		_, err = s.measureHinted(ctx, name, l, sources, beAlone, []string{"default", "gpreempt", "gpreempt-hints"}, target)
		return err
	}}
}

// measureHinted measures a load alone and under the systems named, and returns the row with hints.
func (s *session) measureHinted(ctx context.Context, name string, l load, sources string, beAlone float64, systems []string, target hintTarget) (result.Row, error) {
	without := l // hints are for the system with hints
	without.hint, without.wrongUs = false, 0
	options, err := s.lcOptions(ctx, without)
	if err != nil {
		return result.Row{}, err
	}
	var alone lcResult
	if err := s.run(ctx, &alone, "", "lc", options...); err != nil {
		return result.Row{}, fmt.Errorf("LC alone: %w", err)
	}
	lcAlone := result.LatencyOf(alone.LatenciesNs)
	if lcAlone == nil {
		return result.Row{}, errors.New("the LC process finished no request in time")
	}
	s.report.Cases = append(s.report.Cases, result.Row{Case: name, System: "alone", LC: lcAlone,
		BE: &result.Share{Share: 1, Alone: result.Round(beAlone, 2), Now: result.Round(beAlone, 2), Unit: "kernels/s"}})
	var row, unhinted result.Row
	for _, system := range systems {
		lcRole, beRole, load, section := "", "", without, ""
		switch system {
		case "gpreempt":
			lcRole, beRole, section = "lc", "be", noHints
		case "gpreempt-hints":
			lcRole, beRole, load, section = "lc", "be", l, sources
		}
		requestLog := ""
		if system == "gpreempt-hints" {
			dir, err := os.MkdirTemp(s.folder, "requests-")
			if err != nil {
				return result.Row{}, fmt.Errorf("create a folder for the log of requests: %w", err)
			}
			requestLog = filepath.Join(dir, "requests")
			section += fmt.Sprintf("log = %q\n", requestLog)
		}
		undo, err := s.configure(section)
		if err != nil {
			return result.Row{}, err
		}
		hintsSoFar := s.followHints(ctx, system == "gpreempt-hints")
		lc, rate, err := s.together(ctx, load, bestEffort, 1, lcRole, beRole)
		hints := hintsSoFar()
		undo()
		if err != nil {
			return result.Row{}, fmt.Errorf("%s: %w", system, err)
		}
		row = result.Row{Case: name, System: system, LC: result.LatencyOf(lc.LatenciesNs), LCAlone: lcAlone,
			BE: share(rate, beAlone, &lc, &alone, system != "default", kernelsPerSecond)}
		if hints != nil {
			if err := follow(hints, requestLog, lc.LatenciesNs); err != nil {
				return result.Row{}, fmt.Errorf("%s: %w", system, err)
			}
		}
		row.Ratio, row.Hints = result.RatioOf(row.LC, lcAlone), hints
		switch {
		case system == "gpreempt":
			unhinted = row
		case system == "gpreempt-hints" && target.met != nil:
			pass := target.met(row, unhinted)
			row.Target, row.Pass = target.text, &pass
		}
		s.report.Cases = append(s.report.Cases, row)
	}
	return row, nil
}

// followHints looks now and then what becomes of the hints of the newest LC process, until stop.
func (s *session) followHints(ctx context.Context, wanted bool) (stop func() *result.Hints) {
	config, err := configs.Load(s.config)
	if err != nil || !wanted { // a broken configuration is for the workers to report
		return func() *result.Hints { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan *result.Hints)
	go func() {
		var last *result.Hints
		for {
			if h := hintsIn(segment.Directory(config.Segment.Directory, os.Getuid())); h != nil {
				last = h
			}
			select {
			case <-ctx.Done():
				seen <- last
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() *result.Hints {
		cancel()
		return <-seen
	}
}

const slowestKept = 24

// follow adds what became of the requests with these latencies, the latest of the log.
func follow(h *result.Hints, path string, latenciesNs []uint64) error {
	requests, err := readRequests(path)
	if err != nil || requests == nil {
		return err
	}
	n := len(latenciesNs)
	if len(requests) < n { // the learner of hints was too slow for some: which is not known
		return nil
	}
	requests = requests[len(requests)-n:]
	h.Requests = map[string]int{}
	for i, r := range requests {
		h.Requests[r.Outcome()]++
		r.AtNs = 0
		h.Slowest = append(h.Slowest, result.SlowRequest{N: i, LatencyUs: result.Round(float64(latenciesNs[i])/1000, 1), Request: r})
	}
	slices.SortStableFunc(h.Slowest, func(a, b result.SlowRequest) int { return cmp.Compare(b.LatencyUs, a.LatencyUs) })
	h.Slowest = h.Slowest[:min(slowestKept, n)]
	return nil
}

// hintsIn is what became of the hints of the LC process that started last, or nil if there is none.
func hintsIn(directory string) (found *result.Hints) {
	snapshots, err := segment.SnapshotsIn(directory)
	if err != nil {
		return nil
	}
	started := uint64(0)
	for _, snapshot := range snapshots {
		for _, p := range snapshot.Peers {
			if p.Level == 0 && p.StartedNs >= started {
				started, found = p.StartedNs, &result.Hints{SwitchUs: p.SwitchUs, SpunNs: p.HintSpunNs, Sources: p.Hints}
			}
		}
	}
	return found
}

// measurePreparation hints at the start of preparations of several lengths: what a switch adds to a request
// falls by as much as it overlaps.
func measurePreparation(ctx context.Context, s *session, name string) error {
	beAlone, err := s.beRate(ctx, bestEffort, "")
	if err != nil {
		return fmt.Errorf("BE alone: %w", err)
	}
	increase := 0.0 // without preparation
	for _, us := range []int{0, 25, 50, 100, 150, 200} {
		l := announcedSingle
		l.prepareUs, l.requests = us, 300
		most := max(0, increase-float64(us)) + 15
		target := hintTarget{}
		if us > 0 {
			target = hintTarget{fmt.Sprintf("lc p50 <= alone p50 + %.0f us", most),
				func(with, _ result.Row) bool { return with.LC.P50Us <= with.LCAlone.P50Us+most }}
		}
		row, err := s.measureHinted(ctx, fmt.Sprintf("%s-%dus", name, us), l, explicitOnly, beAlone,
			[]string{"gpreempt", "gpreempt-hints"}, target)
		if err != nil {
			return fmt.Errorf("%d us: %w", us, err)
		}
		if us == 0 {
			increase = row.LC.P50Us - row.LCAlone.P50Us
		}
	}
	return nil
}
