package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// PyTorch under MPS, on a server of its own: latency-critical requests (ResNet-50 inference as a graph, and fifty tiny
// kernels synchronised one by one) beside best-effort programs, alone, as MPS has it, with BE clients of a lower priority,
// and under the library.

const (
	mpsP99, mpsShare      = 1.3, 0.85
	mpsRequests           = 150
	mpsSeconds            = 6 // after which a run ends early
	mpsGapMs              = 20
	lowerPriority         = "CUDA_MPS_CLIENT_PRIORITY=1"
	mpsSystem, mpsOrdered = "mps", "mps-priority"
)

func mpsTorchCase(kind string) Case {
	target := ""
	if kind != "gemmfp64" {
		target = fmt.Sprintf("lc p99 <= %g x alone", mpsP99)
	}
	return Case{"mps-beside-" + kind, target, []string{"blp-mps-pytorch"}, 60, func(ctx context.Context, s *session, _ string) error {
		return s.measureMPSTorch(ctx, kind, target)
	}}
}

func torchClientsOfMPS(ctx context.Context, s *session) (end func(), err error) {
	quit, err := s.underMPS(ctx)
	if err != nil {
		return nil, err
	}
	s.mechanisms = `"auto"`
	return quit, nil
}

// mpsLC are LC requests of one kind, by whether they are under the library.
type mpsLC struct {
	name  string
	serve func(ctx context.Context, ours bool) (lcResult, error)
}

func (s *session) measureMPSTorch(ctx context.Context, kind, target string) error {
	config, err := s.blpConfig("mps-"+kind, "cache")
	if err != nil {
		return err
	}
	s.config, s.added = config, map[string][]string{"lc": s.addMPS, "calibrate": s.addMPS}
	count, seconds := cmp.Or(s.options.Requests, mpsRequests), cmp.Or(s.options.Seconds, mpsSeconds)
	clients := func(role string, lower bool, name string, arguments ...string) script {
		one := script{name: name, role: role, config: config, arguments: arguments, environment: slices.Clone(s.addMPS)}
		if lower {
			one.environment = append(one.environment, lowerPriority)
		}
		return one
	}
	gap := []string{"--mode", "graph", "--gap-ms", strconv.Itoa(mpsGapMs)}
	// Processes without work do not disturb.
	workers, err := s.startScripts(ctx, clients("", false, "lc.py", gap...), clients("lc", false, "lc.py", gap...),
		clients("", false, "be.py", kind), clients("", true, "be.py", kind), clients("be", false, "be.py", kind))
	if err != nil {
		return err
	}
	defer s.finishAll(workers)
	be := map[string]*worker{mpsSystem: workers[2], mpsOrdered: workers[3], "gpreempt": workers[4]}
	beRate, err := s.beAlone(ctx, be[mpsSystem], .5)
	if err != nil {
		return err
	}
	under, err := s.beAlone(ctx, be["gpreempt"], .5)
	if err != nil {
		return err
	}
	s.add(result.Row{Case: "mps-" + kind + "-alone", System: "gpreempt", BE: rateOf(under, beRate, stepsPerSecond)})
	all := []mpsLC{{"mps-resnet50-graph-beside-" + kind, func(ctx context.Context, ours bool) (r lcResult, err error) {
		w := workers[0]
		if ours {
			w = workers[1]
		}
		err = w.ask(ctx, torchAnswer, &r, fmt.Sprintf("run %d %.0f", count, seconds))
		return r, err
	}}}
	if kind == "train" {
		options, err := s.workOptions(ctx, work{us: 10, blocksPerSM: 1})
		if err != nil {
			return err
		}
		options = append(options, "--kernels", "50", "--sync-each", "1", "--gap-us", "3000", "--requests", strconv.Itoa(count), "--seconds", fmt.Sprintf("%.0f", seconds))
		all = append(all, mpsLC{"mps-50x10us-synced-beside-" + kind, func(ctx context.Context, ours bool) (r lcResult, err error) {
			err = s.run(ctx, &r, map[bool]string{true: "lc"}[ours], "lc", options...)
			return r, err
		}})
	}
	for i, lc := range all {
		if err := s.measureMPSRequests(ctx, lc, i > 0, be, beRate, config, target); err != nil {
			return fmt.Errorf("%s: %w", lc.name, err)
		}
	}
	return nil
}

func (s *session) measureMPSRequests(ctx context.Context, lc mpsLC, synced bool, be map[string]*worker, beRate float64, config, target string) error {
	alone, err := lc.serve(ctx, false)
	if err == nil && len(alone.LatenciesNs) == 0 {
		err = fmt.Errorf("no request was finished in time")
	}
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	s.add(result.Row{Case: lc.name, System: "alone", LC: result.LatencyOf(alone.LatenciesNs), BE: rateOf(beRate, beRate, stepsPerSecond)})
	for _, system := range []string{mpsSystem, mpsOrdered, "gpreempt"} {
		ours := system == "gpreempt"
		lcNow, rate, err := be[system].beside(ctx, func() (lcResult, error) { return lc.serve(ctx, ours) })
		if err == nil && len(lcNow.LatenciesNs) == 0 {
			err = fmt.Errorf("no request was finished in time")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", system, err)
		}
		row := besideRow(lc.name, system, &lcNow, &alone, rate, beRate, ours)
		if ours {
			c := s.count(config, be[system].pid())
			if c == nil {
				c = &result.Counted{}
			}
			row.BLP = c
			row.Note = fmt.Sprintf("in force: %s; %d stops, drain %.0f us mean; %d launches covered, %d not", list(c.Mechanisms), c.Stops,
				float64(c.DrainNs)/1000/float64(max(c.Stops, 1)), c.Launches, c.Uncovered)
			switch {
			case target == "":
			case synced:
				row = row.Judged(fmt.Sprintf("%s, BE >= %g of what LC leaves", target, mpsShare), row.Ratio.P99 <= mpsP99 && row.BE.Share >= mpsShare)
			default:
				row = row.Judged(target, row.Ratio.P99 <= mpsP99)
			}
		}
		s.add(row)
	}
	return nil
}
