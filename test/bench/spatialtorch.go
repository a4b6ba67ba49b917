package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// PyTorch under MPS: requests that come by the clock, beside best-effort programs that fill the GPU. What these do while a request runs counts.

const (
	spatialHz      = 100
	spatialSeconds = 4  // of requests, under each system
	spatialLate    = 2  // more of them, after which a run ends early
	spatialWarmUp  = 60 // requests: within 50 the library has learnt what they leave
	spatialBatch   = 64 // images of a training step: six such processes fit on a GPU of 80 GB

	spatialP99, computingP99  = 1.1, 1.05
	spatialMore, spatialLeast = 1.1, 0.97 // LC and BE together, relative to whole stops
	halfSlower                = 1.05      // requests this much slower on half of the SMs at most leave the other half
	busiestMore               = 1.5       // BE at the busiest load, relative to whole stops
)

var (
	spatialModels = []string{"resnet50", "vgg19", "decode"}
	spatialLoads  = []int{50, 90} // percent of the time that requests take alone
	computing     = []string{"gemmfp16", "spin"}
)

const (
	stopAllSystem, spatialSystem = "gpreempt", "gpreempt-spatial"
	wholeStopsNamed              = `["gate", "mps", "blp"]`
)

func threadsOfMPS(percent int) string {
	return fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent)
}

// wayUnderMPS is a way for the clients of an MPS server to share the GPU: with an environment of BE's, or by mechanisms of the library.
type wayUnderMPS struct{ name, be, mechanisms string }

var spatialSystems = []wayUnderMPS{
	{name: mpsSystem},
	{name: mpsOrdered, be: lowerPriority},
	{name: "mps-25", be: threadsOfMPS(25)},
	{name: "mps-50", be: threadsOfMPS(50)},
	{name: stopAllSystem, mechanisms: wholeStopsNamed},
	{name: spatialSystem, mechanisms: withSpatialNamed},
}

// standingSystems are with a width of BE's that always stands and, without it and beside it, whole stops.
var standingSystems = []wayUnderMPS{
	{name: mpsSystem},
	{name: "mps-25", be: threadsOfMPS(25)},
	{name: stopAllSystem, mechanisms: wholeStopsNamed},
	{name: stopAllSystem + "-25", be: threadsOfMPS(25), mechanisms: wholeStopsNamed},
}

func spatialP99Of(kind string) float64 {
	if slices.Contains(computing, kind) {
		return computingP99
	}
	return spatialP99
}

// spatialTorchCase has requests of each model beside BE of one kind.
func spatialTorchCase(kind string) Case {
	target := fmt.Sprintf("lc p99 <= %g x alone; LC and BE >= %g x whole stops where LC leaves half of the SMs, else >= %g, and more than MPS with priorities",
		spatialP99Of(kind), spatialMore, spatialLeast)
	return Case{"spatial-beside-" + kind, target, []string{"spatial-pytorch"}, 160, func(ctx context.Context, s *session, _ string) error {
		b, err := s.startSpatial(ctx, kind, spatialModels, spatialSystems)
		if err != nil {
			return err
		}
		defer b.end()
		for _, model := range spatialModels {
			if err := b.measureRate(ctx, model); err != nil {
				return fmt.Errorf("%s: %w", model, err)
			}
		}
		return nil
	}}
}

// standingCase has requests of each model beside BE whose width always stands, which serves them where a stop of its blocks takes too long.
func standingCase(kind string) Case {
	return Case{"spatial-standing-beside-" + kind, "", []string{"spatial-pytorch"}, 120, func(ctx context.Context, s *session, _ string) error {
		b, err := s.startSpatial(ctx, kind, spatialModels, standingSystems)
		if err != nil {
			return err
		}
		defer b.end()
		for _, model := range spatialModels {
			alone, err := b.serve(ctx, b.lc[model][mpsSystem], spatialHz)
			if err != nil {
				return fmt.Errorf("%s alone: %w", model, err)
			}
			if _, err := b.measure(ctx, fmt.Sprintf("standing-%s-%dhz-beside-%s", model, spatialHz, kind), model, spatialHz, &alone, 0); err != nil {
				return fmt.Errorf("%s: %w", model, err)
			}
		}
		return nil
	}}
}

