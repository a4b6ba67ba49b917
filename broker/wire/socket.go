package wire

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Send sends a message with descriptors, which stay the caller's. It does not wait: unix.EAGAIN means that the other side does
// not read.
func Send(socket int, m Message, descriptors ...int) error {
	var control []byte
	if len(descriptors) > 0 {
		control = unix.UnixRights(descriptors...)
	}
	for {
		err := unix.Sendmsg(socket, Encode(m), control, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ErrClosed is returned by Receive at the end of a connection.
var ErrClosed = errors.New("the connection is closed")

// Receive reads a packet, of which the socket's flags say whether it waits. Of the descriptors that came, the first most are
// returned and are the caller's; all others are closed. The message is nil exactly if there is an error, and then there are no
// descriptors.
func Receive(socket, most int) (m Message, descriptors []int, err error) {
	if m, descriptors, err = ReceiveAll(socket); err != nil {
		most = 0
	}
	if len(descriptors) > most {
		CloseAll(descriptors[most:])
		descriptors = descriptors[:most]
	}
	if err != nil {
		descriptors = nil
	}
	return m, descriptors, err
}

// ReceiveAll is Receive with all descriptors that came, also if there is an error. They are the caller's, and to close the last
// descriptor of a file may take long.
func ReceiveAll(socket int) (m Message, descriptors []int, err error) {
	packet := make([]byte, MaxSize+1)
	control := make([]byte, unix.CmsgSpace(4*253)) // SCM_MAX_FD
	var n, controlled, flags int
	for {
		n, controlled, flags, _, err = unix.Recvmsg(socket, packet, control, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	descriptors = rights(control[:controlled])
	switch {
	case n == 0 && controlled == 0:
		err = ErrClosed // an empty packet says the same: it is no message
	case n > MaxSize || flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: longer than %d bytes", ErrForm, MaxSize)
	default:
		m, err = Decode(packet[:n])
	}
	if err != nil {
		return nil, descriptors, err
	}
	return m, descriptors, nil
}

// rights lists the descriptors of control messages. Every one that the kernel made is in the list.
func rights(control []byte) (all []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}

// CloseAll closes descriptors.
func CloseAll(descriptors []int) {
	for _, fd := range descriptors {
		unix.Close(fd)
	}
}
