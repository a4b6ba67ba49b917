package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

// What the checks of gpreempt doctor have in common.

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

// doctor collects findings. What later checks need of earlier ones is in its fields.
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
			Findings []finding `json:"findings"`
		}{!d.failed(), d.findings})
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
	return nil
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
