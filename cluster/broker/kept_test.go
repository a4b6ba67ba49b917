package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
)

// keeps starts a broker that keeps what people set in a file. Its clients are this process, which started then.
func keeps(t *testing.T, path string, started uint64) *bench {
	t.Helper()
	return start(t, "[default]\nlevel = 2", func(s *Server) {
		s.identify = func(int, uint64) (identity, error) {
			pid := int32(os.Getpid())
			pidfd, err := unix.PidfdOpen(int(pid), 0)
			return identity{pid: pid, started: started, nested: []int32{pid}, users: users{own: true}, pidfd: pidfd}, err
		}
		if err := s.Keep(path); err != nil {
			t.Error(err)
		}
	})
}

func (b *bench) set(m wire.Set) {
	b.t.Helper()
	m.Pid = int32(os.Getpid())
	if n, err := join.Set(join.AdminIn(b.directory), &m); n == 0 || err != nil {
		b.t.Fatalf("%d clients, %v", n, err)
	}
}

// A setting by people of a process is in force at the next broker, however the one before ended. No other process gets it.
func TestWhatPeopleSetIsKept(t *testing.T) {
	path, own := filepath.Join(t.TempDir(), "set.json"), startOf(int32(os.Getpid()))
	if own == 0 || startOf(1<<30) != 0 {
		t.Fatalf("this process started at %d", own)
	}
	b := keeps(t, path, own)
	b.join(1, 3)
	b.join(2, 3)
	b.set(wire.Set{Fields: wire.SetLevel | wire.SetPaused, Level: 6, Paused: 1})
	b.set(wire.Set{Fields: wire.SetShare | wire.SetShareMax, Share: 300_000, ShareMax: 400_000})
	objective := configs.Objective{StepMs: 20, Percentile: 99}.Word()
	b.set(wire.Set{Fields: wire.SetObjective, Objective: objective})
	var killed []byte // what one leaves that is killed
	eventually(t, "it is written", func() (written bool) {
		b.do(func(s *Server) { written = !s.unkept })
		killed, _ = os.ReadFile(path)
		return written && len(killed) > 0
	})
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	b.stop()
	if ended, err := os.ReadFile(path); err != nil || len(ended) != len(killed) {
		t.Errorf("%v, a broker that ended leaves\n%s, one that was killed\n%s", err, ended, killed)
	}
	for round := range 2 { // the second broker has one of the clients only, and keeps the rest for the third
		next := keeps(t, path, own)
		p := next.join(byte(round+1), 3)
		if got := p.Welcome.Policy; got.Level != 6 || got.Paused != 1 || got.Share != 300_000 || got.ShareMax != 400_000 || got.Objective != objective {
			t.Errorf("round %d: %+v", round, got)
		}
		if round == 0 {
			next.set(wire.Set{Fields: wire.SetLevel, Level: 6})
			next.stop()
			continue
		}
		next.join(1, 3)
		next.set(wire.Set{Fields: wire.SetClear})
		eventually(t, "there is nothing to be kept", func() bool { _, err := os.Stat(path); return errors.Is(err, fs.ErrNotExist) })
		next.stop()
	}
	if err := os.WriteFile(path, killed, 0o600); err != nil {
		t.Fatal(err)
	}
	other := keeps(t, path, own+1) // another process of that pid
	if got := other.join(1, 3).Welcome.Policy; got.Level != 3 || got.Paused != 0 || got.Share != 0 || got.Objective.Says() {
		t.Errorf("another process has %+v", got)
	}
	other.stop()
}

