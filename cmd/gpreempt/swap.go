package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file has the commands by which people ask for a process's device memory to move: gpreempt swap, suspend and resume.

const aboutAsking = `

It asks on all GPUs that the process is on, unless --gpu names one, and waits until the process has done it, or says why it
could not. Then the exit status is 1. A request that it has not answered in time stands.`

func swapCommand() *cobra.Command {
	orders := map[string]segment.Asked{"out": segment.AskedOut, "in": segment.AskedIn}
	o := &ordering{}
	return o.complete(&cobra.Command{
		Use:   "swap {out|in} PID",
		Short: "Move a process's device memory to host memory, or back",
		Long: `out moves the device memory of a process to host memory, as far as it can go: what it shares with other processes or has
registered with a device stays. It comes back by itself when a call of the process needs it, if there is room. in brings it
back at once. The process must have the mechanism "swap" in force.` + aboutAsking,
		Example: "  gpreempt swap out 4711\n  gpreempt swap in 4711",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 || orders[args[0]] == segment.AskedNothing {
				return cli.Usage(errors.New("swap: must be followed by out or in, and the number of a process, for example: gpreempt swap out 4711"))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return []cobra.Completion{"out", "in"}, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return o.pids(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, args []string) error { return o.run(command, orders[args[0]], args[1]) },
	})
}

func suspendCommand() *cobra.Command {
	return personsCommand(segment.AskedSuspend, "suspend", "Stop a process's work on the GPU and move its device memory to host memory",
		`No work of the process runs on the GPU, and its device memory goes to host memory, until gpreempt resume. Its calls wait
meanwhile. The process must have the mechanism "swap" in force.`)
}

func resumeCommand() *cobra.Command {
	return personsCommand(segment.AskedResume, "resume", "Let a suspended process go on",
		"Ends what gpreempt suspend began: the process's device memory comes back as soon as there is room, and its work goes on.")
}

func personsCommand(what segment.Asked, name, short, long string) *cobra.Command {
	o := &ordering{}
	return o.complete(&cobra.Command{
		Use: name + " PID", Short: short, Long: long + aboutAsking, Example: "  gpreempt " + name + " 4711",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(fmt.Errorf("%s: must be followed by the number of a process, for example: gpreempt %s 4711", name, name))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return o.pids(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, args []string) error { return o.run(command, what, args[0]) },
	})
}

// ordering is how a request is made: the flags.
type ordering struct {
	gpu, config string
	timeout     time.Duration
}

func (o *ordering) complete(command *cobra.Command) *cobra.Command {
	flags := command.Flags()
	flags.StringVar(&o.gpu, "gpu", "", "UUID of a GPU or a slice (MIG), or its beginning; default all that the process is on")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "how long to wait for the process")
	flags.StringVarP(&o.config, "config", "c", "", "configuration file that names the segments' directory and group")
	if err := command.RegisterFlagCompletionFunc("gpu", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var list []cobra.Completion
		for _, s := range o.snapshots() {
			list = append(list, s.GPU)
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}); err != nil {
		panic(err) // the flag was made above
	}
	return command
}

// snapshots is for the completion, which has nobody to tell of an error.
func (o *ordering) snapshots() []segment.Snapshot {
	settings, _, _, err := loadConfig(o.config)
	if err != nil {
		return nil
	}
	all, _ := readSegments(settings)
	return all
}

