package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file tries the library here: two probes run under it, and the segments tell what is in force in them.

// tryLibrary runs a best-effort and a latency-critical probe together under the library, and reads from
// the segments what is in force.
func (d *doctor) tryLibrary(config string) {
	var probes []*probe
	for _, role := range []string{"be", "lc"} {
		p, err := d.tryRole(config, role)
		if err != nil {
			d.say("preload", failed, role+": "+err.Error(), "run a program with GPREEMPT_LOG=debug to see more")
			return
		}
		defer p.end()
		probes = append(probes, p)
	}
	be, lc := d.await(probes[0].pid(), probes[1].pid())
	for _, role := range []struct {
		name  string
		peers []segment.Peer
		probe *probe
	}{{"be", be, probes[0]}, {"lc", lc, probes[1]}} {
		if len(role.peers) < len(d.devices) {
			reason := fmt.Sprintf("%s: registered on %d of %d devices", role.name, len(role.peers), len(d.devices))
			role.probe.end() // and with it what writes to stderr
			if said := role.probe.stderr.String(); said != "" {
				reason += ": " + firstLine(said)
			}
			d.say("preload", failed, reason, "run a program with GPREEMPT_LOG=debug to see more")
		}
		for _, p := range role.peers {
			d.sayPeer(p)
		}
	}
	all := append(lc, be...)
	d.sayServer(all)
	d.sayCaps(all)
	if len(all) > 0 {
		d.sayMechanisms(all)
		d.sayHints()
	}
	d.sayPick(all)
}

// sayMechanisms says for each mechanism in which programs it is in force, or why in none.
func (d *doctor) sayMechanisms(peers []segment.Peer) {
	var lacks configs.Fallback
	for _, p := range peers {
		lacks |= p.Lacks
	}
	m, underMPS := d.config.Mechanisms, lacks&configs.FallbackMPS != 0
	uses := "it works"
	if m.Auto {
		uses = `"auto" uses it`
	}
	for _, row := range configs.MechanismRows {
		roles := rolesWith(row.Bit, peers)
		reasons, advice := reasonsOf(lacks, row.Bit)
		switch {
		case len(roles) > 0:
			d.say(row.Name, ok, "in force in "+strings.Join(roles, " and ")+" programs: "+row.Does, "")
		case !m.Use(row.Bit):
			d.say(row.Name, ok, "not in use: mechanisms does not name it", "")
		case !m.UseAt(row.Bit, underMPS) && underMPS:
			d.say(row.Name, ok, "not in use: "+uses+" where there is no MPS server", "")
		case !m.UseAt(row.Bit, underMPS):
			d.say(row.Name, ok, "not in use: "+uses+" under an MPS server", "")
		case row.Bit == configs.Hold && d.broker && !slices.ContainsFunc(peers, func(p segment.Peer) bool { return p.Level < segment.Levels-1 }):
			d.say(row.Name, ok, "not in force: the broker lets no program of this user be above best effort", "")
		case reasons != "":
			d.say(row.Name, warned, "not in force: "+reasons, advice)
		default:
			d.say(row.Name, warned, "not in force, for an unknown reason", "run a program with GPREEMPT_LOG=debug to see more")
		}
	}
}

func rolesWith(one configs.Mechanism, peers []segment.Peer) (roles []string) {
	for _, p := range peers {
		if p.InForce&one != 0 && !slices.Contains(roles, p.Role) {
			roles = append(roles, p.Role)
		}
	}
	return roles
}

// sayHints names the sources of hints that LC programs listen to.
func (d *doctor) sayHints() {
	var sources []string
	for _, row := range configs.HintRows {
		if d.config.Hints.Sources.Has(row.Source) {
			sources = append(sources, row.Name)
		}
	}
	if len(sources) == 0 {
		d.say("hints", ok, "none: no source is switched on", "")
		return
	}
	d.say("hints", ok, "work may be announced by: "+strings.Join(sources, ", "), "")
}

func (d *doctor) tryRole(config, role string) (*probe, error) {
	env := cli.SetEnv(os.Environ(), "LD_PRELOAD", preload(os.Getenv("LD_PRELOAD"), d.library))
	env = cli.SetEnv(env, "GPREEMPT_PRIORITY", role)
	env = cli.SetEnv(env, "GPREEMPT_LOG", "warn")
	if config != "" {
		env = cli.SetEnv(env, "GPREEMPT_CONFIG", config)
	}
	p, err := startProbe(env, "context")
	if err != nil {
		return nil, err
	}
	lines, err := p.report(probeLimit)
	for _, line := range lines {
		if text, isError := strings.CutPrefix(line, "error "); isError && err == nil {
			err = errors.New(text)
		}
	}
	if err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// wantsTimeslice and wantsNothing say what the probes get by the configuration.
func (d *doctor) wantsTimeslice() bool {
	return d.config.Mechanisms.Use(configs.Timeslice)
}

func (d *doctor) wantsNothing() bool { return d.config.Mechanisms == configs.Mechanisms{} }

// await reads the segments until both probes are on every device with the wanted mechanisms in force, or say why not. On a busy machine that
// takes seconds. Where the library of a probe does nothing there is little to wait for.
func (d *doctor) await(bePid, lcPid int) (be, lc []segment.Peer) {
	settled := func(peers []segment.Peer) bool {
		for _, p := range peers {
			// A program says that it is refused, and what is in force, in two words: it has said both when they agree.
			sliced, inForce := p.TimesliceUs != 0, p.InForce&configs.Timeslice != 0
			refused := p.Lacks&(configs.FallbackControlRefused|configs.FallbackMPS) != 0
			if !p.Published || d.wantsTimeslice() && (inForce == refused || inForce && !sliced) {
				return false
			}
		}
		return len(peers) == len(d.devices)
	}
	const least, most = 5 * time.Second, 30 * time.Second
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		be, lc = d.peers(bePid), d.peers(lcPid)
		if settled(be) && settled(lc) && !(preempted(be, lc) && slices.ContainsFunc(be, d.waitsForTimeslice)) {
			return be, lc
		}
		if waited := time.Since(began); waited > most || waited > least && !(hasHelper(bePid) && hasHelper(lcPid)) {
			return be, lc
		}
	}
}

