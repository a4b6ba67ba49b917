package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The suites of block-level preemption: processes that share a context under an MPS server, and streams of one
// process.

const onlyBLP = "mechanisms = [\"blp\"]\n"

// underMPS lets all workers be clients of a server of our own.
func (s *session) underMPS(ctx context.Context) (quit func()) {
	mps := s.startMPS(ctx, s.files)
	s.addMPS = clientOfMPS(mps.pipes, os.Getenv(visibleDevicesVariable))
	return mps.stop
}

// clientOfMPS is what makes a worker a client of the server with these pipes, on the first GPU that we may use.
func clientOfMPS(pipes, ours string) []string {
	environment := []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipes}
	if ours != "" {
		environment = append(environment, visibleDevicesVariable+"="+visibleDevice(ours, true))
	}
	return environment
}

func inForce(c *result.Counted) string {
	if c == nil {
		return "what the library counted is not known"
	}
	text := "BE has in force: " + strings.Join(c.Mechanisms, " ")
	if len(c.Fallbacks) > 0 {
		text += "; not in force: " + strings.Join(c.Fallbacks, ", ")
	}
	return text
}

// besideBlocks is best-effort work: kernels of about 1 ms.
func besideBlocks(blockUs int) work {
	return work{us: blockUs, blocksPerSM: 2, waves: max(1000/blockUs, 1)}
}

// onManyStreams is best-effort work of kernels of 5 ms, on more streams than the driver has hardware channels: with two kernels each, all are
// taken.
func onManyStreams(blockUs int) work {
	return work{us: blockUs, blocksPerSM: 2, waves: 5000 / blockUs, streams: 12}
}

func mpsPair(name string, l load, rival work, target criterion) Case {
	systems := []sharedBy{{name: mpsSystem}, {name: mpsOrdered, priority: lowerPriority}, underLibrary}
	if l.hint { // beside MPS's own priorities
		systems = []sharedBy{systems[1], {name: "gpreempt", lcRole: "lc", beRole: "be", hints: explicitOnly}}
	}
	return Case{name, target.text, []string{"blp-mps"}, 25, func(ctx context.Context, s *session, name string) {
		s.measureBeside(ctx, name, l, rival, 1, target, systems)
	}}
}

type streamsResult struct {
	StopsNs     []uint64 `json:"stops_ns"`
	LatenciesNs []uint64 `json:"latencies_ns"`
	KernelNs    float64  `json:"kernel_ns"`
	Completed   float64  `json:"completed"`
	WallNs      float64  `json:"wall_ns"`
	UrgentNs    float64  `json:"urgent_ns"`
	Narrow      float64  `json:"narrow"` // kernels that ended in a width, before that was taken away
}

// rate is that of the kernels of the stream that can wait, and share its part of the time between requests.
func (r *streamsResult) rate() float64  { return r.Completed / r.WallNs * 1e9 }
func (r *streamsResult) share() float64 { return r.Completed * r.KernelNs / (r.WallNs - r.UrgentNs) }

// stopWithinUs is how much longer than a block a stop may take.
const stopWithinUs = 20

func streamCase(name string, blockUs, waves int, targeted bool) Case {
	target := ""
	if targeted {
		target = fmt.Sprintf("stop to last block gone: p99 <= one block + %d us", stopWithinUs)
	}
	rival := work{us: blockUs, blocksPerSM: 2, waves: waves}
	return Case{name, target, []string{"blp-stream"}, 25, func(ctx context.Context, s *session, name string) {
		s.measureStreams(ctx, name, rival, target, nil, append(sharedStreams, stopped))
	}}
}

// narrowCase has requests of many small kernels, which leave most of the GPU.
func narrowCase(name string, blocks int) Case {
	return Case{name, "", []string{"blp-stream"}, 25, func(ctx context.Context, s *session, name string) {
		s.measureStreams(ctx, name, work{us: 10, blocksPerSM: 2, waves: 10}, "",
			words("--urgent-blocks", blocks, "--urgent-kernels", 50), append(sharedStreams, stopped))
	}}
}

