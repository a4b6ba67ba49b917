package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
)

// tap takes so many bytes, one piece at a time, and the rest late if it is.
type tap struct {
	mutex sync.Mutex
	room  int
	late  bool
	text  bytes.Buffer
}

func (t *tap) put(text []byte) (n int, late bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	n = min(t.room, len(text))
	t.room -= n
	t.text.Write(text[:n])
	return n, t.late
}

func (t *tap) forced(text []byte) int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.text.Write(text)
	return len(text)
}

// The reader of the log stops. No writer waits. A bounded number of lines is kept, and comes in order when the reader goes on; the rest is
// counted.
func TestNobodyReadsTheLog(t *testing.T) {
	for _, late := range []bool{false, true} {
		to := &tap{room: 25} // two lines and a half
		log := &lines{to: to}
		const written = 20_000
		var all strings.Builder
		log.trying = true // its goroutine is this test
		for i := range written {
			line := fmt.Sprintf("%09d\n", i)
			all.WriteString(line)
			if n, err := log.Write([]byte(line)); n != 10 || err != nil {
				t.Fatalf("Write() = %d, %v", n, err)
			}
		}
		if len(log.unwritten) > mostUnwritten || log.lost == 0 || log.lost+len(log.unwritten)/10 != written {
			t.Fatalf("%d bytes are kept, %d lines lost", len(log.unwritten), log.lost)
		}
		kept, lost := len(log.unwritten), log.lost
		if log.try() || to.text.String() != all.String()[:25] {
			t.Errorf("it has %q", to.text.String())
		}
		if late {
			to.late = true
		} else {
			to.room = 1 << 20
		}
		if !log.try() || log.trying || log.unwritten != nil {
			t.Error("it is not done")
		}
		want := all.String()[:kept] + fmt.Sprintf("gpreempt: %d lines of the log are lost: they could not be written for some time\n", lost)
		if to.text.String() != want {
			t.Errorf("late %v: it ends in %q", late, to.text.String()[max(0, to.text.Len()-200):])
		}
	}
}

// Lines that have no room at once are written when there is some.
func TestLateLines(t *testing.T) {
	to := &tap{}
	log := &lines{to: to}
	for range 2 {
		if n, err := log.Write([]byte("line\n")); n != 5 || err != nil {
			t.Fatalf("Write() = %d, %v", n, err)
		}
	}
	to.mutex.Lock()
	to.room = 1 << 20
	to.mutex.Unlock()
	for done := false; !done; {
		log.mutex.Lock()
		done = !log.trying
		log.mutex.Unlock()
	}
	if to.text.String() != "line\nline\n" {
		t.Errorf("it has %q", to.text.String())
	}
}

// Several processes write to one file, which is never longer than allowed. No line is torn, and only lines that are two files old are
// lost.
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

// Lines have the milliseconds of the time, and levels the names that settings have for them.
func TestLinesSayWhenAndHow(t *testing.T) {
	now := zerolog.TimestampFunc
	defer func() { zerolog.TimestampFunc = now }()
	zerolog.TimestampFunc = func() time.Time { return time.Date(2026, 11, 29, 5, 20, 17, 123_456_789, time.Local) }
	config := configs.Default()
	config.Log.Level, config.Log.File = "info", filepath.Join(t.TempDir(), "log")
	log := logger(config)
	var text bytes.Buffer
	for _, out := range []zerolog.Logger{log, log.Output(console(&text))} {
		out.Warn().Msg("odd")
	}
	if want := "05:20:17.123 warn odd "; !strings.HasPrefix(text.String(), want) {
		t.Errorf("%q, want %q", text.String(), want)
	}
	file, err := os.ReadFile(config.Log.File)
	if !bytes.Contains(file, []byte(`"time":"2026-11-29T05:20:17.123`)) {
		t.Errorf("%v: %s", err, file)
	}
}

func TestRelease(t *testing.T) {
	for version, want := range map[string]string{"@(#)libgpreempt.so(v1.2-3-gabc)": "v1.2-3-gabc", "": ""} {
		if is := release(version); is != want {
			t.Errorf("%q: %q", version, is)
		}
	}
}
