package broker

import (
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

// joinAs joins as a process of a user in a control group.
func (b *bench) joinAs(uid uint32, cgroup string, gpu byte) *peer {
	b.t.Helper()
	b.uid.Store(uid)
	b.cgroup.Store(cgroup)
	p := b.join(gpu, 7)
	p.wait("it knows its part", func() bool { return p.Welcome.Policy.Per != 0 })
	return p
}

// has waits until clients have these parts: millionths of the GPU's time, and MB.
func has(share, memory uint32, all ...*peer) {
	for _, p := range all {
		p.t.Helper()
		p.wait("its part", func() bool { return p.Welcome.Policy.Share == share && p.Welcome.Policy.MemoryMB == memory })
	}
}

const dividing = "[[rule]]\nname = 'all'\nwhen = 'uid > 0'\nshare = 0.4\nmemory_limit = '1200MB'\nper = '"

// The clients of a user, of a cgroup, or of a whole rule divide on each GPU what the rule gives. Other clients get nothing of it.
func TestWhoDivides(t *testing.T) {
	for per, with := range map[string]func(uid uint32, cgroup string) bool{
		"user":   func(uid uint32, _ string) bool { return uid == 1 },
		"cgroup": func(_ uint32, cgroup string) bool { return cgroup == "/a" },
		"rule":   func(uint32, string) bool { return true },
	} {
		t.Run(per, func(t *testing.T) {
			b := start(t, dividing+per+"'")
			first := b.joinAs(1, "/a", 1)
			has(400_000, 1200, first)
			sharing, apart := []*peer{first}, []*peer{b.joinAs(1, "/a", 2)}
			for _, c := range []struct {
				uid    uint32
				cgroup string
			}{{1, "/a"}, {1, "/b"}, {2, "/a"}} {
				p := b.joinAs(c.uid, c.cgroup, 1)
				if with(c.uid, c.cgroup) {
					sharing = append(sharing, p)
				} else {
					apart = append(apart, p)
				}
			}
			n := uint32(len(sharing))
			has(400_000/n, 1200/n, sharing...)
			has(400_000, 1200, apart...)
			for _, p := range sharing[1:] {
				p.Leave()
			}
			has(400_000, 1200, first)
		})
	}
}

// A newcomer knows its part before it can have more.
func TestTheFirstPart(t *testing.T) {
	b := start(t, dividing+"user'")
	b.joinAs(1, "/a", 1)
	second, err := join.Join(join.SocketIn(b.directory, 0), options(1, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if p := second.Welcome.Policy; p.Share != 200_000 || p.MemoryMB != 600 || p.Per != wire.PerUser {
		t.Errorf("%+v", p)
	}
}

// A client without work for a while leaves its part of the share to the others. It has a part at once if it works.
func TestSharesOfThoseThatWork(t *testing.T) {
	b := start(t, dividing+"user'")
	idle, works, other := b.joinAs(1, "/a", 1), b.joinAs(1, "/a", 1), b.joinAs(1, "/a", 1)
	has(133_333, 400, idle, works, other)
	works.State.Line(works.slot()).Busy.Store(1)
	b.do(func(s *Server) {
		for _, c := range s.clients {
			c.workedAt = time.Now().Add(-workedLately)
		}
	})
	has(400_000, 400, works)
	has(200_000, 400, idle, other)
	other.State.Line(other.slot()).Busy.Store(2) // a turn is asked for, without known work
	b.do(func(s *Server) {
		for _, c := range s.clients {
			c.gpu.divide(time.Now(), s.policy.QuantumMs)
			if c.part.share < 200_000 {
				t.Errorf("a part of %d: who only asks for a turn has some of it", c.part.share)
			}
		}
	})
	has(400_000, 400, works)
	idle.State.Line(idle.slot()).Busy.Store(1)
	has(200_000, 400, works, idle)
	has(133_333, 400, other)
}

// The most of the time is divided as the least is.
func TestShareMaxIsDivided(t *testing.T) {
	b := start(t, "[[rule]]\nname = 'all'\nwhen = 'uid > 0'\nshare = 0.2\nshare_max = 0.6\nper = 'user'\n")
	one, two := b.joinAs(1, "/a", 1), b.joinAs(1, "/a", 1)
	for _, p := range []*peer{one, two} {
		p.wait("its part", func() bool { return p.Welcome.Policy.Share == 100_000 && p.Welcome.Policy.ShareMax == 300_000 })
	}
	b.uid.Store(admin)
	var pid int32
	b.do(func(s *Server) {
		for _, c := range s.clients {
			pid = c.who.pid
		}
	})
	for uid, may := range map[uint32]bool{admin: true, 1: false} {
		_, err := join.Set(b.askedBy(uid), &wire.Set{Pid: pid, Fields: wire.SetShareMax, ShareMax: 100_000})
		if may != (err == nil) || !may && !refused(err, wire.RefusedPolicy) {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}

// A user takes less of the time than its rule allows, and not more.
func TestSetShareMax(t *testing.T) {
	b := start(t, "[default]\nshare_max = 0.5")
	b.uid.Store(5)
	b.join(1, 7)
	var pid int32
	b.do(func(s *Server) {
		for _, c := range s.clients {
			pid = c.who.pid
		}
	})
	for most, may := range map[uint32]bool{1: true, 500_000: true, 500_001: false, 1_000_000: false} {
		_, err := join.Set(b.askedBy(5), &wire.Set{Pid: pid, Fields: wire.SetShareMax, ShareMax: most})
		if may != (err == nil) || !may && !refused(err, wire.RefusedPolicy) {
			t.Errorf("%d: %v", most, err)
		}
	}
}

// A client that has memory keeps it, and gets no more. The others divide what is left. A client cannot say that it has more than it was
// given.
func TestMemoryThatIsDivided(t *testing.T) {
	b := start(t, dividing+"rule'")
	first := b.joinAs(1, "/a", 1)
	first.State.State().Memory.Swapped.Store(500 << 20)
	first.State.State().Memory.Pinned.Store(299<<20 + 1)
	second := b.joinAs(2, "/b", 1)
	has(200_000, 800, first)
	has(200_000, 400, second)
	third := b.joinAs(3, "/c", 1)
	has(133_333, 800, first)
	has(133_333, 200, second, third)
	first.State.State().Memory.Swapped.Store(0)
	has(133_333, 400, first, second, third)
	first.Leave()
	has(200_000, 600, second, third)
	for _, p := range []*peer{second, third} { // nothing changes
		p.State.State().Memory.Resident.Store(^uint64(0))
		p.State.State().Memory.Pinned.Store(^uint64(0))
	}
	fourth := b.joinAs(4, "/d", 1)
	has(133_333, 1, fourth) // 0 would be no limit
	has(133_333, 600, second, third)
}

// A program that had more than its part with an earlier broker keeps it. Another program of that user gets only what is left.
func TestMemoryOfAnEarlierBroker(t *testing.T) {
	b := start(t, dividing+"user'")
	one, two := b.joinAs(1, "/a", 1), b.joinAs(1, "/a", 1)
	has(200_000, 600, one, two)
	one.State.State().Memory.Resident.Store(900 << 20)
	has(200_000, 900, one)
	has(200_000, 300, two)
}

// Clients of several users in one control group believe each other as little as clients of one rule do.
func TestMemoryOfUsersInACgroup(t *testing.T) {
	b := start(t, dividing+"cgroup'")
	one, two := b.joinAs(1, "/a", 1), b.joinAs(2, "/a", 1)
	has(200_000, 600, one, two)
	one.State.State().Memory.Resident.Store(900 << 20)
	b.joinAs(2, "/a", 1) // the parts change
	has(133_333, 600, one)
	has(133_333, 300, two)
}

// A client that has more memory than its part when a policy begins to bound it keeps that memory, whichever user it is of.
func TestMemoryBeforeItIsDivided(t *testing.T) {
	b := start(t, "[default]\nlevel = 'be'")
	var had, others []*peer
	for gpu := range byte(8) { // the policy judges the one or the other first
		for _, uid := range []uint32{1 + uint32(gpu)%2, 2 - uint32(gpu)%2} {
			b.uid.Store(uid)
			p := b.join(gpu, 7)
			if uid == 2 {
				others = append(others, p)
				continue
			}
			had = append(had, p)
			p.State.State().Memory.Resident.Store(900 << 20)
		}
	}
	p, err := policy.Parse("next.toml", []byte(dividing+"rule'"))
	if err != nil {
		t.Fatal(err)
	}
	b.server.SetPolicy(p)
	has(200_000, 900, had...)
	has(200_000, 300, others...)
}

// The broker divides by a new policy before it tells any client.
func TestAnotherPolicyThatDivides(t *testing.T) {
	b := start(t, "[default]\nshare = 0.1")
	b.uid.Store(1)
	one, two := b.join(1, 7), b.join(1, 7)
	p, err := policy.Parse("next.toml", []byte("[default]\nshare = 0.3\nper = 'user'\nmemory_limit = '100MB'"))
	if err != nil {
		t.Fatal(err)
	}
	b.server.SetPolicy(p)
	for _, c := range []*peer{one, two} {
		c.wait("it is told", func() bool { return c.Welcome.Policy.Share != 100_000 })
		if is := c.Welcome.Policy; is.Share != 150_000 || is.MemoryMB != 50 {
			t.Errorf("%+v", is)
		}
	}
}

// Of a divided share or memory only the administrator can set more than a part.
func TestSetWhatIsDivided(t *testing.T) {
	b := start(t, dividing+"user'")
	p := b.joinAs(1, "/a", 1)
	var pid int32
	b.do(func(s *Server) {
		for _, c := range s.clients {
			pid = c.who.pid
		}
	})
	for uid, may := range map[uint32]bool{admin: true, 0: false, 1: false} {
		_, err := join.Set(b.askedBy(uid), &wire.Set{Pid: pid, Fields: wire.SetShare, Share: 100_000})
		if may != (err == nil) || !may && !refused(err, wire.RefusedPolicy) {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	has(100_000, 1200, p)
}