// hasHelper says whether the library does anything in a probe: then it has a helper process, which is a child of the probe's child.
func hasHelper(probe int) bool {
	parent, helpers := map[int]int{}, []int{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		text, _ := os.ReadFile(path) // none of one that has just ended
		begins, ends := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		var pid, of int
		var state string
		if begins < 0 || ends < begins {
			continue
		}
		if _, err := fmt.Sscan(string(text[:begins]), &pid); err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(text[ends+1:]), &state, &of); err != nil {
			continue
		}
		parent[pid] = of
		if string(text[begins+1:ends]) == "gpreempt-helper" && state != "Z" {
			helpers = append(helpers, pid)
		}
	}
	return slices.ContainsFunc(helpers, func(helper int) bool { return parent[parent[helper]] == probe })
}

// preempted says whether the latency-critical probe has a higher level: a broker may give both the same.
func preempted(be, lc []segment.Peer) bool {
	return len(be) > 0 && len(lc) > 0 && lc[0].Level < be[0].Level
}

// waitsForTimeslice: it heard of the latency-critical probe a moment ago.
func (d *doctor) waitsForTimeslice(be segment.Peer) bool {
	return be.TimesliceUs != 0 && be.Lacks&configs.FallbackOthers == 0 && uint64(be.TimesliceUs) != d.config.Timeslice.BEUs
}

func (d *doctor) peers(pid int) (found []segment.Peer) {
	snapshots, err := d.snapshots()
	if err != nil {
		return nil
	}
	for _, s := range snapshots {
		for _, p := range s.Peers {
			if p.Alive && int(p.Pid) == pid {
				found = append(found, p)
			}
		}
	}
	return found
}

func (d *doctor) sayPeer(p segment.Peer) {
	about := fmt.Sprintf("%s: in force: %s; timeslice %s", p.Role, strings.Join(p.Mechanisms, ", "), slice(p.TimesliceUs))
	if len(p.Mechanisms) == 0 {
		about = fmt.Sprintf("%s: nothing is in force", p.Role)
	}
	missing := p.Lacks
	if p.InForce&configs.MPS != 0 { // which takes the place of what cannot be under MPS
		missing &^= configs.FallbackMPS
	}
	const all = ^configs.Mechanism(0)
	switch reasons, advice := reasonsOf(missing, all); {
	case reasons != "":
		d.say("preempt", warned, about+": "+reasons, advice)
	case d.wantsTimeslice() && p.TimesliceUs == 0 && p.Lacks == 0:
		d.say("preempt", warned, about+": no timeslice was set", "run a program with GPREEMPT_LOG=debug to see more")
	default:
		d.say("preempt", ok, about, "")
	}
}

// sayPick sums up what programs get, and why.
func (d *doctor) sayPick(peers []segment.Peer) {
	if d.wantsNothing() {
		d.say("picked", warned, "nothing is configured: mechanisms = []", "no program yields the GPU or gets it")
		return
	}
	var picked, missing []string
	for _, row := range configs.MechanismRows {
		if len(rolesWith(row.Bit, peers)) > 0 {
			picked = append(picked, row.Name)
		}
	}
	for _, row := range configs.FallbackRows {
		if slices.ContainsFunc(peers, func(p segment.Peer) bool { return p.Lacks&row.Bit != 0 }) {
			missing = append(missing, row.Name)
		}
	}
	from := "configured"
	if d.config.Mechanisms.Auto {
		from = `"auto" picks`
	}
	reason := "every probe succeeded"
	switch {
	case len(missing) > 0:
		reason = "because of " + strings.Join(missing, ", ")
	case len(peers) == 0:
		reason = "no probe registered"
	case len(picked) == 0:
		reason = "no probe said what it has, or why it has nothing"
	}
	if len(picked) == 0 {
		d.say("picked", failed, from+" nothing: "+reason, "see above")
		return
	}
	d.say("picked", ok, fmt.Sprintf("%s %s: %s", from, strings.Join(picked, ", "), reason), "")
}
