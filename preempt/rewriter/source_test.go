package rewriter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/patch"
)

const head, entry = 16, 64 // bytes of a fatbin's header and of an entry's

// entries writes entries of so many bytes and their headers, of a kind and for an architecture, into a fatbin.
func entries(fatbin []byte, list ...[3]uint64) {
	le := binary.LittleEndian
	le.PutUint32(fatbin, 0xba55ed50)
	le.PutUint16(fatbin[6:], head)
	at := uint64(head)
	for _, e := range list {
		le.PutUint16(fatbin[at:], uint16(e[0]))
		le.PutUint32(fatbin[at+4:], entry)
		le.PutUint64(fatbin[at+8:], e[1])
		le.PutUint32(fatbin[at+28:], uint32(e[2]))
		at += entry + e[1]
	}
	le.PutUint64(fatbin[8:], at-head)
}

const (
	kindPTX, kindCubin, kindOther = 1, 2, 99
	sm                            = 90
)

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func here[T any](p *T) memory { return memory{at: uint64(address(p))} }

// Of a library of a terabyte only what the GPU takes is read: for lack of memory the runtime would end the process.
func TestPickOfTooMuch(t *testing.T) {
	const size = 1 << 40
	data, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip(err) // no room for so many addresses
	}
	defer func() { _ = unix.Munmap(data) }()
	page := unix.Getpagesize()
	for _, part := range [][]byte{data[:page], data[2*page : 3*page], data[size-page:]} {
		if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	const rest = size - head - 2*entry - 8
	entries(data, [3]uint64{kindPTX, 8}, [3]uint64{kindOther, rest})
	image, err := pick(here(&data[0]), "", sm)
	if err != nil || image.Form != patch.FormFatbinPTX || len(image.Data) != head+entry+8 {
		t.Errorf("PTX beside a terabyte: form %d, %d bytes, %v", image.Form, len(image.Data), err)
	} else {
		unmap(image)
	}
	entries(data, [3]uint64{kindOther, 8}, [3]uint64{kindPTX, rest})
	if _, err := pick(here(&data[0]), "", sm); !errors.Is(err, patch.ErrTooLarge) {
		t.Errorf("a terabyte of PTX: %v", err)
	}
	entries(data, [3]uint64{kindPTX, 2 * uint64(page)}, [3]uint64{kindOther, rest + 8 - 2*uint64(page)})
	if _, err := pick(here(&data[0]), "", sm); !errors.Is(err, unix.EFAULT) {
		t.Errorf("memory that is not there: %v", err)
	}
}

func TestPickFollowsWrappers(t *testing.T) {
	ptx, cubin := make([]byte, head+entry+8), make([]byte, head+entry+8)
	entries(ptx, [3]uint64{kindPTX, 8})
	entries(cubin, [3]uint64{kindCubin, 8, sm})
	for _, test := range []struct {
		fatbin  []byte
		version uint64
		form    patch.Form // 0: refused
	}{{ptx, 1, patch.FormFatbinPTX}, {ptx, 2, 0}, {cubin, 1, patch.FormFatbin}, {cubin, 2, patch.FormFatbin}} {
		wrapper := [3]uint64{test.version<<32 | 0x466243B1, uint64(address(&test.fatbin[0]))}
		image, err := pick(here(&wrapper), "", sm)
		if (err == nil) != (test.form != 0) || image.Form != test.form || err == nil && !bytes.Equal(image.Data, test.fatbin) {
			t.Errorf("version %d: form %d, %v; want %d", test.version, image.Form, err, test.form)
		}
		if err == nil {
			unmap(image)
		}
	}
	wrapper := [3]uint64{1<<32 | 0x466243B1, 8}
	if _, err := pick(here(&wrapper), "", sm); !errors.Is(err, unix.EFAULT) {
		t.Errorf("a wrapper around nothing: %v", err)
	}
	if _, err := pick(memory{}, "", sm); !errors.Is(err, unix.EFAULT) {
		t.Errorf("nothing: %v", err)
	}
}

func TestPickOfFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(data []byte) string {
		path := filepath.Join(dir, "module")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := []byte(".version 8.0\n" + string(bytes.Repeat([]byte("// line\n"), 5000)))
	fatbin := make([]byte, head+entry+8)
	entries(fatbin, [3]uint64{kindCubin, 8, sm})
	for _, test := range []struct {
		data, want []byte
		form       patch.Form
	}{
		{text, append(bytes.Clone(text), 0), patch.FormPTX}, {append(bytes.Clone(text), 0, 'x'), append(bytes.Clone(text), 0), patch.FormPTX},
		{fatbin, fatbin, patch.FormFatbin},
	} {
		image, err := pick(memory{}, write(test.data), sm)
		if err != nil || image.Form != test.form || !bytes.Equal(image.Data, test.want) {
			t.Errorf("form %d, %d bytes of %d, %v", image.Form, len(image.Data), len(test.data), err)
			continue
		}
		unmap(image)
	}
	wrapper := make([]byte, 24) // a pointer in a file is not followed
	binary.LittleEndian.PutUint64(wrapper, 1<<32|0x466243B1)
	binary.LittleEndian.PutUint64(wrapper[8:], uint64(address(&fatbin[0])))
	for what, path := range map[string]string{"empty": write(nil), "a folder": dir, "none": dir + "/none", "a device": "/dev/zero"} {
		if image, err := pick(memory{}, path, sm); err == nil {
			t.Errorf("%s: form %d", what, image.Form)
		}
	}
	for _, data := range [][]byte{wrapper, fatbin[:len(fatbin)-2], nil, []byte("text")} {
		if image, err := pick(memory{}, write(data), sm); err == nil {
			t.Errorf("%q: form %d", data, image.Form)
		}
	}
}

// An image without code for the GPU, which the driver will not load either, is no failure that anybody should hear of.
func TestImagesForOtherGPUs(t *testing.T) {
	fatbin := make([]byte, head+entry+64)
	entries(fatbin, [3]uint64{kindCubin, 64, 80})
	if _, err := pick(here(&fatbin[0]), "", sm); !errors.Is(err, patch.ErrNothing) {
		t.Errorf("pick: %v", err)
	}
}
