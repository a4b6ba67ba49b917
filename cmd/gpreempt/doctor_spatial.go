package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Whether best-effort work beside windows pays, as the programs that run show it.

const (
	littleTime   = 0.05 // share of the time: who stands still for less has little to win
	knownWindows = 100  // a program whose requests bear company has left something by then: its first kind after 16
)

func (d *doctor) checkSpatial() {
	snapshots, err := d.snapshots()
	if err != nil {
		return // which checkDirectory or checkBroker said
	}
	for _, s := range snapshots {
		d.sayBeside(s)
	}
}

// sayBeside says of each program with windows, under an MPS server and beside a lower level, what they leave or could leave to that.
func (d *doctor) sayBeside(s segment.Snapshot) {
	for _, p := range s.Peers {
		beside := slices.ContainsFunc(s.Peers, func(other segment.Peer) bool { return other.Level > p.Level && other.InForce&configs.BLP != 0 })
		if p.InForce&configs.MPS == 0 || p.Counters.Windows == 0 || !beside {
			continue
		}
		reason, advice := pays(p, s.TakenNs)
		d.say("spatial", ok, fmt.Sprintf("%s: %s (%d) %s", s.GPU, p.Name, p.Pid, reason), advice)
	}
}

// pays advises on "spatial" for a process with windows. Its numbers may be anything, since the process writes them.
func pays(p segment.Peer, takenNs uint64) (reason, advice string) {
	if p.InForce&configs.Spatial != 0 {
		return bears(p), ""
	}
	lived := float64(takenNs) - float64(p.StartedNs)
	share := min(float64(p.Counters.WindowNs)/max(lived, 1), 1)
	reason = fmt.Sprintf("has windows %.0f %% of the time, and best effort stands still in them", 100*share)
	if share < littleTime {
		return reason + `: "spatial" could win no more than that`, ""
	}
	return reason, `try mechanisms = ["gate", "blp", "mps", "spatial"] in both, and look here again: it pays where requests bear work beside them`
}

// bears says what a program found out about its requests.
func bears(p segment.Peer) string {
	var w segment.Width
	if p.Width != nil {
		w = *p.Width
	}
	switch {
	case w.Leaving > 0:
		share := min(float64(w.Leaving)/float64(p.Counters.Windows), 1)
		return fmt.Sprintf("leaves SMs in %.0f %% of its windows, the last time %d: \"spatial\" pays", math.Ceil(100*share), w.SMs)
	case p.Counters.Windows < knownWindows:
		return fmt.Sprintf("has had %d windows, too few to know whether its requests bear work beside them", p.Counters.Windows)
	case w.TooWide > 0:
		return "leaves nothing, since work beside them made its requests slow: \"spatial\" does not pay, and costs nothing"
	}
	return "leaves nothing: its windows are of too many kinds, or differ too much, to be compared, or best effort had no work in them"
}
