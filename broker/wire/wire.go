// Package wire is what clients, people and the broker say to each other: the one list of messages, and their encoding.
//
// A message is one packet of a SOCK_SEQPACKET socket: eight bytes with version, type and length, then fields of fixed size,
// little endian, without gaps. The sender of a packet may be hostile.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"github.com/gpreempt/gpreempt/configs"
)

const (
	// Version of the messages. Peers with another one do not understand each other.
	Version = 3
	// Levels and Slots are those of preempt/segment.
	Levels = 8
	Slots  = 64
	// MaxDescriptors is how many go in one message.
	MaxDescriptors = 2
	// MaxSize is the length of the longest message, in bytes.
	MaxSize = 512

	headerSize = 8
)

// Type says what a message is.
type Type uint16

// The list of messages. Numbers from 16 on are the broker's.
const (
	TypeHello Type = iota + 1
	TypeMapped
	TypeTurn
	TypeBye
	TypeList
	TypeSet
	TypePolicies
	TypeQuery
	TypeAsk
	TypeStatistics
)

// The broker's messages.
const (
	TypeWelcome Type = iota + 16
	TypeCommon
	TypePeer
	TypeGone
	TypeReady
	TypePolicy
	TypeRefused
	TypeEntry
	TypeText
	TypeDone
	TypeCounted
)

// Message is one of the types below, as a pointer.
type Message interface {
	Type() Type
	check() error // what a receiver must be able to rely on
}

// Hello is the first message of a client.
type Hello struct {
	Layout     uint32 // version of what is in pages
	Wanted     uint8  // level
	Back       uint8  // 1: it was ID before, and still has its pages
	Injected   uint8  // 1: the maker of the container put the library in
	Slice      uint8  // 1: the UUID is that of a slice (MIG)
	GPU        [16]byte
	Generation uint64 // that ID is of
	ID         uint64
	Name       [32]byte // of the program, for people; NUL at the end
}

// Mapped says that the client has mapped its pages.
type Mapped struct{}

// Changes of a turn that a client may ask for.
const (
	TurnTake uint8 = iota
	TurnPass
	TurnSeize
)

// Which turn: of the GPU, or of its memory.
const (
	TurnRun uint8 = iota
	TurnMemory
)

// Turn asks the broker to change a turn.
type Turn struct {
	Kind  uint8
	Which uint8
	To    uint8 // a slot, or Slots: none; for TurnPass
	_     [5]uint8
	Seen  uint64 // the turn as the client saw it
}

// Bye says that the client leaves.
type Bye struct{}

// Policy is what a client may do.
type Policy struct {
	Level      uint8 // in force
	Best       uint8 // the best that it may have
	Paused     uint8
	Per        Per    // the clients with which it divides the rule's grant: Share and MemoryMB are its parts
	Share      uint32 // least part of the GPU's time, in millionths
	MaxHoldUs  uint32 // 0: the client's own setting
	MemoryMB   uint32 // 0: no limit
	MemoryPart uint32 // of the GPU's memory at most, in millionths; 0: no limit
	_          [4]uint8
	QuantumMs  uint32 // of turns
	ShareMax   uint32 // most part of the GPU's time, in millionths; 0: the client's own setting
	Objective  configs.ObjectiveWord
	Asked      uint64 // by people, of its memory: the last Ask's request; 0: nothing
}

// Welcome takes a client in. Two descriptors: its state, its counters. Neither if it is Back, and has them.
type Welcome struct {
	ID         uint64
	Generation uint64
	Slot       uint8
	Back       uint8
	Weaker     uint8 // 1: the kernel lacks F_SEAL_FUTURE_WRITE
	_          [5]uint8
	Policy     Policy
}

// Common has one descriptor: the common page of the GPU.
type Common struct{ Generation uint64 }

// Peer is a member. One descriptor: its state. Its level is in the common page.
type Peer struct {
	ID   uint64
	Slot uint8
	_    [7]uint8
}

// Gone says that a member left its slot.
type Gone struct {
	ID   uint64
	Slot uint8
	_    [7]uint8
}

// Ready says that all members have been told.
type Ready struct{ Generation uint64 }

// Changed is a Policy that changed.
type Changed struct{ Policy Policy }

