package segment

import (
	"sync/atomic"

	"github.com/gpreempt/gpreempt/configs"
)

// Asked is what people ask of a process: enum gp_asked.
type Asked uint8

// The values of Asked.
const (
	AskedNothing Asked = iota
	AskedOut
	AskedIn
	AskedSuspend
	AskedResume
)

// Answer is what became of a request: enum gp_asked_answer.
type Answer uint8

// The values of Answer.
const (
	AnswerDone Answer = iota
	AnswerBusy
	AnswerNoHost
	AnswerNoRoom
	AnswerFailed
	AnswerNothing
)

// Request is a value of gp_slot.asked: what is asked, a sequence, and the process that it is for. Two requests are never equal before 256
// more were made.
type Request uint64

const (
	askedBits    = 0xff
	sequenceBits = 0xff00
	ownerShift   = 16
)

// ownerOf is GP_ASKED_OF: the owner that registered at that time, as bits of a Request.
func ownerOf(startedNs uint64) Request { return Request(startedNs>>10) << ownerShift }

// Asked is what the request asks for. An unknown one is AskedNothing.
func (r Request) Asked() Asked {
	if what := Asked(r & askedBits); what <= AskedResume {
		return what
	}
	return AskedNothing
}

// Request is what people asked of the slot's owner last; 0 if nothing, or if it was asked of an earlier owner.
func (s *Slot) Request() Request {
	if r := Request(s.Asked.Load()); r.of(s.StartedNs.Load()) && r.Asked() != AskedNothing {
		return r
	}
	return 0
}

// of says whether a request is for the owner that registered at a time.
func (r Request) of(startedNs uint64) bool { return r>>ownerShift == ownerOf(startedNs)>>ownerShift }

// next is a request that follows r, of the owner that registered at a time.
func (r Request) next(startedNs uint64, what Asked) Request {
	return ownerOf(startedNs) | (r+1<<8)&sequenceBits | Request(what)
}

// ask makes a request of the owner that registered at a time. A later one does not take it for its own.
func (s *Slot) ask(startedNs uint64, what Asked) Request { return request(&s.Asked, startedNs, what) }

func request(word *atomic.Uint64, startedNs uint64, what Asked) Request {
	for {
		old := Request(word.Load())
		next := old.next(startedNs, what)
		if word.CompareAndSwap(uint64(old), uint64(next)) {
			return next
		}
	}
}

// askObjective asks the owner that registered at a time for an objective.
func (s *Slot) askObjective(startedNs uint64, says configs.ObjectiveWord) Request {
	s.ObjectiveSaid.Store(uint64(says))
	return request(&s.ObjectiveAsked, startedNs, AskedNothing)
}

// HearObjective is an objective that people ask of the slot's owner, and the request, until AnswerObjective; 0: they ask for none. It may
// be anything: any process that can write the segment may have written it.
func (s *Slot) HearObjective() (r Request, says configs.ObjectiveWord) {
	if r = Request(s.ObjectiveAsked.Load()); !r.of(s.StartedNs.Load()) || uint64(r) == s.ObjectiveAnswered.Load() {
		return 0, 0
	}
	return r, configs.ObjectiveWord(s.ObjectiveSaid.Load())
}

// AnswerObjective says that a request was obeyed. One that has come meanwhile is another one.
func (s *Slot) AnswerObjective(r Request) { s.ObjectiveAnswered.Store(uint64(r)) }

// Obeys says whether a process has obeyed a request for an objective, or a later one.
func (p *Peer) Obeys(r Request) bool {
	const half = sequenceBits / 2
	return p.Obeyed.of(p.StartedNs) && (p.Obeyed-r)&sequenceBits < half
}

// Repeat makes a request anew in another slot of the same process, which had to join again.
func (s *Slot) Repeat(r Request) {
	if r != 0 {
		s.ask(s.StartedNs.Load(), r.Asked())
	}
}

// Answer publishes the answer to a request.
func (s *Slot) Answer(r Request, answer Answer) {
	s.Memory.Answered.Store(uint64(r&^askedBits) | uint64(answer))
}

// AnswerTo is the answer to a request, if it has come by now.
func (m *Memory) AnswerTo(r Request) (answer Answer, answered bool) {
	return Answer(m.Answered & askedBits), Request(m.Answered)&^askedBits == r&^askedBits
}
