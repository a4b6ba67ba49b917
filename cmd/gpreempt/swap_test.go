package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// swapper is this process as one under the library, which swaps on two GPUs.
type swapper struct {
	t       *testing.T
	on      [2]*segment.Segment
	slot    [2]*segment.Slot
	config  string
	process string
}

func newSwapper(t *testing.T) *swapper {
	t.Helper()
	base := t.TempDir()
	w := &swapper{t: t, config: write(t, "gpreempt.toml", "segment.directory = \""+base+"\"\nsegment.broker = \"/no/broker\"\n"), process: fmt.Sprint(os.Getpid())}
	for i := range w.on {
		s, err := segment.Open(segment.Directory(base, os.Getuid()), segment.GPU{UUID: [16]byte{byte(i + 1)}}, -1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		slot, err := s.Claim(7, "train")
		if err != nil {
			t.Fatal(err)
		}
		w.on[i], w.slot[i] = s, s.Slot(slot)
		w.slot[i].Mechanisms.Store(uint32(configs.Swap))
	}
	return w
}

// obey carries requests out until the test ends: carry says what becomes of one.
func (w *swapper) obey(carry func(gpu int, what segment.Asked) segment.Answer) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var last [2]segment.Request
		for {
			select {
			case <-ended:
				return
			default:
			}
			for i, slot := range w.slot {
				seen := w.on[i].Listen(0)
				if r := slot.Request(); r != 0 && r != last[i] {
					last[i] = r
					slot.Answer(r, carry(i, r.Asked()))
				}
				seen.Wait(time.Millisecond)
			}
		}
	}()
	w.t.Cleanup(func() {
		close(ended)
		<-done
	})
}

func (w *swapper) gpreempt(arguments ...string) result {
	return gpreempt(w.t, nil, append(arguments, "--config", w.config)...)
}

func TestSwap(t *testing.T) {
	w := newSwapper(t)
	w.slot[0].Memory.OutBytes.Store(1 << 40) // from before
	w.slot[0].Memory.Resident.Store(3 << 30)
	w.slot[0].Memory.Pinned.Store(1 << 29)
	w.slot[0].Memory.Pins.Store(1<<0 | 1<<2)
	var asked [2][]segment.Asked
	var mutex sync.Mutex
	w.obey(func(gpu int, what segment.Asked) segment.Answer {
		mutex.Lock()
		defer mutex.Unlock()
		asked[gpu] = append(asked[gpu], what)
		m := &w.slot[gpu].Memory
		switch what {
		case segment.AskedOut, segment.AskedSuspend:
			m.OutBytes.Add(m.Resident.Load())
			m.OutNs.Add(250e6)
			m.Swapped.Store(m.Resident.Swap(0))
		default:
			m.InBytes.Add(m.Swapped.Load())
			m.InNs.Add(125e6)
			m.Resident.Store(m.Swapped.Swap(0))
		}
		return segment.AnswerDone
	})
	on := [2]string{"process " + w.process + " (train) on GPU-01000000-0000-0000-0000-000000000000: ", "process " + w.process + " (train) on GPU-02000000-0000-0000-0000-000000000000: "}
	const stays = "; 512 MiB cannot go (exported, registered)\n"
	for i, c := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"swap", "out"}, on[0] + "3.0 GiB went to host memory in 250ms" + stays + on[1] + "0 MiB went to host memory in 250ms\n"},
		{[]string{"swap", "in"}, on[0] + "3.0 GiB came back in 125ms\n" + on[1] + "0 MiB came back in 125ms\n"},
		{[]string{"suspend", "--gpu", "GPU-01"}, on[0] + "is suspended: 3.0 GiB went to host memory in 250ms" + stays},
		{[]string{"resume", "--gpu", "GPU-01000000-0000-0000-0000-000000000000"}, on[0] + "goes on: 3.0 GiB came back in 125ms\n"},
	} {
		if r := w.gpreempt(append(c.arguments, w.process)...); r != (result{0, c.want, ""}) {
			t.Errorf("%d: %v: %+v, want %s", i, c.arguments, r, c.want)
		}
	}
	mutex.Lock()
	defer mutex.Unlock()
	if got := fmt.Sprint(asked); got != fmt.Sprint([2][]segment.Asked{{segment.AskedOut, segment.AskedIn, segment.AskedSuspend, segment.AskedResume}, {segment.AskedOut, segment.AskedIn}}) {
		t.Errorf("asked: %v", got)
	}
	if r := gpreempt(t, []string{"GPREEMPT_CONFIG=" + w.config}, "__complete", "swap", "out", ""); !strings.Contains(r.stdout, w.process+"\ttrain\n") || strings.Count(r.stdout, "train") != 1 {
		t.Errorf("completion of PID: %+v", r)
	}
	if r := gpreempt(t, nil, "__complete", "swap", ""); !strings.Contains(r.stdout, "out\nin\n") {
		t.Errorf("completion: %+v", r)
	}
}

