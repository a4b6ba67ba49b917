package patch

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/pierrec/lz4/v4"
)

// choices are what a generator decides by: a byte each, and 0 once there are no more.
type choices struct{ left []byte }

// of chooses a number below n.
func (c *choices) of(n int) int {
	if len(c.left) == 0 || n < 2 {
		return 0
	}
	chosen := int(c.left[0])
	if c.left = c.left[1:]; n > 256 && len(c.left) > 0 {
		chosen, c.left = chosen<<8|int(c.left[0]), c.left[1:]
	}
	return chosen % n
}

func (c *choices) yes() bool { return c.of(2) == 1 }

// oneOf chooses among values.
func oneOf[T any](c *choices, values ...T) T { return values[c.of(len(values))] }

// builder makes a cubin as compilers lay it out.
type builder struct {
	*choices
	length int    // of each kernel's code, in instructions; 0: as is chosen
	base   uint32 // of the parameters in constant bank 0; 0: as the architecture has it

	sm, parameters int
	version        uint32 // of the API
	sections       []built
	names          []byte
	strings        []byte // of symbols
	symbols        []byte
}

type built struct {
	name, kind, link, info uint32
	flags, align, entry    uint64
	data                   []byte
	offset, size           uint64
}

func (b *builder) add(name string, s built) int {
	s.name = uint32(len(b.names))
	b.names = append(append(b.names, name...), 0)
	if s.align == 0 {
		s.align = 4
	}
	b.sections = append(b.sections, s)
	return len(b.sections) - 1
}

func (b *builder) symbol(name string, info, other byte, section int, value, size uint64) uint32 {
	b.symbols = le.AppendUint32(b.symbols, uint32(len(b.strings)))
	b.strings = append(append(b.strings, name...), 0)
	b.symbols = append(b.symbols, info, other)
	b.symbols = le.AppendUint16(b.symbols, uint16(section))
	b.symbols = le.AppendUint64(le.AppendUint64(b.symbols, value), size)
	return uint32(len(b.symbols)/symbolSize - 1)
}

// Sections that every cubin here has, in this order.
const (
	atShstrtab = iota + 1
	atStrtab
	atSymtab
	atInfo
)

func attributeBytes(code byte, data ...byte) []byte {
	return append(le.AppendUint16([]byte{eifmtSVAL, code}, uint16(len(data))), data...)
}

func words(values ...uint32) (data []byte) {
	for _, v := range values {
		data = le.AppendUint32(data, v)
	}
	return data
}

// buildCubin makes a cubin whose kernels, up to three, can all be guarded.
func buildCubin(c *choices) []byte { return (&builder{choices: c}).cubin(1 + c.of(3)) }

func (b *builder) cubin(count int) []byte {
	c := b.choices
	osabi, sm := byte(osabiCUDA13), oneOf(c, 90, 100, 80, 120)
	if b.sm != 0 {
		sm = b.sm
	}
	if sm <= 90 && c.yes() {
		osabi = osabiCUDA12
	}
	base := max(b.base, map[int]uint32{80: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}[sm])
	for _, s := range []struct {
		name string
		built
	}{
		{"", built{}}, {".shstrtab", built{kind: 3, align: 1}}, {".strtab", built{kind: 3, align: 1}},
		{".symtab", built{kind: shtSymtab, link: atStrtab, align: 8, entry: symbolSize}}, {".nv.info", built{kind: shtCUDAInfo, link: atSymtab}},
	} {
		b.add(s.name, s.built)
	}
	b.symbol("", 0, 0, 0, 0, 0)
	compat := sm >= 100 || c.yes()
	if compat {
		b.add(".nv.compat", built{kind: shtCUDACompatInfo, data: []byte{eifmtBVAL, 2, 1, 0, eifmtBVAL, eicompatOpportunisticFinalization, 1, 0}})
	}
	var infos []byte
	var kernels []uint32
	for i := range count {
		symbol, registers := b.kernel(fmt.Sprintf("k%d", i), base, osabi == osabiCUDA12)
		kernels = append(kernels, symbol)
		infos = append(infos, attributeBytes(eiattrRegcount, words(symbol, registers)...)...)
	}
	b.sections[atInfo].data = infos
	for _, table := range []string{".debug_frame", ".nv.constant4"} {
		if c.yes() {
			b.relocated(table, kernels)
		}
	}
	if c.yes() {
		b.add(".nv.global", built{kind: shtNobits, flags: 3, size: 64})
	}
	if sm >= 100 {
		b.add(".nv.capmerc.text.k0", built{kind: 0x70000016, flags: shfMercury, align: 16, data: bytes.Repeat([]byte{0xaa}, 34)})
		b.add(".nv.merc.symtab", built{kind: 0x70000085, flags: shfMercury, align: 8, entry: symbolSize, data: make([]byte, 48)})
	}
	b.sections[atShstrtab].data, b.sections[atStrtab].data, b.sections[atSymtab].data = b.names, b.strings, b.symbols
	return b.file(osabi, sm)
}

