package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const libraryName = "libgpreempt.so"

// tree is the library's folder where it is installed, below lib.
const tree = "gpreempt/lib"

// Executable returns the path of the program that runs, without the links that lead to it.
func Executable() (string, error) {
	executable, err := os.Executable()
	if err == nil {
		executable, err = filepath.EvalSymlinks(executable)
	}
	if err != nil {
		return "", fmt.Errorf("find own executable: %w", err)
	}
	return executable, nil
}

// FindLibrary returns the absolute path of libgpreempt.so.
func FindLibrary() (string, error) {
	if path := os.Getenv("GPREEMPT_LIBRARY"); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			return "", fmt.Errorf("GPREEMPT_LIBRARY: %w", err)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("GPREEMPT_LIBRARY = %q: %w", path, Cause(err))
		}
		return path, nil
	}
	executable, err := Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Dir(executable)
	folders := []string{beside, filepath.Join(beside, "../lib", tree), filepath.Join(beside, "../lib"), "/usr/local/lib/" + tree, "/usr/lib/" + tree}
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

// LibraryVersion reads the version of a library from its file, which has it in the form of shim/main.go.
func LibraryVersion(path string) (string, error) {
	const most = 256 << 20 // bytes
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return "", err
	}
	_, rest, _ := bytes.Cut(data, []byte("@(#)"+libraryName+"("))
	version, _, found := bytes.Cut(rest[:min(len(rest), 100)], []byte(")"))
	if !found || bytes.ContainsFunc(version, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the file does not say")
	}
	return string(version), nil
}

// Preload returns what LD_PRELOAD should name for the library at a path, after CheckLibrary. Where links for every value of the
// loader's $LIB are beside it, that is a name that leaves programs of musl alone: their loader does not know $LIB, and would end
// them over a library of glibc.
func Preload(path string) (string, error) {
	if root, is := strings.CutSuffix(path, "/"+tree+"/"+libraryName); is {
		if name := root + "/gpreempt/$LIB/" + libraryName; CheckLibrary(name) == nil {
			return name, nil
		}
	}
	return path, CheckLibrary(path)
}

// CheckLibrary sees that the dynamic loader accepts the library. A loader that does not says so only on the standard error stream of the
// program, and goes on without it.
func CheckLibrary(path string) error {
	if strings.ContainsAny(path, " :") {
		return fmt.Errorf("%s: LD_PRELOAD cannot name a path with a blank or a colon; move it", path)
	}
	executable, err := os.Executable() // a program that is surely there, and of our architecture
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	command := exec.Command(executable, "--version")
	command.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "LD_DEBUG") })
	command.Env = SetEnv(command.Env, "LD_PRELOAD", path)
	command.Env = SetEnv(command.Env, "GPREEMPT_PRIORITY", "off")
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

// SetEnv returns an environment with a variable set.
func SetEnv(env []string, key, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, key+"=") })
	return append(env, key+"="+value)
}
