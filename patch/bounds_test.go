package patch

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// edited is a cubin of testdata/seeds in which tests change single fields.
type edited struct {
	t    *testing.T
	data []byte
	c    *cubin // the original
}

func editSeed(t *testing.T, name string) *edited {
	t.Helper()
	data := bytes.Clone(seeds(t, name+".cubin")["testdata/seeds/"+name+".cubin"])
	c, err := parseCubin(bytes.Clone(data))
	if err != nil {
		t.Fatal(err)
	}
	return &edited{t, data, c}
}

func (e *edited) section(name string) *section {
	e.t.Helper()
	for _, s := range e.c.sections {
		if s.name == name {
			return s
		}
	}
	e.t.Fatalf("no section %s", name)
	return nil
}

// header returns a section's header in the file.
func (e *edited) header(name string) []byte {
	e.t.Helper()
	return e.data[int(e.c.sectionOffset)+e.section(name).index*sectionHeaderSize:][:sectionHeaderSize]
}

// contents returns a section's contents in the file.
func (e *edited) contents(name string) []byte {
	e.t.Helper()
	return e.data[e.section(name).offset:][:e.section(name).size]
}

// symbol returns the row of a symbol by its name, or of the symbol that stands for a section.
func (e *edited) symbol(name string) []byte {
	e.t.Helper()
	for _, s := range e.c.symbols {
		if s.name == name && s.kind != sttSection || s.kind == sttSection && e.c.sections[s.section].name == name {
			return e.data[int(e.c.symtab.offset)+s.index*symbolSize:][:symbolSize]
		}
	}
	e.t.Fatalf("no symbol %s", name)
	return nil
}

// attribute returns the nth attribute of a code in a section, with what follows.
func (e *edited) attribute(info string, code byte, nth int) []byte {
	e.t.Helper()
	data := e.contents(info)
	for at := 0; at < len(data); at += 4 {
		if data[at+1] == code {
			if nth--; nth < 0 {
				return data[at:]
			}
		}
		if data[at] == eifmtSVAL {
			at += int(le.Uint16(data[at+2:]))
		}
	}
	e.t.Fatalf("no attribute %#x", code)
	return nil
}

func put16(at []byte, v int) { le.PutUint16(at, uint16(v)) }

