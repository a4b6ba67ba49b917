package main

import "testing"

func TestVerdict(t *testing.T) {
	good, less := finding{"driver", ok, "CUDA 13", ""}, finding{"device", warned, "exclusive", "nvidia-smi"}
	for _, c := range []struct {
		findings []finding
		want     string
	}{
		{[]finding{good}, "Ready. Next: gpreempt run --priority lc -- PROGRAM, and be for what may wait"},
		{[]finding{good, less, less}, "Ready, with less: device. Next: see the lines that begin with warn, or gpreempt run --priority lc -- PROGRAM, and be for what may wait"},
		{[]finding{less, {"driver", failed, "none", "install it"}, {"control", failed, "none", ""}}, "Not ready: driver, control. Next: install it"},
		{[]finding{{"library", failed, "none", ""}}, "Not ready: library. Next: see the first line that begins with fail"},
	} {
		d := doctor{findings: c.findings}
		if is := d.verdict(); is != c.want {
			t.Errorf("%q, want %q", is, c.want)
		}
	}
}