// A stop of a stream that runs in a width is as short as one that runs everywhere: so much longer at most.
const narrowStopLonger = 1.1

// fullStopCase takes a stream's width away while it goes on in that, beside whole stops.
func fullStopCase(name string, blockUs int) Case {
	target := fmt.Sprintf("stop p99 <= %g x the whole stop's", narrowStopLonger)
	return Case{name, target, []string{"blp-stream"}, 20, func(ctx context.Context, s *session, name string) {
		systems := []sharing{sharedStreams[0], stopped}
		for _, sms := range []string{"16", "32", "64"} {
			systems = append(systems, sharing{"gpreempt-width-" + sms, "be", append(slices.Clone(stopped.options), "--width", sms, "--narrow-us", "1000")})
		}
		s.measureStreams(ctx, name, work{us: blockUs, blocksPerSM: 2, waves: 10}, "", nil, systems)
		check(judgeStops(s.report.Cases, name, target))
	}}
}

// judgeStops compares the stops of a case with whole ones.
func judgeStops(rows []result.Row, name, target string) error {
	var whole *result.Latency
	for i := range rows {
		switch row := &rows[i]; {
		case row.Case != name+"-stop":
		case row.System == "gpreempt":
			whole = row.LC
		case whole == nil:
			return errors.New("there are no whole stops to compare with")
		default:
			row.LCAlone, row.Ratio = whole, result.RatioOf(row.LC, whole)
			*row = row.Judged(target, row.LC.P99Us <= narrowStopLonger*whole.P99Us)
		}
	}
	return nil
}

// sharing is how the streams of a process share the GPU.
type sharing struct {
	name, role string
	options    []string
}

var sharedStreams = []sharing{{"alone", "", []string{"--alone", "1"}}, {"default", "", nil}, {"priority", "", []string{"--priority", "1"}}}

// stopped is the way of the library, which stops the stream that can wait.
var stopped = sharing{"gpreempt", "be", []string{"--priority", "1", "--preempt", "1"}}

// measureStreams has urgent requests, a kernel each unless more says otherwise, on one stream of a process, and saturates another one. It
// does so in each of the ways to share; the first is alone.
func (s *session) measureStreams(ctx context.Context, name string, rival work, target string, more []string, systems []sharing) {
	urgent := s.workOptions(ctx, single.work)
	options := append(append(s.workOptions(ctx, rival), "--urgent-iterations", urgent[len(urgent)-1]), more...)
	if s.options.Requests > 0 {
		options = append(options, words("--requests", s.options.Requests)...)
	}
	var lcAlone *result.Latency
	for _, system := range systems {
		var served streamsResult
		during(system.name, func() { s.run(ctx, &served, system.role, "streams", append(options, system.options...)...) })
		row := result.Row{Case: name, System: system.name, LC: result.LatencyOf(served.LatenciesNs), LCAlone: lcAlone}
		if row.LC == nil {
			fail("%s: no request was finished in time", system.name)
		}
		row.Ratio = result.RatioOf(row.LC, lcAlone)
		if system.name == "alone" {
			row.LCAlone, lcAlone = nil, row.LC
		} else {
			row.BE = &result.Share{Share: result.Round(served.share(), 3), Alone: result.Round(1e9/served.KernelNs, 2), Now: result.Round(served.rate(), 2),
				Unit: kernelsPerSecond}
		}
		s.add(row)
		if len(served.StopsNs) == 0 {
			continue
		}
		blockUs := served.KernelNs / float64(rival.waves) / 1000
		stop := result.Row{Case: name + "-stop", System: system.name, LC: result.LatencyOf(served.StopsNs),
			Note: fmt.Sprintf("from the call to the end of the last block; a block takes %.1f us", blockUs)}
		if slices.Contains(system.options, "--narrow-us") {
			stop.Note += fmt.Sprintf("; %.0f kernels ended in the width", served.Narrow)
			if served.Narrow == 0 {
				fail("%s: nothing went on in the width", system.name)
			}
		}
		if target != "" {
			stop = stop.Judged(target, stop.LC.P99Us <= blockUs+stopWithinUs)
		}
		s.add(stop)
	}
}
