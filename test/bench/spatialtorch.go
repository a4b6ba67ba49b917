package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// PyTorch under MPS, where requests follow each other soon: what best-effort programs do while a request runs counts.

const (
	spatialGapMs    = 1
	spatialRequests = 1500
	spatialSeconds  = 8 // after which a run ends early
	spatialP99      = 1.1
)

func spatialTorchCase(kind string) Case {
	target := fmt.Sprintf("lc p99 <= %g x alone", spatialP99)
	return Case{"spatial-resnet50-beside-" + kind, target, []string{"spatial-pytorch"}, 75, func(ctx context.Context, s *session, name string) error {
		return s.measureSpatialTorch(ctx, name, kind, target)
	}}
}

func (s *session) measureSpatialTorch(ctx context.Context, name, kind, target string) error {
	systems := []struct{ name, lcRole, beRole, mechanisms, environment string }{
		{name: mpsSystem},
		{name: mpsOrdered, environment: lowerPriority},
		{name: "gpreempt", lcRole: "lc", beRole: "be", mechanisms: `"auto"`},
		{name: "gpreempt-spatial", lcRole: "lc", beRole: "be", mechanisms: withSpatialNamed},
	}
	count, seconds := cmp.Or(s.options.Requests, spatialRequests), cmp.Or(s.options.Seconds, spatialSeconds)
	var scripts []script
	var configs []string
	for _, system := range systems {
		if s.mechanisms = system.mechanisms; s.mechanisms == "" {
			s.mechanisms = `"auto"`
		}
		config, err := s.blpConfig("spatial-"+kind+"-"+system.name, "cache")
		if err != nil {
			return err
		}
		configs = append(configs, config)
		be := script{name: "be.py", role: system.beRole, config: config, arguments: []string{kind}, environment: slices.Clone(s.addMPS)}
		if system.environment != "" {
			be.environment = append(be.environment, system.environment)
		}
		scripts = append(scripts, be, script{name: "lc.py", role: system.lcRole, config: config, environment: slices.Clone(s.addMPS),
			arguments: []string{"--mode", "graph", "--gap-ms", strconv.Itoa(spatialGapMs)}})
	}
	workers, err := s.startScripts(ctx, scripts...) // processes without work do not disturb
	if err != nil {
		return err
	}
	defer s.finishAll(workers)
	beRate, err := s.beAlone(ctx, workers[0], .5)
	if err != nil {
		return err
	}
	serve := func(w *worker) (r lcResult, err error) {
		if err = w.ask(ctx, torchAnswer, &r, fmt.Sprintf("run %d %.0f", count, seconds)); err == nil && len(r.LatenciesNs) == 0 {
			err = fmt.Errorf("no request was finished in time")
		}
		return r, err
	}
	alone, err := serve(workers[1])
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	s.add(result.Row{Case: name, System: "alone", LC: result.LatencyOf(alone.LatenciesNs), BE: rateOf(beRate, beRate, stepsPerSecond)})
	for i, system := range systems {
		be, lc := workers[2*i], workers[2*i+1]
		now, rate, err := be.beside(ctx, func() (lcResult, error) { return serve(lc) })
		if err != nil {
			return fmt.Errorf("%s: %w", system.name, err)
		}
		row := besideRow(name, system.name, &now, &alone, rate, beRate, system.lcRole != "")
		if system.lcRole != "" {
			row.BLP = s.count(configs[i], be.pid())
			row.Note = inForce(row.BLP)
			row = row.Judged(target, row.Ratio.P99 <= spatialP99)
		}
		s.add(row)
	}
	return nil
}
