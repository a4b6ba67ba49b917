package cache

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"slices"

	"github.com/gpreempt/gpreempt/patch"
)

// The format of a rewritten image: struct gp_rewritten of preempt/code/code.h, which C reads in place.
const (
	magic = "GPBLP\x00\x00\x02"

	headerSize = 72
	kernelSize = 20

	// Offsets in the header.
	atChecksum   = 8 // of all behind it
	atKernels    = 12
	atBytes      = 16
	atImage      = 24
	atImageBytes = 32
	atKey        = 40

	// Offsets in a kernel.
	atName        = 0
	atReason      = 4
	atLayout      = 8
	atParameters  = 12
	atHidden      = 14
	atRefusal     = 16
	atIndependent = 18

	imageAlignment = 4096 // so that its pages can be given back
)

// ErrDamaged means that a cache file is torn, damaged, or of another version.
var ErrDamaged = errors.New("damaged or foreign cache file")

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Key identifies a rewritten image by all that it was made from.
type Key [32]byte

func align(n, to int) int { return (n + to - 1) / to * to }

// format collects the parts of a file before they are written.
type format struct {
	kernels []patch.Kernel
	texts   map[string]int // offsets, behind the layouts
	tail    []byte         // texts
	image   []byte
}

func newFormat(kernels []patch.Kernel, image []byte) *format {
	f := &format{kernels: slices.Clone(kernels), texts: make(map[string]int), tail: []byte{0}, image: image}
	slices.SortFunc(f.kernels, func(a, b patch.Kernel) int { return cmp.Compare(a.Name, b.Name) })
	for _, k := range f.kernels {
		f.text(k.Name)
		f.text(k.Reason)
	}
	return f
}

func (f *format) text(s string) int {
	offset, known := f.texts[s]
	if !known {
		offset = len(f.tail)
		f.texts[s] = offset
		f.tail = append(append(f.tail, s...), 0)
	}
	return offset
}

func (f *format) textsAt() int {
	at := headerSize + kernelSize*len(f.kernels)
	for _, k := range f.kernels {
		at += 4 * len(k.Layout)
	}
	return at
}

func (f *format) size() int {
	end := f.textsAt() + len(f.tail)
	if len(f.image) > 0 {
		end = align(end, imageAlignment) + len(f.image)
	}
	return end
}

// put fills data, of size() zeros.
func (f *format) put(data []byte, key Key) {
	copy(data, magic)
	le.PutUint32(data[atKernels:], uint32(len(f.kernels)))
	le.PutUint64(data[atBytes:], uint64(len(data)))
	copy(data[atKey:], key[:])
	layout, texts := headerSize+kernelSize*len(f.kernels), f.textsAt()
	for i, k := range f.kernels {
		h := data[headerSize+i*kernelSize:]
		le.PutUint32(h[atName:], uint32(texts+f.texts[k.Name]))
		if !k.Guarded {
			le.PutUint32(h[atReason:], uint32(texts+f.texts[k.Reason]))
			le.PutUint16(h[atRefusal:], uint16(k.Refusal))
		}
		if k.Guarded && k.Independent {
			le.PutUint16(h[atIndependent:], 1)
		}
		le.PutUint32(h[atLayout:], uint32(layout))
		le.PutUint16(h[atParameters:], uint16(len(k.Layout)))
		le.PutUint16(h[atHidden:], uint16(k.HiddenOffset))
		for _, p := range k.Layout {
			le.PutUint16(data[layout:], p.Offset)
			le.PutUint16(data[layout+2:], p.Size)
			layout += 4
		}
	}
	copy(data[texts:], f.tail)
	if len(f.image) > 0 {
		at := align(texts+len(f.tail), imageAlignment)
		le.PutUint64(data[atImage:], uint64(at))
		le.PutUint64(data[atImageBytes:], uint64(len(f.image)))
		copy(data[at:], f.image)
	}
	le.PutUint32(data[atChecksum:], crc32.Checksum(data[atKernels:], castagnoli))
}

// check says whether data is whole, and safe for C to read.
func check(data []byte, key Key) error {
	switch {
	case len(data) < headerSize || string(data[:len(magic)]) != magic:
		return fmt.Errorf("%w: no header", ErrDamaged)
	case le.Uint64(data[atBytes:]) != uint64(len(data)):
		return fmt.Errorf("%w: cut short", ErrDamaged)
	case !bytes.Equal(data[atKey:atKey+len(key)], key[:]):
		return fmt.Errorf("%w: of another image", ErrDamaged)
	case le.Uint32(data[atChecksum:]) != crc32.Checksum(data[atKernels:], castagnoli):
		return fmt.Errorf("%w: wrong checksum", ErrDamaged)
	}
	return checkContents(data)
}

func checkContents(data []byte) error {
	size := uint64(len(data))
	end, image := size, le.Uint64(data[atImageBytes:])
	if image == 0 && le.Uint64(data[atImage:]) != 0 {
		return fmt.Errorf("%w: image without length", ErrDamaged)
	}
	if image > 0 {
		end = le.Uint64(data[atImage:])
		if end > size || image != size-end || end%imageAlignment != 0 {
			return fmt.Errorf("%w: image out of place", ErrDamaged)
		}
	}
	count := uint64(le.Uint32(data[atKernels:]))
	texts := headerSize + kernelSize*count // at least
	if end < headerSize || texts >= end || data[end-1] != 0 {
		return fmt.Errorf("%w: kernels out of place", ErrDamaged)
	}
	isText := func(at uint32) bool { return uint64(at) >= texts && uint64(at) < end }
	last := []byte(nil)
	for i := range count {
		h := data[headerSize+i*kernelSize:]
		name, reason, layout := le.Uint32(h[atName:]), le.Uint32(h[atReason:]), uint64(le.Uint32(h[atLayout:]))
		parameters := uint64(le.Uint16(h[atParameters:]))
		if !isText(name) || reason != 0 && !isText(reason) ||
			layout < texts || layout%2 != 0 || layout+4*parameters > end {
			return fmt.Errorf("%w: kernel %d out of place", ErrDamaged, i)
		}
		text, _, _ := bytes.Cut(data[name:end], []byte{0})
		if i > 0 && bytes.Compare(last, text) >= 0 {
			return fmt.Errorf("%w: kernels out of order", ErrDamaged)
		}
		last = text
	}
	return nil
}

// refused lists the kernels without a guard, and why, of data that was checked.
func refused(data []byte) iter.Seq2[string, string] {
	text := func(at uint32) string {
		t, _, _ := bytes.Cut(data[at:], []byte{0})
		return string(t)
	}
	return func(yield func(kernel, reason string) bool) {
		for i := range int(le.Uint32(data[atKernels:])) {
			h := data[headerSize+i*kernelSize:]
			if reason := le.Uint32(h[atReason:]); reason != 0 && !yield(text(le.Uint32(h[atName:])), text(reason)) {
				return
			}
		}
	}
}
