package main

import (
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/configs"
)

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// preload adds the library to an LD_PRELOAD, behind what is there.
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