// spatialLoadCase has requests of ResNet-50 take a part of the time.
func spatialLoadCase(kind string) Case {
	target := fmt.Sprintf("BE >= %g x whole stops at %d %% load; LC and BE >= %g x whole stops", busiestMore, spatialLoads[len(spatialLoads)-1], spatialLeast)
	return Case{"spatial-loads-beside-" + kind, target, []string{"spatial-pytorch"}, 110, func(ctx context.Context, s *session, _ string) error {
		const model = "resnet50"
		b, err := s.startSpatial(ctx, kind, []string{model}, spatialSystems)
		if err != nil {
			return err
		}
		defer b.end()
		alone, err := b.serve(ctx, b.lc[model][mpsSystem], spatialHz)
		if err != nil {
			return fmt.Errorf("alone: %w", err)
		}
		for _, percent := range spatialLoads {
			hz := float64(percent) / 100 * 1e9 / alone.mean()
			if err := b.measureLoad(ctx, model, percent, hz); err != nil {
				return fmt.Errorf("%d %% load: %w", percent, err)
			}
		}
		return nil
	}}
}

// spatialBench is a kind of BE work beside requests: a process for each system and model.
type spatialBench struct {
	*session
	kind    string
	systems []wayUnderMPS
	lc      map[string]map[string]*worker // by model and system; "" for half of the SMs
	be      map[string]*worker            // by system
	config  map[string]string             // of the library, by system
	all     []*worker
	beRate  float64 // alone
}

func (s *session) startSpatial(ctx context.Context, kind string, models []string, systems []wayUnderMPS) (*spatialBench, error) {
	b := &spatialBench{session: s, kind: kind, systems: systems, lc: map[string]map[string]*worker{}, be: map[string]*worker{}, config: map[string]string{}}
	var scripts []script
	var take []func(*worker) // what each of them is
	add := func(one script, more string, is func(*worker)) {
		one.environment = slices.Clone(s.addMPS)
		if more != "" {
			one.environment = append(one.environment, more)
		}
		one.arguments = append(one.arguments, "--fixed-algorithms") // as fast in each process
		scripts, take = append(scripts, one), append(take, is)
	}
	addLC := func(model, system, role, more string) {
		one := script{name: "lc.py", role: role, config: b.config[system], arguments: []string{"--model", model, "--warm-up", strconv.Itoa(spatialWarmUp)}}
		add(one, more, func(w *worker) { b.lc[model][system] = w })
	}
	for _, model := range models {
		b.lc[model] = map[string]*worker{}
		addLC(model, mpsSystem, "", "") // also of the other systems that leave LC as it is
		addLC(model, "", "", threadsOfMPS(50))
	}
	for _, system := range systems {
		role := ""
		if system.mechanisms != "" {
			role = "be"
			s.mechanisms = system.mechanisms
			config, err := s.blpConfig("spatial-"+kind+"-"+system.name, "cache")
			if err != nil {
				return nil, err
			}
			b.config[system.name] = config
			for _, model := range models {
				addLC(model, system.name, "lc", "")
			}
		}
		one := script{name: "be.py", role: role, config: b.config[system.name], arguments: []string{kind, "--batch", strconv.Itoa(spatialBatch)}}
		add(one, system.be, func(w *worker) { b.be[system.name] = w })
	}
	var err error
	if b.all, err = s.startScripts(ctx, scripts...); err != nil { // processes without work do not disturb
		return nil, err
	}
	for i, w := range b.all {
		take[i](w)
	}
	if b.beRate, err = s.beAlone(ctx, b.be[mpsSystem], .5); err != nil {
		b.end()
		return nil, err
	}
	return b, nil
}

