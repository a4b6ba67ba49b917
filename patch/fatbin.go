package patch

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A fatbin is a header {u32 magic, u16 version, u16 header size, u64 size} and entries. An entry is a header and its
// contents, in multiples of 8 bytes. CUDA publishes the wrapper (fatbinary_section.h) and not this form.
const (
	fatbinMagic      = 0xba55ed50
	fatbinHeaderSize = 16

	entryKindPTX = 1
	entryKindELF = 2

	entryHeaderSize = 64 // at least
	entryAlignment  = 8

	entryFlagLZ4  = 0x2000
	entryFlagZstd = 0x8000
)

// Offsets in an entry's header.
const (
	entryKind         = 0  // u16
	entryHeader       = 4  // u32: its size
	entryStored       = 8  // u64: size of what follows
	entryCompressed   = 16 // u32: size of the compressed data in it; 0 without compression
	entrySM           = 28 // u32
	entryFlags        = 40 // u64
	entryUncompressed = 56 // u64; 0 without compression
)

// FatbinEntry is the result for one entry of a fatbin.
type FatbinEntry struct {
	Kind   string `json:"kind"` // elf, ptx, other
	SM     int    `json:"sm"`
	Report Report `json:"report"`
	Reason string `json:"reason,omitempty"` // why the entry is unchanged
}

// FatbinSize returns the length of the fatbin that data begins with. The header is enough.
func FatbinSize(data []byte) (int, error) {
	if len(data) < fatbinHeaderSize || le.Uint32(data) != fatbinMagic || le.Uint16(data[6:]) != fatbinHeaderSize {
		return 0, fmt.Errorf("%w: no fatbin header", ErrFormat)
	}
	size := le.Uint64(data[8:])
	if size > 1<<40 {
		return 0, ErrTooLarge
	}
	return fatbinHeaderSize + int(size), nil
}

// entryData is an entry of a fatbin, unchanged.
type entryData struct {
	header, stored []byte
}

// entries takes a fatbin apart.
func entries(image []byte) ([]entryData, error) {
	size, err := FatbinSize(image)
	if err != nil {
		return nil, err
	}
	if size > len(image) {
		return nil, fmt.Errorf("%w: fatbin cut short", ErrFormat)
	}
	var list []entryData
	for rest := image[fatbinHeaderSize:size]; len(rest) > 0; {
		header, stored, err := entrySizes(rest, len(rest))
		if err != nil {
			return nil, err
		}
		list = append(list, entryData{rest[:header], rest[header : header+stored]})
		rest = rest[header+stored:]
	}
	return list, nil
}

// entrySizes reads, from the beginning of an entry, how long its header is and what the header stands for. rest is how
// much of the fatbin is left.
func entrySizes(entry []byte, rest int) (header, stored int, err error) {
	if len(entry) < entryHeaderSize || rest < entryHeaderSize {
		return 0, 0, fmt.Errorf("%w: fatbin entry cut short", ErrFormat)
	}
	h, s := uint64(le.Uint32(entry[entryHeader:])), le.Uint64(entry[entryStored:])
	if h < entryHeaderSize || h > uint64(rest) || s > uint64(rest)-h {
		return 0, 0, fmt.Errorf("%w: fatbin entry of bad size", ErrFormat)
	}
	return int(h), int(s), nil
}

// unpack returns what an entry holds, uncompressed.
func (e entryData) unpack(maxSize int) ([]byte, error) {
	flags := le.Uint64(e.header[entryFlags:])
	if flags&(entryFlagLZ4|entryFlagZstd) == 0 {
		return e.stored, nil
	}
	packed, size := uint64(le.Uint32(e.header[entryCompressed:])), le.Uint64(e.header[entryUncompressed:])
	if packed > uint64(len(e.stored)) {
		return nil, fmt.Errorf("%w: compressed data cut short", ErrFormat)
	}
	if size > uint64(maxSize) {
		return nil, ErrTooLarge
	}
	// Decoders choke on the padding behind the data.
	if flags&entryFlagLZ4 != 0 {
		return unpackLZ4(e.stored[:packed], int(size))
	}
	return unpackZstd(e.stored[:packed], int(size))
}

// A byte of an LZ4 block decodes to at most this many.
const lz4Ratio = 255

