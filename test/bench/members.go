package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// member is a task of a run and the process that serves it.
type member struct {
	workload.Task
	role    string
	index   int
	program *worker
}

func (m member) key(system workload.System) string {
	return fmt.Sprint(system.Processes(m.role), m.role, m.Program, m.index)
}

// keepOnly ends the programs that these variants do not need, and what served only them.
func (e *evaluation) keepOnly(variants []*variant) {
	needed := map[string]bool{}
	for _, v := range variants {
		for _, m := range v.tasks {
			needed[m.key(v.system)] = true
		}
	}
	e.end(func(k string, _ *worker) bool { return !needed[k] })
	if !slices.ContainsFunc(slices.Collect(maps.Values(e.running)), func(p *worker) bool { return p.ofMPS }) {
		e.stopMPS()
	}
}

// end ends programs, all at once, and passes on what the library said in them.
func (e *evaluation) end(which func(string, *worker) bool) {
	for k, p := range e.running {
		if which(k, p) {
			p.orders.Close() // asks it to
		}
	}
	for k, p := range e.running {
		if !which(k, p) {
			continue
		}
		p.end()
		delete(e.running, k)
		e.session.passOn(p)
	}
}

// members are a workload's LC tasks, and its BE tasks where these run beside them.
func members(w workload.Workload, be bool) (all []member) {
	add := func(role string, tasks []workload.Task) {
		index := map[string]int{} // of processes of the same program
		for _, task := range tasks {
			all = append(all, member{Task: task, role: role, index: index[task.Program]})
			index[task.Program]++
		}
	}
	add("lc", w.LC)
	if be {
		add("be", w.BE)
	}
	return all
}

// start gets the processes of a system running, all at once.
func (e *evaluation) start(ctx context.Context, system workload.System, wanted []member) {
	if system.MPS {
		e.serve(ctx)
	}
	for i := range wanted {
		m := &wanted[i]
		k := m.key(system)
		if m.program = e.running[k]; m.program != nil {
			continue
		}
		if e.session.python == "" {
			fail("%s needs %s with PyTorch", m.Program, e.options.Python)
		}
		m.program = e.startProgram(ctx, system, m.role, m.Task)
		e.running[k] = m.program
	}
}

// startProgram starts a task's process as the system wants it; role is lc or be.
func (e *evaluation) startProgram(ctx context.Context, system workload.System, role string, task workload.Task) *worker {
	p := program{name: fmt.Sprintf("%s %s (%s)", role, task.Program, system.Name), limits: e.options.tests.limits,
		arguments: []string{e.session.python, filepath.Join(e.session.files, "model.py"), task.Program}}
	libraryRole, library := "", ""
	if system.Config != "" {
		libraryRole, library = role, filepath.Base(e.session.library)
	}
	p.environment = slices.DeleteFunc(e.session.environment(libraryRole), func(entry string) bool {
		return strings.HasPrefix(entry, "GPREEMPT_CONFIG=") || strings.HasPrefix(entry, "CUDA_MPS_")
	})
	pipes := filepath.Join(e.session.folder, "none") // a server that runs already serves none of this
	if system.MPS {
		pipes = e.mps.pipes
	}
	p.environment = append(p.environment, "CUDA_MPS_PIPE_DIRECTORY="+pipes, "PYTHONUNBUFFERED=1",
		"OMP_NUM_THREADS=1") // many programs share the processors
	if config := e.configs[system.Name]; config != "" {
		p.environment = append(p.environment, "GPREEMPT_CONFIG="+config)
	}
	if visible := visibleDevice(os.Getenv(visibleDevicesVariable), system.MPS); visible != "" {
		p.environment = append(p.environment, visibleDevicesVariable+"="+visible)
	}
	for name, value := range system.Variables(role) {
		p.environment = append(p.environment, name+"="+value)
	}
	w := p.start(ctx)
	w.library, w.ofMPS = library, system.MPS
	return w
}

// ready lets the programs that were started use CUDA, and waits until they are set up.
func ready(ctx context.Context, wanted []member) {
	initialise(wanted)
	awaitReady(ctx, wanted)
}

// initialise lets the programs that were started use CUDA.
func initialise(wanted []member) {
	for _, m := range wanted {
		check(m.program.initialise())
	}
}

func awaitReady(ctx context.Context, wanted []member) {
	for _, m := range wanted {
		check(m.program.awaitReady(ctx, nil))
	}
}

// forget ends a system's programs: one of them failed, and the others may wait for it. With its MPS server go all that the server
// serves: what one of them does to it is done to all.
func (e *evaluation) forget(wanted []member, mps bool) {
	failed := func(_ string, p *worker) bool {
		return mps && p.ofMPS || slices.ContainsFunc(wanted, func(m member) bool { return m.program == p })
	}
	for k, p := range e.running {
		if failed(k, p) {
			_ = p.killGroup() // it may have ended by itself
		}
	}
	e.end(failed)
	if mps {
		e.stopMPS()
	}
}

// serve sees that an MPS server runs.
func (e *evaluation) serve(ctx context.Context) {
	if e.mps != nil && !e.mps.hasEnded() {
		return
	}
	e.stopMPS() // what it left
	e.mps = e.session.startMPS(ctx, e.session.folder)
}

func (e *evaluation) stopMPS() {
	if e.mps != nil {
		e.mps.stop()
		e.mps = nil
	}
}

// variant is a system under which a workload is measured, or none, for the LC tasks alone.
type variant struct {
	system workload.System
	tasks  []member
	note   string // how it failed
	runs   []result.RunResult
}

// variants are what a workload is measured under: alone comes first.
func (e *evaluation) variants(w workload.Workload) []*variant {
	all := []*variant{{system: workload.System{Name: result.LCAlone}, tasks: members(w, false)}}
	for _, system := range e.systems {
		all = append(all, &variant{system: system, tasks: members(w, true)})
	}
	return all
}

// startPhases are the variants whose programs may make their contexts and warm up at the same time. Under the library a
// system's processes know nothing of another's, and the best-effort ones of two of them would stop each other dead:
// those that work at once are of one such system. The rest warm up together.
func startPhases(variants []*variant) [][]*variant {
	var phases [][]*variant
	for _, v := range variants {
		if v.system.Config == "" && len(phases) > 0 {
			phases[0] = append(phases[0], v)
		} else {
			phases = append(phases, []*variant{v})
		}
	}
	return phases
}
