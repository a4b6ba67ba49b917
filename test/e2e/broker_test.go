package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// byBroker makes every machine of these tests have a broker, by which its processes find each other: GPREEMPT_TEST_BROKER=1.
var byBroker = os.Getenv("GPREEMPT_TEST_BROKER") != ""

// isOfFiles passes over a test of the file by which processes find each other without a broker.
func isOfFiles(t *testing.T) {
	t.Helper()
	if byBroker {
		t.Skip("processes have a broker, and no file")
	}
}

// brokerMs is how long a program that starts waits for a broker's answer.
const brokerMs = "GPREEMPT_TEST_BROKER_MS"

// startBroker starts a broker that lets everybody have any level, and returns where its sockets are. Programs that start later wait for its
// answer, however busy the machine is.
func (m *machine) startBroker() (directory string) {
	m.t.Helper()
	directory, err := os.MkdirTemp("", "gpreempt-e2e-") // the paths of sockets are short
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { os.RemoveAll(directory) })
	policy := "[default]\nlevel = 0\n[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\n"
	if err := os.WriteFile(filepath.Join(directory, "policy.toml"), []byte(policy), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.broker = directory
	m.environment = append(m.environment, fmt.Sprintf("%s=%d", brokerMs, patience.Milliseconds()))
	m.runBroker()
	return directory
}

// runBroker runs a broker for the rest of the test, or until it is killed by the next call.
func (m *machine) runBroker() {
	m.t.Helper()
	if m.running != nil {
		_ = m.running.Process.Kill() // it serves until then
		_ = m.running.Wait()
	}
	c := exec.Command(built("gpreemptd"), "--directory", m.broker, "--policy", filepath.Join(m.broker, "policy.toml"))
	c.Env = append(os.Environ(), m.brokers...)
	out, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.running = c
	m.t.Cleanup(func() {
		_ = c.Process.Kill() // else the test did it
		_ = c.Wait()
	})
	if lines := bufio.NewScanner(out); !lines.Scan() || !strings.Contains(lines.Text(), "serving") {
		m.t.Fatalf("the broker says %q", lines.Text())
	}
	go io.Copy(io.Discard, out)
}

// look reads all segments of the machine.
func (m *machine) look() ([]segment.Snapshot, error) {
	if m.broker != "" {
		return member.Snapshots(m.broker)
	}
	m.watching.Lock()
	defer m.watching.Unlock()
	return m.watch.Look()
}

// A machine with a broker: an LC process preempts, and best-effort ones take turns. All of that goes on with the next broker, after this
// one was killed at any time.
func TestBroker(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	be := []*process{m.start("be"), m.start("be")}
	lc := m.start("lc")
	for _, p := range be {
		p.runBestEffort()
	}
	all := append(slices.Clone(be), lc)
	for round := range 4 {
		m.joined(all...)
		m.until("LC preempts", func() bool { return m.peer(lc).TimesliceUs > 10_000 }) // the fair slice is 2048 us
		windows := m.peer(lc).Counters.Windows
		m.until("windows open", func() bool { lc.request(1, 1, "stream"); return m.peer(lc).Counters.Windows > windows })
		for _, p := range be {
			turns, n := m.peer(p).Counters.Turns, p.count()
			m.until("BE has turns", func() bool { return m.peer(p).Counters.Turns > turns && p.count() > n })
		}
		if round < 3 {
			m.runBroker()
		}
	}
	if _, err := os.Stat(m.segments()); !os.IsNotExist(err) {
		t.Errorf("processes with a broker made a file: %v", err)
	}
	for _, p := range all {
		if _, said := p.finish(); said != "" {
			t.Errorf("it said %q", said)
		}
	}
}

// A broker that stands still while programs start, and then goes on: they share the GPU by their user's file, and by the broker when
// it takes them, whatever they do meanwhile.
func TestBrokerIsLate(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	directory := m.broker
	m.environment = append(m.environment, brokerMs+"=") // as short as usual
	stop(t, m.running)
	m.broker = "" // it is looked at what is in the file
	be, lc := m.sharing()
	m.until("windows open", func() bool { lc.request(1, 1, "stream"); return m.peer(lc).Counters.Windows > 2 })
	counted := m.peer(lc).Counters.Windows
	if err := m.running.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.until("the file has nobody", func() bool { lc.request(1, 1, "stream"); return len(m.peers()) == 0 })
	m.broker = directory
	m.joined(be, lc)
	m.until("windows open", func() bool { lc.request(1, 1, "stream"); return m.peer(lc).Counters.Windows > counted })
	m.yields(be)
	m.until("LC preempts", func() bool { return m.peer(lc).TimesliceUs > 10_000 })
	n := be.count()
	m.until("BE progresses", func() bool { return be.count() > n })
	be.finish()
	lc.finish()
}

