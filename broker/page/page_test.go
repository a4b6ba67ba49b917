package page

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const attackOf = "GPREEMPT_TEST_ATTACK" // the test binary is one that got a page as descriptor 3: number of bytes

func TestMain(m *testing.M) {
	if os.Getenv(attackOf) != "" {
		if broken := attack(3); len(broken) > 0 {
			fmt.Println(strings.Join(broken, "\n"))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// attack tries to change a page by its descriptor, in every known way, and returns the ways that worked.
func attack(fd int) (broken []string) {
	size := Size()
	tried := func(what string, err error) {
		if err == nil {
			broken = append(broken, what)
		}
	}
	data := []byte{1}
	proc := "/proc/self/fd/" + strconv.Itoa(fd)
	for _, by := range []struct {
		name string
		fd   func() (int, error)
	}{
		{"as it is", func() (int, error) { return fd, nil }},
		{"opened again", func() (int, error) { return unix.Open(proc, unix.O_RDWR|unix.O_CLOEXEC, 0) }},
		{"opened to be written", func() (int, error) { return unix.Open(proc, unix.O_WRONLY|unix.O_CLOEXEC, 0) }},
	} {
		fd, err := by.fd()
		if err != nil {
			continue // not even that
		}
		_, err = unix.Pwrite(fd, data, 0)
		tried("write, "+by.name, err)
		_, err = unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		tried("map, "+by.name, err)
		_, err = unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_WRITE, unix.MAP_SHARED_VALIDATE)
		tried("map to be written, "+by.name, err)
		tried("truncate, "+by.name, unix.Ftruncate(fd, 0))
		tried("grow, "+by.name, unix.Ftruncate(fd, int64(2*size)))
		tried("punch, "+by.name, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(size)))
		tried("allocate more, "+by.name, unix.Fallocate(fd, 0, 0, int64(2*size)))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
		tried("seal, "+by.name, err)
	}
	tried("truncate by name", unix.Truncate(proc, 0))
	if m, err := Map(fd, false); err == nil {
		page := m.Bytes()
		tried("mprotect", unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE))
		if moved, err := unix.MremapPtr(unsafe.Pointer(&page[0]), uintptr(size), nil, uintptr(2*size), unix.MREMAP_MAYMOVE); err == nil {
			tried("mprotect after mremap", unix.Mprotect(unsafe.Slice((*byte)(moved), size), unix.PROT_READ|unix.PROT_WRITE))
		}
	} else {
		broken = append(broken, "cannot be read: "+err.Error())
	}
	return broken
}

