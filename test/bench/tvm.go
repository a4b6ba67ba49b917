package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Networks that TVM has compiled ahead, run by TVM's runtime alone: as LC beside programs of PyTorch, and as BE beside LC of
// PyTorch. Every request's result is compared, bit by bit, with those without the library.

const (
	tvmRequests  = 200
	tvmGapMs     = 40
	tvmPrepareUs = 300 // of a request; a hint comes as it begins
	tvmHintsP99  = 1.1
)

var (
	tvmTarget      = fmt.Sprintf("lc p99 <= %g x alone, BE >= %g of alone, bit-identical", graphP99, graphRate)
	tvmHintsTarget = fmt.Sprintf("lc p99 <= %g x alone, bit-identical", tvmHintsP99)
)

// tvmPair is a case of one LC program beside one BE program, of which one is TVM's.
type tvmPair struct{ lc, be tvmProgram }

// tvmProgram is a network of build/tvm or, where it names none, a PyTorch worker with its arguments.
type tvmProgram struct {
	network, script string
	arguments       []string
}

func tvmCases() (cases []Case) {
	add := func(name string, p tvmPair) {
		cases = append(cases, Case{"tvm-" + name, tvmTarget, []string{"tvm"}, 60, p.measure})
	}
	be := func(kind string) tvmProgram { return tvmProgram{script: "be.py", arguments: []string{kind}} }
	for _, network := range []string{"resnet50", "resnet50-graph", "encoder"} {
		add(network+"-beside-train", tvmPair{tvmProgram{network: network}, be("train")})
	}
	add("resnet50-beside-gemmfp64", tvmPair{tvmProgram{network: "resnet50"}, be("gemmfp64")})
	add("resnet50-beside-tvm", tvmPair{tvmProgram{network: "resnet50"}, tvmProgram{network: "resnet50-batch"}})
	add("beside-pytorch", tvmPair{tvmProgram{script: "lc.py", arguments: []string{"--mode", "graph"}}, tvmProgram{network: "resnet50-batch"}})
	return cases
}

// tvmFolder is where `make tvm` puts its networks.
func (s *session) tvmFolder() string {
	return cmp.Or(s.options.tests.tvm, filepath.Join(filepath.Dir(s.executable), "tvm"))
}

// script is the program as a worker.
func (p tvmProgram) worker(s *session, role string, gapMs int) (script, error) {
	one := script{name: p.script, role: role, config: s.config, arguments: p.arguments}
	if p.network != "" {
		module := filepath.Join(s.tvmFolder(), p.network+".so")
		if _, err := os.Stat(module); err != nil {
			return one, leftOut(module + " is not there: make tvm")
		}
		one.name, one.arguments = "tvm_model.py", []string{s.tvmFolder(), p.network}
	}
	if gapMs > 0 {
		one.arguments = append(one.arguments[:len(one.arguments):len(one.arguments)], "--gap-ms", fmt.Sprint(gapMs))
	}
	return one, nil
}

// tvmRun is a pair while it is measured.
type tvmRun struct {
	*session
	tvmPair
	name    string
	alone   lcResult
	beAlone float64
	sums    [2]string // of LC and BE, as they are without the library
}

func (p tvmPair) measure(ctx context.Context, s *session, name string) error {
	r := &tvmRun{session: s, tvmPair: p, name: name}
	for _, system := range []string{"default", "gpreempt", "gpreempt-hints"} {
		if system == "gpreempt-hints" && p.lc.network == "" {
			continue // this LC program announces ranges: suite nvtx
		}
		if err := r.under(ctx, system); err != nil {
			return fmt.Errorf("%s: %w", system, err)
		}
	}
	return nil
}

// under measures under one system. Both processes hold contexts throughout; "alone" means that the other one has no work.
func (r *tvmRun) under(ctx context.Context, system string) error {
	lcRole, beRole, section, hint := "lc", "be", noHints, 0
	switch system {
	case "default":
		lcRole, beRole = "", ""
	case "gpreempt-hints":
		section, hint = explicitOnly, 1
	}
	undo, err := r.configure(section)
	if err != nil {
		return err
	}
	defer undo()
	var workers []*worker
	defer func() { r.finishAll(workers) }()
	gaps := [2]int{tvmGapMs, 0}
	roles := [2]string{lcRole, beRole}
	for i, p := range []tvmProgram{r.lc, r.be} {
		one, err := p.worker(r.session, roles[i], gaps[i])
		if err != nil {
			return err
		}
		w, err := r.startScript(ctx, one)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	var notes []string
	for i, w := range workers {
		var facts struct {
			Sum string `json:"sum"`
		}
		if err := w.awaitReady(ctx, &facts); err != nil {
			return err
		}
		if r.sums[i] == "" {
			r.sums[i] = facts.Sum
		}
		if facts.Sum != r.sums[i] {
			notes = append(notes, fmt.Sprintf("%s: %.8s, without the library %.8s", w.name, facts.Sum, r.sums[i]))
		}
	}
	lc, be := workers[0], workers[1]
	if r.lc.network != "" {
		if err := lc.ask(ctx, answerLimit, nil, fmt.Sprintf("prepare %d %d", tvmPrepareUs, hint)); err != nil {
			return err
		}
	}
	count := cmp.Or(r.options.Requests, tvmRequests)
	serve := func() (lcResult, error) { return lc.requests(ctx, count) }
	if system == "default" {
		if r.alone, err = serve(); err != nil {
			return err
		}
		if r.beAlone, err = r.session.beAlone(ctx, be, 1); err != nil {
			return err
		}
		r.add(result.Row{Case: r.name, System: "alone", LC: result.LatencyOf(r.alone.LatenciesNs), BE: rateOf(r.beAlone, r.beAlone, stepsPerSecond)})
	}
	now, rate, err := be.beside(ctx, serve)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if w.different > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d results different", w.name, w.different))
		}
	}
	row := besideRow(r.name, system, &now, &r.alone, rate, r.beAlone, system != "default")
	row.Note = strings.Join(notes, "; ")
	switch same := len(notes) == 0; system {
	case "gpreempt":
		row = row.Judged(tvmTarget, same && row.Ratio.P99 <= graphP99 && rate/r.beAlone >= graphRate)
	case "gpreempt-hints":
		row = row.Judged(tvmHintsTarget, same && row.Ratio.P99 <= tvmHintsP99)
	default:
		if !same {
			return fmt.Errorf("NOT DETERMINISTIC without the library: %s", row.Note)
		}
	}
	r.add(row)
	return nil
}