// kills is how often TestBrokerKilledAtRandom kills the broker.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("GPREEMPT_TEST_KILLS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The broker is killed at random, also while programs join, and stays away for a while: none fails, all results are right, and with the
// next broker each sees the others again. How long that took is in the test's output.
//
//	GPREEMPT_TEST_KILLS=200 go test -run TestBrokerKilledAtRandom -v -timeout 1h ./test/e2e
func TestBrokerKilledAtRandom(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	be, lc := m.sharing()
	other := m.start("be")
	other.runBestEffort()
	m.joined(other)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	batches := uint32(0)
	serve := func(atLeast time.Duration) {
		for end := time.Now().Add(atLeast); ; {
			const requests = 3
			batches++
			if _, hash := lc.request(requests, 2, "stream"); hash != sums(batches*requests*(requests+1)/2) {
				t.Fatalf("batch %d: hash %d", batches, hash)
			}
			if time.Now().After(end) {
				return
			}
		}
	}
	yields := func(p *process) bool { // by the shortest timeslice, or one that is raised for its share, as where it gets little of the GPU
		us := m.peer(p).TimesliceUs
		return us > 0 && us < 2048 // which is the fair one
	}
	took := make([]time.Duration, 0, kills(t))
	for range cap(took) {
		before := m.peer(lc).Counters
		joining := m.start([]string{"be", "lc"}[random.IntN(2)])
		serve(time.Duration(random.Int64N(int64(200 * time.Millisecond)))) // the random point
		if err := m.running.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		serve(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
		m.runBroker()
		began := time.Now()
		m.until("all see each other", func() bool {
			serve(0)
			now := m.peer(lc).Counters // of what the new broker shows, which is 0 until LC writes there
			return now.Windows > before.Windows && now.Switches > before.Switches && yields(be) && yields(other)
		})
		took = append(took, time.Since(began))
		m.joined(joining)
		joining.finish()
	}
	slices.Sort(took)
	t.Logf("%d kills: windows are seen again after %v (median), %v (longest)", len(took), took[len(took)/2], took[len(took)-1])
	for _, p := range []*process{be, other} {
		n := p.count()
		m.until("BE progresses", func() bool { return p.count() > n })
		p.finish()
	}
	lc.finish()
}

// A client opens its window again as soon as it has closed it, for ever. Launches that wait for it get the share all the same that people set.
func TestWhoLiesAboutWindowsLeavesAShare(t *testing.T) {
	t.Parallel()
	const settings = "mechanisms = [\"timeslice\", \"gate\"]\n[hold]\nmax_ms = 1000\n[share]\nmin_be = 0\n"
	m := newMachine(t, settings)
	if m.broker == "" {
		m.configure(fmt.Sprintf("%s[segment]\ndirectory = %q\nbroker = %q\n", settings, m.dir, m.startBroker()))
	}
	be := m.start("be")
	be.runBestEffort()
	m.joined(be)
	socket := join.SocketIn(m.broker, 0)
	o := join.Options{Layout: segment.Version, Name: "liar", Within: patience}
	if err := join.List(socket, func(e *wire.Entry, _ []int) error { o.GPU.UUID = e.GPU; return nil }); err != nil {
		t.Fatal(err)
	}
	liar, err := join.Join(socket, o)
	if err != nil {
		t.Fatal(err)
	}
	defer liar.Close()
	line := liar.State.Line(int(liar.Welcome.Slot))
	const rounds = 10
	lies := func() { // for much less than max_hold each time, so that no window is too long; a kernel takes 5 ms
		for range rounds {
			line.WindowOpenedNs.Store(segment.Now())
			time.Sleep(90 * time.Millisecond)
			line.WindowOpenedNs.Store(0)
			page.Ring(&line.Rings.Gate)
			time.Sleep(time.Millisecond)
		}
	}
	m.until("launches wait", func() bool { lies(); return m.peer(be).Counters.GateWaits > 0 })
	m.does(be, "", "set", "--share", "0.5")
	m.until("it has its share", func() bool {
		n := be.count()
		lies()
		return be.count()-n > 8*rounds // it had two in each, in the time that the window was closed
	})
	be.finish()
}

// A latency-critical program ends with its window open, and there is no broker any more to tell of that: it keeps nobody from the GPU.
func TestPeerThatDiesAfterItsBroker(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\", \"blp\"]\n[share]\nmin_be = 0.0\n")
	if m.broker == "" {
		m.configure(fmt.Sprintf("mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\", \"blp\"]\n[share]\nmin_be = 0.0\n[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	be, lc := m.sharing()
	lc.say("lc 100000 3 40 100 stream")
	m.until("it is stopped in a window", func() bool {
		lc.stop()
		open := m.peer(lc).WindowOpen
		if !open {
			_ = lc.cmd.Process.Signal(syscall.SIGCONT)
		}
		return open
	})
	if err := m.running.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = m.running.Wait()
	_ = lc.cmd.Process.Kill()
	for range 3 {
		n := be.count()
		for deadline := time.Now().Add(patience); be.count() < n+100; time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d kernels in %v", be.count()-n, patience)
			}
		}
	}
	be.finish()
}

// The policy decides about levels, and people change them while programs run.
func TestBrokerDecidesLevels(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	if err := os.WriteFile(filepath.Join(m.broker, "policy.toml"), []byte("[default]\nlevel = 'be'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.runBroker()
	p := m.start("lc")
	p.request(1, 1, "stream")
	m.joined(p)
	if got := m.peer(p); got.Level != 7 {
		t.Errorf("%+v", got)
	}
	p.says("the broker gives this process another level", 1)
	asked := func(want int, arguments ...string) string {
		t.Helper()
		out, err := exec.Command(built("gpreempt"), append(arguments, "--config", m.config)...).CombinedOutput()
		status := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != want {
			t.Errorf("gpreempt %q: %d, %s", arguments, status, out)
		}
		return string(out)
	}
	pid := fmt.Sprint(p.pid())
	if table := asked(0, "policy"); !strings.Contains(table, pid) || !strings.Contains(table, "worker") || !strings.Contains(table, "\n[default]\nlevel = 'be'\n") {
		t.Errorf("the policy is shown as\n%s", table)
	}
	if said, want := asked(0, "set", pid, "--share", "0.25", "--priority", "lc"), "process "+pid+" has priority lc (be is in force: the policy or its socket allows no better), has share 0.25\n"; said != want {
		t.Errorf("set said %q, want %q", said, want)
	}
	if table := asked(0, "policy"); !strings.Contains(table, "be*") || !strings.Contains(table, "0.25*") {
		t.Errorf("what was set is shown as\n%s", table)
	}
	if said, want := asked(0, "set", pid, "--clear"), "process "+pid+" is as the policy says\n"; said != want {
		t.Errorf("set said %q, want %q", said, want)
	}
	if table := asked(0, "policy"); strings.Contains(table, "*") {
		t.Errorf("what was cleared is shown as\n%s", table)
	}
	if table := asked(0, "top", "--once"); !strings.Contains(table, pid) {
		t.Errorf("top shows\n%s", table)
	}
	if text := asked(0, "top", "--prometheus"); !regexp.MustCompile(`(?m)^gpreempt_processes{.*level="be".*} 1$`).MatchString(text) {
		t.Errorf("the metrics are\n%s", text)
	}
	for want, arguments := range map[string][]string{
		"no process of this number":     {"set", "1", "--clear"},
		"nothing to set":                {"set", pid},
		"must stand alone":              {"set", pid, "--clear", "--pause"},
		"must be lc, be, or a level":    {"set", pid, "--priority", "off"},
		"from 0 to less than 1":         {"set", pid, "--share", "1"},
		"must be the number of a":       {"set", "x", "--clear"},
		"must be followed by the numbe": {"set"},
	} {
		status := 2
		if strings.HasPrefix(want, "no process") {
			status = 1
		}
		if said := asked(status, arguments...); !strings.Contains(said, want) {
			t.Errorf("gpreempt %q said %s", arguments, said)
		}
	}
}

// A process that the broker refuses runs on with a file of its user's, and says once why.
func TestRefusedByTheBroker(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	if err := os.WriteFile(filepath.Join(m.broker, "policy.toml"), []byte("[default]\nadmit = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.runBroker()
	p := m.start("be")
	p.runBestEffort()
	p.says("the broker does not take this process for now: it shares the GPU with programs of this user only", 1)
	p.says("the policy does not admit it", 1)
	all, err := segment.SnapshotsIn(m.segments())
	if err != nil || len(all) != 1 || len(all[0].Peers) != 1 || int(all[0].Peers[0].Pid) != p.pid() {
		t.Errorf("%+v, %v", all, err)
	}
}

// Somebody lowers a service while it runs: it takes turns with best-effort programs, and preempts them again when it has its level
// back.
func TestSetTakesEffect(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	set := func(arguments ...string) {
		t.Helper()
		if out, err := exec.Command(built("gpreempt"), append(append([]string{"set"}, arguments...), "--config", m.config)...).CombinedOutput(); err != nil {
			t.Fatalf("set %q: %v, %s", arguments, err, out)
		}
	}
	be, lc := m.sharing()
	pid := fmt.Sprint(lc.pid())
	set(pid, "--priority", "be")
	lc.runBestEffort()
	m.until("it has turns", func() bool {
		return m.peer(lc).Level == 7 && m.peer(lc).Counters.Turns > 0 && m.peer(be).Counters.Turns > 0
	})
	n, windows := be.count(), m.peer(lc).Counters.Windows
	m.until("BE progresses", func() bool { return be.count() > n })
	if got := m.peer(lc).Counters.Windows; got != windows {
		t.Errorf("%d windows became %d at the lowest level", windows, got)
	}
	set(pid, "--clear")
	m.until("it preempts again", func() bool {
		p := m.peer(lc)
		return p.Level == 0 && p.Counters.Windows > windows && p.TimesliceUs > 10_000
	})
	m.yields(be)
}

// Processes in time namespaces, whose clocks are hours behind and ahead of the others', are as any other.
func TestTimeNamespaces(t *testing.T) {
	t.Parallel()
	apart := func(seconds int) []string {
		return []string{"--time", "--monotonic", strconv.Itoa(seconds), "--fork", "--kill-child"}
	}
	const behind, ahead = -60, 100_000
	if out, err := exec.Command("unshare", append(apart(behind), "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let this user make time namespaces: unshare: %v: %s", err, out)
	}
	for _, brokered := range []bool{false, true} {
		t.Run(fmt.Sprintf("broker=%v", brokered), func(t *testing.T) {
			m := newMachine(t, "")
			if brokered && m.broker == "" {
				m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
			}
			start := func(role string, seconds int) *process {
				return m.startAs(m.command(role, "unshare", append(apart(seconds), worker)...))
			}
			only := func(role string) (found segment.Peer) {
				for _, p := range m.peers() {
					if p.Alive && p.Role == role && p.TimesliceUs != 0 {
						found = p
					}
				}
				return found
			}
			lc, be, other := start("lc", ahead), start("be", behind), start("be", ahead)
			be.runBestEffort()
			other.runBestEffort()
			m.until("LC preempts", func() bool { return only("lc").TimesliceUs > 10_000 })
			m.until("BE yields", func() bool { return only("be").TimesliceUs == 1 })
			windows := only("lc").Counters.Windows
			m.until("windows open", func() bool { lc.request(1, 1, "stream"); return only("lc").Counters.Windows > windows })
			for _, p := range []*process{be, other} {
				n := p.count()
				m.until("each has turns", func() bool { return p.count() > n+10 })
			}
			for _, p := range m.peers() {
				if age := time.Duration(p.HeartbeatAgeNs); age > patience/2 {
					t.Errorf("%s, process %d: its heartbeat is %v old", p.Role, p.Pid, age)
				}
				if p.StartedNs > segment.Now() {
					t.Errorf("%s, process %d: it started in the future", p.Role, p.Pid)
				}
			}
			for _, p := range []*process{lc, be, other} {
				p.finish()
			}
		})
	}
}

// Two users, each in user, PID, mount, network and IPC namespaces of its own: one's service preempts the other's work, whose processes
// take turns with it, and neither has a file.
func TestUsersInNamespaces(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root makes processes of other users")
	}
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	first := m.start("") // makes the simulated GPU
	first.request(1, 1, "stream")
	first.finish()
	for path, mode := range map[string]os.FileMode{filepath.Dir(worker): 0o755, m.dir: 0o755, m.config: 0o644, m.broker: 0o755, filepath.Join(m.dir, "sim"): 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	devices, err := filepath.Glob(filepath.Join(m.dir, "sim", "*"))
	if err != nil || len(devices) == 0 {
		t.Fatal(devices, err)
	}
	for _, path := range devices {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	as := func(uid int, role string) *process {
		t.Helper()
		cmd := m.command(role, worker)
		id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{UidMappings: id, GidMappings: id, Credential: &syscall.Credential{NoSetGroups: true},
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
		probe := exec.Command(built("gpreempt"), "--version")
		probe.SysProcAttr = cmd.SysProcAttr
		if err := probe.Run(); err != nil {
			t.Skipf("this machine makes no namespaces, or programs of here cannot be run by others: %v", err)
		}
		return m.startAs(cmd)
	}
	be, lc, other := as(4242, "be"), as(4243, "lc"), as(4243, "be")
	be.runBestEffort()
	other.runBestEffort()
	m.joined(be, lc, other)
	m.until("LC preempts", func() bool { return m.peer(lc).TimesliceUs > 10_000 })
	windows := m.peer(lc).Counters
	m.until("windows open while others have work", func() bool {
		lc.request(1, 1, "stream")
		now := m.peer(lc).Counters
		return now.Windows > windows.Windows && now.Switches > windows.Switches && now.Holds > windows.Holds
	})
	for _, p := range []*process{be, other} {
		turns, n := m.peer(p).Counters.Turns, p.count()
		m.until("BE of both users has turns", func() bool { return m.peer(p).Counters.Turns > turns && p.count() > n })
	}
	if users, err := filepath.Glob(filepath.Join(m.dir, "gpreempt-*")); err != nil || len(users) != 0 {
		t.Errorf("they made files: %v, %v", users, err)
	}
}
