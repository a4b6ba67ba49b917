package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

// This file has what the checks of gpreempt doctor share.

type status string

const (
	ok     status = "ok"
	warned status = "warn" // it works, with less
	failed status = "fail" // it cannot work
)

type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Reason string `json:"reason"`
	Advice string `json:"advice,omitempty"`
}

// doctor collects findings. Its fields keep facts of earlier checks for later ones.
type doctor struct {
	findings []finding
	machine  hostMachine
	config   configs.Config
	library  string
	devices  []device
	broker   bool   // it lets this user's programs join
	server   string // an MPS control daemon has its socket there; "" without one
}

func (d *doctor) say(check string, s status, reason, advice string) {
	d.findings = append(d.findings, finding{check, s, reason, advice})
}

func (d *doctor) failed() bool {
	return slices.ContainsFunc(d.findings, func(f finding) bool { return f.Status == failed })
}

func (d *doctor) print(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			OK       bool      `json:"ok"`
			Verdict  string    `json:"verdict"`
			Findings []finding `json:"findings"`
		}{!d.failed(), d.verdict(), d.findings})
	}
	for _, f := range d.findings {
		line := fmt.Sprintf("%-4s  %-9s  %s", f.Status, f.Check, f.Reason)
		if f.Advice != "" {
			line += "; " + f.Advice
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "\n%s\n", d.verdict())
	return err
}

// verdict is what comes of all findings, and what to do next.
func (d *doctor) verdict() string {
	names, first := map[status][]string{}, map[status]finding{}
	for _, f := range d.findings {
		if len(names[f.Status]) == 0 {
			first[f.Status] = f
		}
		if !slices.Contains(names[f.Status], f.Check) {
			names[f.Status] = append(names[f.Status], f.Check)
		}
	}
	const run = "gpreempt run --priority lc -- PROGRAM, and be for what may wait"
	switch {
	case len(names[failed]) > 0:
		return fmt.Sprintf("Not ready: %s. Next: %s", strings.Join(names[failed], ", "), cmp.Or(first[failed].Advice, "see the first line that begins with fail"))
	case len(names[warned]) > 0:
		return fmt.Sprintf("Ready, with less: %s. Next: see the lines that begin with warn, or %s", strings.Join(names[warned], ", "), run)
	}
	return "Ready. Next: " + run
}

type device struct {
	uuid       string
	capability string
	name       string
	memory     uint64 // bytes
	vmm        bool   // virtual memory management
}

func (d device) simulated() bool { return strings.HasPrefix(d.name, "Simulated") }

func (d *doctor) simulated() bool {
	return len(d.devices) > 0 && !slices.ContainsFunc(d.devices, func(v device) bool { return !v.simulated() })
}
