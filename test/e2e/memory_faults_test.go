package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Calls of the driver that fail, or at which the process is killed, while memory is allocated, leaves, comes back and is freed.

// victim is a process that may end at any time, and whose calls may fail.
type victim struct {
	*process
	ended   bool
	buffers []int
}

// tell says a command, and returns the result that is answered; nonzero if the process has ended.
func (v *victim) tell(format string, arguments ...any) (number, result int) {
	v.m.t.Helper()
	command := fmt.Sprintf(format, arguments...)
	if v.ended {
		return 0, -1
	}
	if _, err := fmt.Fprintln(v.stdin, command); err != nil {
		v.ended = true
		return 0, -1
	}
	select {
	case line, ok := <-v.lines:
		if !ok {
			v.ended = true
			return 0, -1
		}
		if _, err := fmt.Sscanf(line, "buffer %d result %d", &number, &result); err == nil {
			return number, result
		}
		if _, err := fmt.Sscanf(line, "result %d", &result); err == nil {
			return 0, result
		}
		var wrong, all int
		if _, err := fmt.Sscanf(line, "wrong %d of %d", &wrong, &all); err != nil || wrong != 0 || all != len(v.buffers) {
			v.m.t.Fatalf("%s: %q, with %d buffers; stderr %s", command, line, len(v.buffers), v.stderr.String())
		}
	case <-time.After(patience):
		v.m.t.Fatalf("%s: no answer: %+v; stderr %s", command, v.m.peers(), v.stderr.String())
	}
	return 0, 0
}

// allocated tries until it has a buffer with contents: single calls fail.
func (v *victim) allocated(how string, seed int) {
	v.m.t.Helper()
	for range 10 {
		buffer, result := v.tell("alloc %s %d", how, 3_000_000)
		if result != 0 {
			continue
		}
		for range 10 {
			if _, result = v.tell("fill %d %d", buffer, seed); result == 0 {
				v.buffers = append(v.buffers, buffer)
				return
			}
		}
	}
	if !v.ended {
		v.m.t.Fatalf("no %s buffer: %+v; stderr %s", how, v.m.peer(v.process), v.stderr.String())
	}
}

func (v *victim) freed() {
	v.m.t.Helper()
	for range 10 {
		if _, result := v.tell("free %d", v.buffers[0]); result == 0 || v.ended {
			v.buffers = v.buffers[1:]
			return
		}
	}
	v.m.t.Fatalf("buffer %d cannot be freed; stderr %s", v.buffers[0], v.stderr.String())
}

// moves has its memory go, or come. It may be refused, but is answered as long as the process lives.
func (v *victim) moves(what segment.Asked) {
	v.m.t.Helper()
	var orders []order
	v.m.until(fmt.Sprintf("process %d is asked for %d", v.pid(), what), func() bool {
		orders = v.m.request(v.process, what)
		return len(orders) > 0 || v.exited()
	})
	for _, o := range orders {
		v.m.until(fmt.Sprintf("process %d answers %d", v.pid(), what), func() bool {
			_, answered := v.m.answer(v.process, o)
			return answered || v.exited()
		})
	}
}

// suffers does harm to a victim. Whenever its memory can be looked at, every byte is right.
func (v *victim) suffers() {
	v.m.t.Helper()
	for i, how := range []string{"memory", "mapped", "memory", "pool", "memory"} {
		v.allocated(how, i)
	}
	for round := 0; round < 12 && !v.ended; round++ {
		for _, b := range v.buffers {
			v.tell("step %d 1", b)
		}
		v.moves(segment.AskedOut)
		if round%2 == 0 {
			v.tell("check all")
		}
		v.moves(segment.AskedIn)
		v.tell("check all")
		if round%3 == 2 && !v.ended {
			v.freed()
			v.allocated([]string{"memory", "mapped"}[round/3%2], round)
		}
	}
}

