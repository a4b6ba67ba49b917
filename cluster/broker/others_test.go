package broker

import (
	"math/bits"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Clients learn how many processes that are no clients have work, once these were seen twice in a row.
func TestOthersAtWork(t *testing.T) {
	b := start(t, "")
	p := b.join(1, 7)
	pid := b.pid.Load()    // of the client
	b.do(func(*Server) {}) // the bell rings last of what comes with a join
	uuid := (segment.GPU{UUID: [16]byte{1}}).String()
	told := func(workers map[string][]int32, want uint32) {
		t.Helper()
		bell := p.common.Common().Rings.Bell.Load()
		before := p.common.Common().Others.Load()
		b.server.SetWorkers(workers)
		b.do(func(*Server) {}) // after it
		if got := p.common.Common().Others.Load(); got != want {
			t.Errorf("%v: %d, want %d", workers, got, want)
		}
		if rang := p.common.Common().Rings.Bell.Load() != bell; rang != (before != want) {
			t.Errorf("%v: it rang: %v", workers, rang)
		}
	}
	if b.server.InUse() != 1 {
		t.Error("no GPU is in use")
	}
	told(map[string][]int32{uuid: {pid, 100_000, 100_001}}, 0)
	told(map[string][]int32{uuid: {pid, 100_000}, "GPU-other": {100_001}}, 1)
	told(map[string][]int32{uuid: {100_000, 100_001}}, 1)
	told(map[string][]int32{uuid: {100_000, 100_001}}, 2)
	told(map[string][]int32{uuid: {100_002}}, 0)
	told(map[string][]int32{uuid: {100_002}}, 1)
	told(nil, 0)

	other := b.join(1, 7) // of another process
	q := b.pid.Load()
	b.do(func(*Server) {}) // as above
	both := map[string][]int32{uuid: {pid, q}}
	for _, one := range []*peer{p, other} {
		one.State.State().Mechanisms.Store(uint32(configs.Turns))
		one.State.State().HeartbeatNs.Store(segment.Now() + uint64(time.Hour))
	}
	told(both, 0)
	told(both, 0)
	other.State.State().Mechanisms.Store(0)
	told(both, 0) // once is not enough
	told(both, 1)
	told(map[string][]int32{uuid: {pid}}, 0) // what it says of itself alone counts for nothing
	told(map[string][]int32{uuid: {pid}}, 0)
	other.State.State().Mechanisms.Store(uint32(configs.Turns))
	other.State.State().HeartbeatNs.Store(1) // stopped
	told(both, 0)
	told(both, 1)
	other.State.State().HeartbeatNs.Store(segment.Now() + uint64(time.Hour))
	told(both, 0)
	other.Leave()
	eventually(t, "one is left", func() bool { return bits.OnesCount64(p.common.Common().Members.Load()) == 1 })
	b.do(func(*Server) {})              // the bell rings last of what comes with an end, too
	p.State.State().Mechanisms.Store(0) // beside nobody
	told(both, 0)
	told(map[string][]int32{uuid: {pid}}, 0)
	told(map[string][]int32{uuid: {pid}}, 0)
	p.Leave()
	eventually(t, "no GPU is in use", func() bool { return b.server.InUse() == 0 })
	b.server.SetWorkers(map[string][]int32{uuid: {100_000}})
	b.do(func(*Server) {})
}
