package rewriter

// #include "preempt/far/calls.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/patch"
)

// memory reads the program's memory from an address on, without trusting that it is there.
type memory struct{ at uint64 }

func (m memory) from(address uint64) reader { return memory{address} }

func (m memory) ReadAt(p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		part := p[done:min(len(p), done+C.GP_FAR_DATA)]
		n := int64(C.far_read(C.uint64_t(m.at+uint64(offset)+uint64(done)), unsafe.Pointer(&part[0]), C.uint64_t(len(part))))
		if n == -int64(unix.EINTR) {
			continue
		}
		if n <= 0 {
			return done, fmt.Errorf("read memory: %w", errors.Join(unix.Errno(-n), io.ErrUnexpectedEOF))
		}
		done += int(n)
	}
	return done, nil
}

// copy reads so many bytes.
func (m memory) copy(size uint64) ([]byte, error) {
	if size > patch.DefaultMaxSize {
		return nil, fmt.Errorf("read %d bytes of code: must be at most %d", size, patch.DefaultMaxSize)
	}
	data := make([]byte, size)
	_, err := m.ReadAt(data, 0)
	return data, err
}

// text reads up to a 0.
func (m memory) text() (string, error) {
	var all []byte
	for len(all) < 1<<20 {
		const page = 4096 // what is behind it may not be there
		at := m.at + uint64(len(all))
		part := make([]byte, page-at%page)
		if _, err := m.ReadAt(part, int64(len(all))); err != nil {
			return "", err
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			return string(append(all, part[:end]...)), nil
		}
		all = append(all, part...)
	}
	return "", errors.New("read options: they do not end")
}
