package segment

import (
	"errors"
	"testing"
)

// A person's request reaches the process that was meant, once, and its answer comes back.
func TestRequest(t *testing.T) {
	dir := directory(t)
	s := open(t, dir)
	p := s.Slot(claim(t, s))
	r, err := OpenReader(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var last Request
	for i, what := range []Asked{AskedOut, AskedOut, AskedIn, AskedSuspend, AskedResume} {
		bell := s.Rings.Bell.Load()
		request, err := r.Ask(s.slot, p.StartedNs.Load(), what)
		if err != nil || request == last || p.Request() != request || request.Asked() != what || s.Rings.Bell.Load() == bell {
			t.Fatalf("request %d: %#x after %#x, %v; the process reads %#x, the bell is at %d after %d", i, request, last, err, p.Request(), s.Rings.Bell.Load(), bell)
		}
		memory := p.ReadMemory()
		if memory == nil {
			memory = &Memory{}
		}
		if answer, answered := memory.AnswerTo(request); answered {
			t.Fatalf("request %d: %d is an answer to another one", i, answer)
		}
		p.Answer(request, AnswerBusy+Answer(i))
		if answer, answered := p.ReadMemory().AnswerTo(request); !answered || answer != AnswerBusy+Answer(i) {
			t.Errorf("request %d: answer %d, %v", i, answer, answered)
		}
		last = request
	}
	s.Slot(s.slot + 1).StartedNs.Store(p.StartedNs.Load()) // as a dead process left it
	for _, wrong := range []struct {
		slot      int
		startedNs uint64
		ended     bool
	}{{s.slot, p.StartedNs.Load() + 1, true}, {s.slot + 1, p.StartedNs.Load(), true}, {-1, 0, false}, {Slots, 0, false}} {
		if request, err := r.Ask(wrong.slot, wrong.startedNs, AskedSuspend); err == nil || errors.Is(err, ErrEnded) != wrong.ended || request != 0 {
			t.Errorf("Ask(%+v) = %#x, %v", wrong, request, err)
		}
	}
	if p.Request() != last {
		t.Errorf("a request that failed is obeyed: %#x", p.Request())
	}
	p.Asked.Store(uint64(last&^askedBits) | 99)
	if got := p.Request(); got != 0 {
		t.Errorf("%#x is obeyed, which asks for nothing that is known", got)
	}
}

// A request that a process obeyed holds in the slot that it gets when it joins again.
func TestRepeatedRequest(t *testing.T) {
	s := open(t, directory(t))
	p := s.Slot(claim(t, s))
	p.ask(p.StartedNs.Load(), AskedSuspend)
	suspended := p.Request()
	for ownerOf(Now()) == ownerOf(p.StartedNs.Load()) { // a request knows its owner to the microsecond
	}
	s.Release()
	next := s.Slot(claim(t, s))
	if next.Request() != 0 {
		t.Fatalf("asked before the slot was claimed: %#x", next.Request())
	}
	next.Repeat(0)
	if next.Request() != 0 {
		t.Errorf("nothing, repeated: %#x", next.Request())
	}
	if next.Repeat(suspended); next.Request().Asked() != AskedSuspend {
		t.Errorf("repeated: %#x", next.Request())
	}
}
