package configs

import (
	"strings"
	"testing"
)

func TestParseObjective(t *testing.T) {
	base := Default().Objective
	for value, want := range map[string]string{
		"slowdown=1.5":               "slowdown=1.5",
		"step=20ms":                  "step=20ms",
		"step=0.5s,p=95":             "step=500ms,p=95",
		"first=200ms,step=25ms,p=99": "first=200ms,step=25ms",
		"p=99.9,slowdown=2,first=1s": "first=1000ms,slowdown=2,p=99.9",
		"none":                       "",
	} {
		o, err := ParseObjective(base, value)
		if err != nil || o.String() != want || o.Set() != (want != "") {
			t.Errorf("%s: %q, %v, set %t; want %q", value, o.String(), err, o.Set(), want)
		}
		if again, err := ParseObjective(base, o.String()); o.Set() && (err != nil || again != o) {
			t.Errorf("%s: read again %+v, %v", value, again, err)
		}
		if o.OverSteps != base.OverSteps || o.MinSlotMs != base.MinSlotMs || o.MaxSlotMs != base.MaxSlotMs {
			t.Errorf("%s changed what it does not name: %+v", value, o)
		}
	}
}

func TestParseObjectiveRefuses(t *testing.T) {
	for _, value := range []string{"", "slowdown", "slowdown=", "slowdown=0.9", "slowdown=21", "slowdown=NaN", "slowdown=inf", "slowdown=0x2p0=1", "step=20", "step=0ms", "step=-1ms",
		"step=61s", "step=1ns", "p=99", "first=200ms", "slowdown=2,step=20ms", "step=1ms,step=2ms", "step=1ms,", "step=1ms,p=49", "step=1ms,p=100", "step=1ms,most=3", "None", "step=1ms;p=99"} {
		o, err := ParseObjective(Default().Objective, value)
		if err == nil {
			t.Errorf("%q is taken: %+v", value, o)
		} else if text := err.Error(); !strings.Contains(text, show(value)) || !strings.Contains(text, ObjectiveAllowed) || strings.Contains(text, "\n") {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestObjectiveEnvironment(t *testing.T) {
	c, err := Parse("test", []byte("[objective]\nslowdown = 3\nover_steps = 16\nmax_slot_ms = 20\n"))
	if err != nil {
		t.Fatal(err)
	}
	before := c
	if err := ApplyObjectiveEnv(&c, ""); err != nil || c != before {
		t.Errorf("empty: %v, %+v", err, c.Objective)
	}
	if err := ApplyObjectiveEnv(&c, "step=5"); err == nil || c != before || !strings.HasPrefix(err.Error(), "GPREEMPT_OBJECTIVE: ") {
		t.Errorf("refused: %v, %+v", err, c.Objective)
	}
	if err := ApplyObjectiveEnv(&c, "step=5ms"); err != nil || c.Objective.Slowdown != 0 || c.Objective.StepMs != 5 || c.Objective.OverSteps != 16 || c.Objective.MaxSlotMs != 20 {
		t.Errorf("step: %v, %+v", err, c.Objective)
	}
	for value, want := range map[string]Objective{
		"range=a=b":          {StepMs: 5, StepRange: "a=b"},
		"range=b,slowdown=2": {Slowdown: 2, StepRange: "b"},
		"step=7ms":           {StepMs: 7, StepRange: "b"},
		"none,range=c":       {StepRange: "c"},
	} {
		o, err := ParseOwnObjective(Objective{StepMs: 5, StepRange: "b", Percentile: 99}, value)
		if want.Percentile = 99; err != nil || o != want {
			t.Errorf("%s: %+v, %v; want %+v", value, o, err, want)
		}
		if _, err := ParseObjective(Objective{}, value); err == nil && value != "step=7ms" {
			t.Errorf("%s is taken from others", value)
		}
	}
	for _, value := range []string{"range=", "range", "range=a,range=a", "range=" + strings.Repeat("n", 64), "range=a\nb", "range=a,", "range=a,step=5"} {
		if err := ApplyObjectiveEnv(&c, value); err == nil || !strings.HasPrefix(err.Error(), "GPREEMPT_OBJECTIVE: objective ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", value, err)
		}
	}
	for value, want := range map[string]string{
		"step=20ms,rnage=x":  `GPREEMPT_OBJECTIVE: objective "step=20ms,rnage=x": "rnage=x": must be ` + ObjectiveAllowed + "; beside that or alone range=NAME, once: ",
		"range=a,step=5":     `GPREEMPT_OBJECTIVE: objective "range=a,step=5": "step=5": must be ` + ObjectiveAllowed + "; beside that or alone range=NAME, once: ",
		"p=98,range=a,p=98":  `objective "p=98,range=a,p=98": "p=98": must be `,
		"range=a,first=20ms": `objective "range=a,first=20ms": needs slowdown or step: must be `,
	} {
		if err := ApplyObjectiveEnv(&c, value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", value, err, want)
		}
	}
	for value, want := range map[string]string{ // from others: no range is allowed
		"range=a":                `objective "range=a": must be ` + ObjectiveAllowed,
		"slowdown=1.5,step=20ms": `objective "slowdown=1.5,step=20ms": slowdown and step: only one of them: must be ` + ObjectiveAllowed,
		"p=99":                   `objective "p=99": needs slowdown or step: must be ` + ObjectiveAllowed,
		"step=5,range=a":         `objective "step=5,range=a": "step=5": must be ` + ObjectiveAllowed,
	} {
		if _, err := ParseObjective(Objective{}, value); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", value, err, want)
		}
	}
	for text, want := range map[string]string{
		"[objective]\nstep_range = 1\n":                   `objective.step_range = 1: must be the name of an NVTX range, 1 to 63 bytes, or "" for none`,
		"[objective]\nstep_range = \"a\\nb\"\n":           `objective.step_range = "a\nb": must be`,
		"[objective]\nslowdown = 0.5\n":                   "objective.slowdown = 0.5: must be a number from 1 to 20 (times slower than alone), or 0 for none",
		"[objective]\npercentile = 100\n":                 "objective.percentile = 100: must be",
		"[objective]\nover_steps = 0\n":                   "objective.over_steps = 0: must be",
		"[objective]\nslowdown = 2\nstep_ms = 20\n":       "objective.slowdown",
		"[objective]\nfirst_ms = 100\n":                   "objective.first_ms",
		"[objective]\nmin_slot_ms = 9\nmax_slot_ms = 8\n": "objective.min_slot_ms",
	} {
		if _, err := Parse("test", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
