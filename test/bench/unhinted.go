package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// What a switch costs a request of one kernel without a hint, and whether it is shorter where BE's blocks have been drained before: the
// hardware has no state of theirs to save then.

const unhintedUs = 120 // more than alone

// unhinted has BE of blocks that take so long.
func unhinted(blockUs int) Case {
	target := fmt.Sprintf("lc p99 <= alone p99 + %d us", unhintedUs)
	rival := besideBlocks(blockUs)
	return Case{fmt.Sprintf("1x40us-beside-%dus-blocks", blockUs), target, []string{"unhinted"}, 45, func(ctx context.Context, s *session, name string) error {
		return s.measureUnhinted(ctx, name, rival, p99Within(unhintedUs))
	}}
}

// unhintedSystems are those of the evaluation by which BE makes way, and default time slicing.
var unhintedSystems = []string{"default", "gpreempt", "only-timeslice-hold", "only-timeslice-hold-blp"}

func (s *session) measureUnhinted(ctx context.Context, name string, rival work, target criterion) error {
	systems, err := workload.Systems(unhintedSystems)
	if err != nil {
		return err
	}
	options, err := s.lcOptions(ctx, single)
	if err != nil {
		return err
	}
	alone, lcAlone, beAlone, err := s.eachAlone(ctx, name, options, rival)
	if err != nil {
		return err
	}
	for _, system := range systems {
		lcRole, beRole := "", ""
		if system.Config != "" {
			lcRole, beRole = "lc", "be"
		}
		undo, err := s.configure(system.Config + "\n" + noHints)
		if err != nil {
			return err
		}
		s.counted = nil
		lc, rate, err := s.together(ctx, single, rival, 1, lcRole, beRole)
		undo()
		if err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%s: %w", system.Name, err))
		}
		row := result.Row{Case: name, System: system.Name, LC: result.LatencyOf(lc.LatenciesNs), LCAlone: lcAlone,
			BE: share(rate, beAlone, &lc, &alone, lcRole != "", kernelsPerSecond)}
		row.Ratio = result.RatioOf(row.LC, lcAlone)
		row.Note = fmt.Sprintf("p50 %+.0f us, p99 %+.0f us", row.LC.P50Us-lcAlone.P50Us, row.LC.P99Us-lcAlone.P99Us)
		if lcRole != "" {
			if row.BLP = s.counted; row.BLP != nil {
				row.Note += fmt.Sprintf("; %d stops; %s", row.BLP.Stops, inForce(row.BLP))
			}
			row = row.Judged(target.text, target.met(row))
		}
		s.add(row)
	}
	return nil
}
