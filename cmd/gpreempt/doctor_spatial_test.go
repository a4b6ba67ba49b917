package main

import (
	"math"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// The findings of doctor about programs that leave SMs, that could, or that have no process to leave them to.
func TestSpatialFindings(t *testing.T) {
	const second = 1_000_000_000
	be := segment.Peer{Level: segment.Levels - 1, InForce: configs.BLP | configs.MPS}
	lc := func(inForce configs.Mechanism, windows, windowNs uint64, width *segment.Width) segment.Peer {
		return segment.Peer{Name: "serve", Pid: 7, InForce: inForce, StartedNs: second, Counters: segment.Counters{Windows: windows, WindowNs: windowNs}, Width: width}
	}
	width := func(sms uint32, leaving, tooWide uint64) *segment.Width {
		return &segment.Width{SMs: sms, WidthCounters: segment.WidthCounters[uint64]{Leaving: leaving, TooWide: tooWide}}
	}
	const both = configs.MPS | configs.Spatial
	for _, c := range []struct {
		name         string
		peers        []segment.Peer
		want, advice string
	}{
		{"nobody beside", []segment.Peer{lc(configs.MPS, 9, second, nil)}, "", ""},
		{"who runs whole beside it", []segment.Peer{lc(configs.MPS, 9, second, nil), {Level: segment.Levels - 1, InForce: configs.Gate}}, "", ""},
		{"no MPS server", []segment.Peer{lc(configs.Hold, 9, second, nil), be}, "", ""},
		{"no window", []segment.Peer{lc(configs.MPS, 0, 0, nil), be}, "", ""},
		{"off", []segment.Peer{lc(configs.MPS, 9, 4*second, nil), be}, "has windows 40 % of the time, and best effort stands still in them", "mechanisms = "},
		{"off, seldom", []segment.Peer{lc(configs.MPS, 9, second/10, nil), be}, `1 % of the time, and best effort stands still in them: "spatial" could win no more than that`, ""},
		{"off, garbage", []segment.Peer{lc(configs.MPS, math.MaxUint64, math.MaxUint64, nil), be}, "has windows 100 %", "mechanisms = "},
		{"leaves", []segment.Peer{lc(both, 200, second, width(64, 150, 2)), be}, `leaves SMs in 75 % of its windows, the last time 64: "spatial" pays`, ""},
		{"leaves, garbage", []segment.Peer{lc(both, 1, second, width(math.MaxUint32, math.MaxUint64, 2)), be}, "leaves SMs in 100 % of its windows", ""},
		{"too early", []segment.Peer{lc(both, 20, second, nil), be}, "has had 20 windows, too few to know", ""},
		{"suffers", []segment.Peer{lc(both, 200, second, width(0, 0, 3)), be}, "work beside them made its requests slow", ""},
		{"not compared", []segment.Peer{lc(both, 200, second, nil), be}, "too many kinds", ""},
	} {
		d := &doctor{}
		d.sayBeside(segment.Snapshot{GPU: "GPU-01", TakenNs: 11 * second, Peers: c.peers})
		if c.want == "" {
			if len(d.findings) != 0 {
				t.Errorf("%s: %q", c.name, d.findings)
			}
			continue
		}
		if len(d.findings) != 1 || !strings.HasPrefix(d.findings[0].Reason, "GPU-01: serve (7) ") || !strings.Contains(d.findings[0].Reason, c.want) || strings.Contains(d.findings[0].Advice, "mechanisms") != (c.advice != "") {
			t.Errorf("%s: %q, want %q", c.name, d.findings, c.want)
		}
	}
}
