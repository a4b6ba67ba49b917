package bench

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// PyTorch co-location: ResNet-50 inference as LC beside three BE programs, what the library costs in eager mode, and NVTX
// ranges as the source of hints.

const (
	torchAnswer = 2 * time.Minute // of a run: what nobody makes way for takes long
	stepLimit   = 40 * time.Second
	besideStep  = 500 * time.Millisecond // BE gets going, and passes the end of the LC interval
)

// script is a PyTorch worker of torch/.
type script struct {
	name, role, config string
	arguments          []string
	environment        []string
	cores              *unix.CPUSet
	limits             limits // zero: the usual ones
}

func (s *session) startScript(ctx context.Context, one script) (*worker, error) {
	if s.python == "" {
		return nil, fmt.Errorf("%s needs %s with PyTorch; name it with --python", one.name, s.options.Python)
	}
	configured := *s
	if configured.config = one.config; one.role == "" {
		configured.config = ""
	}
	name := strings.Join(append([]string{filepath.Base(one.name)}, one.arguments...), " ")
	if one.role != "" {
		name += " (" + one.role + ")"
	}
	p := program{name: name, arguments: append([]string{s.python, filepath.Join(s.files, one.name)}, one.arguments...), cores: one.cores, limits: one.limits,
		environment: append(configured.environment(one.role), "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")}
	p.environment = append(p.environment, one.environment...)
	return s.launch(ctx, p, one.role)
}