// attackAs runs attack in a process of a user.
func attackAs(t *testing.T, uid int, fd int) error {
	t.Helper()
	binary, err := os.Open("/proc/self/exe") // a user who may not read the test's folder can run it all the same
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	page := os.NewFile(uintptr(again), "page")
	defer page.Close()
	attacker := exec.Command("/proc/self/fd/4")
	attacker.Env = []string{attackOf + "=1"}
	attacker.ExtraFiles = []*os.File{page, binary}
	if uid != os.Getuid() {
		attacker.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if out, err := attacker.CombinedOutput(); err != nil {
		return fmt.Errorf("user %d: %w\n%s", uid, err, out)
	}
	return nil
}

func users(t *testing.T) []int {
	if os.Getuid() != 0 {
		t.Log("not root: other users cannot be tried")
		return []int{os.Getuid()}
	}
	return []int{0, 1000}
}

func made(t *testing.T) int {
	t.Helper()
	fd, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// The owner writes a sealed page by the mapping that it had, and others see it. No process can change it otherwise.
func TestOnlyTheOwnerWrites(t *testing.T) {
	fd := made(t)
	own, err := Map(fd, true)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Unmap()
	show, weaker, err := Seal(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(show)
	if weaker {
		t.Skip("this kernel has no F_SEAL_FUTURE_WRITE")
	}
	if err := Check(show, false); err != nil {
		t.Fatal(err)
	}
	for _, uid := range users(t) {
		if err := attackAs(t, uid, show); err != nil {
			t.Error(err)
		}
	}
	peer, err := Map(show, false)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Unmap()
	own.Line(40).WindowOpenedNs.Store(17)
	if got := peer.Line(40).WindowOpenedNs.Load(); got != 17 {
		t.Errorf("a peer sees %d", got)
	}
}

// A page that is not sealed can be changed by the attacks: they are able to.
func TestAttacksWorkOnOpenPages(t *testing.T) {
	fd := made(t)
	defer unix.Close(fd)
	for _, uid := range users(t) {
		if err := attackAs(t, uid, fd); err == nil || !strings.Contains(err.Error(), "mprotect") || !strings.Contains(err.Error(), "map, opened again") {
			t.Errorf("nothing of what was tried was seen to work: %v", err)
		}
	}
}

// An owner that does something to its page before it is sealed is refused.
func TestOwnersCannotPrepareTheirPage(t *testing.T) {
	for name, prepare := range map[string]func(fd int) error{
		"shrink":     func(fd int) error { return unix.Ftruncate(fd, 1) },
		"grow":       func(fd int) error { return unix.Ftruncate(fd, 1<<20) },
		"seal":       func(fd int) error { return addSeals(fd, unix.F_SEAL_SEAL) },
		"seal write": func(fd int) error { return addSeals(fd, unix.F_SEAL_WRITE) },
		"seal some":  func(fd int) error { return addSeals(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL) },
	} {
		fd := made(t)
		if err := prepare(fd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if show, _, err := Seal(fd); err == nil {
			unix.Close(show)
			t.Errorf("%s: the page was sealed all the same", name)
		}
	}
}

func TestChecksSeeOtherFiles(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(Size())); err != nil {
		t.Fatal(err)
	}
	open := made(t)
	defer unix.Close(open)
	for name, fd := range map[string]int{"a file": int(file.Fd()), "a page that is not sealed": open, "no descriptor": -1} {
		if err := Check(fd, false); !errors.Is(err, ErrPage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, fd := range map[string]int{"no descriptor": -1, "another size": func() int {
		fd := made(t)
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, 1); err != nil {
			t.Fatal(err)
		}
		return fd
	}()} {
		if err := Own(fd); !errors.Is(err, ErrPage) {
			t.Errorf("own, %s: %v", name, err)
		}
	}
	if err := Own(open); err != nil {
		t.Error(err)
	}
}

// Where the kernel lacks F_SEAL_FUTURE_WRITE, other users cannot write a page, and it says that it is weaker.
func TestOldKernels(t *testing.T) {
	real := addSeals
	defer func() { addSeals = real }()
	addSeals = func(fd, seals int) error {
		if seals&unix.F_SEAL_FUTURE_WRITE != 0 {
			return unix.EINVAL
		}
		return real(fd, seals)
	}
	if weaker, err := Weaker(); err != nil || !weaker {
		t.Fatal(weaker, err)
	}
	fd := made(t)
	own, err := Map(fd, true)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Unmap()
	show, weaker, err := Seal(fd)
	if err != nil || !weaker {
		t.Fatal(weaker, err)
	}
	defer unix.Close(show)
	if err := errors.Join(Check(show, true)); err != nil {
		t.Error(err)
	}
	if err := Check(show, false); err == nil {
		t.Error("the weaker page passes for a sealed one")
	}
	own.Bytes()[0] = 1 // the owner still can
	if os.Getuid() != 0 {
		t.Skip("needs another user")
	}
	if err := attackAs(t, 1000, show); err != nil {
		t.Error(err)
	}
}

// Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
func TestKernelsWithoutNoexec(t *testing.T) {
	real := memfd
	defer func() { memfd = real }()
	memfd = func(name string, flags int) (int, error) {
		if flags&unix.MFD_NOEXEC_SEAL != 0 {
			return -1, unix.EINVAL
		}
		return real(name, flags)
	}
	show, _, err := Seal(made(t))
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(show)
}

// A process that can only read a page can wait on it, and its owner can wake it.
func TestWaitingOnAReadOnlyPage(t *testing.T) {
	fd := made(t)
	defer unix.Close(fd)
	own, err := Map(fd, true)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Unmap()
	peer, err := Map(fd, false)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Unmap()
	const rounds = 2000
	var seen atomic.Uint32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for word := &peer.Line(3).Rings.Gate; seen.Load() < rounds; {
			Wait(word, seen.Load(), time.Minute) // a lost wake-up would be a test that takes a minute, and then fails
			seen.Store(word.Load())
		}
	}()
	for i := range uint32(rounds) {
		Ring(&own.Line(3).Rings.Gate)
		for i%7 == 0 && seen.Load() != i+1 {
			time.Sleep(time.Microsecond)
		}
	}
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("a wake-up was lost after %d rounds", seen.Load())
	}
}

// A page that its owner has taken keeps its size, against the broker that made it. It is sealed as any other later.
func TestAnOwnersPageKeepsItsSize(t *testing.T) {
	fd, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	if err := Own(fd); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1, int64(Size()) + 1} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("it was made %d bytes long: %v", size, err)
		}
	}
	fd, _, err = Seal(fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}
