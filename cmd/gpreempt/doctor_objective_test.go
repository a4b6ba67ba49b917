package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestObjectiveFindings(t *testing.T) {
	objective := func(state string, c segment.ObjectiveCounters[uint64]) segment.Peer {
		return segment.Peer{Name: "serve", Pid: 7, Objective: &segment.Objective{Wanted: "step=20ms", State: state, ObjectiveCounters: c}}
	}
	counters := func(means, over uint64) segment.ObjectiveCounters[uint64] {
		return segment.ObjectiveCounters[uint64]{ObjectiveNs: 20e6, MeanNs: 11e6, UnlentNs: 21e6, Means: means, Over: over}
	}
	none, loose := objective("lends", counters(9, 0)), objective("lends", counters(1000, 40))
	none.Objective.Wanted, loose.Objective.Wanted = "", "step=20ms,p=95"
	for name, c := range map[string]struct {
		peer         segment.Peer
		status       status
		want, advice string
	}{
		"has none":        {segment.Peer{}, "", "", ""},
		"has none now":    {none, "", "", ""},
		"held":            {objective("lends", counters(1000, 10)), ok, "serve (7) has step=20ms, held for 99.00 % of its steps", ""},
		"held loosely":    {loose, ok, "held for 96.00 %", ""},
		"missed":          {objective("lends", counters(1000, 11)), warned, "held for 98.90 % of its steps, where 99 % are wanted", "objective.max_slot_ms"},
		"missed, garbage": {objective("lends", counters(1, math.MaxUint64)), warned, "held for 0.00 %", ""},
		"too early":       {objective("none", counters(0, 0)), ok, "too few steps", ""},
		"unattainable":    {objective("unattainable", counters(9, 9)), warned, "its steps without lent time take longer than the objective allows: 21ms, where 20ms are allowed", "set --objective"},
		"stepless":        {objective("stepless", counters(0, 0)), warned, "no end of a step was found", "gpreempt_step()"},
	} {
		d := &doctor{}
		d.sayObjective("GPU-01", &c.peer)
		if c.want == "" {
			if len(d.findings) != 0 {
				t.Errorf("%s: %q", name, d.findings)
			}
			continue
		}
		if len(d.findings) != 1 || d.findings[0].Status != c.status || !strings.HasPrefix(d.findings[0].Reason, "GPU-01: serve (7) has ") ||
			!strings.Contains(d.findings[0].Reason, c.want) || !strings.Contains(d.findings[0].Advice, c.advice) {
			t.Errorf("%s: %+v, want %q", name, d.findings, c.want)
		}
	}
}

// serving.md has what to do about each state that top shows in which nothing is lent.
func TestStatesOfObjectivesAreDescribed(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "serving.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"unattainable", "stepless", "late", "ranks", "rests"} {
		if shown, _, _ := strings.Cut(objectiveState(state), ":"); !strings.Contains(string(page), "| "+shown+" | ") {
			t.Errorf("%s: serving.md has no row %q", state, shown)
		}
	}
}

// Doctor says what a program that is started here would say: an objective that makes no sense, and one that does nothing.
func TestObjectiveOfTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpreempt.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPREEMPT_CONFIG", file)
	for value, c := range map[string]struct {
		priority string
		status   status
		want     string
	}{
		"slowdown=0.5":      {"lc", failed, "GPREEMPT_OBJECTIVE: objective "},
		"slowdown=1.5":      {"lc", ok, "slowdown=1.5, of programs that are not best effort"},
		"step=2s,range=a b": {"lc", ok, `step=2000ms, of programs that are not best effort; steps end with the NVTX range "a b"`},
		"step=20ms":         {"be", warned, "step=20ms: a best-effort program has none"},
	} {
		t.Setenv("GPREEMPT_PRIORITY", c.priority)
		t.Setenv("GPREEMPT_OBJECTIVE", value)
		d := &doctor{machine: thisMachine}
		d.checkConfig("")
		d.config.Segment.Directory, d.config.Segment.Broker = t.TempDir(), ""
		d.checkObjectives()
		found := false
		for _, f := range d.findings {
			found = found || f.Status == c.status && strings.Contains(f.Reason, c.want)
		}
		if !found {
			t.Errorf("%s: %+v", value, d.findings)
		}
	}
}
