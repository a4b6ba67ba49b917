package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
)

// examples are one sensible message of each type, with every field set that may be.
func examples(t testing.TB) []Message {
	objective := configs.Objective{Slowdown: 1.5, FirstMs: 200, Percentile: 99.99}.Word()
	p := Policy{Level: 3, Best: 2, Paused: 1, Per: PerRule, Share: 100_000, MaxHoldUs: 50_000, MemoryMB: 20_000, MemoryPart: 400_000, QuantumMs: 100, Objective: objective, Asked: 1 << 63}
	all := []Message{
		&Hello{Layout: 7, Wanted: 7, Back: 1, Injected: 1, GPU: [16]byte{1, 2}, Generation: 1 << 63, ID: 9, Name: [32]byte{'a'}},
		&Mapped{}, &Statistics{}, &Turn{Kind: TurnSeize, Which: TurnMemory, To: Slots, Seen: 77}, &Bye{}, &List{}, &Policies{}, &Query{Wanted: 7, Layout: 8},
		&Set{Pid: 4, Fields: SetLevel | SetShare | SetShareMax | SetPaused | SetObjective, Level: 7, Paused: 1, Share: 999_999, ShareMax: 1_000_000, Objective: objective},
		&Ask{ID: 5, Request: 1<<63 | uint64(AskResume)},
		&Welcome{ID: 5, Generation: 6, Slot: 63, Back: 1, Weaker: 1, Policy: p},
		&Common{Generation: 8}, &Peer{ID: 3, Slot: 1}, &Gone{ID: 3, Slot: 1}, &Ready{Generation: 8}, &Changed{p},
		&Refused{RefusedFull, 1000},
		&Entry{ID: 5, Pid: 6, UID: 7, Slot: 8, Member: 1, Socket: 2, Wanted: 3, Refused: uint8(RefusedOff), Set: SetShare, Policy: p, Overstays: 4, Name: [32]byte{'n'}, Rule: [32]byte{'r'}},
		&Text{Length: 480, Text: [480]byte{'x'}}, &Done{3},
		&Counted{StartedNs: 1, Clients: 2, Refused: [reasons]uint64{RefusedOff: 3}, Received: [fromThere]uint64{4, TypeStatistics: 5}, PolicyWrong: 1},
	}
	if len(all) != len(messages) {
		t.Fatalf("%d examples of %d messages", len(all), len(messages))
	}
	return all
}

func TestMessagesComeThrough(t *testing.T) {
	for _, m := range examples(t) {
		packet := Encode(m)
		if len(packet) > MaxSize {
			t.Errorf("%s has %d bytes", Name(m), len(packet))
		}
		got, err := Decode(packet)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s came as %+v, %v; was %+v", Name(m), got, err, m)
		}
	}
}

// A broken packet is no message: it is too short or too long, says another length, or has a value out of range.
func TestBrokenPacketsAreRefused(t *testing.T) {
	for _, m := range examples(t) {
		packet := Encode(m)
		for n := range len(packet) {
			if got, err := Decode(packet[:n]); err == nil {
				t.Fatalf("%s of %d bytes was read as %+v", Name(m), n, got)
			}
		}
		if got, err := Decode(append(bytes.Clone(packet), 0)); !errors.Is(err, ErrForm) {
			t.Errorf("%s with a byte too many was read as %+v, %v", Name(m), got, err)
		}
		longer := append(bytes.Clone(packet), 0)
		binary.LittleEndian.PutUint32(longer[4:], uint32(len(longer)))
		if got, err := Decode(longer); !errors.Is(err, ErrForm) {
			t.Errorf("%s that says so was read as %+v, %v", Name(m), got, err)
		}
		other := bytes.Clone(packet)
		other[0]++
		if _, err := Decode(other); !errors.Is(err, ErrVersion) {
			t.Errorf("%s of another version: %v", Name(m), err)
		}
	}
	none := configs.Objective{}.Word()
	for _, m := range []Message{
		&Hello{Wanted: Levels}, &Hello{Back: 2}, &Hello{Injected: 2}, &Hello{Name: [32]byte(bytes.Repeat([]byte("x"), 32))},
		&Turn{Kind: TurnSeize + 1}, &Turn{Which: 2}, &Turn{To: Slots + 1}, &Query{Wanted: Levels},
		&Set{}, &Set{Pid: -1, Fields: 1}, &Set{Pid: 1}, &Set{Pid: 1, Fields: setAll + 1}, &Set{Pid: 1, Fields: SetClear | SetLevel},
		&Set{Pid: 1, Fields: 1, Level: Levels}, &Set{Pid: 1, Fields: 1, Share: millionths}, &Set{Pid: 1, Fields: 1, Paused: 2},
		&Set{Pid: 1, Fields: SetObjective}, &Set{Pid: 1, Fields: 1, Objective: none}, &Set{Pid: 1, Fields: SetObjective, Objective: 1}, &Changed{Policy{Objective: none | 1}}, &Changed{Policy{Objective: 1}},
		&Ask{ID: 1}, &Ask{ID: 1, Request: uint64(AskResume) + 1}, &Ask{ID: 1, Request: 256},
		&Welcome{Slot: Slots}, &Welcome{Back: 2}, &Welcome{Policy: Policy{Level: Levels}}, &Welcome{Policy: Policy{Best: Levels}},
		&Changed{Policy{Paused: 2}}, &Changed{Policy{Share: millionths}}, &Changed{Policy{Per: pers}}, &Counted{PolicyWrong: 2}, &Entry{Refused: uint8(reasons)},
		&Peer{Slot: Slots}, &Gone{Slot: Slots}, &Refused{Reason: reasons}, &Entry{Slot: Slots}, &Text{Length: 481},
	} {
		if got, err := Decode(Encode(m)); err == nil || got != nil {
			t.Errorf("%T%+v was read", m, m)
		}
	}
}

