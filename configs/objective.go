package configs

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Objective says how slow a latency-critical process may be. The zero values of Slowdown and StepMs together say that it has none.
type Objective struct {
	Slowdown   float64 // times slower than alone, 1 to 20; 0: StepMs says it
	StepMs     float64 // mean time between results
	OverSteps  uint64  // steps of a mean
	FirstMs    float64 // from a request's arrival to its first result; 0: any
	Percentile float64 // of the means that are to be within the objective
	MinSlotMs  float64
	MaxSlotMs  float64
	StepRange  string // name of the NVTX range that ends with a step; "": steps are found, or said
}

// Set says whether there is an objective for steps.
func (o Objective) Set() bool { return o.Slowdown > 0 || o.StepMs > 0 }

// consistent checks values against each other.
func (o Objective) consistent() error {
	switch {
	case o.Slowdown > 0 && o.StepMs > 0:
		return fmt.Errorf("objective.slowdown = %v: must be 0 where objective.step_ms = %v is set", o.Slowdown, o.StepMs)
	case o.FirstMs > 0 && !o.Set():
		return fmt.Errorf("objective.first_ms = %v: needs objective.slowdown or objective.step_ms", o.FirstMs)
	case o.MinSlotMs > o.MaxSlotMs:
		return fmt.Errorf("objective.min_slot_ms = %v: must not be above objective.max_slot_ms = %v", o.MinSlotMs, o.MaxSlotMs)
	}
	return nil
}

// String is the inverse of ParseObjective; "" for none.
func (o Objective) String() string {
	var parts []string
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	if o.FirstMs > 0 {
		parts = append(parts, "first="+number(o.FirstMs)+"ms")
	}
	switch {
	case o.Slowdown > 0:
		parts = append(parts, "slowdown="+number(o.Slowdown))
	case o.StepMs > 0:
		parts = append(parts, "step="+number(o.StepMs)+"ms")
	default:
		return ""
	}
	if o.Percentile != defaultPercentile {
		parts = append(parts, "p="+number(o.Percentile))
	}
	return strings.Join(parts, ",")
}

const (
	mostSlowdown      = 20
	leastMs           = 0.1
	mostMs            = 60_000
	leastPercentile   = 50
	mostPercentile    = 99.99
	defaultPercentile = 99
	// ObjectiveAllowed says what ParseObjective reads.
	ObjectiveAllowed = "slowdown=1.5 (1 to 20) or step=20ms (0.1ms to 60s), with first=200ms and p=99 (50 to 99.99) if wanted, separated by commas; or none"
)

// ParseObjective reads the value of GPREEMPT_OBJECTIVE over an objective, of which it keeps what a value cannot say.
func ParseObjective(o Objective, value string) (Objective, error) {
	if wrong := o.read(strings.Split(value, ",")); wrong != "" {
		return o, refuse(value, wrong, ObjectiveAllowed)
	}
	return o, nil
}

// refuse names the part that is wrong, unless it is the whole value.
func refuse(value, wrong, allowed string) error {
	if wrong == show(value) {
		return fmt.Errorf("objective %s: must be %s", wrong, allowed)
	}
	return fmt.Errorf("objective %s: %s: must be %s", show(value), wrong, allowed)
}

// read reads the parts of a value, and says what is wrong with them; "" for nothing.
func (o *Objective) read(parts []string) (wrong string) {
	o.Slowdown, o.StepMs, o.FirstMs, o.Percentile = 0, 0, 0, defaultPercentile
	if slices.Equal(parts, []string{"none"}) {
		return ""
	}
	seen := map[string]bool{}
	for _, part := range parts {
		key, text, _ := strings.Cut(part, "=")
		ok := !seen[key]
		seen[key] = true
		switch key {
		case "slowdown":
			ok = ok && number(text, 1, mostSlowdown, &o.Slowdown)
		case "p":
			ok = ok && number(text, leastPercentile, mostPercentile, &o.Percentile)
		case "step":
			ok = ok && milliseconds(text, &o.StepMs)
		case "first":
			ok = ok && milliseconds(text, &o.FirstMs)
		default:
			ok = false
		}
		if !ok {
			return show(part)
		}
	}
	switch {
	case o.Slowdown > 0 && o.StepMs > 0:
		return "slowdown and step: only one of them"
	case !o.Set():
		return "needs slowdown or step"
	}
	return ""
}