// TestBounds changes one thing of an image at a time: to the last value with which kernel "seed" is guarded, and to the first one that
// refuses it.
func TestBounds(t *testing.T) {
	const info, code, bank = ".nv.info.seed", ".text.seed", ".nv.constant0.seed"
	for _, test := range []struct {
		name, seed string
		change     func(e *edited)
		reason     string // why the kernel is refused; "": it is guarded
	}{
		{"as it was", "sm_90", func(*edited) {}, ""},
		{"a shorter symbol", "sm_90", func(e *edited) { le.PutUint64(e.symbol("seed")[16:], 16) }, ""},
		{"a longer symbol", "sm_90", func(e *edited) { le.PutUint64(e.symbol("seed")[16:], e.section(code).size+1) }, "code of unexpected extent"},
		{"a later symbol", "sm_90", func(e *edited) { le.PutUint64(e.symbol("seed")[8:], 16) }, "code of unexpected extent"},
		{"half an instruction", "sm_90", func(e *edited) {
			le.PutUint64(e.symbol("seed")[16:], 16)
			le.PutUint64(e.header(code)[32:], e.section(code).size-8)
		}, "code of unexpected extent"},
		{"no code", "sm_90", func(e *edited) {
			le.PutUint64(e.symbol("empty")[16:], 0)
			le.PutUint64(e.header(".text.empty")[32:], 0)
		}, "empty: code of unexpected extent"},
		{"code of another kind", "sm_90", func(e *edited) { le.PutUint32(e.header(code)[4:], 7) }, "code in an unexpected section"},
		{"code that is no code", "sm_90", func(e *edited) { e.header(code)[8] &^= shfExecinstr }, "code in an unexpected section"},
		{"code by another name", "sm_90", func(e *edited) { copy(e.header(code)[:4], e.header(".text.empty")[:4]) }, "code in an unexpected section"},
		{"a section that is not kept", "sm_100", func(e *edited) { put16(e.symbol("seed")[6:], e.c.kept) }, "no code"},
		{"no attributes", "sm_90", func(e *edited) { le.PutUint32(e.header(info)[4:], shtProgbits) }, "no attributes or constant bank"},
		{"attributes of another one", "sm_90", func(e *edited) { le.PutUint32(e.header(info)[44:], 2) }, "no attributes or constant bank"},
		{"no constants", "sm_90", func(e *edited) { le.PutUint32(e.header(bank)[4:], 7) }, "no attributes or constant bank"},
		{"no symbol of the bank", "sm_90", func(e *edited) { e.symbol(bank)[4] = 0 }, "no symbol for its constant bank"},
		{"a symbol at the end", "sm_90", func(e *edited) { addSymbol(e, e.section(code).size) }, ""},
		{"a symbol behind the end", "sm_90", func(e *edited) { addSymbol(e, e.section(code).size+1) }, "in its code"},
		{"a symbol at the beginning", "sm_90", func(e *edited) { addSymbol(e, 0) }, "in its code"},

		{"a parameter less far", "sm_90", func(e *edited) { put16(e.attribute(info, eiattrKparamInfo, 0)[10:], 4) }, ""},
		{"a parameter a byte too far", "sm_90", func(e *edited) { e.attribute(info, eiattrKparamInfo, 0)[10]++ }, "parameters beyond their size"},
		{"two of one number", "sm_90", func(e *edited) { put16(e.attribute(info, eiattrKparamInfo, 0)[8:], 0) }, "parameters are numbered with gaps"},
		{"a parameter in another form", "sm_90", func(e *edited) { e.attribute(info, eiattrKparamInfo, 0)[0] = eifmtHVAL }, "bad attributes"},
		{"sizes of two kinds", "sm_90", func(e *edited) { put16(e.attribute(info, eiattrParamCbank, 0)[10:], 16) }, "parameter sizes contradict each other"},
		{"a size in another form", "sm_90", func(e *edited) { e.attribute(info, eiattrCbankParamSize, 0)[0] = eifmtBVAL }, "EIATTR_CBANK_PARAM_SIZE of unknown form"},
		{"no size", "sm_90", func(e *edited) { e.attribute(info, eiattrCbankParamSize, 0)[1] = 1 }, "parameter sizes contradict each other"},
		{"no place", "sm_90", func(e *edited) { e.attribute(info, eiattrParamCbank, 0)[1] = 1 }, "parameter sizes contradict each other"},
		{"another base", "sm_90", func(e *edited) { put16(e.attribute(info, eiattrParamCbank, 0)[8:], 0x214) }, "parameters at 0x214 of constant bank 0"},
		{"a longer bank", "sm_90", func(e *edited) { le.PutUint64(e.header(bank)[32:], e.section(bank).size-1) }, "constant bank 0 of unexpected size"},

		{"no count of registers", "sm_90", func(e *edited) { registersOf(e, 0) }, "no register count"},
		{"the most registers", "sm_90", func(e *edited) {
			registersOf(e, 256)
			put16(e.attribute(info, eiattrMaxregCount, 0)[2:], 256)
		}, ""},
		{"a register too many", "sm_90", func(e *edited) { registersOf(e, 257) }, "no register count"},
		{"a limit that suffices", "sm_90", func(e *edited) { limitOf(e, 0) }, ""},
		{"a limit that is too low", "sm_90", func(e *edited) { limitOf(e, -1) }, "limited to"},

		{"an exit at the end", "sm_90", func(e *edited) {
			le.PutUint32(e.attribute(info, eiattrExitInstrOffsets, 0)[4:], uint32(e.section(code).size))
		}, ""},
		{"an exit behind the end", "sm_90", func(e *edited) {
			le.PutUint32(e.attribute(info, eiattrExitInstrOffsets, 0)[4:], uint32(e.section(code).size)+16)
		}, "points outside the code"},
		{"an exit within an instruction", "sm_90", func(e *edited) { e.attribute(info, eiattrExitInstrOffsets, 0)[4] += 8 }, "points outside the code"},

		{"a relocation at the last place", "sm_90", func(e *edited) { le.PutUint64(relocationTo(e, "seed")[16:], e.section(code).size) }, ""},
		{"a relocation behind the code", "sm_90", func(e *edited) { le.PutUint64(relocationTo(e, "seed")[16:], e.section(code).size+1) }, "relocation of type"},
		{"a relocation before the code", "sm_90", func(e *edited) { le.PutUint64(relocationTo(e, "seed")[16:], ^uint64(0)) }, "relocation of type"},
		{"a relocation that is not known", "sm_90", func(e *edited) { le.PutUint32(relocationTo(e, "seed")[8:], 77) }, "relocation of type 77"},
		{"half an address", "sm_90", func(e *edited) { le.PutUint32(relocationTo(e, "seed")[8:], rCUDA32) }, ""},
		{"debugging information that is a note", "sm_90", func(e *edited) { le.PutUint32(e.header(".debug_frame")[4:], 7) }, "in .debug_frame"},
		{"a relocation to no symbol", "sm_90", func(e *edited) { le.PutUint32(relocationTo(e, "seed")[12:], uint32(len(e.c.symbols))) }, "relocation to no symbol"},
		{"a part of a relocation", "sm_90", func(e *edited) { le.PutUint64(e.header(".rela.debug_frame")[32:], 47) }, "bad relocations"},
		{"relocations of nothing", "sm_90", func(e *edited) { le.PutUint32(e.header(".rela.debug_frame")[44:], uint32(e.c.kept)) }, "bad relocations"},
		{"its address in data", "sm_90", func(e *edited) {
			copy(e.contents(".rela.nv.constant4")[12:16], relocationTo(e, "seed")[12:16])
		}, "its address is taken in .nv.constant4"},

		{"work that is taken over, in another section", "sm_100", func(e *edited) { put16(e.contents(".text.empty"), 0x73ca) }, "empty: blocks take over"},
		{"work that is taken over, in the last instruction", "sm_100", func(e *edited) {
			data := e.contents(code)
			put16(data[len(data)-instructionSize:], 0xf3ca)
		}, "blocks take over"},
		{"the same number before sm_100", "sm_90", func(e *edited) { put16(e.contents(code), 0x73ca) }, ""},
		{"work that is taken over, in a function", "sm_100", func(e *edited) {
			put16(e.contents(".text.empty"), 0x73ca)
			e.symbol("empty")[5] = 0
		}, "blocks take over"},
		{"a function that is no code", "sm_100", func(e *edited) {
			put16(e.contents(".text.empty"), 0x73ca)
			e.symbol("empty")[5] = 0
			e.header(".text.empty")[8] &^= shfExecinstr
		}, ""},
		{"mercury between", "sm_100", func(e *edited) { le.PutUint64(e.header(".nv.constant4")[8:], shfMercury|2) }, "mercury sections between others"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := editSeed(t, test.seed)
			test.change(e)
			_, report, err := Cubin(e.data, Options{Guards: testGuards(t)})
			if err != nil {
				t.Fatal(err)
			}
			kernel, reason, named := strings.Cut(test.reason, ": ")
			if !named {
				kernel, reason = "seed", test.reason
			}
			k := kernelOf(report, kernel)
			if k == nil || k.Guarded != (reason == "") || !strings.Contains(k.Reason, reason) {
				t.Errorf("%+v, expected %q", k, test.reason)
			}
		})
	}
}

