package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
)

// topKeys says what the keys do on a terminal, for the manual and for the screen.
const topKeys = `  p, n, l, s, w, b, g, x  sort by PID, name, level, share, windows, stops, memory on the GPU, memory swapped; r reverses
  up, down, page up, page down  select a process
  Enter  shows all that is known of the selected process
  space  lets the tables stand still
  ?  shows what keys and columns mean
  q, Escape, Ctrl-C  end`

// topColumns says what the columns of the table of processes are, for the manual and for the screen.
const topColumns = `  LEVEL  lc, be, or the level between them: 0 is lc, 7 is be
  STATE  what the process does on the GPU: see the states
  SHARE  part of the time with its window open (above be); with work, on its turn, and no window open above it (be)
  MINUTE  the share over the last minute
  WIN/s  windows opened, per second
  STOP/s  times that kernels were stopped between blocks
  ON GPU  device memory on the GPU, of a process whose memory swaps
  SWAPPED  the part that is in host memory
  SLICE  timeslice of the process's channel groups (TSGs) in force, - for the driver's default`

// topHelp is what ? shows on a terminal.
var topHelp = `Keys: ? or Enter shows the tables again.

` + topKeys + `

Columns:

` + topColumns + `

States:

` + topStates() + `

All columns and tables: man gpreempt`

// topStates lists the states.
func topStates() string {
	var list []string
	for _, row := range stateRows {
		list = append(list, "  "+row.state+"  "+row.means)
	}
	return strings.Join(list, "\n")
}

// topManual is what gpreempt(1) says of top behind its flags.
var topManual = `On a terminal the keys are:

` + topKeys + `

The columns of the table of processes, of which a terminal shows those that fit:

` + topColumns + `
  SWITCH/s  windows that took the GPU from a lower level, per second
  HOLD/s, GATE/s, TURNS/s  holds, launches that waited at the gate, and turns taken, per second
  NOT IN FORCE  fallbacks, with why

The states:

` + topStates() + `

Above the table of a GPU:

  a switch takes  as learnt: so long after an LC process asks for the GPU a lower level has left it
  OTHERS  processes on the GPU that are none of these, as NVIDIA's management library says: without gpreempt, or another user's or container's; with their device memory, and the part of the SMs' time that they had lately

For processes that hint at coming work, by source of hints and since the process's start:

  HIT  work came while the GPU was kept for it; LATE: before; WRONG: not in time
  DROPPED  not carried out: a duplicate, nonsense, the source off, or no lower level there
  SAVED  time of switches (MPS: of stops) that overlapped what came before the work
  KEPT  GPU time kept before work came, or in vain

For processes whose kernels are rewritten so that they can stop between blocks (BLP), since the process's start:

  KERNELS  of the modules that were loaded, of these rewritten, and not, by reason: form (not known how), room (for one more parameter), peers (blocks wait for one another), sm (of the GPU), image (not readable), runtime (loaded unseen, by a CUDA runtime before 12.0)
  LAUNCHES  of kernels, and the part that could be stopped
  STOPS  times that they were stopped; CUTS: launches that a stop cut; BLOCKS: run later because of that
  NARROWED  launches that went on in a part of the SMs, while the program had stopped their stream, and for how long; BESIDE: their blocks
  HELD  those that could not: their blocks run together and have no room, work was ahead of them, or the driver refused
  DRAIN  from a stop until nothing ran: mean, and the longest
  LOAD  time that loads of code took longer, and images that came from the cache

For processes whose device memory swaps to host memory:

  MEMORY  running: all of it is on the GPU; leaving, out, coming; stuck: it did not go, since work did not end or a call failed; suspended: out until gpreempt resume. turn: it is its memory turn, and how long turns are
  RESIDENT  on the GPU, and can go; SWAPPED: in host memory; PINNED: on the GPU and cannot go, and why: exported to or imported from other processes, registered with a device, multicast, shared (mapped more than once), closed (the GPU may not use it now), driver (small allocations, arrays, pools)
  CAP  the most that the driver lets it have, where it refuses memory that the GPU has (MPS, a cgroup, vGPU)
  WANTED  by calls that wait for room; THREADS: that wait, for room or for what is out
  HOST  page-locked host memory of the process, on all GPUs
  OUT/s  bytes a second to host memory, and back, in the time of the sample
  TIMES  that memory went out, and came back, since the process's start; FAILED: that it could not
  WAITED  time that calls waited, and their number`

func topCommand() *cobra.Command {
	var once, asJSON, asMetrics bool
	var config, listen string
	interval := time.Second
	command := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and the processes under the library",
		Long: `Shows, GPU by GPU, this user's processes under the library. The first sample counts from each process's
start, later ones from the sample before. On a terminal it draws a table until q, Escape or Ctrl-C; ? says what the keys and
columns are. Elsewhere, and with --once, it prints tables.

--prometheus and --listen give the same as Prometheus metrics, summed by container and level (` + metricsName + `).`,
		Annotations: map[string]string{cli.Manual: topManual},
		Args:        cli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if asMetrics || command.Flags().Changed("listen") {
				return becomeMetrics(command.Flags(), config, listen)
			}
			if once && command.Flags().Changed("interval") {
				return cli.Usage(errors.New("--interval does not apply to --once"))
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
	flags.BoolVar(&asJSON, "json", false, "one line of JSON a sample; docs/top-json.md says what each key means")
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
			return cli.Usage(fmt.Errorf("--%s cannot be given with --prometheus or --listen; --config can", name))
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
