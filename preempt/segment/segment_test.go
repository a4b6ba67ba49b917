package segment

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

var gpu = GPU{UUID: [16]byte{0: 0xab, 15: 0x01}}

// TestMain turns the test binary into a peer: record locks are per process, so peers must be processes.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SEGMENT_TEST_PEER"); dir != "" {
		if err := peer(dir); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// peer claims a slot, says which, and obeys commands until its input ends.
func peer(dir string) error {
	s, err := Open(dir, gpu, -1)
	if err != nil {
		return err
	}
	slot, err := s.Claim(7, "peer")
	if err != nil {
		return err
	}
	fmt.Println("slot", slot)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "joining":
			if err := lock(s.fd, lockOfJoin, 1); err != nil {
				return err
			}
			fmt.Println("joins")
		case "dirty": // every trace that a peer can leave
			s.Line(slot).WindowOpenedNs.Store(6)
			s.Line(slot).Busy.Store(1)
			s.Turn.Store(7<<16 | 1<<8 | uint64(slot+1))
			s.MemoryTurn.Store(4<<16 | 1<<8 | uint64(slot+1))
			s.Slot(slot).GateWaits.Store(5)
			s.Slot(slot).Windows.Store(9)
		case "lock rest":
			if err := lock(s.fd, 0, Slots); err != nil {
				return err
			}
		case "ring":
			s.Ring()
		case "release":
			s.Release()
		}
		fmt.Println("done")
	}
	return nil
}

type peerProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	slot int
}

func startPeer(t *testing.T, dir string) *peerProcess {
	t.Helper()
	p := launchPeer(t, dir)
	p.claimed()
	return p
}

func launchPeer(t *testing.T, dir string) *peerProcess {
	t.Helper()
	p := &peerProcess{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "SEGMENT_TEST_PEER="+dir)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// claimed waits for the peer to say which slot it has.
func (p *peerProcess) claimed() {
	p.t.Helper()
	if line := p.read(); !strings.HasPrefix(line, "slot ") {
		p.t.Fatalf("peer: %s", line)
	} else if _, err := fmt.Sscanf(line, "slot %d", &p.slot); err != nil {
		p.t.Fatalf("peer: %v", err)
	}
}

func (p *peerProcess) read() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("peer ended: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *peerProcess) tell(command string) {
	p.t.Helper()
	fmt.Fprintln(p.in, command)
	if answer := p.read(); answer != "done" {
		p.t.Fatalf("peer: %s", answer)
	}
}

// stop returns once no thread of the peer runs. kill returns earlier: a thread on another processor may still answer a request.
func (p *peerProcess) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED, nil); err != nil {
		p.t.Fatalf("wait until it is stopped: %v", err)
	}
}

func (p *peerProcess) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

func directory(t *testing.T) string { return Directory(t.TempDir(), os.Getuid()) }

