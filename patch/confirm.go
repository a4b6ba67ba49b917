package patch

import (
	"bytes"
	"fmt"
	"slices"
)

// confirmation compares a rewritten cubin with its original. It reads both anew: nothing that the rewriting left in memory counts, but
// for the plans.
type confirmation struct {
	before, after *cubin
	kernels       map[int]*plan // the guarded ones, by symbol
	code          map[int]*plan // by section
	infos         map[int]*plan
	constants     map[int]*plan
	dropped       bool // the mercury sections
}

// confirm says whether a rewritten cubin is what was planned: each guarded kernel reads as one that has a guard and the hidden parameter,
// and everything else is unchanged.
func confirm(image, out []byte, plans []*plan) error {
	before, err := parseCubin(image)
	if err != nil {
		return fmt.Errorf("%w: the original: %w", ErrUnconfirmed, err)
	}
	after, err := parseCubin(out)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	c := &confirmation{
		before: before, after: after, kernels: make(map[int]*plan), code: make(map[int]*plan), infos: make(map[int]*plan),
		constants: make(map[int]*plan), dropped: before.kept < len(before.sections),
	}
	for _, p := range plans {
		if p.Guarded {
			c.kernels[p.symbol], c.code[p.text.index], c.infos[p.info.index], c.constants[p.constants.index] = p, p, p, p
		}
	}
	if len(c.code) != len(c.kernels) || len(c.infos) != len(c.kernels) || len(c.constants) != len(c.kernels) {
		return fmt.Errorf("%w: two kernels share a section", ErrUnconfirmed)
	}
	if what := c.difference(); what != "" {
		return fmt.Errorf("%w: %s", ErrUnconfirmed, what)
	}
	return nil
}

// difference names the first thing that differs from the plan; "" if there is none.
func (c *confirmation) difference() string {
	if !c.sameHeader() || len(c.after.sections) != c.before.kept {
		return "the header"
	}
	if what := c.symbols(); what != "" {
		return what
	}
	for i, was := range c.before.sections[:c.before.kept] {
		if !c.sameSection(was, c.after.sections[i]) {
			return "section " + was.name
		}
	}
	if !c.sameSegments() {
		return "program headers"
	}
	around := c.after.look(Options{})
	for symbol, p := range c.kernels {
		if !c.hasGuard(p, symbol, around) {
			return "kernel " + p.Name
		}
	}
	return ""
}

// sameHeader compares ELF headers, but for the places of the tables and the number of sections.
func (c *confirmation) sameHeader() bool {
	was, is := bytes.Clone(c.before.raw[:elfHeaderSize]), bytes.Clone(c.after.raw[:elfHeaderSize])
	for _, h := range [][]byte{was, is} {
		le.PutUint64(h[32:], 0)
		le.PutUint64(h[40:], 0)
		le.PutUint16(h[60:], 0)
	}
	return bytes.Equal(was, is)
}

// symbols compares the symbol tables: those in guarded code move, and a kernel grows.
func (c *confirmation) symbols() string {
	if len(c.before.symbols) != len(c.after.symbols) {
		return "the symbol table"
	}
	for i, s := range c.before.symbols {
		was, is := c.before.symtab.data[i*symbolSize:], c.after.symtab.data[i*symbolSize:]
		value, size := s.value, s.size
		if p := c.code[int(s.section)]; p != nil && s.kind != sttSection {
			if c.kernels[i] != nil {
				size += p.growth()
			} else {
				value += p.growth()
			}
		}
		if !bytes.Equal(is[:8], was[:8]) || le.Uint64(is[8:]) != value || le.Uint64(is[16:]) != size {
			return "symbol " + s.name
		}
	}
	return ""
}

// growth is how far a kernel's code moves.
func (p *plan) growth() uint64 { return uint64(len(p.guard.code)) }

// header returns a section's header as it stands in the file.
func (c *cubin) header(s *section) []byte {
	return c.raw[c.sectionOffset+uint64(s.index)*sectionHeaderSize:][:sectionHeaderSize]
}

func (c *confirmation) sameSection(was, is *section) bool {
	flags, info := was.flags, was.info
	if p := c.code[was.index]; p != nil {
		flags, info = p.newFlags(flags), p.newInfo(info)
	}
	w, i := c.before.header(was), c.after.header(is)
	if !bytes.Equal(i[:8], w[:8]) || is.flags != flags || !bytes.Equal(i[16:24], w[16:24]) || is.link != was.link || is.info != info ||
		!bytes.Equal(i[48:], w[48:]) {
		return false
	}
	switch {
	case was.index == 0 && le.Uint16(c.before.raw[60:]) == 0: // its size is the number of sections
		return true
	case was.data == nil:
		return is.data == nil && is.size == was.size
	case was.align > 1 && len(was.data) > 0 && was.offset%was.align == 0 && is.offset%was.align != 0:
		return false
	}
	return c.sameContents(was, is)
}

