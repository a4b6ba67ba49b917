package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Programs whose memory leaves the GPU at random compute the same as those whose memory stays, and none hangs.

// order is a request that was made of a process on a GPU.
type order struct {
	gpu     string
	request segment.Request
}

// request asks a process on each GPU that it is on. None: it is on none, or it ended, or not all could be asked.
func (m *machine) request(p *process, what segment.Asked) (orders []order) {
	all, err := m.look()
	if err != nil {
		return nil
	}
	for _, s := range all {
		if s.Error != "" {
			return nil
		}
		i := slices.IndexFunc(s.Peers, func(peer segment.Peer) bool { return int(peer.Pid) == p.pid() && peer.Alive })
		if i < 0 {
			continue
		}
		r, err := ask(&s, &s.Peers[i], what)
		if err != nil {
			return nil
		}
		orders = append(orders, order{s.GPU, r})
	}
	return orders
}

func ask(s *segment.Snapshot, p *segment.Peer, what segment.Asked) (segment.Request, error) {
	if s.Broker != "" {
		r := p.Next(what)
		there, err := join.Ask(s.Broker, &wire.Ask{ID: p.Client, Request: uint64(r)})
		if err == nil && !there {
			err = segment.ErrEnded
		}
		return r, err
	}
	reader, err := segment.OpenReader(s.Path)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	return reader.Ask(p.Slot, p.StartedNs, what)
}

// answer is the process's answer to an order, if there was one.
func (m *machine) answer(p *process, o order) (answer segment.Answer, answered bool) {
	all, err := m.look()
	if err != nil {
		return 0, false
	}
	for _, s := range all {
		for _, peer := range s.Peers {
			if s.GPU == o.gpu && int(peer.Pid) == p.pid() && peer.Memory != nil {
				return peer.Memory.AnswerTo(o.request)
			}
		}
	}
	return 0, false
}

// asks has a process carry out what people may ask for, and returns its answers, one for each GPU.
func (m *machine) asks(p *process, what segment.Asked) (answers []segment.Answer) {
	m.t.Helper()
	m.joined(p)
	var orders []order
	m.until(fmt.Sprintf("process %d is asked for %d", p.pid(), what), func() bool {
		orders = m.request(p, what)
		return len(orders) > 0
	})
	for _, o := range orders {
		m.until(fmt.Sprintf("process %d answers %d", p.pid(), what), func() bool {
			answer, answered := m.answer(p, o)
			if answered {
				answers = append(answers, answer)
			} else if p.exited() {
				_ = p.stdin.Close()
				m.t.Fatalf("process %d ended: %v; stderr %s", p.pid(), p.wait(), p.stderr.String())
			}
			return answered
		})
	}
	return answers
}

// asksIdle asks a process whose work ends soon, again where a slow machine has not ended it in time.
func (m *machine) asksIdle(p *process, what segment.Asked) (answers []segment.Answer) {
	m.t.Helper()
	m.until("no GPU's work is in the way", func() bool {
		answers = m.asks(p, what)
		return !slices.Contains(answers, segment.AnswerBusy)
	})
	return answers
}

// evictUntil has the memory of a process leave at random times, and come back when it is needed or asked for.
func (m *machine) evictUntil(p *process, done <-chan struct{}) (ended <-chan struct{}) {
	return repeat(done, func() bool {
		what := segment.AskedOut
		if rand.IntN(4) == 0 {
			what = segment.AskedIn
		}
		m.request(p, what)
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
		return true
	})
}

// evictions of a process on all GPUs.
func (m *machine) evictions(p *process) (n uint64) {
	m.t.Helper()
	for _, peer := range m.peers() {
		if int(peer.Pid) == p.pid() && peer.Memory != nil {
			n += peer.Memory.Evictions
		}
	}
	return n
}

