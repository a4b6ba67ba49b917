package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

const libraryName = "libgpreempt.so"

// findLibrary returns the absolute path of libgpreempt.so.
func findLibrary() (string, error) {
	if path := os.Getenv("GPREEMPT_LIBRARY"); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			return "", fmt.Errorf("GPREEMPT_LIBRARY: %w", err)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("GPREEMPT_LIBRARY: %w", err)
		}
		return path, nil
	}
	executable, err := os.Executable()
	if err == nil {
		executable, err = filepath.EvalSymlinks(executable)
	}
	if err != nil {
		return "", fmt.Errorf("find own executable: %w", err)
	}
	beside := filepath.Dir(executable)
	folders := []string{beside, filepath.Join(beside, "../lib"), filepath.Join(beside, "../lib/gpreempt"), "/usr/local/lib"}
	for _, folder := range folders {
		path := filepath.Join(folder, libraryName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find %s: %w", libraryName, err)
		}
	}
	return "", fmt.Errorf("%s is in none of %s; set GPREEMPT_LIBRARY to its path", libraryName, strings.Join(folders, ", "))
}

// checkLibrary sees that the dynamic loader accepts the library, which otherwise says so only on the
// standard error stream of the program and goes on without it.
func checkLibrary(path string) error {
	if strings.ContainsAny(path, " :") {
		return fmt.Errorf("%s: LD_PRELOAD cannot name a path with a blank or a colon; move it", path)
	}
	executable, err := os.Executable() // a program that is surely there, and of our architecture
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	command := exec.Command(executable, "--version")
	command.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "LD_DEBUG") })
	command.Env = setEnv(command.Env, "LD_PRELOAD", path)
	command.Env = setEnv(command.Env, "GPREEMPT_PRIORITY", "off")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	err = command.Run()
	said := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	refused := slices.IndexFunc(said, func(line string) bool { return strings.Contains(line, "cannot be preloaded") }) // ld.so
	const question = "is it complete, readable, and of this machine's architecture and C library?"
	switch {
	case refused >= 0:
		return fmt.Errorf("%s does not load: %s; %s", path, said[refused], question)
	case err != nil:
		return fmt.Errorf("%s does not load: %s (%w); %s", path, said[0], err, question)
	}
	return nil
}

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

func setEnv(env []string, key, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, key+"=") })
	return append(env, key+"="+value)
}

// loadConfig reads the configuration as the library would; file, if not empty, stands for
// GPREEMPT_CONFIG. path is "" when the defaults are in force; passed is why a file is not obeyed.
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
