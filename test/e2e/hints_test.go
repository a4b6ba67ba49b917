package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// hintsOf returns the counters of one source of hints.
func (m *machine) hintsOf(p *process, source string) segment.Hints {
	m.t.Helper()
	for _, h := range m.peer(p).Hints {
		if h.Source == source {
			return h
		}
	}
	return segment.Hints{Source: source}
}

// settled waits until a process has given so many hints of a source, or more, and something has become of each.
func (m *machine) settled(p *process, source string, given uint64) (h segment.Hints) {
	m.t.Helper()
	m.until("every hint has come to something", func() bool {
		h = m.hintsOf(p, source)
		return h.Given >= given && h.Hit+h.Late+h.Wrong+h.Dropped == h.Given
	})
	return h
}

// pair is an LC process beside a busy BE one.
func (m *machine) pair() (lc, be *process) {
	m.t.Helper()
	be, lc = m.sharing()
	lc.request(2, 1, "stream") // the hold is loaded, a request has come
	m.until("the hold is loaded", func() bool { lc.request(1, 2, "stream"); return m.peer(lc).Counters.Holds > 0 })
	return lc, be
}

func (m *machine) runs(be *process) {
	m.t.Helper()
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
}

// With "max_cost = 0.4, linger_us = 20000" a loaded machine that is late by milliseconds does not make hints wrong.
var none = configs.HintsFrom()

// A hint is carried out by the threads of the core, or by the caller where these may come too late.
func TestExplicitHints(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		switches, aheadUs uint32
		atOnce            bool
	}{
		"much later":           {0, 4000, false}, // no switch takes 2 ms, as far as the library is concerned
		"a little later":       {1, 90, false},   // so soon that the caller opens the window, within gp_hint_longest_margin_ns
		"sooner than a switch": {0, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+"max_cost = 0.4\nlinger_us = 20000\n")
			lc, be := m.pair()
			inTime := 0 // holds that other threads armed; on a slow machine callers do so again after some that were late
			m.until("half of the hints are hit", func() bool {
				before, us := m.hintsOf(lc, "explicit"), m.peer(lc).SwitchUs
				var listened, atOnce, late int
				lc.ask(fmt.Sprintf("hinted 30 %d 20000", c.switches*us+c.aheadUs), "listened %d at once %d late %d", &listened, &atOnce, &late)
				h := m.settled(lc, "explicit", before.Given+30)
				t.Logf("%d were listened to, %d carried out at once, %d late, %+v, before %+v; a switch takes %d us", listened, atOnce, late, h, before, us)
				if us > 0 {
					inTime += listened - atOnce - late
				}
				return listened == 30 && h.Given == before.Given+30 && h.Hit >= before.Hit+15 && h.SavedNs > 0 && h.WaitedNs > 0 && !h.Off &&
					us > 0 && (c.atOnce && atOnce >= 15 || !c.atOnce && inTime >= 15)
			})
			m.runs(be)
		})
	}
}

