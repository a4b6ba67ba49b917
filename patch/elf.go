package patch

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Names as in <elf.h>.
const (
	elfHeaderSize     = 64
	sectionHeaderSize = 64
	segmentSize       = 56
	symbolSize        = 24

	emCUDA = 190
	etExec = 2

	shtNull     = 0
	shtProgbits = 1
	shtSymtab   = 2
	shtRela     = 4
	shtNobits   = 8
	shtRel      = 9

	shfExecinstr = 4

	sttNotype  = 0
	sttFunc    = 2
	sttSection = 3

	shnLoreserve = 0xff00
)

// NVIDIA's own; CUDA publishes no header for them.
const (
	shtCUDAInfo       = 0x70000000 // .nv.info, .nv.info.*
	shtCUDACompatInfo = 0x70000086 // .nv.compat

	// Sections of the second form of the code, from which the driver may make code for another GPU of
	// the family: .nv.capmerc.text.* and everything named .nv.merc.*.
	shfMercury = 0x10000000

	stoCUDAEntry = 0x10 // in st_other: a kernel

	osabiCUDA12 = 0x33 // ABI version 7: the architecture in e_flags[7:0], barriers in sh_flags
	osabiCUDA13 = 0x41 // ABI version 8: the architecture in e_flags[15:8]
)

// Insertions are multiples of a section's alignment, so that the rest stays aligned: of the first, as code does, and for data of a
// program's own up to the second.
const (
	insertionAlignment = 128
	maxAlignment       = 512
)

// The most sections that a cubin may have: each is looked at a few times.
const maxSections = 1 << 16

// The most program headers: compilers write six, and each is compared with all sections.
const maxSegments = 256

var le = binary.LittleEndian

// section is one section; data is its contents in the rewritten file.
type section struct {
	index  int
	name   string
	kind   uint32
	flags  uint64
	offset uint64
	size   uint64
	link   uint32
	info   uint32
	align  uint64
	entry  uint64

	data   []byte // nil: occupies no space in the file
	edited bool
	shared bool // a dropped section whose place in the file is also that of one that is kept
}

type symbol struct {
	index   int
	name    string
	kind    byte
	other   byte
	section uint16
	value   uint64
	size    uint64
}

// cubin is a parsed image. Edits go to sections' data, the symbol table and the headers; write puts the file together
// again. The rest stays the same, byte for byte.
type cubin struct {
	raw      []byte
	osabi    byte
	sm       int
	sections []*section
	symbols  []symbol
	symtab   *section

	sectionOffset, segmentOffset uint64
	segments                     int
	alignment                    uint64 // of insertions
	kept                         int    // sections, all but the mercury ones at the end: those that count
}

func parseCubin(raw []byte) (*cubin, error) {
	if len(raw) < elfHeaderSize || string(raw[:4]) != "\x7fELF" {
		return nil, fmt.Errorf("%w: no ELF header", ErrFormat)
	}
	if raw[4] != 2 || raw[5] != 1 || le.Uint16(raw[18:]) != emCUDA {
		return nil, fmt.Errorf("%w: not a 64-bit ELF file for CUDA", ErrFormat)
	}
	if kind := le.Uint16(raw[16:]); kind != etExec {
		return nil, fmt.Errorf("%w: ELF type %d is not loadable as it is", ErrFormat, kind)
	}
	if le.Uint16(raw[52:]) != elfHeaderSize || le.Uint16(raw[58:]) != sectionHeaderSize {
		return nil, fmt.Errorf("%w: unknown header sizes", ErrFormat)
	}
	c := &cubin{raw: raw, osabi: raw[7], alignment: insertionAlignment, sectionOffset: le.Uint64(raw[40:]), segmentOffset: le.Uint64(raw[32:])}
	flags := le.Uint32(raw[48:])
	switch c.osabi {
	case osabiCUDA12:
		c.sm = int(flags & 0xff)
	case osabiCUDA13:
		c.sm = int(flags >> 8 & 0xff)
	default:
		return nil, fmt.Errorf("%w: unknown OS ABI %#x", ErrFormat, c.osabi)
	}
	if c.segments = int(le.Uint16(raw[56:])); c.segments > 0 {
		if c.segments > maxSegments || le.Uint16(raw[54:]) != segmentSize || !inside(raw, c.segmentOffset, uint64(c.segments)*segmentSize) {
			return nil, fmt.Errorf("%w: bad program headers", ErrFormat)
		}
	}
	if err := c.parseSections(); err != nil {
		return nil, err
	}
	if err := c.checkPlaces(); err != nil {
		return nil, err
	}
	return c, c.parseSymbols()
}