// The n-th calls that fail or kill, all of which come while a victim suffers. The first reservations and
// mappings are samples, without which nothing of the process would leave.
var faults = map[string][]int{
	"cuMemAddressReserve": {4, 6}, "cuMemCreate": {1, 4, 9, 30}, "cuMemMap": {8, 15, 30}, "cuMemSetAccess": {7, 10, 14}, "cuMemUnmap": {1, 4, 9},
	"cuMemRelease": {1, 4, 9}, "cuMemAddressFree": {1}, "cuMemcpyDtoHAsync": {1, 4, 9}, "cuMemcpyHtoDAsync": {1, 4, 9}, "cuCtxSynchronize": {1, 3},
	"cuMemHostRegister": {1}, "cuStreamCreateWithPriority": {3, 5}, "cuThreadExchangeStreamCaptureMode": {1, 4, 20}, "cuCtxPushCurrent": {1, 5, 20},
	"cuEventCreate": {1, 9}, "cuEventRecord": {1, 4}, "cuEventSynchronize": {1, 4}, "cuMemGetInfo": {1}, "cuStreamSynchronize": {2, 5, 9},
}

// A process beside a victim works unchanged before, meanwhile and after.
func (m *machine) beside() (p *process, look func()) {
	m.t.Helper()
	p = m.startMemory("be")
	for i := range 3 {
		p.filled("memory", 3_000_000, i)
	}
	return p, func() {
		m.t.Helper()
		for _, what := range []segment.Asked{segment.AskedOut, segment.AskedIn} {
			for _, answer := range m.asksIdle(p, what) {
				if answer != segment.AnswerDone && answer != segment.AnswerNothing {
					m.t.Fatalf("beside: asked for %d, answered %d", what, answer)
				}
			}
			p.carriesOut("step 1 2")
			p.right(3)
		}
	}
}

func TestMemoryCallsFail(t *testing.T) {
	t.Parallel()
	for function, calls := range faults {
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			m := newSwapping(t, "")
			_, look := m.beside()
			if often(0, 1) == 0 {
				calls = calls[:1] // each further one is a failure of another move
			}
			var rules []string
			for _, n := range calls {
				rules = append(rules, fmt.Sprintf("%s:%d", function, n))
			}
			cmd := m.command("be", memoryProgram())
			cmd.Env = append(cmd.Env, "SIMCUDA_FAIL="+strings.Join(rules, ","))
			v := &victim{process: m.startAs(cmd)}
			v.suffers()
			if v.ended {
				t.Fatalf("it ended: %v; stderr %s", v.wait(), v.stderr.String())
			}
			m.until("single failures pass", func() bool {
				v.tell("step %d 1", v.buffers[0])
				v.moves(segment.AskedOut)
				return m.memory(v.process).State == "out"
			})
			for _, n := range calls {
				if told := fmt.Sprintf("call %d of %s fails", n, function); !strings.Contains(v.stderr.String(), told) {
					t.Errorf("stderr does not have %q", told)
				}
			}
			look()
			v.finish()
			look()
		})
	}
}

func TestKilledWhileMemoryMoves(t *testing.T) {
	t.Parallel()
	for function, calls := range faults {
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			m := newSwapping(t, "")
			p, look := m.beside()
			look()
			before, _ := p.free()
			if often(0, 1) == 0 {
				calls = calls[len(calls)-1:]
			}
			for _, n := range calls {
				cmd := m.command("be", memoryProgram())
				cmd.Env = append(cmd.Env, fmt.Sprintf("SIMCUDA_KILL=%s:%d", function, n))
				v := &victim{process: m.startAs(cmd)}
				v.suffers()
				if !v.ended {
					t.Fatalf("call %d of %s never came", n, function)
				}
				if err := v.wait(); v.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("call %d: %v; stderr %s", n, err, v.stderr.String())
				}
				look()
				m.until("its memory is free", func() bool { free, _ := p.free(); return free == before })
			}
		})
	}
}