func open(t *testing.T, dir string) *Segment {
	t.Helper()
	s, err := Open(dir, gpu, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func claim(t *testing.T, s *Segment) int {
	t.Helper()
	slot, err := s.Claim(0, "test")
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// TestLayout asks the C compiler where each field of segment.h is.
func TestLayout(t *testing.T) {
	cNames := map[string]string{"GPU": "gpu_uuid", "ID": "id", "Line": "line"}
	field := func(name string) string {
		if c := cNames[name]; c != "" {
			return c
		}
		var b strings.Builder
		for i, r := range name {
			if i > 0 && r >= 'A' && r <= 'Z' {
				b.WriteByte('_')
			}
			b.WriteRune(r)
		}
		return strings.ToLower(b.String())
	}
	var program strings.Builder
	program.WriteString("#include \"segment.h\"\n#include \"preempt/memory/memory.h\"\n#include <stdio.h>\nint main(void) {\n")
	var want []string
	for c, typ := range map[string]reflect.Type{"gp_segment": reflect.TypeFor[Header](), "gp_slot": reflect.TypeFor[Slot](), "gp_line": reflect.TypeFor[Line](), "gp_hint_counters": reflect.TypeFor[HintCounters[atomic.Uint64]](),
		"gp_kernel_counters": reflect.TypeFor[KernelCounters[atomic.Uint64]](), "gp_stop_counters": reflect.TypeFor[StopCounters[atomic.Uint64]](), "gp_objective_counters": reflect.TypeFor[ObjectiveCounters[atomic.Uint64]](), "gp_memory_counters": reflect.TypeFor[MemoryCounters[atomic.Uint64]](),
		"gp_histogram": reflect.TypeFor[Histogram[atomic.Uint64]](), "gp_slot_times": reflect.TypeFor[SlotTimes[atomic.Uint64]]()} {
		for _, f := range reflect.VisibleFields(typ) {
			if f.Anonymous {
				continue // its fields follow
			}
			offset := f.Offset
			for i := 1; i < len(f.Index); i++ {
				offset += typ.FieldByIndex(f.Index[:i]).Offset
			}
			fmt.Fprintf(&program, "printf(\"%%zu %%zu\\n\", offsetof(struct %s, %s), sizeof(((struct %s *)0)->%s));\n", c, field(f.Name), c, field(f.Name))
			want = append(want, fmt.Sprintf("%d %d", offset, f.Type.Size()))
		}
	}
	expression := func(text string, value uint64) {
		fmt.Fprintf(&program, "printf(\"%%llu\\n\", (unsigned long long)%s);\n", text)
		want = append(want, fmt.Sprint(value))
	}
	for text, value := range map[string]uint64{
		"sizeof(struct gp_segment)": memorySize, "sizeof(struct gp_slot)": slotSize, "offsetof(struct gp_segment, slot)": headerSize, "GP_PAGE": pageSize,
		"((char *)gp_line_of((void *)0, 37) - (char *)0)": headerSize + 37*slotSize + linesAt + 37%lines*64,
		"GP_SEGMENT_MAGIC": Magic, "GP_SEGMENT_VERSION": Version, "GP_SLOTS": Slots, "GP_LEVELS": Levels, "GP_HINT_ROOM": HintRoom, "GP_HINT_SOURCES": uint64(len(configs.HintRows)),
		"GP_REFUSALS": Refusals, "GP_TIME_BUCKETS": TimeBuckets, "GP_FIRST_BUCKET": FirstBucket, "GP_REFUSED_FORM": RefusedForm, "GP_REFUSED_ROOM": RefusedRoom, "GP_REFUSED_PEERS": RefusedPeers,
		"GP_REFUSED_SM": RefusedSM, "GP_REFUSED_IMAGE": RefusedImage, "GP_REFUSED_RUNTIME": RefusedRuntime, "GP_REFUSED_RUNTIME + 1": uint64(len(RefusalNames)),
		"GP_MEMORY_RUNNING": MemoryRunning, "GP_MEMORY_LEAVING": MemoryLeaving, "GP_MEMORY_OUT": MemoryOut, "GP_MEMORY_COMING": MemoryComing,
		"GP_MEMORY_STUCK": MemoryStuck, "GP_MEMORY_SUSPENDED": MemorySuspended, "GP_MEMORY_SUSPENDED + 1": uint64(len(memoryStates)),
		"GP_SLOT_CUTS": uint64(len(SlotCuts)), "GP_OBJECTIVE_STATES": ObjectiveStates, "GP_OBJECTIVE_LATE": ObjectiveLate, "GP_OBJECTIVE_RESTS": ObjectiveRests, "GP_OBJECTIVE_RANKS": ObjectiveRanks, "GP_OBJECTIVE_UNATTAINABLE": ObjectiveUnattainable, "GP_OBJECTIVE_STEPLESS": ObjectiveStepless,
		"GP_ASKED_NOTHING": uint64(AskedNothing), "GP_ASKED_OUT": uint64(AskedOut), "GP_ASKED_IN": uint64(AskedIn), "GP_ASKED_SUSPEND": uint64(AskedSuspend), "GP_ASKED_RESUME": uint64(AskedResume),
		"GP_ANSWER_DONE": uint64(AnswerDone), "GP_ANSWER_BUSY": uint64(AnswerBusy), "GP_ANSWER_NO_HOST": uint64(AnswerNoHost), "GP_ANSWER_NO_ROOM": uint64(AnswerNoRoom),
		"GP_ANSWER_FAILED": uint64(AnswerFailed), "GP_ANSWER_NOTHING": uint64(AnswerNothing),
		"GP_ASKED_OF(0xfedcba9876543210ull)": uint64(ownerOf(0xfedcba9876543210) >> ownerShift),
	} {
		expression(text, value)
	}
	for i, name := range pinNames {
		expression("GP_PIN_"+strings.ToUpper(name), 1<<i)
	}
	expression("GP_PINS + 1", uint64(len(pinNames)))
	for _, row := range configs.FallbackRows {
		expression("GP_FALLBACK_"+strings.ToUpper(row.Name), uint64(row.Bit))
	}
	for _, row := range configs.HintRows {
		expression("GP_HINT_"+strings.ToUpper(row.Name), uint64(row.Source))
	}
	program.WriteString("}\n")
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(source, []byte(strings.Replace(program.String(), "#include", "#include <stddef.h>\n#include", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-I.", "-I../..", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != strings.Join(want, "\n") {
		t.Errorf("C has\n%s\nGo has\n%s\nprogram:\n%s", got, strings.Join(want, "\n"), program.String())
	}
	// Copies have the names of segment.h.
	for _, typ := range []reflect.Type{reflect.TypeFor[Counters](), reflect.TypeFor[StopCounters[uint64]](), reflect.TypeFor[ObjectiveCounters[uint64]](), reflect.TypeFor[HintCounters[uint64]](), reflect.TypeFor[MemoryCounters[uint64]](), reflect.TypeFor[Histogram[uint64]](), reflect.TypeFor[Times]()} {
		for i := range typ.NumField() {
			if f := typ.Field(i); f.Tag.Get("json") != "-" && f.Tag.Get("json") != field(f.Name) {
				t.Errorf("%s is named %q", f.Name, f.Tag.Get("json"))
			}
		}
	}
	for _, row := range configs.MechanismRows {
		if _, known := reflect.TypeFor[Counters]().FieldByNameFunc(func(name string) bool { return field(name) == row.Rate }); row.Rate != "" && !known {
			t.Errorf("%s: there is no counter %s", row.Name, row.Rate)
		}
	}
}

func TestCounters(t *testing.T) {
	slot := slotAt(newImage(), 3)
	for i := range words(&slot.SlotCounters) {
		words(&slot.SlotCounters)[i].Store(uint64(i + 1))
	}
	got := reflect.ValueOf(slot.Counters())
	for i := range got.NumField() {
		if got.Field(i).Uint() != uint64(i+1) {
			t.Errorf("%s = %d, want %d", got.Type().Field(i).Name, got.Field(i).Uint(), i+1)
		}
	}
	if n := len(words(&slot.SlotCounters)); n != got.NumField() {
		t.Errorf("%d counters, %d in Counters", n, got.NumField())
	}
}

// stopCounters points at every field in its order in memory.
func stopCounters(c *StopCounters[atomic.Uint64]) (all []*atomic.Uint64) {
	for v, i := reflect.ValueOf(c).Elem(), 0; i < v.NumField(); i++ {
		all = append(all, v.Field(i).Addr().Interface().(*atomic.Uint64))
	}
	return all
}

// A slot's next owner starts from nothing.
func TestClaimForgetsBLP(t *testing.T) {
	s := open(t, directory(t))
	slot := s.Slot(0)
	for _, c := range append(stopCounters(&slot.Stop), &slot.Kernels.Images, &slot.Kernels.Cached, &slot.Kernels.LoadNs, &slot.Kernels.Seen, &slot.Kernels.Guarded, &slot.Kernels.Refused[0], &slot.Kernels.Refused[Refusals-1]) {
		c.Store(1)
	}
	if slot.ReadBLP() == nil {
		t.Error("counters are not seen")
	}
	if i := claim(t, s); i != 0 || slot.ReadBLP() != nil {
		t.Errorf("slot %d: %+v", i, slot.ReadBLP())
	}
	for i, c := range append(stopCounters(&slot.Stop), &slot.Kernels.Guarded) {
		if n := c.Load(); n != 0 {
			t.Errorf("counter %d is %d", i, n)
		}
	}
}

// A slot's next owner has nothing of the GPU's memory, and obeys nothing that was asked of the last one.
func TestClaimForgetsMemory(t *testing.T) {
	s := open(t, directory(t))
	slot := s.Slot(0)
	for i := range words(&slot.Memory) {
		words(&slot.Memory)[i].Store(1)
	}
	for i := range words(&slot.Times) {
		words(&slot.Times)[i].Store(1)
	}
	slot.StartedNs.Store(1 << 40)
	slot.ask(1<<40, AskedSuspend)
	if slot.ReadMemory() == nil || slot.Request().Asked() != AskedSuspend {
		t.Error("what the last owner has is not seen")
	}
	claim(t, s)
	if slot.ReadMemory() != nil || slot.Asked.Load() != 0 || slot.ReadTimes() != (Times{}) {
		t.Errorf("%+v, asked %#x, times %+v", slot.ReadMemory(), slot.Asked.Load(), slot.ReadTimes())
	}
	slot.ask(1<<40, AskedSuspend) // by a person who looked before
	if r := slot.Request(); r != 0 {
		t.Errorf("asked of the last owner: %#x", r)
	}
	slot.Mechanisms.Store(uint32(configs.Swap))
	if m := slot.ReadMemory(); m == nil || m.State != "running" || len(m.PinnedBy) != 0 {
		t.Errorf("with the mechanism and no memory: %+v", m)
	}
}

// The next owner of a slot has nothing of what the last one was asked, or had learnt.
func TestClaimForgetsWhatWasAsked(t *testing.T) {
	s := open(t, directory(t))
	slot := s.Slot(0)
	long := []*atomic.Uint64{&slot.Asked, &slot.ObjectiveAsked, &slot.ObjectiveSaid, &slot.ObjectiveAnswered, &slot.HintSpunNs}
	short := []*atomic.Uint32{&slot.HintsOff, &slot.SwitchUs, &slot.Capped}
	for _, word := range long {
		word.Store(7)
	}
	for _, word := range short {
		word.Store(7)
	}
	claim(t, s)
	for i, word := range long {
		if word.Load() != 0 {
			t.Errorf("word %d of 64 bits is %d", i, word.Load())
		}
	}
	for i, word := range short {
		if word.Load() != 0 {
			t.Errorf("word %d of 32 bits is %d", i, word.Load())
		}
	}
}

func TestOpenClaimRelease(t *testing.T) {
	dir := directory(t)
	s := open(t, dir)
	for path, mode := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, s.Path(): 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, mode)
		}
	}
	if s.Magic != Magic || s.Header.Slots != Slots || s.GPU != gpu.UUID || s.Pointer() == nil {
		t.Errorf("header %x %d %x", s.Magic, s.Header.Slots, s.GPU)
	}
	bell := s.Rings.Bell.Load()
	slot, err := s.Claim(3, strings.Repeat("x", 40))
	if err != nil || slot != 0 {
		t.Fatalf("Claim() = %d, %v", slot, err)
	}
	p := s.Slot(slot)
	if s.Header.Level[slot].Load() != 3 || p.Pid.Load() != int32(os.Getpid()) || p.Name[30] != 'x' || p.Name[31] != 0 || p.StartedNs.Load() == 0 {
		t.Errorf("slot: level %d, pid %d, name %q", s.Header.Level[slot].Load(), p.Pid.Load(), p.Name)
	}
	if s.Members.Load() != 1 || !s.Alive(slot) || s.Alive(1) || s.Alive(-1) || s.Alive(Slots) || s.Rings.Bell.Load() == bell {
		t.Errorf("members %b, alive %v, bell %d", s.Members.Load(), s.Alive(slot), s.Rings.Bell.Load())
	}
	if _, err := s.Claim(0, "again"); err == nil {
		t.Error("a second slot was claimed")
	}
	s.Line(slot).WindowOpenedNs.Store(1)
	s.Line(slot).Busy.Store(1)
	s.Turn.Store(5<<16 | 1)
	gate := s.Rings.Gate.Load()
	s.Release()
	if s.Members.Load() != 0 || s.WindowsOpen(allSlots) != 0 || s.Busy(allSlots) != 0 || s.Turn.Load() != 6<<16 || s.Rings.Gate.Load() == gate || s.Alive(slot) {
		t.Errorf("after Release: members %b, open %b, busy %b, turn %x", s.Members.Load(), s.WindowsOpen(allSlots), s.Busy(allSlots), s.Turn.Load())
	}
	for _, level := range []int{-1, Levels} {
		if _, err := s.Claim(level, ""); err == nil {
			t.Errorf("level %d was accepted", level)
		}
	}
	leftovers, err := filepath.Glob(filepath.Join(dir, ".*"))
	if more, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*")); err != nil || len(leftovers)+len(more) != 0 {
		t.Errorf("left over: %v %v", leftovers, more)
	}
}

// A process that is stopped while it has the lock for joining keeps out nobody whom a member gives the memory.
func TestJoinBesideStoppedJoiner(t *testing.T) {
	dir := directory(t)
	member := startPeer(t, dir)
	fmt.Fprintln(member.in, "joining")
	if line := member.read(); line != "joins" {
		t.Fatalf("peer: %s", line)
	}
	s := open(t, dir)
	own := claim(t, s)
	if own == member.slot || !s.Alive(member.slot) || s.Members.Load() != 1<<own|1<<member.slot {
		t.Errorf("slot %d of members %b, the member has %d", own, s.Members.Load(), member.slot)
	}
}

func TestPeers(t *testing.T) {
	dir := directory(t)
	s := open(t, dir)
	own := claim(t, s)
	a, b := startPeer(t, dir), startPeer(t, dir)
	if a.slot == own || b.slot == own || a.slot == b.slot {
		t.Fatalf("slots %d, %d, %d", own, a.slot, b.slot)
	}
	if !s.Alive(a.slot) || !s.Alive(b.slot) || s.Reap() != 0 {
		t.Error("live peers are taken for dead")
	}
	a.stop()
	if !s.Alive(a.slot) || s.Reap() != 0 {
		t.Error("a stopped peer is taken for dead")
	}
	seen := s.Rings.Bell.Load()
	fmt.Fprintln(b.in, "ring")
	for deadline := time.Now().Add(time.Minute); s.Rings.Bell.Load() == seen && time.Now().Before(deadline); {
		bells := s.Listen(0)
		if s.Rings.Bell.Load() == seen {
			bells.Wait(time.Until(deadline))
		}
	}
	if s.Rings.Bell.Load() == seen {
		t.Error("the bell was not heard")
	}
	if bells := s.Listen(0); bells.changed() {
		t.Error("the bell is heard again")
	} else if bells.Wait(time.Millisecond); bells.changed() {
		t.Error("the bell was rung by nobody")
	}
	b.tell("release") // its answer to "ring" came first
	b.read()
	if s.Alive(b.slot) || s.Members.Load()&(1<<b.slot) != 0 {
		t.Error("a released slot is alive")
	}
}

// A process that sees a bell can wake those that wait at it. They go on waiting until it is rung.
func TestWokenWithoutABell(t *testing.T) {
	s := open(t, directory(t))
	claim(t, s)
	bells, heard := s.Listen(0), make(chan bool, 1)
	go func() {
		bells.Wait(time.Minute)
		heard <- bells.changed()
	}()
	for woken := 0; woken < 3; time.Sleep(time.Millisecond) {
		woken += wake(&s.Rings.Bell)
		select {
		case <-heard:
			t.Fatal("it went on though nobody rang")
		default:
		}
	}
	s.Ring()
	if !<-heard {
		t.Error("it did not hear the bell")
	}
}

func TestKilledOwner(t *testing.T) {
	dir := directory(t)
	s := open(t, dir)
	claim(t, s)
	p := startPeer(t, dir)
	p.tell("dirty")
	bit := uint64(1) << p.slot
	if s.WindowsOpen(allSlots) != bit || s.Busy(allSlots) != bit {
		t.Fatal("the peer left no traces")
	}
	p.kill()
	gate, bell := s.Rings.Gate.Load(), s.Rings.Bell.Load()
	if s.Alive(p.slot) {
		t.Error("a killed peer is alive")
	}
	if got := s.Reap(); got != bit {
		t.Errorf("Reap() = %b, want %b", got, bit)
	}
	if s.WindowsOpen(allSlots) != 0 || s.Busy(allSlots) != 0 || s.Members.Load() != 1 || s.Turn.Load() != 8<<16 || s.MemoryTurn.Load() != 5<<16 || s.Rings.Gate.Load() == gate || s.Rings.Bell.Load() == bell {
		t.Errorf("after Reap: open %b, busy %b, members %b, turn %x", s.WindowsOpen(allSlots), s.Busy(allSlots), s.Members.Load(), s.Turn.Load())
	}
	if got := s.Reap(); got != 0 {
		t.Errorf("a second Reap() = %b", got)
	}
}

// TestStaleBits: a process that claims a dead peer's slot before any other reaped it starts clean.
func TestStaleBits(t *testing.T) {
	dir := directory(t)
	p := startPeer(t, dir)
	s := open(t, dir)
	p.tell("dirty")
	p.kill()
	gate := s.Rings.Gate.Load()
	if slot := claim(t, s); slot != p.slot {
		t.Fatalf("slot %d, want %d", slot, p.slot)
	}
	if s.WindowsOpen(allSlots) != 0 || s.Busy(allSlots) != 0 || s.Members.Load() != 1<<p.slot || s.Turn.Load() != 8<<16 || s.MemoryTurn.Load() != 5<<16 || s.Rings.Gate.Load() == gate {
		t.Errorf("open %b, busy %b, members %b, turn %x", s.WindowsOpen(allSlots), s.Busy(allSlots), s.Members.Load(), s.Turn.Load())
	}
	if got := s.Slot(p.slot).Counters(); got != (Counters{}) {
		t.Errorf("counters %+v", got)
	}
}

// A process restores the words that name it after another process wrote over them.
func TestScribbledOver(t *testing.T) {
	s := open(t, directory(t))
	p, started := s.Slot(claim(t, s)), Now()
	header := *(*[fileSize]byte)(s.memory)
	rung := s.Rings.Bell.Load()
	for range 2 {
		s.Header.Level[s.slot].Store(Levels)
		p.StartedNs.Store(math.MaxUint64)
		p.Name = [32]byte{'x'}
		s.Magic, s.GPU, s.ID = 0, [16]byte{}, identifier{}
		s.TurnSinceNs.Store(math.MaxUint64)
		s.MemoryTurnSinceNs.Store(math.MaxUint64)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		s.Restore()
		s.Reap()
		if level, name := s.Header.Level[s.slot].Load(), printable(p.Name[:]); level != 0 || name != "test" || p.StartedNs.Load() > started {
			t.Errorf("level %d, name %q, started at %d", level, name, p.StartedNs.Load())
		}
		if *(*[fileSize]byte)(s.memory) != header {
			t.Error("who looks from outside sees another memory")
		}
		if since := max(s.TurnSinceNs.Load(), s.MemoryTurnSinceNs.Load()); since > Now() {
			t.Error("nobody is ever late with a turn")
		}
		if now := s.Rings.Bell.Load(); now == rung {
			t.Error("others do not look again")
		} else {
			rung = now
		}
		s.Reap()
		s.SetLevel(0)
		s.Restore()
		if err := s.Check(); err != nil || s.Rings.Bell.Load() != rung {
			t.Errorf("they look although nothing has changed: %v", err)
		}
	}
}

// Nor does it go on under that in another segment.
func TestScribbledOverBeforeItIsReplaced(t *testing.T) {
	before, next := open(t, directory(t)), open(t, directory(t))
	claim(t, next)
	p, started := before.Slot(claim(t, before)), Now()
	p.StartedNs.Store(math.MaxUint64)
	if !next.Replace(before, func() bool { return true }) { // its own pages are where the other's were
		t.Fatal("not replaced")
	}
	before.Leave()
	next.SetLevel(0)
	if got := next.Own().StartedNs.Load(); got > started {
		t.Errorf("started at %d", got)
	}
}

func TestReapImpossibleTurn(t *testing.T) {
	s := open(t, directory(t))
	for _, turn := range []uint64{2<<16 | 65, 2<<16 | 255, 2<<16 | 1<<8} {
		s.Turn.Store(turn)
		s.MemoryTurn.Store(turn)
		if s.Reap(); s.Turn.Load() != 3<<16 || s.MemoryTurn.Load() != 3<<16 {
			t.Errorf("turn %x became %x, that of memory %x", turn, s.Turn.Load(), s.MemoryTurn.Load())
		}
	}
	s.Members.Store(math.MaxUint64)
	if got := s.Reap(); got != math.MaxUint64 || s.Members.Load() != 0 {
		t.Errorf("Reap() = %x", got)
	}
}

// No process waits for a turn that is yet to begin: it has begun.
func TestTurnsBeginNow(t *testing.T) {
	s := open(t, directory(t))
	for _, memory := range []bool{false, true} {
		_, since := s.turnWords(memory)
		before := Now()
		since.Store(before + uint64(time.Hour))
		if s.Reap(); since.Load() < before || since.Load() > Now() {
			t.Errorf("of memory: %t; it begins %d ns later", memory, since.Load()-before)
		}
		if s.Reap(); since.Load() < before || since.Load() > Now() {
			t.Errorf("of memory: %t; a time that has passed became %d", memory, since.Load())
		}
		since.Store(7)
		if s.Reap(); since.Load() != 7 {
			t.Errorf("of memory: %t; an old time became %d", memory, since.Load())
		}
	}
}

// Where no member listens, none answers.
func TestNobodyToAsk(t *testing.T) {
	if fd, err := ask(t.TempDir(), "none", gpu, newIdentifier(), allSlots); fd >= 0 || !errors.Is(err, errNobody) {
		t.Errorf("descriptor %d, %v", fd, err)
	}
}

func TestFull(t *testing.T) {
	dir := directory(t)
	p := startPeer(t, dir)
	p.tell("lock rest")
	s := open(t, dir)
	if slot, err := s.Claim(0, "late"); !errors.Is(err, ErrFull) || slot != -1 {
		t.Errorf("Claim() = %d, %v", slot, err)
	}
}

// A process whose slot was reaped joins anew.
func TestRestoreOfAReapedSlot(t *testing.T) {
	s := open(t, directory(t))
	slot := claim(t, s)
	for _, reaped := range []func(){func() { s.Members.Store(0) }, func() { s.Slot(slot).Pid.Store(0) }} {
		reaped()
		if s.Restore(); s.Members.Load() != 1<<slot || s.Slot(slot).Pid.Load() != int32(Pid()) {
			t.Errorf("members %b, process %d", s.Members.Load(), s.Slot(slot).Pid.Load())
		}
	}
}

func TestReplacedFile(t *testing.T) {
	s := open(t, directory(t))
	if err := os.Remove(s.Path()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(0, ""); !errors.Is(err, ErrLost) {
		t.Errorf("Claim() = %v", err)
	}
}

var corruptions = map[string]func(*os.File) error{
	"magic":     func(f *os.File) error { return poke(f, 0) },
	"version":   func(f *os.File) error { return poke(f, 8) },
	"size":      func(f *os.File) error { return poke(f, 12) },
	"slots":     func(f *os.File) error { return poke(f, 16) },
	"slot_size": func(f *os.File) error { return poke(f, 20) },
	"gpu_uuid":  func(f *os.File) error { return poke(f, 39) },
	"truncated": func(f *os.File) error { return f.Truncate(fileSize - 1) },
	"empty":     func(f *os.File) error { return f.Truncate(0) },
	"too long":  func(f *os.File) error { return f.Truncate(fileSize + 1) },
}

func poke(f *os.File, offset int64) error {
	_, err := f.WriteAt([]byte{0x5a}, offset)
	return err
}

func corrupt(t *testing.T, path string, how func(*os.File) error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := how(f); err != nil {
		t.Fatal(err)
	}
}

func TestCorruption(t *testing.T) {
	for name, how := range corruptions {
		t.Run(name, func(t *testing.T) {
			dir := directory(t)
			s := open(t, dir)
			s.Close()
			corrupt(t, s.Path(), how)
			if all, err := SnapshotsIn(dir); err != nil || len(all) != 1 || (all[0].Error == "") != (name == "too long") {
				t.Errorf("snapshots %+v, %v", all, err)
			}
			s = open(t, dir)
			claim(t, s)
			aside := s.Path() + ".corrupt-" + strconv.Itoa(os.Getpid())
			if _, err := os.Stat(aside); err != nil {
				t.Errorf("the corrupt file was not kept: %v", err)
			}
			if err := s.Replaced(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), s.Path()+": ") || !strings.HasSuffix(err.Error(), " set aside as "+aside) {
				t.Errorf("Replaced() = %v", err)
			}
			if err := open(t, dir).Replaced(); err != nil {
				t.Errorf("Replaced() of a second user = %v", err)
			}
		})
		t.Run(name+" in use", func(t *testing.T) {
			dir := directory(t)
			startPeer(t, dir)
			path := filepath.Join(dir, gpu.String()+".seg")
			corrupt(t, path, how)
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if s, err := Open(dir, gpu, -1); !errors.Is(err, ErrCorrupt) || s != nil {
				t.Errorf("Open() = %v, %v", s, err)
			}
			if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("a file in use was replaced: %v", err)
			}
		})
	}
}

