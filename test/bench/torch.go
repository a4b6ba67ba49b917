package bench

import (
	"cmp"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Workers that are programs of PyTorch.

const (
	stepLimit  = 40 * time.Second
	besideStep = 500 * time.Millisecond // BE gets going, and passes the end of the LC interval
)

// script is a PyTorch worker of torch/.
type script struct {
	name, role, config string
	arguments          []string
	environment        []string
	onLast             bool
	starts             time.Duration // how long it may take to be set up; 0: as others
}

func (s *session) startScript(ctx context.Context, one script) *worker {
	if s.python == "" {
		fail("%s needs %s with PyTorch; name it with --python", one.name, s.options.Python)
	}
	name := strings.Join(append([]string{filepath.Base(one.name)}, one.arguments...), " ")
	if one.role != "" {
		name += " (" + one.role + ")"
	}
	p := program{name: name, arguments: append([]string{s.python, filepath.Join(s.files, one.name)}, one.arguments...), onLast: one.onLast,
		environment: append(s.configuredBy(one.config, one.role).environment(one.role), "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1")}
	p.environment = append(p.environment, one.environment...)
	w := s.launch(ctx, p, one.role)
	w.limits.start = cmp.Or(one.starts, w.limits.start)
	return w
}

// hasModule says whether Python finds a module.
func (s *session) hasModule(ctx context.Context, name string) bool {
	look := exec.CommandContext(ctx, s.python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('"+name+"') is None)")
	look.Env, look.Dir = s.inherited(), s.files // a folder here may have the name of a module
	return look.Run() == nil
}

// needsModule leaves the case out where Python does not find a module.
func (s *session) needsModule(ctx context.Context, name string) {
	if !s.hasModule(ctx, name) {
		check(leftOut(s.options.Python + " has no " + name))
	}
}

// startScripts starts several and waits until all of them are set up.
func (s *session) startScripts(ctx context.Context, all ...script) (workers []*worker) {
	err := caught(func() {
		for _, one := range all {
			workers = append(workers, s.startScript(ctx, one))
		}
		for _, w := range workers {
			check(w.awaitReady(ctx, nil))
		}
	})
	if err != nil {
		s.finishAll(workers)
	}
	check(err)
	return workers
}

func (s *session) finishAll(workers []*worker) {
	for _, w := range workers {
		w.orders.Close() // all end at once
	}
	for _, w := range workers {
		s.finish(w)
	}
}

// rateAlone is the rate of a BE worker that has the GPU to itself for so long.
func (w *worker) rateAlone(ctx context.Context, length time.Duration) float64 {
	var r beResult
	check(w.ask(ctx, stepLimit, nil, "start"))
	check(pause(ctx, length))
	check(w.ask(ctx, stepLimit, &r, "stop"))
	return must(r.ownRate())
}

// beside lets a BE worker run while LC requests are served, and gives its rate in that time.
func (w *worker) beside(ctx context.Context, serve func() lcResult) (rate float64) {
	var be beResult
	check(w.ask(ctx, stepLimit, nil, "start"))
	check(pause(ctx, besideStep))
	r := serve()
	check(pause(ctx, besideStep))
	check(w.ask(ctx, stepLimit, &be, "stop"))
	return be.rate(r.StartNs, r.EndNs)
}

// add adds rows of the case that is measured.
func (s *session) add(rows ...result.Row) { s.report.Cases = append(s.report.Cases, rows...) }