// kernel adds the sections and symbols of a kernel.
func (b *builder) kernel(name string, base uint32, older bool) (symbol, registers uint32) {
	code := bytes.Repeat([]byte{0x18, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0x0f, 0}, max(1+b.of(6), b.length))
	code[0], code[1] = 0x4d, 0x79
	flags := uint64(shfExecinstr | 2)
	if older {
		flags |= uint64(b.of(4)) << 20
	}
	registers = uint32(oneOf(b.choices, 8, 32, 255))
	parameters := max(b.parameters, b.of(4))
	size := uint32(8 * parameters)
	text := b.add(".text."+name, built{kind: shtProgbits, flags: flags, link: atSymtab, align: 128, data: code, info: uint32(b.of(2)) * (10<<24 | 3)})
	constants := b.add(".nv.constant0."+name, built{kind: shtProgbits, flags: 0x42, info: uint32(text), data: make([]byte, base+size)})
	bank := b.symbol("", sttSection, 0, constants, 0, 0)
	symbol = b.symbol(name, 0x10|sttFunc, stoCUDAEntry, text, 0, uint64(len(code)))
	if b.yes() {
		b.symbol("", sttSection, 0, text, 0, 0)
	}
	if len(code) > instructionSize && b.yes() {
		b.symbol(name+"$f", sttFunc, 0, text, instructionSize, instructionSize)
	}
	info := attributeBytes(eiattrCUDAAPIVersion, words(cmp.Or(b.version, 130))...)
	for i := range parameters {
		info = append(info, attributeBytes(eiattrKparamInfo, formatParameter(eiattrKparamInfo, i, 8*i, 8)...)...)
	}
	if parameters > 0 {
		info = append(info, attributeBytes(eiattrParamCbank, append(words(bank), byte(base), byte(base>>8), byte(size), byte(size>>8))...)...)
		info = append(info, eifmtHVAL, eiattrCbankParamSize, byte(size), byte(size>>8))
	}
	info = append(info, eifmtHVAL, eiattrMaxregCount, 0xff, 0)
	if b.yes() {
		info = append(info, attributeBytes(eiattrExitInstrOffsets, words(0)...)...)
	}
	if !older && b.yes() {
		info = append(info, eifmtBVAL, eiattrNumBarriers, byte(b.of(4)), 0)
	}
	b.add(".nv.info."+name, built{kind: shtCUDAInfo, link: atSymtab, info: uint32(text), flags: 0x40, data: info})
	return symbol, registers
}

// relocated adds a section with relocations: addresses of kernels where it describes code, of nothing in particular elsewhere.
func (b *builder) relocated(name string, kernels []uint32) {
	target := b.add(name, built{kind: shtProgbits, align: 8, data: make([]byte, 32)})
	symbol := oneOf(b.choices, kernels...)
	if name == ".nv.constant4" {
		symbol = b.symbol("outside", 0x10, 0, 0, 0, 0)
	}
	entry := le.AppendUint32(le.AppendUint32(le.AppendUint64(nil, uint64(8*b.of(3))), rCUDA64), symbol)
	if b.yes() {
		b.add(".rela"+name, built{kind: shtRela, link: atSymtab, info: uint32(target), align: 8, entry: relaSize, data: le.AppendUint64(entry, 0)})
	} else {
		b.add(".rel"+name, built{kind: shtRel, link: atSymtab, info: uint32(target), align: 8, entry: relSize, data: entry})
	}
}

