package patch

import (
	"bytes"
	"fmt"
	"io"
)

// maxEntries bounds the entries of a fatbin.
const maxEntries = 1 << 14

// maxText bounds the PTX text that is searched for its end, in bytes.
const maxText = 256 << 20

// Allocate returns size zero bytes, for the data of an image.
type Allocate func(size int) ([]byte, error)

// Pick reads the part of an image of unknown length that a GPU of compute capability sm takes, into memory from allocate (nil: of Go's).
// Of a fatbin it is a fatbin of the cubins that the GPU can run, among which the driver chooses. Where there are none, it is a fatbin of
// all PTX.
func Pick(image io.ReaderAt, sm int, allocate Allocate) (Image, error) {
	if allocate == nil {
		allocate = func(size int) ([]byte, error) { return make([]byte, size), nil }
	}
	var head [fatbinHeaderSize]byte
	if _, err := image.ReadAt(head[:4], 0); err != nil {
		return Image{}, err
	}
	switch {
	case le.Uint32(head[:]) == fatbinMagic:
		return pickEntries(image, sm, allocate)
	case string(head[:4]) == "\x7fELF":
		return pickCubin(image, allocate)
	}
	return pickText(image, allocate)
}

func pickCubin(image io.ReaderAt, allocate Allocate) (Image, error) {
	size, err := ImageSize(image)
	if err != nil {
		return Image{}, err
	}
	data, err := read(image, []span{{0, size}}, allocate)
	return Image{Form: FormCubin, Data: data}, err
}

// span is a part of an image.
type span struct{ at, size int }

// read reads spans, one behind the other. The end of the last is read first: a wrong size costs no memory.
func read(image io.ReaderAt, spans []span, allocate Allocate) ([]byte, error) {
	total := 0
	for _, s := range spans {
		if total += s.size; total > DefaultMaxSize {
			return nil, ErrTooLarge
		}
	}
	last := spans[len(spans)-1]
	if _, err := image.ReadAt(make([]byte, 1), int64(last.at+last.size)-1); err != nil {
		return nil, fmt.Errorf("read the end: %w", err)
	}
	data, err := allocate(total)
	if err != nil {
		return nil, err
	}
	rest := data
	for _, s := range spans {
		if _, err := image.ReadAt(rest[:s.size], int64(s.at)); err != nil {
			return nil, err
		}
		rest = rest[s.size:]
	}
	return data, nil
}

func pickEntries(image io.ReaderAt, sm int, allocate Allocate) (Image, error) {
	var head [fatbinHeaderSize]byte
	if _, err := image.ReadAt(head[:], 0); err != nil {
		return Image{}, err
	}
	size, err := FatbinSize(head[:])
	if err != nil {
		return Image{}, err
	}
	if _, err := image.ReadAt(make([]byte, 1), int64(size)-1); err != nil {
		return Image{}, fmt.Errorf("read the end: %w", err)
	}
	header := span{0, fatbinHeaderSize}
	cubins, ptx := []span{header}, []span{header}
	var entry [entryHeaderSize]byte
	for at, count := fatbinHeaderSize, 0; at < size; count++ {
		if count == maxEntries {
			return Image{}, fmt.Errorf("%w: more than %d fatbin entries", ErrFormat, maxEntries)
		}
		if _, err := image.ReadAt(entry[:], int64(at)); err != nil {
			return Image{}, err
		}
		header, stored, err := entrySizes(entry[:], size-at)
		if err != nil {
			return Image{}, err
		}
		whole := span{at, header + stored}
		switch kind := le.Uint16(entry[entryKind:]); {
		case kind == entryKindPTX:
			ptx = append(ptx, whole)
		case kind == entryKindELF && runsOn(int(le.Uint32(entry[entrySM:])), sm):
			cubins = append(cubins, whole)
		}
		at += whole.size
	}
	form, spans := FormFatbin, cubins
	if len(cubins) == 1 {
		form, spans = FormFatbinPTX, ptx
	}
	if len(spans) == 1 {
		return Image{}, fmt.Errorf("%w: sm_%d", ErrNothing, sm)
	}
	data, err := read(image, spans, allocate)
	if err != nil {
		return Image{}, err
	}
	le.PutUint64(data[8:], uint64(len(data)-fatbinHeaderSize))
	return Image{Form: form, Data: data}, nil
}

// pickText reads up to the 0 that ends the text; behind it there may be nothing.
func pickText(image io.ReaderAt, allocate Allocate) (Image, error) {
	const firstStep, lastStep = 256, 64 << 10
	var text []byte
	for len(text) < maxText {
		at := len(text)
		text = append(text, make([]byte, max(firstStep, min(at, lastStep)))...)
		n, err := image.ReadAt(text[at:], int64(at))
		if end := bytes.IndexByte(text[at:at+n], 0); end >= 0 {
			text = text[:at+end+1]
			if !bytes.Contains(text, []byte(".version")) {
				break
			}
			data, err := allocate(len(text))
			copy(data, text)
			return Image{Form: FormPTX, Data: data}, err
		}
		if err != nil {
			return Image{}, err
		}
	}
	return Image{}, fmt.Errorf("%w: neither cubin, fatbin nor PTX", ErrFormat)
}
