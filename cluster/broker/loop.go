package broker

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// This file has the loop's inputs: descriptors, and commands of other goroutines.

func (s *Server) watch(fd int, events uint32) error {
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch a descriptor: %w", err)
	}
	return nil
}

// hear takes connections, or leaves them waiting.
func (s *Server) hear(on bool) {
	events := uint32(0)
	s.deaf = time.Time{}
	if on {
		events = unix.EPOLLIN
	} else {
		s.deaf = time.Now().Add(acceptAgain)
	}
	for fd := range s.listeners {
		_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}) // it is watched
	}
}

// interest sets the events of a connection that wake the loop.
func (s *Server) interest(c *connection) {
	events := uint32(0)
	if c.again.IsZero() && c.answer == nil {
		events |= unix.EPOLLIN
	}
	if c.full {
		events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: int32(c.fd)}) // it is watched
}

// Stop ends Run. It may be called from any goroutine, before Run too.
func (s *Server) Stop() { s.command(func() { s.stopped = true }) }

// Do runs something in the server's loop, between any two things that it does. It may be called from any goroutine.
func (s *Server) Do(what func()) { s.command(what) }

func (s *Server) command(do func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.wake < 0 { // it has ended
		return
	}
	s.commands = append(s.commands, do)
	_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if it is full: then it wakes
}
