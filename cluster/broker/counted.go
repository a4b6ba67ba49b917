package broker

import (
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
)

// This file has the broker's counters, for people who watch it.

// send sends a message, and counts it.
func (s *Server) send(fd int, m wire.Message, descriptors ...int) error {
	err := wire.Send(fd, m, descriptors...)
	if err == nil {
		s.counted.Sent++
		s.counted.SentBytes += uint64(wire.Size(m))
	}
	return err
}

// received counts what came; nil: it was no message.
func (s *Server) received(m wire.Message) {
	if m == nil || int(m.Type()) >= len(s.counted.Received) {
		s.counted.Received[0]++
		return
	}
	s.counted.Received[m.Type()]++
	s.counted.ReceivedBytes += uint64(wire.Size(m))
}

// refusal is a message that refuses something, counted.
func (s *Server) refusal(reason wire.Reason, again time.Duration) *wire.Refused {
	s.counted.Refused[reason]++
	return &wire.Refused{Reason: reason, RetryMs: uint32(again / time.Millisecond)}
}

// PolicyWrong notes that the policy's file could not be read, so that another policy is in force. SetPolicy ends that.
func (s *Server) PolicyWrong() { s.command(func() { s.counted.PolicyWrong = 1 }) }

func (s *Server) statistics() *wire.Counted {
	now := s.counted
	now.Clients, now.Members, now.Connections, now.GPUs = uint32(len(s.clients)), uint32(s.members), uint32(len(s.connections)), uint32(len(s.gpus))
	return &now
}
