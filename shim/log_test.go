package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Several processes write to one file, which is never longer than allowed, and no line is torn or lost but with what is
// two files old.
func TestLogFileIsBounded(t *testing.T) {
	const limit, writers, lines = 4096, 4, 200
	path := filepath.Join(t.TempDir(), "log")
	renamed := 0
	var mutex sync.Mutex
	var all sync.WaitGroup
	for range writers {
		f := &logFile{path: path, limit: limit, renamed: func(to string) {
			mutex.Lock()
			defer mutex.Unlock()
			if renamed++; to != path+".1" {
				t.Errorf("renamed to %s", to)
			}
		}}
		if err := f.open(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for range lines {
				if n, err := f.Write([]byte(strings.Repeat("x", 99) + "\n")); n != 100 || err != nil {
					t.Errorf("Write() = %d, %v", n, err)
				}
			}
		})
	}
	all.Wait()
	for _, name := range []string{path, path + ".1"} {
		text, err := os.ReadFile(name)
		if err != nil || len(text) == 0 || len(text) > 2*limit+writers*100 || len(bytes.ReplaceAll(text, []byte(strings.Repeat("x", 99)+"\n"), nil)) != 0 {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
	}
	if most := writers * lines * 100 / (limit - 100); renamed == 0 || renamed > most+1 {
		t.Errorf("renamed %d times, at most %d are needed", renamed, most)
	}
}

// Root does not write to what another user prepared.
func TestRootsLog(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	others, group, link := file("others"), file("group"), filepath.Join(dir, "link")
	if err := os.Chown(others, 4711, -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(group, 0o620); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file("target"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{others, group, link} {
		if err := (&logFile{path: path}).open(); err == nil {
			t.Errorf("%s was opened", path)
		}
	}
	if err := (&logFile{path: file("own")}).open(); err != nil {
		t.Errorf("root's own: %v", err)
	}
}
