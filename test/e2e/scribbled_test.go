package e2e

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A process of the same user writes anything over the memory that processes of a GPU share, beside ones that run. That costs them
// preemption, and no result; nobody ends or hangs. Soon after its end they see each other again, whatever it wrote last: two best-effort
// processes that do not would stop each other dead with their short timeslices.
func TestScribbledSegment(t *testing.T) {
	isOfFiles(t)
	t.Parallel()
	for _, mechanisms := range []string{`"auto"`, `["timeslice", "gate"]`, `["blp"]`} {
		t.Run(mechanisms, func(t *testing.T) {
			m := newMachine(t, "", "SIMCUDA_MPS="+map[bool]string{true: "1", false: "0"}[mechanisms == `["blp"]`])
			m.configure(fmt.Sprintf("mechanisms = %s\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", mechanisms, m.dir, m.dir))
			plain := m.startChains("")
			want := plain.chains("several", 20)
			plain.finish()
			be, lc := m.startChains("be"), m.start("lc")
			all := []*process{be, lc, m.start("be")}
			all[2].runBestEffort()
			m.joined(all...)
			shared := m.mapSegment()
			const page = 4096 // one for all, two for each slot
			memory := unsafe.Slice((*uint32)(shared.Pointer()), (1+2*segment.Slots)*page/4)
			batches := uint32(0)
			round := func(what string) {
				batches++
				if _, hash := lc.request(5, 3, "stream"); hash != sums(batches*15) {
					t.Fatalf("%s: hash %d of LC, must be %d", what, hash, sums(batches*15))
				}
				if got := be.chains("several", 20); got != want {
					t.Fatalf("%s: hash %d of BE, undisturbed %d", what, got, want)
				}
			}
			round("before")
			done := make(chan struct{})
			random, written := rand.New(rand.NewPCG(3, 4)), 0
			ended := repeat(done, func() bool {
				for range 64 {
					word := &memory[random.IntN(len(memory))]
					switch random.IntN(3) {
					case 0:
						atomic.StoreUint32(word, random.Uint32())
					case 1:
						atomic.StoreUint32(word, 0)
					default: // a number that may mean something
						atomic.StoreUint32(word, random.Uint32N(64))
					}
				}
				written += 64
				time.Sleep(200 * time.Microsecond) // others have the processor, too
				return true
			})
			end := sync.OnceFunc(func() { close(done); <-ended })
			t.Cleanup(end) // before the segment is no longer mapped, also where a round fails
			for range 8 {
				round("meanwhile")
			}
			end()
			t.Logf("%d words were written", written)
			shared.Magic = 0
			shared.TurnSinceNs.Store(math.MaxUint64)
			for i := range segment.Slots {
				shared.Level[i].Store(segment.Levels)
				shared.Slot(i).Memory.Pinned.Store(math.MaxUint64)
				shared.Line(i).Busy.Store(0)
				shared.Line(i).WindowOpenedNs.Store(1)
			}
			m.until("all see each other again", func() bool {
				now := m.peers()
				return len(now) == len(all) && !slices.ContainsFunc(now, func(p segment.Peer) bool {
					return p.Role != map[bool]string{true: "lc", false: "be"}[int(p.Pid) == lc.pid()] || p.WindowOpen ||
						int(p.Pid) == all[2].pid() && p.Counted && !p.Busy || slices.ContainsFunc(p.Fallbacks, func(f string) bool { return strings.HasPrefix(f, "bit_") })
				})
			})
			n := all[2].count()
			m.until("the other BE goes on", func() bool { return all[2].count() > n })
			round("after")
			for _, p := range all {
				p.finish()
			}
		})
	}
}

// mapSegment is the only segment, as a member of the same user has it.
func (m *machine) mapSegment() *segment.Segment {
	m.t.Helper()
	all := m.snapshots()
	if len(all) != 1 {
		m.t.Fatalf("%d segments", len(all))
	}
	gpu, err := segment.ParseGPU(all[0].GPU)
	s, opened := segment.Open(m.segments(), gpu, -1)
	if err = errors.Join(err, opened); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = s.Close() })
	return s
}
