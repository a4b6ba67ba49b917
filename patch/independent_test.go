package patch

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	mnemonic = regexp.MustCompile(`^(?:\{ *)?(?:@!?U?P\w+ )?(\w+)(\S*)`)
	dropped  = regexp.MustCompile(`\bATOMG\S* PT, RZ, `)
	ordered  = regexp.MustCompile(`\.(?:STRONG|MMIO)\b`)
	pastL1   = regexp.MustCompile(`\.(?:NA|LU)\b`)
	nearby   = regexp.MustCompile("\\bCALL\\.REL\\S* `\\((?:<\\+|\\$)")
	branch   = regexp.MustCompile("`\\(<\\+(0x[0-9a-f]+)>\\)")
)

// checkIndependence checks, by the disassembler's names, what is said of a kernel that is guarded, and the table of operations.
func checkIndependence(t *testing.T, section string, code []byte, lines []line, k *Kernel) {
	t.Helper()
	known := make(map[string]bool)
	for _, names := range harmless {
		for _, name := range strings.Fields(names) {
			known[name] = true
		}
	}
	against := ""
	var loads, writes []int
	repeated := make([]bool, len(lines)) // the line with the next
	for i, l := range lines {
		m := mnemonic.FindStringSubmatch(l.text)
		if m == nil {
			t.Fatalf("%s: no instruction: %s", section, l.text)
		}
		name, rest := m[1], m[2]
		op := le.Uint16(code[l.offset:]) & operation
		if names := strings.Fields(harmless[op]); len(names) > 0 && !slices.Contains(names, name) {
			t.Errorf("%s: operation %#x is %s, not %v", section, op, l.text, names)
		}
		reads, first, last := false, i, i // of the lines that it may repeat
		switch name {
		case "LD", "LDG":
			reads = ordered.MatchString(rest) || pastL1.MatchString(rest)
			if !strings.Contains(rest, ".CONSTANT") {
				loads = append(loads, i)
			}
		case "ST", "STG":
			if ordered.MatchString(rest) {
				writes = append(writes, i)
			}
		case "RED", "REDG", "ATOMG":
			reads = name == "ATOMG" && !dropped.MatchString(l.text)
			writes = append(writes, i)
		case "CALL":
			reads = !nearby.MatchString(l.text)
			first, last = 0, len(lines)
		case "BRX", "BRXU":
			first, last = 0, len(lines)
		case "BRA":
			place := branch.FindStringSubmatch(l.text)
			if place == nil {
				t.Fatalf("%s: no target: %s", section, l.text)
			}
			offset, _ := strconv.ParseInt(place[1], 0, 0)
			first = int(offset) / instructionSize
		}
		for j := first; j < last; j++ {
			repeated[j] = true
		}
		if against == "" && (reads || !known[name]) {
			against = l.text
		}
	}
	for _, load := range loads {
		for _, write := range writes {
			if against == "" && !slices.Contains(repeated[min(load, write):max(load, write)], false) {
				against = lines[load].text + " and " + lines[write].text
			}
		}
	}
	if k.Independent == (against != "") || k.Independent != (k.Dependence == "") {
		t.Errorf("%s: independent: %v (%q), with %q", section, k.Independent, k.Dependence, against)
	}
	name := strings.TrimPrefix(section, ".text.")
	if strings.HasPrefix(name, "waits_") && k.Independent {
		t.Errorf("%s: its blocks can wait", section)
	}
	if strings.HasPrefix(name, "free_") && !k.Independent && !strings.Contains(k.Dependence, callsElsewhere) {
		t.Errorf("%s: its blocks cannot wait, but: %s", section, k.Dependence)
	}
	if strings.HasPrefix(name, "misjudged_") && !k.Independent && !strings.Contains(k.Dependence, callsElsewhere) {
		t.Errorf("%s: no longer taken for independent: %s", section, k.Dependence)
	}
}

