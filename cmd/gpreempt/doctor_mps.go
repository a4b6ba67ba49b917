package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// MPS, as programs started from here find it, and whether they share a TSG through it.

// protocol3 says why a daemon of MPS v3 may be there: what CUDA_MPS_PROTOCOL_VERSION is, or where the daemon was found. "": it may not.
func protocol3(asked, dir string) string {
	switch {
	case asked == "3":
		return "CUDA_MPS_PROTOCOL_VERSION=3"
	case dir == configs.MPSDirectories[0]:
		return "the daemon is at " + dir
	}
	return ""
}

// findServer returns the directory of the control daemon that programs would go to, or else the last one that they look at.
// The library looks in the same order (gp_mps_server_runs).
func findServer(named string, usual []string) (dir string, there bool) {
	if named != "" {
		usual = []string{named}
	}
	for _, dir = range usual {
		if _, err := os.Stat(filepath.Join(dir, "control")); err == nil {
			return dir, true
		}
	}
	return dir, false
}

// checkMPS looks for a control daemon.
func (d *doctor) checkMPS() {
	dir, there := findServer(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), configs.MPSDirectories[:])
	if !there {
		d.say("server", ok, "no MPS control daemon at "+dir, "")
		return
	}
	text, err := os.ReadFile(filepath.Join(dir, "nvidia-cuda-mps-control.pid"))
	if pid, bad := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil && bad == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		d.say("server", ok, "the MPS control daemon of "+dir+" is gone", "")
		return
	}
	d.server = dir
	if why := protocol3(os.Getenv("CUDA_MPS_PROTOCOL_VERSION"), dir); why != "" {
		d.say("server", warned, why+": MPS v3 was tried with the simulated driver only. timeslice_pct of its servers cannot be read here, and programs under gpreempt set timeslices of their own", "")
	}
}

// sayServer says whether programs that would go through an MPS server share its TSG, as the library found in the probes, if there are any.
func (d *doctor) sayServer(peers []segment.Peer) {
	if d.server == "" {
		return
	}
	reason := "an MPS control daemon is at " + d.server
	if len(peers) == 0 {
		d.say("server", ok, reason, "")
		return
	}
	for _, p := range peers {
		if p.Lacks&configs.FallbackMPS != 0 {
			reason += ": its clients share one TSG, which has one timeslice"
			if m := d.config.Mechanisms; m.UseAt(configs.BLP, true) && m.UseAt(configs.MPS, true) {
				d.say("server", ok, reason+"; blp and mps take the place of timeslices", "")
				return
			}
			d.say("server", warned, reason+", and mechanisms has not both blp and mps",
				"add them, or stop it (echo quit | nvidia-cuda-mps-control), or set CUDA_MPS_PIPE_DIRECTORY to an empty directory for programs under the library")
			return
		}
	}
	d.say("server", ok, reason+": programs have TSGs of their own, as clients without context-share have, and programs without MPS", "")
}