// A peer may do anything to the file and to the memory: others can touch what they have mapped, and repair the file.
func TestHostilePeer(t *testing.T) {
	dir := directory(t)
	s := open(t, dir)
	claim(t, s)
	memory, err := ask(dir, filepath.Base(s.Path()), gpu, s.keeper.id, allSlots)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memory)
	for _, size := range []int64{0, 1, 4096, memorySize - 1, memorySize + 4096} {
		if err := unix.Ftruncate(memory, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("the memory was cut to %d bytes: %v", size, err)
		}
		if err := os.Truncate(s.Path(), size); err != nil {
			t.Fatal(err)
		}
		for i := range Slots { // SIGBUS, where it were the file
			s.Slot(i).Pad5[0] = 1
		}
		if err := s.Check(); err != nil {
			t.Errorf("file of %d bytes: %v", size, err)
		}
		if p := startPeer(t, dir); s.Members.Load()&(1<<p.slot) == 0 {
			t.Errorf("file of %d bytes: who came later is in other memory", size)
		}
	}
	if err := unix.Fallocate(memory, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, memorySize); err != nil {
		t.Fatal(err)
	}
	if s.Magic != 0 {
		t.Error("the memory is as it was")
	}
	// A process that comes now does not believe this memory, and the processes that are there notice that they are elsewhere.
	startPeer(t, dir)
	if err := s.Check(); !errors.Is(err, ErrOther) {
		t.Errorf("Check() = %v", err)
	}
}