// checkPlaces refuses a file in which two tables or sections share bytes: what is written to one would change the other. Compilers
// let mercury sections share all their bytes with a section of the first form, and no others.
func (c *cubin) checkPlaces() error {
	type place struct{ start, end uint64 }
	places := []place{
		{0, elfHeaderSize},
		{c.sectionOffset, c.sectionOffset + uint64(len(c.sections))*sectionHeaderSize},
		{c.segmentOffset, c.segmentOffset + uint64(c.segments)*segmentSize},
	}
	kept := make(map[place]bool)
	for i, s := range c.sections {
		at := place{s.offset, s.offset + uint64(len(s.data))}
		if s.shared = i >= c.kept && kept[at]; len(s.data) > 0 && !s.shared {
			places = append(places, at)
			kept[at] = i < c.kept
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.start, b.start) })
	end := uint64(0)
	for _, p := range places {
		if p.start == p.end {
			continue
		}
		if p.start < end {
			return fmt.Errorf("%w: tables or sections overlap at %#x", ErrFormat, p.start)
		}
		end = p.end
	}
	for i := range c.segments {
		h := c.raw[c.segmentOffset+uint64(i)*segmentSize:]
		if size := le.Uint64(h[32:]); size > 0 && !inside(c.raw, le.Uint64(h[8:]), size) {
			return fmt.Errorf("%w: program header %d points outside the file", ErrFormat, i)
		}
	}
	return nil
}

func inside(raw []byte, offset, size uint64) bool {
	return offset <= uint64(len(raw)) && size <= uint64(len(raw))-offset
}

func (c *cubin) parseSections() error {
	count, names := int(le.Uint16(c.raw[60:])), int(le.Uint16(c.raw[62:]))
	if count == 0 && inside(c.raw, c.sectionOffset, sectionHeaderSize) {
		count = int(min(le.Uint64(c.raw[c.sectionOffset+32:]), maxSections+1)) // too many for the header
	}
	if count == 0 || count > maxSections || names >= count ||
		!inside(c.raw, c.sectionOffset, uint64(count)*sectionHeaderSize) {
		return fmt.Errorf("%w: bad section headers", ErrFormat)
	}
	c.sections = make([]*section, count)
	for i := range c.sections {
		h := c.raw[c.sectionOffset+uint64(i)*sectionHeaderSize:]
		s := &section{
			index: i, kind: le.Uint32(h[4:]), flags: le.Uint64(h[8:]), offset: le.Uint64(h[24:]),
			size: le.Uint64(h[32:]), link: le.Uint32(h[40:]), info: le.Uint32(h[44:]),
			align: le.Uint64(h[48:]), entry: le.Uint64(h[56:]),
		}
		if i == 0 && s.kind != shtNull {
			return fmt.Errorf("%w: section 0 has a kind", ErrFormat)
		}
		if s.kind != shtNull && s.kind != shtNobits {
			if !inside(c.raw, s.offset, s.size) {
				return fmt.Errorf("%w: section %d lies outside the file", ErrFormat, i)
			}
			s.data = c.raw[s.offset : s.offset+s.size : s.offset+s.size]
			if s.align&(s.align-1) != 0 || s.align > maxAlignment {
				return fmt.Errorf("%w: section %d is aligned to %d bytes", ErrFormat, i, s.align)
			}
			c.alignment = max(c.alignment, s.align)
		}
		c.sections[i] = s
	}
	for i, s := range c.sections {
		name, ok := stringAt(c.sections[names].data, le.Uint32(c.raw[c.sectionOffset+uint64(i)*sectionHeaderSize:]))
		if !ok {
			return fmt.Errorf("%w: section %d has no name", ErrFormat, i)
		}
		s.name = name
	}
	for c.kept = count; c.kept > 0 && c.sections[c.kept-1].flags&shfMercury != 0; c.kept-- {
	}
	return nil
}

func stringAt(table []byte, offset uint32) (string, bool) {
	if uint64(offset) >= uint64(len(table)) {
		return "", false
	}
	end := bytes.IndexByte(table[offset:], 0)
	if end < 0 {
		return "", false
	}
	return string(table[offset : int(offset)+end]), true
}

func (c *cubin) parseSymbols() error {
	for _, s := range c.sections[:c.kept] {
		if s.kind != shtSymtab {
			continue
		}
		if c.symtab != nil {
			return fmt.Errorf("%w: two symbol tables", ErrFormat)
		}
		c.symtab = s
	}
	if c.symtab == nil || c.symtab.entry != symbolSize || int(c.symtab.link) >= len(c.sections) {
		return fmt.Errorf("%w: no symbol table", ErrFormat)
	}
	names := c.sections[c.symtab.link].data
	c.symbols = make([]symbol, len(c.symtab.data)/symbolSize)
	for i := range c.symbols {
		h := c.symtab.data[i*symbolSize:]
		name, ok := stringAt(names, le.Uint32(h))
		if !ok {
			return fmt.Errorf("%w: symbol %d has no name", ErrFormat, i)
		}
		c.symbols[i] = symbol{
			index: i, name: name, kind: h[4] & 15, other: h[5], section: le.Uint16(h[6:]),
			value: le.Uint64(h[8:]), size: le.Uint64(h[16:]),
		}
	}
	return nil
}

// edit gives a section new contents.
func (s *section) edit(data []byte) {
	s.data, s.size, s.edited = data, uint64(len(data)), true
}