// Reason why a client is refused.
type Reason uint32

// The reasons.
const (
	RefusedVersion Reason = iota + 1
	RefusedFull
	RefusedQuota
	RefusedPolicy
	RefusedRate
	RefusedLate
	RefusedForm
	RefusedIdentity
	RefusedPages
	RefusedBroken
	RefusedOff
	reasons
)

var reasonTexts = [reasons]string{
	RefusedVersion:  "another version of the library or the broker",
	RefusedFull:     "the GPU has as many clients as there are slots",
	RefusedQuota:    "the user or cgroup has as many clients as it may",
	RefusedPolicy:   "the policy does not admit it",
	RefusedRate:     "too many connections",
	RefusedLate:     "it said nothing for too long",
	RefusedForm:     "a message that makes no sense",
	RefusedIdentity: "the broker could not see who it is",
	RefusedPages:    "its pages could not be sealed",
	RefusedOff:      "the policy gives it no role: it runs as without gpreempt",
	RefusedBroken:   "the broker has no memory or descriptors left",
}

func (r Reason) String() string {
	if r > 0 && r < reasons {
		return reasonTexts[r]
	}
	return fmt.Sprintf("reason %d", uint32(r))
}

// Refused ends a connection, or a request.
type Refused struct {
	Reason  Reason
	RetryMs uint32 // not before; 0: never
}

// List asks for an Entry of each client, and Done.
type List struct{}

// Policies asks for the policy as Text, and Done.
type Policies struct{}

// Query asks what a client of this process would get, on any GPU. The answer is a Changed.
type Query struct {
	Wanted uint8 // level
	_      [3]uint8
	Layout uint32 // as in Hello
}

// Which fields of a Set are meant.
const (
	SetLevel uint8 = 1 << iota
	SetShare
	SetPaused
	SetClear // back to what the policy says; alone
	SetObjective
	SetShareMax

	setAll = SetLevel | SetShare | SetPaused | SetClear | SetObjective | SetShareMax
)

// Set changes all clients of a process. The answer is Done or Refused.
type Set struct {
	Pid      int32 // in the asker's PID namespace
	Fields   uint8
	Level    uint8
	Paused   uint8
	_        uint8
	Share    uint32 // millionths
	ShareMax uint32 // the same
	// Of SetObjective.
	Objective configs.ObjectiveWord
}

// The requests of an Ask: enum gp_asked of preempt/segment/segment.h, in bits 0 to 7.
const (
	AskOut uint8 = iota + 1
	AskIn
	AskSuspend
	AskResume
)

// Ask asks a client for something about its memory. Which client it is for, and which request it is, the rest of the request says: see
// segment.Request. The broker passes it on. The answer is Done or Refused.
type Ask struct {
	ID      uint64
	Request uint64
}

// What is asked.
func (m *Ask) What() uint8 { return uint8(m.Request) }

// Entry describes a client to people. Two descriptors, state and counters, where the asker is root or the client's user.
type Entry struct {
	ID     uint64
	GPU    [16]byte
	Pid    int32 // in the asker's PID namespace; 0: not to be seen there
	UID    uint32
	Slot   uint8
	Member uint8
	Socket uint8 // level of the directory by which it came
	Wanted uint8
	Set    uint8 // SetLevel, SetShare, SetPaused, SetObjective: what people changed
	Turns  uint8 // bit TurnRun, TurnMemory: it has that turn
	Ended  uint8 // 1: it is a member no more, and its pages say what it counted
	// Why the policy does not take it: RefusedPolicy or RefusedOff; 0: it is a client, or was one.
	Refused uint8
	Policy  Policy
	// How often a turn was taken from it by force.
	Overstays uint32
	Name      [32]byte
	Rule      [32]byte
	Cgroup    [255]byte // its end, if it is longer
	Slice     uint8     // as in Hello
}

// Text is a part of an answer for people.
type Text struct {
	Length uint16
	Text   [480]byte
}

// Done ends an answer. Count is how many clients it was about.
type Done struct{ Count uint32 }

