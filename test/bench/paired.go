package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The paired suite: the costs of two builds of the library for programs that have nothing to share the GPU with, measured in turns. A
// figure of one build differs more from one hour, and from one process, to the next than two builds do.

// PairedSuite is the name of the suite that compares two builds of the library.
const PairedSuite = "paired"

const (
	pairedRounds   = 15 // where no number is asked for
	pairedRequests = 200
)

// contest prepares the builds; they are the one before and the one now.
func contest(_ context.Context, s *session) (end func(), err error) {
	against := s.options.Against
	if against == "" {
		return nil, fmt.Errorf("suite %q compares two builds: name the earlier one with --against", PairedSuite)
	}
	if against, err = filepath.Abs(against); err != nil {
		return nil, fmt.Errorf("find the earlier library: %w", err)
	}
	for i, library := range []string{against, s.library} {
		s.segments = filepath.Join(s.folder, fmt.Sprint("build-", i))
		_, err := os.Stat(library)
		if err == nil {
			err = os.Mkdir(s.segments, 0o700)
		}
		if err == nil {
			_, err = s.configure("")
		}
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", library, err)
		}
		s.builds = append(s.builds, contestant{library, s.config, s.segments})
	}
	return func() {}, nil
}

// pairedCase measures a figure with each of the builds in turns; which one comes first changes every round.
func pairedCase(name, unit string, moreIsBetter bool, measure func(ctx context.Context, s *session) (float64, error)) Case {
	target := fmt.Sprintf("<= %g x before", 1+result.PairedTolerance)
	if moreIsBetter {
		target = fmt.Sprintf(">= %g x before", 1-result.PairedTolerance)
	}
	return Case{name, target, []string{PairedSuite}, 55, func(ctx context.Context, s *session, name string) error {
		var before, now []float64
		for round := range cmp.Or(s.options.Repeats, pairedRounds) {
			for turn := range 2 {
				which := (round + turn) % 2
				s.library, s.config, s.segments = s.builds[which].library, s.builds[which].config, s.builds[which].segments
				value, err := measure(ctx, s)
				if err == nil && !(value > 0) {
					err = errors.New("it measured nothing")
				}
				if err != nil {
					return fmt.Errorf("%s: %w", [...]string{"the earlier build", "this build"}[which], err)
				}
				if which == 0 {
					before = append(before, value)
				} else {
					now = append(now, value)
				}
			}
		}
		p := compareRounds(before, now)
		p.Unit = unit
		pass, undecided := p.Judge(moreIsBetter)
		s.report.Cases = append(s.report.Cases, result.Row{Case: name, System: "gpreempt", Value: &p.Ratio, Unit: "x before", Target: target, Pass: pass, Undecided: undecided,
			Note:   fmt.Sprintf("95 %%: %.4f to %.4f; %.4g %s, before %.4g, %d rounds", p.CI[0], p.CI[1], p.Now, unit, p.Before, p.Rounds),
			Paired: &p})
		return nil
	}}
}

// compareRounds compares two builds' figures of the same rounds. The interval holds the median with 95 % confidence, whatever the
// distribution (order statistics); of few rounds it is all that was seen.
func compareRounds(before, now []float64) result.Paired {
	var ratios []float64
	for i := range before {
		ratios = append(ratios, now[i]/before[i])
	}
	slices.Sort(ratios)
	n := float64(len(ratios))
	half := 0.98 * math.Sqrt(n) // 1.96 standard deviations of the number below the median
	low, high := max(int(n/2-half), 0), min(int(math.Ceil(n/2+half)), len(ratios)-1)
	return result.Paired{Rounds: len(ratios), Before: result.Median(before), Now: result.Median(now), Ratio: result.Round(result.Quantile(ratios, .5), 4),
		CI: [2]float64{result.Round(ratios[low], 4), result.Round(ratios[high], 4)}}
}

func launchCost(role string) func(context.Context, *session) (float64, error) {
	return func(ctx context.Context, s *session) (float64, error) {
		var result launchResult
		err := s.run(ctx, &result, role, "launch", "--rounds", "300")
		return result.LeastNs, err
	}
}

// stoppableLaunchCost is that of a BE program whose launches can be stopped between blocks, which nobody does.
func stoppableLaunchCost(ctx context.Context, s *session) (float64, error) {
	undo, err := s.configure("mechanisms = [\"blp\"]\n")
	if err != nil {
		return 0, err
	}
	defer undo()
	w, err := s.start(ctx, "be", "launch", "--rounds", "300")
	if err != nil {
		return 0, err
	}
	defer s.finish(w)
	if err := w.awaitReady(ctx, nil); err != nil {
		return 0, err
	}
	if s.library == s.builds[1].library { // what an earlier build counts may be of another form
		counted, err := s.counters(ctx, s.config, w)
		if err == nil && (notInForce(counted) != "" || counted.KernelsGuarded == 0) {
			err = fmt.Errorf("no launch can be stopped%s", notInForce(counted))
		}
		if err != nil {
			return 0, err
		}
	}
	var measured launchResult
	err = w.ask(ctx, workerLimit, &measured, "run")
	return measured.LeastNs, err
}

func besideNobody(l load) func(context.Context, *session) (float64, error) {
	l.requests = pairedRequests
	return func(ctx context.Context, s *session) (float64, error) {
		options, err := s.lcOptions(ctx, l)
		if err != nil {
			return 0, err
		}
		var served lcResult
		if err := s.run(ctx, &served, "lc", "lc", options...); err != nil {
			return 0, err
		}
		return result.Quantile(result.SortedFloats(served.LatenciesNs, 1000), .5), nil // of nothing it is not a number
	}
}

func ownRateOfBE(ctx context.Context, s *session) (float64, error) {
	return s.beRate(ctx, bestEffort, "be")
}
