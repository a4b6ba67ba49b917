package patch

import (
	"errors"
	"fmt"
	"strings"
)

// Relocations, as cuobjdump names them.
const (
	rCUDA32        = 1
	rCUDA64        = 2
	rCUDAAbs32Lo32 = 56 // half of an address, for a MOV
	rCUDAAbs32Hi32 = 57
	rCUDAAbs47_34  = 58 // CALL.ABS
)

const (
	relSize  = 16 // Elf64_Rel: u64 offset, u32 type, u32 symbol
	relaSize = 24 // Elf64_Rela: and i64 addend
)

// relocation is one entry of a relocation section.
type relocation struct {
	table  *section
	target *section // what it applies to
	at     int      // in the table
	offset uint64
	kind   uint32
	symbol uint32
	addend int64
}

// indexRelocations reads all relocations. Their index is the code section that they apply to, or in which their symbol
// lies.
func (c *cubin) indexRelocations() (map[int][]relocation, error) {
	index := make(map[int][]relocation)
	for _, table := range c.sections[:c.kept] {
		var entry int
		switch table.kind {
		case shtRel:
			entry = relSize
		case shtRela:
			entry = relaSize
		default:
			continue
		}
		if int(table.info) >= c.kept || len(table.data)%entry != 0 {
			return nil, errors.New("bad relocations")
		}
		target := c.sections[table.info]
		for at := 0; at < len(table.data); at += entry {
			h := table.data[at:]
			r := relocation{
				table: table, target: target, at: at,
				offset: le.Uint64(h), kind: le.Uint32(h[8:]), symbol: le.Uint32(h[12:]),
			}
			if int(r.symbol) >= len(c.symbols) {
				return nil, errors.New("relocation to no symbol")
			}
			if entry == relaSize {
				r.addend = int64(le.Uint64(h[16:]))
			} else {
				r.addend = inPlace(target, r)
			}
			owner := int(c.symbols[r.symbol].section)
			index[owner] = append(index[owner], r)
			if target.index != owner {
				index[target.index] = append(index[target.index], r)
			}
		}
	}
	return index, nil
}

// inPlace reads the addend of an Elf64_Rel, which is stored at the place itself; -1 if the relocation's type is unknown.
func inPlace(target *section, r relocation) int64 {
	switch {
	case r.kind == rCUDA32 && inside(target.data, r.offset, 4):
		return int64(le.Uint32(target.data[r.offset:]))
	case r.kind == rCUDA64 && inside(target.data, r.offset, 8):
		return int64(le.Uint64(target.data[r.offset:]))
	}
	return -1
}

// debugging sections describe the code: its first instruction, not the guard. All others mean the kernel by its symbol, to
// start it. A section by such a name that is a table for this package is none.
func (s *section) debugging() bool {
	return s.kind == shtProgbits && (strings.HasPrefix(s.name, ".debug_") || strings.HasPrefix(s.name, ".nv_debug"))
}

// pointsInto says whether a relocation's value is a place in a kernel's code that has no symbol of its own: the symbol of
// the kernel or the section plus an addend.
func (c *cubin) pointsInto(p *plan, r relocation) bool {
	s := c.symbols[r.symbol]
	return s.index == p.symbol || int(s.section) == p.text.index && s.kind == sttSection
}

// checkRelocations refuses a kernel with a relocation that moveRelocations cannot move. It also refuses a kernel that device
// code or data refers to: it may be started from the device, without the hidden parameter. References to its code move only if they are
// known to mean an absolute address: relative ones must not.
func (c *cubin) checkRelocations(p *plan, list []relocation) error {
	for _, r := range list {
		if r.target == p.text && r.offset >= p.text.size {
			return fmt.Errorf("relocation of type %d in its code", r.kind)
		}
		if int(c.symbols[r.symbol].section) != p.text.index {
			continue
		}
		into, absolute := c.pointsInto(p, r), false
		switch {
		case r.target.debugging():
			absolute = r.kind == rCUDA32 || r.kind == rCUDA64
		case r.symbol == uint32(p.symbol) && r.target != p.text:
			return fmt.Errorf("its address is taken in %s", r.target.name)
		case r.target == p.text && (!into || r.table.kind == shtRela && r.addend > 0):
			absolute = r.kind == rCUDAAbs32Lo32 || r.kind == rCUDAAbs32Hi32 || r.kind == rCUDAAbs47_34
		}
		if !absolute || into && (r.addend < 0 || uint64(r.addend) > p.text.size) {
			return fmt.Errorf("relocation of type %d in %s", r.kind, r.target.name)
		}
	}
	return nil
}

// moveRelocations moves references to places in a kernel's code, and the places in it that relocations apply to.
func (c *cubin) moveRelocations(p *plan, list []relocation, delta uint64) {
	for _, r := range list {
		if r.target == p.text {
			le.PutUint64(r.table.mutable()[r.at:], r.offset+delta)
		}
		switch {
		case !c.pointsInto(p, r):
		case r.table.kind == shtRela:
			le.PutUint64(r.table.mutable()[r.at+16:], uint64(r.addend)+delta)
		case r.kind == rCUDA32:
			le.PutUint32(r.target.mutable()[r.offset:], uint32(r.addend)+uint32(delta))
		default:
			le.PutUint64(r.target.mutable()[r.offset:], uint64(r.addend)+delta)
		}
	}
}
