package segment

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestClockAhead(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic      -10000         5\nboottime            7         0\n": -10000*int64(time.Second) + 5,
		"boottime            7         0\nmonotonic       10000         0\n": 10000 * int64(time.Second),
		"monotonic 9223372036854775807 0\n":                                  0,
		"monotonic -9223372036854775808 0\n":                                 0,
		"monotonic 1 1000000000\n":                                           0,
		"monotonic 1 -1\n":                                                   0,
		"monotonic 1\n":                                                      0,
		"monotonic x 0\n":                                                    0,
	} {
		if got := parseAhead(text); got != want {
			t.Errorf("%q: %d, must be %d", text, got, want)
		}
	}
	process := filepath.Join(t.TempDir(), "self")
	if err := os.MkdirAll(filepath.Join(process, "ns"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(process, "timens_offsets"), []byte("monotonic 3 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readAhead(process); got != 0 {
		t.Errorf("%d of no namespace", got)
	}
	name := func(file, namespace string) {
		t.Helper()
		if err := os.Symlink(namespace, filepath.Join(process, "ns", file)); err != nil {
			t.Fatal(err)
		}
	}
	name("time", "time:[2]")
	name("time_for_children", "time:[2]")
	if got := readAhead(process); got != 3*int64(time.Second) {
		t.Errorf("%d, must be 3 s", got)
	}
	if err := os.Remove(filepath.Join(process, "ns", "time_for_children")); err != nil {
		t.Fatal(err)
	}
	name("time_for_children", "time:[3]")
	if got := readAhead(process); got != 0 {
		t.Errorf("%d of its children's namespace", got)
	}
	name("same", "time:[2]")
	if err := errors.Join(os.Rename(filepath.Join(process, "ns", "same"), filepath.Join(process, "ns", "time_for_children")),
		os.Remove(filepath.Join(process, "timens_offsets"))); err != nil {
		t.Fatal(err)
	}
	if got := readAhead(process); got != 0 {
		t.Errorf("%d of a kernel that tells no offsets", got)
	}
	if now := Now(); now == 0 || now > math.MaxInt64 {
		t.Errorf("now is %d", now)
	}
}