// fire evicts a process so often, while it works. Every answer has to be that it was done, or that the process was busy.
func (m *machine) fire(p *process, times uint64) {
	m.t.Helper()
	deadline := time.Now().Add(10 * patience)
	for round := 0; m.evictions(p) < times; round++ {
		if time.Now().After(deadline) {
			m.t.Fatalf("%d evictions of %d: %+v", m.evictions(p), times, m.peer(p))
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // at another time of its work
		what := segment.AskedOut
		if rand.IntN(5) == 0 {
			what = segment.AskedIn
		}
		for _, answer := range m.asks(p, what) {
			if answer != segment.AnswerDone && answer != segment.AnswerBusy && answer != segment.AnswerNothing {
				m.t.Fatalf("asked for %d, answered %d: %+v", what, answer, m.peer(p).Memory)
			}
		}
		if round%25 == 0 {
			p.advances(1)
		}
	}
	p.advances(2)
}

// newSwapping is a machine whose BE processes swap.
func newSwapping(t *testing.T, settings string, environment ...string) *machine {
	t.Helper()
	m := newMachine(t, "", environment...)
	if !strings.Contains(settings, "mechanisms") {
		settings = "mechanisms = [\"swap\"]\n" + settings
	}
	m.configure(fmt.Sprintf("%s\n[blp]\ncache_directory = %q\n[segment]\ndirectory = %q\n", settings, m.dir, m.dir))
	return m
}

func TestProgramsUnderFire(t *testing.T) {
	t.Parallel()
	const most = "mechanisms = [\"timeslice\", \"hold\", \"gate\", \"turns\", \"blp\", \"swap\"]\n"
	for name, c := range map[string]struct {
		settings    string
		environment []string
		kinds       []string
		peers, lc   bool
		deep        bool // "all of it" has these kinds, too
	}{
		"chains":             {kinds: []string{"chains", "whole_waits"}},
		"graphs":             {kinds: []string{"graphs", "graphs"}, deep: true},
		"copies":             {kinds: []string{"copies", "copies"}, deep: true},
		"captures":           {kinds: []string{"captures", "chains"}},
		"streams":            {kinds: []string{"streams", "chains"}, deep: true},
		"per-thread streams": {kinds: []string{"per_thread", "per_thread"}, deep: true},
		"contexts":           {kinds: []string{"contexts", "chains"}},
		"own mappings":       {kinds: []string{"growing", "growing"}, deep: true},
		"coming and going":   {kinds: []string{"churn", "churn"}, deep: true},
		"two GPUs":           {kinds: []string{"peers", "chains"}, environment: []string{"SIMCUDA_DEVICES=2"}, peers: true},
		"slow bus":           {kinds: []string{"chains", "copies"}, environment: []string{"SIMCUDA_COPY_GBS=2"}},
		"all of it":          {kinds: []string{"chains", "graphs", "copies", "streams", "per_thread", "growing", "churn"}},
		"BLP":                {settings: "mechanisms = [\"blp\", \"swap\"]\n", environment: []string{"SIMCUDA_MPS=1"}, kinds: []string{"chains", "graphs"}, lc: true},
		"every mechanism":    {settings: most, kinds: []string{"chains", "graphs", "captures", "copies"}, lc: true},
	} {
		if c.deep && often(0, 1) == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newSwapping(t, c.settings, c.environment...)
			p := m.startMemory("be", simulated("sim.cubin"))
			if c.peers {
				p.onTwoGPUs()
			}
			for i, how := range ways {
				p.filled(how, 3_000_001, i)
			}
			var us int
			p.ask("us 20", "us %d", &us)
			p.working(2<<20, c.kinds...)
			done := make(chan struct{})
			var ended <-chan struct{}
			if c.lc {
				lc := m.start("lc")
				m.joined(lc)
				ended = disturb(lc, 100, done)
			}
			m.fire(p, often(15, 60))
			close(done)
			if ended != nil {
				<-ended
			}
			p.rounds("stop")
			p.right(len(ways))
			m.asks(p, segment.AskedOut)
			p.right(len(ways))
			if _, stderr := p.finish(); stderr != "" {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}