// addSymbol makes a symbol of the code of kernel "seed" out of that of a debugging section.
func addSymbol(e *edited, value uint64) {
	row := e.symbol(".debug_frame")
	row[4] = sttNotype
	put16(row[6:], e.section(".text.seed").index)
	le.PutUint64(row[8:], value)
}

func registersOf(e *edited, count uint32) {
	for nth := range 2 {
		a := e.attribute(".nv.info", eiattrRegcount, nth)
		le.PutUint32(a[8:], count)
	}
}

// limitOf sets the most registers: so many more than the guarded kernel has.
func limitOf(e *edited, more int) {
	_, report, err := Cubin(e.data, Options{Guards: testGuards(e.t)})
	if err != nil {
		e.t.Fatal(err)
	}
	put16(e.attribute(".nv.info.seed", eiattrMaxregCount, 0)[2:], kernelOf(report, "seed").GuardedRegisters+more)
}

// relocationTo returns the entry of the debugging information's relocations that means a kernel.
func relocationTo(e *edited, kernel string) []byte {
	data := e.contents(".rela.debug_frame")
	for ; len(data) >= relaSize; data = data[relaSize:] {
		if e.c.symbols[le.Uint32(data[12:])].name == kernel {
			return data
		}
	}
	e.t.Fatalf("no relocation to %s", kernel)
	return nil
}

