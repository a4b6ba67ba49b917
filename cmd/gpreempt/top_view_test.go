package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestSparkline(t *testing.T) {
	const s = uint64(1e9)
	var h history
	if line := h.sparkline(100*s, 6, dots); line != "      " {
		t.Errorf("of nothing: %q", line)
	}
	h.add(70*s, 80*s, 0)
	h.add(80*s, 90*s, 0.5)
	h.add(90*s, 95*s, 1)
	h.add(95*s, 100*s, 0)
	for now, want := range map[uint64]string{100: "   _++", 110: "  _++ ", 130: "_++   ", 140: "++    ", 400: "      "} {
		if line := h.sparkline(now*s, 6, dots); line != want {
			t.Errorf("at %d s: %q, want %q", now, line, want)
		}
	}
	if line := h.sparkline(100*s, 12, blocks); line != "      ▁▁▅▅█▁" {
		t.Errorf("finer: %q", line)
	}
	h.add(100*s, 100*s, 1) // no time
	h.add(100*s, 101*s, 7)
	h.add(101*s, 102*s, -7)
	if len(h) != 6 || h[4].value != 1 || h[5].value != 0 {
		t.Errorf("%+v", h)
	}
	for i := range uint64(1000) {
		h.add((200+i)*s, (201+i)*s, 0)
	}
	if len(h) != 60 {
		t.Errorf("%d samples of a second are kept", len(h))
	}
}

// busy is a sample with three processes on one GPU, and one GPU that cannot be read.
func busy(takenNs uint64) sample {
	lc := segment.Peer{Counted: true, Slot: 0, Pid: 4711, Name: "server", Level: 0, Role: "lc", StartedNs: 1, WindowOpen: true, Mechanisms: []string{"timeslice", "hold"}}
	be := segment.Peer{Slot: 1, Counted: true, Pid: 42, Name: "training-with-a-long-name", Level: 7, Role: "be", StartedNs: 2, Busy: true, Fallbacks: []string{"no_hold"},
		Memory: &segment.Memory{State: "out", PinnedBy: []string{"exported"}, MemoryCounters: segment.MemoryCounters[uint64]{Resident: 3 << 30, Pinned: 1 << 30, Swapped: 5 << 20}},
		BLP:    &segment.BLP{StopCounters: segment.StopCounters[uint64]{Launches: 99, Uncovered: 1, Stops: 12}}}
	odd := segment.Peer{Slot: 2, Counted: true, Pid: 7, Name: "日本\u0301x", Level: 3, Role: "3", StartedNs: 3, Memory: &segment.Memory{State: "running", MemoryCounters: segment.MemoryCounters[uint64]{Resident: math.MaxUint64, Pinned: math.MaxUint64}}}
	return sample{GPUs: []gpuSample{
		{Snapshot: segment.Snapshot{GPU: "GPU-1", Path: "a", TakenNs: takenNs}, LCShare: 0.25, BEShare: 0.5, Peers: []peerSample{
			{lc, state(lc), rates{"share": 0.25, "windows": 100}}, {be, state(be), rates{"share": 0.5, "stops": 3.25}}, {odd, state(odd), rates{"share": 0, "windows": 1e300, "stops": 12345}}}},
		{Snapshot: segment.Snapshot{GPU: "GPU-2", Path: "b", Error: "corrupt\x1b[2J"}},
	}}
}

func text(l line) (text string) {
	for _, s := range l {
		text += s.text
	}
	return text
}

// page is what a screen shows, without blanks at the ends of lines.
func page(v *view, width, height int) string {
	var all []string
	for _, l := range v.lines(width, height) {
		all = append(all, strings.TrimRight(text(l), " "))
	}
	return strings.Join(all, "\n")
}

func filled() *view {
	v := newView(time.Second, dots)
	for i := range uint64(31) {
		v.take(busy((100 + i) * 1e9))
	}
	return v
}

