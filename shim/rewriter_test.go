package main

import (
	"encoding/binary"
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/patch"
	"github.com/gpreempt/gpreempt/preempt/agent"
)

// A library of a terabyte is not copied: for lack of memory the runtime would end the process. Nor is PTX that belongs
// to other fatbins' as well.
func TestCopyOfPTX(t *testing.T) {
	const size, head, ptx = 1 << 40, 16, 72
	data, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip(err) // no room for so many addresses
	}
	defer func() { _ = unix.Munmap(data) }()
	page := unix.Getpagesize()
	for _, part := range [][]byte{data[:page], data[size-page:]} {
		if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	fatbin := func(rest uint64) {
		le := binary.LittleEndian
		le.PutUint32(data, 0xba55ed50)
		le.PutUint16(data[6:], head)
		le.PutUint64(data[8:], ptx+64+rest)
		for at, e := range map[int]struct {
			kind   uint16
			stored uint64
		}{head: {1, 8}, head + ptx: {99, rest}} {
			le.PutUint16(data[at:], e.kind)
			le.PutUint32(data[at+4:], 64)
			le.PutUint64(data[at+8:], e.stored)
		}
	}
	var r rewriter
	base := uintptr(unsafe.Pointer(&data[0]))
	fatbin(size - head - ptx - 64)
	if _, err := r.Copy(agent.Source{Address: base, SM: 90}); !errors.Is(err, patch.ErrTooLarge) {
		t.Errorf("a terabyte: %v", err)
	}
	fatbin(8)
	m, err := r.Copy(agent.Source{Address: base, SM: 90})
	if err != nil || m.Bytes != head+ptx+64+8 {
		t.Errorf("%d bytes, %v", m.Bytes, err)
	}
	wrapper := [3]uint64{2<<32 | 0x466243B1, uint64(base)}
	if _, err := r.Copy(agent.Source{Address: uintptr(unsafe.Pointer(&wrapper)), SM: 90}); err == nil {
		t.Error("one of several fatbins was copied as if it were all")
	}
}

// An image without code for the GPU, which the driver will not load either, is no failure that anybody should hear of.
func TestImagesForOtherGPUs(t *testing.T) {
	data := make([]byte, 16+64+64)
	le := binary.LittleEndian
	le.PutUint32(data, 0xba55ed50)
	le.PutUint16(data[6:], 16)
	le.PutUint64(data[8:], 64+64)
	le.PutUint16(data[16:], 2) // a cubin
	le.PutUint32(data[16+4:], 64)
	le.PutUint64(data[16+8:], 64)
	le.PutUint32(data[16+28:], 80) // for sm_80
	var r rewriter
	if _, err := r.Copy(agent.Source{Address: uintptr(unsafe.Pointer(&data[0])), SM: 90}); !errors.Is(err, agent.ErrNothing) {
		t.Errorf("copy: %v", err)
	}
	if _, _, err := r.Rewrite(agent.Source{Address: uintptr(unsafe.Pointer(&data[0])), SM: 90}); !errors.Is(err, agent.ErrNothing) {
		t.Errorf("rewrite: %v", err)
	}
}
