package main

// #include "shim/shim.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
	"github.com/gpreempt/gpreempt/patch/cache"
	"github.com/gpreempt/gpreempt/preempt/agent"
)

// rewriter gives package preempt what patch makes of code.
type rewriter struct {
	config configs.Config
	log    zerolog.Logger

	once    sync.Once // what follows is made when code is loaded
	made    cache.Rewriter
	release *time.Timer
}

// Rewriting takes several times an image's memory, which is given back to the program when no more comes.
const releaseAfter = time.Second

func (r *rewriter) make() *cache.Rewriter {
	r.once.Do(func() {
		r.release = time.AfterFunc(releaseAfter, debug.FreeOSMemory)
		notKept := func(err error) { r.log.Debug().Err(err).Msg("rewritten code is not kept") }
		r.made = cache.Rewriter{Guards: kernels.Guard, Build: build(), Refuse: patch.WaitsForPeers, Failed: notKept}
		if r.config.BLP.CacheMB == 0 {
			return
		}
		directory, err := r.config.BLP.CacheDirectory, error(nil)
		if directory == "" {
			directory, err = cache.Directory(os.Getenv)
		}
		if err == nil {
			r.made.Cache, err = cache.Open(directory, int64(r.config.BLP.CacheMB)<<20)
		}
		if err != nil {
			notKept(err)
		}
	})
	return &r.made
}

func build() string {
	var size C.size_t
	notes := C.gp_library_notes(&size)
	return C.GoStringN((*C.char)(notes), C.int(size))
}

func (r *rewriter) Copy(source agent.Source) (agent.Mapping, error) {
	if source.Path != "" {
		return copyFile(source.Path)
	}
	image, err := open(source)
	if err != nil {
		return agent.Mapping{}, err
	}
	picked, err := patch.Pick(image, source.SM)
	if err != nil {
		return agent.Mapping{}, ofNothing(err)
	}
	if picked.PTX {
		switch {
		case image.parts: // which the copy would not show
			return agent.Mapping{}, errors.New("linked of several fatbins as it is loaded")
		case picked.Size > patch.DefaultMaxSize: // as a header says; the runtime ends a process that lacks memory
			return agent.Mapping{}, patch.ErrTooLarge
		}
		picked.Data = make([]byte, picked.Size)
		if _, err := image.ReadAt(picked.Data, 0); err != nil {
			return agent.Mapping{}, err
		}
	}
	m, err := cache.Allocate(len(picked.Data))
	if err != nil {
		return agent.Mapping{}, err
	}
	copy(m.Data(), picked.Data)
	return mapping(m), nil
}

// ofNothing says by preempt's error what patch says by its own.
func ofNothing(err error) error {
	if errors.Is(err, patch.ErrNothing) {
		return agent.ErrNothing
	}
	return err
}

func mapping(m cache.Mapping) agent.Mapping {
	return agent.Mapping{Address: m.Address, Bytes: m.Bytes, Cached: m.Cached}
}

// copyFile adds a 0, which ends PTX.
func copyFile(path string) (agent.Mapping, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return agent.Mapping{}, fmt.Errorf("open the file of a module: %w", err)
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return agent.Mapping{}, fmt.Errorf("stat the file of a module: %w", err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG || is.Size > patch.DefaultMaxSize {
		return agent.Mapping{}, errors.New("the file of a module is of an unexpected kind or size")
	}
	m, err := cache.Allocate(int(is.Size) + 1)
	if err != nil {
		return agent.Mapping{}, err
	}
	for data := m.Data()[:is.Size]; len(data) > 0; {
		n, err := unix.Read(fd, data)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			m.Unmap()
			return agent.Mapping{}, fmt.Errorf("read the file of a module: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		data = data[n:]
	}
	return mapping(m), nil
}

func (r *rewriter) Rewrite(source agent.Source) (agent.Mapping, *agent.Link, error) {
	image, err := open(source)
	if err != nil {
		return agent.Mapping{}, nil, err
	}
	if source.Linked {
		m, err := r.make().RewriteLinked(image, source.SM, source.Key)
		return r.done(m, err), nil, ofNothing(err)
	}
	m, link, err := r.make().Rewrite(image, source.SM, source.Options)
	if err != nil || link == nil {
		return r.done(m, err), nil, ofNothing(err)
	}
	if image.parts {
		return agent.Mapping{}, nil, errors.New("linked of several fatbins as it is loaded")
	}
	return agent.Mapping{}, &agent.Link{Address: image.base, Bytes: link.Size, Fatbin: link.Fatbin, Key: link.Key}, nil
}

func (r *rewriter) done(m cache.Mapping, err error) agent.Mapping {
	r.release.Reset(releaseAfter)
	if err == nil && r.log.GetLevel() <= zerolog.DebugLevel {
		for kernel, reason := range m.Refused() {
			r.log.Debug().Str("kernel", kernel).Str("reason", reason).Msg("kernel is not preemptible")
		}
	}
	return mapping(m)
}

// memory reads this process's memory, without trusting that it is there.
type memory struct {
	base  uintptr
	limit int64 // 0: unknown
	parts bool  // the fatbin is one of several that belong together
}

// open follows the wrapper that the compiler puts around a fatbin (fatbinary_section.h).
func open(source agent.Source) (memory, error) {
	const (
		fatbinCMagic       = 0x466243B1
		fatbinCLinkVersion = 2
	)
	m := memory{base: source.Address, limit: int64(source.Bytes)}
	var wrapper [16]byte
	if _, err := m.ReadAt(wrapper[:4], 0); err != nil {
		return m, fmt.Errorf("read code: %w", err)
	}
	if binary.LittleEndian.Uint32(wrapper[:]) != fatbinCMagic {
		return m, nil
	}
	if _, err := m.ReadAt(wrapper[:], 0); err != nil {
		return m, fmt.Errorf("read a fatbin's wrapper: %w", err)
	}
	return memory{
		base:  uintptr(binary.LittleEndian.Uint64(wrapper[8:])),
		parts: binary.LittleEndian.Uint32(wrapper[4:]) == fatbinCLinkVersion,
	}, nil
}

func (m memory) ReadAt(p []byte, offset int64) (int, error) {
	if m.limit > 0 && offset+int64(len(p)) > m.limit {
		if offset >= m.limit {
			return 0, io.EOF
		}
		n, err := m.ReadAt(p[:m.limit-offset], offset)
		return n, errors.Join(err, io.ErrUnexpectedEOF)
	}
	done := 0
	for done < len(p) {
		n, err := readMemory(p[done:], m.base+uintptr(offset)+uintptr(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return done, fmt.Errorf("read memory: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		done += n
	}
	return done, nil
}

func readMemory(p []byte, at uintptr) (int, error) {
	local := []unix.Iovec{{Base: unsafe.SliceData(p), Len: uint64(len(p))}}
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: at, Len: len(p)}}, 0)
	if err == nil || errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EINTR) {
		return n, err
	}
	fd, open := unix.Open("/proc/self/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0) // where the call is not allowed
	if open != nil {
		return 0, errors.Join(err, open)
	}
	defer unix.Close(fd)
	return unix.Pread(fd, p, int64(at))
}
