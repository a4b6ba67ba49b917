package main

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// What top shows: readings of the segments, and the rates between two of them.

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
	// Others are processes that use the GPU and are no peers. nil: they are not known.
	Others []user `json:"others"`
}

type peerSample struct {
	segment.Peer
	State string `json:"state"` // a word of stateRows
	Rates rates  `json:"rates"`
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
			now.GPUs[i].Others = explain(others(on, snapshots, "/proc"), t.config)
		}
	}
	return now, nil
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
			gpu.Peers = append(gpu.Peers, peerSample{p, state(p), r})
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
