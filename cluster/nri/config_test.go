package nri

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/cluster/nri/nritest"
	"github.com/gpreempt/gpreempt/inject"
)

func TestParse(t *testing.T) {
	c, err := Parse("nri.toml", []byte("exclude = ['monitoring']\n[default]\nrole = 'be'\n[namespace.prod]\nlevel = 'lc'\n[namespace.dev]\nlevel = 3\nrole = '5'\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Default != (Rule{7, 7}) || !maps.Equal(c.Namespaces, map[string]Rule{"prod": {0, 7}, "dev": {3, 5}}) || !slices.Equal(c.Excluded, []string{"monitoring", "kube-system"}) {
		t.Errorf("%+v", c)
	}
	if c.rule("prod") != (Rule{0, 7}) || c.rule("other") != c.Default {
		t.Errorf("%+v, %+v", c.rule("prod"), c.rule("other"))
	}
	if c, err = Load(""); err != nil || c.Default != (Rule{7, -1}) || !slices.Equal(c.Excluded, []string{"kube-system"}) || c.Budget != DefaultBudget {
		t.Errorf("without a file: %+v, %v", c, err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for text, want := range map[string]string{
		"x":                                   "nri.toml: line 1: ",
		"speed = 1":                           "nri.toml: speed: unknown key",
		"[namespace.prod]\nbest = 'lc'":       "nri.toml: namespace.prod.best: unknown key",
		"[default]\nlevel = 8":                `nri.toml: default.level = "8", must be "lc", "be" or a level from 0 to 7`,
		"[default]\nrole = 'off'":             `nri.toml: default.role = "off", must be`,
		"[namespace.prod]\nlevel = 'fastest'": `nri.toml: namespace.prod.level = "fastest", must be`,
		"exclude = 'prod'":                    "nri.toml: ",
	} {
		if c, err := Parse("nri.toml", []byte(text)); c != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, %v, must begin with %s", text, c, err, want)
		}
	}
}

// host makes the library's folder of a version, with a link to it, and the directories of sockets.
func host(t *testing.T) (c *Config) {
	t.Helper()
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	c.Budget = nritest.Patience
	c.Library, c.Sockets = filepath.Join(folder, "current"), filepath.Join(folder, "run")
	err = os.Symlink("v1", c.Library)
	for _, place := range inject.Libraries() {
		path := filepath.Join(folder, "v1", strings.TrimPrefix(place, inject.Folder))
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755))
	}
	for _, level := range []string{"0", "3", "5", "7"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(c.Sockets, level), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A source that is not there, or cannot be used, is an error: the runtime would fail to create the container.
func TestMounts(t *testing.T) {
	c := host(t)
	version := filepath.Join(filepath.Dir(c.Library), "v1")
	got, err := c.mounts(3)
	if err != nil || !slices.Equal(got, []mount{{version, "/opt/gpreempt"}, {c.Sockets + "/3", "/run/gpreempt/broker"}}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := c.mounts(4); err == nil || !strings.Contains(err.Error(), "sockets") {
		t.Errorf("without a directory of sockets: %v", err)
	}
	library := filepath.Join(version, "lib64/libgpreempt.so")
	for what, spoil := range map[string]func() error{
		"not for everybody": func() error { return os.Chmod(library, 0o700) },
		"a folder":          func() error { return errors.Join(os.Remove(library), os.Mkdir(library, 0o755)) },
		"nothing":           func() error { return os.Remove(library) },
		"no version":        func() error { return os.RemoveAll(version) },
	} {
		c := host(t)
		version = filepath.Join(filepath.Dir(c.Library), "v1")
		library = filepath.Join(version, "lib64/libgpreempt.so")
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if got, err := c.mounts(3); got != nil || err == nil || !strings.HasPrefix(err.Error(), "the library: ") {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}
