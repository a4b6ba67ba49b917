package agent

import (
	"testing"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Under MPS and with blp, a process above the lowest level leaves SMs for lower levels that can be stopped and go on.
func TestSpatial(t *testing.T) {
	const all = configs.BLP | configs.Spatial
	for _, c := range []struct {
		name        string
		level       int
		named       configs.Mechanism
		place       place
		want, lacks bool
	}{
		{"lc", 0, all, placeShared, true, false},
		{"between", 3, all, placeShared, true, false},
		{"be that is not rewritten", lowestLevel, all, placeShared, false, true},
		{"not named", 0, configs.BLP, placeShared, false, false},
		{"alone", 0, configs.Spatial, placeShared, false, true},
		{"no MPS", 0, all, placeApart, false, false},
	} {
		s, err := segment.Open(t.TempDir()+"/d", segment.GPU{UUID: [16]byte{1}}, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		slot, err := s.Claim(c.level, "test")
		if err != nil {
			t.Fatal(err)
		}
		a := &agent{core: coreOf(configs.Config{Mechanisms: configs.Mechanisms{Named: c.named}}, c.level), segment: s, slot: slot, place: c.place}
		if got := a.isSpatial(); got != c.want || a.own().Lacks(configs.FallbackNoBLP) != c.lacks {
			t.Errorf("%s: in force: %v, lacks blp: %v", c.name, got, a.own().Lacks(configs.FallbackNoBLP))
		}
		wants := uint64(0)
		for i, in := range []configs.Mechanism{0, configs.BLP, configs.Spatial, all} {
			peer := slot + 1 + i
			s.Slot(peer).Mechanisms.Store(uint32(in))
			s.Level[peer].Store(lowestLevel)
			s.Members.Or(1 << peer)
			if c.want && in == all {
				wants |= 1 << peer
			}
		}
		if c.want {
			a.own().Mechanisms.Store(uint32(configs.Spatial))
		}
		if got := a.peers().goingOn; got != wants {
			t.Errorf("%s: %b go on, want %b", c.name, got, wants)
		}
	}
}
