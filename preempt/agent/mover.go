package agent

import (
	"sync"
	"sync/atomic"
	"time"
)

// moveKind is what the mover does with memory of this process on a GPU.
type moveKind int

const (
	moveOut    moveKind = iota // At least so many bytes to the host.
	moveIn                     // At most so many bytes back.
	moveHalt                   // The process stops running, though its memory is in.
	moveResume                 // This ends a halt.
	movePin                    // Host memory, until so much of it is free.
	moveUnpin                  // Host memory that is not used, but for so much of it.
)

func (k moveKind) String() string {
	return [...]string{"out", "in", "halt", "resume", "pin", "unpin"}[k]
}

func (r moveResult) String() string {
	if names := [...]string{"moved", "busy", "no host memory", "no room", "failed"}; r >= 0 && int(r) < len(names) {
		return names[r]
	}
	return "unknown"
}

type move struct {
	gpu     int
	kind    moveKind
	bytes   uint64
	timeout time.Duration
	urgent  bool
	out     uint64 // outBytes as it began
}

// moveResult is enum gp_move_result.
type moveResult int

const (
	moved moveResult = iota
	movedBusy
	movedNoHost
	movedNoRoom
	movedFailed
)

// ended is a move that has ended.
type ended struct {
	move
	result moveResult
}

// mover carries out one move of the process after the other, in a thread of its own: a move takes up to seconds, in which
// agents must show that they live.
type mover struct {
	carry func(move) moveResult
	grant func(gpu int, upto uint64) // lets a move in go on until moves in have taken so many bytes ever
	urge  func(gpu int)              // makes a move out urgent
	ring  func(gpu int)              // tells the agent of a GPU that a move has ended
	cut   func(on bool)              // while on, pinning and giving back of host memory ends soon
	moves chan move

	mutex sync.Mutex // What follows.
	busy  bool
	now   move
	waits bool            // Another GPU's memory is to leave, or nothing is to run, once this move has ended.
	cuts  bool            // This move only pins host memory or gives some back, and was cut short for another one.
	ended [maxGPUs]*ended // Of moves out and in, halts and resumes; the agent takes it.
	noPin [maxGPUs]bool   // Host memory could not be pinned.
	less  [maxGPUs]bool   // Pinning or giving back was cut short.
}

func newMover(carry func(move) moveResult, grant func(int, uint64), urge, ring func(int), cut func(bool)) *mover {
	return &mover{carry: carry, grant: grant, urge: urge, ring: ring, cut: cut, moves: make(chan move, 1)}
}

// run carries moves out for as long as the process lives.
func (m *mover) run() {
	for next := range m.moves {
		result := m.carry(next)
		m.mutex.Lock()
		m.busy = false
		tell := next.kind < movePin
		if tell {
			m.ended[next.gpu] = &ended{next, result}
		}
		cut := m.cuts
		if m.cuts = false; cut { // before the next one begins
			m.cut(false)
		}
		m.less[next.gpu] = m.less[next.gpu] || cut
		m.noPin[next.gpu] = m.noPin[next.gpu] || next.kind == movePin && result != moved && !cut
		m.mutex.Unlock()
		if tell || cut {
			for gpu := range maxGPUs { // those of other GPUs may wait for the mover
				m.ring(gpu)
			}
		}
	}
}

// begin begins a move. False: another one is under way, or the last one's end was not taken. One that only pins host memory, or gives some
// back, is cut short then: a service may wait for this move, and a piece takes up to 0.1 s.
func (m *mover) begin(next move) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.busy || m.ended[next.gpu] != nil {
		if m.busy && m.now.kind >= movePin && next.kind < movePin && !m.cuts {
			m.cuts = true
			m.cut(true)
		}
		m.waits = m.waits || m.busy && m.now.gpu != next.gpu && (next.kind == moveOut || next.kind == moveHalt)
		return false
	}
	m.busy, m.now, m.waits = true, next, false
	m.moves <- next
	return true
}

// bring tells a move in under way how much more may come, where moves in have taken so much ever. That may be less than before. Where others
// wait for memory of another GPU, the move comes to its end and is begun anew later: it could go on for as long as others leave.
func (m *mover) bring(gpu int, taken, more uint64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if !m.busy || m.now.gpu != gpu || m.now.kind != moveIn {
		return
	}
	if m.waits {
		more = 0
	}
	m.grant(gpu, saturate(taken, more))
}

// hurry makes a move out urgent that is under way: a higher level waits for the room now.
func (m *mover) hurry(gpu int) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.busy && m.now.gpu == gpu && m.now.kind == moveOut {
		m.urge(gpu)
	}
}

// moving is the move under way on a GPU.
func (m *mover) moving(gpu int) (now move, busy bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.now, m.busy && m.now.gpu == gpu
}

// take returns a move that has ended; nil where there is none.
func (m *mover) take(gpu int) *ended {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	e := m.ended[gpu]
	m.ended[gpu] = nil
	return e
}

// pinRefused says, once, that host memory could not be pinned, and that pinning or giving back was cut short.
func (m *mover) pinRefused(gpu int) (refused, less bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	refused, less = m.noPin[gpu], m.less[gpu]
	m.noPin[gpu], m.less[gpu] = false, false
	return refused, less
}

// meter asks the driver how much memory of a GPU is free. The driver may take its time: the agent waits for an answer only once, and not
// for long. The meter rings for an answer that comes after that.
type meter struct {
	asks    chan struct{}
	answers chan measured
	left    atomic.Bool // nobody waits for the answer that is under way
	pending bool
	last    measured

	questions, answered uint64 // numbers
}

type measured struct {
	free, total uint64
	known       bool
	taken       uint64 // by moves in of this process ever, when the driver was asked
	pools       uint64 // what pools of this process have
}

func newMeter(ask func() measured, ring func()) *meter {
	m := &meter{asks: make(chan struct{}, 1), answers: make(chan measured, 1)}
	go func() {
		for range m.asks {
			m.answers <- ask()
			if m.left.Load() {
				ring()
			}
		}
	}()
	return m
}

// read returns what the driver says, or what it said last; fresh says which.
func (m *meter) read(patience time.Duration) (last measured, fresh bool) {
	if !m.pending {
		m.pending = true
		m.questions++
		m.left.Store(false)
		m.asks <- struct{}{}
		select {
		case m.last = <-m.answers:
			return m.take()
		case <-time.After(patience):
			m.left.Store(true) // an answer that comes after this rings; one that came before is here
		}
	}
	select {
	case m.last = <-m.answers:
		return m.take()
	default:
		return m.last, false
	}
}

// take notes that the answer has come.
func (m *meter) take() (last measured, fresh bool) {
	m.pending, m.answered = false, m.questions
	return m.last, true
}
