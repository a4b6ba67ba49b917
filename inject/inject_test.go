package inject

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/configs"
)

func TestAppend(t *testing.T) {
	for before, want := range map[string]string{
		"":                                 Preload,
		"/jemalloc.so":                     "/jemalloc.so:" + Preload,
		"/a.so:/b.so":                      "/a.so:/b.so:" + Preload,
		"/a.so /b.so":                      "/a.so /b.so:" + Preload,
		"/a.so:":                           "/a.so:" + Preload,
		" ":                                Preload,
		Preload:                            Preload,
		"/a.so:" + Preload + ":/b.so":      "/a.so:" + Preload + ":/b.so",
		"/a.so /opt/gpreempt/$LIB/libx.so": "/a.so /opt/gpreempt/$LIB/libx.so:" + Preload,
		"/a.so /usr/lib/libgpreempt.so":    "/a.so /usr/lib/libgpreempt.so",
	} {
		if got := Append(before); got != want || Append(got) != got {
			t.Errorf("Append(%q) = %q, must be %q", before, got, want)
		}
	}
}

func TestRoles(t *testing.T) {
	if n := len(Roles()); n != configs.Levels+2 || levels != configs.Levels {
		t.Errorf("%d roles of %d levels", n, configs.Levels)
	}
	for _, role := range Roles() {
		level, known := Level(role)
		if again, _ := Level(Role(level)); !known || again != level || level < 0 || level >= configs.Levels {
			t.Errorf("role %s is level %d, %v, which is %s", role, level, known, Role(level))
		}
	}
	for _, role := range []string{"", "off", "8", "-1", "07", "LC", "lc ", "/"} {
		if level, known := Level(role); known {
			t.Errorf("%q is level %d", role, level)
		}
	}
}

// All mounts are read-only, and bring no device and no program with other rights. From the place of the socket nothing is executed.
func TestOptions(t *testing.T) {
	for destination, executes := range map[string]bool{Folder: true, Command: true, Libraries()[0]: true, Socket: false} {
		options := Options(destination)
		for _, want := range []string{"ro", "nosuid", "nodev", "rprivate"} {
			if !slices.Contains(options, want) {
				t.Errorf("%s: no %s in %q", destination, want, options)
			}
		}
		if slices.Contains(options, "noexec") == executes || slices.Contains(options, "rbind") != executes {
			t.Errorf("%s: %q", destination, options)
		}
	}
}

// The library looks for the broker's socket where it is put.
func TestSocketIsWhereTheLibraryLooks(t *testing.T) {
	if first := join.Sockets(configs.Default().Segment.Broker)[0]; filepath.Dir(first) != Socket {
		t.Errorf("the library looks for %s", first)
	}
	if places := Libraries(); len(places) != 3 || !slices.Contains(places, Folder+"/lib/libgpreempt.so") {
		t.Errorf("%q", places)
	}
}
