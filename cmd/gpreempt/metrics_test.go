package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Metrics come from a program that is found beside this one, or on the PATH. It gets the arguments that concern it.
func TestTopBecomesMetrics(t *testing.T) {
	if r := gpreempt(t, []string{"PATH=/nowhere"}, "top", "--prometheus"); r.status != 127 || !strings.Contains(r.stderr, metricsName+" is neither beside "+built) {
		t.Errorf("without it: %+v", r)
	}
	path := filepath.Dir(write(t, metricsName, "#!/bin/sh\necho \"$0:\" \"$@\"\n")) + ":" + os.Getenv("PATH")
	for arguments, want := range map[string]string{
		"--prometheus":                           ":\n",
		"--prometheus --config x.toml":           ": --config=x.toml\n",
		"--listen :9405":                         ": --listen=:9405\n",
		"--listen 127.0.0.1:1 -c y --prometheus": ": --listen=127.0.0.1:1 --config=y\n",
		"--listen=":                              ": --listen=\n",
	} {
		r := gpreempt(t, []string{"PATH=" + path}, append([]string{"top"}, strings.Fields(arguments)...)...)
		if r.status != 0 || !strings.HasSuffix(r.stdout, want) {
			t.Errorf("%s: %+v, want %q", arguments, r, want)
		}
	}
	for _, arguments := range []string{"--listen :1 --once", "--prometheus --json", "--prometheus -n 2s", "--listen :1 --prometheus --once"} {
		r := gpreempt(t, []string{"PATH=" + path}, append([]string{"top"}, strings.Fields(arguments)...)...)
		if r.status != 2 || !strings.Contains(r.stderr, "cannot be given with --prometheus or --listen; --config can") {
			t.Errorf("%s: %+v", arguments, r)
		}
	}
}
