package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// load is an LC process's requests.
type load struct {
	work
	kernels  int // of a request
	gapUs    int // from a request's end to the next one's arrival
	requests int
	each     bool // synchronise after every kernel, not only after the last
	context  bool // synchronise the whole context
	// Requests that are announced: see command_lc of worker.c.
	prepareUs int
	hint      bool
}

const (
	beSeconds = 2 // of a BE process that runs alone
	lcSeconds = 7 // after which an LC process stops early: default time slicing makes it very slow
)

var bestEffort = work{us: 5000, blocksPerSM: 2}

func synced(us, sharedKB int) load {
	return load{work: work{us: us, blocksPerSM: 1, sharedBytes: sharedKB << 10}, kernels: 50, gapUs: 3000,
		requests: 300, each: true}
}

var (
	single      = load{work: work{us: 40, blocksPerSM: 1}, kernels: 1, gapUs: 3000, requests: 600}
	cooperative = func() load { l := synced(20, 0); l.cooperative = true; return l }()
	every10ms   = func() load { l := synced(10, 0); l.gapUs = 10000; return l }()
	wholeCtx    = func() load { l := synced(10, 0); l.context = true; return l }()
)

// Requests that are announced.
var (
	announcedSingle = load{work: single.work, kernels: 1, gapUs: 3000, requests: 600, prepareUs: 300, hint: true}
	announcedSynced = func() load { l := synced(10, 0); l.prepareUs, l.hint = 300, true; return l }()
)

// Sections of the configuration, by which sources give hints.
var (
	noHints      = configs.HintsFrom(configs.HintCopy) // copies are hints that ask nothing of the application
	explicitOnly = configs.HintsFrom(configs.HintCopy, configs.HintExplicit)
)

// criterion is a target of an LC/BE pair.
type criterion struct {
	text string
	met  func(result.Row) bool
}

func p99Within(us float64) criterion {
	return criterion{fmt.Sprintf("lc p99 <= alone p99 + %g us", us),
		func(r result.Row) bool { return r.LC.P99Us <= r.LCAlone.P99Us+us }}
}

func p99Times(times float64) criterion {
	return criterion{fmt.Sprintf("lc p99 <= %g x alone", times),
		func(r result.Row) bool { return r.LC.P99Us <= times*r.LCAlone.P99Us }}
}

func shareAtLeast(share float64) criterion {
	return criterion{fmt.Sprintf("BE >= %g of what LC leaves", share),
		func(r result.Row) bool { return r.BE.Share >= share }}
}

func both(a, b criterion) criterion {
	return criterion{a.text + ", " + b.text, func(r result.Row) bool { return a.met(r) && b.met(r) }}
}

// judged is a row with its target, if it has one.
func (c criterion) judged(row result.Row) result.Row {
	if c.met == nil {
		return row
	}
	return row.Judged(c.text, c.met(row))
}

// pair is a case of one LC process beside `rivals` BE processes.
func pair(name string, l load, rivals int, target criterion, suites ...string) Case {
	return Case{name, target.text, suites, 20, func(ctx context.Context, s *session, name string) {
		s.measureBeside(ctx, name, l, bestEffort, rivals, target, []sharedBy{{name: "default"}, underLibrary})
	}}
}

func (s *session) lcOptions(ctx context.Context, l load) []string {
	if l.sharedBytes > s.info.SharedBytes {
		fail("a block has %d bytes of shared memory here, the case needs %d",
			s.info.SharedBytes, l.sharedBytes)
	}
	return append(s.workOptions(ctx, l.work), words("--kernels", l.kernels, "--gap-us", l.gapUs, "--requests", cmp.Or(s.options.Requests, l.requests),
		"--seconds", lcSeconds, "--prepare-us", l.prepareUs, "--hint", l.hint, "--sync-each", l.each, "--sync-context", l.context)...)
}

func (s *session) beRate(ctx context.Context, rival work, role string) float64 {
	options := append(s.workOptions(ctx, rival), words("--seconds", beSeconds)...)
	var result beResult
	s.run(ctx, &result, role, "be", options...)
	return must(result.ownRate())
}

// together runs an LC process while BE processes run, and gives the sum of the BE rates over the time
// in which requests were measured.
func (s *session) together(ctx context.Context, l load, rival work, rivals int, way sharedBy) (result lcResult, rate float64) {
	lcOptions := s.lcOptions(ctx, l)
	beOptions := append(s.workOptions(ctx, rival), "--seconds", "50")
	be := *s
	if way.priority != "" {
		be.addMPS = append([]string{way.priority}, s.addMPS...)
	}
	running := make([]*worker, 0, rivals)
	defer func() {
		for _, w := range running {
			w.kill()
		}
	}()
	for range rivals {
		running = append(running, be.start(ctx, way.beRole, "be", beOptions...))
	}
	for _, w := range running {
		w.begin(ctx)
	}
	s.run(ctx, &result, way.lcRole, "lc", lcOptions...)
	if len(result.LatenciesNs) == 0 {
		check(errNoRequest)
	}
	check(pause(ctx, 100*time.Millisecond)) // samples lie a kernel apart: let the BE processes pass the end of the interval
	if way.beRole != "" {
		s.counted = s.count(s.config, running[0].pid())
	}
	for _, w := range running {
		var be beResult
		check(w.ask(ctx, answerLimit, &be, "stop"))
		s.finish(w)
		rate += be.rate(result.StartNs, result.EndNs)
	}
	return result, rate
}

var errNoRequest = errors.New("the LC process finished no request in time")

// sharedBy is a way in which LC and BE share the GPU. hints is a section of the configuration; "": none are given.
type sharedBy struct{ name, lcRole, beRole, priority, hints string }

