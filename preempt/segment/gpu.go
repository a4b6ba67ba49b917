package segment

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// GPU is what processes share: a GPU, or a slice of one (MIG). Processes on two slices of one GPU share nothing. The driver tells the
// UUID (preempt/process/contexts.c).
type GPU struct {
	UUID  [16]byte
	Slice bool
}

// gpuPrefixes are those of UUIDs as nvidia-smi writes them, of GPUs and of slices.
var gpuPrefixes = map[bool]string{false: "GPU-", true: "MIG-"}

func (g GPU) String() string {
	h := hex.EncodeToString(g.UUID[:])
	return gpuPrefixes[g.Slice] + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// ParseGPU is the inverse of String.
func ParseGPU(text string) (g GPU, err error) {
	for slice, prefix := range gpuPrefixes {
		digits, is := strings.CutPrefix(text, prefix)
		if digits = strings.ReplaceAll(digits, "-", ""); !is || len(digits) != 2*len(g.UUID) {
			continue
		}
		g.Slice = slice
		if _, err := hex.Decode(g.UUID[:], []byte(digits)); err == nil && g.String() == text {
			return g, nil
		}
	}
	return GPU{}, fmt.Errorf("%q is no UUID of a GPU or a slice", text)
}

// parseName reads the name of a segment's file.
func parseName(name string) (g GPU, ok bool) {
	text, ok := strings.CutSuffix(name, ".seg")
	g, err := ParseGPU(text)
	return g, ok && err == nil
}
