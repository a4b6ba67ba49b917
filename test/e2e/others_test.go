package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
)

// other is a process on a GPU that no segment has, as `gpreempt top --json` says.
type other struct {
	PID     int
	Name    string
	Bytes   uint64
	Percent *uint64
	Seen    bool
	Library *bool
}

// others runs `gpreempt top` and returns who else is on the GPU. It does so again where the management library was too slow to answer.
func (m *machine) others(environment ...string) (list []other, table string) {
	m.t.Helper()
	m.until("it is known who is on the GPU", func() bool {
		list, table = m.othersOnce(environment)
		return list != nil || strings.Contains(table, "\nOTHERS  not known: ")
	})
	return list, table
}

func (m *machine) othersOnce(environment []string) (list []other, table string) {
	m.t.Helper()
	var said [2]string
	for i, how := range []string{"--json", "--once"} {
		c := m.command("", built("gpreempt"), "top", "--once", how)
		c.Env = append(c.Env, environment...)
		got, err := run(c)
		if err != nil || got.status != 0 || got.stderr != "" {
			m.t.Fatalf("%+v, %v", got, err)
		}
		said[i] = got.stdout
	}
	var sample struct{ GPUs []struct{ Others []other } }
	if err := json.Unmarshal([]byte(said[0]), &sample); err != nil || len(sample.GPUs) != 1 {
		m.t.Fatalf("%v in %s", err, said[0])
	}
	return sample.GPUs[0].Others, said[1]
}

// A process that is on the GPU without gpreempt is found through the management library, and only such a one. Where that is not there, or
// knows less, the commands say so and go on.
func TestOthersOnTheGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.sharing()
	if list, table := m.others(); len(list) != 0 || list == nil || strings.Contains(table, "OTHERS") {
		t.Errorf("nobody else is there: %+v in\n%s", list, table)
	}
	doctor := func(want string, environment ...string) {
		t.Helper()
		c := m.command("", built("gpreempt"), "doctor")
		c.Env = append(c.Env, environment...)
		got, err := run(c)
		if err != nil || got.status != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%v: no %q in %+v", err, want, got)
		}
	}
	const gpu = "GPU-516d756c-a7ed-4200-8d00-482000514d00"
	doctor("ok    others     " + gpu + ": no other process uses it\n")

	stranger := m.start("")
	stranger.runBestEffort()
	m.until("it has worked", func() bool { return stranger.count() > 0 })
	list, table := m.others()
	if len(list) != 1 || list[0].PID != stranger.pid() || list[0].Name != "worker" || !list[0].Seen || list[0].Bytes == 0 || list[0].Percent == nil || *list[0].Percent == 0 || list[0].Library == nil || !*list[0].Library {
		t.Errorf("be %d, lc %d, and %d without: %+v", be.pid(), lc.pid(), stranger.pid(), list)
	}
	if !strings.Contains(table, fmt.Sprintf("\nOTHERS  %d worker (", stranger.pid())) {
		t.Errorf("top shows\n%s", table)
	}
	doctor(fmt.Sprintf("warn  others     %s: processes use it that are not known to those under the library: %d worker (", gpu, stranger.pid()))

	m.until("the metrics count it", func() bool { // it may have been idle for long enough
		text := m.gpreempt("top", "--prometheus").stdout
		return strings.Contains(text, "\ngpreempt_outsiders{uuid=\""+gpu+"\"} 1\n") && strings.Contains(text, "\ngpreempt_outsiders_working{uuid=\""+gpu+"\"} 1\n")
	})

	if list, _ := m.others("SIMNVML_FAIL=nvmlDeviceGetProcessUtilization:3"); len(list) != 1 || list[0].PID != stranger.pid() || list[0].Percent != nil {
		t.Errorf("without utilization: %+v", list)
	}
	for failing, want := range map[string]string{
		"SIMNVML_FAIL=nvmlInit_v2:9":                               "nvmlInit_v2: Driver Not Loaded (9)",
		"SIMNVML_FAIL=nvmlDeviceGetComputeRunningProcesses_v3:999": "nvmlDeviceGetComputeRunningProcesses: Unknown Error (999)",
		"LD_LIBRARY_PATH=":                                         "libnvidia-ml.so.1: cannot open shared object file",
	} {
		list, table := m.others(failing)
		if list != nil || !strings.Contains(table, "\nOTHERS  not known: "+want) {
			t.Errorf("%s: %+v in\n%s", failing, list, table)
		}
		doctor("ok    others     which other processes use the GPUs is not known: "+want, failing)
	}
}

// While a process without gpreempt works, a broker's best-effort processes have the fair timeslice, and get on: with the shortest one they
// would stand still beside it. They yield again when it has ended.
func TestBestEffortBesideOthers(t *testing.T) {
	t.Parallel()
	const fairUs, yieldingUs = 2048, 1
	m := newMachine(t, "")
	m.brokers = []string{"LD_LIBRARY_PATH=" + driverPath(), "SIMCUDA_DIR=" + filepath.Join(m.dir, "sim")}
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	} else {
		m.runBroker()
	}
	be, _ := m.sharing()
	if p := m.peer(be); p.TimesliceUs != yieldingUs || p.Lacks&configs.FallbackOthers != 0 {
		t.Errorf("alone: %+v", p)
	}
	stranger := m.start("")
	stranger.runBestEffort()
	m.until("BE has the fair timeslice", func() bool {
		p := m.peer(be)
		return p.TimesliceUs == fairUs && p.Lacks&configs.FallbackOthers != 0
	})
	for range 3 {
		n, of := be.count(), stranger.count()
		m.until("both get on", func() bool { return be.count() > n && stranger.count() > of })
	}
	stranger.finish()
	m.until("it yields again", func() bool {
		p := m.peer(be)
		return p.TimesliceUs == yieldingUs && p.Lacks&configs.FallbackOthers == 0
	})
}
