package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/page"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// liar is a best-effort member of a broker, with its view of the other members.
type liar struct {
	*join.Client
	common page.Mapping
	pages  map[uint8]page.Mapping
}

func (m *machine) startLiar() *liar {
	m.t.Helper()
	all := m.snapshots()
	if len(all) != 1 {
		m.t.Fatalf("%d GPUs: %+v", len(all), all)
	}
	gpu, err := segment.ParseGPU(all[0].GPU)
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := join.Join(join.SocketIn(m.broker, 0), join.Options{Layout: segment.Version, GPU: gpu, Wanted: configs.Levels - 1, Name: "liar", Within: time.Minute})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(c.Leave)
	l := &liar{Client: c, pages: map[uint8]page.Mapping{}}
	for ready := false; !ready; {
		e, err := c.Next(time.Minute)
		if err != nil {
			m.t.Fatal(err)
		}
		var view page.Mapping
		if e.FD >= 0 {
			view, err = page.Map(e.FD, false)
			unix.Close(e.FD)
			if err != nil {
				m.t.Fatal(err)
			}
			m.t.Cleanup(view.Unmap)
		}
		switch told := e.Message.(type) {
		case *wire.Common:
			l.common = view
		case *wire.Peer:
			l.pages[told.Slot] = view
		case *wire.Ready:
			ready = true
		}
	}
	return l
}

// handOn gives a turn away that it was given.
func (l *liar) handOn() error {
	turn := l.common.Common().Turn.Load()
	if owner, owned := segment.TurnOwner(turn); !owned || owner != int(l.Welcome.Slot) {
		return nil
	}
	return l.Turn(wire.TurnRun, wire.TurnPass, wire.Slots, turn)
}

// honest makes the page look like one of a process that takes turns and has no work.
func (l *liar) honest() {
	clear(l.State.Bytes())
	s := l.State.State()
	s.StartedNs.Store(segment.Now())
	s.HeartbeatNs.Store(segment.Now())
	s.Mechanisms.Store(uint32(configs.Turns))
	s.Job.Store(5)
}

// A best-effort member of a broker changes one word of its page all the time, and rings. The reactions of others to that are bounded. A
// latency-critical process changes no timeslice, and looks only so often. A best-effort one sets its timeslice now and then, to one for
// which no process waits longer than for a switch.
func TestMembersThatLie(t *testing.T) {
	t.Parallel()
	const (
		each      = 400 * time.Millisecond
		looks     = 200 // a second, because of the bell of one member, of whom there are two
		looksOnce = 64
		turns     = 200 // a second that change: the broker rings then
		ownLooks  = 20  // a second, without it
		sets      = 2   // a second
		mostUs    = 50  // the timeslice
	)
	m := newMachine(t, "")
	if m.broker == "" {
		m.configure(fmt.Sprintf("[segment]\ndirectory = %q\nbroker = %q\n", m.dir, m.startBroker()))
	}
	be, lc := m.sharing()
	l := m.startLiar()
	l.honest()
	state, line := l.State.State(), l.State.Line(int(l.Welcome.Slot))
	lcPage, seesLC := l.pages[uint8(m.peer(lc).Slot)]
	bePage, seesBE := l.pages[uint8(m.peer(be).Slot)]
	if !seesLC || !seesBE {
		t.Fatal("it does not see the others")
	}
	m.until("BE takes turns with it, and its context has settled", func() bool { p := m.peer(be); return p.Turn && p.TimesliceUs == 1 })
	random := rand.New(rand.NewPCG(5, 6))
	for name, lie := range map[string]func(){
		"mechanisms": func() { state.Mechanisms.Store(random.Uint32()) },
		"heartbeat":  func() { state.HeartbeatNs.Store(random.Uint64N(2 * segment.Now())) },
		"busy":       func() { line.Busy.Store(random.Uint32N(2)) },
		"turns": func() {
			line.Busy.Store(1)
			state.Mechanisms.Store(random.Uint32N(2) * uint32(configs.Turns))
		},
		"order": func() { state.Job.Store(random.Uint64()); state.StartedNs.Store(random.Uint64()) },
		"memory": func() {
			state.Mechanisms.Store(uint32(configs.Turns | configs.Swap))
			state.Memory.Claimed.Store(random.Uint64())
			state.Memory.Wanted.Store(random.Uint64())
			state.Memory.Resident.Store(random.Uint64())
			state.Memory.WantedSinceNs.Store(segment.Now() * uint64(random.Uint32N(2)))
		},
		"what equals do not read": func() {
			state.Fallbacks.Store(random.Uint32())
			line.WindowOpenedNs.Store(segment.Now() * uint64(random.Uint32N(2)))
			state.TimesliceUs.Store(random.Uint32())
			state.RanNs.Store(random.Uint64())
			line.Rings.Gate.Add(1)
			line.Rings.Windows.Add(1)
		},
		"all": func() {
			for bytes, n := l.State.Bytes(), 0; n < 64; n++ {
				bytes[random.IntN(len(bytes))] = byte(random.Uint32())
			}
			line.Busy.Store(1)
		},
	} {
		l.honest()
		beforeBE, beforeLC := m.peer(be).Counters, m.peer(lc).Counters
		seen, beats, longest := uint64(0), 0, uint32(0)
		began := time.Now()
		for time.Since(began) < each {
			state.HeartbeatNs.Store(segment.Now())
			lie()
			page.Ring(&line.Rings.Bell)
			if err := l.handOn(); err != nil {
				t.Fatal(err)
			}
			if beat := lcPage.State().HeartbeatNs.Load(); beat != seen {
				seen, beats = beat, beats+1
			}
			time.Sleep(20 * time.Microsecond)
			longest = max(longest, bePage.State().TimesliceUs.Load())
		}
		took := time.Since(began).Seconds()
		nowBE, nowLC := m.peer(be).Counters, m.peer(lc).Counters
		if most := int(took*(2*(looks+turns)+ownLooks)) + 2*looksOnce; beats > most {
			t.Errorf("%s: LC looked %d times in %.2f s, want at most %d", name, beats, took, most)
		}
		if n := nowLC.TimesliceSets - beforeLC.TimesliceSets; n != 0 {
			t.Errorf("%s: LC set its timeslice %d times", name, n)
		}
		if n, most := nowBE.TimesliceSets-beforeBE.TimesliceSets, uint64(took*sets)+4; n > most {
			t.Errorf("%s: BE set its timeslice %d times in %.2f s, want at most %d", name, n, took, most)
		}
		if longest > mostUs {
			t.Errorf("%s: BE had a timeslice of %d us", name, longest)
		}
	}
	l.honest()
	m.until("BE yields with the shortest timeslice", func() bool { return m.peer(be).TimesliceUs == 1 })
	n := be.count()
	m.until("BE goes on", func() bool { return be.count() > n })
	if _, hash := lc.request(10, 5, "stream"); hash != sums(55) {
		t.Errorf("hash %d of LC, must be %d", hash, sums(55))
	}
}