// mutable returns a section's contents for changes in place.
func (s *section) mutable() []byte {
	if !s.edited {
		s.edit(bytes.Clone(s.data))
	}
	return s.data
}

func (c *cubin) setSymbol(i int, value, size uint64) {
	c.symbols[i].value, c.symbols[i].size = value, size
	h := c.symtab.mutable()[i*symbolSize:]
	le.PutUint64(h[8:], value)
	le.PutUint64(h[16:], size)
}

var (
	errNoPlace = errors.New("a section that is empty would get contents")
	errCut     = errors.New("a program header ends within a section")
	errMercury = errors.New("mercury sections between others")
)

// replacement is a range of the old file and the data that replaces it.
type replacement struct {
	start, end uint64
	data       []byte
	padded     uint64 // length in the new file
	grown      uint64 // by this much, modulo 2^64, everything behind it moves
}

// layout maps offsets of the old file to the new one: what is replaced, by its place.
type layout []replacement

// at maps the offset at which something starts.
func (l layout) at(offset uint64) uint64 {
	// Replacements that end before the offset come first.
	n := sort.Search(len(l), func(i int) bool { return offset < l[i].end || offset == l[i].start })
	if n > 0 {
		offset += l[n-1].grown
	}
	return offset
}

// splits says whether an offset lies within what is replaced.
func (l layout) splits(offset uint64) bool {
	n := sort.Search(len(l), func(i int) bool { return offset < l[i].end })
	return n < len(l) && l[n].start < offset
}

// write puts the file together.
func (c *cubin) write(maxSize int) ([]byte, error) {
	replaced, err := c.replacements()
	if err != nil {
		return nil, err
	}
	size := replaced.at(uint64(len(c.raw)))
	if size > uint64(maxSize) {
		return nil, ErrTooLarge
	}
	out := make([]byte, 0, size)
	position := uint64(0)
	for _, r := range replaced {
		out = append(out, c.raw[position:r.start]...)
		out = append(out, r.data...)
		out = append(out, make([]byte, r.padded-uint64(len(r.data)))...)
		position = r.end
	}
	out = append(out, c.raw[position:]...)
	c.writeHeaders(out, replaced)
	return out, nil
}

func (c *cubin) replacements() (layout, error) {
	var replaced layout
	for _, s := range c.sections {
		if !s.edited || s.kind == shtNobits {
			continue
		}
		r := replacement{start: s.offset, end: s.offset, data: s.data}
		r.end += le.Uint64(c.raw[c.sectionOffset+uint64(s.index)*sectionHeaderSize+32:])
		if r.start == r.end {
			if len(s.data) > 0 {
				return nil, errNoPlace
			}
			continue
		}
		r.padded = (r.end - r.start) % c.alignment
		for r.padded < uint64(len(r.data)) {
			r.padded += c.alignment
		}
		replaced = append(replaced, r)
	}
	slices.SortFunc(replaced, func(a, b replacement) int { return cmp.Compare(a.start, b.start) })
	grown := uint64(0)
	for i, r := range replaced {
		grown += r.padded - (r.end - r.start)
		replaced[i].grown = grown
	}
	for i := range c.segments {
		h := c.raw[c.segmentOffset+uint64(i)*segmentSize:]
		start, size := le.Uint64(h[8:]), le.Uint64(h[32:])
		if replaced.splits(start) || replaced.splits(start+size) {
			return nil, errCut
		}
	}
	return replaced, nil
}

func (c *cubin) writeHeaders(out []byte, replaced layout) {
	sectionOffset, segmentOffset := replaced.at(c.sectionOffset), replaced.at(c.segmentOffset)
	le.PutUint64(out[40:], sectionOffset)
	if c.segments > 0 {
		le.PutUint64(out[32:], segmentOffset)
	}
	if le.Uint16(out[60:]) != 0 {
		le.PutUint16(out[60:], uint16(c.kept))
	} else {
		le.PutUint64(out[sectionOffset+32:], uint64(c.kept))
	}
	for i, s := range c.sections {
		h := out[sectionOffset+uint64(i)*sectionHeaderSize:][:sectionHeaderSize]
		if i >= c.kept {
			clear(h)
			continue
		}
		le.PutUint64(h[8:], s.flags)
		if s.kind != shtNull {
			le.PutUint64(h[24:], replaced.at(s.offset))
		}
		if i > 0 {
			le.PutUint64(h[32:], s.size)
		}
		le.PutUint32(h[44:], s.info)
	}
	for i := range c.segments {
		h := out[segmentOffset+uint64(i)*segmentSize:][:segmentSize]
		start, size, memory := le.Uint64(h[8:]), le.Uint64(h[32:]), le.Uint64(h[40:])
		if size == 0 {
			continue
		}
		le.PutUint64(h[8:], replaced.at(start))
		grown := replaced.at(start+size) - replaced.at(start) - size
		le.PutUint64(h[32:], size+grown)
		le.PutUint64(h[40:], memory+grown)
	}
}