// file puts the cubin together: its tables stand behind the sections, in either order.
func (b *builder) file(osabi byte, sm int) []byte {
	const segments = 2
	out := make([]byte, elfHeaderSize, 4096)
	align := func(n int) { out = append(out, make([]byte, -len(out)&(n-1))...) }
	for i := range b.sections {
		s := &b.sections[i]
		align(int(s.align))
		if s.offset = uint64(len(out)); s.kind != shtNobits {
			s.size = uint64(len(s.data))
		}
		out = append(out, s.data...)
	}
	align(8)
	sectionsAt, segmentsAt := len(out), 0
	if b.yes() {
		segmentsAt = sectionsAt
		sectionsAt += segments * segmentSize
		out = append(out, make([]byte, segments*segmentSize)...)
	}
	for _, s := range b.sections {
		if s.name == 0 && s.kind == shtNull {
			s = built{}
		}
		out = le.AppendUint32(le.AppendUint32(out, s.name), s.kind)
		out = le.AppendUint64(le.AppendUint64(le.AppendUint64(out, s.flags), 0), s.offset)
		out = le.AppendUint32(le.AppendUint32(le.AppendUint64(out, s.size), s.link), s.info)
		out = le.AppendUint64(le.AppendUint64(out, s.align), s.entry)
	}
	if segmentsAt == 0 {
		segmentsAt = len(out)
		out = append(out, make([]byte, segments*segmentSize)...)
	}
	last := b.sections[len(b.sections)-1]
	for i, r := range [segments][2]uint64{{uint64(segmentsAt), segments * segmentSize}, {b.sections[atInfo].offset, last.offset - b.sections[atInfo].offset}} {
		h := out[segmentsAt+i*segmentSize:]
		le.PutUint32(h, oneOf(b.choices, uint32(1), 6))
		le.PutUint64(h[8:], r[0])
		le.PutUint64(h[32:], r[1])
		le.PutUint64(h[40:], r[1])
	}
	copy(out, "\x7fELF\x02\x01\x01")
	out[7] = osabi
	flags := uint32(sm)
	if osabi == osabiCUDA13 {
		flags = uint32(sm) << 8
	}
	le.PutUint16(out[16:], etExec)
	le.PutUint16(out[18:], emCUDA)
	le.PutUint64(out[32:], uint64(segmentsAt))
	le.PutUint64(out[40:], uint64(sectionsAt))
	le.PutUint32(out[48:], flags)
	for at, v := range map[int]int{52: elfHeaderSize, 54: segmentSize, 56: segments, 58: sectionHeaderSize, 60: len(b.sections), 62: atShstrtab} {
		le.PutUint16(out[at:], uint16(v))
	}
	return out
}

// field is a number in an image.
type field struct{ at, size int }

func (f field) get(image []byte) uint64 {
	var raw [8]byte
	copy(raw[:], image[f.at:f.at+f.size])
	return le.Uint64(raw[:])
}

func (f field) put(image []byte, v uint64) { copy(image[f.at:f.at+f.size], le.AppendUint64(nil, v)) }

// Sizes of the fields of a row, in order.
var (
	headerFields     = []int{4, 1, 1, 1, 1, 8, 2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2}
	sectionFields    = []int{4, 4, 8, 8, 8, 8, 4, 4, 8, 8}
	segmentFields    = []int{4, 4, 8, 8, 8, 8, 8, 8}
	symbolFields     = []int{4, 1, 1, 2, 8, 8}
	relocationFields = []int{8, 4, 4}
	addendFields     = []int{8, 4, 4, 8}
	attributeFields  = []int{1, 1, 2}
	fatbinFields     = []int{4, 2, 2, 8}
	entryFields      = []int{2, 2, 4, 8, 4, 4, 4, 4, 8, 8, 8, 8}
)

// table is a run of rows of an image that are alike.
type table struct {
	at, row int
	rows    int
	fields  []int
}

func (t table) field(c *choices) field {
	at, n := t.at+c.of(t.rows)*t.row, c.of(len(t.fields))
	for _, size := range t.fields[:n] {
		at += size
	}
	return field{at, t.fields[n]}
}

// tablesOf finds the tables of a cubin that is not damaged.
func tablesOf(image []byte) []table {
	sections, count := int(le.Uint64(image[40:])), int(le.Uint16(image[60:]))
	list := []table{
		{0, elfHeaderSize, 1, headerFields}, {sections, sectionHeaderSize, count, sectionFields},
		{int(le.Uint64(image[32:])), segmentSize, int(le.Uint16(image[56:])), segmentFields},
	}
	for i := range count {
		h := image[sections+i*sectionHeaderSize:]
		offset, size := int(le.Uint64(h[24:])), int(le.Uint64(h[32:]))
		switch le.Uint32(h[4:]) {
		case shtSymtab:
			list = append(list, table{offset, symbolSize, size / symbolSize, symbolFields})
		case shtRel:
			list = append(list, table{offset, relSize, size / relSize, relocationFields})
		case shtRela:
			list = append(list, table{offset, relaSize, size / relaSize, addendFields})
		case shtCUDAInfo:
			for end := offset + size; offset < end; {
				list = append(list, table{offset, 4, 1, attributeFields})
				length := 0
				if image[offset] == eifmtSVAL {
					length = int(le.Uint16(image[offset+2:]))
				}
				if length >= 4 {
					list = append(list, table{offset + 4, 4, length / 4, []int{2, 2}})
				}
				offset += 4 + length
			}
		}
	}
	return slices.DeleteFunc(list, func(t table) bool { return t.rows == 0 })
}

