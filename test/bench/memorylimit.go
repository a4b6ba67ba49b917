package bench

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

const (
	limitBytes = 10 << 30
	limitMiB   = 64 // that a program may have more or less
	limitsPart = .9 // of the GPU's memory, which all programs have at most
)

// limitWays are those in which limit.py allocates, and the modules that they need.
var limitWays = []struct{ name, module string }{
	{"driver", "ctypes"}, {"native", "torch"}, {"expandable", "torch"}, {"async", "torch"}, {"graph", "torch"},
	{"jax", "jax"}, {"jax-platform", "jax"}, {"cupy", "cupy"}, {"cupy-async", "cupy"},
}

// measureLimit lets programs allocate all that a limit leaves them, at the same time and each in its way.
func measureLimit(ctx context.Context, s *session, name string) {
	limit := int(min(limitBytes, s.part(limitsPart/float64(len(limitWays)))) >> 20) // MiB
	config := s.swapConfig(name, fmt.Sprintf("limit = \"%dMB\"", limit))
	workers := map[string]*worker{}
	defer func() { s.finishAll(slices.Collect(maps.Values(workers))) }()
	missing := ""
	for _, way := range limitWays {
		if !s.hasModule(ctx, way.module) {
			missing += fmt.Sprintf("; NOT TRIED: %s, %s has no %s", way.name, s.options.Python, way.module)
			continue
		}
		workers[way.name] = s.startScript(ctx, script{name: "limit.py", role: "lc", config: config, arguments: []string{way.name}, starts: servingStarts})
	}
	told := map[string]struct {
		MiB int `json:"mib"`
	}{}
	for way, w := range workers {
		one := told[way]
		check(w.awaitReady(ctx, &one))
		told[way] = one
	}
	used := onGPU(ctx)
	for _, way := range limitWays {
		w := workers[way.name]
		if w == nil {
			continue
		}
		has, known := used[w.pid()]
		if !known {
			check(leftOut("nvidia-smi does not name the programs: they have other numbers for it"))
		}
		s.add(valued(name+"-"+way.name, float64(has-limit), "MiB above the limit", limitGoal, has >= limit-limitMiB && has <= limit+limitMiB,
			"the process has %d MiB on the GPU, of %d; it allocated %d%s", has, limit, told[way.name].MiB, missing))
	}
}

// onGPU is how many MiB of GPU memory each process has, by its number, as the driver tells people.
func onGPU(ctx context.Context) map[int]int {
	used := map[int]int{}
	for line := range strings.Lines(string(must(exec.CommandContext(ctx, "nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").Output()))) {
		var pid, mib int
		if n, _ := fmt.Sscanf(line, "%d, %d", &pid, &mib); n == 2 {
			used[pid] += mib
		}
	}
	return used
}
