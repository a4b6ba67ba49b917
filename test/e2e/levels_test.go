package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A process between two levels has a long timeslice against the lower one, so only suspension gets it off
// the GPU: a request of the highest level would otherwise wait for that timeslice.
func TestLevelsBetweenGiveWay(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[timeslice]\npreempting_us = 1000000\n[hold]\nmax_ms = 1000\n[window]\ngrace_min_us = 100000\ngrace_max_us = 100000\n[share]\nmin_be = 0\n")
	low, middle, high := m.start("be"), m.start("3"), m.start("0")
	low.runBestEffort()
	middle.runBestEffort()
	m.joined(low, middle, high)
	m.until("the level between preempts the lowest", func() bool { return m.peer(middle).TimesliceUs == 1000000 })
	m.until("the lowest yields", func() bool { return m.peer(low).TimesliceUs == 1 })
	m.mostly("no request of level 0 waits for the timeslice of level 3", func() bool { // where the machine is not slow
		var p50, slowest int
		high.ask("lc 6 3 40 300000 stream", "p50_us %d max_us %d", &p50, &slowest) // level 3 has had the GPU again before each
		t.Logf("requests: p50 %d us, max %d us", p50, slowest)
		return slowest < 200_000
	})
	m.until("level 3 is suspended while a window of level 0 is open", func() bool { // for 100 ms after each request
		high.request(1, 3, "stream")
		peer := m.peer(middle)
		return peer.Suspended && m.peer(high).WindowOpen
	})
	m.until("level 3 is back", func() bool { return !m.peer(middle).Suspended })
	n := middle.count()
	m.until("level 3 progresses", func() bool { return middle.count() > n })
}

// BE processes that submit at once, before they know of each other.
func TestBestEffortStartsTogether(t *testing.T) {
	t.Parallel()
	for _, peers := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(peers), func(t *testing.T) {
			m := newMachine(t, "")
			lc := m.start("lc")
			var be []*process
			for range peers {
				p := m.start("be")
				p.say("be")
				be = append(be, p)
			}
			for _, p := range be {
				p.hear()
			}
			m.joined(append(slices.Clone(be), lc)...)
			lc.request(10, 5, "stream")
			for _, p := range be {
				n := p.count()
				m.until("every BE progresses", func() bool { return p.count() > n })
			}
			for _, p := range be {
				p.finish()
			}
		})
	}
}

func TestCooperativeKernels(t *testing.T) {
	t.Parallel()
	const kernels = 20
	m := newMachine(t, "[hold]\nmax_ms = 10000\n[window]\ngrace_min_us = 1000\ngrace_max_us = 1000\n")
	_, lc := m.sharing()
	// Until its first window closes, a hold that gave way does not come back: nobody has waited for the start's memset.
	m.until("the start's window closes", func() bool { return !m.peer(lc).WindowOpen })
	collided := func(how string) uint64 {
		before := m.peer(lc).Counters.HoldsCollided
		var done, beside int
		lc.ask(fmt.Sprintf("cooperative %d %s", kernels, how), "done %d beside holds %d", &done, &beside)
		if done != kernels {
			t.Errorf("%s: %d kernels done", how, done)
		}
		times := m.peer(lc).Counters.HoldsCollided - before
		t.Logf("%s: %d times for %d kernels, %d of which were launched beside a hold", how, times, kernels, beside)
		if uint64(beside) > times+kernels/4 {
			t.Errorf("%s: of %d kernels that were launched beside a hold, %d had it step aside or end", how, beside, times)
		}
		return times
	}
	collided("each") // the first launch of a kernel has no hold

	// Unless the window closes between them, which a slow machine makes it do.
	m.until("the hold steps aside for kernels that are waited for one by one", func() bool {
		n := collided("each")
		if n > kernels {
			t.Errorf("the hold stepped aside %d times for %d kernels that were waited for one by one", n, kernels)
		}
		return n >= kernels/2
	})
	m.until("the hold ends for queued kernels together", func() bool {
		n := collided("queued")
		return n > 0 && n <= kernels/2
	})
	m.until("the window closes", func() bool { return !m.peer(lc).WindowOpen })
	if cut := m.peer(lc).Counters.WindowsCut; cut != 0 {
		t.Errorf("%d holds were cut", cut)
	}
}

func TestUnderMPS(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_MPS=1")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	be.runBestEffort()
	m.until("BE launches wait for a window", func() bool {
		lc.request(2, 3, "stream")
		return m.peer(be).Counters.GateWaits > 0
	})
	for _, p := range []*process{be, lc} {
		peer := m.peer(p)
		if !slices.Contains(peer.Fallbacks, "mps") || peer.Counters.Holds != 0 || peer.Counters.TimesliceSets != 0 {
			t.Errorf("%s: fallbacks %v, %+v", peer.Role, peer.Fallbacks, peer.Counters)
		}
	}
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
}

