package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func topCommand() *cobra.Command {
	var once, asJSON bool
	var config string
	interval := time.Second
	command := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and the processes under the library",
		Long: `Shows, GPU by GPU, this user's processes under the library. The first sample counts from each process's
start, later ones from the sample before.

  SLICE   timeslice of the process's TSGs in force, - for the driver's default
  STATE   window: an LC window is open; turn: its turn on the GPU; off: its channels are off the GPU;
          busy: has, or wants to run, work
  SHARE   part of the time with its window open (above be); with work, on its turn, and no window open above it (be)
  /s      windows opened, of these with the GPU taken from a lower level, holds, launches that waited at the
          gate, and turns taken, per second
  NOT IN FORCE  fallbacks, with why

For processes that hint at coming work, by source of hints and since the process's start:
  HIT     work came while the GPU was kept for it; LATE: before; WRONG: not in time
  DROPPED not carried out: a duplicate, nonsense, the source off, or no lower level there
  SAVED   time of switches that overlapped what came before the work
  KEPT    GPU time kept before work came, or in vain

For processes whose kernels are rewritten so that they can stop between blocks (BLP), since the process's start:
  KERNELS  of the modules that were loaded, of these rewritten, and not, by reason: form (not known how), room (for
           one more parameter), peers (blocks wait for one another), sm (of the GPU), image (not readable)
  LAUNCHES of kernels, and the part that could be stopped
  STOPS    times that they were stopped; CUTS: launches that a stop cut; BLOCKS: run later because of that
  DRAIN    from a stop until nothing ran: mean, and the longest
  LOAD     time that loads of code took longer, and images that came from the cache`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
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
				show = redrawTable
			}
			return top(ctx, command.OutOrStdout(), settings, interval, once, show)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&once, "once", false, "one sample, then end")
	flags.BoolVar(&asJSON, "json", false, "one line of JSON a sample")
	flags.DurationVarP(&interval, "interval", "n", interval, "time between samples")
	flags.StringVarP(&config, "config", "c", "", "configuration file that names the segments' directory and group")
	return command
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

type sample struct {
	GPUs []gpuSample `json:"gpus"`
}

type gpuSample struct {
	segment.Snapshot
	// LCShare is the part of the time with a window open, of the level above be that had it open most;
	// BEShare what the be processes got together.
	LCShare float64      `json:"lc_share"`
	BEShare float64      `json:"be_share"`
	Peers   []peerSample `json:"peers"`
}

type peerSample struct {
	segment.Peer
	Rates rates `json:"rates"`
}

// rates are per second over OverNs.
type rates struct {
	OverNs    uint64  `json:"over_ns"`
	Share     float64 `json:"share"`
	Windows   float64 `json:"windows"`
	Switches  float64 `json:"switches"`
	Holds     float64 `json:"holds"`
	GateWaits float64 `json:"gate_waits"`
	Turns     float64 `json:"turns"`
}

func top(ctx context.Context, out io.Writer, config configs.Config, interval time.Duration, once bool, show func(io.Writer, sample) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for before := (map[peerKey]reading{}); ; {
		snapshots, err := readSegments(config.Segment.Directory, config.Segment.Group)
		if err != nil {
			return err
		}
		var now sample
		now, before = measure(snapshots, before)
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

// readSegments reads this user's segments, and the group's if there is one.
func readSegments(base, group string) ([]segment.Snapshot, error) {
	all, err := readDirectory(segment.Directory(base, os.Getuid()), -1)
	if err != nil || group == "" {
		return all, err
	}
	gid, err := segment.GroupID(group)
	if err != nil {
		return nil, err
	}
	shared, err := readDirectory(segment.GroupDirectory(base, gid), gid)
	return append(all, shared...), err
}

func readDirectory(dir string, gid int) ([]segment.Snapshot, error) {
	if err := segment.CheckDirectory(dir, gid); err != nil {
		return nil, err
	}
	return segment.SnapshotsIn(dir)
}

type peerKey struct {
	path      string
	slot      int
	startedNs uint64
}

// reading is what rates are differences of.
type reading struct {
	atNs, sharedNs, sharedAtNs uint64
	share                      float64 // that of the sample before, which stays until more is counted
	counters                   segment.Counters
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
			next.share = r.Share
			after[key] = next
			gpu.Peers = append(gpu.Peers, peerSample{p, r})
			if p.Level == segment.Levels-1 {
				gpu.BEShare = min(1, gpu.BEShare+r.Share)
			} else {
				gpu.LCShare = max(gpu.LCShare, r.Share)
			}
		}
		now.GPUs = append(now.GPUs, gpu)
	}
	return now, after
}

