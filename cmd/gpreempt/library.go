package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

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

// loadConfig reads the configuration as the library would; file, if not empty, replaces GPREEMPT_CONFIG. path is "" if the
// defaults are in force; passed says why a file is ignored.
func loadConfig(file string) (config configs.Config, path string, passed, err error) {
	getenv := func(key string) string {
		if key == "GPREEMPT_CONFIG" && file != "" {
			return file
		}
		return os.Getenv(key)
	}
	config, path, passed, err = configs.Read(getenv)
	if err != nil {
		if rest, isName := strings.CutPrefix(err.Error(), "GPREEMPT_CONFIG = "); isName && file != "" {
			err = fmt.Errorf("--config: %s", rest)
		}
		return configs.Config{}, path, passed, err
	}
	return config, path, passed, configs.ApplyLogEnv(&config, getenv("GPREEMPT_LOG"))
}
