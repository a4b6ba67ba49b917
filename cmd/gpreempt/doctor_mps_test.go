package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A daemon is looked for where programs look: in the directory that is named, or else in the usual ones, in their order.
func TestFindServer(t *testing.T) {
	with, also, without := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{with, also} {
		if err := os.WriteFile(filepath.Join(dir, "control"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		named string
		usual []string
		want  string
		there bool
	}{
		{"", []string{without, with}, with, true},
		{"", []string{with, also}, with, true},
		{"", []string{with, without}, with, true},
		{"", []string{without, without + "/missing"}, without + "/missing", false},
		{also, []string{with}, also, true},
		{without, []string{with}, without, false},
	} {
		if dir, there := findServer(c.named, c.usual); dir != c.want || there != c.there {
			t.Errorf("%+v: %s, %v", c, dir, there)
		}
	}
}

// MPS v3 is named where programs ask for it, or where only its daemon can be.
func TestProtocol3(t *testing.T) {
	for _, c := range []struct{ asked, dir, want string }{
		{"", "/tmp/nvidia-mps", ""},
		{"2", "/pipes", ""},
		{"3", "/pipes", "CUDA_MPS_PROTOCOL_VERSION=3"},
		{"", "/run/nvidia-mps", "the daemon is at /run/nvidia-mps"},
	} {
		if got := protocol3(c.asked, c.dir); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// The library's finding in programs says whether clients share a TSG, and not a daemon's presence.
func TestServerFindings(t *testing.T) {
	shared, sliced := []segment.Peer{{Lacks: configs.FallbackMPS}}, []segment.Peer{{}}
	auto := configs.Mechanisms{Auto: true}
	for _, c := range []struct {
		server     string
		peers      []segment.Peer
		mechanisms configs.Mechanisms
		status     status
		want       string
	}{
		{"", shared, auto, "", ""},
		{"/pipes", nil, auto, ok, " daemon is at /pipes"},
		{"/pipes", shared, auto, ok, "; blp and mps take the place of timeslices"},
		{"/pipes", shared, configs.Mechanisms{Named: configs.BLP}, warned, ", and mechanisms has not both blp and mps"},
		{"/pipes", sliced, auto, ok, "programs without MPS"},
	} {
		d := &doctor{server: c.server, config: configs.Config{Mechanisms: c.mechanisms}}
		d.sayServer(c.peers)
		if c.want == "" {
			if len(d.findings) != 0 {
				t.Errorf("%+v: %v", c, d.findings)
			}
			continue
		}
		if len(d.findings) != 1 || d.findings[0].Status != c.status || !strings.HasSuffix(d.findings[0].Reason, c.want) || (d.findings[0].Advice != "") != (c.status == warned) {
			t.Errorf("%+v: %v", c, d.findings)
		}
	}
}