// sameContents compares the contents of sections, each kind by its plan.
func (c *confirmation) sameContents(was, is *section) bool {
	if p := c.code[was.index]; p != nil {
		return slices.Equal(is.data[:min(len(is.data), int(p.growth()))], p.guard.instance(p.base+uint32(p.HiddenOffset))) &&
			bytes.Equal(is.data[p.growth():], was.data)
	}
	if p := c.infos[was.index]; p != nil {
		planned, err := formatAttributes(p.attributes)
		return err == nil && bytes.Equal(is.data, planned)
	}
	if p := c.constants[was.index]; p != nil {
		size := int(p.base) + p.HiddenOffset + hiddenSize
		return len(is.data) == size && len(was.data) < size && bytes.HasPrefix(is.data, was.data) &&
			!slices.ContainsFunc(is.data[len(was.data):], func(b byte) bool { return b != 0 })
	}
	switch {
	case was.index == c.before.symtab.index:
		return len(is.data) == len(was.data) && bytes.Equal(rest(is.data), rest(was.data))
	case was.kind == shtRel || was.kind == shtRela:
		return c.sameRelocations(was, is)
	case was.kind == shtCUDAInfo && was.info == 0:
		return c.sameAttributes(was, is, func(a *attribute) {
			if p := c.counted(a); p != nil {
				a.data = le.AppendUint32(bytes.Clone(a.data[:4]), uint32(p.GuardedRegisters))
			}
		})
	case was.kind == shtCUDACompatInfo && c.dropped:
		return c.sameAttributes(was, is, func(a *attribute) {
			if a.code == eicompatOpportunisticFinalization && a.format == eifmtBVAL {
				a.value = 0
			}
		})
	case was.debugging():
		return c.sameDebugging(was, is)
	}
	return bytes.Equal(was.data, is.data)
}

// rest is what stands behind the last whole symbol of a table.
func rest(table []byte) []byte { return table[len(table)/symbolSize*symbolSize:] }

// counted returns the guarded kernel whose count of registers an attribute of .nv.info holds.
func (c *confirmation) counted(a *attribute) *plan {
	if a.code != eiattrRegcount || len(a.data) != 8 {
		return nil
	}
	return c.kernels[int(le.Uint32(a.data))]
}

// sameAttributes compares lists of attributes; change says what was to become of one.
func (c *confirmation) sameAttributes(was, is *section, change func(*attribute)) bool {
	old, err := parseAttributes(was.data)
	if err != nil {
		return false
	}
	for i := range old {
		change(&old[i])
	}
	planned, err := formatAttributes(old)
	return err == nil && bytes.Equal(is.data, planned)
}

// movedBy is how far a relocation's value moves: it is a place in guarded code that has no symbol of its own.
func (c *confirmation) movedBy(symbol uint32) uint64 {
	if int(symbol) >= len(c.before.symbols) {
		return 0
	}
	s := c.before.symbols[symbol]
	p := c.code[int(s.section)]
	if p != nil && (s.index == p.symbol || s.kind == sttSection) {
		return p.growth()
	}
	return 0
}

func (c *confirmation) sameRelocations(was, is *section) bool {
	entry := relSize
	if was.kind == shtRela {
		entry = relaSize
	}
	if len(is.data) != len(was.data) {
		return false
	}
	at := 0
	for ; at+entry <= len(was.data); at += entry {
		w, i := was.data[at:at+entry], is.data[at:at+entry]
		offset := le.Uint64(w)
		if p := c.code[int(was.info)]; p != nil {
			offset += p.growth()
		}
		if le.Uint64(i) != offset || !bytes.Equal(i[8:16], w[8:16]) {
			return false
		}
		if entry == relaSize && le.Uint64(i[16:]) != le.Uint64(w[16:])+c.movedBy(le.Uint32(w[12:])) {
			return false
		}
	}
	return bytes.Equal(is.data[at:], was.data[at:])
}