func (b *spatialBench) end() { b.finishAll(b.all) }

func (b *spatialBench) serve(ctx context.Context, w *worker, hz float64) (r lcResult, err error) {
	seconds := cmp.Or(b.options.Seconds, spatialSeconds)
	count := cmp.Or(b.options.Requests, int(math.Ceil(hz*seconds)))
	if err = w.ask(ctx, answerLimit, nil, fmt.Sprintf("rate %.3f", hz)); err != nil {
		return r, err
	}
	longest := math.Ceil(seconds + spatialLate + spatialWarmUp/hz)
	if err = w.ask(ctx, torchAnswer, &r, fmt.Sprintf("run %d %.0f", count, longest)); err == nil && len(r.LatenciesNs) == 0 {
		err = fmt.Errorf("%s finished no request in time", w.name)
	}
	return r, err
}

// together is LC and BE work, each in parts of the GPU's time that it takes alone.
func together(now, alone *lcResult, be *result.Share) float64 {
	return float64(len(now.LatenciesNs))*alone.mean()/float64(now.EndNs-now.StartNs) + be.Now/be.Alone
}

// spatialSeen is what was measured under a system.
type spatialSeen struct {
	p99Us, together, be float64
}

// measure has the requests of a model come at a rate under each system. What fails under one does not end the others. With a limit the
// mechanism's p99 is judged.
func (b *spatialBench) measure(ctx context.Context, name, model string, hz float64, alone *lcResult, limit float64) (map[string]spatialSeen, error) {
	b.add(result.Row{Case: name, System: "alone", LC: result.LatencyOf(alone.LatenciesNs), BE: rateOf(b.beRate, b.beRate, stepsPerSecond),
		Note: fmt.Sprintf("%.0f requests/s", hz)})
	seen := map[string]spatialSeen{}
	for _, system := range b.systems {
		be, lc, ours := b.be[system.name], b.lc[model][mpsSystem], system.mechanisms != ""
		var before *result.Counted
		if ours {
			lc, before = b.lc[model][system.name], b.count(b.config[system.name], be.pid())
		}
		now, rate, err := be.beside(ctx, func() (lcResult, error) { return b.serve(ctx, lc, hz) })
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			b.add(result.Row{Case: name, System: system.name, LCAlone: result.LatencyOf(alone.LatenciesNs), Note: err.Error()}.Judged(measured, false))
			continue
		}
		row := besideRow(name, system.name, &now, alone, rate, b.beRate, ours)
		sum := together(&now, alone, row.BE)
		seen[system.name] = spatialSeen{row.LC.P99Us, sum, row.BE.Now}
		row.Note = fmt.Sprintf("LC and BE %.3f of the GPU's time", sum)
		if ours {
			row.BLP = b.count(b.config[system.name], be.pid())
			row.Note = strings.Join([]string{row.Note, wentOn(before, row.BLP), b.leaves(system.name, lc), inForce(row.BLP)}, "; ")
		}
		if system.name == spatialSystem && limit > 0 {
			row = row.Judged(fmt.Sprintf("lc p99 <= %g x alone", limit), row.Ratio.P99 <= limit)
		}
		b.add(row)
	}
	return seen, nil
}

// wentOn is what BE did between two counts.
func wentOn(before, now *result.Counted) string {
	if now == nil {
		return "what BE did is not known"
	}
	if before == nil {
		before = &result.Counted{}
	}
	return fmt.Sprintf("%d stops, %d launches went on narrow, for %.0f ms", now.Stops-before.Stops, now.Narrowed-before.Narrowed,
		float64(now.NarrowNs-before.NarrowNs)/1e6)
}

// leaves is what the windows of an LC process left last.
func (b *spatialBench) leaves(system string, lc *worker) string {
	p, _, err := peer(b.config[system], lc.pid())
	if err != nil || p == nil || p.Width == nil {
		return "LC leaves nothing"
	}
	return fmt.Sprintf("LC leaves %d SMs", p.Width.SMs)
}