// TestJumpsElsewhere checks code that jumps where a linker, or a register, says.
func TestJumpsElsewhere(t *testing.T) {
	const call, indirect, branch, exit = 0x7944, 0x7344, 0x7947, 0x794d
	for _, c := range []struct {
		instruction uint16
		relocated   uint64 // a place
		expected    string
	}{
		{call, 2 * instructionSize, ""},
		{call, instructionSize, callsElsewhere},
		{call, instructionSize + 4, callsElsewhere},
		{branch, instructionSize + 4, callsElsewhere},
		{exit, instructionSize, ""},
		{indirect, 2 * instructionSize, callsElsewhere},
	} {
		code := make([]byte, 3*instructionSize)
		for i, instruction := range []uint16{exit, c.instruction, exit} {
			le.PutUint16(code[i*instructionSize:], instruction)
		}
		p := &plan{text: &section{data: code}}
		elsewhere := relocation{target: &section{data: code}, offset: instructionSize}
		if found := (&cubin{sm: 90}).dependence(p, []relocation{elsewhere, {target: p.text, offset: c.relocated}}); found != c.expected {
			t.Errorf("%#x, relocated at %#x: %q, expected %q", c.instruction, c.relocated, found, c.expected)
		}
	}
}

// TestLoops checks which instructions count as repeated, in code whose loops go on out of line or through a table.
func TestLoops(t *testing.T) {
	const load, reduce, nothing, table, exit = 0x7981, 0x798e, 0x7918, 0x7949, 0x794d
	const generic, store, droppedInteger, droppedFloat = 0x7980, 0x7985, 0x79a8, 0x79a3
	const back = 0x7947 // and the number of instructions above it
	upper := map[uint64]uint64{store: 1 << orderShift, droppedInteger: noPredicate, droppedFloat: noPredicate}
	for _, c := range []struct {
		code        []uint64
		independent bool
	}{
		{[]uint64{load, reduce, exit}, true},
		{[]uint64{load, reduce, back | 2<<16}, false},
		{[]uint64{load, reduce, back | 1<<16}, true},
		{[]uint64{reduce, load, back | 2<<16}, false},
		{[]uint64{load, nothing, back | 1<<16, reduce, back | 4<<16}, false},
		{[]uint64{generic, reduce, back | 2<<16}, false},
		{[]uint64{load, store, back | 2<<16}, false},
		{[]uint64{load, droppedInteger, back | 2<<16}, false},
		{[]uint64{load, droppedFloat, back | 2<<16}, false},
		{[]uint64{droppedInteger, droppedFloat, back | 2<<16}, true},
		{[]uint64{load, reduce, table}, false},
		{[]uint64{table, load, reduce}, false},
		{[]uint64{load, nothing, back | 2<<16, exit, reduce, back | 4<<16}, false},
		{[]uint64{load, nothing, back | 2<<16, exit, reduce, back | 2<<16}, true},
		{[]uint64{reduce, nothing, back | 2<<16, exit, load, back | 3<<16}, false},
		{[]uint64{reduce, nothing, back | 2<<16, exit, load, back}, true},
	} {
		for _, sm := range []int{80, 90} {
			var code []byte
			for _, instruction := range c.code {
				low, high := instruction&0xffff, upper[instruction]
				switch low {
				case droppedInteger, droppedFloat:
					low |= noRegister
				case back:
					offset := -int64(instruction>>16+1) * instructionSize / 4
					if sm >= 90 {
						low |= uint64(offset) & 0xff << 16
						offset >>= 8
					}
					low, high = low|uint64(offset)<<34, uint64(offset)>>30&0x3ffff
				}
				code = le.AppendUint64(le.AppendUint64(code, low), high)
			}
			found := (&cubin{sm: sm}).dependence(&plan{text: &section{data: code}}, nil)
			if (found == "") != c.independent {
				t.Errorf("%#x for sm_%d: %q", c.code, sm, found)
			}
		}
	}
}

func (c *cubin) code(section string) []byte {
	for _, s := range c.sections {
		if s.name == section {
			return s.data
		}
	}
	return nil
}
