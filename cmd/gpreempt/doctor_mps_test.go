package main

import (
	"strings"
	"testing"
)

// MPS v3 is named where programs would go through it: they ask for it, or its directory is there and they name no other one.
func TestProtocol3Findings(t *testing.T) {
	there := t.TempDir()
	missing := there + "/missing"
	for _, c := range []struct{ asked, dir, standard, want string }{
		{"", "", missing, ""},
		{"2", "", missing, ""},
		{"", "/pipes", there, ""},
		{"", "", there, there + " is there: "},
		{"2", "", there, there + " is there: "},
		{"3", "", missing, "CUDA_MPS_PROTOCOL_VERSION=3: "},
		{"3", "/pipes", there, "CUDA_MPS_PROTOCOL_VERSION=3: "},
	} {
		d := &doctor{}
		d.sayProtocol3(c.asked, c.dir, c.standard)
		if c.want == "" {
			if len(d.findings) != 0 {
				t.Errorf("%+v: %v", c, d.findings)
			}
			continue
		}
		if len(d.findings) != 1 || d.findings[0].Status != warned || !strings.HasPrefix(d.findings[0].Reason, c.want) || d.findings[0].Advice == "" {
			t.Errorf("%+v: %v", c, d.findings)
		}
	}
}
