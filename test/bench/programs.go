package bench

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/kernels"
)

// The programs in Python and CUDA C++ are written to a folder to be run there.
//
//go:embed torch
var torchPrograms embed.FS

// writeTorchPrograms writes them below a folder, as they lie in torch/.
func writeTorchPrograms(folder string) {
	during("write the PyTorch programs", func() {
		check(os.CopyFS(folder, must(fs.Sub(torchPrograms, "torch"))))
		check(os.WriteFile(filepath.Join(folder, "programs", "bench.fatbin"), kernels.Bench, 0o644)) // of links_libcuda.py
	})
}

// answer is what a worker answers to go (PROTOCOL.md).
type answer struct {
	Completed float64  `json:"completed"`
	DoneNs    []uint64 `json:"done_ns"`
	Hinted    bool     `json:"hinted"` // it was to give hints, and the library takes them
}

const visibleDevicesVariable = "CUDA_VISIBLE_DEVICES"

// visibleDevice lets a program see the first GPU that we may use; "" changes nothing. Clients of an MPS server count those that the server
// sees.
func visibleDevice(ours string, mps bool) string {
	if ours != "" && mps {
		return "0"
	}
	first, _, _ := strings.Cut(ours, ",")
	return first
}

// goOrder is the order for a run; without arrivals requests come back to back.
func goOrder(start, end time.Duration, prepareUs int, hint bool, stop string, arrivals []time.Duration) string {
	count, hinted := len(arrivals), 0
	if arrivals == nil {
		count = -1
	}
	if hint {
		hinted = 1
	}
	text := fmt.Appendf(nil, "go %d %d %d %d %s %d", start, end, prepareUs*1000, hinted, stop, count)
	for _, at := range arrivals {
		text = strconv.AppendInt(append(text, ' '), int64(at), 10)
	}
	return string(text)
}

// answerGo reads the answer to go.
func (w *worker) answerGo(ctx context.Context, limit time.Duration) (a answer) {
	check(w.answer(ctx, limit, &a))
	return a
}