// Under an MPS server a hint opens the window, and best effort stops. There is no hold, equals run beside each other, and only the
// program's own announcements count.
func TestHintsUnderMPS(t *testing.T) {
	t.Parallel()
	settings := configs.HintsFrom(configs.HintExplicit, configs.HintCopy) + "nvtx = [\"request\"]\nmax_cost = 0.4\nlinger_us = 20000\n"
	for name, c := range map[string]struct {
		mechanisms  string
		environment []string
	}{
		"as in auto":     {`["timeslice", "hold", "gate", "blp", "mps"]`, nil},
		"without a hold": {`["gate", "blp", "mps"]`, []string{mpsPipe(t)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newStoppableBy(t, c.mechanisms, settings, c.environment...)
			be, lc, equal := m.startChains("be"), m.start("lc"), m.start("lc")
			m.joined(be, lc)
			m.joined(be, equal)
			lc.request(2, 1, "stream")
			equal.request(2, 1, "stream")
			done := make(chan struct{})
			ended := repeat(done, func() bool { return be.answers("single 40") })
			m.until("hints stop best effort", func() bool {
				var listened, atOnce, late int
				before := m.hintsOf(lc, "explicit")
				lc.ask("hinted 30 300 20000", "listened %d at once %d late %d", &listened, &atOnce, &late)
				h := m.settled(lc, "explicit", before.Given+30)
				return listened == 30 && atOnce == 0 && late == 0 && h.Hit >= before.Hit+15
			})
			stops := m.stops(be)
			m.until("a hint stops best effort before work comes", func() bool {
				var listened int
				before := m.hintsOf(lc, "explicit")
				lc.ask("hints 1 0 wrong", "listened %d", &listened)
				m.settled(lc, "explicit", before.Given+1)
				return m.stops(be) > stops
			})
			m.until("hints are carried out beside an equal's window", func() bool {
				var listened, atOnce, late int
				over, before := make(chan struct{}), m.hintsOf(lc, "explicit")
				go func() { defer close(over); equal.answers("lc 1 150 4000 1 stream") }()
				m.until("the equal's window is open, or its request over", func() bool {
					select {
					case <-over:
						return true
					default:
						return m.peer(equal).WindowOpen
					}
				})
				lc.ask("hinted 10 300 10000", "listened %d at once %d late %d", &listened, &atOnce, &late)
				beside := m.peer(equal).WindowOpen
				h := m.settled(lc, "explicit", before.Given+10)
				<-over
				return beside && h.Hit >= before.Hit+8
			})
			m.until("ranges are met by hints", func() bool {
				var loaded int
				lc.ask("ranges 10 request 0", "loaded %d", &loaded)
				return m.hintsOf(lc, "nvtx").Hit >= 5
			})
			var copied int
			lc.ask("copy 3 0 1", "copied %d", &copied)
			if copies := m.hintsOf(lc, "copy"); copies.Given != 0 || copied != 3 {
				t.Errorf("%d copies are hints: %+v", copied, copies)
			}
			if holds := m.peer(lc).Counters.Holds; holds != 0 {
				t.Errorf("%d holds", holds)
			}
			close(done)
			<-ended
		})
	}
}

// hints.log gets a line for each request.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "requests")
	m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+
		fmt.Sprintf("max_cost = 0.4\nlinger_us = 20000\nlog = %q\n", log))
	lc, _ := m.pair()
	var listened int
	lc.ask("hints 1 0 doubtful", "listened %d", &listened)
	m.until("it is dropped", func() bool { return m.hintsOf(lc, "explicit").Dropped == 1 })
	lc.request(1, 1, "stream")
	m.until("a request has a hold", func() bool {
		lc.ask("hinted 10 1000 20000", "listened %d", &listened)
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), `"ready":true`)
	})
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	doubtful := 0
	for line := range strings.Lines(string(text)) {
		var r struct {
			AtNs    uint64 `json:"at_ns"`
			HeldUs  uint64 `json:"held_us"`
			Ready   bool
			Dropped string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.AtNs == 0 || r.Ready && r.HeldUs == 0 {
			t.Errorf("%q: %v", line, err)
		}
		if r.Dropped == "doubtful" {
			doubtful++
		}
	}
	if doubtful != 1 {
		t.Errorf("%d requests follow a doubtful hint in\n%s", doubtful, text)
	}
}

// Hints that nothing follows end after a bounded wait, and a source that gives only such is switched off.
func TestWrongHints(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[hold]\nmax_ms = 10000\n") // no window is cut because the machine is slow
	lc, be := m.pair()
	var listened int
	lc.ask("hints 100 10000 wrong", "listened %d", &listened)
	h, peer := m.settled(lc, "explicit", 100), m.peer(lc)
	if h.Wrong == 0 || h.Hit != 0 || h.TimesOff == 0 || h.Wrong > 15 {
		t.Errorf("%+v", h)
	}
	if peer.Counters.WindowsCut != 0 {
		t.Errorf("%d windows were cut", peer.Counters.WindowsCut)
	}
	if peer.WindowOpen && m.peer(lc).WindowOpen {
		m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
	}
	m.runs(be)
	m.until("the source gets another chance", func() bool { return !m.hintsOf(lc, "explicit").Off })
	lc.says("explicit", 1)
	if _, stderr := lc.finish(); strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "explicit") {
		t.Errorf("stderr %q, must be one line on the source", stderr)
	}
}

