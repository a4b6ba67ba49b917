package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The memory is a file without a name (memfd). It is sealed so that no process can truncate it, which would end the processes that touch
// its mapping. Every member sends the memory's descriptor to processes that connect to the member's socket, beside the file with the
// locks. That file says which memory is in force. If no member answers, a new process makes a new memory; the members see that in the
// file and change to it.

// seals without which a memory is not mapped.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

const (
	answerWithin = 500 * time.Millisecond // how long members have to send the memory
	joinWithin   = 2 * time.Second        // another process may be joining
)

func newIdentifier() (id identifier) {
	// crypto/rand would end the process where a filter of system calls refuses this one.
	if n, err := unix.Getrandom(id[:], 0); err != nil || n != len(id) {
		binary.LittleEndian.PutUint64(id[:], uint64(time.Now().UnixNano())) // it only has to be another one
		binary.LittleEndian.PutUint32(id[8:], uint32(os.Getpid()))
		binary.LittleEndian.PutUint32(id[12:], rand.Uint32())
	}
	return id
}

// newMemory makes an empty memory.
func newMemory(gpu GPU, id identifier) (fd int, err error) {
	const name = "gpreempt"
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("make memory: %w", err)
	}
	image := make([]byte, memorySize)
	copy(image, identity(gpu, id))
	if _, err = unix.Pwrite(fd, image, 0); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		err = checkMemory(fd, gpu, id)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make memory: %w", err)
	}
	return fd, nil
}

// checkMemory checks a descriptor from a peer: it can be mapped safely, and is the wanted memory.
func checkMemory(fd int, gpu GPU, id identifier) error {
	var stat unix.Stat_t
	var on unix.Statfs_t
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err := errors.Join(err, unix.Fstat(fd, &stat), unix.Fstatfs(fd, &on)); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	// Huge pages may run out when they are touched. F_SEAL_EXEC is MFD_NOEXEC_SEAL's.
	if has&seals != seals || has&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 || on.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: memory with seals %#x", ErrCorrupt, has)
	}
	if stat.Size != memorySize {
		return fmt.Errorf("%w: memory of %d bytes, must be %d", ErrCorrupt, stat.Size, memorySize)
	}
	var line [64]byte
	if _, err := unix.Pread(fd, line[:], 0); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := validateHeader(line[:], gpu); err != nil {
		return err
	}
	if identifier(line[40:56]) != id {
		return fmt.Errorf("%w: another memory than the one in force", ErrCorrupt)
	}
	return nil
}

// keep gets the memory from the members that hold slots, or makes a new one, which the lock of joining is needed for. It maps the memory and starts the goroutine that hands it out.
func keep(dir, name string, gpu GPU, gid int, id identifier, held uint64, makes bool) (*keeper, error) {
	k := &keeper{dir: dir, name: name, gid: gid, id: id, makes: makes, listen: make(chan int, 1), done: make(chan error, 1)}
	go k.run(gpu, held)
	return k, <-k.done
}

var errNobody = errors.New("none of its processes answers")

func (k *keeper) run(gpu GPU, held uint64) {
	fd, err := ask(k.dir, k.name, gpu, k.id, held)
	if err != nil && !k.makes {
		err = errJoining
	} else if err != nil { // a new name: a process that is stopped may have the memory of the old one
		k.id = newIdentifier()
		fd, err = newMemory(gpu, k.id)
	}
	if err == nil {
		defer unix.Close(fd)
		k.memory, err = mapShared(fd)
	}
	if err == nil {
		if k.again, err = mapAgain(fd); err != nil {
			_ = unmap(k.memory)
		}
	}
	k.fd = fd
	k.done <- err
	if err != nil {
		return
	}
	if slot, more := <-k.listen; more {
		listener, err := k.bind(slot)
		k.done <- err
		if err == nil {
			k.serve(listener, fd)
		}
	}
}

// offer starts to hand out the memory at the socket of a slot, and shows the slot where its owner writes. The slot's lock is held.
func (k *keeper) offer(memory []byte, slot int) error {
	if k.again == nil {
		if slot != k.slot {
			return fmt.Errorf("another slot was taken before: %d", k.slot)
		}
		return nil
	}
	again := k.again
	k.again, k.slot = nil, -1
	k.listen <- slot
	if err := <-k.done; err != nil {
		return errors.Join(err, unmap(again))
	}
	if err := moveOwn(memory, again, slot); err != nil {
		return err
	}
	k.slot = slot
	return nil
}

func (k *keeper) end() {
	if k.ended.Swap(true) {
		return
	}
	close(k.listen)
	if k.again != nil {
		_ = unmap(k.again)
	}
}

