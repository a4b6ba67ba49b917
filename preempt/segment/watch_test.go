package segment

import (
	"os"
	"syscall"
	"testing"
)

// A watch sees a process's counters when it has ended. So it does if no process is left, or another memory took the place of the first.
func TestWatch(t *testing.T) {
	base := t.TempDir()
	dir := Directory(base, os.Getuid())
	w := NewWatch(base, "")
	defer w.Close()
	look := func() Snapshot {
		t.Helper()
		all, err := w.Look()
		if err != nil || len(all) != 1 || all[0].Error != "" {
			t.Fatalf("Look() = %+v, %v", all, err)
		}
		return all[0]
	}
	if all, err := w.Look(); err != nil || len(all) != 0 {
		t.Fatalf("of nothing: %+v, %v", all, err)
	}
	first := startPeer(t, dir)
	if s := look(); len(s.Peers) != 1 || len(s.Gone) != 0 || s.Peers[0].Counters.Windows != 0 || int(s.Peers[0].Owner) != first.cmd.Process.Pid {
		t.Fatalf("of one: %+v", s)
	}
	first.tell("dirty")
	first.kill()
	if s := look(); len(s.Peers) != 0 || len(s.Gone) != 1 || s.Gone[0].Counters.Windows != 9 || s.Gone[0].Alive {
		t.Fatalf("of one that ended: %+v", s)
	}
	second := startPeer(t, dir) // no process hands out the memory of the first
	if s := look(); len(s.Peers) != 1 || len(s.Gone) != 1 || s.Gone[0].Counters.Windows != 9 {
		t.Fatalf("beside another memory: %+v", s)
	}
	if s := look(); len(s.Peers) != 1 || len(s.Gone) != 0 {
		t.Fatalf("a look later: %+v", s)
	}
	second.tell("dirty")
	if err := os.Remove(look().Path); err != nil {
		t.Fatal(err)
	}
	if s := look(); len(s.Peers) != 0 || len(s.Gone) != 1 || s.Gone[0].Counters.Windows != 9 {
		t.Fatalf("after the file went: %+v", s)
	}
	if all, err := w.Look(); err != nil || len(all) != 0 || len(w.kept) != 0 {
		t.Fatalf("a look later: %+v, %v", all, err)
	}
}

// Of a process that is stopped nothing is known until it goes on, and then all is.
func TestWatchOfOneThatIsStopped(t *testing.T) {
	base := t.TempDir()
	w := NewWatch(base, "")
	defer w.Close()
	p := startPeer(t, Directory(base, os.Getuid()))
	p.stop()
	all, err := w.Look()
	if err != nil || len(all) != 1 || len(all[0].Peers) != 0 || len(w.kept) != 0 {
		t.Errorf("while it is stopped: %+v, %v, %d kept", all, err, len(w.kept))
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if all, err := w.Look(); err != nil || len(all) != 1 || all[0].Error != "" || len(all[0].Peers) != 1 || len(w.kept) != 1 {
		t.Errorf("after it went on: %+v, %v", all, err)
	}
}
