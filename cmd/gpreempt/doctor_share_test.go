package main

import (
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestSharesOfPrograms(t *testing.T) {
	be := func(p segment.Peer) segment.Peer {
		p.Level, p.Name, p.Pid = segment.Levels-1, "train", 7
		return p
	}
	for name, c := range map[string]struct {
		max, maxBE float64
		peer       segment.Peer
		status     status
		want       string // "": nothing is said
	}{
		"no limits":  {1, 1, be(segment.Peer{InForce: configs.MPS}), ok, ""},
		"limits":     {0.5, 0.25, be(segment.Peer{}), ok, ""},
		"kept off":   {1, 1, be(segment.Peer{Capped: true}), ok, "train (7) has had its part"},
		"MPS":        {0.5, 1, be(segment.Peer{InForce: configs.MPS}), warned, "train (7) runs under an MPS server"},
		"refused":    {1, 0.5, be(segment.Peer{Lacks: configs.FallbackSuspendRefused}), warned, "train (7) cannot be taken off"},
		"a high one": {0.5, 1, segment.Peer{InForce: configs.MPS, Capped: true}, ok, ""},
	} {
		d := &doctor{machine: thisMachine}
		d.config.Share.Max, d.config.Share.MaxBE = c.max, c.maxBE
		d.sayShare("GPU-1", &c.peer)
		found := c.want == "" && len(d.findings) == 0
		for _, f := range d.findings {
			found = found || c.want != "" && f.Status == c.status && strings.Contains(f.Reason, c.want)
		}
		if !found {
			t.Errorf("%s: %+v", name, d.findings)
		}
	}
}

func TestSharesOfTheConfiguration(t *testing.T) {
	d := &doctor{machine: thisMachine}
	d.config.Segment.Directory = t.TempDir()
	d.config.Share.Max, d.config.Share.MaxBE = 1, 1
	if d.checkShares(); len(d.findings) != 0 {
		t.Errorf("without limits: %+v", d.findings)
	}
	d.config.Share.MaxBE = 0.25
	if d.checkShares(); len(d.findings) != 1 || d.findings[0].Reason != "a best-effort program gets at most 1 of a GPU's time, all of a GPU together 0.25" {
		t.Errorf("%+v", d.findings)
	}
}
