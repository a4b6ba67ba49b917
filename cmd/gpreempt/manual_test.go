package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpreempt/gpreempt/internal/clitest"
)

// The manual pages are made from the commands themselves and from the comments of default.toml.

var update = flag.Bool("update", false, "write the manual pages")

const (
	manual   = "../../docs/man"
	maker    = "cmd/gpreempt/manual_test.go"
	defaults = "../../configs/default.toml"
)

func TestManualIsCurrent(t *testing.T) {
	config, err := os.ReadFile(defaults)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := settingsPage(config)
	if err != nil {
		t.Fatal(err)
	}
	clitest.CheckPage(t, manual+"/gpreempt.1", commandPage(rootCommand()), *update)
	clitest.CheckPage(t, manual+"/gpreempt.toml.5", settings, *update)
}

func TestHelpFitsOnAScreen(t *testing.T) { clitest.CheckHelp(t, rootCommand()) }

// Every key of default.toml has a text, and every subcommand is there.
func TestManualIsComplete(t *testing.T) {
	config, err := os.ReadFile(defaults)
	if err != nil {
		t.Fatal(err)
	}
	page, err := settingsPage(config)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(config)) {
		if key, _, is := strings.Cut(line, " = "); is && !strings.HasPrefix(line, "#") && !bytes.Contains(page, []byte("\n.B "+clitest.Roff(key)+"\n")) {
			t.Errorf("gpreempt.toml(5) lacks %s", key)
		}
	}
	commands := commandPage(rootCommand())
	for _, c := range clitest.All(rootCommand()) {
		if !bytes.Contains(commands, []byte("\n.SS "+c.CommandPath()+"\n")) {
			t.Errorf("gpreempt(1) lacks %s", c.CommandPath())
		}
	}
}

func TestSettingsWithoutTextAreRefused(t *testing.T) {
	for _, config := range []string{"# About it.\n\n[a]\nb = 1\n", "# About it.\n\n[a]\n# Text.\nno key\n", "b = 1\n"} {
		if page, err := settingsPage([]byte(config)); err == nil {
			t.Errorf("%q gives %q", config, page)
		}
	}
}

const environment = `.TP
.B GPREEMPT_PRIORITY
lc, be, off, or a level from 0 (lc, highest) to 7 (be). Unset is off: the library does nothing.
.TP
.B GPREEMPT_OBJECTIVE
How slow a latency\-critical process may be: slowdown=1.5, or step=20ms, with first=200ms and p=99 if wanted; none for no objective.
Beside that or alone range=NAME: steps end with the NVTX range of this name.
.TP
.B GPREEMPT_MEMORY_LIMIT
The most GPU memory of each process, instead of memory.limit: 10GB, 10240MB, 40% of the GPU's, or none.
.TP
.B GPREEMPT_CONFIG
The configuration file, instead of those that gpreempt.toml(5) names.
.TP
.B GPREEMPT_LOG
level or level:/path/file of the library's log. Levels are trace, debug, info, warn, error, off.
.TP
.B GPREEMPT_LIBRARY
Path of libgpreempt.so, where it is not beside the command, in ../lib/gpreempt/lib, in ../lib, or in those of /usr/local and /usr.
.TP
.B GPREEMPT_JOB
Best\-effort processes with the same value get their turns at the same time on all GPUs, as those do that are children of one
process or of one torchrun, mpirun or srun.
`

// commandPage is gpreempt(1).
func commandPage(root *cobra.Command) []byte {
	var p clitest.Page
	p.Head(root.Name(), 1, "p"+root.Short[1:], maker)
	p.Synopsis(clitest.All(root)...)
	p.Line(".SH DESCRIPTION")
	p.Text("Runs best-effort GPU work beside latency-critical services on one NVIDIA GPU, with unmodified programs and the stock\n" +
		"driver. libgpreempt.so is preloaded into CUDA programs; this command does that, and shows what comes of it.")
	p.Commands(clitest.All(root)...)
	p.Line(".SH EXIT STATUS\n0, or 1 where something failed, or 2 for wrong arguments. run ends with the program's own status, with 126 if it cannot be run, and 127 if there is none.")
	p.Line(".SH ENVIRONMENT\n%s.SH SEE ALSO\n.BR gpreempt\\-bench (1),\n.BR gpreempt.toml (5)", environment)
	return p.Bytes()
}

// settingsPage is gpreempt.toml(5): a comment of default.toml is about the keys that follow it.
func settingsPage(config []byte) ([]byte, error) {
	var p clitest.Page
	p.Head("gpreempt.toml", 5, "configuration of libgpreempt.so", maker)
	p.Line(".SH DESCRIPTION")
	var comment strings.Builder
	described, continued := false, false // the file; the key before, by this comment
	for scanner := bufio.NewScanner(bytes.NewReader(config)); scanner.Scan(); {
		line := scanner.Text()
		key, value, isKey := strings.Cut(line, " = ")
		switch {
		case strings.HasPrefix(line, "#"):
			if continued {
				comment.Reset()
			}
			continued = false
			comment.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ") + "\n")
		case line == "" && !described:
			p.Text(comment.String())
			p.Line(".SH SETTINGS")
			comment.Reset()
			described = true
		case line == "":
		case strings.HasPrefix(line, "["):
			p.Line(".SS [%s]", strings.Trim(line, "[]"))
			comment.Reset()
			continued = false
		case isKey && comment.Len() > 0:
			p.Line(".TP\n.B %s\nDefault: %s\n.br", clitest.Roff(key), clitest.Roff(value))
			if !continued {
				p.Text(comment.String())
			}
			continued = true
		default:
			return nil, fmt.Errorf("%s: %q is no key with a comment", defaults, line)
		}
	}
	p.Line(".SH SEE ALSO\n.BR gpreempt (1)")
	return p.Bytes(), nil
}