func TestStateOfWhatIsNotCounted(t *testing.T) {
	for _, c := range []struct {
		busy, counted bool
		state, share  string
	}{{false, true, "idle", "0 %"}, {true, true, "busy", "0 %"}, {false, false, "-", "-"}} {
		p := peerSample{Peer: segment.Peer{Busy: c.busy, Counted: c.counted}}
		if s, part := state(p.Peer), share(&p); s != c.state || part != c.share {
			t.Errorf("%+v: %s, %s", c, s, part)
		}
	}
}

func TestStateOfWhatHasHadItsPart(t *testing.T) {
	if s := state(segment.Peer{Busy: true, Counted: true, Capped: true, Suspended: true}); s != "max" {
		t.Error(s)
	}
}

func TestView(t *testing.T) {
	want := strings.Join([]string{
		"gpreempt top  every 1s",
		"GPU-1",
		"LC  25 %                ---------------  BE  50 %                +++++++++++++++",
		"    PID NAME       LEVEL STATE    SHARE MINUTE      WIN/s STOP/s  ON GPU SWAPPED",
		"   4711 server     lc    window    25 %      -----  100.0    0.0       -       -",
		"      7 ???x       3     idle       0 %      _____   much  12345    much   0 MiB",
		"     42 training-w be    out       50 %      +++++    0.0    3.2 4.0 GiB   5 MiB",
		"",
		"GPU-2  cannot be read: corrupt?[2J",
		"",
		"? help  q quit  sort: p n l s w b g x, r reverses  up down enter  space: pause",
	}, "\n")
	got := page(filled(), 80, 11)
	if lines, wanted := strings.Split(got, "\n"), strings.Split(want, "\n"); len(lines) != len(wanted) {
		t.Errorf("%d lines\n%s", len(lines), got)
	} else {
		for i := range lines {
			if lines[i] != wanted[i] {
				t.Errorf("line %d\n%q, want\n%q", i, lines[i], wanted[i])
			}
		}
	}
	if got := page(newView(time.Second, dots), 80, 3); !strings.Contains(got, "\nNo process of this user runs under the library.\n") {
		t.Errorf("of nothing:\n%s", got)
	}
}