// A wrong hint costs the time until its work was to come, with a switch ahead, and hints.linger_us. Its window closes then.
func TestWrongHintsEndInTime(t *testing.T) {
	t.Parallel()
	const wait, preparation = 20 * time.Millisecond, 6 * time.Millisecond // a switch and the 300 us that hints come ahead take less
	m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+fmt.Sprintf("max_cost = 0.4\nlinger_us = %d\n[hold]\nmax_ms = 10000\nstep_us = 50000\n", wait.Microseconds()))
	lc, be := m.pair()
	m.mostly("a window of a wrong hint is as long as it has to be", func() bool { // where the machine is not slow
		m.until("the window closes, and the source is on", func() bool { return !m.peer(lc).WindowOpen && !m.hintsOf(lc, "explicit").Off })
		hints, before := m.hintsOf(lc, "explicit"), m.peer(lc).Counters
		var listened int
		lc.ask("hints 1 0 wrong", "listened %d", &listened)
		h := m.settled(lc, "explicit", hints.Given+1)
		m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
		after := m.peer(lc).Counters
		waited, open := time.Duration(h.WaitedNs-hints.WaitedNs), time.Duration(after.WindowNs-before.WindowNs)
		cut := after.WindowsCut - before.WindowsCut
		t.Logf("%d wrong, the GPU was kept for %v, windows were open for %v, %d were cut", h.Wrong-hints.Wrong, waited, open, cut)
		return cut == 0 && h.Wrong == hints.Wrong+1 && waited >= wait && waited <= wait+preparation && open <= wait+preparation
	})
	m.runs(be)
}

// The library waits for work that follows its range at any time within 80 ms. But one wrong hint may cost at most an eighth of what all
// hints may cost in a second.
func TestLateWorkIsNotWaitedForAtAnyCost(t *testing.T) {
	t.Parallel()
	const most = 12500 * time.Microsecond // by max_cost
	m := newMachine(t, none+"nvtx = [\"request\"]\nmax_cost = 0.1\n")
	lc, _ := m.pair()
	var loaded int
	for round := 0; m.hintsOf(lc, "nvtx").Hit < 2; round++ {
		if lc.ask("late 8 1000000 80000", "loaded %d", &loaded); loaded != 1 || round == 8 {
			t.Fatalf("loaded %d, %+v", loaded, m.hintsOf(lc, "nvtx"))
		}
	}
	m.mostly("a wrong hint ends in time", func() bool { // where the machine is not slow
		before := m.hintsOf(lc, "nvtx")
		h := before
		m.until("a hint is carried out and wrong", func() bool {
			m.until("the source is on", func() bool { return !m.hintsOf(lc, "nvtx").Off })
			given := m.hintsOf(lc, "nvtx").Given
			lc.ask("late 1 1000000 0", "loaded %d", &loaded)
			h = m.settled(lc, "nvtx", given+1)
			return h.Wrong > before.Wrong
		})
		each := time.Duration((h.WaitedNs - before.WaitedNs) / (h.Wrong - before.Wrong))
		t.Logf("%+v, each wrong one kept the GPU for %v", h, each)
		return each <= most+6*time.Millisecond
	})
}

func TestSenselessHints(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	lc, be := m.pair()
	before := m.peer(lc).Counters.Windows
	var listened int
	if lc.ask("hints 1000 0 nonsense", "listened %d", &listened); listened != 0 {
		t.Errorf("%d senseless hints were listened to", listened)
	}
	lc.ask("hints 1000 0 far", "listened %d", &listened)
	lc.ask("hints 1000 0 doubtful", "listened %d", &listened)
	m.until("they are dropped", func() bool { return m.hintsOf(lc, "explicit").Dropped == 2000 })
	if after := m.peer(lc).Counters.Windows; after != before {
		t.Errorf("%d windows were opened", after-before)
	}
	lc.ask("hints 20000 0 wrong", "listened %d", &listened) // as fast as it can: duplicates
	if h := m.settled(lc, "explicit", 22000); h.Wrong > 20 {
		t.Errorf("%+v", h)
	}
	lc.request(3, 3, "stream")
	m.runs(be)
}

// Several hints of one request are carried out once.
func TestDuplicateHints(t *testing.T) {
	t.Parallel()
	m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+"max_cost = 0.4\nlinger_us = 20000\n")
	lc, be := m.pair()
	m.until("one of five is carried out", func() bool { // if all are given before that has ended
		m.until("the source is on", func() bool { return !m.hintsOf(lc, "explicit").Off })
		before := m.hintsOf(lc, "explicit")
		var listened int
		lc.ask("hints 5 0 wrong", "listened %d", &listened)
		h := m.settled(lc, "explicit", before.Given+5)
		t.Logf("%+v, before %+v", h, before)
		// Where TimesOff grew, hints were dropped since the source was off.
		return h.Wrong == before.Wrong+1 && h.Dropped == before.Dropped+4 && h.TimesOff == before.TimesOff
	})
	m.runs(be)
}

