package preempt

import (
	"testing"
	"unsafe"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func TestControlParametersHaveTheDriversLayout(t *testing.T) {
	var d NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS
	var g NV2080_CTRL_GPU_GET_GID_INFO_PARAMS
	for name, is := range map[string][2]uintptr{ // ctrl2080fifo.h, ctrl2080gpu.h, ctrla06c.h
		"disable":              {unsafe.Sizeof(d), 536},
		"disable.numChannels":  {unsafe.Offsetof(d.NumChannels), 4},
		"disable.onlyDisable":  {unsafe.Offsetof(d.BOnlyDisableScheduling), 8},
		"disable.event":        {unsafe.Offsetof(d.PRunlistPreemptEvent), 16},
		"disable.hClientList":  {unsafe.Offsetof(d.HClientList), 24},
		"disable.hChannelList": {unsafe.Offsetof(d.HChannelList), 280},
		"gid":                  {unsafe.Sizeof(g), 268},
		"gid.data":             {unsafe.Offsetof(g.Data), 12},
		"timeslice":            {unsafe.Sizeof(NVA06C_CTRL_TIMESLICE_PARAMS{}), 8},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: %d, the driver has %d", name, is[0], is[1])
		}
	}
}

func TestNextTurnGoesRound(t *testing.T) {
	for _, c := range []struct {
		wanted uint64
		own    int
		next   int
	}{
		{0b0110, 0, 1}, {0b0110, 1, 2}, {0b0010, 2, 1}, {1 << 63, 5, 63}, {1, 63, 0}, {0b1001, 0, 3},
	} {
		if got := next(c.wanted, c.own); got != c.next {
			t.Errorf("next(%b, %d) = %d, want %d", c.wanted, c.own, got, c.next)
		}
	}
}

func TestTimesliceFollowsWhoElseIsThere(t *testing.T) {
	s, err := segment.Open(t.TempDir()+"/d", [16]byte{1}, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	config := configs.Default()
	a := &agent{core: &Core{config: config, level: lowestLevel}, segment: s}
	short, long, fair := config.Timeslice.YieldingUs, config.Timeslice.PreemptingUs, config.Timeslice.FairUs
	for _, c := range []struct {
		name    string
		p       peers
		turns   bool
		boosted bool
		us      uint64
	}{
		{"alone", peers{}, false, false, fair},
		{"below a higher level", peers{higher: 1}, false, false, short},
		{"above a lower level", peers{lower: 1}, false, false, long},
		{"between two levels", peers{lower: 1, higher: 2}, false, false, long},
		{"two at the lowest level in turns", peers{same: 1, higher: 2}, true, false, short},
		{"two at the lowest level without turns", peers{same: 1, higher: 2}, false, false, fair},
		{"two of a level above others", peers{same: 1, lower: 2}, false, false, fair},
		{"starved", peers{higher: 1}, false, true, 3092}, // 0.03 / 0.97 of 100 ms
	} {
		a.boosted = c.boosted
		if got := a.timeslice(c.p, c.turns); got != c.us {
			t.Errorf("%s: %d us, want %d", c.name, got, c.us)
		}
	}
	s.Turn.Store(turnSeized | 1)
	a.boosted = false
	if got := a.timeslice(peers{same: 1, higher: 2}, true); got != fair {
		t.Errorf("after a seized turn: %d us, want %d: two short timeslices stop each other dead", got, fair)
	}
}
