package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// driverTools is where containers have the driver's programs that are not on the PATH.
const driverTools = "/usr/local/nvidia/bin"

func (s *session) findTool(name string) (string, error) {
	if folder := s.options.tests.tools; folder != "" {
		return exec.LookPath(filepath.Join(folder, name))
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	path := filepath.Join(driverTools, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is neither on the PATH nor in %s", name, driverTools)
	}
	return path, nil
}

// askGPU asks nvidia-smi something of our GPU; "" where it does not say.
func (s *session) askGPU(ctx context.Context, what string) string {
	tool, err := s.findTool("nvidia-smi")
	if err != nil {
		return ""
	}
	visible := cmp.Or(visibleDevice(os.Getenv(visibleDevicesVariable), false), "0")
	text, err := exec.CommandContext(ctx, tool, "--id="+visible, what, "--format=csv,noheader,nounits").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// lacks says what this machine lacks that a system needs; "" where nothing is missing.
func (s *session) lacks(system workload.System) string {
	if system.MPS {
		if _, err := s.findTool(mpsControl); err != nil {
			return err.Error()
		}
	}
	return ""
}

// gpuBusy says what makes measurements on our GPU meaningless, or "".
func (s *session) gpuBusy(ctx context.Context) string {
	if processes := s.askGPU(ctx, "--query-compute-apps=pid,name"); processes != "" {
		return "processes use it: " + strings.ReplaceAll(processes, "\n", "; ")
	}
	// The figure is an average over up to a second, and may be of work that has just ended.
	percent := ""
	for range 3 {
		percent = s.askGPU(ctx, "--query-gpu=utilization.gpu")
		if used, err := strconv.Atoi(percent); err != nil || used <= 5 {
			return ""
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ""
		}
	}
	return percent + " % utilised"
}
