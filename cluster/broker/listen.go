package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait until they are taken: the kernel's default limit.
const backlog = 4096

// Bind makes a listening socket at a path. Anybody may connect who can reach it. Bind makes the folder too, with that mode and that group
// (negative: leaves the group). It replaces a socket that is there, so that there is always one. The caller sees to it that no other broker
// binds it at the same time, since Bind removes what a killed broker has left there.
func Bind(path string, mode os.FileMode, gid int) (fd int, err error) {
	folder := filepath.Dir(path)
	if err := os.Mkdir(folder, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if gid >= 0 {
		if err := os.Chown(folder, -1, gid); err != nil {
			return -1, fmt.Errorf("socket: %w", err)
		}
	}
	if err := os.Chmod(folder, mode); err != nil { // whatever the umask
		return -1, fmt.Errorf("socket: %w", err)
	}
	return bind(path, 0o666)
}

// BindAdmin makes the administrator's socket in a folder that there is, for this process's user alone. It is Bind otherwise.
func BindAdmin(path string) (fd int, err error) { return bind(path, 0o600) }

func bind(path string, mode os.FileMode) (fd int, err error) {
	const longest = 107 // of sockaddr_un
	temporary := path + ".new"
	if len(temporary) > longest {
		return -1, fmt.Errorf("socket %s: the path must be at most %d bytes long", path, longest-len(temporary)+len(path))
	}
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	defer os.Remove(temporary) // fails once it is renamed
	_ = os.Remove(temporary)   // else nobody was killed here
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: temporary})
	if err == nil { // nobody can connect before it listens, when it has its mode
		err = os.Chmod(temporary, mode)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("socket %s: %w", path, err)
	}
	return fd, nil
}