// The answers of a process that does not do it.
func TestSwapFails(t *testing.T) {
	w := newSwapper(t)
	answers := make(chan segment.Answer, 1)
	w.obey(func(gpu int, _ segment.Asked) segment.Answer { return <-answers })
	w.slot[0].Memory.Swapped.Store(1 << 30)
	w.on[1].Level[0].Store(0) // its slot, the first
	w.slot[1].Memory.Resident.Store(3 << 30)
	answers <- segment.AnswerNothing
	if r := w.gpreempt("swap", "out", w.process, "--gpu", "GPU-02"); r.status != 1 || !strings.Contains(r.stderr, ": its level is above be: memory.lc = true in its configuration, read when it starts, lets its memory go\n") {
		t.Errorf("lc: %+v", r)
	}
	answers <- segment.AnswerDone
	if r := w.gpreempt("suspend", w.process, "--gpu", "GPU-02"); r.status != 0 || !strings.Contains(r.stdout, ": is suspended: 0 MiB went to host memory in ") || !strings.HasSuffix(r.stdout, "; 3.0 GiB stay\n") {
		t.Errorf("lc: %+v", r)
	}
	for _, c := range []struct {
		command string
		answer  segment.Answer
		pinned  uint64
		status  int
		want    string
	}{
		{"swap out", segment.AnswerBusy, 0, 1, "its work did not end in time"},
		{"suspend", segment.AnswerNoHost, 0, 1, "no host memory is left for it; see memory.host_mb"},
		{"swap in", segment.AnswerNoRoom, 0, 1, "there is no room on the GPU now"},
		{"resume", segment.AnswerNoRoom, 0, 0, "goes on: 0 MiB came back in "},
		{"swap in", segment.AnswerFailed, 0, 1, "the driver refused a call"},
		{"swap out", segment.AnswerNothing, 0, 1, "nothing is left to go: 1.0 GiB are out"},
		{"swap out", segment.AnswerNothing, 2 << 30, 1, "nothing can go: 2.0 GiB are held where they are (multicast)"},
		{"swap out", 77, 0, 1, "it answered 77, which this version does not know"},
	} {
		w.slot[0].Memory.Pinned.Store(c.pinned)
		w.slot[0].Memory.Pins.Store(1 << 3)
		answers <- c.answer
		r := w.gpreempt(append(strings.Fields(c.command), w.process, "--gpu", "GPU-01")...)
		if r.status != c.status || !strings.Contains(r.stdout+r.stderr, c.want) || (r.stdout == "") != (c.status == 1) || strings.Count(r.stdout+r.stderr, "\n") != 1 {
			t.Errorf("%s, answer %d: %+v, want %d and one line with %s", c.command, c.answer, r, c.status, c.want)
		}
	}
}

