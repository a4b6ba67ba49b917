package wire

import "strings"

// Statistics asks for the broker's counts, as Counted. Any process that reaches the broker may ask: they are about no process in
// particular.
type Statistics struct{}

// Counted has a broker's counts since it started, and the present numbers.
type Counted struct {
	StartedNs                           uint64 // since 1970
	Clients, Members, Connections, GPUs uint32
	Joined, Returned                    uint64            // clients that became members; that came back by another connection
	Refused                             [reasons]uint64   // by Reason; of 0 none
	Received                            [fromThere]uint64 // messages, by Type; of 0 what was none
	Sent                                uint64            // messages
	ReceivedBytes, SentBytes            uint64
	Throttled                           uint64 // Times that a connection was not read for a while, since too much had come.
	Lost                                uint64 // Members that did not read their messages.
	Failed                              uint64 // Conditions of the policy that could not be evaluated.
	PolicyWrong                         uint8  // 1: the policy's file was wrong when it was read last, and the one before it is in force.
	_                                   [7]uint8
}

// fromThere is how many types of messages clients and people send, and one.
const fromThere = TypeStatistics + 1

// Type is Message's.
func (*Statistics) Type() Type { return TypeStatistics }

// Type is Message's.
func (*Counted) Type() Type { return TypeCounted }

func (*Statistics) check() error { return nil }
func (m *Counted) check() error  { return within(flag("policy wrong", m.PolicyWrong)) }

var reasonNames = [reasons]string{RefusedVersion: "version", RefusedFull: "full", RefusedQuota: "quota", RefusedPolicy: "policy", RefusedRate: "rate",
	RefusedLate: "late", RefusedForm: "form", RefusedIdentity: "identity", RefusedPages: "pages", RefusedBroken: "broken", RefusedOff: "off"}

// RefusedBy are the reasons that were counted, by a word each.
func (m *Counted) RefusedBy() map[string]uint64 {
	all := map[string]uint64{}
	for r := Reason(1); r < reasons; r++ {
		all[reasonNames[r]] = m.Refused[r]
	}
	return all
}

// ReceivedBy are the messages that were counted, by their type's name.
func (m *Counted) ReceivedBy() map[string]uint64 {
	all := map[string]uint64{"none": m.Received[0]}
	for t := Type(1); t < fromThere; t++ {
		all[strings.ToLower(Name(messages[t]()))] = m.Received[t]
	}
	return all
}
