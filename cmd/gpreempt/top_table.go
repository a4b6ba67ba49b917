package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// How top shows a sample.

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
			fmt.Fprintf(w, "%s  cannot be read: %s\n\n", heading(&gpu.Snapshot), gpu.Error)
			continue
		}
		fmt.Fprintf(w, "%s  LC %.0f %%  BE %.0f %%%s\n", heading(&gpu.Snapshot), 100*gpu.LCShare, 100*gpu.BEShare, saySwitch(gpu.Peers))
		if text := sayOthers(gpu.Others); text != "" {
			fmt.Fprintf(w, "OTHERS  %s\n", text)
		}
		fmt.Fprint(w, "PID\tNAME\tLEVEL\tSTATE\tSLICE\tSHARE")
		for _, of := range ratedCounters() {
			fmt.Fprint(w, "\t"+of.title)
		}
		fmt.Fprintln(w, "\tIN FORCE\tNOT IN FORCE")
		for _, p := range gpu.Peers {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s", p.Pid, p.Name, p.Role, p.State, slice(p.TimesliceUs), share(&p))
			for _, of := range ratedCounters() {
				fmt.Fprintf(w, "\t%.1f", p.Rates[of.counter])
			}
			fmt.Fprintf(w, "\t%s\t%s\n", orDash(p.Mechanisms), orDash(p.Fallbacks))
		}
		fmt.Fprintln(w)
		printHints(w, gpu.Peers)
		printBLP(w, gpu.Peers)
		printObjectives(w, gpu.Peers)
		printMemory(w, gpu.Peers)
	}
	if s.noUser != nil {
		fmt.Fprintf(w, "OTHERS  not known: %v\n", s.noUser)
	}
	return w.Flush()
}

// saySwitch is the time of a switch away from a lower level on this GPU, as its processes learnt it: the middle of their values.
func saySwitch(peers []peerSample) string {
	var us []uint32
	for _, p := range peers {
		if p.SwitchUs != 0 {
			us = append(us, p.SwitchUs)
		}
	}
	if len(us) == 0 {
		return ""
	}
	slices.Sort(us)
	return fmt.Sprintf("  a switch takes %d us", us[len(us)/2])
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
				state = "ignored: costs too much"
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
			fmt.Fprintln(w, "PID\tKERNELS\tREWRITTEN\tNOT\tLAUNCHES\tCOVERED\tBARRIERS\tSTOPS\tCUTS\tBLOCKS\tNARROWED\tBESIDE\tHELD\tNARROW FOR\tDRAIN\tMAX\tLOAD\tCACHED\tBLP")
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
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%.0f\t%.1f %%\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f ms\t%.0f us\t%.0f us\t%.0f ms\t%d of %d\t%s\n", p.Pid, b.KernelsSeen, b.KernelsGuarded,
			refusals(b.KernelsRefused), float64(b.Launches)+float64(b.Uncovered), covered, b.Barriers, b.Stops, b.Cuts, b.ResumedBlocks,
			b.Narrowed, b.NarrowBlocks, b.HeldTogether+b.HeldBehind+b.HeldRefused, float64(b.NarrowNs)/1e6, mean/1e3, float64(b.DrainMaxNs)/1e3, float64(b.LoadNs)/1e6, b.ImagesCached, b.Images, state)
	}
	if titled {
		fmt.Fprintln(w)
	}
}

// printObjectives says in a line for each process that has an objective how its steps keep it, and what lower levels get of it. Counts are
// from each process's start.
func printObjectives(w io.Writer, peers []peerSample) {
	titled := false
	for _, p := range peers {
		o := p.Objective
		if o == nil {
			continue
		}
		if !titled {
			titled = true
			fmt.Fprintln(w, "PID\tOBJECTIVE\tSTEPS\tMEAN\tMAY BE\tHELD\tLENT\tSLOTS\tCUT\tSTATE")
		}
		cut := uint64(0)
		for _, n := range o.Cut {
			cut += n
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%.1f ms\t%.1f ms\t%.1f %%\t%.0f %%\t%d\t%d\t%s\n", p.Pid, cmp.Or(o.Wanted, "none"), o.Steps, float64(o.MeanNs)/1e6, float64(o.ObjectiveNs)/1e6,
			100*o.Attained(), 100*float64(o.LentNs)/max(1, float64(o.StepNs)), o.Slots, cut, objectiveState(o.State))
	}
	if titled {
		fmt.Fprintln(w)
	}
}

