package result

import "testing"

func TestShortGPU(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100", "Tesla V100-PCIE-16GB": "v100", "NVIDIA L40S": "l40s",
		"NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA RTX PRO 6000 Blackwell": "rtx-pro-6000", "Simulated H200": "simulated-h200", "NVIDIA Graphics Device": "graphics-device",
		"../NVIDIA H1": "h1",
	} {
		if short := ShortGPU(name); short != want {
			t.Errorf("%s: %s, want %s", name, short, want)
		}
	}
}