const (
	rangeAllowed        = "range=NAME, once: the name of an NVTX range, 1 to 63 bytes without a comma"
	ownObjectiveAllowed = ObjectiveAllowed + "; beside that or alone " + rangeAllowed
)

// ParseOwnObjective reads the same as ParseObjective, and beside or instead of that range=NAME: the person who starts the program knows
// where steps end. Without it the range stays.
func ParseOwnObjective(o Objective, value string) (Objective, error) {
	var rest []string
	named := false
	for part := range strings.SplitSeq(value, ",") {
		name, is := strings.CutPrefix(part, "range=")
		if !is {
			rest = append(rest, part)
			continue
		}
		if named || !isRange(name) {
			return o, refuse(value, show(part), rangeAllowed)
		}
		named, o.StepRange = true, name
	}
	if rest == nil {
		return o, nil
	}
	if wrong := o.read(rest); wrong != "" {
		return o, refuse(value, wrong, ownObjectiveAllowed)
	}
	return o, nil
}

// ApplyObjectiveEnv lets the value of GPREEMPT_OBJECTIVE replace what a file says. The config is unchanged on error and for an empty value.
func ApplyObjectiveEnv(c *Config, value string) error {
	if value == "" {
		return nil
	}
	o, err := ParseOwnObjective(c.Objective, value)
	if err != nil {
		return fmt.Errorf("GPREEMPT_OBJECTIVE: %w", err)
	}
	c.Objective = o
	return nil
}

func number(text string, low, high float64, to *float64) bool {
	value, err := strconv.ParseFloat(text, 64)
	*to = value
	return err == nil && value >= low && value <= high
}

func milliseconds(text string, to *float64) bool {
	d, err := time.ParseDuration(text)
	*to = float64(d) / float64(time.Millisecond)
	return err == nil && *to >= leastMs && *to <= mostMs
}

// amount is a number from low to high, or 0 where that is allowed.
func amount(key string, low, high float64, zero bool, unit string, field func(*Config) *float64) setting {
	allowed := fmt.Sprintf("a number from %v to %v (%s)", low, high, unit)
	if zero {
		allowed += ", or 0 for none"
	}
	return setting{key, allowed, func(c *Config, value any) bool {
		f, ok := value.(float64)
		if n, isInteger := value.(int64); isInteger {
			f, ok = float64(n), true
		}
		if !ok || !(f >= low && f <= high || zero && f == 0) {
			return false
		}
		*field(c) = math.Abs(f) // no negative zero
		return true
	}}
}

var objectiveSettings = []setting{
	amount("objective.slowdown", 1, mostSlowdown, true, "times slower than alone", func(c *Config) *float64 { return &c.Objective.Slowdown }),
	amount("objective.step_ms", leastMs, mostMs, true, "ms", func(c *Config) *float64 { return &c.Objective.StepMs }),
	integer("objective.over_steps", 1, 256, "steps", func(c *Config) *uint64 { return &c.Objective.OverSteps }),
	amount("objective.first_ms", leastMs, mostMs, true, "ms", func(c *Config) *float64 { return &c.Objective.FirstMs }),
	amount("objective.percentile", leastPercentile, mostPercentile, false, "percent", func(c *Config) *float64 { return &c.Objective.Percentile }),
	amount("objective.min_slot_ms", 1, 1000, false, "ms", func(c *Config) *float64 { return &c.Objective.MinSlotMs }),
	amount("objective.max_slot_ms", 1, 1000, false, "ms", func(c *Config) *float64 { return &c.Objective.MaxSlotMs }),
	text("objective.step_range", `the name of an NVTX range, 1 to 63 bytes, or "" for none`, func(name string) bool { return name == "" || isRange(name) },
		func(c *Config) *string { return &c.Objective.StepRange }),
}
