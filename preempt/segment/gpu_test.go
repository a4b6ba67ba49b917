package segment

import "testing"

// A whole GPU and a slice with the same UUID are two: their segments have names of their own.
func TestNamesOfSlices(t *testing.T) {
	t.Parallel()
	uuid := [16]byte{1, 2, 0xab, 15: 255}
	for slice, want := range map[bool]string{false: "GPU-0102ab00-0000-0000-0000-0000000000ff", true: "MIG-0102ab00-0000-0000-0000-0000000000ff"} {
		gpu := GPU{UUID: uuid, Slice: slice}
		if got, err := ParseGPU(gpu.String()); err != nil || got != gpu || gpu.String() != want {
			t.Errorf("%s: %v, %v", gpu, got, err)
		}
	}
	for _, wrong := range []string{"", "GPU-", "GPU-xyz", "MIG-GPU-0102ab00-0000-0000-0000-0000000000ff", "GPU-0102AB00-0000-0000-0000-0000000000ff", "mig-0102ab00-0000-0000-0000-0000000000ff"} {
		if got, err := ParseGPU(wrong); err == nil {
			t.Errorf("%q is %s", wrong, got)
		}
	}
}