// startScripts starts several and waits until all of them are set up.
func (s *session) startScripts(ctx context.Context, all ...script) (workers []*worker, err error) {
	for _, one := range all {
		w, err := s.startScript(ctx, one)
		if err != nil {
			s.finishAll(workers)
			return nil, err
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		if err := w.awaitReady(ctx, nil); err != nil {
			s.finishAll(workers)
			return nil, err
		}
	}
	return workers, nil
}

func (s *session) finishAll(workers []*worker) {
	for _, w := range workers {
		w.orders.Close() // all end at once
	}
	for _, w := range workers {
		s.finish(w)
	}
}

// requests lets an LC worker serve so many.
func (w *worker) requests(ctx context.Context, count int) (r lcResult, err error) {
	if err = w.ask(ctx, torchAnswer, &r, fmt.Sprintf("run %d", count)); err == nil && len(r.LatenciesNs) == 0 {
		err = fmt.Errorf("%s finished no request in time", w.name)
	}
	w.different += r.Different
	return r, err
}

// rateAlone is the rate of a BE worker that has the GPU to itself for so long.
func (w *worker) rateAlone(ctx context.Context, length time.Duration) (float64, error) {
	if err := w.ask(ctx, stepLimit, nil, "start"); err != nil {
		return 0, err
	}
	if err := pause(ctx, length); err != nil {
		return 0, err
	}
	var r beResult
	if err := w.ask(ctx, stepLimit, &r, "stop"); err != nil {
		return 0, err
	}
	w.different += r.Different
	return r.ownRate()
}

// beside lets a BE worker run while LC requests are served, and gives its rate in that time.
func (w *worker) beside(ctx context.Context, serve func() (lcResult, error)) (r lcResult, rate float64, err error) {
	if err := w.ask(ctx, stepLimit, nil, "start"); err != nil {
		return r, 0, err
	}
	if err := pause(ctx, besideStep); err != nil {
		return r, 0, err
	}
	if r, err = serve(); err != nil {
		return r, 0, err
	}
	if err := pause(ctx, besideStep); err != nil {
		return r, 0, err
	}
	var be beResult
	if err := w.ask(ctx, stepLimit, &be, "stop"); err != nil {
		return r, 0, err
	}
	w.different += be.Different
	return r, be.rate(r.StartNs, r.EndNs), nil
}

// beAlone is the rate of a BE worker that has the GPU to itself for a part of the usual time.
func (s *session) beAlone(ctx context.Context, be *worker, part float64) (float64, error) {
	usual := cmp.Or(s.options.tests.beAlone, 4*time.Second)
	return be.rateAlone(ctx, time.Duration(part*float64(usual)))
}

const (
	graphRequests       = 200
	graphGapMs          = 40
	graphP99, graphRate = 1.25, 0.95
	aloneRate           = 0.99
)

func graphCase(kind string) Case {
	target := fmt.Sprintf("lc p99 <= %g x alone, BE >= %g of alone", graphP99, graphRate)
	return Case{"resnet50-graph-beside-" + kind, target, []string{"pytorch"}, 60, func(ctx context.Context, s *session, name string) error {
		return s.measureGraph(ctx, name, kind, target)
	}}
}

// measureGraph measures beside one BE program. Both processes hold contexts throughout; "alone" means that the other one
// has no work.
func (s *session) measureGraph(ctx context.Context, name, kind, target string) error {
	count := s.options.Requests
	if count == 0 {
		count = graphRequests
	}
	var alone lcResult
	var beRate float64
	for _, system := range []struct{ name, lcRole, beRole string }{{"default", "", ""}, {"gpreempt", "lc", "be"}} {
		err := func() error {
			workers, err := s.startScripts(ctx,
				script{name: "lc.py", role: system.lcRole, config: s.config, arguments: []string{"--mode", "graph", "--gap-ms", fmt.Sprint(graphGapMs)}},
				script{name: "be.py", role: system.beRole, config: s.config, arguments: []string{kind}})
			if err != nil {
				return err
			}
			defer s.finishAll(workers)
			lc, be := workers[0], workers[1]
			if system.name == "default" {
				if alone, err = lc.requests(ctx, count); err != nil {
					return err
				}
			}
			unshared, err := s.beAlone(ctx, be, 1)
			if err != nil {
				return err
			}
			if system.name == "default" {
				beRate = unshared
				s.add(result.Row{Case: name, System: "alone", LC: result.LatencyOf(alone.LatenciesNs), BE: rateOf(beRate, beRate, stepsPerSecond)})
			} else {
				row := result.Row{Case: kind + "-alone", System: system.name, BE: rateOf(unshared, beRate, stepsPerSecond)}
				s.add(row.Judged("BE >= 0.99 of without the library", row.BE.Share >= aloneRate))
			}
			result, rate, err := be.beside(ctx, func() (lcResult, error) { return lc.requests(ctx, count) })
			if err != nil {
				return err
			}
			row := besideRow(name, system.name, &result, &alone, rate, beRate, system.name == "gpreempt")
			if system.name == "gpreempt" {
				row = row.Judged(target, row.Ratio.P99 <= graphP99 && rate/beRate >= graphRate)
				row.Note = fmt.Sprintf("an LC request every %d ms and its own time", graphGapMs)
			}
			s.add(row)
			return nil
		}()
		if err != nil {
			return fmt.Errorf("%s: %w", system.name, err)
		}
	}
	return nil
}

// add adds rows to the session's report.
// add adds rows of the case that is measured. They are in the folder at once, for a machine may be taken away before the case ends.
func (s *session) add(rows ...result.Row) {
	s.report.Cases = append(s.report.Cases, rows...)
	if s.keep != nil {
		s.keep(s.report)
	}
}

// besideRow is the row of LC requests beside a BE worker.
func besideRow(name, system string, now, alone *lcResult, rate, beAlone float64, makesWay bool) result.Row {
	row := result.Row{Case: name, System: system, LC: result.LatencyOf(now.LatenciesNs), LCAlone: result.LatencyOf(alone.LatenciesNs),
		BE: share(rate, beAlone, now, alone, makesWay, stepsPerSecond)}
	row.Ratio = result.RatioOf(row.LC, row.LCAlone)
	return row
}

const (
	eagerRounds, eagerRequests = 24, 20
	eagerPercent               = 1.0
)

// measureEager measures what the library costs an eager LC process that has the GPU to itself. That is less than processes
// of one kind differ among themselves (the later one is started, the slower), and than one of them differs from minute to
// minute. So several of each are started in a symmetric order on the same two processors, take short turns in changing
// order, and are compared round by round.
func measureEager(ctx context.Context, s *session, name string) error {
	systems := []string{"alone", "gpreempt", "gpreempt", "alone", "alone", "gpreempt"}
	cores, err := lastCores(2)
	if err != nil {
		return err
	}
	var workers []*worker
	defer func() { s.finishAll(workers) }()
	for _, system := range systems { // one after another: the order is part of it
		role := map[string]string{"gpreempt": "lc"}[system]
		w, err := s.startScripts(ctx, script{name: "lc.py", role: role, config: s.config, arguments: []string{"--mode", "eager", "--gap-ms", "2"}, cores: cores})
		if err != nil {
			return err
		}
		workers = append(workers, w...)
	}
	all := map[string][]uint64{}
	var costs []float64
	for round := range eagerRounds {
		p50 := map[string][]float64{}
		for i := range workers {
			if round%2 == 1 {
				i = len(workers) - 1 - i
			}
			r, err := workers[i].requests(ctx, eagerRequests)
			if err != nil {
				return err
			}
			all[systems[i]] = append(all[systems[i]], r.LatenciesNs...)
			p50[systems[i]] = append(p50[systems[i]], result.Quantile(result.SortedFloats(r.LatenciesNs, 1), .5))
		}
		costs = append(costs, 100*(result.Median(p50["gpreempt"])/result.Median(p50["alone"])-1))
	}
	slices.Sort(costs)
	low, cost, high := result.Quantile(costs, .25), result.Quantile(costs, .5), result.Quantile(costs, .75)
	alone, now := result.LatencyOf(all["alone"]), result.LatencyOf(all["gpreempt"])
	row := result.Row{Case: name, System: "gpreempt", LC: now, LCAlone: alone, Ratio: result.RatioOf(now, alone),
		Note: fmt.Sprintf("%+.2f %%, median of %d rounds of 3 processes each; half of the rounds between %+.2f and %+.2f %%", cost, eagerRounds, low, high)}
	s.add(result.Row{Case: name, System: "alone", LC: alone}, row.Judged("library costs <= 1 % of p50", cost <= eagerPercent))
	return nil
}

const (
	nvtxRequests, nvtxGapMs, nvtxPrepareUs = 300, 5, 500
	nvtxMet, nvtxLaterUs                   = 0.9, 40
)

// measureNVTX has a range begin 0.5 ms before each request: one that the configuration names, or another.
func measureNVTX(ctx context.Context, s *session, name string) error {
	count := s.options.Requests
	if count == 0 {
		count = nvtxRequests
	}
	log := filepath.Join(s.folder, "requests")
	if _, err := s.configure(configs.HintsFrom() + fmt.Sprintf("nvtx = [\"request\"]\nlog = %q\n", log)); err != nil {
		return err
	}
	workers, err := s.startScripts(ctx,
		script{name: "lc.py", role: "lc", config: s.config, arguments: []string{"--gap-ms", fmt.Sprint(nvtxGapMs)}},
		script{name: "be.py", role: "be", config: s.config, arguments: []string{"train"}})
	if err != nil {
		return err
	}
	defer s.finishAll(workers)
	lc, be := workers[0], workers[1]
	beRate, err := be.rateAlone(ctx, 2*time.Second)
	if err != nil {
		return err
	}
	serve := func(named string) (lcResult, error) {
		if err := lc.ask(ctx, answerLimit, nil, fmt.Sprintf("range %s %d", named, nvtxPrepareUs)); err != nil {
			return lcResult{}, err
		}
		return lc.requests(ctx, count)
	}
	alone, err := serve("other")
	if err != nil {
		return err
	}
	s.add(result.Row{Case: name, System: "alone", LC: result.LatencyOf(alone.LatenciesNs)})
	for _, system := range []struct{ name, named string }{{"gpreempt", "other"}, {"gpreempt-hints", "request"}} {
		lcNow, rate, err := be.beside(ctx, func() (lcResult, error) { return serve(system.named) })
		if err != nil {
			return fmt.Errorf("%s: %w", system.name, err)
		}
		row := besideRow(name, system.name, &lcNow, &alone, rate, beRate, true)
		if system.name == "gpreempt-hints" {
			requests, err := readRequests(log)
			if err != nil {
				return err
			}
			met, of := 0, 0
			for _, r := range requests {
				if r.AtNs < lcNow.StartNs {
					continue
				}
				of++
				if r.HeldUs != 0 {
					met++
				}
			}
			row.Hints = &result.Hints{Requests: map[string]int{"met": met, "of": of}}
			row = row.Judged(fmt.Sprintf("%g of the requests meet a hint, p50 <= alone + %d us", nvtxMet, nvtxLaterUs),
				float64(met) >= nvtxMet*float64(count) && row.LC.P50Us <= row.LCAlone.P50Us+nvtxLaterUs)
		}
		s.add(row)
	}
	return nil
}