// TestRoom has as many parameters as leave room for the hidden one, and one more.
func TestRoom(t *testing.T) {
	for _, test := range []struct {
		sm, version uint32
		most        int // of 8 bytes
	}{
		{90, 130, 4094}, {90, 121, 4094}, {90, 120, 511}, {80, 130, 543}, {80, 120, 511}, {100, 130, 4094},
	} {
		for more, guarded := range []bool{true, false} {
			b := &builder{choices: &choices{}, sm: int(test.sm), version: test.version, parameters: test.most + more}
			_, report, err := Cubin(b.cubin(1), Options{Guards: testGuards(t)})
			if err != nil {
				t.Fatal(err)
			}
			k := report.Kernels[0]
			if k.Guarded != guarded || !guarded && (k.Refusal != RefusedRoom || !strings.Contains(k.Reason, "leave no room")) {
				t.Errorf("%+v, %d more: guarded %v: %s", test, more, k.Guarded, k.Reason)
			}
			if guarded && (k.HiddenOffset != 8*test.most || k.Parameters != test.most || len(k.Layout) != test.most) {
				t.Errorf("%+v: hidden at %d behind %d", test, k.HiddenOffset, k.Parameters)
			}
		}
	}
}

// Older generations keep two numbers in a section's header: barriers in 5 bits of the flags, and a register count beside a symbol.
func TestNumbersInHeaders(t *testing.T) {
	p := &plan{guard: &Guard{Registers: 14, Barriers: 2}, barriersInFlags: true}
	for flags, expected := range map[uint64]uint64{6: 6 | 2<<20, 6 | 1<<20: 6 | 2<<20, 6 | 2<<20: 6 | 2<<20, 6 | 31<<20: 6 | 31<<20, 1 << 25: 1<<25 | 2<<20} {
		if got := p.newFlags(flags); got != expected {
			t.Errorf("flags %#x became %#x, expected %#x", flags, got, expected)
		}
	}
	for info, expected := range map[uint32]uint32{7: 7, 13<<24 | 7: 14<<24 | 7, 14<<24 | 7: 14<<24 | 7, 255<<24 | 0xffffff: 255<<24 | 0xffffff} {
		if got := p.newInfo(info); got != expected {
			t.Errorf("info %#x became %#x, expected %#x", info, got, expected)
		}
	}
	p.barriersInFlags = false
	if got := p.newFlags(6); got != 6 {
		t.Errorf("barriers in an attribute: flags %#x", got)
	}
}