// damage changes an image in one to four places: fields that point elsewhere, have the value of others, or are too large; rows that
// stand over others; a file that is cut. One in 32 stays whole.
func damage(c *choices, image []byte, tables []table) []byte {
	if c.of(32) == 1 {
		return image
	}
	for range 1 + c.of(4) {
		t := tables[c.of(len(tables))]
		if c.of(3) == 0 { // the headers of an image say the most
			t = tables[c.of(min(3, len(tables)))]
		}
		f := t.field(c)
		other := tables[c.of(len(tables))]
		from := other.field(c)
		if t.at+t.row*t.rows > len(image) || other.at+other.row*other.rows > len(image) {
			return image
		}
		switch c.of(8) {
		case 0:
			f.put(image, from.get(image))
		case 1:
			f.put(image, f.get(image)+uint64(oneOf(c, 1, -1, 8, -8, 16, 64, 128, -64)))
		case 2:
			f.put(image, uint64(other.at)+uint64(c.of(3)-1))
		case 3:
			f.put(image, oneOf(c, 0, 1, uint64(len(image)), 1<<31, 1<<63, ^uint64(0), uint64(len(image)-1)))
		case 4: // a row over another one of its table
			to, row := t.at+c.of(t.rows)*t.row, t.at+c.of(t.rows)*t.row
			copy(image[to:to+t.row], image[row:row+t.row])
		case 5: // a row over another table
			row := t.at + c.of(t.rows)*t.row
			copy(image[other.at:other.at+min(other.row, t.row)], image[row:row+t.row])
		case 6: // a place of a table: over another one
			f = field{tables[0].at + oneOf(c, 32, 40), 8}
			f.put(image, uint64(other.at-tables[0].at)+uint64(8*c.of(4)))
		case 7:
			if c.of(16) == 0 {
				return image[:c.of(len(image))]
			}
			image[c.of(len(image))] ^= 1 << c.of(8)
		}
	}
	return image
}

// buildImage makes an image, a cubin or a fatbin of one to three, and says where its tables are.
func buildImage(c *choices) (Image, []table) {
	if c.of(4) != 0 {
		image := buildCubin(c)
		return Image{FormCubin, image}, tablesOf(image)
	}
	out := make([]byte, fatbinHeaderSize)
	le.PutUint32(out, fatbinMagic)
	le.PutUint16(out[6:], fatbinHeaderSize)
	tables := []table{{0, fatbinHeaderSize, 1, fatbinFields}}
	for range 1 + c.of(3) {
		header := make([]byte, entryHeaderSize)
		le.PutUint16(header[entryKind:], entryKindELF)
		le.PutUint32(header[entryHeader:], entryHeaderSize)
		tables = append(tables, table{len(out), entryHeaderSize, 1, entryFields})
		if c.of(4) == 1 {
			le.PutUint16(header, entryKindPTX)
			out = entryData{header: header}.appendRaw(out, []byte(".version 8.7\n\x00"))
			continue
		}
		cubin := buildCubin(c)
		inside := tablesOf(cubin)
		if c.of(3) == 1 {
			out = appendPacked(out, header, cubin)
			continue
		}
		for i := range inside {
			inside[i].at += len(out) + entryHeaderSize
		}
		out, tables = entryData{header: header}.appendRaw(out, cubin), append(tables, inside...)
	}
	le.PutUint64(out[8:], uint64(len(out)-fatbinHeaderSize))
	return Image{FormFatbin, out}, tables
}

// appendPacked appends an entry that is compressed.
func appendPacked(out, header, contents []byte) []byte {
	packed := make([]byte, lz4.CompressBlockBound(len(contents)))
	n, err := lz4.CompressBlock(contents, packed, nil)
	if err != nil || n == 0 {
		return entryData{header: header}.appendRaw(out, contents)
	}
	at := len(out)
	out = append(append(out, header...), packed[:n]...)
	out = append(out, make([]byte, padded(n)-n)...)
	le.PutUint64(out[at+entryStored:], uint64(padded(n)))
	le.PutUint32(out[at+entryCompressed:], uint32(n))
	le.PutUint64(out[at+entryUncompressed:], uint64(len(contents)))
	le.PutUint64(out[at+entryFlags:], entryFlagLZ4)
	return out
}
