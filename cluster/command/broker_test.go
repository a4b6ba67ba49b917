package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// shortDir is a folder with a path that leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "gpreempt-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// bindLevel makes the socket of a level.
func bindLevel(t *testing.T, directory string, level int) (fd int) {
	t.Helper()
	fd, err := broker.Bind(join.SocketIn(directory, level), 0o755, -1)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// startBroker starts one with a socket of a level, and returns where that is.
func startBroker(t *testing.T, layout uint32, level int, rules string) (directory string) {
	t.Helper()
	directory = shortDir(t)
	p, err := policy.Parse("test.toml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	s, err := broker.New(layout, p, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(bindLevel(t, directory, level), level); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run() }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return directory
}

// Doctor says whether there is a broker, whether it answers, and what it lets a program have.
func TestDoctorOfBrokers(t *testing.T) {
	dead, deaf := shortDir(t), shortDir(t)
	unix.Close(bindLevel(t, dead, 3))
	silent := bindLevel(t, deaf, 0) // takes no connection
	defer unix.Close(silent)
	none := shortDir(t)
	lets := startBroker(t, segment.Version, 0, "[default]\nlevel = 0\nshare = 0.25\nmax_hold_ms = 50\nmemory_limit = '9000MB'\n")
	lowers := startBroker(t, segment.Version, 5, "[default]\nlevel = 'lc'\nmemory_limit = '40%'\n")
	for _, c := range []struct{ name, directory, priority, want string }{
		{"none wanted", "", "", `ok    broker     none is used: segment.broker = ""`},
		{"none", none, "", "ok    broker     none in " + none + ": programs of one user find each other by files"},
		{"dead", dead, "", "warn  broker     " + dead + "/3/broker.sock: nobody listens; start gpreemptd"},
		{"deaf", deaf, "", "warn  broker     " + deaf + "/0/broker.sock: the broker does not answer; restart gpreemptd"},
		{"lets", lets, "", fmt.Sprintf("ok    broker     %s/0/broker.sock answers (messages %d, pages %d): a program that wants lc gets lc, a share of at least 0.25, windows of at most 50 ms, at most 9000 MB on a GPU\n", lets, wire.Version, segment.Version)},
		{"by a level", lowers, "", "a program that wants lc gets 5, at most 40% of a GPU's memory\n"},
		{"lowers", lowers, "1", "a program that wants 1 gets 5, at most 40% of a GPU's memory; the policy, or the socket that this user can reach, allows no more than 5\n"},
		{"as wanted", lowers, "be", "a program that wants be gets be, at most 40% of a GPU's memory\n"},
		{"refuses", startBroker(t, segment.Version, 0, "[default]\nadmit = false\n"), "", "/0/broker.sock: the broker refuses: the policy does not admit it; ask whoever"},
		{"another version", startBroker(t, segment.Version+1, 0, ""), "", "the broker refuses: another version of the library or the broker; restart gpreemptd, or install"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := write(t, "gpreempt.toml", fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", t.TempDir(), c.directory))
			env := []string{"GPREEMPT_CONFIG=" + config, "LD_LIBRARY_PATH=" + built, "FAKE_CUDA=no device"}
			if c.priority != "" {
				env = append(env, "GPREEMPT_PRIORITY="+c.priority)
			}
			if r := gpreempt(t, env, "doctor"); !strings.Contains(r.stdout, c.want) || r.stderr != "" || strings.Count(r.stdout, "  broker ") != 1 {
				t.Errorf("no %q in\n%s%s", c.want, r.stdout, r.stderr)
			}
		})
	}
}

// Members of both worlds on one GPU do not know of each other: doctor warns, and its report has both.
func TestDoctorOfBothWorlds(t *testing.T) {
	directory, base := startBroker(t, segment.Version, 0, ""), t.TempDir()
	config := write(t, "gpreempt.toml", fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", base, directory))
	doctor := func(want bool) {
		t.Helper()
		report := filepath.Join(t.TempDir(), "report")
		r := gpreempt(t, []string{"GPREEMPT_CONFIG=" + config, "LD_LIBRARY_PATH=" + built, "FAKE_CUDA=no device"}, "doctor", "--report", report)
		pid := fmt.Sprint(os.Getpid())
		says := "warn  broker     " + (segment.GPU{UUID: [16]byte{1}}).String() + ": processes that found each other by files (" + pid + ") and by the broker (" + pid + ") do not know of each other; those by files join once"
		if strings.Contains(r.stdout, says) != want || strings.Contains(r.stdout, "do not know of each other") != want {
			t.Errorf("%v: %q in\n%s", want, says, r.stdout)
		}
		text, err := os.ReadFile(report)
		if err != nil || !strings.Contains(string(text), `"name": "by the broker"`) {
			t.Errorf("%v, the report is\n%s", err, text)
		}
	}
	var shared *segment.Segment
	err := join.ErrTime
	// A machine that is slow and busy may take longer than one try.
	for end := time.Now().Add(20 * time.Second); errors.Is(err, join.ErrTime) && time.Now().Before(end); {
		shared, _, err = member.Join(member.Options{Directory: directory, GPU: segment.GPU{UUID: [16]byte{1}}, Level: 7, Name: "by the broker"})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	doctor(false)
	for _, gpu := range []byte{2, 1} { // another GPU, then the same
		s, err := segment.Open(segment.Directory(base, os.Getuid()), segment.GPU{UUID: [16]byte{gpu}}, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Claim(7, "by a file"); err != nil {
			t.Fatal(err)
		}
		doctor(gpu == 1)
	}
}
