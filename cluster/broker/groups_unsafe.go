package broker

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

const soPeerGroups = 59 // SO_PEERGROUPS, of Linux 4.13

// peerGroups are the groups of the process that connected, at that time, beside its first one.
func peerGroups(socket int) ([]uint32, error) {
	var groups [mostGroups]uint32
	size := uint32(unsafe.Sizeof(groups))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET, soPeerGroups, uintptr(unsafe.Pointer(&groups)), uintptr(unsafe.Pointer(&size)), 0)
	if errno == unix.ERANGE {
		return nil, fmt.Errorf("%d: must be at most %d", size/4, mostGroups)
	}
	if errno != 0 {
		return nil, errno
	}
	return slices.Clone(groups[:size/4]), nil
}

func ended(pidfd int) bool {
	ready := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 0)
	return err == nil && n > 0
}
