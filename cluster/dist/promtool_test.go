package dist

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Prometheus' own tool takes the alert rules, and each fires when it ought to and not before.
func TestAlertRules(t *testing.T) {
	_ = current() // finds the repository; whether make dist was run does not matter here
	promtool := filepath.Join(debian(t, "prometheus"), "usr/bin/promtool")
	for _, arguments := range [][]string{
		{"check", "rules", "../../api/metrics/alerts.yaml", "../../charts/gpreempt/files/nri-alerts.yaml"},
		{"test", "rules", "../../api/metrics/alerts_test.yaml", "../nri/testdata/alerts_test.yaml"},
	} {
		if out, err := exec.Command(promtool, arguments...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", arguments, err, out)
		}
	}
}
