package broker

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// A rule may give its share and its memory to several clients together. These clients divide both on each GPU. The broker tells each its
// part, when it joins and once a second.
//
// The share is divided among clients that had work lately. A client without work gets the part that it would have with work, so that it has
// that part at once. Memory cannot be taken from a program that has allocated it. So a client that had more than its part before others
// came keeps what it has, and gets no more. A false report of work or memory costs others as much as a true one would.

// workedLately is how long ago a client had work that still counts.
const workedLately = 10 * time.Second

// share is a client's part of what it divides with others.
type share struct {
	share, most uint32 // millionths
	memoryMB    uint32
}

// dividers identifies the clients that divide what a rule gives.
type dividers struct {
	rule   string
	uid    uint32
	cgroup string
}

func (c *client) dividers() dividers {
	of := dividers{rule: c.grant.Rule}
	switch c.grant.Per {
	case wire.PerUser:
		of.uid = c.who.uid
	case wire.PerCgroup:
		of.cgroup = groupOf(c.who.cgroup)
	}
	return of
}

// divide gives clients that divide something their parts of now.
func (g *gpu) divide(now time.Time, quantumMs uint32) {
	groups := map[dividers][]*client{}
	for _, c := range g.slot {
		if c != nil && c.grant.Per != wire.PerProcess {
			groups[c.dividers()] = append(groups[c.dividers()], c)
		}
	}
	for _, all := range groups {
		among, memory := sharers(all, now), memories(all)
		for i, c := range all {
			if next := (share{partOf(c.grant.Share, among[i]), partOf(c.grant.ShareMax, among[i]), memory[i]}); next != c.part {
				c.part = next
				c.apply(quantumMs)
			}
		}
	}
}

// sharers are the numbers of clients among which each divides shares. The highest level needs none. A client that asks for a turn without
// known work counts as idle: all idle clients do that now and then, and would get a part of what others have.
func sharers(all []*client, now time.Time) []uint32 {
	working, n := make([]bool, len(all)), uint32(0)
	for i, c := range all {
		if c.member && c.view.Line(c.slot).Busy.Load() == segment.BusyWorks {
			c.workedAt = now
		}
		if working[i] = c.inForce.Level != 0 && now.Sub(c.workedAt) < workedLately; working[i] {
			n++
		}
	}
	list := make([]uint32, len(all))
	for i := range all {
		among := n
		if !working[i] {
			among++
		}
		list[i] = among
	}
	return list
}

// partOf is a part in millionths, of a whole that so many divide. 0 would be the client's own setting.
func partOf(whole float64, among uint32) uint32 {
	if whole == 0 {
		return 0
	}
	return max(uint32(whole*1e6)/among, 1)
}

// memories are parts of the memory.
func memories(all []*client) []uint32 {
	list, has := make([]uint32, len(all)), make([]uint32, len(all))
	order := make([]int, len(all))
	severalUsers := slices.ContainsFunc(all, func(c *client) bool { return c.who.uid != all[0].who.uid })
	for i, c := range all {
		most := uint32(c.grant.Memory.MB) // it may have had all of it with an earlier broker, or under an earlier policy
		if severalUsers && c.part.memoryMB != 0 {
			most = c.part.memoryMB // nobody takes from other users by a lie what it could not have got
		}
		has[i], order[i] = min(c.memoryMB(), most), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(has[b], has[a]) })
	left := uint32(all[0].grant.Memory.MB)
	if left == 0 {
		return list
	}
	for n, i := range order {
		list[i] = max(left/uint32(len(order)-n), min(has[i], left), 1) // 0 would be no limit
		left -= min(list[i], left)
	}
	return list
}

// memoryMB is how much memory the client says that it has, of what swaps.
func (c *client) memoryMB() uint32 {
	if !c.member {
		return 0
	}
	const most, up = 1 << 62, 1<<20 - 1
	m := &c.view.State().Memory
	bytes := uint64(0)
	for _, n := range []uint64{m.Resident.Load(), m.Swapped.Load(), m.Pinned.Load()} {
		bytes = min(bytes+min(n, most), most)
	}
	return uint32(min((bytes+up)>>20, 1<<32-1))
}