// A hint for a time after its work comes is late: the work is not hindered.
func TestLateHints(t *testing.T) {
	t.Parallel()
	m := newMachine(t, configs.HintsFrom(configs.HintExplicit)+"max_cost = 0.4\n")
	lc, _ := m.pair()
	m.mostly("work comes before it was announced for", func() bool { // where the machine is not slow
		m.until("the source is on", func() bool { return !m.hintsOf(lc, "explicit").Off })
		before := m.hintsOf(lc, "explicit")
		var listened, requests int
		for range 10 {
			lc.ask("hints 1 0 later", "listened %d", &listened)
			lc.ask("periodic 1 15000", "requests %d", &requests)
		}
		h := m.settled(lc, "explicit", before.Given+10)
		t.Logf("%+v, before %+v", h, before)
		return h.Late >= before.Late+5 && h.Wrong <= before.Wrong+2
	})
}

func TestHintsAreOffWhereConfigured(t *testing.T) {
	t.Parallel()
	m := newMachine(t, none)
	lc, _ := m.pair()
	var listened int
	if lc.ask("hinted 5 1000 1000", "listened %d", &listened); listened != 0 {
		t.Errorf("%d hints were listened to", listened)
	}
	if h := m.peer(lc).Hints; len(h) != 0 {
		t.Errorf("%+v", h)
	}
}

func TestHintsWithoutAnybodyToPreempt(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	lc := m.start("lc")
	m.joined(lc)
	var listened int
	lc.ask("hinted 5 1000 1000", "listened %d", &listened)
	m.until("they are dropped", func() bool { return m.hintsOf(lc, "explicit").Dropped == 5 })
	if c := m.peer(lc).Counters; c.Holds != 0 {
		t.Errorf("%+v", c)
	}
}

func TestCopiesAnnounceKernels(t *testing.T) {
	t.Parallel()
	m := newMachine(t, configs.HintsFrom(configs.HintCopy))
	lc, be := m.pair()
	var copied int
	m.mostly("half of the requests are met by hints", func() bool { // where the machine is not slow
		before := m.hintsOf(lc, "copy")
		lc.ask("copy 10 0 1", "copied %d", &copied)
		h := m.hintsOf(lc, "copy")
		t.Logf("%+v, before %+v", h, before)
		if h.Hit+h.Wrong > h.Given {
			t.Errorf("%+v", h)
		}
		return h.Hit >= before.Hit+5 && h.SavedNs > 0
	})
	lc.ask("copy 40 20000 0", "copied %d", &copied)
	m.until("copies that nothing follows switch the source off", func() bool { return m.hintsOf(lc, "copy").TimesOff > 0 })
	m.runs(be)
}

func TestPinnedMemoryAnnouncesCopies(t *testing.T) {
	t.Parallel()
	m := newMachine(t, configs.HintsFrom(configs.HintCopy)+"max_cost = 0.4\nlinger_us = 20000\n")
	lc, be := m.pair()
	m.until("requests are met by hints", func() bool { // where the machine is not slow
		before := m.hintsOf(lc, "copy")
		var pinned int
		lc.ask("pin 20", "pinned %d", &pinned)
		h := m.hintsOf(lc, "copy")
		t.Logf("%+v, before %+v", h, before)
		return h.Hit >= before.Hit+5
	})
	m.runs(be)
}

// A request every 20 ms: the period is learnt and requests are met by a hint, well within half a period. How many depends on how
// exactly this machine keeps time.
func TestPeriodicArrivals(t *testing.T) {
	t.Parallel()
	m := newMachine(t, configs.HintsFrom(configs.HintArrival)+"max_cost = 0.4\nlinger_us = 20000\n")
	lc, be := m.pair()
	var requests int
	var hits, waited uint64
	m.until("requests are met by hints", func() bool {
		before := m.hintsOf(lc, "arrival")
		lc.ask("periodic 40 20000", "requests %d", &requests)
		h := m.hintsOf(lc, "arrival")
		if h.Wrong == before.Wrong { // else they have waited too
			hits, waited = hits+h.Hit-before.Hit, waited+h.WaitedNs-before.WaitedNs
		}
		t.Logf("%d hints have waited for %v: %+v", hits, time.Duration(waited), h)
		return hits >= 10 && waited < hits*uint64(8*time.Millisecond)
	})
	if m.peer(lc).HintSpunNs == 0 {
		t.Error("nobody spun, or it was not counted")
	}
	m.runs(be)
}

