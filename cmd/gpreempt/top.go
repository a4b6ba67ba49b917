package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func topCommand() *cobra.Command {
	var once, asJSON, asMetrics bool
	var config, listen string
	interval := time.Second
	command := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and the processes under the library",
		Long: `Shows, GPU by GPU, this user's processes under the library. The first sample counts from each process's
start, later ones from the sample before.

On a terminal it draws a table that fits 80 columns, until q, Escape or Ctrl-C:

  MINUTE  the share over the last minute
  STOP/s  times that kernels were stopped between blocks
  ON GPU  device memory on the GPU, of a process whose memory swaps
  p n l s w b g x  sort by PID, name, level, share, windows, stops, memory on the GPU, memory swapped; r reverses
  up, down, page up, page down  select a process; Enter shows all that is known of it
  space   lets the tables stand still

Elsewhere, and with --once, it prints these tables:

  SLICE   timeslice of the process's TSGs in force, - for the driver's default
  STATE   window: an LC window is open; turn: its turn on the GPU; off: its channels are off the GPU;
          busy: has, or wants to run, work; leaving, out, coming, suspended: its memory, see below
  SHARE   part of the time with its window open (above be); with work, on its turn, and no window open above it (be)
  /s      windows opened, of these with the GPU taken from a lower level, holds, launches that waited at the
          gate, and turns taken, per second
  NOT IN FORCE  fallbacks, with why
  OTHERS  processes on the GPU that are none of these, as NVIDIA's management library says: without gpreempt, or another
          user's or container's; with their device memory, and the part of the SMs' time that they had lately

For processes that hint at coming work, by source of hints and since the process's start:
  HIT     work came while the GPU was kept for it; LATE: before; WRONG: not in time
  DROPPED not carried out: a duplicate, nonsense, the source off, or no lower level there
  SAVED   time of switches that overlapped what came before the work
  KEPT    GPU time kept before work came, or in vain

For processes whose kernels are rewritten so that they can stop between blocks (BLP), since the process's start:
  KERNELS  of the modules that were loaded, of these rewritten, and not, by reason: form (not known how), room (for
           one more parameter), peers (blocks wait for one another), sm (of the GPU), image (not readable),
           runtime (loaded unseen, by a CUDA runtime before 12.0)
  LAUNCHES of kernels, and the part that could be stopped
  STOPS    times that they were stopped; CUTS: launches that a stop cut; BLOCKS: run later because of that
  DRAIN    from a stop until nothing ran: mean, and the longest
  LOAD     time that loads of code took longer, and images that came from the cache

For processes whose device memory swaps to host memory:
  MEMORY   running: all of it is on the GPU; leaving, out, coming; stuck: it did not go, since work did not end or a
           call failed; suspended: out until gpreempt resume. turn: it is its memory turn, and how long turns are
  RESIDENT on the GPU, and can go; SWAPPED: in host memory; PINNED: on the GPU and cannot go, and why: exported to
           or imported from other processes, registered with a device, multicast, shared (mapped more than once),
           closed (the GPU may not use it now), driver (small allocations, arrays, pools)
  WANTED   by calls that wait for room; THREADS: that wait, for room or for what is out
  HOST     page-locked host memory of the process, on all GPUs
  OUT/s    bytes a second to host memory, and back, in the time of the sample
  TIMES    that memory went out, and came back, since the process's start; FAILED: that it could not
  WAITED   time that calls waited, and their number

--prometheus and --listen give the same as Prometheus metrics, summed by container and level (` + metricsName + `).`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if asMetrics || command.Flags().Changed("listen") {
				return becomeMetrics(command.Flags(), config, listen)
			}
			if interval < 100*time.Millisecond {
				return cli.Usage(fmt.Errorf("--interval %v: must be at least 100ms", interval))
			}
			settings, _, _, err := loadConfig(config)
			if err != nil {
				return cli.Usage(err)
			}
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			show := printTable
			if asJSON {
				show = printJSON
			} else if !once && isTerminal(os.Stdout) {
				if screen := openScreen(); screen != nil {
					return topScreen(ctx, screen, settings, interval)
				}
				show = redrawTable
			}
			return top(ctx, command.OutOrStdout(), settings, interval, once, show)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&once, "once", false, "one sample, then end")
	flags.BoolVar(&asJSON, "json", false, "one line of JSON a sample")
	flags.BoolVar(&asMetrics, "prometheus", false, "Prometheus metrics, once")
	flags.StringVar(&listen, "listen", "", "serve Prometheus metrics at this `address`, as 127.0.0.1:9405, until it is interrupted")
	flags.DurationVarP(&interval, "interval", "n", interval, "time between samples")
	flags.StringVarP(&config, "config", "c", "", "configuration file that names the segments' directory and group")
	return command
}