// sameDebugging compares debugging information, in which addends of relocations may stand that move.
func (c *confirmation) sameDebugging(was, is *section) bool {
	if len(is.data) != len(was.data) {
		return false
	}
	planned := bytes.Clone(was.data)
	for _, table := range c.before.sections[:c.before.kept] {
		if table.kind != shtRel || int(table.info) != was.index {
			continue
		}
		for data := table.data; len(data) >= relSize; data = data[relSize:] {
			r := relocation{offset: le.Uint64(data), kind: le.Uint32(data[8:])}
			moved := c.movedBy(le.Uint32(data[12:]))
			switch addend := inPlace(was, r); {
			case moved == 0 || addend < 0:
			case r.kind == rCUDA32:
				le.PutUint32(planned[r.offset:], uint32(addend)+uint32(moved))
			default:
				le.PutUint64(planned[r.offset:], uint64(addend)+moved)
			}
		}
	}
	return bytes.Equal(is.data, planned)
}

// sameSegments checks that program headers hold the same sections and tables as before, and nothing else about them changed.
func (c *confirmation) sameSegments() bool {
	if c.before.segments != c.after.segments {
		return false
	}
	parts, newParts := c.before.parts(), c.after.parts()
	for i := range c.before.segments {
		w := c.before.raw[c.before.segmentOffset+uint64(i)*segmentSize:][:segmentSize]
		is := c.after.raw[c.after.segmentOffset+uint64(i)*segmentSize:][:segmentSize]
		start, size, newStart, newSize := le.Uint64(w[8:]), le.Uint64(w[32:]), le.Uint64(is[8:]), le.Uint64(is[32:])
		if !bytes.Equal(w[:8], is[:8]) || !bytes.Equal(w[16:32], is[16:32]) || !bytes.Equal(w[48:], is[48:]) ||
			le.Uint64(w[40:])-size != le.Uint64(is[40:])-newSize {
			return false
		}
		if size == 0 {
			if start != newStart || newSize != 0 {
				return false
			}
			continue
		}
		for n, p := range parts {
			if p.size > 0 && p.within(start, size) != newParts[n].within(newStart, newSize) {
				return false
			}
		}
	}
	return true
}

// part is a range of a file.
type part struct{ offset, size uint64 }

func (p part) within(start, size uint64) bool {
	return p.offset >= start && p.offset+p.size <= start+size
}

// parts are the tables and sections of a file that stay.
func (c *cubin) parts() []part {
	list := make([]part, 0, 2+c.kept)
	list = append(list, part{0, elfHeaderSize}, part{c.segmentOffset, uint64(c.segments) * segmentSize})
	for _, s := range c.sections[:c.kept] {
		list = append(list, part{s.offset, uint64(len(s.data))})
	}
	return list
}

// hasGuard reads a guarded kernel as if it were to be rewritten.
func (c *confirmation) hasGuard(p *plan, symbol int, around *surroundings) bool {
	is := &plan{Kernel: Kernel{Name: p.Name}, symbol: symbol, guard: p.guard}
	if c.after.findSections(is, around) != nil {
		return false
	}
	list, err := parseAttributes(is.info.data)
	if err != nil || is.readParameters(list) != nil {
		return false
	}
	hidden := Parameter{uint16(p.HiddenOffset), hiddenSize}
	return is.guard.begins(is.text.data) && is.base == p.base && is.ParameterBytes == p.HiddenOffset+hiddenSize &&
		slices.Equal(is.Layout, append(slices.Clone(p.Layout), hidden)) && around.registers[symbol] == p.GuardedRegisters
}

// confirmEntries says whether a rewritten fatbin has the entries of the original, with new contents where those are given: cubins that
// were confirmed.
func confirmEntries(before []entryData, rewritten [][]byte, out []byte) error {
	after, err := entries(out)
	if err != nil || len(after) != len(before) {
		return fmt.Errorf("%w: %d entries became %d", ErrUnconfirmed, len(before), len(after))
	}
	for i, was := range before {
		var same bool
		is := after[i]
		if rewritten[i] == nil {
			same = bytes.Equal(is.header, was.header) && bytes.Equal(is.stored, was.stored)
		} else {
			contents, err := is.unpack(len(is.stored))
			same = err == nil && bytes.HasPrefix(contents, rewritten[i]) && len(contents) == padded(len(rewritten[i])) &&
				bytes.Equal(is.header[:entryStored], was.header[:entryStored]) && le.Uint32(is.header[entrySM:]) == le.Uint32(was.header[entrySM:])
		}
		if !same {
			return fmt.Errorf("%w: entry %d", ErrUnconfirmed, i)
		}
	}
	return nil
}