// measureRate has requests come a hundred times a second.
func (b *spatialBench) measureRate(ctx context.Context, model string) error {
	name := fmt.Sprintf("spatial-%s-%dhz-beside-%s", model, spatialHz, b.kind)
	alone, err := b.serve(ctx, b.lc[model][mpsSystem], spatialHz)
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	half, err := b.serve(ctx, b.lc[model][""], spatialHz)
	if err != nil {
		return fmt.Errorf("alone on half of the SMs: %w", err)
	}
	row := result.Row{Case: name + "-on-half", System: "mps-50", LC: result.LatencyOf(half.LatenciesNs), LCAlone: result.LatencyOf(alone.LatenciesNs),
		Note: "LC alone, on half of the SMs"}
	row.Ratio = result.RatioOf(row.LC, row.LCAlone)
	b.add(row)
	seen, err := b.measure(ctx, name, model, spatialHz, &alone, spatialP99Of(b.kind))
	if err != nil {
		return err
	}
	b.add(judgeTogether(name, seen, row.Ratio.P50 <= halfSlower)...)
	return nil
}

// judgeTogether compares what LC and BE do together, where requests that come now and then leave half of the SMs or not.
func judgeTogether(name string, seen map[string]spatialSeen, leavesHalf bool) (rows []result.Row) {
	ours, measured := seen[spatialSystem]
	if !measured {
		return nil
	}
	if whole, measured := seen[stopAllSystem]; measured {
		least, note := spatialLeast, "LC does not leave half of the SMs"
		if leavesHalf {
			least, note = spatialMore, "LC leaves half of the SMs"
		}
		ratio := ours.together / whole.together
		rows = append(rows, valueRow(name+"-together", spatialSystem, result.Round(ratio, 3), "x whole stops", fmt.Sprintf("LC and BE >= %g x whole stops", least), ratio >= least, note))
	}
	if ordered, measured := seen[mpsOrdered]; measured {
		ratio := ours.together / ordered.together
		rows = append(rows, valueRow(name+"-ordered", spatialSystem, result.Round(ratio, 3), "x MPS with priorities",
			"LC and BE more than MPS with priorities, at a p99 that is no longer", ratio > 1 && ours.p99Us <= ordered.p99Us,
			fmt.Sprintf("lc p99 %.0f us, there %.0f us", ours.p99Us, ordered.p99Us)))
	}
	return rows
}

func (b *spatialBench) measureLoad(ctx context.Context, model string, percent int, hz float64) error {
	name := fmt.Sprintf("spatial-%s-load-%d-beside-%s", model, percent, b.kind)
	alone, err := b.serve(ctx, b.lc[model][mpsSystem], hz)
	if err != nil {
		return fmt.Errorf("alone: %w", err)
	}
	seen, err := b.measure(ctx, name, model, hz, &alone, 0)
	if err != nil {
		return err
	}
	b.add(judgeLoad(name, seen, percent)...)
	return nil
}

// judgeLoad compares where requests take a part of the time.
func judgeLoad(name string, seen map[string]spatialSeen, percent int) []result.Row {
	ours, measured := seen[spatialSystem]
	whole, stopped := seen[stopAllSystem]
	if !measured || !stopped {
		return nil
	}
	target := ""
	if percent == spatialLoads[len(spatialLoads)-1] {
		target = fmt.Sprintf("BE >= %g x whole stops", busiestMore)
	}
	be, both := ours.be/max(whole.be, 1e-9), ours.together/whole.together
	return []result.Row{
		valueRow(name+"-be", spatialSystem, result.Round(be, 3), "x whole stops", target, be >= busiestMore, ""),
		valueRow(name+"-together", spatialSystem, result.Round(both, 3), "x whole stops", fmt.Sprintf("LC and BE >= %g x whole stops", spatialLeast), both >= spatialLeast, ""),
	}
}
