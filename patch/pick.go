package patch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Picked is what a GPU would take of an image.
type Picked struct {
	// Size is how long the whole image is.
	Size int

	// Data is the cubin, or a fatbin of those cubins of the fatbin that the GPU can run: the driver's
	// choice is among them. With PTX set there is none, and Data is what the driver would compile: text, or all
	// the PTX of the fatbin.
	Data []byte

	Fatbin, PTX bool
}

// The most entries that a fatbin may have here.
const maxEntries = 1 << 14

// Pick reads of an image of unknown length, a cubin, a fatbin or PTX, what matters to a GPU of compute
// capability sm.
func Pick(image io.ReaderAt, sm int) (Picked, error) {
	head := make([]byte, fatbinHeaderSize)
	if _, err := image.ReadAt(head[:4], 0); err != nil {
		return Picked{}, err
	}
	switch {
	case le.Uint32(head) == fatbinMagic:
		if _, err := image.ReadAt(head, 0); err != nil {
			return Picked{}, err
		}
		return pickEntries(image, head, sm)
	case string(head[:4]) == "\x7fELF":
		return pickCubin(image)
	}
	return pickText(image)
}

func pickCubin(image io.ReaderAt) (Picked, error) {
	size, err := ImageSize(image)
	if err != nil {
		return Picked{}, err
	}
	data, err := appendFrom(nil, image, 0, size)
	if err != nil {
		return Picked{}, err
	}
	return Picked{Size: size, Data: data}, nil
}

// appendFrom reads in parts, so that a size that is wrong costs no more memory than there is to read.
func appendFrom(data []byte, image io.ReaderAt, at, size int) ([]byte, error) {
	const part = 4 << 20
	for size > 0 {
		n := min(size, part)
		data = append(data, make([]byte, n)...)
		if _, err := image.ReadAt(data[len(data)-n:], int64(at)); err != nil {
			return nil, err
		}
		at, size = at+n, size-n
	}
	return data, nil
}

func pickEntries(image io.ReaderAt, head []byte, sm int) (Picked, error) {
	size, err := FatbinSize(head)
	if err != nil {
		return Picked{}, err
	}
	if _, err := image.ReadAt(make([]byte, 1), int64(size)-1); err != nil {
		return Picked{}, fmt.Errorf("read the end: %w", err)
	}
	picked := Picked{Size: size, Data: bytes.Clone(head), Fatbin: true}
	var ptx []byte
	entry := make([]byte, entryHeaderSize)
	for at, count := fatbinHeaderSize, 0; at < size; count++ {
		if count == maxEntries || size-at < entryHeaderSize {
			return Picked{}, fmt.Errorf("%w: fatbin entry cut short", ErrFormat)
		}
		if _, err := image.ReadAt(entry, int64(at)); err != nil {
			return Picked{}, err
		}
		header, stored := uint64(le.Uint32(entry[entryHeader:])), le.Uint64(entry[entryStored:])
		rest := uint64(size - at)
		if header < entryHeaderSize || header > rest || stored > rest-header {
			return Picked{}, fmt.Errorf("%w: fatbin entry of bad size", ErrFormat)
		}
		into := &picked.Data
		switch kind := le.Uint16(entry[entryKind:]); {
		case kind == entryKindPTX:
			into = &ptx
		case kind != entryKindELF || !runsOn(int(le.Uint32(entry[entrySM:])), sm):
			into = nil
		}
		length := int(header + stored)
		if into != nil {
			if len(*into)+length > DefaultMaxSize {
				return Picked{}, ErrTooLarge
			}
			if *into, err = appendFrom(*into, image, at, length); err != nil {
				return Picked{}, err
			}
		}
		at += length
	}
	if len(picked.Data) > fatbinHeaderSize {
		le.PutUint64(picked.Data[8:], uint64(len(picked.Data)-fatbinHeaderSize))
		return picked, nil
	}
	if ptx == nil {
		return Picked{}, fmt.Errorf("%w: sm_%d", ErrNothing, sm)
	}
	picked.Data, picked.PTX = ptx, true
	return picked, nil
}

// ErrNothing: the image has no code for the GPU, and the driver will not load it either.
var ErrNothing = errors.New("no code for the GPU")

// The most bytes of PTX text that are looked through for their end.
const maxText = 256 << 20

// pickText reads up to the 0 that ends the text; behind it there may be nothing.
func pickText(image io.ReaderAt) (Picked, error) {
	const firstStep, lastStep = 256, 64 << 10
	var text []byte
	for len(text) < maxText {
		at := len(text)
		text = append(text, make([]byte, max(firstStep, min(at, lastStep)))...)
		n, err := image.ReadAt(text[at:], int64(at))
		if end := bytes.IndexByte(text[at:at+n], 0); end >= 0 {
			text = text[:at+end]
			if !bytes.Contains(text, []byte(".version")) {
				break
			}
			return Picked{Size: len(text) + 1, Data: text, PTX: true}, nil
		}
		if err != nil {
			return Picked{}, err
		}
	}
	return Picked{}, fmt.Errorf("%w: neither cubin, fatbin nor PTX", ErrFormat)
}
