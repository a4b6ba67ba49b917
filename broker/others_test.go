package broker

import "testing"

// Clients are told how many processes that are none have work, once these were seen twice in a row.
func TestOthersAtWork(t *testing.T) {
	b := start(t, "")
	p := b.join(1, 7)
	pid := b.pid.Load()    // of the client
	b.do(func(*Server) {}) // the bell rings last of what comes with a join
	uuid := uuidOf([16]byte{1})
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
	p.Leave()
	eventually(t, "no GPU is in use", func() bool { return b.server.InUse() == 0 })
	b.server.SetWorkers(map[string][]int32{uuid: {100_000}})
	b.do(func(*Server) {})
}
