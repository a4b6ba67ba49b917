package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// A daemon that ended is started again for who needs it next; what another one serves is left alone.
func TestRivalsDaemons(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	var progress bytes.Buffer
	e := preparedEvaluation(t, r.options(t, &progress))
	systems, err := workload.Systems([]string{r.nvshare})
	if err != nil {
		t.Fatal(err)
	}
	system := systems[0]
	serve := func() *rivalDaemon {
		t.Helper()
		if err := e.serve(t.Context(), system); err != nil {
			t.Fatal(err)
		}
		return e.servers[system.Server()].(*rivalDaemon)
	}
	first := serve()
	if serve() != first {
		t.Error("started twice")
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.gone
	if second := serve(); second == first || second.hasEnded() {
		t.Error("one that was killed is not started again")
	}
	if _, err := e.session.startRival(t.Context(), *system.Daemon); err == nil || !strings.Contains(err.Error(), "serves at "+r.socket+" already") {
		t.Errorf("beside another: %v", err)
	}
	e.close()
	if lines := r.said(t); !slices.Equal(lines, []string{"start ", "set -T 1", "start ", "set -T 1", "stop, 0 clients"}) {
		t.Errorf("the daemons: %q", lines)
	}
}

// A daemon is stopped as soon as none of its programs is needed by the next workload, and started again for the one after.
func TestRivalsDaemonsBetweenWorkloads(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	var progress bytes.Buffer
	options := r.options(t, &progress, r.xsched, "mps")
	options.Suite, options.Only = "full", []string{"spin", "A"}
	e := preparedEvaluation(t, options)
	picked, err := e.pick()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(picked, func(w workload.Workload) bool { return w.Name == "spin" })
	spin, models := picked[i], picked[1-i]
	key := e.systems[0].Server()
	serve := func() {
		t.Helper()
		for _, system := range e.systems {
			if err := e.start(t.Context(), system, members(spin, true, true)); err != nil {
				t.Fatal(err)
			}
		}
		if len(e.servers) != 2 {
			t.Fatalf("servers: %v", e.servers)
		}
	}
	serve()
	before := e.servers[key]
	e.keepOnly([]workload.Workload{spin})
	if e.servers[key] != before || before.hasEnded() {
		t.Error("it is stopped although the next workload has its programs")
	}
	e.keepOnly([]workload.Workload{models}) // which XSched cannot take
	if len(e.servers) != 0 || !before.hasEnded() {
		t.Errorf("servers are left: %v", e.servers)
	}
	serve()
	e.keepOnly(nil)
	if lines := r.said(t); len(lines) != 4 || lines[1] != "stop, 0 clients" || lines[3] != "stop, 0 clients" {
		t.Errorf("the daemon: %q", lines)
	}
}

// A socket that is bound serves nobody yet.
func TestListens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "socket")
	bound, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(bound)
	if err := syscall.Bind(bound, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if listens(path) || !exists(path) {
		t.Error("a socket that is bound is taken for one that listens")
	}
	if err := syscall.Listen(bound, 1); err != nil {
		t.Fatal(err)
	}
	if !listens(path) {
		t.Error("a socket that listens is not found")
	}
}

// LC gets what chunks are left.
func TestStaticPartitions(t *testing.T) {
	t.Parallel()
	r := fakeRivals(t)
	control := filepath.Join(r.tools, "nvidia-cuda-mps-control")
	daemon, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	// A GPU of 16 chunks.
	write(t, control, strings.Replace(string(daemon), "read line &&", `echo "$*" >> `+r.log+`
read line
echo "$line" >> `+r.log+`
case "$line" in sm_partition*)
	set -- $line; used=$(cat used 2> /dev/null || echo 0)
	if [ $((used + $4)) -gt 16 ]; then echo "Failed to add partition to $3"; exit 0; fi
	echo $((used + $4)) > used; echo "Partition $3/chunks$4 created"; exit 0
esac`+"\ntrue &&", 1))
	var progress bytes.Buffer
	options := r.options(t, &progress)
	options.tests.environment = append(options.tests.environment, "SIMCUDA_VERSION=13010")
	e := preparedEvaluation(t, options)
	lc, be := started(t, e, "mps-partition")
	for w, want := range map[*worker]string{lc: "GPU-1-2/chunks12", be: "GPU-1-2/chunks4"} {
		environment := environmentOf(t, w)
		if got := valueOf(environment, "CUDA_MPS_SM_PARTITION"); got != want {
			t.Errorf("%s: partition %q, want %q", w.name, got, want)
		}
		if got := valueOf(environment, "CUDA_MPS_PIPE_DIRECTORY"); got != e.folder+"/partitions/mps" {
			t.Errorf("%s: pipes %q", w.name, got)
		}
	}
	if lc, _ := started(t, e, "mps"); valueOf(environmentOf(t, lc), "CUDA_MPS_SM_PARTITION") != "" {
		t.Error("clients of the other MPS server have a partition")
	}
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.servers["MPS 4"].(*mpsDaemon).cmd.Process.Pid))
	if err != nil || !bytes.HasSuffix(arguments, []byte("\x00-f\x00-S\x00")) {
		t.Errorf("its daemon: %q, %v", arguments, err)
	}
	write(t, r.tools+"/nvidia-smi", "#!/bin/sh\n")
	e.stopServer("MPS 4")
	if _, err := e.session.startPartitions(t.Context(), t.TempDir(), 4); err == nil || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("without a UUID: %v", err)
	}
}

// A server that could not start says why, also where other lines follow.
func TestReasonOfADaemon(t *testing.T) {
	for name, test := range map[string]struct{ said, want string }{
		"a traceback, and clean-up": {"[1] Traceback:\n  File x\n[2] Scheduler hit an exception: Traceback\nRuntimeError: no kernel image\n[3] kill_process_tree called\n", "RuntimeError: no kernel image"},
		"behind a prefix":           {"(EngineCore pid=7) ERROR [core.py:1] ValueError: free memory\nended\n", "(EngineCore pid=7) ERROR [core.py:1] ValueError: free memory"},
		"no exception":              {"loading\ncannot load libx.so\n", "cannot load libx.so"},
		"nothing":                   {"", ""},
	} {
		said := &lastBytes{}
		_, _ = said.Write([]byte(test.said)) // it cannot fail
		if got := said.reason(); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
