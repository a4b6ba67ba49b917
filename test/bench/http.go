package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// An HTTP service beside training: under default time slicing, and under the library without hints and with those that it
// has by default, of which the sockets' matter here.

const (
	httpRequests                      = 1500
	httpP99, httpEndToEnd, httpLeftBE = 1.05, 1.02, 0.93
	httpSlowest                       = 40
)

// gpuParts are the parts of requests between the decoded image and the result.
type gpuParts struct {
	BeganNs     []uint64 `json:"began_ns"`
	LatenciesNs []uint64 `json:"latencies_ns"`
}

// served is a run of the load.
type served struct {
	endToEnd lcResult
	gpu      gpuParts // of the same requests
}

// gpuResult has the GPU parts as requests of the time in which the load ran.
func (r served) gpuResult() *lcResult {
	return &lcResult{StartNs: r.endToEnd.StartNs, EndNs: r.endToEnd.EndNs, LatenciesNs: r.gpu.LatenciesNs}
}

// load sends requests to the service.
func (s *session) load(ctx context.Context, server *worker, port, count int) (r served, err error) {
	generator, err := s.startScript(ctx, script{name: "http_load.py"})
	if err != nil {
		return r, err
	}
	defer s.finish(generator)
	var facts struct {
		WarmUp int `json:"warm_up"`
	}
	if err := generator.awaitReady(ctx, &facts); err != nil {
		return r, err
	}
	if err := server.ask(ctx, stepLimit, &gpuParts{}, "take"); err != nil { // of earlier requests
		return r, err
	}
	if err := generator.ask(ctx, torchAnswer, &r.endToEnd, fmt.Sprintf("run %d %d", count, port)); err != nil {
		return r, err
	}
	if err := server.ask(ctx, stepLimit, &r.gpu, "take"); err != nil {
		return r, err
	}
	if len(r.gpu.LatenciesNs) <= facts.WarmUp || len(r.gpu.BeganNs) != len(r.gpu.LatenciesNs) || len(r.endToEnd.LatenciesNs) == 0 {
		return r, errors.New("the service served no request")
	}
	r.gpu.BeganNs, r.gpu.LatenciesNs = r.gpu.BeganNs[facts.WarmUp:], r.gpu.LatenciesNs[facts.WarmUp:]
	return r, nil
}

func measureHTTP(ctx context.Context, s *session, name string) error {
	count := cmp.Or(s.options.Requests, httpRequests)
	log := filepath.Join(s.folder, "requests")
	configs := map[string]string{}
	for system, section := range map[string]string{"gpreempt": noHints, "gpreempt-hints": fmt.Sprintf("[hints]\nlog = %q\n", log)} {
		undo, err := s.configure(section)
		if err != nil {
			return err
		}
		configs[system] = s.config
		undo()
	}
	var alone served
	var beRate float64
	var gpuRows, endRows []result.Row
	for _, system := range []struct{ name, lcRole, beRole string }{{"default", "", ""}, {"gpreempt", "lc", "be"}, {"gpreempt-hints", "lc", "be"}} {
		err := func() error {
			server, err := s.startScript(ctx, script{name: "http_server.py", role: system.lcRole, config: configs[system.name]})
			if err != nil {
				return err
			}
			defer s.finish(server)
			be, err := s.startScript(ctx, script{name: "be.py", role: system.beRole, config: configs[system.name], arguments: []string{"train"}})
			if err != nil {
				return err
			}
			defer s.finish(be)
			var facts struct {
				Port int `json:"port"`
			}
			if err := errors.Join(server.awaitReady(ctx, &facts), be.awaitReady(ctx, nil)); err != nil {
				return err
			}
			if system.name == "default" {
				if alone, err = s.load(ctx, server, facts.Port, count); err != nil {
					return err
				}
				if beRate, err = s.beAlone(ctx, be, 1); err != nil {
					return err
				}
				gpuRows = append(gpuRows, result.Row{Case: name + "-gpu", System: "alone", LC: result.LatencyOf(alone.gpu.LatenciesNs)})
				endRows = append(endRows, result.Row{Case: name + "-end-to-end", System: "alone", LC: result.LatencyOf(alone.endToEnd.LatenciesNs)})
			}
			var now served
			var hints *result.Hints
			_, rate, err := be.beside(ctx, func() (lcResult, error) {
				now, err = s.load(ctx, server, facts.Port, count)
				if system.name == "gpreempt-hints" && err == nil {
					hints, err = hintsOf(configs[system.name], server.pid())
				}
				return now.endToEnd, err
			})
			if err != nil {
				return err
			}
			gpu := besideRow(name+"-gpu", system.name, now.gpuResult(), alone.gpuResult(), rate, beRate, system.name != "default")
			end := besideRow(name+"-end-to-end", system.name, &now.endToEnd, &alone.endToEnd, rate, beRate, system.name != "default")
			end.BE = gpu.BE // what BE gets is left by the GPU parts
			if system.name == "gpreempt-hints" {
				if err := followParts(hints, log, now.gpu); err != nil {
					return err
				}
				gpu.Hints = hints
				judge := func(row result.Row, limit float64) result.Row {
					return row.Judged(fmt.Sprintf("p99 <= %g x alone, BE >= %g of what LC leaves", limit, httpLeftBE),
						row.Ratio.P99 <= limit && row.BE.Share >= httpLeftBE)
				}
				gpu, end = judge(gpu, httpP99), judge(end, httpEndToEnd)
			}
			gpuRows, endRows = append(gpuRows, gpu), append(endRows, end)
			return nil
		}()
		if err != nil {
			s.add(append(gpuRows, endRows...)...) // what there is
			return fmt.Errorf("%s: %w", system.name, err)
		}
	}
	s.add(append(gpuRows, endRows...)...)
	return nil
}

// hintsOf is what became of a process's hints, warm-up included.
func hintsOf(config string, pid int) (*result.Hints, error) {
	p, _, err := peer(config, pid)
	if err != nil || p == nil {
		return &result.Hints{}, err
	}
	return &result.Hints{SwitchUs: p.SwitchUs, SpunNs: p.HintSpunNs, Sources: p.Hints}, nil
}

// followParts adds what became of the GPU parts' hints: how many had which, and the slowest. A part that came while the GPU
// was still the service's has no line of the log.
func followParts(h *result.Hints, log string, parts gpuParts) error {
	requests, err := readRequests(log)
	if err != nil {
		return err
	}
	h.Requests = map[string]int{}
	for i, began := range parts.BeganNs {
		line, _ := slices.BinarySearchFunc(requests, began, func(r result.Request, at uint64) int { return cmp.Compare(r.AtNs, at) })
		slow := result.SlowRequest{N: i, LatencyUs: result.Round(float64(parts.LatenciesNs[i])/1000, 1)}
		outcome := "had the GPU"
		if line < len(requests) && requests[line].AtNs < began+parts.LatenciesNs[i] {
			outcome = requests[line].Outcome()
			slow.Request = requests[line]
			slow.Request.AtNs = 0
		}
		h.Requests[outcome]++
		h.Slowest = append(h.Slowest, slow)
	}
	slices.SortStableFunc(h.Slowest, func(a, b result.SlowRequest) int { return cmp.Compare(b.LatencyUs, a.LatencyUs) })
	h.Slowest = h.Slowest[:min(httpSlowest, len(h.Slowest))]
	return nil
}
