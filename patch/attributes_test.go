package patch

import (
	"slices"
	"strings"
	"testing"
)

// TestShift checks the forms of attributes that hold offsets, as cuobjdump shows them in cubins of
// NVIDIA's libraries.
func TestShift(t *testing.T) {
	const delta, code = 0x480, 0x10000
	for _, c := range []struct {
		code     byte
		words    []uint32
		expected []uint32
		err      string
	}{
		{0x1c, []uint32{0x20, 0x30}, []uint32{0x4a0, 0x4b0}, ""},
		{0x1c, []uint32{0x20, code + 16}, nil, "EIATTR_EXIT_INSTR_OFFSETS points outside the code"},
		{0x1c, []uint32{0x28}, nil, "EIATTR_EXIT_INSTR_OFFSETS points outside the code"},
		{0x29, []uint32{0x05000005}, []uint32{0x05000005}, ""},
		{0x34, []uint32{0xf0, 0, 2, 0x120, 0x100, 0xa00, 0, 1, 0xa40}, []uint32{0x570, 0, 2, 0x5a0, 0x580, 0xe80, 0, 1, 0xec0}, ""},
		{0x34, []uint32{0xf0, 0, 3, 0x120, 0x100}, nil, "EIATTR_INDIRECT_BRANCH_TARGETS of unknown form"},
		{0x34, []uint32{0xf0, 0, 0xffffffff}, nil, "EIATTR_INDIRECT_BRANCH_TARGETS of unknown form"},
		{0x34, []uint32{0xf0, 0}, nil, "EIATTR_INDIRECT_BRANCH_TARGETS of unknown form"},
		{0x39, []uint32{0x100, 0xff, 8, 0x70100, 0x110, 3, 0, 0x3f0901}, []uint32{0x580, 0xff, 8, 0x70100, 0x590, 3, 0, 0x3f0901}, ""},
		{0x39, []uint32{0x100, 0xff, 8}, nil, "EIATTR_MBARRIER_INSTR_OFFSETS of unknown form"},
		{0x39, []uint32{0x100, 0xff, 8, 0x01000000}, nil, "EIATTR_MBARRIER_INSTR_OFFSETS of unknown form"},
		{0x2e, []uint32{0x90, 2, 0xf0, 2}, []uint32{0x510, 2, 0x570, 2}, ""},
		{0x44, []uint32{0x280, 0xf, 0xaa0, 0xfff0}, []uint32{0x700, 0xf, 0xf20, 0xfff0}, ""},
		{0x44, []uint32{0x280, 0xf, 0xaa0}, nil, "EIATTR_UNUSED_LOAD_BYTE_OFFSET of unknown form"},
		{0x55, []uint32{1, 0x370, 1, 0x3510}, []uint32{1, 0x7f0, 1, 0x3990}, ""},
		{0x55, []uint32{2, 0x370}, nil, "EIATTR_ANNOTATIONS of unknown form"},
		{0x40, []uint32{0x260, 0x80202, 0xffffffff}, nil, "EIATTR_INSTR_REG_MAP"},
		{0x6b, []uint32{0x260}, nil, "EIATTR_NVSAL_SW_WAR of unknown form"},
		{0x6d, []uint32{0x260}, nil, "EIATTR_PREEXIT_USED of unknown form"},
		{0x7e, []uint32{0x260}, nil, "attribute 0x7e"},
	} {
		data := make([]byte, 0)
		for _, w := range c.words {
			data = le.AppendUint32(data, w)
		}
		old := slices.Clone(data)
		a, err := attribute{format: eifmtSVAL, code: c.code, data: data}.shift(delta, code)
		if !slices.Equal(data, old) {
			t.Errorf("%#x %x: changed in place", c.code, c.words)
		}
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%#x %x: %v, expected %s", c.code, c.words, err, c.err)
			}
			continue
		}
		var words []uint32
		for rest := a.data; len(rest) > 0; rest = rest[4:] {
			words = append(words, le.Uint32(rest))
		}
		if err != nil || !slices.Equal(words, c.expected) {
			t.Errorf("%#x %x became %x, expected %x: %v", c.code, c.words, words, c.expected, err)
		}
	}
}

// Names that cuobjdump had in CUDA 13.2 and has no more in 13.5.
var formerNames = []byte{0x2a, 0x30, 0x35, 0x47, 0x5a, 0x5f}

// TestAttributeNames asks cuobjdump for the name of every attribute that has a rule.
func TestAttributeNames(t *testing.T) {
	image := slices.Clone(seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"])
	parsed, err := parseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	info := parsed.sections[slices.IndexFunc(parsed.sections, func(s *section) bool { return s.name == ".nv.info.seed" })]
	var codes []byte
	for code := range attributeRules {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for len(codes) > 0 {
		count := min(len(codes), len(info.data)/4)
		for i := range len(info.data) / 4 {
			code := codes[0]
			if i < count {
				code = codes[i]
			}
			copy(image[int(info.offset)+4*i:], []byte{eifmtNVAL, code, 0, 0})
		}
		names := dumpedAttributes(dumpELF(t, image), "seed")
		for i, code := range codes[:count] {
			name := attributeName(code)
			if slices.Contains(formerNames, code) {
				name = "unknown Attribute"
			}
			if i >= len(names) || !strings.Contains(names[i], "Attribute:\t"+name+"\n") {
				t.Errorf("%#x is not %s: %q", code, attributeName(code), names[min(i, len(names)-1)])
			}
		}
		codes = codes[count:]
	}
}