// client makes requests over one connection, each some time after the answer to the one before.
func client(t *testing.T, port string) (request func(path string)) {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	c := http.Client{Transport: transport, Timeout: patience}
	return func(path string) {
		t.Helper()
		answer, err := c.Get("http://127.0.0.1:" + port + path)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" {
			t.Fatalf("%s: %q, %v", path, body, err)
		}
		answer.Body.Close()
		time.Sleep(20 * time.Millisecond) // the pace of requests, not a wait for anything
	}
}

// serve starts a server, whose sockets are the only source of hints, beside BE work. It answers at the port.
func serve(t *testing.T, way string) (m *machine, be, lc *process, port string) {
	t.Helper()
	m = newMachine(t, configs.HintsFrom(configs.HintSocket)+"max_cost = 0.4\nlinger_us = 20000\n")
	be = m.start("be")
	be.runBestEffort()
	lc = m.startAs(m.command("lc", "python3", "testdata/server.py", way))
	m.joined(be, lc)
	return m, be, lc, lc.hear()
}

// The library learns how long before its kernel a request's data comes. Data on a connection that no kernels follow is
// not taken for requests.
func TestSocketsAnnounceRequests(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"threads", "asyncio"} {
		t.Run(way, func(t *testing.T) {
			m, be, lc, port := serve(t, way)
			infer := client(t, port)
			m.until("requests are met by hints", func() bool {
				infer("/infer")
				return m.hintsOf(lc, "socket").Hit >= 10
			})
			m.mostly("many of the requests are met by hints", func() bool { // where the machine is not slow
				before := m.hintsOf(lc, "socket")
				for range 40 {
					infer("/infer")
				}
				h := m.hintsOf(lc, "socket")
				t.Logf("40 requests: %+v, before %+v", h, before)
				return h.Hit >= before.Hit+15 && h.SavedNs > 0
			})
			m.runs(be)
		})
	}
}

// Knowledge of a port holds for every connection to it, also where the client's port is the lower one.
func TestRequestsOfNewConnections(t *testing.T) {
	t.Parallel()
	m, _, lc, port := serve(t, "threads")
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	infer := func() {
		t.Helper()
		for number--; number > 1024; number-- {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: number}, Timeout: patience}
			connection, err := dialer.Dial("tcp", "127.0.0.1:"+port)
			if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(connection, "GET /infer HTTP/1.0\r\n\r\n")
			answer, err := io.ReadAll(connection)
			connection.Close()
			if err != nil || !strings.HasSuffix(string(answer), "done") {
				t.Fatalf("%q, %v", answer, err)
			}
			return
		}
		t.Fatal("no port is free")
	}
	m.until("the port is known", func() bool {
		infer()
		return m.hintsOf(lc, "socket").Given > 0
	})
	m.until("most requests give hints", func() bool {
		before := m.hintsOf(lc, "socket")
		for range 20 {
			infer()
		}
		return m.hintsOf(lc, "socket").Given >= before.Given+15
	})
}

func TestSocketsThatNoWorkFollows(t *testing.T) {
	t.Parallel()
	m, _, lc, port := serve(t, "threads")
	infer, metrics := client(t, port), client(t, port)
	m.until("requests are met by hints", func() bool {
		infer("/infer")
		return m.hintsOf(lc, "socket").Hit >= 10
	})
	m.until("nobody expects work of the other connection", func() bool {
		infer("/infer")
		before := m.hintsOf(lc, "socket").Given
		for range 5 {
			metrics("/metrics")
		}
		return m.hintsOf(lc, "socket").Given == before
	})
	m.until("a request on the first connection is met, among many on the other", func() bool {
		for range 5 {
			metrics("/metrics")
		}
		before := m.hintsOf(lc, "socket")
		infer("/infer")
		return m.hintsOf(lc, "socket").Hit > before.Hit
	})
}