// Processes on another GPU are no peers.
func TestTwoGPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "SIMCUDA_DEVICES=2")
	on := func(device int, role string) *process {
		m.environment = []string{"SIMCUDA_DEVICES=2", fmt.Sprintf("WORKER_DEVICE=%d", device)}
		return m.start(role)
	}
	be0, lc1 := on(0, "be"), on(1, "lc")
	be0.runBestEffort()
	m.joined(be0, lc1)
	lc1.request(10, 3, "stream")
	if lc, be := m.peer(lc1), m.peer(be0); lc.Counters.Windows != 0 || be.TimesliceUs == 1 {
		t.Errorf("LC on GPU 1 opened %d windows, BE on GPU 0 has a timeslice of %d us", lc.Counters.Windows, be.TimesliceUs)
	}
	be1 := on(1, "be")
	be1.runBestEffort()
	m.until("BE on GPU 1 yields", func() bool { return m.peer(be1).TimesliceUs == 1 })
	m.until("LC preempts", func() bool { return m.peer(lc1).TimesliceUs > 10_000 }) // the fair slice is 2048 us
	lc1.request(10, 3, "stream")
	if lc, be := m.peer(lc1), m.peer(be0); lc.Counters.Windows == 0 || be.TimesliceUs == 1 {
		t.Errorf("LC on GPU 1 opened %d windows, BE on GPU 0 has a timeslice of %d us", lc.Counters.Windows, be.TimesliceUs)
	}
	if n := len(m.peers()); n != 3 {
		t.Errorf("%d peers on two GPUs", n)
	}
}

// Contexts that come and go are not settled, and not taken off the GPU: where turns are taken they have fair timeslices,
// and others can see that.
func TestTimeslicesOfNewContextsAreTold(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	first, second, lc := m.start("be"), m.start("be"), m.start("lc")
	m.joined(first, second, lc)
	m.until("both yield", func() bool { return m.peer(first).TimesliceUs == 1 && m.peer(second).TimesliceUs == 1 })
	const rounds = 50
	m.until("the longest of several timeslices is told", func() (told bool) {
		second.say("contexts %d", rounds)
		for {
			select {
			case line := <-second.lines:
				if want := fmt.Sprintf("done %d", rounds); line != want {
					t.Fatalf("%q, want %q; stderr %q", line, want, second.stderr.String())
				}
				return told
			default:
				told = told || m.peer(second).TimesliceUs == 2048
			}
		}
	})
	m.until("the second yields again", func() bool { return m.peer(second).TimesliceUs == 1 })
	if us := m.peer(first).TimesliceUs; us != 1 {
		t.Errorf("the first has a timeslice of %d us", us)
	}
}

// A stopped peer with work on the GPU is handed no turn: it would not give it back.
func TestStoppedPeerGetsNoTurns(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[turns]\nquantum_ms = 20\n")
	going, stopped := m.start("be"), m.start("be")
	going.runBestEffort()
	stopped.runBestEffort()
	m.joined(going, stopped)
	m.until("both take turns", func() bool {
		return m.peer(going).Counters.Turns > 0 && m.peer(stopped).Counters.Turns > 0
	})
	stopped.stop()
	t.Cleanup(func() { _ = stopped.cmd.Process.Signal(syscall.SIGCONT) })
	m.until("the stopped one counts as such", func() bool { return m.peer(stopped).HeartbeatAgeNs > 4e9 })
	turns := m.peer(stopped).Counters.Turns
	n := going.count()
	m.until("the other one works", func() bool { return going.count() > n+100 })
	if now := m.peer(stopped).Counters.Turns; now != turns {
		t.Errorf("the stopped process was handed %d turns", now-turns)
	}
}

// A process may make a stream for every request: entries for streams that are gone are used again.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "[share]\nmin_be = 0\n") // which would end a window
	be, lc := m.sharing()
	looks := 0
	m.until("somebody looks in time", func() bool {
		const runs = 2 * time.Second
		began := time.Now() // the kernel is launched later
		var running, done int
		for lc.ask(fmt.Sprintf("streams 200 %d", runs.Microseconds()), "running %d", &running); looks < 50; looks++ {
			peer := m.peer(lc)
			if time.Since(began) > runs {
				break // what was launched may be over
			}
			if !peer.WindowOpen {
				t.Fatalf("the window is closed while a kernel runs: %+v", peer.Counters)
			}
		}
		if lc.ask("wait", "done %d", &done); done != 1 || running != 1 && looks > 0 {
			t.Errorf("running %d, done %d", running, done)
		}
		return looks > 0
	})
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
}

// Two contexts of one best-effort process run beside each other, and go on.
func TestContextsOfOneProcessGoOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	be, lc := m.start("be"), m.start("lc")
	m.joined(be, lc)
	m.yields(be)
	var n int
	be.ask("both 40", "both %d", &n) // 80 ms each
	lc.request(5, 3, "stream")
	be.ask("both 40", "both %d", &n)
}