// messages is the list by type.
var messages = map[Type]func() Message{
	TypeHello:      func() Message { return new(Hello) },
	TypeMapped:     func() Message { return new(Mapped) },
	TypeTurn:       func() Message { return new(Turn) },
	TypeBye:        func() Message { return new(Bye) },
	TypeList:       func() Message { return new(List) },
	TypeSet:        func() Message { return new(Set) },
	TypePolicies:   func() Message { return new(Policies) },
	TypeQuery:      func() Message { return new(Query) },
	TypeAsk:        func() Message { return new(Ask) },
	TypeStatistics: func() Message { return new(Statistics) },
	TypeWelcome:    func() Message { return new(Welcome) },
	TypeCommon:     func() Message { return new(Common) },
	TypePeer:       func() Message { return new(Peer) },
	TypeGone:       func() Message { return new(Gone) },
	TypeReady:      func() Message { return new(Ready) },
	TypePolicy:     func() Message { return new(Changed) },
	TypeRefused:    func() Message { return new(Refused) },
	TypeEntry:      func() Message { return new(Entry) },
	TypeText:       func() Message { return new(Text) },
	TypeDone:       func() Message { return new(Done) },
	TypeCounted:    func() Message { return new(Counted) },
}

// Type says what the message is.
func (*Hello) Type() Type    { return TypeHello }
func (*Mapped) Type() Type   { return TypeMapped }
func (*Turn) Type() Type     { return TypeTurn }
func (*Bye) Type() Type      { return TypeBye }
func (*List) Type() Type     { return TypeList }
func (*Set) Type() Type      { return TypeSet }
func (*Policies) Type() Type { return TypePolicies }
func (*Query) Type() Type    { return TypeQuery }
func (*Ask) Type() Type      { return TypeAsk }
func (*Welcome) Type() Type  { return TypeWelcome }
func (*Common) Type() Type   { return TypeCommon }
func (*Peer) Type() Type     { return TypePeer }
func (*Gone) Type() Type     { return TypeGone }
func (*Ready) Type() Type    { return TypeReady }
func (*Changed) Type() Type  { return TypePolicy }
func (*Refused) Type() Type  { return TypeRefused }
func (*Entry) Type() Type    { return TypeEntry }
func (*Text) Type() Type     { return TypeText }
func (*Done) Type() Type     { return TypeDone }

var (
	// ErrForm is wrapped by errors about packets that are no messages.
	ErrForm = errors.New("not a message")
	// ErrVersion is wrapped by errors about messages of another version.
	ErrVersion = errors.New("another version of the protocol")
	// ErrUnknown is wrapped by errors about messages of a type that is not known. They are to be passed over.
	ErrUnknown = errors.New("unknown type of message")
)

// limit is a field that must be at most so much.
type limit struct {
	name        string
	value, most uint64
}

func within(limits ...limit) error {
	for _, l := range limits {
		if l.value > l.most {
			return fmt.Errorf("%w: %s %d, must be at most %d", ErrForm, l.name, l.value, l.most)
		}
	}
	return nil
}

func flag(name string, value uint8) limit  { return limit{name, uint64(value), 1} }
func level(name string, value uint8) limit { return limit{name, uint64(value), Levels - 1} }
func slot(value uint8) limit               { return limit{"slot", uint64(value), Slots - 1} }

const millionths = 1_000_000

func (p Policy) limits() []limit {
	return []limit{level("level", p.Level), level("best", p.Best), flag("paused", p.Paused), {"per", uint64(p.Per), uint64(pers - 1)}, {"share", uint64(p.Share), millionths - 1}, {"share_max", uint64(p.ShareMax), millionths}, objective(p.Objective)}
}

// objective is a limit that one breaks which makes no sense. One that says nothing is allowed.
func objective(word configs.ObjectiveWord) limit {
	if _, ok := word.Objective(configs.Objective{}); ok || !word.Says() {
		return limit{"objective", 0, 0}
	}
	return limit{"objective", uint64(word), 0}
}