// A program annotated with NVTX needs no new code.
func TestRangesAnnounceRequests(t *testing.T) {
	t.Parallel()
	for inDomain := range 2 {
		m := newMachine(t, none+"nvtx = [\"other\", \"request\"]\nmax_cost = 0.4\nlinger_us = 20000\n")
		lc, be := m.pair()
		var loaded int
		if lc.ask(fmt.Sprintf("ranges 5 unknown %d", inDomain), "loaded %d", &loaded); loaded != 1 {
			t.Fatal("the library is not the program's NVTX tool")
		}
		if h := m.hintsOf(lc, "nvtx"); h.Given != 0 {
			t.Errorf("a range of another name: %+v", h)
		}
		m.until("requests are met by hints", func() bool {
			lc.ask(fmt.Sprintf("ranges 10 request %d", inDomain), "loaded %d", &loaded)
			return m.hintsOf(lc, "nvtx").Hit >= 15
		})
		m.runs(be)
	}
}

// A range that begins long before its work is not switched off before the delay is learnt.
func TestRangesAreLearntFirst(t *testing.T) {
	t.Parallel()
	m := newMachine(t, none+"nvtx = [\"request\"]\nmax_cost = 0.4\nlinger_us = 1\n")
	lc, _ := m.pair()
	var loaded int
	lc.ask("ranges 8 request 0", "loaded %d", &loaded)
	if h := m.settled(lc, "nvtx", 1); h.Given != 3 || h.TimesOff != 0 {
		t.Errorf("%+v, must be 3 given", h)
	}
}

func TestNobodyReplacesAnotherNVTXTool(t *testing.T) {
	t.Parallel()
	m := newMachine(t, none+"nvtx = [\"request\"]\n", "NVTX_INJECTION64_PATH=/nowhere/tool.so")
	lc, _ := m.pair()
	var loaded int
	if lc.ask("ranges 1 request 0", "loaded %d", &loaded); loaded != 0 {
		t.Error("another tool was replaced")
	}
}

// NVTX asks no more of a tool that wants no ranges.
func TestNVTXIsLeftAlone(t *testing.T) {
	t.Parallel()
	const code = `
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
asked = 0
def table(which):
    global asked
    asked += 1
    return None
library = ctypes.CDLL(None)
function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(table)
def ask(): return library.InitializeInjectionNvtx2(function), asked
before = ask()
assert cuda.cuInit(0) == 0
print(before, ask())
`
	const names, never = "nvtx = [\"request\"]\n", "(0, 0) (0, 0)\n"
	for _, c := range []struct{ role, settings, want string }{
		{"", names, never}, {"off", names, never}, {"be", names, never}, {"7", names, never},
		{"lc", names, "(0, 1) (0, 2)\n"}, {"6", names, "(0, 1) (0, 2)\n"},
		{"lc", "", "(0, 1) (0, 1)\n"},
	} {
		m := newMachine(t, "[hints]\n"+c.settings)
		got, err := run(m.command(c.role, "python3", "-c", code))
		if err != nil || got != (result{c.want, "", 0}) {
			t.Errorf("role %q, %s: %+v, %v; want %q", c.role, c.settings, got, err, c.want)
		}
	}
}

// The Python module finds the library of its process, and does nothing without.
func TestPythonModule(t *testing.T) {
	t.Parallel()
	const script = `
import asyncio, ctypes, sys
import gpreempt
@gpreempt.request(100)
def plain(x): return x + 1
@gpreempt.request(delay_us=100, confidence=0.9)
async def coroutine(x): return x + 2
with gpreempt.request(200): print(plain(1), asyncio.run(coroutine(1)))
for wrong in [(-1, 1), (float("nan"), 1), (0, 2), (0, float("nan"))]:
    try: print("taken", gpreempt.hint(*wrong))
    except ValueError: pass
print(gpreempt.hint(300))
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print(gpreempt.hint(300, 0.5), gpreempt.hint(float("inf")), flush=True)
sys.stdin.read()
`
	for _, c := range []struct{ role, want string }{{"", "False False"}, {"be", "False False"}, {"lc", "True True"}} {
		m := newMachine(t, "", "PYTHONPATH="+filepath.Join(root, "api", "python"), "PYTHONDONTWRITEBYTECODE=1")
		p := m.startAs(m.command(c.role, "python3", "-c", script))
		if got := p.hear() + "," + p.hear() + "," + p.hear(); got != "2 3,False,"+c.want {
			t.Errorf("role %q: %q", c.role, got)
		}
		p.finish()
	}
}