func TestUnknownTypesCanBePassedOver(t *testing.T) {
	packet := Encode(&Bye{})
	binary.LittleEndian.PutUint16(packet[2:], 999)
	if _, err := Decode(packet); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

// A message of a later version may be as long as any, and no longer.
func TestTheLongestPacket(t *testing.T) {
	a, b := pair(t)
	for size, want := range map[int]error{MaxSize: ErrUnknown, MaxSize + 1: ErrForm, 2 * MaxSize: ErrForm} {
		packet := append(Encode(&Bye{}), make([]byte, size-headerSize)...)
		binary.LittleEndian.PutUint16(packet[2:], 999)
		binary.LittleEndian.PutUint32(packet[4:], uint32(size))
		if err := unix.Sendmsg(a, packet, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		if m, _, err := ReceiveAll(b); m != nil || !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, %v; must be %v", size, m, err, want)
		}
	}
}

func TestReasonsHaveTexts(t *testing.T) {
	for r := Reason(1); r < reasons; r++ {
		if reasonTexts[r] == "" || reasonNames[r] == "" {
			t.Errorf("reason %d has no text", r)
		}
	}
}

// A decoded message means the same as the packet, and an error means that there is no message.
func FuzzDecode(f *testing.F) {
	for _, m := range examples(f) {
		f.Add(Encode(m))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, err := Decode(packet)
		if (m == nil) != (err != nil) {
			t.Fatalf("%v and %v", m, err)
		}
		if err != nil {
			return
		}
		again, err := Decode(Encode(m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}

func pair(t *testing.T) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Of any number of descriptors, with any message, no more than are wanted stay open.
func TestDescriptorsDoNotStay(t *testing.T) {
	a, b := pair(t)
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	before := open(t)
	many := bytes.Repeat([]byte{0}, 100)
	fds := make([]int, len(many))
	for i := range fds {
		fds[i] = null
	}
	for _, most := range []int{0, 1, MaxDescriptors} {
		if err := Send(a, &Mapped{}, fds...); err != nil {
			t.Fatal(err)
		}
		m, got, err := Receive(b, most)
		if err != nil || m.Type() != TypeMapped || len(got) != most || open(t) != before+most {
			t.Fatalf("%v, %v, %v; %d descriptors more", m, got, err, open(t)-before)
		}
		CloseAll(got)
	}
	for range 20 { // with something that is no message
		packet := make([]byte, rand.IntN(2*MaxSize)+1)
		if err := unix.Sendmsg(a, packet, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		if m, got, err := Receive(b, MaxDescriptors); err == nil || m != nil || got != nil || open(t) != before {
			t.Fatalf("%v, %v, %v; %d descriptors more", m, got, err, open(t)-before)
		}
	}
	unix.Shutdown(a, unix.SHUT_RDWR)
	if _, _, err := Receive(b, 0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