// A file that others can write, or that makes no sense, is not taken over; one of an earlier start of the machine, or of processes that
// have ended, says nothing.
func TestWhatIsNotTakenOver(t *testing.T) {
	own := startOf(int32(os.Getpid()))
	text := func(boot string, pid int, started uint64, gpu string, fields, level int) string {
		return fmt.Sprintf(`{"boot":%q,"set":[{"pid":%d,"started":%d,"gpu":%q,"fields":%d,"level":%d}]}`, boot, pid, started, gpu, fields, level)
	}
	const gpu = "01000000000000000000000000000000"
	for name, c := range map[string]struct {
		text  string
		mode  os.FileMode
		wrong bool
		left  int
	}{
		"right":            {text(bootID(), os.Getpid(), own, gpu, 1, 6), 0o600, false, 1},
		"others write it":  {text(bootID(), os.Getpid(), own, gpu, 1, 6), 0o602, true, 0},
		"another start":    {text("x", os.Getpid(), own, gpu, 1, 6), 0o600, false, 0},
		"an ended process": {text(bootID(), os.Getpid(), own+1, gpu, 1, 6), 0o600, false, 0},
		"no such level":    {text(bootID(), os.Getpid(), own, gpu, 1, 8), 0o600, true, 0},
		"no such field":    {text(bootID(), os.Getpid(), own, gpu, 32, 6), 0o600, true, 0},
		"no objective":     {text(bootID(), os.Getpid(), own, gpu, int(wire.SetObjective), 6), 0o600, true, 0},
		"a clear":          {text(bootID(), os.Getpid(), own, gpu, int(wire.SetClear), 6), 0o600, true, 0},
		"no GPU":           {text(bootID(), os.Getpid(), own, gpu[2:], 1, 6), 0o600, true, 0},
		"it is cut short":  {text(bootID(), os.Getpid(), own, gpu, 1, 6)[:40], 0o600, true, 0},
		"there is no file": {"", 0, false, 0},
		"no process":       {text(bootID(), 1<<30, 0, gpu, 1, 6), 0o600, false, 0},
	} {
		path := filepath.Join(t.TempDir(), "set.json")
		if c.text != "" {
			if err := errors.Join(os.WriteFile(path, []byte(c.text), c.mode), os.Chmod(path, c.mode)); err != nil {
				t.Fatal(err)
			}
		}
		s := &Server{left: map[target]wire.Set{}}
		if err := s.Keep(path); (err != nil) != c.wrong || len(s.left) != c.left {
			t.Errorf("%s: %v, %d are taken over", name, err, len(s.left))
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc/self/status", link); err != nil {
		t.Fatal(err)
	}
	if err := (&Server{}).Keep(link); err == nil {
		t.Error("a link was followed")
	}
}

// The file is not written more often than it may be, however often something is set.
func TestKeptNotTooOften(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set.json")
	b := keeps(t, path, startOf(int32(os.Getpid())))
	b.join(1, 3)
	b.do(func(s *Server) {
		now := time.Now()
		for _, c := range s.clients {
			c.set = wire.Set{Fields: wire.SetLevel, Level: 5}
		}
		s.keepNext = now.Add(keepEvery)
		s.unkept = true
		s.keepSet(now, false)
		if _, err := os.Stat(path); err == nil || !s.unkept {
			t.Errorf("it was written too early: %v", err)
		}
		s.keepSet(now.Add(keepEvery), false)
		if _, err := os.Stat(path); err != nil || s.unkept {
			t.Errorf("it was not written: %v", err)
		}
	})
}

// A file that another user has written, or can write, or that is none, is not read.
func TestWhoseFileIsRead(t *testing.T) {
	needsRoot(t)
	path := filepath.Join(t.TempDir(), "set.json")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		read bool
	}{{0, 0o600, true}, {0, 0o644, true}, {0, 0o620, false}, {0, 0o602, false}, {1, 0o600, false}, {4242, 0o600, false}} {
		if err := errors.Join(os.Chown(path, c.uid, -1), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		if text, err := readOwn(path); (err == nil) != c.read || c.read && string(text) != "x" {
			t.Errorf("of user %d, mode %v: %q, %v", c.uid, c.mode, text, err)
		}
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, none := range []string{filepath.Dir(path), link, os.DevNull} {
		if _, err := readOwn(none); err == nil {
			t.Errorf("%s was read", none)
		}
	}
}