// A member hands out something else than the memory.
func TestHostileMember(t *testing.T) {
	plain := func(size int64, flags int, seal int) func() (int, error) {
		return func() (int, error) {
			fd, err := unix.MemfdCreate("x", flags)
			if err == nil {
				err = unix.Ftruncate(fd, size)
			}
			if err == nil && seal != 0 {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
			}
			return fd, err
		}
	}
	for name, made := range map[string]func() (int, error){
		"not sealed":     plain(memorySize, unix.MFD_ALLOW_SEALING, 0),
		"read-only":      plain(memorySize, unix.MFD_ALLOW_SEALING, seals|unix.F_SEAL_WRITE),
		"too short":      plain(memorySize-1, unix.MFD_ALLOW_SEALING, seals),
		"no identity":    plain(memorySize, unix.MFD_ALLOW_SEALING, seals),
		"another memory": func() (int, error) { return newMemory(gpu, newIdentifier()) },
		"a directory":    func() (int, error) { return unix.Open("/", unix.O_RDONLY, 0) },
		"a pipe": func() (int, error) {
			var fds [2]int
			return fds[0], unix.Pipe(fds[:])
		},
		"nothing": func() (int, error) { return -1, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := directory(t)
			p := startPeer(t, dir)
			fd, err := made()
			if err != nil {
				t.Fatal(err)
			}
			// In the place of the peer's socket.
			k := &keeper{dir: dir, name: gpu.String() + ".seg", gid: -1}
			listener, err := k.bind(p.slot)
			if err != nil {
				t.Fatal(err)
			}
			if fd >= 0 {
				go k.serve(listener, fd)
				defer k.ended.Store(true)
			}
			s := open(t, dir)
			claim(t, s)
			if s.Magic != Magic || s.GPU != gpu.UUID || s.Members.Load() != 1<<s.slot {
				t.Errorf("magic %#x, members %b", s.Magic, s.Members.Load())
			}
		})
	}
}

