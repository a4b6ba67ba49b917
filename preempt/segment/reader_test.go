package segment

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestReader(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "segments")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, GPU{UUID: [16]byte{1}}, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	slot, err := s.Claim(3, "server")
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for windows := range uint64(3) {
		s.Slot(slot).Windows.Store(windows)
		s.Slot(slot).TimesliceUs.Store(uint32(windows * 100))
		s.Line(slot).WindowOpenedNs.Store(windows & 1)
		s.Line(slot).Busy.Store(uint32(windows >> 1))
		look, err := r.Look()
		if err != nil || len(look.Peers) != 1 {
			t.Fatalf("%+v, %v", look, err)
		}
		p := look.Peers[0]
		if p.Slot != slot || int(p.Pid) != os.Getpid() || p.Level != 3 || p.Open != (windows == 1) || p.Busy != (windows == 2) || p.TimesliceUs != uint32(windows*100) || p.Counters.Windows != windows {
			t.Errorf("after %d windows: %+v", windows, p)
		}
	}
	if err := os.Truncate(s.Path(), 10); err != nil {
		t.Fatal(err)
	}
	if look, err := r.Look(); err != nil || len(look.Peers) != 1 {
		t.Errorf("beside a truncated file: %+v, %v", look, err)
	}
	if _, err := OpenReader(s.Path()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("opened a truncated file: %v", err)
	}
}
