package broker

import (
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/member"
)

// The counters of a member stay readable for a while after its end, for its user and root, however it ended.
func TestEndedMembersAreKept(t *testing.T) {
	b := start(t, "")
	b.uid.Store(5)
	s, slot := b.member(7)
	own := s.Slot(slot)
	own.Windows.Store(7)
	own.Turns.Store(8)
	own.Times.Switches.SumNs.Store(9) // the second page
	s.Release()
	eventually(t, "it has left", func() bool { return b.clients() == 0 })
	directory := b.withoutAdmin()
	ended := func() (n int) {
		t.Helper()
		all, err := member.Snapshots(directory)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if len(s.Peers) != 0 {
				t.Errorf("%+v", s.Peers)
			}
			for _, p := range s.Gone {
				n++
				if p.Alive || p.Counters.Windows != 7 || p.Counters.Turns != 8 || p.Times.Switches.SumNs != 9 || p.Cgroup != "/test" || p.Client == 0 || p.StartedNs == 0 {
					t.Errorf("%+v", p)
				}
			}
		}
		return n
	}
	if n := ended(); n != 1 {
		t.Errorf("%d ended members are kept", n)
	}
	b.uid.Store(6)
	if n := ended(); n != 0 {
		t.Errorf("another user sees %d", n)
	}
	b.uid.Store(0)
	if n := ended(); n != 0 {
		t.Errorf("root sees %d by a socket for programs", n)
	}
	directory = b.directory
	if n := ended(); n != 1 {
		t.Errorf("the administrator sees %d", n)
	}
	b.do(func(s *Server) { s.expireEnded(time.Now().Add(keepEnded - time.Second)) })
	if n := ended(); n != 1 {
		t.Errorf("%d are kept for as long as they should", n)
	}
	b.do(func(s *Server) { s.expireEnded(time.Now().Add(keepEnded)) })
	if n := ended(); n != 0 {
		t.Errorf("%d are kept for too long", n)
	}
}

// However many end, no more are kept than may be: the last ones. Of who never was a member nothing is.
func TestNotTooManyAreKept(t *testing.T) {
	b := start(t, "[quota]\nmembers_per_uid = 64\nmembers_per_cgroup = 64\n")
	var last uint64
	for range mostEnded/32 + 2 {
		for range 32 {
			p := b.join(1, 7)
			last = p.Welcome.ID
			p.Leave()
		}
		eventually(t, "they have left", func() bool { return b.clients() == 0 })
	}
	b.do(func(s *Server) {
		if len(s.ended) != mostEnded || s.ended[mostEnded-1].id != last {
			t.Errorf("%d are kept", len(s.ended))
		}
	})
	n := 0
	if err := join.List(join.SocketIn(b.directory, 0), func(e *wire.Entry, pages []int) error { n += int(e.Ended); return nil }); err != nil || n != mostEnded {
		t.Errorf("%d are told of: %v", n, err)
	}
}