func objectiveState(state string) string {
	switch state {
	case "none":
		return "latency-critical first"
	case "lends":
		return "lends what the objective leaves"
	case "unattainable":
		return "steps without lent time take longer: latency-critical first"
	case "stepless":
		return "no step's end found: latency-critical first"
	case "late":
		return "slots ended late: latency-critical first for a minute"
	case "ranks":
		return "on several GPUs, relative objective: latency-critical first"
	case "rests":
		return "rests after few steps: latency-critical first"
	}
	return state
}

// printMemory lists the processes whose device memory swaps.
func printMemory(w io.Writer, peers []peerSample) {
	titled := false
	for _, p := range peers {
		m := p.Memory
		if m == nil {
			continue
		}
		if !titled {
			titled = true
			fmt.Fprintln(w, "PID\tMEMORY\tRESIDENT\tSWAPPED\tPINNED\tCAP\tWANTED\tTHREADS\tHOST\tOUT/s\tIN/s\tTIMES\tFAILED\tWAITED")
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d, %d\t%d\t%v, %d\n", p.Pid, memoryState(p.Peer), amount(m.Resident), amount(m.Swapped),
			amount(m.Pinned)+because(m.PinnedBy), most(m.Cap), amount(m.Wanted), m.Waiting, amount(m.Host), amount(uint64(p.Rates["out_bytes"])),
			amount(uint64(p.Rates["in_bytes"])), m.Evictions, m.Restores, m.Failures, milliseconds(m.WaitNs), m.Waits)
	}
	if titled {
		fmt.Fprintln(w)
	}
}

// most is a limit in bytes; 0: there is none.
func most(bytes uint64) string {
	if bytes == 0 {
		return unknown
	}
	return amount(bytes)
}

func memoryState(p segment.Peer) string {
	switch {
	case p.MemoryTurn && p.Memory.QuantumNs > 0:
		return fmt.Sprintf("%s, turn of %v", p.Memory.State, milliseconds(p.Memory.QuantumNs))
	case p.MemoryTurn:
		return p.Memory.State + ", turn"
	}
	return p.Memory.State
}

// milliseconds is a time that a peer wrote, who may have written anything.
func milliseconds(ns uint64) time.Duration {
	return time.Duration(min(ns, math.MaxInt64)).Round(time.Millisecond)
}

func refusals(by map[string]uint64) string {
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		list = append(list, fmt.Sprintf("%s:%d", reason, by[reason]))
	}
	return orDash(list)
}

// The states of a process that top shows. A state of its memory (segment.Memory) stands before all but an open window.
const (
	stateWindow = "window"
	stateMax    = "max"
	stateWaits  = "waits"
	stateTurn   = "turn"
	stateBusy   = "busy"
	unknown     = "-"
	stateIdle   = "idle"
)

// stateRows say what each state means.
var stateRows = [...]struct{ state, means string }{
	{stateWindow, "its window is open: its work goes before that of lower levels"},
	{stateTurn, "best effort, and its turn on the GPU"},
	{stateWaits, "its channels are kept off the GPU, since others go before it"},
	{stateMax, "the same, since it has had its part (share.max, share.max_be)"},
	{stateBusy, "has work, or wants to run some"},
	{stateIdle, "has no work"},
	{"leaving, out, coming, suspended", "where its memory is on its way, or stays until gpreempt resume"},
	{unknown, "its launches are not counted, since nobody on the GPU needs to know of them"},
}

func state(p segment.Peer) string {
	switch {
	case p.WindowOpen:
		return stateWindow
	case p.Memory != nil && !slices.Contains([]string{"running", "stuck"}, p.Memory.State):
		return p.Memory.State
	case p.Capped:
		return stateMax
	case p.Suspended:
		return stateWaits
	case p.Turn:
		return stateTurn
	case p.Busy:
		return stateBusy
	case !p.Counted:
		return unknown
	}
	return stateIdle
}

func share(p *peerSample) string {
	if !p.Counted {
		return unknown
	}
	return fmt.Sprintf("%.0f %%", 100*p.Rates["share"])
}