func TestUnsafe(t *testing.T) {
	path := func(dir string) string { return filepath.Join(dir, gpu.String()+".seg") }
	for name, prepare := range map[string]func(dir string) error{
		"symlink": func(dir string) error {
			target := filepath.Join(filepath.Dir(dir), "target")
			if err := os.WriteFile(target, make([]byte, fileSize), 0o600); err != nil {
				return err
			}
			return os.Symlink(target, path(dir))
		},
		"directory instead of file": func(dir string) error { return os.Mkdir(path(dir), 0o700) },
		"fifo":                      func(dir string) error { return unix.Mkfifo(path(dir), 0o600) },
		"file mode":                 func(dir string) error { return os.WriteFile(path(dir), make([]byte, fileSize), 0o644) },
		"directory mode":            func(dir string) error { return os.Chmod(dir, 0o755) },
		"directory symlink": func(dir string) error {
			if err := os.Rename(dir, dir+"-real"); err != nil {
				return err
			}
			return os.Symlink(dir+"-real", dir)
		},
		"directory is a file": func(dir string) error {
			if err := os.Remove(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := directory(t)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := prepare(dir); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir, gpu, -1)
			if name == "directory instead of file" {
				if err == nil {
					t.Error("opened")
				}
			} else if !errors.Is(err, ErrUnsafe) {
				t.Errorf("Open() = %v, %v", s, err)
			}
		})
	}
	t.Run("another owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
		for _, what := range []func(string) string{path, func(dir string) string { return dir }} {
			dir := directory(t)
			s := open(t, dir)
			s.Close()
			if err := os.Chown(what(dir), 1, -1); err != nil {
				t.Fatal(err)
			}
			if s, err := Open(dir, gpu, -1); !errors.Is(err, ErrUnsafe) {
				t.Errorf("Open() = %v, %v", s, err)
			}
		}
	})
}