// pids are the processes of which something can be asked.
func (o *ordering) pids() (list []cobra.Completion) {
	for _, s := range o.snapshots() {
		for _, p := range s.Peers {
			if c := fmt.Sprintf("%d\t%s", p.Pid, p.Name); p.InForce&configs.Swap != 0 && !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return list
}

func (o *ordering) run(command *cobra.Command, what segment.Asked, process string) error {
	pid, err := strconv.ParseInt(process, 10, 32)
	if err != nil || pid <= 0 {
		return cli.Usage(fmt.Errorf("PID %q: must be the number of a process", process))
	}
	if o.timeout <= 0 {
		return cli.Usage(fmt.Errorf("--timeout %v: must be above 0", o.timeout))
	}
	settings, _, _, err := loadConfig(o.config)
	if err != nil {
		return cli.Usage(err)
	}
	read := func() ([]segment.Snapshot, error) { return readSegments(settings) }
	snapshots, err := read()
	if err != nil {
		return err
	}
	list, err := find(snapshots, int32(pid), o.gpu)
	if err != nil {
		return err
	}
	for i := range list {
		if err := list[i].ask(what); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := await(ctx, list, read); err != nil {
		return err
	}
	var failures error
	for _, r := range list {
		failures = errors.Join(failures, r.tell(command.OutOrStdout(), what))
	}
	return failures
}

// request is a request to a process on one GPU.
type request struct {
	gpu, path string
	broker    string // its socket; empty: by a file
	before    segment.Peer
	number    segment.Request
	began     time.Time
	after     *segment.Memory // once it has answered
	took      time.Duration
	answer    segment.Answer
}

func (r *request) who() string {
	return fmt.Sprintf("process %d (%s) on %s", r.before.Pid, r.before.Name, r.gpu)
}

// find returns a request for each GPU that a process is on.
func find(snapshots []segment.Snapshot, pid int32, gpu string) (list []request, err error) {
	elsewhere := false
	for _, s := range snapshots {
		for _, p := range s.Peers {
			switch {
			case p.Pid != pid:
				continue
			case !strings.HasPrefix(s.GPU, gpu):
				elsewhere = true
				continue
			case slices.ContainsFunc(list, func(r request) bool { return r.path == s.Path }):
				return nil, fmt.Errorf("process %d: two processes in different PID namespaces have this number on %s", pid, s.GPU)
			}
			r := request{gpu: s.GPU, path: s.Path, broker: s.Broker, before: p}
			if p.InForce&configs.Swap == 0 {
				return nil, fmt.Errorf("%s has no swap: %s", r.who(), whyNoSwap(p))
			}
			list = append(list, r)
		}
	}
	switch {
	case len(list) > 0:
		return list, nil
	case elsewhere:
		return nil, fmt.Errorf("process %d: not on a GPU whose UUID begins with %q; gpreempt top shows where it is", pid, gpu)
	case errors.Is(unix.Kill(int(pid), 0), unix.ESRCH):
		return nil, fmt.Errorf("process %d: there is none", pid)
	}
	return nil, fmt.Errorf("process %d: does not run under the library, has not used CUDA yet, or joined a broker that is not there now", pid)
}

func whyNoSwap(p segment.Peer) string {
	reasons, advice := reasonsOf(p.Lacks, configs.Swap)
	switch {
	case reasons != "" && advice != "":
		return reasons + "; " + advice
	case reasons != "":
		return reasons
	}
	if p.Level < segment.Levels-1 {
		return levelStays + `, where mechanisms is "auto" or names swap`
	}
	return `mechanisms must be "auto" or name swap in the configuration of the process`
}

const levelStays = "its level is above be: memory.lc = true in its configuration, read when it starts, lets its memory go"

func (r *request) ask(what segment.Asked) error {
	if r.broker != "" {
		return r.askBroker(what)
	}
	reader, err := segment.OpenReader(r.path)
	if err != nil {
		return err
	}
	defer reader.Close()
	if r.number, err = reader.Ask(r.before.Slot, r.before.StartedNs, what); err != nil {
		return fmt.Errorf("%s: %w", r.who(), err)
	}
	r.began = time.Now()
	return nil
}

// askBroker lets the broker pass the request on: only the process itself writes its slot.
func (r *request) askBroker(what segment.Asked) error {
	r.number, r.began = r.before.Next(what), time.Now()
	there, err := join.Ask(r.broker, &wire.Ask{ID: r.before.Client, Request: uint64(r.number)})
	if err == nil && !there {
		err = segment.ErrEnded
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.who(), err)
	}
	return nil
}

// await waits until all requests are answered.
func await(ctx context.Context, list []request, read func() ([]segment.Snapshot, error)) error {
	const pause = 10 * time.Millisecond
	for {
		snapshots, err := read()
		if err != nil {
			return err
		}
		var waiting []error
		for i := range list {
			if err := list[i].look(snapshots); err != nil {
				return err
			}
			if list[i].after == nil {
				waiting = append(waiting, fmt.Errorf("%s has not answered; the request stands%s", list[i].who(), silence(snapshots, &list[i])))
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return waiting[0]
		case <-time.After(pause):
		}
	}
}

// look sees whether a request is answered.
func (r *request) look(snapshots []segment.Snapshot) error {
	if r.after != nil {
		return nil
	}
	p := r.peer(snapshots)
	switch {
	case p == nil && slices.ContainsFunc(snapshots, func(s segment.Snapshot) bool { return s.Path == r.path && s.Error != "" }):
		return nil // no member had a processor in time to hand the segment out
	case p == nil:
		return fmt.Errorf("%s has ended", r.who())
	case p.Memory == nil:
		return nil
	}
	if answer, answered := p.Memory.AnswerTo(r.number); answered {
		r.after, r.answer, r.took = p.Memory, answer, time.Since(r.began)
	}
	return nil
}

func (r *request) peer(snapshots []segment.Snapshot) *segment.Peer {
	for _, s := range snapshots {
		for i := range s.Peers {
			if p := &s.Peers[i]; s.Path == r.path && p.Slot == r.before.Slot && p.StartedNs == r.before.StartedNs {
				return p
			}
		}
	}
	return nil
}

// silence says since when a process shows no sign of life, if that is for longer than usual.
func silence(snapshots []segment.Snapshot, r *request) string {
	const usual = 3 * time.Second
	p := r.peer(snapshots)
	if p == nil { // its segment was not to be had this time
		return ""
	}
	if age := time.Duration(p.HeartbeatAgeNs); age > usual {
		return fmt.Sprintf(" (no sign of life for %v: it may be stopped)", age.Round(time.Second))
	}
	if p.Memory != nil && p.Memory.State == "stuck" {
		return " (its work does not end)"
	}
	return ""
}

// tell prints what became of a request, or returns why nothing did.
func (r *request) tell(out io.Writer, what segment.Asked) error {
	if why := r.failure(what); why != "" {
		return fmt.Errorf("%s: %s", r.who(), why)
	}
	var now segment.MemoryCounters[uint64]
	if r.before.Memory != nil {
		now = r.before.Memory.MemoryCounters
	}
	bytes, ns, moved := grown(now.OutBytes, r.after.OutBytes), grown(now.OutNs, r.after.OutNs), "went to host memory"
	text := ""
	switch what {
	case segment.AskedSuspend:
		text = "is suspended: "
	case segment.AskedIn, segment.AskedResume:
		bytes, ns, moved = grown(now.InBytes, r.after.InBytes), grown(now.InNs, r.after.InNs), "came back"
		if what == segment.AskedResume {
			text = "goes on: "
		}
	}
	text += fmt.Sprintf("%s %s in %v", amount(bytes), moved, cmp.Or(time.Duration(ns), r.took).Round(time.Millisecond))
	if rest := r.after; what == segment.AskedOut || what == segment.AskedSuspend {
		if rest.Pinned > 0 {
			text += fmt.Sprintf("; %s cannot go%s", amount(rest.Pinned), because(rest.PinnedBy))
		}
		if rest.Resident > 0 {
			text += fmt.Sprintf("; %s stay", amount(rest.Resident))
		}
	} else if rest.Swapped > 0 {
		text += fmt.Sprintf("; %s come back when there is room", amount(rest.Swapped))
	}
	if _, err := fmt.Fprintf(out, "%s: %s\n", r.who(), text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// failure says why a request was not carried out; "" if it was.
func (r *request) failure(what segment.Asked) string {
	m := r.after
	switch r.answer {
	case segment.AnswerDone:
		return ""
	case segment.AnswerBusy:
		return "its work did not end in time, and goes on"
	case segment.AnswerNoHost:
		return "no host memory is left for it; see memory.host_mb"
	case segment.AnswerNoRoom:
		if what == segment.AskedResume { // it was suspended, and is no more
			return ""
		}
		return "there is no room on the GPU now; it comes back when there is"
	case segment.AnswerFailed:
		return "the driver refused a call; the log of the process says which"
	case segment.AnswerNothing:
		switch {
		case m.Resident > 0 && r.before.Level < segment.Levels-1:
			return levelStays
		case m.Pinned > 0:
			return fmt.Sprintf("nothing can go: %s are held where they are%s", amount(m.Pinned), because(m.PinnedBy))
		case m.Swapped > 0:
			return fmt.Sprintf("nothing is left to go: %s are out", amount(m.Swapped))
		}
		return "it has no device memory that can go"
	}
	return fmt.Sprintf("it answered %d, which this version does not know", r.answer)
}
