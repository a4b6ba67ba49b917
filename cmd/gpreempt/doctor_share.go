package main

import (
	"fmt"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// checkShares says what best-effort programs get at most, and of those that run whether that can be.
func (d *doctor) checkShares() {
	if share := d.config.Share; d.limitsShares() {
		d.say("share", ok, fmt.Sprintf("a best-effort program gets at most %g of a GPU's time, all of a GPU together %g", share.Max, share.MaxBE), "")
	}
	snapshots, err := d.snapshots()
	if err != nil {
		return // which checkDirectory or checkBroker said
	}
	for _, s := range snapshots {
		for i := range s.Peers {
			d.sayShare(heading(&s), &s.Peers[i])
		}
	}
}

func (d *doctor) limitsShares() bool { return d.config.Share.Max < 1 || d.config.Share.MaxBE < 1 }

func (d *doctor) sayShare(gpu string, p *segment.Peer) {
	about := fmt.Sprintf("%s: %s (%d)", gpu, p.Name, p.Pid)
	switch {
	case p.Level != configs.Levels-1:
	case p.Capped:
		d.say("share", ok, about+" has had its part of the GPU's time for now, and is kept off it", "")
	case d.limitsShares() && p.InForce&configs.MPS != 0:
		d.say("share", warned, about+" runs under an MPS server, where share.max and share.max_be do nothing", "run it without MPS, or give it fewer SMs by CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
	case d.limitsShares() && p.Lacks&configs.FallbackSuspendRefused != 0:
		d.say("share", warned, about+" cannot be taken off the GPU, as the driver refuses that: share.max and share.max_be do nothing", "")
	}
}