func TestGroup(t *testing.T) {
	gid := os.Getgid()
	dir := GroupDirectory(t.TempDir(), gid)
	s, err := Open(dir, gpu, gid)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for path, mode := range map[string]os.FileMode{dir: 0o770 | os.ModeDir | os.ModeSetgid, s.Path(): 0o660} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, mode)
		}
	}
	if _, err := Open(dir, gpu, -1); !errors.Is(err, ErrUnsafe) {
		t.Errorf("without the group: %v", err)
	}
	if _, err := Open(dir, gpu, gid+1); !errors.Is(err, ErrUnsafe) {
		t.Errorf("with another group: %v", err)
	}
}

// Everybody may give a folder to a group of theirs, and not to another user.
func TestGroupOfOneWhoIsNotRoot(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(base, unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // folders above may be closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	const other = 4242
	gid := os.Getgid()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and ends: no other goroutine gets this user
		if os.Geteuid() == 0 {
			gid = other
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} { // of this thread alone
				if _, _, errno := unix.RawSyscall(call, other, other, other); errno != 0 {
					done <- errno
					return
				}
			}
		}
		done <- createDirectory(fmt.Sprintf("/proc/thread-self/fd/%d/group", at), gid)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(base + "/group"); err != nil || info.Mode() != 0o770|os.ModeDir|os.ModeSetgid || info.Sys().(*syscall.Stat_t).Gid != uint32(gid) {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// MoveTurn leaves a turn that changed since it was seen, and its time.
func TestTurnThatChanged(t *testing.T) {
	s := open(t, directory(t))
	seen := s.Turn.Load()
	if !s.MoveTurn(false, seen, 3, false, 100) || s.TurnSinceNs.Load() != 100 {
		t.Fatalf("not moved, since %d", s.TurnSinceNs.Load())
	}
	if s.MoveTurn(false, seen, 4, false, 200) || s.TurnSinceNs.Load() != 100 {
		t.Errorf("moved again, since %d", s.TurnSinceNs.Load())
	}
	if owner, owned := TurnOwner(s.Turn.Load()); owner != 3 || !owned {
		t.Errorf("owner %d", owner)
	}
}

// A slot is not claimed where its memory cannot be handed on, and nothing is left open.
func TestClaimInAnUnsafeFolder(t *testing.T) {
	dir := directory(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	open := func() *Segment {
		s, err := Open(dir, gpu, -1)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	round := func() { // that of the first one leaves what all need
		s := open()
		if _, err := s.Claim(1, "test"); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	round()
	before := count()
	for range 5 {
		round()
	}
	for deadline := time.Now().Add(time.Minute); count() > before; time.Sleep(time.Millisecond) { // keepers end later
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", count(), before)
		}
	}
	s := open()
	defer s.Close()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if slot, err := s.Claim(1, "test"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("slot %d, %v", slot, err)
	}
	if s.OwnSlot() >= 0 {
		t.Errorf("it has slot %d", s.OwnSlot())
	}
}

// Memory that comes as descriptor 0, of a process that closed its own, is memory.
func TestMemoryAsDescriptorZero(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(pair[0]), nil, 0); err != nil {
		t.Fatal(err)
	}
	kept, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(0)
	got, err := receive(pair[1])
	if err := errors.Join(unix.Dup2(kept, 0), unix.Close(kept)); err != nil {
		t.Fatal(err)
	}
	if got != 0 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

// TestOpenTogether: of processes that start at once, all get the same file.
func TestOpenTogether(t *testing.T) {
	for _, first := range []string{"nothing", "a corrupt file"} {
		t.Run(first, func(t *testing.T) {
			dir := directory(t)
			if first != "nothing" {
				s := open(t, dir)
				s.Close()
				corrupt(t, s.Path(), corruptions["magic"])
			}
			const n = 8
			var peers []*peerProcess
			for range n {
				peers = append(peers, launchPeer(t, dir))
			}
			var slots uint64
			for _, p := range peers {
				p.claimed()
				slots |= 1 << p.slot
			}
			if s := open(t, dir); slots != 1<<n-1 || s.Members.Load() != slots {
				t.Errorf("slots %b, members %b", slots, s.Members.Load())
			}
		})
	}
}

// Of those that make the file at the same time one does, and the others keep nothing of theirs.
func TestCreatedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	dirfd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dirfd)
	fd, err := create(dirfd, "one", gpu, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := create(dirfd, "one", gpu, -1); !errors.Is(err, unix.EEXIST) {
		t.Errorf("made twice: %v", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, entry := range open {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name())); err == nil && filepath.Dir(to) == dir {
			ours = append(ours, to)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || len(ours) != 1 {
		t.Errorf("%v, %d files; open: %q", err, len(files), ours)
	}
}

func TestSnapshots(t *testing.T) {
	base := t.TempDir()
	if all, err := Snapshots(base, os.Getuid()); err != nil || all != nil {
		t.Fatalf("Snapshots of nothing: %v, %v", all, err)
	}
	dir := Directory(base, os.Getuid())
	p := startPeer(t, dir)
	p.tell("dirty")
	// Not open(): closing the snapshot's descriptor would drop a lock of this process.
	s := open(t, dir)
	slot := s.Slot(p.slot)
	slot.Mechanisms.Store(uint32(configs.Timeslice | configs.Turns | 1<<9))
	slot.Fallbacks.Store(uint32(configs.FallbackNoHold))
	slot.TimesliceUs.Store(1)
	slot.HeartbeatNs.Store(math.MaxUint64)
	slot.Hint[3].Given.Store(3)
	slot.Hint[3].Wrong.Store(1)
	slot.Hint[3].WaitedNs.Store(1000)
	slot.HintsOff.Store(1<<3 | 1<<31)
	slot.SwitchUs.Store(190)
	slot.HintSpunNs.Store(5000)
	slot.Name = [32]byte{'a', 0x1b, '[', 'b'}
	for i := range words(&slot.Memory) {
		words(&slot.Memory)[i].Store(uint64(i + 1))
	}
	slot.Memory.Pins.Store(1<<2 | 1<<20)
	slot.Memory.State.Store(MemoryStuck)
	slot.Times.Drains.SumNs.Store(77)
	slot.Times.Stops.Buckets[TimeBuckets-1].Store(78)
	s.MemoryTurn.Store(1<<16 | uint64(p.slot+1))
	slot.Kernels.Images.Store(11)
	slot.Kernels.Cached.Store(12)
	slot.Kernels.LoadNs.Store(13)
	slot.Kernels.Seen.Store(4)
	slot.Kernels.Guarded.Store(2)
	slot.Kernels.Refused[RefusedPeers].Store(1)
	slot.Kernels.Refused[Refusals-1].Store(math.MaxUint64) // by a peer that knows more reasons, or lies
	for i, c := range stopCounters(&slot.Stop) {
		c.Store(uint64(i + 1))
	}
	for _, name := range []string{"GPU-x.seg", "x.seg", gpu.String() + ".seg.corrupt-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Snapshots(base, os.Getuid())
	if err != nil || len(all) != 1 || len(all[0].Peers) != 1 {
		t.Fatalf("Snapshots() = %+v, %v", all, err)
	}
	got, want := all[0].Peers[0], Peer{
		Slot: p.slot, Pid: int32(p.cmd.Process.Pid), Owner: int32(p.cmd.Process.Pid), Name: "a?[b", Level: 7, Role: "be", Alive: true, StartedNs: slot.StartedNs.Load(),
		WindowOpen: true, WindowOpenedNs: 6, Busy: true, Turn: true, TimesliceUs: 1,
		Mechanisms: []string{"timeslice", "turns", "bit_9"}, Fallbacks: []string{"no_hold"}, InForce: configs.Timeslice | configs.Turns | 1<<9, Lacks: configs.FallbackNoHold,
		Counters: Counters{Windows: 9, GateWaits: 5},
		Times:    Times{Drains: Histogram[uint64]{SumNs: 77}, Stops: Histogram[uint64]{Buckets: [TimeBuckets]uint64{TimeBuckets - 1: 78}}},
		Hints:    []Hints{{Source: "socket", HintCounters: HintCounters[uint64]{Given: 3, Wrong: 1, WaitedNs: 1000}, Off: true}}, SwitchUs: 190, HintSpunNs: 5000,
		BLP: &BLP{Images: 11, ImagesCached: 12, LoadNs: 13, KernelsSeen: 4, KernelsGuarded: 2, KernelsRefused: map[string]uint64{"peers": 1, "reason_7": math.MaxUint64},
			StopCounters: StopCounters[uint64]{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
		MemoryTurn: true, Memory: &Memory{State: "stuck", PinnedBy: []string{"registered", "bit_20"}, MemoryCounters: MemoryCounters[uint64]{
			1, 2, 3, 1<<2 | 1<<20, 5, 6, 7, 8, 9, 10, MemoryStuck, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("peer\n%+v, want\n%+v", got, want)
	}
	if all[0].GPU != "GPU-ab000000-0000-0000-0000-000000000001" || all[0].Turn == nil || *all[0].Turn != p.slot || all[0].MemoryTurn == nil || *all[0].MemoryTurn != p.slot {
		t.Errorf("snapshot %+v", all[0])
	}
	slot.Memory.State.Store(math.MaxUint64)
	if all, err = Snapshots(base, os.Getuid()); err != nil || all[0].Peers[0].Memory.State != "unknown" {
		t.Errorf("Snapshots() with a state that there is not = %+v, %v", all, err)
	}
	p.kill()
	if all, err = Snapshots(base, os.Getuid()); err != nil || len(all[0].Peers) != 0 {
		t.Errorf("Snapshots() = %+v, %v", all, err)
	}
}

// FuzzHeader: only the one right header is valid, and no content of a segment can break a reader.
func FuzzHeader(f *testing.F) {
	right := identity(gpu, identifier{1})[:40]
	f.Add(right)
	f.Add(right[:39])
	f.Add(identity(gpu, identifier{1}))
	f.Add([]byte{})
	for i := range right {
		wrong := append([]byte{}, right...)
		wrong[i] ^= 0x80
		f.Add(wrong)
	}
	f.Add(binary.LittleEndian.AppendUint64(append([]byte{}, right...), math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := validateHeader(b, gpu)
		if valid := len(b) >= 40 && string(b[:40]) == string(right[:40]); valid != (err == nil) {
			t.Fatalf("%x: %v", b, err)
		}
		if err != nil && (!errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "\n")) {
			t.Fatalf("%x: %v", b, err)
		}
		image := newImage()
		copy(image, b)
		for offset := headerSize; len(b) > 64 && offset < memorySize; offset += slotSize {
			copy(image[offset:offset+slotSize], b[64:])
		}
		s := describe(image, func(slot int) (int32, bool) { return int32(slot), slot%2 == 0 })
		if len(s.Peers) != Slots/2 || len(s.Gone) > Slots/2 || s.Turn != nil && (*s.Turn < 0 || *s.Turn >= Slots) || s.MemoryTurn != nil && (*s.MemoryTurn < 0 || *s.MemoryTurn >= Slots) {
			t.Fatalf("%+v", s)
		}
		for _, p := range s.Peers {
			if m := p.Memory; m != nil && !slices.Contains(append(memoryStates, "unknown"), m.State) {
				t.Fatalf("%+v", m)
			}
		}
		for i := range Slots {
			if r := slotAt(image, i).Request(); r != 0 && (r.Asked() == AskedNothing || r.Asked() > AskedResume || r>>ownerShift != ownerOf(slotAt(image, i).StartedNs.Load())>>ownerShift) {
				t.Fatalf("slot %d: %#x is obeyed", i, r)
			}
		}
	})
}

func TestGroupID(t *testing.T) {
	for group, want := range map[string]int{"root": 0, "0": 0, "4711": 4711, "2147483647": 1<<31 - 1} {
		if gid, err := GroupID(group); err != nil || gid != want {
			t.Errorf("GroupID(%q) = %d, %v, want %d", group, gid, err, want)
		}
	}
	for _, group := range []string{"no-such-group", "2147483648", "-1"} {
		if gid, err := GroupID(group); err == nil || !strings.Contains(err.Error(), strconv.Quote(group)+": there is no such group; must be") {
			t.Errorf("GroupID(%q) = %d, %v", group, gid, err)
		}
	}
}
