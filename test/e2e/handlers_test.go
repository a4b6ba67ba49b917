package e2e

import (
	"bytes"
	"testing"
)

// The library installs no handler of signals, at any time: a signal that comes while it starts goes to the program's.
func TestHandlersAreTheProgramsOwn(t *testing.T) {
	t.Parallel()
	program := compile(t, "testdata/storm.c", "-lpthread")
	for _, role := range []string{"lc", "be"} {
		m := newMachine(t, "")
		p := m.startAs(preloading(t, "handlers", m.command(role, worker)))
		p.request(3, 3, "stream")
		if last, stderr := p.finish(); last != "count 0" || stderr != "" {
			t.Errorf("%s: last line %q, stderr %q", role, last, stderr)
		}
		for range 5 {
			cmd := newMachine(t, "").command(role, program)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if out, err := cmd.Output(); err != nil || string(out) != "taken\n" {
				t.Errorf("%s: %q, %v; stderr %s", role, out, err, stderr.String())
			}
		}
	}
}
