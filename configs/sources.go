package configs

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// HintSource is where a hint comes from: enum gp_hint_source of rows.h.
type HintSource int

// The sources of hints; HintRows has a row for each.
const (
	HintExplicit HintSource = iota
	HintNVTX
	HintCopy
	HintSocket
	HintArrival
)

// HintSources is a set of sources.
type HintSources uint32

// Has says whether a source is in the set.
func (s HintSources) Has(source HintSource) bool { return s>>source&1 != 0 }

// Told are those of the set by which the program itself says what comes.
func (s HintSources) Told() (told HintSources) {
	for _, row := range HintRows {
		told.set(row.Source, row.Told && s.Has(row.Source))
	}
	return told
}

// set puts a source in or takes it out.
func (s *HintSources) set(source HintSource, in bool) {
	*s &^= 1 << source
	if in {
		*s |= 1 << source
	}
}

// HintRow is all that is said of a source of hints outside of the code that gives them. Its key in [hints] with its messages, and the
// counters' names in the segment come from it. So do default.toml and rows.h (go generate ./configs), gpreempt doctor and gpreempt top.
type HintRow struct {
	Source  HintSource
	Name    string
	Default string // in default.toml: true, false, or [] where names are given instead
	Told    bool   // by the program itself, which knows; the others guess
	Comes   string // when it comes
}

// HintRows has a row for each source, in the order of the enum.
var HintRows = [...]HintRow{
	{HintExplicit, "explicit", "true", true, "the program says so: gpreempt_hint() of gpreempt.h, the Python module gpreempt"},
	{HintNVTX, "nvtx", "[]", true, "an NVTX range begins that has one of these names, for example [\"request\"]"},
	{HintCopy, "copy", "true", false, "the first copy after idle, or pinned memory being made: kernels follow"},
	{HintSocket, "socket", "true", false, "data arrives on a stream socket; how long before the work, if at all, is learnt by port"},
	{HintArrival, "arrival", "true", false, "requests that come in a regular pattern, learnt"},
}

// HintNames are the names in the order of the enum.
func HintNames() (names []string) {
	for _, row := range HintRows {
		names = append(names, row.Name)
	}
	return names
}

// hintSettings has a key for each source.
func hintSettings() (list []setting) {
	for _, row := range HintRows {
		key := "hints." + row.Name
		if row.Source == HintNVTX {
			list = append(list, setting{key, fmt.Sprintf("an array of at most %d names of NVTX ranges, each of 1 to 63 bytes", MaxRanges), setNVTX})
			continue
		}
		list = append(list, setting{key, "true or false", func(c *Config, value any) bool {
			on, ok := value.(bool)
			if ok {
				c.Hints.Sources.set(row.Source, on)
			}
			return ok
		}})
	}
	return list
}

// HintsFrom returns a table [hints] for a file in which only these sources are on.
func HintsFrom(some ...HintSource) string {
	var b strings.Builder
	b.WriteString("[hints]\n")
	for _, row := range HintRows {
		if row.Default != "[]" { // else it is off until names are given
			fmt.Fprintf(&b, "%s = %v\n", row.Name, slices.Contains(some, row.Source))
		}
	}
	return b.String()
}

// MaxRanges is how many names of NVTX ranges can be given.
const MaxRanges = 16

// isRange says whether a range may have this name.
func isRange(name string) bool {
	return name != "" && len(name) <= 63 && !strings.ContainsFunc(name, unicode.IsControl)
}

func setNVTX(c *Config, value any) bool {
	names, ok := value.([]any)
	if !ok || len(names) > MaxRanges {
		return false
	}
	var ranges [MaxRanges]string
	for i, name := range names {
		s, ok := name.(string)
		if !ok || !isRange(s) {
			return false
		}
		ranges[i] = s
	}
	c.Hints.NVTX = ranges
	c.Hints.Sources.set(HintNVTX, len(names) > 0)
	return true
}
