package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// crowd makes this process a member on so many GPUs until it is killed.
func crowd(socket string) {
	gpus, err := strconv.Atoi(os.Getenv(gpusOf))
	must(err)
	for i := range gpus {
		_, _, err := member.Join(member.Options{Directory: filepath.Dir(filepath.Dir(socket)), GPU: segment.GPU{UUID: [16]byte{byte(i)}}, Level: 7, Name: "crowd"})
		for ; errors.Is(err, join.ErrTime); time.Sleep(10 * time.Millisecond) {
			_, _, err = member.Join(member.Options{Directory: filepath.Dir(filepath.Dir(socket)), GPU: segment.GPU{UUID: [16]byte{byte(i)}}, Level: 7, Name: "crowd"})
		}
		must(err)
	}
	fmt.Println("joined")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const (
	gpusOf   = "GPREEMPT_TEST_GPUS"
	daemonOf = "GPREEMPT_TEST_DAEMON" // gpreemptd, for machines without Go
)

// BenchmarkJoin is how long it takes to become a member of a broker of its own process, beside so many clients: from the first system call
// until the pages of all members of the GPU are mapped. The metrics are of joins, of the broker's memory, and of its time while nothing
// happens. A machine without Go runs what go test -c makes, with the variable GPREEMPT_TEST_DAEMON.
//
//	go test -C cluster -run '^$' -bench Join -benchtime 2000x ./broker
func BenchmarkJoin(b *testing.B) {
	daemon := os.Getenv(daemonOf)
	if daemon == "" {
		daemon = filepath.Join(b.TempDir(), "gpreemptd")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", daemon, "../cmd/gpreemptd")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	for _, gpus := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprintf("clients=%d", gpus*(wire.Slots-1)), func(b *testing.B) { benchmarkJoin(b, daemon, gpus) })
	}
}

func benchmarkJoin(b *testing.B, daemon string, gpus int) {
	directory, err := os.MkdirTemp("", "gpreempt-broker-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(directory) })
	policy := filepath.Join(directory, "policy.toml")
	if err := os.WriteFile(policy, []byte("[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\nconnections_per_uid = 2000\nconnections_per_cgroup = 2000\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	broker := exec.Command(daemon, "--directory", directory, "--policy", policy)
	if err := broker.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = broker.Process.Kill(); _ = broker.Wait() })
	socket := join.SocketIn(directory, 7)
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		if _, err := join.Query(socket, 7, layout, time.Second); err == nil {
			break
		} else if time.Now().After(end) {
			b.Fatal(err)
		}
	}
	b.Setenv(gpusOf, strconv.Itoa(gpus))
	if gpus > 0 {
		for range wire.Slots - 1 {
			begin(b, "crowd", socket, nil).says("joined")
		}
	}
	time.Sleep(5 * time.Second) // the runtime gives memory back, and collects what joins left: that is not idling
	used := processorTime(b, broker.Process.Pid)
	idle := 10 * time.Second
	time.Sleep(idle)
	used = processorTime(b, broker.Process.Pid) - used
	took, before := make([]time.Duration, 0, b.N), processorTime(b, broker.Process.Pid)
	for b.Loop() {
		began := time.Now()
		s, _, err := member.Join(member.Options{Directory: directory, GPU: segment.GPU{UUID: [16]byte{}}, Level: 7, Name: "benchmark"})
		for ; errors.Is(err, join.ErrTime); s, _, err = member.Join(member.Options{Directory: directory, GPU: segment.GPU{UUID: [16]byte{}}, Level: 7, Name: "benchmark"}) {
		}
		took = append(took, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		s.Close()
		for n := 1; n > 0; time.Sleep(time.Millisecond) { // until the broker has seen that it left
			if n, err = join.Set(socket, &wire.Set{Pid: int32(os.Getpid()), Fields: wire.SetClear}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
	cost := float64(processorTime(b, broker.Process.Pid)-before) / float64(len(took))
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e6, "ms-p50")
	b.ReportMetric(float64(took[len(took)*99/100])/1e6, "ms-p99")
	b.ReportMetric(cost/1e6, "ms-broker/op") // of a join, a leave, and telling all of both
	b.ReportMetric(float64(residentBytes(b, broker.Process.Pid))/1e6, "MB-resident")
	b.ReportMetric(100*float64(used)/float64(idle), "%-idle")
}

// processorTime is what all threads of a process have used.
func processorTime(b *testing.B, pid int) (used time.Duration) {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		b.Fatal(err, threads)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		used += time.Duration(ns)
	}
	return used
}

func residentBytes(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := bytes.Cut(text, []byte("VmRSS:"))
	kB, err := strconv.ParseInt(string(bytes.Fields(after)[0]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kB * 1024
}