func (m *Hello) check() error {
	return within(level("wanted", m.Wanted), flag("back", m.Back), flag("injected", m.Injected), flag("slice", m.Slice), limit{"end of name", uint64(m.Name[len(m.Name)-1]), 0})
}
func (*Mapped) check() error { return nil }
func (m *Turn) check() error {
	return within(limit{"kind", uint64(m.Kind), uint64(TurnSeize)}, limit{"which", uint64(m.Which), uint64(TurnMemory)}, limit{"to", uint64(m.To), Slots})
}
func (*Bye) check() error      { return nil }
func (*List) check() error     { return nil }
func (*Policies) check() error { return nil }
func (m *Query) check() error  { return within(level("wanted", m.Wanted)) }
func (m *Set) check() error {
	if m.Pid <= 0 || m.Fields == 0 || m.Fields&SetClear != 0 && m.Fields != SetClear || m.Fields&SetShareMax != 0 && m.ShareMax == 0 || (m.Fields&SetObjective != 0) != m.Objective.Says() {
		return fmt.Errorf("%w: set pid %d, fields %#x", ErrForm, m.Pid, m.Fields)
	}
	return within(limit{"fields", uint64(m.Fields), uint64(setAll)}, level("level", m.Level), flag("paused", m.Paused), limit{"share", uint64(m.Share), millionths - 1}, limit{"share_max", uint64(m.ShareMax), millionths}, objective(m.Objective))
}
func (m *Ask) check() error {
	if m.What() == 0 {
		return fmt.Errorf("%w: nothing is asked", ErrForm)
	}
	return within(limit{"request", uint64(m.What()), uint64(AskResume)})
}
func (m *Welcome) check() error {
	return within(append(m.Policy.limits(), slot(m.Slot), flag("back", m.Back), flag("weaker", m.Weaker))...)
}
func (*Common) check() error    { return nil }
func (m *Peer) check() error    { return within(slot(m.Slot)) }
func (m *Gone) check() error    { return within(slot(m.Slot)) }
func (*Ready) check() error     { return nil }
func (m *Changed) check() error { return within(m.Policy.limits()...) }
func (m *Refused) check() error {
	return within(limit{"reason", uint64(m.Reason), uint64(reasons - 1)})
}
func (m *Entry) check() error {
	return within(append(m.Policy.limits(), slot(m.Slot), flag("member", m.Member), flag("ended", m.Ended), limit{"refused", uint64(m.Refused), uint64(reasons - 1)}, level("socket", m.Socket), level("wanted", m.Wanted))...)
}
func (m *Text) check() error { return within(limit{"length", uint64(m.Length), uint64(len(m.Text))}) }
func (*Done) check() error   { return nil }

// Encode returns the packet of a message.
func Encode(m Message) []byte {
	b := make([]byte, headerSize, headerSize+binary.Size(m))
	b, err := binary.Append(b, binary.LittleEndian, m)
	if err != nil {
		panic(fmt.Sprintf("wire: %T: %v", m, err)) // a message without a fixed size; a test encodes each
	}
	binary.LittleEndian.PutUint16(b, Version)
	binary.LittleEndian.PutUint16(b[2:], uint16(m.Type()))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	return b
}

// Decode reads a packet. The message is nil exactly if there is an error.
func Decode(packet []byte) (Message, error) {
	if len(packet) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrForm, len(packet))
	}
	if v := binary.LittleEndian.Uint16(packet); v != Version {
		return nil, fmt.Errorf("%w: %d, must be %d", ErrVersion, v, Version)
	}
	kind, length := Type(binary.LittleEndian.Uint16(packet[2:])), binary.LittleEndian.Uint32(packet[4:])
	if uint64(length) != uint64(len(packet)) {
		return nil, fmt.Errorf("%w: a packet of %d bytes says %d", ErrForm, len(packet), length)
	}
	create, known := messages[kind]
	if !known {
		return nil, fmt.Errorf("%w: %d", ErrUnknown, kind)
	}
	m := create()
	if want := headerSize + binary.Size(m); len(packet) != want {
		return nil, fmt.Errorf("%w: %T of %d bytes, must be %d", ErrForm, m, len(packet), want)
	}
	if _, err := binary.Decode(packet[headerSize:], binary.LittleEndian, m); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrForm, m, err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%T: %w", m, err)
	}
	return m, nil
}

// Size is the length of a message's packet.
func Size(m Message) int { return headerSize + binary.Size(m) }

// Name returns the name of a message, for logs.
func Name(m Message) string { return reflect.TypeOf(m).Elem().Name() }