func unpackLZ4(packed []byte, size int) ([]byte, error) {
	if size > (len(packed)+1)*lz4Ratio {
		return nil, fmt.Errorf("%w: LZ4 block cannot hold %d bytes", ErrFormat, size)
	}
	out := make([]byte, size)
	n, err := lz4.UncompressBlock(packed, out)
	if err != nil || n != size {
		return nil, fmt.Errorf("%w: bad LZ4 block", ErrFormat)
	}
	return out, nil
}

func unpackZstd(packed []byte, size int) ([]byte, error) {
	// One goroutine, and no more memory than the frame's window, within bounds.
	decoder, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(max(zstd.MinWindowSize, min(uint64(size), zstd.MaxWindowSize))), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	defer decoder.Close()
	const usualRatio = 16 // memory for more is not allocated in advance
	var out bytes.Buffer
	out.Grow(min(size, usualRatio*len(packed)) + bytes.MinRead)
	n, err := io.Copy(&out, io.LimitReader(decoder, int64(size)+1))
	if err != nil || n != int64(size) {
		return nil, fmt.Errorf("%w: bad zstd data", ErrFormat)
	}
	return out.Bytes(), nil
}

func padded(size int) int { return (size + entryAlignment - 1) &^ (entryAlignment - 1) }

// appendRaw appends an entry of uncompressed contents.
func (e entryData) appendRaw(out, contents []byte) []byte {
	at, size := len(out), padded(len(contents))
	out = append(append(out, e.header...), contents...)
	out = append(out, make([]byte, size-len(contents))...)
	header := out[at:]
	le.PutUint64(header[entryStored:], uint64(size))
	le.PutUint32(header[entryCompressed:], 0)
	le.PutUint64(header[entryUncompressed:], 0)
	le.PutUint64(header[entryFlags:], le.Uint64(header[entryFlags:])&^(entryFlagLZ4|entryFlagZstd))
	return out
}

// Fatbin rewrites the cubins of a fatbin and leaves everything else in it unchanged: the driver still chooses among its entries as
// before. It returns a new fatbin, or the given one if nothing could be guarded; at most Options.MaxSize bytes.
func Fatbin(image []byte, options Options) (out []byte, reports []FatbinEntry, err error) {
	defer recovered(func(failure error) { out, reports, err = nil, nil, failure })
	return rewriteFatbin(image, options)
}

func rewriteFatbin(image []byte, options Options) ([]byte, []FatbinEntry, error) {
	list, err := entries(image)
	if err != nil {
		return nil, nil, err
	}
	var (
		reports       []FatbinEntry
		rewritten     = make([][]byte, len(list)) // contents; nil: the entry does not change
		length, count = fatbinHeaderSize, 0
	)
	for i, e := range list {
		contents, report := e.rewrite(options)
		reports = append(reports, report)
		count += report.Report.Guarded()
		if rewritten[i] = contents; contents != nil {
			length += len(e.header) + padded(len(contents))
		} else {
			length += len(e.header) + len(e.stored)
		}
		if length > options.maxSize() {
			return nil, nil, ErrTooLarge
		}
	}
	if count == 0 {
		size, _ := FatbinSize(image)
		return image[:size], reports, nil
	}
	out := append(make([]byte, 0, length), image[:fatbinHeaderSize]...)
	for i, e := range list {
		if rewritten[i] != nil {
			out = e.appendRaw(out, rewritten[i])
		} else {
			out = append(append(out, e.header...), e.stored...)
		}
	}
	le.PutUint64(out[8:], uint64(len(out)-fatbinHeaderSize))
	if err := confirmEntries(list, rewritten, out); err != nil {
		return nil, nil, err
	}
	return out, reports, nil
}

// runsOn says whether a GPU can run code that was compiled for an architecture.
func runsOn(compiled, sm int) bool { return compiled/10 == sm/10 && compiled <= sm }

// rewrite returns the new contents of an entry, or nil for no change.
func (e entryData) rewrite(options Options) ([]byte, FatbinEntry) {
	report := FatbinEntry{Kind: "other", SM: int(le.Uint32(e.header[entrySM:]))}
	switch le.Uint16(e.header[entryKind:]) {
	case entryKindPTX:
		report.Kind = "ptx"
		return nil, report
	case entryKindELF:
		report.Kind = "elf"
	default:
		return nil, report
	}
	contents, err := e.unpack(options.maxSize())
	if err == nil {
		contents, report.Report, err = rewriteCubin(contents, options)
	}
	if err != nil {
		report.Reason = err.Error()
		return nil, report
	}
	if report.Report.Guarded() == 0 {
		return nil, report
	}
	return contents, report
}