// TestHeaders damages one field of the ELF header at a time.
func TestHeaders(t *testing.T) {
	for _, test := range []struct {
		at, size int
		value    uint64
		reason   string
	}{
		{0, 1, 0x7e, "no ELF header"}, {4, 1, 1, "not a 64-bit ELF file for CUDA"}, {5, 1, 2, "not a 64-bit ELF file for CUDA"},
		{7, 1, 3, "unknown OS ABI 0x3"}, {16, 2, 1, "ELF type 1"}, {18, 2, 62, "not a 64-bit ELF file for CUDA"}, {52, 2, 65, "unknown header sizes"},
		{54, 2, 57, "bad program headers"}, {56, 2, maxSegments + 1, "bad program headers"}, {58, 2, 65, "unknown header sizes"},
		{60, 2, 0, "bad section headers"}, {60, 2, 1, "bad section headers"}, {62, 2, 0xffff, "bad section headers"}, {62, 2, 0, "has no name"},
		{32, 8, 1 << 63, "bad program headers"}, {40, 8, 1 << 63, "bad section headers"}, {40, 8, ^uint64(0), "bad section headers"},
	} {
		e := editSeed(t, "sm_90")
		field{test.at, test.size}.put(e.data, test.value)
		if out, _, err := Cubin(e.data, Options{Guards: testGuards(t)}); out != nil || err == nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%d at %d: %v, expected %s", test.value, test.at, err, test.reason)
		}
	}
	e := editSeed(t, "sm_90")
	le.PutUint32(e.data[e.c.sectionOffset+4:], shtProgbits)
	if _, _, err := Cubin(e.data, Options{Guards: testGuards(t)}); err == nil || !strings.Contains(err.Error(), "section 0 has a kind") {
		t.Errorf("section 0: %v", err)
	}
	for length, refused := range map[int]bool{0: true, elfHeaderSize - 1: true} {
		e := editSeed(t, "sm_90")
		if _, _, err := Cubin(e.data[:length], Options{Guards: testGuards(t)}); (err != nil) != refused {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

// TestManySections has the number of sections in the first section header, where the ELF header has no room for it.
func TestManySections(t *testing.T) {
	for _, seed := range []string{"sm_90", "sm_100"} {
		e := editSeed(t, seed)
		expected, _, err := Cubin(e.data, Options{Guards: testGuards(t)})
		if err != nil {
			t.Fatal(err)
		}
		put16(e.data[60:], 0)
		le.PutUint64(e.data[e.c.sectionOffset+32:], uint64(len(e.c.sections)))
		out, report, err := Cubin(e.data, Options{Guards: testGuards(t)})
		if err != nil || report.Guarded() != 2 || len(out) != len(expected) {
			t.Fatalf("%+v: %v", report, err)
		}
		if c, err := parseCubin(out); err != nil || len(c.sections) != e.c.kept {
			t.Errorf("%d sections of %d: %v", len(c.sections), e.c.kept, err)
		}
		for _, count := range []uint64{0, maxSections + 1, 1 << 63, uint64(len(e.c.sections)) + 1000} {
			le.PutUint64(e.data[e.c.sectionOffset+32:], count)
			if _, _, err := Cubin(e.data, Options{Guards: testGuards(t)}); err == nil || !strings.Contains(err.Error(), "bad section headers") {
				t.Errorf("%d sections: %v", count, err)
			}
		}
	}
}

// TestLayout maps offsets over what is replaced.
func TestLayout(t *testing.T) {
	l := layout{{start: 100, end: 120, padded: 30, grown: 10}, {start: 120, end: 130, padded: 10, grown: 10}, {start: 200, end: 220, padded: 0, grown: ^uint64(0) - 9}}
	for offset, expected := range map[uint64]uint64{0: 0, 100: 100, 110: 110, 119: 119, 120: 130, 130: 140, 199: 209, 200: 210, 219: 229, 220: 210, 1000: 990} {
		if got := l.at(offset); got != expected {
			t.Errorf("%d is at %d, expected %d", offset, got, expected)
		}
	}
	for offset, expected := range map[uint64]bool{99: false, 100: false, 101: true, 119: true, 120: false, 121: true, 130: false, 150: false, 201: true, 219: true, 220: false} {
		if got := l.splits(offset); got != expected {
			t.Errorf("%d is split: %v", offset, got)
		}
	}
}

// instruction encodes an operation with its form and bits of both halves.
func instruction(op uint16, low, high uint64) []byte {
	return le.AppendUint64(le.AppendUint64(nil, low|uint64(op)), high)
}

// TestDependence goes through what speaks against a kernel, by its code alone.
func TestDependence(t *testing.T) {
	const exit, unused = 0x94d, uint64(noRegister)
	strong := uint64(2) << orderShift
	back := func(instructions int) []byte { // a branch back
		offset := uint64(-int64(instructions+1) * instructionSize / 4)
		return instruction(0x947, (offset&0xff)<<16|(offset>>8)<<34, offset>>(8+30))
	}
	for _, test := range []struct {
		name     string
		code     [][]byte
		expected string
	}{
		{"nothing", nil, ""},
		{"a weak load", [][]byte{instruction(0x981, 0, 0)}, ""},
		{"a constant load", [][]byte{instruction(0x981, 0, orderConstant<<orderShift)}, ""},
		{"a strong load", [][]byte{instruction(0x981, 0, strong)}, "load with an order at 0x0"},
		{"a strong load of 32 bytes", [][]byte{instruction(0x97e, 0, strong)}, "load with an order at 0x0"},
		{"a generic strong load", [][]byte{instruction(0x980, 0, strong)}, "load with an order at 0x0"},
		{"a load for last use", [][]byte{instruction(0x981, 0, lastUse<<evictionShift)}, "load past L1 at 0x0"},
		{"a load that stays", [][]byte{instruction(0x981, 0, unchanged<<evictionShift)}, ""},
		{"a load without allocation", [][]byte{instruction(0x981, 0, 5<<evictionShift)}, "load past L1 at 0x0"},
		{"an atomic that nobody reads", [][]byte{instruction(0x9a8, unused, noPredicate)}, ""},
		{"an atomic with a result", [][]byte{instruction(0x9a8, unused&^(1<<16), noPredicate)}, "atomic whose result is used at 0x0"},
		{"an atomic with a predicate", [][]byte{instruction(0x9a3, unused, noPredicate&^(1<<17))}, "atomic whose result is used at 0x0"},
		{"an unknown operation", [][]byte{instruction(exit, 0, 0), instruction(0xfff, 0, 0)}, "instruction 0x1ff at 0x10"},
		{"a load and a strong store", [][]byte{instruction(0x981, 0, 0), instruction(0x986, 0, strong)}, ""},
		{"both in a loop", [][]byte{instruction(0x981, 0, 0), instruction(0x986, 0, strong), back(2)}, "loop that may load at 0x0 what it writes at 0x10"},
		{"the other way round", [][]byte{instruction(0x986, 0, strong), instruction(0x981, 0, 0), back(2)}, "loop that may load at 0x10 what it writes at 0x0"},
		{"a load before the loop", [][]byte{instruction(0x981, 0, 0), instruction(0x986, 0, strong), back(1)}, ""},
		{"a weak store", [][]byte{instruction(0x981, 0, 0), instruction(0x986, 0, 0), back(2)}, ""},
		{"a constant load in a loop", [][]byte{instruction(0x981, 0, orderConstant<<orderShift), instruction(0x986, 0, strong), back(2)}, ""},
		{"a reduction in a loop", [][]byte{instruction(0x981, 0, 0), instruction(0x98e, 0, 0), back(2)}, "loop that may load at 0x0 what it writes at 0x10"},
		{"a branch ahead", [][]byte{instruction(0x947, 0, 0), instruction(0x981, 0, 0), instruction(0x986, 0, strong)}, ""},
		{"a branch by a register", [][]byte{instruction(0x981, 0, 0), instruction(0x986, 0, strong), instruction(0x949, 0, 0)}, "loop that may load at 0x0 what it writes at 0x10"},
	} {
		code := bytes.Join(append(test.code, instruction(exit, 0, 0)), nil)
		c := &cubin{sm: 90}
		if got := c.dependence(&plan{text: &section{data: code}}, nil); got != test.expected {
			t.Errorf("%s: %q, expected %q", test.name, got, test.expected)
		}
	}
}

// A branch counts from the next instruction, in units of 4 bytes; older architectures have fewer bits of it.
func TestBranchTarget(t *testing.T) {
	for _, test := range []struct{ sm, at, words int }{{90, 160, 4}, {90, 160, -44}, {90, 160, 1 << 20}, {80, 160, 4}, {80, 160, -44}, {100, 0, -4}} {
		offset := uint64(int64(test.words))
		low, high := (offset&0xff)<<16|(offset>>8)<<34, offset>>(8+30)
		if test.sm < 90 {
			low, high = offset<<34, offset>>30
		}
		c := &cubin{sm: test.sm}
		if got, expected := c.branchTarget(test.at, low, high), test.at+instructionSize+4*test.words; got != expected {
			t.Errorf("%+v: %d, expected %d", test, got, expected)
		}
	}
}

// TestImageSizeBounds reads the length of images whose headers lie, or that end before they are whole.
func TestImageSizeBounds(t *testing.T) {
	size := func(e *edited) (int, error) { return ImageSize(bytes.NewReader(e.data)) }
	for length, reason := range map[int]string{0: "read header", fatbinHeaderSize: "read ELF header", elfHeaderSize: "read section headers"} {
		e := editSeed(t, "sm_90")
		e.data = e.data[:length]
		if n, err := size(e); n != 0 || err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%d bytes: %d, %v", length, n, err)
		}
	}
	for _, test := range []struct {
		at, size int
		value    uint64
		expected error
	}{
		{0, 1, 0x7e, ErrFormat}, {4, 1, 1, ErrFormat}, {18, 2, 62, ErrFormat}, {58, 2, 63, ErrFormat},
		{32, 8, DefaultMaxSize + 1, ErrTooLarge}, {40, 8, DefaultMaxSize + 1, ErrTooLarge}, {32, 8, DefaultMaxSize, ErrTooLarge},
	} {
		e := editSeed(t, "sm_90")
		field{test.at, test.size}.put(e.data, test.value)
		if n, err := size(e); n != 0 || !errors.Is(err, test.expected) {
			t.Errorf("%d at %d: %d, %v", test.value, test.at, n, err)
		}
	}
	for _, test := range []struct {
		field    int // of the code's section header
		value    uint64
		expected error
	}{{24, DefaultMaxSize + 1, ErrTooLarge}, {32, DefaultMaxSize + 1, ErrTooLarge}, {24, DefaultMaxSize, ErrTooLarge}, {24, 1 << 20, nil}} {
		e := editSeed(t, "sm_90")
		le.PutUint64(e.header(".text.seed")[test.field:], test.value)
		n, err := size(e)
		if !errors.Is(err, test.expected) || err == nil && n != 1<<20+int(e.section(".text.seed").size) {
			t.Errorf("%d at %d: %d, %v", test.value, test.field, n, err)
		}
		le.PutUint32(e.header(".text.seed")[4:], shtNobits) // takes no room in the file
		if n, err := size(e); err != nil || n != len(e.data) {
			t.Errorf("not in the file: %d of %d, %v", n, len(e.data), err)
		}
	}
}

// TestGuardBounds reads guards with one number at a time at its last value, and beyond.
func TestGuardBounds(t *testing.T) {
	guard := func(length, instruction, shift int) string {
		code := strings.Repeat(`,"`+strings.Repeat("0", 2*instructionSize)+`"`, length)[1:]
		return fmt.Sprintf(`[{"sm":90,"parameters":[528],"fields":[{"instruction":%d,"shift":%d}],"code":[%s]}]`, instruction, shift, code)
	}
	for _, test := range []struct {
		length, instruction, shift int
		valid                      bool
	}{
		{8, 0, 0, true}, {8, 7, MaxFieldShift, true}, {128, 127, 0, true},
		{8, 8, 0, false}, {8, -1, 0, false}, {8, 0, -1, false}, {8, 0, MaxFieldShift + 1, false}, {9, 0, 0, false}, {136, 0, 0, false},
	} {
		if guards, err := ParseGuards([]byte(guard(test.length, test.instruction, test.shift))); (err == nil) != test.valid || (guards != nil) != test.valid {
			t.Errorf("%+v: %v", test, err)
		}
	}
	for _, text := range []string{"", "{}", strings.Replace(guard(8, 0, 0), "528", "", 1), strings.Replace(guard(8, 0, 0), `"0000`, `"000`, 1)} {
		if guards, err := ParseGuards([]byte(text)); err == nil || guards != nil {
			t.Errorf("%s: no error", text)
		}
	}
}
