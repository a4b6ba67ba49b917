package bench

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

const (
	limitBytes = 10 << 30
	limitMiB   = 64 // that a program may have more or less
)

// limitWays are those in which limit.py allocates.
var limitWays = []string{"driver", "native", "expandable", "async", "graph", "jax", "jax-platform", "cupy", "cupy-async"}

// measureLimit lets programs allocate all that a limit leaves them, at the same time and each in its way.
func measureLimit(ctx context.Context, s *session, name string) {
	limit := int(s.sized(limitBytes/gb) >> 20) // MiB
	config := s.swapConfig(name, fmt.Sprintf("limit = \"%dMB\"", limit))
	var workers []*worker
	defer func() { s.finishAll(workers) }()
	for _, way := range limitWays {
		w := s.startScript(ctx, script{name: "limit.py", role: "lc", config: config, arguments: []string{way}})
		w.limits.start = servingStarts
		workers = append(workers, w)
	}
	told := make([]struct {
		MiB   int    `json:"mib"`
		Lacks string `json:"lacks"`
	}, len(workers))
	for i, w := range workers {
		check(w.awaitReady(ctx, &told[i]))
	}
	used := onGPU(ctx)
	for i, w := range workers {
		if told[i].Lacks != "" {
			s.log("%s-%s: %s has no %s", name, limitWays[i], s.options.Python, told[i].Lacks)
			continue
		}
		has := used[w.pid()]
		s.add(valued(name+"-"+limitWays[i], float64(has-limit), "MiB above the limit", limitGoal, has >= limit-limitMiB && has <= limit+limitMiB,
			"the process has %d MiB on the GPU, of %d; it allocated %d", has, limit, told[i].MiB))
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
