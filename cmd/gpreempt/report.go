package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
)

// The report of gpreempt doctor: one file to attach to a bug report.

// section is a part of a report. If it fails, its error is written in its place.
type section struct {
	title, about string
	write        func(out io.Writer, d *doctor, config string) error
}

var sections = []section{
	{"versions", "of gpreempt, the library, the driver, Linux and the distribution", writeVersions},
	{"doctor", "what gpreempt doctor found", func(out io.Writer, d *doctor, _ string) error { return d.print(out, false) }},
	{"configuration", "every setting, and the file that it comes from", writeConfiguration},
	{"environment", "variables that begin with GPREEMPT_, CUDA_ or NVIDIA_, and LD_PRELOAD; not the values of those that may be secrets", writeEnvironment},
	{"segment", "this user's processes under the library, found by files and by a broker, with their names and counters", writeSegments},
	{"log", "the last lines of the log, where GPREEMPT_LOG or log.file names a file", writeLog},
	{"nvidia-smi", "what it prints, with the processes that use the GPU", writeSMI},
}

// writeReport writes a file that is not there yet. It removes a file that it could not write whole.
func (d *doctor) writeReport(path, config string) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "gpreempt report of %s\n\nIt contains nothing but\n", time.Now().UTC().Format(time.RFC3339))
	for _, s := range sections {
		fmt.Fprintf(&text, "  %-14s %s\n", s.title, s.about)
	}
	for _, s := range sections {
		fmt.Fprintf(&text, "\n== %s\n", s.title)
		if err := s.write(&text, d, config); err != nil {
			fmt.Fprintf(&text, "(%v)\n", err)
		}
	}
	file, err := newReport(path)
	if err != nil {
		return err
	}
	_, err = file.WriteString(printable(text.String()))
	if err = cmp.Or(err, file.Close()); err != nil {
		return fmt.Errorf("--report %q: %w", path, errors.Join(cli.Cause(err), os.Remove(path)))
	}
	return nil
}

// newReport makes a file that is not there yet.
func newReport(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("--report %q: is there already; name a new file", path)
	case err != nil:
		return nil, fmt.Errorf("--report %q: %w", path, cli.Cause(err))
	}
	return file, nil
}

// tryReport says whether a report could be written. It leaves nothing there: doctor may be interrupted.
func tryReport(path string) error {
	file, err := newReport(path)
	if err != nil {
		return err
	}
	file.Close()
	return os.Remove(path)
}

// printable leaves out what would not be text, so that the file can be read in a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

func writeVersions(out io.Writer, _ *doctor, _ string) error {
	err := findVersions().print(out)
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		fmt.Fprintf(out, "Linux     %s %s\n", unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Machine[:]))
	}
	release, readErr := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(release)) {
		if pretty, is := strings.CutPrefix(line, "PRETTY_NAME="); is {
			fmt.Fprintf(out, "system    %s\n", strings.Trim(pretty, "\"\n"))
		}
	}
	return errors.Join(err, readErr)
}

func writeConfiguration(out io.Writer, _ *doctor, config string) error {
	_, path, passed, err := loadConfig(config)
	for _, err := range []error{passed, err} {
		if err != nil {
			fmt.Fprintln(out, err)
		}
	}
	values, err := configs.Values(path)
	for _, v := range values {
		from := "default"
		if v.FromFile {
			from = path
		}
		fmt.Fprintf(out, "%s = %s  # %s\n", v.Key, v.Value, from)
	}
	return err
}

func writeEnvironment(out io.Writer, _ *doctor, _ string) error {
	for _, entry := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(entry, "=")
		shown := name == "LD_PRELOAD" || slices.ContainsFunc([]string{"GPREEMPT_", "CUDA_", "NVIDIA_"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if !shown {
			continue
		}
		if slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH"}, func(part string) bool { return strings.Contains(strings.ToUpper(name), part) }) {
			value = "(set; not shown)"
		}
		fmt.Fprintf(out, "%s=%s\n", name, strings.ReplaceAll(value, "\n", " "))
	}
	return nil
}

func writeSegments(out io.Writer, d *doctor, _ string) error {
	snapshots, err := d.snapshots()
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(snapshots)
}

func writeLog(out io.Writer, d *doctor, _ string) error {
	const most = 64 << 10 // bytes
	path := d.config.Log.File
	if path == "" {
		return errors.New("neither GPREEMPT_LOG nor log.file names a file: programs log to standard error")
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return cmp.Or(err, fmt.Errorf("%s is no regular file", path))
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-most), most))
	if info.Size() > most { // begins within a line
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	fmt.Fprintf(out, "# %s\n%s\n", path, bytes.TrimRight(text, "\n"))
	return err
}

func writeSMI(out io.Writer, _ *doctor, _ string) error {
	const limit = 30 * time.Second // without persistence it initialises every GPU
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, "nvidia-smi")
	command.WaitDelay = time.Second
	said, err := command.CombinedOutput()
	if _, writeErr := out.Write(said); writeErr != nil {
		return writeErr
	}
	return err
}
