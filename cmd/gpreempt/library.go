package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// preload adds the library to an LD_PRELOAD, behind its present entries.
func preload(before, library string) string {
	split := func(r rune) bool { return r == ' ' || r == ':' }
	entries := strings.FieldsFunc(before, split)
	if !slices.Contains(entries, library) {
		entries = append(entries, library)
	}
	return strings.Join(entries, ":")
}

// loadConfig reads the configuration as the library would.
func loadConfig(file string) (config configs.Config, path string, passed, err error) {
	return cli.LoadConfig(file)
}

// reasonsOf says why some mechanisms are not in force, and what can be done about it.
func reasonsOf(lacks configs.Fallback, some configs.Mechanism) (reasons, advice string) {
	var list []string
	for _, row := range configs.FallbackRows {
		if lacks&row.Bit != 0 && some&row.Of != 0 {
			list, advice = append(list, row.Why), cmp.Or(advice, row.Advice)
		}
	}
	return strings.Join(list, ", "), advice
}

// readSegments reads the segments by files and of a broker.
func readSegments(config configs.Config) ([]segment.Snapshot, error) {
	return member.Both(func() ([]segment.Snapshot, error) { return readFiles(config) }, config.Segment.Broker)
}

// heading names a segment. A GPU has two where processes came by files and by the broker, which do not know of each other.
func heading(s *segment.Snapshot) string {
	if s.Broker != "" {
		return s.GPU + " (by the broker)"
	}
	return s.GPU
}

// readFiles reads those that are by files.
func readFiles(config configs.Config) ([]segment.Snapshot, error) {
	return segment.ReadAll(config.Segment.Directory, config.Segment.Group)
}
