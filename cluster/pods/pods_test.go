package pods

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var one, two = strings.Repeat("0af9", 16), strings.Repeat("1", 64)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names are what is in a folder.
func names(t *testing.T, folder string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestContainersAreTold(t *testing.T) {
	folder := t.TempDir()
	told := Pod{Namespace: "prod", Name: "a", Annotations: map[string]string{"team": "x\n\"y\""}}
	if _, known, err := Read(folder, one); known || err != nil {
		t.Errorf("nobody has told: %v, %v", known, err)
	}
	must(t, Write(folder, one, told))
	must(t, Write(folder, two, Pod{Namespace: "dev"}))
	if p, known, err := Read(folder, one); !reflect.DeepEqual(p, told) || !known || err != nil {
		t.Errorf("%+v, %v, %v", p, known, err)
	}
	told.Name = "b"
	must(t, Write(folder, one, told)) // another time
	if p, _, err := Read(folder, one); p.Name != "b" || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	info, err := os.Stat(filepath.Join(folder, one))
	if err != nil || info.Mode() != 0o600 || len(names(t, folder)) != 2 {
		t.Errorf("%v, %q, %v", info.Mode(), names(t, folder), err)
	}
	// Keep removes files of containers that are gone, and files half written by a plugin that was killed. Files of others stay.
	must(t, os.WriteFile(filepath.Join(folder, two+unfinished), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "note"), nil, 0o600))
	must(t, Keep(folder, map[string]bool{two: true}))
	if got := names(t, folder); !reflect.DeepEqual(got, []string{two, "note"}) {
		t.Errorf("%q", got)
	}
	must(t, Remove(folder, two))
	must(t, Remove(folder, two))
	must(t, Remove(folder, "note"))
	if got := names(t, folder); !reflect.DeepEqual(got, []string{"note"}) {
		t.Errorf("%q", got)
	}
}

// An ID is no path.
func TestOnlyIDs(t *testing.T) {
	folder := t.TempDir()
	must(t, os.WriteFile(filepath.Join(folder, "x"), []byte(`{"namespace": "prod"}`), 0o600))
	below := filepath.Join(folder, "below")
	must(t, os.Mkdir(below, 0o700))
	for _, name := range []string{"", ".", "../x", "x", one[1:], one + "0", strings.ToUpper(one), one + "\n"} {
		if err := Write(below, name, Pod{Namespace: "prod"}); err == nil {
			t.Errorf("%q was written", name)
		}
		if p, known, err := Read(below, name); known || err != nil {
			t.Errorf("%q: %+v, %v", name, p, err)
		}
	}
}

// Read does not believe a folder that others can have written. A file that makes no sense is an error.
func TestWhatIsNotBelieved(t *testing.T) {
	good := []byte(`{"namespace": "prod", "name": "a"}`)
	for what, spoil := range map[string]func(folder, file string) error{
		"writable for a group": func(folder, _ string) error { return os.Chmod(folder, 0o770) },
		"writable for all":     func(folder, _ string) error { return os.Chmod(folder, 0o777) },
		"a file":               func(folder, _ string) error { return os.Rename(filepath.Join(folder, one), folder+".x") },
		"no JSON":              func(_, file string) error { return os.WriteFile(file, good[1:], 0o600) },
		"no namespace":         func(_, file string) error { return os.WriteFile(file, []byte(`{"name": "a"}`), 0o600) },
		"too long": func(_, file string) error {
			return os.WriteFile(file, append([]byte(strings.Repeat(" ", mostBytes)), good...), 0o600)
		},
		"a link": func(folder, file string) error {
			if err := os.Rename(file, folder+".x"); err != nil {
				return err
			}
			return os.Symlink(folder+".x", file)
		},
		"a link to a folder": func(folder, _ string) error {
			if err := os.Rename(folder, folder+".x"); err != nil {
				return err
			}
			return os.Symlink(folder+".x", folder)
		},
		"no folder": func(folder, _ string) error { return os.RemoveAll(folder) },
	} {
		folder := filepath.Join(t.TempDir(), "pods")
		file := filepath.Join(folder, one)
		must(t, os.Mkdir(folder, 0o700))
		must(t, os.WriteFile(file, good, 0o600))
		if p, known, err := Read(folder, one); p.Namespace != "prod" || !known || err != nil {
			t.Fatalf("%+v, %v, %v", p, known, err)
		}
		must(t, spoil(folder, file))
		p, known, err := Read(folder, one)
		if moved := what == "a file"; p.Namespace != "" || known || (err == nil) != moved {
			t.Errorf("%s: %+v, %v, %v", what, p, known, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	folder := t.TempDir()
	must(t, Write(folder, one, Pod{Namespace: "prod"}))
	must(t, os.Chown(folder, 12345, -1))
	if _, known, err := Read(folder, one); known || err == nil {
		t.Error("another user's folder is believed")
	}
}

// A pod has all its annotations or none: its author could choose which part of them fits.
func TestAnnotations(t *testing.T) {
	few := map[string]string{"key": strings.Repeat("\x01", MostAnnotations-3)}
	p, all := Of("prod", "a", few)
	if !all || !maps.Equal(p.Annotations, few) {
		t.Errorf("%v, %d", all, len(p.Annotations))
	}
	folder := t.TempDir()
	must(t, Write(folder, one, p))
	if got, known, err := Read(folder, one); !reflect.DeepEqual(got, p) || !known || err != nil {
		t.Errorf("as long as they may be: %v, %v", known, err)
	}
	if p, all := Of("prod", "a", map[string]string{"keys": few["key"]}); all || len(p.Annotations) != 0 || p.Namespace != "prod" || p.Name != "a" {
		t.Errorf("one byte more: %v, %d", all, len(p.Annotations))
	}
}