// address of a slot's socket. The holder of the slot's lock binds it.
func address(dirfd int, dir, name string, slot int) *unix.SockaddrUnix {
	const longest = 107 // of sockaddr_un
	path := filepath.Join(dir, fmt.Sprintf("%s.%d", name, slot))
	if len(path) > longest {
		path = fmt.Sprintf("/proc/thread-self/fd/%d/%s.%d", dirfd, name, slot)
	}
	return &unix.SockaddrUnix{Name: path}
}

func (k *keeper) bind(slot int) (fd int, err error) {
	dirfd, err := openPrivate(k.dir, k.gid)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dirfd)
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	at, mode := address(dirfd, k.dir, k.name, slot), uint32(0o600)
	name := filepath.Base(at.Name)
	if k.gid >= 0 {
		mode = 0o660
	}
	_ = unix.Unlinkat(dirfd, name, 0) // of the slot's former owner
	if err = unix.Bind(fd, at); err == nil {
		if k.gid >= 0 {
			err = unix.Fchownat(dirfd, name, -1, k.gid, unix.AT_SYMLINK_NOFOLLOW)
		}
		err = errors.Join(err, unix.Fchmodat(dirfd, name, mode, 0), unix.Listen(fd, Slots))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", at.Name, err)
	}
	return fd, nil
}

// serveAgain is how long serve rests after the system has refused a call.
const serveAgain = 100 * time.Millisecond

// serve sends the memory to processes that connect. It never waits for the other side.
func (k *keeper) serve(listener, memory int) {
	defer unix.Close(listener)
	for !k.ended.Load() {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, int(time.Second/time.Millisecond)); err != nil || n == 0 {
			if err != nil && !errors.Is(err, unix.EINTR) {
				time.Sleep(serveAgain)
			}
			continue
		}
		client, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil { // out of descriptors, say: poll would return at once
			time.Sleep(serveAgain)
			continue
		}
		_ = unix.Sendmsg(client, []byte{0}, unix.UnixRights(memory), nil, unix.MSG_NOSIGNAL)
		unix.Close(client)
	}
}

// ask gets the memory from one of the members whose slots are held.
func ask(dir, name string, gpu GPU, id identifier, held uint64) (memory int, err error) {
	dirfd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open directory: %w", err)
	}
	defer unix.Close(dirfd)
	var asked []unix.PollFd
	defer func() {
		for _, a := range asked {
			if a.Fd >= 0 {
				unix.Close(int(a.Fd))
			}
		}
	}()
	for slot := range Slots {
		if held&(1<<slot) == 0 {
			continue
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return -1, fmt.Errorf("socket: %w", err)
		}
		if unix.Connect(fd, address(dirfd, dir, name, slot)) != nil {
			unix.Close(fd)
			continue
		}
		asked = append(asked, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	err = errNobody
	for open, deadline := len(asked), time.Now().Add(answerWithin); open > 0; {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		if _, pollErr := unix.Poll(asked, int(left/time.Millisecond)+1); pollErr != nil {
			continue // EINTR
		}
		for i := range asked {
			a := &asked[i]
			if a.Fd < 0 || a.Revents == 0 {
				continue
			}
			fd, bad := receive(int(a.Fd))
			unix.Close(int(a.Fd))
			a.Fd = -1 // passed over by poll
			open--
			if bad == nil {
				if bad = checkMemory(fd, gpu, id); bad == nil {
					return fd, nil
				}
				unix.Close(fd)
			}
			err = bad
		}
	}
	return -1, err
}

// receive reads one descriptor, and closes all others that were sent.
func receive(socket int) (int, error) {
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4*253)) // SCM_MAX_FD
	_, n, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return -1, err
	}
	found := -1
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if found >= 0 {
				unix.Close(fd)
				continue
			}
			found = fd
		}
	}
	if found < 0 {
		return -1, errNobody
	}
	return found, nil
}

// inForce reads from the file which memory is in force.
func inForce(fd int) (id identifier, err error) {
	var line [fileSize]byte
	n, err := unix.Pread(fd, line[:], 0)
	if err == nil && n != len(line) {
		err = ErrCorrupt
	}
	return identifier(line[40:56]), err
}

const allSlots = math.MaxUint64

// errJoining says that a process has the lock for joining, and may be stopped. Others do without the lock where a member hands out the memory.
var errJoining = errors.New("another process has been joining for too long")

// lockJoin lets one process at a time find or make the memory, until that process can hand it out itself.
func (s *Segment) lockJoin(within time.Duration) error {
	for deadline := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		err := lock(s.fd, lockOfJoin, 1)
		if err == nil || !isLocked(err) {
			return err
		}
		if time.Now().After(deadline) {
			return errJoining
		}
	}
}

// repair writes the file's contents again, after a process overwrote or truncated it.
func (s *Segment) repair(identity []byte) {
	if lock(s.fd, lockOfJoin, 1) != nil {
		return // next time
	}
	_, _ = unix.Pwrite(s.fd, identity, 0)
	_ = unix.Ftruncate(s.fd, fileSize)
	unlock(s.fd, lockOfJoin)
}
