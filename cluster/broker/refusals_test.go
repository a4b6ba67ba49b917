package broker

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

const refusing = "[[rule]]\nname = 'gone'\nwhen = 'wanted == 3'\nadmit = false\nrefused = 'off'\n[[rule]]\nname = 'lowered'\nwhen = 'wanted == 4'\nadmit = false\n"

// refusals are those that a broker shows, as "NAME GPU RULE REASON".
func (b *bench) refusals() (all []string) {
	b.t.Helper()
	if err := join.List(b.askedBy(b.uid.Load()), func(e *wire.Entry, pages []int) error {
		if e.Refused != 0 {
			all = append(all, fmt.Sprintf("%s %d %s %d", wire.GetText(e.Name[:]), e.GPU[0], wire.GetText(e.Rule[:]), e.Refused))
			if len(pages) != 0 || e.Member != 0 || e.UID != b.uid.Load() && b.uid.Load() != admin {
				b.t.Errorf("%+v, %d pages", e, len(pages))
			}
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return all
}

// self makes all clients be this process.
func self(s *Server) {
	identify := s.identify
	s.identify = func(fd int, accepted uint64) (identity, error) {
		who, err := identify(fd, accepted)
		who.pid, who.started = int32(os.Getpid()), startOf(int32(os.Getpid()))
		return who, err
	}
}

// A process that the policy refuses learns whether it has a role. The broker shows it to its user and to root for as long as it lives, or
// until the policy takes it.
func TestRefusalsAreShown(t *testing.T) {
	b := start(t, refusing, self)
	b.uid.Store(5)
	_, err := join.Query(join.SocketIn(b.directory, 0), 3, layout, soon)
	if !refused(err, wire.RefusedOff) {
		t.Error(err)
	}
	name := nameOf(int32(os.Getpid()))
	if all := b.refusals(); len(all) != 1 || all[0] != name+" 0 gone 11" || name == "" {
		t.Errorf("%q", all)
	}
	for wanted, reason := range map[int]wire.Reason{3: wire.RefusedOff, 4: wire.RefusedPolicy} {
		_, err = b.try(options(1, wanted), 0)
		if !refused(err, reason) {
			t.Error(err)
		}
	}
	if all := b.refusals(); len(all) != 1 { // by this process on this GPU, the last one
		t.Errorf("%q", all)
	}
	if _, err = b.try(options(2, 4), 0); !refused(err, wire.RefusedPolicy) {
		t.Error(err)
	}
	if all := b.refusals(); len(all) != 2 || all[1] != "test 2 lowered 4" {
		t.Errorf("%q", all)
	}
	for uid, want := range map[uint32]int{admin: 2, 0: 0, 6: 0} {
		b.uid.Store(uid)
		if all := b.refusals(); len(all) != want {
			t.Errorf("user %d sees %q", uid, all)
		}
	}
	b.uid.Store(5)
	b.server.SetPolicy(policy.Default())
	b.join(2, 4)
	if all := b.refusals(); len(all) != 1 {
		t.Errorf("%q", all)
	}
	b.do(func(s *Server) {
		for _, r := range s.refusals {
			r.who.started++ // as if another process had its pid
		}
	})
	if all := b.refusals(); len(all) != 0 {
		t.Errorf("of one that has ended: %q", all)
	}
}

// A process that is refused again and again, by whatever PID, fills no memory.
func TestNotTooManyRefusals(t *testing.T) {
	b := start(t, refusing)
	for range mostRefusals + 3 {
		if _, err := join.Query(join.SocketIn(b.directory, 0), 3, layout, soon); !refused(err, wire.RefusedOff) {
			t.Fatal(err)
		}
	}
	b.do(func(s *Server) {
		if len(s.refusals) != mostRefusals || s.refusals[mostRefusals-1].who.pid != mostRefusals+3 {
			t.Errorf("%d, the last %+v", len(s.refusals), s.refusals[len(s.refusals)-1])
		}
	})
}

// One that was taken, and is not any more, is best effort for as long as it runs.
func TestRefusedWhileItRuns(t *testing.T) {
	b := start(t, "[default]\nlevel = 0")
	p := b.join(1, 3)
	next, err := policy.Parse("next.toml", []byte(refusing))
	if err != nil {
		t.Fatal(err)
	}
	b.server.SetPolicy(next)
	p.wait("it is told", func() bool { return p.Welcome.Policy.Level == 7 })
	if b.clients() != 1 {
		t.Error("who was there was sent away")
	}
}
