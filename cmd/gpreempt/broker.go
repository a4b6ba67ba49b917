package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file has the commands by which people ask a broker: gpreempt set and policy.

type setting struct {
	config, priority, objective string
	share, shareMax             float64
	pause, clear                bool
}

func setCommand() *cobra.Command {
	var o setting
	command := &cobra.Command{
		Use:   "set PID",
		Short: "Change what a running process may have",
		Long: `Changes level, shares, pause or objective of a running process that joined by a broker (gpreemptd). It takes effect at once, and lasts until the
process ends, or --clear. Nobody gets more than the policy's rule for the process and its socket allow, and root alone gives shares above the
rule's, or another objective than the rule's. By default a user may change its own processes in its own
container, and root of the host all.

Without a broker the objective can be changed, of processes of the same user, and --clear gives back the one that the process began with.`,
		Example: "  gpreempt set 4711 --priority be\n  gpreempt set 4711 --share 0.2 --share-max 0.5\n  gpreempt set 4711 --objective slowdown=1.5\n  gpreempt set 4711 --pause=false\n  gpreempt set 4711 --clear",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("set: must be followed by the number of a process, for example: gpreempt set 4711 --priority be"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	flags := command.Flags()
	flags.StringVar(&o.priority, "priority", "", "lc, be, or a level from 0 (lc) to 7 (be)")
	flags.Float64Var(&o.share, "share", 0, "the least part of the GPU's time that it gets while it has work, from 0 to less than 1")
	flags.Float64Var(&o.shareMax, "share-max", 1, "the most of the GPU's time that it gets while it is best effort, above 0, at most 1")
	flags.StringVar(&o.objective, "objective", "", "how slow it may be: "+configs.ObjectiveAllowed)
	flags.BoolVar(&o.pause, "pause", false, "its work stops and its device memory goes to host memory; it must have the mechanism \"swap\"")
	flags.BoolVar(&o.clear, "clear", false, "all is as the policy says")
	flags.StringVarP(&o.config, "config", "c", "", "configuration file that says where the broker is")
	return command
}

// message is the request to the broker that the flags ask for.
func (o *setting) message(c *cobra.Command, process string) (*wire.Set, error) {
	pid, err := strconv.ParseInt(process, 10, 32)
	if err != nil || pid <= 0 {
		return nil, fmt.Errorf("PID %q: must be the number of a process", process)
	}
	m := &wire.Set{Pid: int32(pid)}
	changed := c.Flags().Changed
	if changed("priority") {
		p, err := configs.ParsePriority(o.priority)
		if err != nil || !p.On {
			return nil, fmt.Errorf("--priority %s: must be lc, be, or a level from 0 to %d", o.priority, configs.Levels-1)
		}
		m.Fields, m.Level = m.Fields|wire.SetLevel, uint8(p.Level)
	}
	if changed("share") {
		if !(o.share >= 0 && o.share < 1) {
			return nil, fmt.Errorf("--share %v: must be from 0 to less than 1", o.share)
		}
		m.Fields, m.Share = m.Fields|wire.SetShare, min(uint32(o.share*1e6), 999_999)
	}
	if changed("share-max") {
		if !(o.shareMax >= 1e-6 && o.shareMax <= 1) || o.shareMax < o.share {
			return nil, fmt.Errorf("--share-max %v: must be from 0.000001 to 1, and not below --share", o.shareMax)
		}
		m.Fields, m.ShareMax = m.Fields|wire.SetShareMax, uint32(o.shareMax*1e6)
	}
	if changed("objective") {
		objective, err := configs.ParseObjective(configs.Objective{}, o.objective)
		if err != nil {
			return nil, fmt.Errorf("--objective: %w", err)
		}
		m.Fields, m.Objective = m.Fields|wire.SetObjective, objective.Word()
	}
	if changed("pause") {
		m.Fields |= wire.SetPaused
		if o.pause {
			m.Paused = 1
		}
	}
	switch {
	case o.clear && m.Fields != 0:
		return nil, errors.New("--clear: must stand alone")
	case o.clear:
		m.Fields = wire.SetClear
	case m.Fields == 0:
		return nil, errors.New("set: nothing to set; give --priority, --share, --share-max, --objective, --pause or --clear")
	}
	return m, nil
}

func (o *setting) run(c *cobra.Command, process string) error {
	m, err := o.message(c, process)
	if err != nil {
		return cli.Usage(err)
	}
	settings, _, _, err := loadConfig(o.config)
	if err != nil {
		return cli.Usage(err)
	}
	done, err := setByFile(c.Context(), settings, m)
	if err != nil {
		return err
	}
	if done {
		return tellSet(c.OutOrStdout(), m, "", "has its own objective again")
	}
	n, less := 0, ""
	err = reach(settings, func(path string) (err error) {
		if n, err = join.Set(path, m); err == nil && m.Fields&wire.SetLevel != 0 {
			less = lessThanAsked(path, m)
		}
		return err
	})
	if errors.Is(err, member.ErrNone) {
		return fmt.Errorf("set %s: no process of this number of yours runs under the library, or it joined a broker that is not there now (%s)", process, settings.Segment.Broker)
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", process, err)
	}
	if n == 0 {
		return fmt.Errorf("set %s: no process of this number has joined by the broker, or it cannot be seen from here", process)
	}
	return tellSet(c.OutOrStdout(), m, less, "is as the policy says")
}

// lessThanAsked names the level that is in force, where the policy allows no better one. Without a list nothing is known.
func lessThanAsked(path string, m *wire.Set) string {
	worst := m.Level
	_ = join.List(path, func(e *wire.Entry, _ []int) error {
		if e.Pid == m.Pid && e.Ended == 0 && e.Refused == 0 {
			worst = max(worst, e.Policy.Level)
		}
		return nil
	})
	if worst == m.Level {
		return ""
	}
	return fmt.Sprintf(" (%v is in force: the policy or its socket allows no better)", configs.Priority{On: true, Level: int(worst)})
}

// tellSet prints the new settings; less says what is less than was asked for.
func tellSet(out io.Writer, m *wire.Set, less, cleared string) error {
	var now []string
	for _, field := range []struct {
		bit  uint8
		text string
	}{
		{wire.SetLevel, "has priority " + configs.Priority{On: true, Level: int(m.Level)}.String() + less},
		{wire.SetShare, "has share " + strconv.FormatFloat(float64(m.Share)/1e6, 'g', -1, 64)},
		{wire.SetShareMax, "has share-max " + strconv.FormatFloat(float64(m.ShareMax)/1e6, 'g', -1, 64)},
		{wire.SetObjective, "has objective " + cmp.Or(m.Objective.String(), "none")},
		{wire.SetPaused, map[uint8]string{0: "is not paused", 1: "is paused"}[m.Paused]},
		{wire.SetClear, cleared},
	} {
		if m.Fields&field.bit != 0 {
			now = append(now, field.text)
		}
	}
	if _, err := fmt.Fprintf(out, "process %d %s\n", m.Pid, strings.Join(now, ", ")); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// reach calls do with the broker's socket: the administrator's, or one for programs.
func reach(settings configs.Config, do func(path string) error) error {
	if settings.Segment.Broker == "" {
		return errors.New(`segment.broker is "": there is no broker`)
	}
	return member.ReachToAsk(settings.Segment.Broker, do)
}

func policyCommand() *cobra.Command {
	var config string
	command := &cobra.Command{
		Use:   "policy",
		Short: "Show what processes may have, at the broker",
		Long: `Shows the processes that joined by a broker (gpreemptd) and that this user may see, with the rule of the policy that holds for each and what it
gives them; SHARE, MAX and MEMORY are the process's part of what it divides with others of its user, cgroup or rule (PER). A star marks what people
changed. Those that the policy refused are "refused" as BEST, and run on as best effort, or off: without a role. For root of the
host the policy itself follows.`,
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			settings, _, _, err := loadConfig(config)
			if err != nil {
				return cli.Usage(err)
			}
			return reach(settings, func(path string) error { return showPolicy(c.OutOrStdout(), path) })
		},
	}
	command.Flags().StringVarP(&config, "config", "c", "", "configuration file that says where the broker is")
	return command
}

func showPolicy(out io.Writer, path string) error {
	var entries []wire.Entry
	if err := join.List(path, func(e *wire.Entry, _ []int) error {
		if e.Ended == 0 {
			entries = append(entries, *e)
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b wire.Entry) int {
		return cmp.Or(slices.Compare(a.GPU[:], b.GPU[:]), cmp.Compare(a.Policy.Level, b.Policy.Level), cmp.Compare(a.ID, b.ID))
	})
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "GPU\tPID\tUSER\tNAME\tRULE\tLEVEL\tBEST\tSHARE\tMAX\tMEMORY\tPER\tPAUSED\tOBJECTIVE")
	for i := range entries {
		e := &entries[i]
		level, best := configs.Priority{On: e.Refused != uint8(wire.RefusedOff), Level: int(e.Policy.Level)}.String(), configs.Priority{On: true, Level: int(e.Policy.Best)}.String()
		if e.Refused != 0 {
			best = "refused"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", gpuText(segment.GPU{UUID: e.GPU, Slice: e.Slice == 1}), pidText(int64(e.Pid)), e.UID,
			cmp.Or(wire.GetText(e.Name[:]), "-"), cmp.Or(wire.GetText(e.Rule[:]), "-"), marked(level, e.Set&wire.SetLevel != 0), best,
			marked(strconv.FormatFloat(float64(e.Policy.Share)/1e6, 'g', 3, 64), e.Set&wire.SetShare != 0),
			marked(mostText(e.Policy.ShareMax), e.Set&wire.SetShareMax != 0),
			memoryText(&e.Policy), e.Policy.Per,
			marked(map[uint8]string{0: "no", 1: "yes"}[e.Policy.Paused], e.Set&wire.SetPaused != 0),
			marked(cmp.Or(e.Policy.Objective.String(), "-"), e.Set&wire.SetObjective != 0))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	text, err := join.Policy(path)
	var refused join.RefusedError
	if errors.As(err, &refused) && refused.Reason == wire.RefusedPolicy {
		return nil // for the administrator alone
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s", text)
	return err
}

// gpuText is the beginning of a UUID; one that is not known is zero.
func gpuText(gpu segment.GPU) string {
	if gpu == (segment.GPU{}) {
		return "-"
	}
	return fmt.Sprintf("%.12s", gpu)
}

// mostText is the most of the GPU's time that a process may have; 0: the process's own setting.
func mostText(millionths uint32) string {
	if millionths == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(millionths)/1e6, 'g', 3, 64)
}

// memoryText is what a process may have; 0: it is not bounded.
func memoryText(p *wire.Policy) string {
	switch {
	case p.MemoryPart != 0:
		return fmt.Sprintf("%g%%", float64(p.MemoryPart)/1e4)
	case p.MemoryMB != 0:
		return amount(uint64(p.MemoryMB) << 20)
	}
	return "-"
}

func marked(text string, set bool) string {
	if set {
		return text + "*"
	}
	return text
}

func pidText(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