const metricsName = "gpreempt-metrics"

// becomeMetrics runs the program that has Prometheus' libraries, which are larger than the rest of this one.
func becomeMetrics(flags *pflag.FlagSet, config, listen string) error {
	for _, name := range []string{"once", "json", "interval"} {
		if flags.Changed(name) {
			return cli.Usage(fmt.Errorf("--%s does not go with metrics: --prometheus or --listen, and --config, do", name))
		}
	}
	var args []string
	if flags.Changed("listen") {
		args = append(args, "--listen="+listen)
	}
	if config != "" {
		args = append(args, "--config="+config)
	}
	return become(metricsName, args...)
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

type sample struct {
	GPUs   []gpuSample `json:"gpus"`
	noUser error       // why it is not known who else is on the GPUs
}

type gpuSample struct {
	segment.Snapshot
	// LCShare is the part of the time with a window open, for the process above be that had it open longest; BEShare is the
	// part that all be processes got.
	LCShare float64      `json:"lc_share"`
	BEShare float64      `json:"be_share"`
	Peers   []peerSample `json:"peers"`
	// Others use the GPU, and are none of the peers. nil: it is not known who does.
	Others []user `json:"others"`
}

type peerSample struct {
	segment.Peer
	Rates rates `json:"rates"`
}

// rates are counters of the segment, by name, per second over over_ns; share is a part of the time.
type rates map[string]float64

// rated is a counter of the segment that is shown per second, and the title of its column.
type rated struct{ counter, title string }

func ratedCounters() []rated {
	list := []rated{{"windows", "WINDOW/s"}, {"switches", "SWITCH/s"}}
	for _, row := range configs.MechanismRows {
		if row.Rate != "" {
			list = append(list, rated{row.Rate, strings.ToUpper(row.Name) + "/s"})
		}
	}
	return list
}

func top(ctx context.Context, out io.Writer, config configs.Config, interval time.Duration, once bool, show func(io.Writer, sample) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for of := (taker{config: config, patience: firstUsers}); ; {
		now, err := of.take(ctx)
		if err != nil {
			return err
		}
		if err := show(out, now); err != nil {
			if errors.Is(err, syscall.EPIPE) {
				return nil
			}
			return fmt.Errorf("print: %w", err)
		}
		if once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// firstUsers is how long the first sample waits to hear who else is on the GPUs.
const firstUsers = 5 * time.Second

// taker takes samples.
type taker struct {
	config   configs.Config
	patience time.Duration // for the first answer of users
	before   map[peerKey]reading
	users    *userWatch
}

func (t *taker) take(ctx context.Context) (now sample, err error) {
	snapshots, err := readSegments(t.config)
	if err != nil {
		return sample{}, err
	}
	now, t.before = measure(snapshots, t.before)
	if len(snapshots) == 0 {
		return now, nil
	}
	if t.users == nil {
		t.users = watchUsers(ctx)
		select {
		case <-t.users.first:
		case <-ctx.Done():
		case <-time.After(t.patience):
		}
	}
	users, err := t.users.get()
	now.noUser = err
	for i := range now.GPUs {
		if on, known := users[now.GPUs[i].GPU]; known {
			now.GPUs[i].Others = others(on, snapshots, "/proc")
		}
	}
	return now, nil
}

// readSegments reads those by files and those of a broker.
func readSegments(config configs.Config) ([]segment.Snapshot, error) {
	files := func() ([]segment.Snapshot, error) {
		return segment.ReadAll(config.Segment.Directory, config.Segment.Group)
	}
	return member.Both(files, config.Segment.Broker)
}

type peerKey struct {
	path      string
	slot      int
	startedNs uint64
}

// reading is one reading of the counters; rates are differences of two.
type reading struct {
	atNs, sharedNs, sharedAtNs uint64
	share                      float64 // that of the sample before, which stays until more is counted
	counters                   segment.Counters
	outBytes, inBytes          uint64 // of memory that swaps
	stops                      uint64 // of kernels between blocks
}

func measure(snapshots []segment.Snapshot, before map[peerKey]reading) (sample, map[peerKey]reading) {
	now := sample{GPUs: []gpuSample{}}
	after := map[peerKey]reading{}
	for _, s := range snapshots {
		gpu := gpuSample{Snapshot: s, Peers: []peerSample{}}
		for _, p := range s.Peers {
			key := peerKey{s.Path, p.Slot, p.StartedNs}
			last, known := before[key]
			if !known {
				last = reading{atNs: p.StartedNs, sharedAtNs: p.StartedNs}
			}
			next := read(p, s.TakenNs)
			r := compare(last, next)
			next.share = r["share"]
			after[key] = next
			gpu.Peers = append(gpu.Peers, peerSample{p, r})
			if p.Level == segment.Levels-1 {
				gpu.BEShare = min(1, gpu.BEShare+r["share"])
			} else {
				gpu.LCShare = max(gpu.LCShare, r["share"])
			}
		}
		now.GPUs = append(now.GPUs, gpu)
	}
	return now, after
}

func read(p segment.Peer, takenNs uint64) reading {
	r := reading{atNs: takenNs, sharedAtNs: takenNs, counters: p.Counters}
	if p.Memory != nil {
		r.outBytes, r.inBytes = p.Memory.OutBytes, p.Memory.InBytes
	}
	if p.BLP != nil {
		r.stops = p.BLP.Stops
	}
	if p.Level == segment.Levels-1 {
		r.sharedNs, r.sharedAtNs = p.RanNs, min(p.RanAtNs, takenNs)
		return r
	}
	r.sharedNs = p.Counters.WindowNs
	if p.WindowOpen && p.WindowOpenedNs != 0 && p.WindowOpenedNs < takenNs {
		r.sharedNs += takenNs - p.WindowOpenedNs
	}
	return r
}

// compare does not trust the numbers: the peer wrote them, and not all at once.
func compare(last, next reading) rates {
	if next.atNs <= last.atNs {
		return rates{}
	}
	seconds := float64(next.atNs-last.atNs) / 1e9
	r := rates{"over_ns": 1e9 * seconds, "share": last.share}
	if next.sharedAtNs > last.sharedAtNs {
		r["share"] = min(1, float64(next.sharedNs-min(next.sharedNs, last.sharedNs))/float64(next.sharedAtNs-last.sharedAtNs))
	}
	for _, of := range ratedCounters() {
		before, now := counter(last.counters, of.counter), counter(next.counters, of.counter)
		r[of.counter] = float64(now-min(now, before)) / seconds
	}
	if next.stops != 0 {
		r["stops"] = float64(grown(last.stops, next.stops)) / seconds
	}
	if next.outBytes|next.inBytes != 0 {
		r["out_bytes"] = float64(grown(last.outBytes, next.outBytes)) / seconds
		r["in_bytes"] = float64(grown(last.inBytes, next.inBytes)) / seconds
	}
	return r
}

// counter is one of the counters, by its name in the segment.
func counter(of segment.Counters, name string) uint64 {
	value := reflect.ValueOf(of)
	for i := range value.NumField() {
		if value.Type().Field(i).Tag.Get("json") == name {
			return value.Field(i).Uint()
		}
	}
	return 0
}
