package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	dto "github.com/prometheus/client_model/go"

	"github.com/gpreempt/gpreempt/internal/clitest"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

var update = flag.Bool("update", false, "write the manual page")

// built holds the command.
var built string

func TestMain(m *testing.M) {
	os.Exit(clitest.Main(m, &built, ".", func(string) error { return nil }))
}

// server is a process that holds a slot: this one.
func server(t *testing.T) (config string, slot *segment.Slot) {
	t.Helper()
	base := t.TempDir()
	s, err := segment.Open(segment.Directory(base, os.Getuid()), segment.GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	i, err := s.Claim(0, "server")
	if err != nil {
		t.Fatal(err)
	}
	s.Slot(i).StartedNs.Store(segment.Now() - 10e9)
	s.Slot(i).Windows.Store(1000)
	s.Slot(i).Times.Windows.SumNs.Store(5e9)
	s.Slot(i).Times.Windows.Buckets[10].Store(1000)
	return clitest.Write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\n"), s.Slot(i)
}

func TestPrint(t *testing.T) {
	config, _ := server(t)
	status, stdout, stderr := clitest.Run(t, built+"/gpreempt-metrics", nil, "--config", config)
	if status != 0 || stderr != "" {
		t.Fatalf("%d, %s", status, stderr)
	}
	for _, want := range []string{
		"# TYPE gpreempt_windows_total counter\n", `gpreempt_build_info{version="` + clitest.Version + `"} 1`,
		`gpreempt_segment_readable{uuid="GPU-01000000-0000-0000-0000-000000000000"} 1`,
		`level="lc",namespace="",pod="",uuid="GPU-01000000-0000-0000-0000-000000000000"} 1000`, `le="0.0078125"} 1000`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %s in\n%s", want, stdout)
		}
	}
}

func TestRefuses(t *testing.T) {
	missing := t.TempDir() + "/none.toml"
	for want, arguments := range map[string][]string{
		`--listen "here": must be HOST:PORT or :PORT`:              {"--listen", "here"},
		`--listen "": must be HOST:PORT or :PORT`:                  {"--listen="},
		`--listen ":70000": must be HOST:PORT or :PORT, as 127.`:   {"--listen", ":70000"},
		`--listen ":http": must be HOST:PORT`:                      {"--listen", ":http"},
		`--config "` + missing + `": no such file`:                 {"--config", missing},
		`gpreempt-metrics: takes no argument, but was given "now"`: {"now"},
	} {
		status, stdout, stderr := clitest.Run(t, built+"/gpreempt-metrics", nil, arguments...)
		if status == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s, %s", arguments, status, stdout, stderr)
		}
	}
}

// patience is how long what a test waits for may take on a machine that is slow and busy.
const patience = time.Minute

// serving starts the command and returns where it serves.
func serving(t *testing.T, config string) (url string, command *exec.Cmd) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(stop)
	command = exec.CommandContext(ctx, built+"/gpreempt-metrics", "--config", config, "--listen", "127.0.0.1:0")
	said, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "metrics at ")
	if err != nil || !found {
		t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSuffix(url, "/metrics"), command
}

func get(t *testing.T, url, accept string) (status int, kind string, body []byte) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	answer, err := (&http.Client{Timeout: patience}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), body
}

// waitForHealth waits until /healthz has seen the first look, which may still be under way, and says what it should.
func waitForHealth(t *testing.T, url string, wanted int, says string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, _, body := get(t, url+"/healthz", "")
		if status == wanted && bytes.Contains(body, []byte(says)) {
			return
		}
		if status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("/healthz: %d, %s", status, body)
		}
	}
}

func TestServe(t *testing.T) {
	config, slot := server(t)
	url, command := serving(t, config)
	if status, _, body := get(t, url+"/metrics", ""); status != http.StatusOK || !bytes.Contains(body, []byte("} 1000\n")) {
		t.Errorf("/metrics: %d, %s", status, body)
	}
	slot.Windows.Store(1001)
	status, kind, body := get(t, url+"/metrics", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d, %s", status, body)
	}
	families := map[string]*dto.MetricFamily{}
	for decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.Format(kind)); ; {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		families[family.GetName()] = &family
	}
	windows, lengths := families["gpreempt_windows_total"], families["gpreempt_window_duration_seconds"]
	if windows == nil || windows.Metric[0].Counter.GetValue() != 1001 {
		t.Errorf("windows: %v", windows)
	}
	if lengths == nil || len(lengths.Metric[0].Histogram.PositiveSpan) != 1 || len(lengths.Metric[0].Histogram.Bucket) == 0 {
		t.Errorf("not both a native histogram and buckets: %v", lengths)
	}
	waitForHealth(t, url, http.StatusOK, "ok\n")
	if status, _, body := get(t, url+"/", ""); status != http.StatusNotFound || !bytes.Contains(body, []byte("GET /metrics and GET /healthz")) {
		t.Errorf("/: %d, %s", status, body)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// A directory that cannot be trusted is an error of the scrape and of the health, with its reason.
func TestServeWithoutSegments(t *testing.T) {
	base, _ := clitest.Squat(t)
	config := clitest.Write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\n")
	if status, stdout, stderr := clitest.Run(t, built+"/gpreempt-metrics", nil, "--config", config); status != 1 || stdout != "" || !strings.Contains(stderr, "owned by user 4711") {
		t.Errorf("%d, %s, %s", status, stdout, stderr)
	}
	url, _ := serving(t, config)
	if status, _, body := get(t, url+"/metrics", ""); status != http.StatusInternalServerError || !bytes.Contains(body, []byte("owned by user 4711")) {
		t.Errorf("/metrics: %d, %s", status, body)
	}
	waitForHealth(t, url, http.StatusServiceUnavailable, "owned by user 4711")
}

// The manual page is made from the command itself.
func TestHelpFitsOnAScreen(t *testing.T) { clitest.CheckHelp(t, rootCommand()) }

func TestManualIsCurrent(t *testing.T) {
	page := commandPage(rootCommand())
	clitest.CheckPage(t, "../../../docs/man/gpreempt-metrics.1", page, *update)
	rootCommand().LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !bytes.Contains(page, []byte(clitest.Roff("--"+f.Name))) {
			t.Errorf("gpreempt-metrics(1) lacks --%s", f.Name)
		}
	})
}

// commandPage is gpreempt-metrics(1).
func commandPage(root *cobra.Command) []byte {
	var p clitest.Page
	p.Head("gpreempt-metrics", 1, "p"+root.Short[1:], "cluster/cmd/gpreempt-metrics/main_test.go")
	p.Synopsis(root)
	p.Line(".SH DESCRIPTION\n.I gpreempt top \\-\\-prometheus\nand\n.I gpreempt top \\-\\-listen\nrun this program.\n.PP")
	p.Text(root.Long)
	p.Line(".SH OPTIONS")
	p.Flags(root)
	p.Line(".SH EXIT STATUS\n0, or 1 where the segments cannot be read or the address cannot be served, or 2 for wrong arguments.")
	p.Line(".SH ENVIRONMENT\n.TP\n.B GPREEMPT_CONFIG\nThe configuration file, instead of those that gpreempt.toml(5) names.")
	p.Line(".SH SEE ALSO\n.BR gpreempt (1),\n.BR gpreempt.toml (5)")
	return p.Bytes()
}