func read(p segment.Peer, takenNs uint64) reading {
	r := reading{atNs: takenNs, sharedAtNs: takenNs, counters: p.Counters}
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

// compare distrusts the numbers: the peer wrote them, and not all at once.
func compare(last, next reading) rates {
	if next.atNs <= last.atNs {
		return rates{}
	}
	r := rates{OverNs: next.atNs - last.atNs}
	seconds := float64(r.OverNs) / 1e9
	rate := func(last, next uint64) float64 {
		if next < last {
			return 0
		}
		return float64(next-last) / seconds
	}
	a, b := last.counters, next.counters
	r.Share = last.share
	if next.sharedAtNs > last.sharedAtNs {
		r.Share = min(1, float64(next.sharedNs-min(next.sharedNs, last.sharedNs))/float64(next.sharedAtNs-last.sharedAtNs))
	}
	r.Windows, r.Switches, r.Holds = rate(a.Windows, b.Windows), rate(a.Switches, b.Switches), rate(a.Holds, b.Holds)
	r.GateWaits, r.Turns = rate(a.GateWaits, b.GateWaits), rate(a.Turns, b.Turns)
	return r
}

func printJSON(out io.Writer, s sample) error { return json.NewEncoder(out).Encode(s) }

func redrawTable(out io.Writer, s sample) error {
	if _, err := io.WriteString(out, "\x1b[H\x1b[J"); err != nil { // home, erase to the end
		return err
	}
	return printTable(out, s)
}

func printTable(out io.Writer, s sample) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(s.GPUs) == 0 {
		fmt.Fprintln(w, "No process of this user runs under the library.")
	}
	for _, gpu := range s.GPUs {
		if gpu.Error != "" {
			fmt.Fprintf(w, "%s  cannot be read: %s\n\n", gpu.GPU, gpu.Error)
			continue
		}
		fmt.Fprintf(w, "%s  LC %.0f %%  BE %.0f %%\n", gpu.GPU, 100*gpu.LCShare, 100*gpu.BEShare)
		fmt.Fprintln(w, "PID\tNAME\tROLE\tSTATE\tSLICE\tSHARE\tWINDOW/s\tSWITCH/s\tHOLD/s\tGATE/s\tTURN/s\tIN FORCE\tNOT IN FORCE")
		for _, p := range gpu.Peers {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%.0f %%\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%s\n",
				p.Pid, p.Name, p.Role, state(p.Peer), slice(p.TimesliceUs), 100*p.Rates.Share,
				p.Rates.Windows, p.Rates.Switches, p.Rates.Holds, p.Rates.GateWaits, p.Rates.Turns,
				orDash(p.Mechanisms), orDash(p.Fallbacks))
		}
		fmt.Fprintln(w)
		printHints(w, gpu.Peers)
		printBLP(w, gpu.Peers)
	}
	return w.Flush()
}

// printHints lists the sources that gave hints. Counts are from each process's start.
func printHints(w io.Writer, peers []peerSample) {
	titled := false
	for _, p := range peers {
		for _, h := range p.Hints {
			if !titled {
				titled = true
				fmt.Fprintln(w, "PID\tHINTS\tGIVEN\tHIT\tLATE\tWRONG\tDROPPED\tSAVED\tKEPT\tSTATE")
			}
			state := "on"
			if h.Off {
				state = "off: costs too much"
			}
			fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%.1f ms\t%.1f ms\t%s\n", p.Pid, h.Source, h.Given, h.Hit, h.Late, h.Wrong,
				h.Dropped, float64(h.SavedNs)/1e6, float64(h.WaitedNs)/1e6, state)
		}
	}
	if titled {
		fmt.Fprintln(w)
	}
}

// printBLP lists the processes in which block-level preemption is on. Counts are from each process's start.
func printBLP(w io.Writer, peers []peerSample) {
	titled := false
	for _, p := range peers {
		b := p.BLP
		if b == nil {
			continue
		}
		if !titled {
			titled = true
			fmt.Fprintln(w, "PID\tKERNELS\tREWRITTEN\tNOT\tLAUNCHES\tCOVERED\tBARRIERS\tSTOPS\tCUTS\tBLOCKS\tDRAIN\tMAX\tLOAD\tCACHED\tBLP")
		}
		state := "on"
		if b.GivenUp != 0 {
			state = "given up after an error of the driver"
		}
		// As numbers: the peer wrote them, and may have written anything.
		covered, mean := 0.0, 0.0
		if launches := float64(b.Launches) + float64(b.Uncovered); launches > 0 {
			covered = 100 * float64(b.Launches) / launches
		}
		if b.Stops > 0 {
			mean = float64(b.DrainNs) / float64(b.Stops)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%.0f\t%.1f %%\t%d\t%d\t%d\t%d\t%.0f us\t%.0f us\t%.0f ms\t%d of %d\t%s\n", p.Pid, b.KernelsSeen, b.KernelsGuarded,
			refusals(b.KernelsRefused), float64(b.Launches)+float64(b.Uncovered), covered, b.Barriers, b.Stops, b.Cuts, b.ResumedBlocks,
			mean/1e3, float64(b.DrainMaxNs)/1e3, float64(b.LoadNs)/1e6, b.ImagesCached, b.Images, state)
	}
	if titled {
		fmt.Fprintln(w)
	}
}

func refusals(by map[string]uint64) string {
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		list = append(list, fmt.Sprintf("%s:%d", reason, by[reason]))
	}
	return orDash(list)
}

func state(p segment.Peer) string {
	switch {
	case p.WindowOpen:
		return "window"
	case p.Suspended:
		return "off"
	case p.Turn:
		return "turn"
	case p.Busy:
		return "busy"
	}
	return "idle"
}

func slice(us uint32) string {
	switch {
	case us == 0:
		return "-"
	case us%1000 == 0:
		return fmt.Sprintf("%d ms", us/1000)
	}
	return fmt.Sprintf("%d us", us)
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}