// Nobody obeys.
func TestSwapRefuses(t *testing.T) {
	w := newSwapper(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	parent := fmt.Sprint(os.Getppid())
	check := func(status int, want string, arguments ...string) {
		t.Helper()
		if r := w.gpreempt(arguments...); r.status != status || r.stdout != "" || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: %+v, want %d and one line with %s", arguments, r, status, want)
		}
	}
	check(2, "must be followed by out or in, and the number of a process", "swap", w.process)
	check(2, "must be followed by out or in, and the number of a process", "swap", "away", w.process)
	check(2, "suspend: must be followed by the number of a process", "suspend")
	check(2, `PID "x": must be the number of a process`, "resume", "x")
	check(2, `PID "0": must be the number of a process`, "resume", "0")
	check(2, "--timeout 0s: must be above 0", "swap", "in", w.process, "--timeout", "0s")
	check(1, fmt.Sprintf("process %d: there is none", gone.ProcessState.Pid()), "swap", "out", fmt.Sprint(gone.ProcessState.Pid()))
	check(1, "process "+parent+": does not run under the library, has not used CUDA yet, or joined a broker that is not there now\n", "swap", "out", parent)
	check(1, "of yours runs under the library, or it joined a broker that is not there now (/no/broker)\n", "set", parent, "--pause=false")
	check(1, `not on a GPU whose UUID begins with "GPU-03"`, "swap", "out", w.process, "--gpu", "GPU-03")
	w.slot[0].HeartbeatNs.Store(segment.Now() + 3600e9) // no command is so late that this is long ago
	check(1, "on GPU-01000000-0000-0000-0000-000000000000 has not answered; the request stands\n", "swap", "out", w.process, "--timeout", "50ms")
	w.slot[0].Memory.State.Store(segment.MemoryStuck)
	check(1, "the request stands (its work does not end)\n", "swap", "out", w.process, "--timeout", "50ms")
	w.slot[0].HeartbeatNs.Store(segment.Now() - 5e9)
	check(1, "s: it may be stopped)\n", "swap", "out", w.process, "--timeout", "50ms")
	w.slot[0].Mechanisms.Store(uint32(configs.Turns))
	check(1, "(train) on GPU-01000000-0000-0000-0000-000000000000 has no swap: mechanisms must be \"auto\" or name swap", "swap", "out", w.process)
	for gpu := range w.on {
		w.on[gpu].Level[0].Store(0)
	}
	check(1, "has no swap: its level is above be: memory.lc = true in its configuration, read when it starts, lets its memory go, where", "suspend", w.process)
	for gpu := range w.on {
		w.on[gpu].Level[0].Store(7)
	}
	w.slot[0].Fallbacks.Store(uint32(configs.FallbackNoVMM))
	check(1, "has no swap: the driver or the GPU lacks virtual memory management; ", "swap", "out", w.process)
	w.slot[0].Fallbacks.Store(0)
	// The process registers again, as another one does that gets its slot, while the command waits.
	w.slot[0].Mechanisms.Store(uint32(configs.Swap))
	before, ended, watched := w.slot[0].Request(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for w.slot[0].Request() == before {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
			}
		}
		w.slot[0].StartedNs.Add(1 << 30)
	}()
	check(1, "has ended\n", "swap", "out", w.process, "--gpu", "GPU-01")
	close(ended)
	<-watched
	if r := w.slot[0].Request(); r != 0 {
		t.Errorf("the next owner would obey %#x", r)
	}
}

// A segment that nobody hands out in time says nothing of who has ended.
func TestSwapWaitsForBusyMembers(t *testing.T) {
	r := request{path: "a segment"}
	if err := r.look([]segment.Snapshot{{Path: r.path, Error: "nobody answers"}}); err != nil || r.after != nil {
		t.Errorf("%v, %+v", err, r.after)
	}
	if err := r.look([]segment.Snapshot{{Path: r.path}}); err == nil || !strings.HasSuffix(err.Error(), " has ended") {
		t.Errorf("%v", err)
	}
}

// A segment may fail to open while its processes are asked for: the wait goes on, and says what it knows.
func TestAwaitASegmentThatIsBusy(t *testing.T) {
	before := segment.Peer{Pid: 7, Name: "train", StartedNs: 5}
	list := []request{{path: "gpu", before: before, number: 1}}
	ctx, end := context.WithCancel(t.Context())
	end()
	err := await(ctx, list, func() ([]segment.Snapshot, error) {
		return []segment.Snapshot{{Path: "gpu", Error: "no member had a processor"}}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("%v", err)
	}
}