var underLibrary = sharedBy{name: "gpreempt", lcRole: "lc", beRole: "be"}

// measureBeside compares ways to share the GPU with LC and BE alone. Under an MPS server all are its clients.
func (s *session) measureBeside(ctx context.Context, name string, l load, rival work, rivals int, target criterion, ways []sharedBy) {
	var alone lcResult
	var beAlone float64
	during("LC alone", func() { s.run(ctx, &alone, "", "lc", s.lcOptions(ctx, l)...) })
	lcAlone := result.LatencyOf(alone.LatenciesNs)
	if lcAlone == nil {
		check(errNoRequest)
	}
	during("BE alone", func() { beAlone = s.beRate(ctx, rival, "") })
	s.add(result.Row{Case: name, System: "alone", LC: lcAlone, BE: rateOf(beAlone, beAlone, kernelsPerSecond)})
	for _, way := range ways {
		undo := s.configure(cmp.Or(way.hints, noHints))
		var lc lcResult
		var rate float64
		err := caught(func() { lc, rate = s.together(ctx, l, rival, rivals, way) })
		undo()
		if err != nil {
			check(ctx.Err())
			row := result.Row{Case: name, System: way.name, LCAlone: lcAlone, Note: err.Error()}
			s.add(row.Judged(cmp.Or(target.text, measured), false)) // the other ways may do better
			continue
		}
		now := result.LatencyOf(lc.LatenciesNs)
		row := result.Row{Case: name, System: way.name, LC: now, LCAlone: lcAlone, Ratio: result.RatioOf(now, lcAlone)}
		row.BE = share(rate, beAlone, &lc, &alone, way.lcRole != "")
		if way.lcRole != "" {
			if s.addMPS != nil {
				row.BLP, row.Note = s.counted, inForce(s.counted)
			}
			row = target.judged(row)
		}
		s.add(row)
	}
}

// measureLaunch compares what a launch costs the CPU without the library and with it while nothing goes
// on. It differs by tens of nanoseconds from process to process and from moment to moment: the least of
// many rounds in each of several processes is compared. An objective is set and taken back between the rounds of one process.
func measureLaunch(ctx context.Context, s *session, name string) {
	const processes = 6
	roles := []string{"", "lc", "be", "off"}
	least := map[string]float64{}
	var objective []float64
	for i := range processes {
		for j := range roles {
			role := roles[(i+j)%len(roles)]
			var result launchResult
			s.run(ctx, &result, role, "launch", "--rounds", "300")
			if known, ok := least[role]; !ok || result.LeastNs < known {
				least[role] = result.LeastNs
			}
		}
		objective = append(objective, s.objectiveCost(ctx))
	}
	for _, role := range roles[1:] {
		more := result.Round(least[role]-least[""], 1)
		s.add(result.Figure(name, more, "ns more", "role "+role).Judged("<= 50 ns more", more <= 50))
	}
	more := result.Round(result.Median(objective), 1)
	s.add(result.Figure(name, more, "ns more", "role lc with an objective").Judged("<= 20 ns more than lc without an objective", more <= 20))
}

// objectiveCost is what an objective adds to a launch, in ns, beside a BE process. Without a peer the library looks at no launch.
func (s *session) objectiveCost(ctx context.Context) float64 {
	be := s.start(ctx, "be", "launch")
	defer s.finish(be)
	check(be.awaitReady(ctx, nil))
	lc := s.start(ctx, "lc", "launch", "--rounds", "300", "--objective", "1")
	defer s.finish(lc)
	check(lc.awaitReady(ctx, nil))
	check(awaited(ctx, startLimit, func() error {
		p, _, err := peer(s.config, lc.pid())
		if err == nil && (p == nil || !p.Counted) {
			err = errors.New("the library does not look at launches: it has met no peer")
		}
		return err
	}))
	var result launchResult
	check(lc.ask(ctx, workerLimit, &result, "run"))
	return result.MoreNs
}

// measureBEAlone takes turns between with and without the library and compares the medians.
func measureBEAlone(ctx context.Context, s *session, name string) {
	const rounds = 3
	rates := map[string][]float64{}
	for range rounds {
		for _, role := range []string{"", "be"} {
			rates[role] = append(rates[role], s.beRate(ctx, bestEffort, role))
		}
	}
	alone, now := result.Median(rates[""]), result.Median(rates["be"])
	row := result.Row{Case: name, System: "gpreempt", BE: rateOf(now, alone, kernelsPerSecond)}
	s.add(row.Judged("BE >= 0.99 of without the library", row.BE.Share >= 0.99))
}

// measureIdle looks at processes with a context and nothing to do, one of each role at once.
func measureIdle(ctx context.Context, s *session, name string) {
	var without idleResult
	s.run(ctx, &without, "", "idle")
	roles := []string{"lc", "be"}
	workers := make([]*worker, len(roles))
	for i, role := range roles {
		workers[i] = s.start(ctx, role, "idle")
		defer s.finish(workers[i])
	}
	for _, w := range workers {
		check(w.awaitReady(ctx, nil))
		check(w.send("run"))
	}
	for i, role := range roles {
		var idle idleResult
		check(workers[i].answer(ctx, workerLimit, &idle))
		core := result.Round(100*float64(idle.CPUNs)/float64(idle.WallNs), 3)
		added := result.Round((float64(idle.RSSKb)-float64(without.RSSKb))/1024, 1)
		s.add(result.Figure(name+"-cpu", core, "% of a core", "role "+role).Judged("<= 0.5 % of a core", core <= 0.5),
			result.Figure(name+"-memory", added, "MB RSS added", "role "+role).Judged("<= 15 MB", added <= 15))
	}
}