// Numbers fit their columns.
func TestShort(t *testing.T) {
	for n, want := range map[float64]string{0: "0.0", 12.34: "12.3", 9999.9: "9999.9", 9999.96: "10000", 999_999: "999999", 999_999.6: "1M", 9.9e9: "9900M", 1e10: "much", math.Inf(1): "much"} {
		if got := short(n); got != want || len(got) > 6 {
			t.Errorf("short(%v) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 MiB", 1<<20 - 1: "1 MiB", 999 << 20: "999 MiB", 1000 << 20: "1.0 GiB", 139 << 30: "139 GiB", 10 << 30: "10 GiB", 1000 << 30: "1.0 TiB", 999 << 40: "999 TiB", math.MaxUint64: "much"} {
		if got := shortAmount(n); got != want || len(got) > 7 {
			t.Errorf("shortAmount(%d) = %q, want %q", n, got, want)
		}
	}
}

// The screen is full at every size, and no line is wider.
func TestViewSizes(t *testing.T) {
	for _, details := range []bool{false, true} {
		v := filled()
		if details {
			v.enter()
		}
		for _, width := range []int{0, 1, 7, 20, 79, 80, 81, 132, 400} {
			for _, height := range []int{0, 1, 2, 3, 6, 7, 24, 100} {
				lines := v.lines(width, height)
				if want := height; width > 0 && len(lines) != want || width == 0 && lines != nil {
					t.Fatalf("%dx%d: %d lines", width, height, len(lines))
				}
				for _, l := range lines {
					if n := len([]rune(text(l))); n > width {
						t.Fatalf("%dx%d: %d characters: %q", width, height, n, text(l))
					}
				}
			}
		}
	}
	if wide := page(filled(), 400, 20); !strings.Contains(wide, "timeslice hold") || !strings.Contains(wide, "TURNS/s") || !strings.Contains(wide, "no_hold") {
		t.Errorf("a wide screen lacks columns:\n%s", wide)
	}
}

// pids are the PIDs of the table, from the top.
func pids(v *view) (all []int32) {
	for _, r := range v.rows() {
		all = append(all, r.p.Pid)
	}
	return all
}

func TestViewSorts(t *testing.T) {
	v := filled()
	for _, c := range []struct {
		keys string
		want []int32
	}{
		{"", []int32{4711, 7, 42}}, {"p", []int32{7, 42, 4711}}, {"r", []int32{4711, 42, 7}}, {"n", []int32{4711, 42, 7}}, {"l", []int32{4711, 7, 42}},
		{"s", []int32{42, 4711, 7}}, {"w", []int32{7, 4711, 42}}, {"b", []int32{7, 42, 4711}}, {"g", []int32{7, 42, 4711}}, {"x", []int32{42, 7, 4711}},
		{"xr", []int32{4711, 7, 42}}, {"?Z\x00", []int32{4711, 7, 42}},
	} {
		for _, key := range c.keys {
			if v.key(key) {
				t.Errorf("%q ends it", key)
			}
		}
		if got := pids(v); !slices.Equal(got, c.want) {
			t.Errorf("after %q: %v, want %v", c.keys, got, c.want)
		}
	}
	if !v.key('q') {
		t.Error("q does not end it")
	}
}

// A process stays selected while others come, go and are sorted; its details are all that the plain tables have.
func TestViewSelects(t *testing.T) {
	v := filled()
	v.move(1)
	v.move(1)
	v.move(1)
	v.move(1) // there are three
	if v.selected.slot != 1 {
		t.Fatalf("selected %+v", v.selected)
	}
	v.key('s')
	if lines := v.lines(80, 24); lines[4][0].look != inverse || !strings.Contains(text(lines[4]), "training") {
		t.Errorf("not selected: %+v", lines[4])
	}
	v.move(-1)
	if v.selected.slot != 1 {
		t.Errorf("above the first: %+v", v.selected)
	}
	v.enter()
	shown := page(v, 80, 30)
	for _, want := range []string{"NOT IN FORCE no_hold", "COVERED 99.0 %", "STOPS 12", "MEMORY out", "RESIDENT 3.0 GiB", "PINNED 1.0 GiB (exported)", "SWAPPED 5 MiB"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	v.enter()
	if shown := page(v, 80, 30); strings.Contains(shown, "COVERED") {
		t.Errorf("details that nobody wants:\n%s", shown)
	}
	// On a small screen the selected process is in sight.
	for _, by := range []int{1, 1, 1, -1, -1} {
		v.move(by)
		if shown := page(v, 80, 4); !strings.Contains(shown, fmt.Sprint(v.now.GPUs[0].Peers[v.selected.slot].Pid)) {
			t.Errorf("process of slot %d is out of sight:\n%s", v.selected.slot, shown)
		}
	}
	now := busy(200e9)
	now.GPUs = now.GPUs[:1]
	now.GPUs[0].Peers = now.GPUs[0].Peers[:1]
	v.take(now) // the selected one has ended
	v.enter()
	if v.selected.slot != 0 || !strings.Contains(page(v, 80, 30), "PID 4711") {
		t.Errorf("%+v\n%s", v.selected, page(v, 80, 30))
	}
	v.take(sample{})
	v.move(1)
	v.enter()
	if len(v.processes) != 0 {
		t.Errorf("%d processes that have ended are remembered", len(v.processes))
	}
}

// ? shows what keys and columns mean, and the tables again; the last line names every key.
func TestViewHelps(t *testing.T) {
	v := filled()
	v.key('?')
	seen := ""
	for range 60 {
		shown := page(v, 80, 24)
		if lines := strings.Split(shown, "\n"); len(lines) != 24 || !strings.HasPrefix(lines[23], "? help  q quit") {
			t.Fatalf("no screen:\n%s", shown)
		}
		seen += shown + "\n"
		v.move(1)
	}
	for _, c := range columns[:11] {
		if !strings.Contains(seen, "\n  "+c.title+"  ") && !slices.Contains([]string{"PID", "NAME"}, c.title) {
			t.Errorf("column %s is not explained:\n%s", c.title, page(v, 80, 60))
		}
	}
	for _, row := range stateRows {
		if !strings.Contains(seen, "\n  "+row.state+"  ") {
			t.Errorf("state %q is not explained", row.state)
		}
	}
	_, keys, _ := strings.Cut(page(v, 80, 24), "? help")
	for _, c := range columns {
		if c.key != 0 && !strings.Contains(keys, " "+string(c.key)) {
			t.Errorf("the last line does not name %c", c.key)
		}
	}
	if v.enter(); !strings.Contains(page(v, 80, 24), "4711 server") || v.details {
		t.Errorf("no tables:\n%s", page(v, 80, 24))
	}
}

// While it is paused the tables stand still, and the minute goes on.
func TestViewPauses(t *testing.T) {
	v := filled()
	v.key(' ')
	now := busy(131e9)
	now.GPUs[0].LCShare = 0.99
	v.take(now)
	if shown := page(v, 80, 24); !strings.Contains(shown, "paused") || !strings.Contains(shown, "LC  25 %") {
		t.Errorf("paused:\n%s", shown)
	}
	v.key(' ')
	v.take(now)
	if shown := page(v, 80, 24); strings.Contains(shown, "paused") || !strings.Contains(shown, "LC  99 %") || !strings.Contains(shown, "-+  BE") {
		t.Errorf("going on:\n%s", shown)
	}
	v.said = errors.New("gone")
	if lines := v.lines(80, 24); lines[0][0].look != warning || !strings.Contains(text(lines[0]), "gone") {
		t.Errorf("%+v", lines[0])
	}
}

// simulated is a screen without a terminal.
func simulated(t *testing.T, charset string) tcell.SimulationScreen {
	t.Helper()
	screen := tcell.NewSimulationScreen(charset)
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	screen.SetSize(80, 24)
	return screen
}

// shown is what a screen shows.
func shown(screen tcell.SimulationScreen) string {
	var all strings.Builder
	cells, width, _ := screen.GetContents()
	for i, c := range cells {
		all.WriteString(string(c.Runes))
		if (i+1)%width == 0 {
			all.WriteByte('\n')
		}
	}
	return all.String()
}

func TestScreen(t *testing.T) {
	screen := simulated(t, "UTF-8")
	defer screen.Fini()
	v := filled()
	v.draw(screen)
	if s := shown(screen); !strings.Contains(s, "4711 server") || strings.Count(s, "\n") != 24 {
		t.Fatalf("%s", s)
	}
	for _, c := range []struct {
		key   tcell.Key
		rune  rune
		quits bool
	}{{tcell.KeyDown, 0, false}, {tcell.KeyEnter, 0, false}, {tcell.KeyPgDn, 0, false}, {tcell.KeyPgUp, 0, false}, {tcell.KeyUp, 0, false}, {tcell.KeyCtrlL, 0, false},
		{tcell.KeyRune, 'p', false}, {tcell.KeyF1, 0, false}, {tcell.KeyRune, 'q', true}, {tcell.KeyCtrlC, 0, true}, {tcell.KeyEscape, 0, true}} {
		if quits := v.event(screen, tcell.NewEventKey(c.key, c.rune, tcell.ModNone)); quits != c.quits {
			t.Errorf("key %v %q: ends %v", c.key, c.rune, quits)
		}
	}
	v.draw(screen)
	if s := shown(screen); !strings.Contains(s, "PID 4711") || strings.Index(s, "7 ???x") > strings.Index(s, "42 training") {
		t.Errorf("%s", s)
	}
	screen.SetSize(132, 10)
	v.event(screen, tcell.NewEventResize(132, 10))
	v.draw(screen)
	if s := shown(screen); strings.Count(s, "\n") != 10 || !strings.Contains(s, "SLICE") {
		t.Errorf("resized:\n%s", s)
	}
}

func TestTopScreen(t *testing.T) {
	var config configs.Config
	config.Segment.Directory = t.TempDir()
	for _, how := range []string{"q", "context"} {
		screen := simulated(t, "UTF-8")
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if how == "q" {
			screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
		} else {
			stop()
		}
		if err := topScreen(ctx, screen, config, time.Second); err != nil || how == "q" && ctx.Err() != nil {
			t.Errorf("%s: %v, %v", how, err, ctx.Err())
		}
	}
	config.Segment.Group = "no-such-group"
	if err := topScreen(context.Background(), simulated(t, "US-ASCII"), config, time.Second); err == nil || !strings.Contains(err.Error(), "no-such-group") {
		t.Errorf("with a group that there is not: %v", err)
	}
}

// patience is how long what a test waits for may take on a machine that is slow and busy.
const patience = time.Minute

// terminal opens a terminal of 80 columns: the side that a person has, and the path of the other.
func terminal(t *testing.T) (person *os.File, path string) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	raw, err := person.SyscallConn() // Fd would let reads wait for ever
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	var refused error
	err = raw.Control(func(fd uintptr) {
		number, refused = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		refused = errors.Join(refused, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0),
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	})
	if err = errors.Join(err, refused, person.SetReadDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	return person, fmt.Sprintf("/dev/pts/%d", number)
}

// On a terminal top draws until q, and restores the terminal. On one that cannot be drawn on it prints.
func TestTopOnTerminal(t *testing.T) {
	for name, ends := range map[string]func(*os.File, *exec.Cmd) error{
		"xterm-256color": func(person *os.File, _ *exec.Cmd) error { _, err := person.WriteString("q"); return err },
		"dumb":           func(_ *os.File, c *exec.Cmd) error { return c.Process.Signal(unix.SIGTERM) },
	} {
		person, path := terminal(t)
		other, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		before, err := unix.IoctlGetTermios(int(other.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		config := write(t, "gpreempt.toml", "segment.directory = \""+t.TempDir()+"\"\n")
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		c := exec.CommandContext(ctx, built+"/gpreempt", "top", "--config", config)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=" + name, "LANG=C.UTF-8"}
		c.Stdin, c.Stdout, c.Stderr = other, other, other
		c.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		said := ""
		for buffer := make([]byte, 4096); !strings.Contains(said, "No process of this user"); {
			n, err := person.Read(buffer)
			if err != nil {
				t.Fatalf("%s: %v after %q", name, err, said)
			}
			said += string(buffer[:n])
		}
		if draws := strings.Contains(said, "? help"); draws != (name != "dumb") {
			t.Errorf("%s: %q", name, said)
		}
		go func() { // what it says at its end must not wait for a reader
			buffer := make([]byte, 4096)
			for {
				if _, err := person.Read(buffer); err != nil {
					return
				}
			}
		}()
		if err := ends(person, c); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := unix.IoctlGetTermios(int(other.Fd()), unix.TCGETS); err != nil || *after != *before {
			t.Errorf("%s: the terminal is left as %+v, was %+v (%v)", name, after, before, err)
		}
	}
}

// Processes of one GPU that came by files and by the broker do not know of each other: their tables have different headings.
func TestBothWorldsOfAGPU(t *testing.T) {
	s := busy(1)
	s.GPUs[1] = gpuSample{Snapshot: segment.Snapshot{GPU: "GPU-1", Path: "c", Broker: "/run/gpreempt/admin.sock"}}
	var out strings.Builder
	if err := printTable(&out, s); err != nil || !strings.Contains(out.String(), "GPU-1  LC 25 %") || !strings.Contains(out.String(), "GPU-1 (by the broker)  LC 0 %") {
		t.Errorf("%v\n%s", err, out.String())
	}
	s.GPUs[1].Error = "damaged"
	out.Reset()
	if err := printTable(&out, s); err != nil || !strings.Contains(out.String(), "GPU-1 (by the broker)  cannot be read: damaged") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
