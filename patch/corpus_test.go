package patch

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/kernels"
)

var deep = os.Getenv("GPREEMPT_DEEP") != ""

// TestCorpus compiles testdata/*.cu for two architectures, with GPREEMPT_DEEP for every one, rewrites the cubins, and compares what the
// disassemblers see before and after.
func TestCorpus(t *testing.T) {
	sources, err := filepath.Glob("testdata/*.cu")
	if err != nil || len(sources) < 5 {
		t.Fatalf("testdata: %v %v", sources, err)
	}
	plain, described := []int{90, 100}, []int{90} // of the GPUs that most people have, and of those with other instructions
	if deep {
		plain, described = nil, []int{80, 90, 100} // all; debugging information is the same for neighbours
	}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range kernels.Architectures() {
			if a.SM < since(string(text)) || (plain != nil && !slices.Contains(plain, a.SM)) {
				continue
			}
			for _, flags := range [][]string{{}, {"-lineinfo"}, {"-G"}} {
				if len(flags) > 0 && (!slices.Contains(described, a.SM) || !deep && filepath.Base(source) != "functions.cu") {
					continue
				}
				sm := fmt.Sprintf("sm_%d", a.SM)
				name := strings.TrimSuffix(filepath.Base(source), ".cu") + "/" + sm + strings.Join(flags, "")
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					image := compile(t, source, append([]string{"-cubin", "-arch=" + sm}, flags...)...)
					refused := refusals(string(text), a.SM)
					if slices.Contains(flags, "-G") {
						delete(refused, "memory_barrier") // what speaks against it is in a function of its own
					}
					verify(t, image, refused)
				})
			}
		}
	}
}

// TestCorpusCUDA12 does the same with what CUDA 12's assembler makes: for sm_80 and sm_90 the older
// generation of cubins.
func TestCorpusCUDA12(t *testing.T) {
	for _, name := range []string{"basic", "functions", "atomics", "parameters", "hopper"} {
		source := "testdata/" + name + ".cu"
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, number := range []int{80, 90, 120} {
			if number < since(string(text)) || number != 90 && !deep {
				continue
			}
			sm := fmt.Sprintf("sm_%d", number)
			t.Run(name+"/"+sm, func(t *testing.T) {
				t.Parallel()
				image := assembleCUDA12(t, compile(t, source, "-ptx", "-arch="+sm), sm)
				if generation := image[7]; (generation == osabiCUDA12) != (number < 100) {
					t.Fatalf("OS ABI %#x", generation)
				}
				verify(t, image, refusals(string(text), number))
			})
		}
	}
}

// TestNewerCompilers does the same with what newer compilers made of testdata/seeds/seed.cu.
func TestNewerCompilers(t *testing.T) {
	for path, image := range seeds(t, "*_cuda13_*.cubin") {
		t.Run(filepath.Base(path), func(t *testing.T) { verify(t, image, nil) })
	}
}

// TestGivenFiles does the same with every cubin in files of the tester's choice, for example NVIDIA's
// libraries: GPREEMPT_TEST_FILES names them, separated by colons; GPREEMPT_TEST_SM chooses an
// architecture and GPREEMPT_TEST_EVERY takes one cubin in so many.
func TestGivenFiles(t *testing.T) {
	files := os.Getenv("GPREEMPT_TEST_FILES")
	if files == "" {
		return // not asked for
	}
	sm, _ := strconv.Atoi(os.Getenv("GPREEMPT_TEST_SM"))
	every, _ := strconv.Atoi(os.Getenv("GPREEMPT_TEST_EVERY"))
	for _, path := range strings.Split(files, ":") {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		images, err := Images(file)
		if err != nil {
			t.Fatal(err)
		}
		tested, count := 0, 0
		for i, image := range images {
			for n, cubin := range cubins(t, image) {
				parsed, err := parseCubin(cubin)
				if err != nil && strings.Contains(err.Error(), "ELF type 1") {
					continue // an object file, to be linked
				}
				if err != nil {
					t.Errorf("%s: image %d: %v", path, i, err)
					continue
				}
				if sm != 0 && parsed.sm != sm {
					continue
				}
				if count++; every > 1 && count%every != 0 {
					continue
				}
				if _, report, _ := Cubin(cubin, Options{Guards: testGuards(t)}); report.Guarded() == 0 {
					continue // nothing to compare
				}
				tested++
				t.Run(fmt.Sprintf("%s/%d.%d", filepath.Base(path), i, n), func(t *testing.T) { verify(t, cubin, nil) })
			}
		}
		t.Logf("%s: %d of %d cubins", path, tested, count)
	}
}

func cubins(t *testing.T, image Image) (list [][]byte) {
	t.Helper()
	if image.Form == FormCubin {
		return [][]byte{image.Data}
	}
	all, err := entries(image.Data)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if le.Uint16(e.header[entryKind:]) != entryKindELF {
			continue
		}
		contents, err := e.unpack(DefaultMaxSize)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, contents)
	}
	return list
}

// assembleCUDA12 assembles PTX that CUDA 13 made.
func assembleCUDA12(t *testing.T, text []byte, sm string) []byte {
	t.Helper()
	text = regexp.MustCompile(`(?m)^\.version .*$`).ReplaceAll(text, []byte(".version 8.7"))
	return once(t, func() []byte {
		folder := t.TempDir()
		if err := os.WriteFile(folder+"/image.ptx", text, 0o644); err != nil {
			t.Fatal(err)
		}
		output(t, "../../cuda_nvcc/bin/ptxas", "-arch="+sm, "-o", folder+"/image.cubin", folder+"/image.ptx")
		image, err := os.ReadFile(folder + "/image.cubin")
		if err != nil {
			t.Fatal(err)
		}
		return image
	}, "ptxas %s %s", sm, text)
}

// since reads which architecture a source needs at least: "// since: sm_90"; 0: any.
func since(source string) (sm int) {
	if m := regexp.MustCompile(`(?m)^// since: sm_(\d+)$`).FindStringSubmatch(source); m != nil {
		sm, _ = strconv.Atoi(m[1])
	}
	return sm
}

// refusals reads what a source says of its kernels: "// refused: * NAME: REASON" (its beginning), or "before sm_90" in
// place of the star.
func refusals(source string, sm int) map[string]string {
	reasons := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^// refused: (?:before sm_(\d+)|\*) (\S+): (.*)$`).FindAllStringSubmatch(source, -1) {
		if before, err := strconv.Atoi(m[1]); err != nil || sm < before {
			reasons[m[2]] = m[3]
		}
	}
	return reasons
}

// verify rewrites an image, refusing exactly the kernels named, and checks the result.
func verify(t *testing.T, image []byte, refused map[string]string) []byte {
	t.Helper()
	original := bytes.Clone(image)
	out, report, err := Cubin(image, Options{Guards: testGuards(t)})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(image, original) {
		t.Fatal("the image given was changed")
	}
	if len(report.Kernels) == 0 {
		t.Fatal("no kernels")
	}
	for _, k := range report.Kernels {
		if reason, ok := refused[k.Name]; ok == k.Guarded || !strings.HasPrefix(k.Reason, reason) {
			t.Errorf("%s: refused for %q, expected %q", k.Name, k.Reason, reason)
		}
	}
	if limit := len(image) + 4096*len(report.Kernels) + 1024; len(out) > limit {
		t.Errorf("%d bytes, more than %d", len(out), limit)
	}
	if t.Failed() {
		return nil
	}
	guard := testGuards(t).bySM[report.SM]
	compareCode(t, image, out, report, guard)
	compareDumps(t, image, out, report, guard)
	compareELF(t, image, out, report, guard)
	return out
}

// compareCode checks that behind the guard, code is the same instruction for instruction.
func compareCode(t *testing.T, image, out []byte, report Report, guard *Guard) {
	t.Helper()
	before, after := disassemble(t, image), disassemble(t, out)
	parsed, err := parseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Fatalf("%d code sections, then %d", len(before), len(after))
	}
	count := len(guard.code) / instructionSize
	target := regexp.MustCompile(`\+(0x[0-9a-f]+)>`)
	for section, old := range before {
		k := kernelOf(report, strings.TrimPrefix(section, ".text."))
		fresh := after[section]
		shift := 0
		if k != nil && k.Guarded {
			shift = len(guard.code)
			checkGuard(t, section, fresh[:count], guard.Parameters, k)
			fresh = fresh[count:]
			checkIndependence(t, section, parsed.code(section), old, k)
		}
		if len(old) == 0 || len(old) != len(fresh) {
			t.Fatalf("%s: %d instructions, then %d", section, len(old), len(fresh))
		}
		for i := range old {
			expected := target.ReplaceAllStringFunc(old[i].text, func(place string) string {
				offset, _ := strconv.ParseInt(place[3:len(place)-1], 16, 0)
				if !strings.Contains(old[i].text, "<"+place) {
					return place // in another section, which is checked as that
				}
				return fmt.Sprintf("+%#x>", int(offset)+shift)
			})
			if expected != fresh[i].text || old[i].offset+shift != fresh[i].offset {
				t.Fatalf("%s: at %#x %s\nbecame at %#x %s", section, old[i].offset, expected, fresh[i].offset, fresh[i].text)
			}
		}
	}
}

func kernelOf(report Report, name string) *Kernel {
	for i := range report.Kernels {
		if report.Kernels[i].Name == name {
			return &report.Kernels[i]
		}
	}
	return nil
}

// checkGuard checks in the disassembly that the guard reads the hidden parameter and no other.
func checkGuard(t *testing.T, section string, lines []line, bases []uint32, k *Kernel) {
	t.Helper()
	constant := regexp.MustCompile(`c\[0x0\]\[(-?0x[0-9a-f]+)\]`)
	reads := 0
	for _, l := range lines {
		if strings.Contains(l.text, "R1,") {
			t.Errorf("%s: the guard sets the stack pointer: %s", section, l.text)
		}
		for _, m := range constant.FindAllStringSubmatch(l.text, -1) {
			offset, err := strconv.ParseInt(m[1], 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			address := uint32(offset) & 0xffff // beyond 32 KB it is shown as negative
			if address < bases[0] {
				continue // the driver's
			}
			hidden := slices.ContainsFunc(bases, func(base uint32) bool {
				return (address-base)&^4 == uint32(k.HiddenOffset)
			})
			if !hidden {
				t.Errorf("%s: the guard reads c[0][%#x]: %s", section, address, l.text)
			}
			reads++
		}
	}
	if reads == 0 {
		t.Errorf("%s: the guard does not read the hidden parameter", section)
	}
}

var (
	dumpAttribute = regexp.MustCompile(`Attribute:\s+(EIATTR_\w+)\s+Format:\s+(\w+)\s*(?:Value:((?s).*))?`)
	hexNumber     = regexp.MustCompile(`0x[0-9a-f]+`)
)

// dumpedAttributes reads a kernel's attributes from cuobjdump -elf.
func dumpedAttributes(dump, kernel string) (list []string) {
	start := strings.Index(dump, "\n.nv.info."+kernel+"\n")
	if start < 0 {
		return nil
	}
	block := dump[start+1:]
	if end := strings.Index(block, "\n\n\n"); end >= 0 {
		block = block[:end]
	}
	for _, text := range regexp.MustCompile(`\t<0x[0-9a-f]+>\n`).Split(block, -1)[1:] {
		list = append(list, strings.TrimSpace(text))
	}
	return list
}

// compareDumps compares the attributes of every kernel as cuobjdump shows them.
func compareDumps(t *testing.T, image, out []byte, report Report, guard *Guard) {
	t.Helper()
	before, after := dumpELF(t, image), dumpELF(t, out)
	for _, k := range report.Kernels {
		registers := k.Registers
		if k.Guarded {
			registers = max(registers, guard.Registers)
		}
		if pattern := fmt.Sprintf(`function: %s\(0x[0-9a-f]+\)\s+register count: %d\n`, regexp.QuoteMeta(k.Name), registers); !regexp.MustCompile(pattern).MatchString(after) {
			t.Errorf("%s: does not have %d registers", k.Name, registers)
		}
		old, fresh := dumpedAttributes(before, k.Name), dumpedAttributes(after, k.Name)
		if len(old) == 0 {
			t.Fatalf("%s: cuobjdump shows no attributes", k.Name)
		}
		if !k.Guarded {
			if !slices.Equal(old, fresh) {
				t.Errorf("%s: refused, but its attributes changed", k.Name)
			}
			continue
		}
		var expected []string
		for _, text := range old {
			expected = append(expected, expectedAttribute(t, text, &k, guard))
		}
		for _, text := range expected {
			i := slices.Index(fresh, text)
			if i < 0 {
				t.Errorf("%s: no attribute\n%s", k.Name, text)
				continue
			}
			fresh = slices.Delete(fresh, i, i+1)
		}
		checkAdded(t, &k, fresh, len(old) > 0 && strings.Contains(strings.Join(old, ""), "EIATTR_PARAM_CBANK"))
	}
}

func dumpELF(t *testing.T, image []byte) string {
	t.Helper()
	return string(once(t, func() []byte {
		path := written(t, image)
		output(t, "cuobjdump", "-res-usage", path)
		// cuobjdump fails on some debugging information of its own compiler, after what matters here.
		dump, err := exec.Command(filepath.Join(cudaTools(t), "cuobjdump"), "-elf", path).Output()
		if err != nil && !strings.Contains(string(dump), ".debug_loc") {
			t.Fatalf("cuobjdump: %v\n%s", err, dump)
		}
		return dump
	}, "cuobjdump -elf %s", image)) + "\n\n\n"
}

// expectedAttribute is what an attribute must look like afterwards, from its text alone.
func expectedAttribute(t *testing.T, text string, k *Kernel, guard *Guard) string {
	t.Helper()
	if strings.HasPrefix(text, "Attribute:\tunknown Attribute\n") { // cuobjdump has no names for some that older compilers write
		return text
	}
	m := dumpAttribute.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s: no attribute: %s", k.Name, text)
	}
	shift := func(number string) string {
		value, _ := strconv.ParseInt(number, 0, 64)
		return fmt.Sprintf("%#x", int(value)+len(guard.code))
	}
	size := k.HiddenOffset + hiddenSize
	switch name := m[1]; {
	case name == "EIATTR_MBARRIER_INSTR_OFFSETS":
		return regexp.MustCompile(`(?m)^\t0x[0-9a-f]+`).ReplaceAllStringFunc(text, func(s string) string { return "\t" + shift(s[1:]) })
	case name == "EIATTR_INDIRECT_BRANCH_TARGETS" || name == "EIATTR_ATOM16_EMUL_INSTR_REG_MAP" || name == "EIATTR_ANNOTATIONS":
		return hexNumber.ReplaceAllStringFunc(text, shift) // other numbers are decimal
	case name == "EIATTR_UNUSED_LOAD_BYTE_OFFSET":
		return regexp.MustCompile(`(0x[0-9a-f]+) (0x[0-9a-f]+)`).ReplaceAllStringFunc(text, func(pair string) string {
			offset, mask, _ := strings.Cut(pair, " ")
			return shift(offset) + " " + mask
		})
	case name == "EIATTR_EXIT_INSTR_OFFSETS":
		exits := ""
		for _, offset := range guard.Exits {
			exits += fmt.Sprintf("%#x ", offset)
		}
		return strings.Replace(hexNumber.ReplaceAllStringFunc(text, shift), "Value:\t", "Value:\t"+exits, 1)
	case strings.HasSuffix(name, "_OFFSETS") && !strings.Contains(name, "IMAGE"):
		return hexNumber.ReplaceAllStringFunc(text, shift)
	case name == "EIATTR_CBANK_PARAM_SIZE":
		return hexNumber.ReplaceAllString(text, fmt.Sprintf("%#x", size))
	case name == "EIATTR_PARAM_CBANK":
		numbers := hexNumber.FindAllString(text, -1)
		packed, _ := strconv.ParseInt(numbers[1], 0, 64)
		return strings.Replace(text, numbers[1], fmt.Sprintf("%#x", size<<16|int(packed&0xffff)), 1)
	}
	return text
}

// checkAdded checks the attributes that were not there before.
func checkAdded(t *testing.T, k *Kernel, added []string, hadParameters bool) {
	t.Helper()
	hidden := fmt.Sprintf("Ordinal : %#x\tOffset  : %#x\tSize    : 0x8", k.Parameters, k.HiddenOffset)
	found := 0
	for _, text := range added {
		switch name := dumpAttribute.FindStringSubmatch(text)[1]; name {
		case "EIATTR_KPARAM_INFO", "EIATTR_KPARAM_INFO_V2":
			if !strings.Contains(text, hidden) {
				t.Errorf("%s: %s, expected %s", k.Name, text, hidden)
			}
			found++
		case "EIATTR_NUM_BARRIERS", "EIATTR_CRS_STACK_SIZE", "EIATTR_CTAIDZ_USED":
		case "EIATTR_PARAM_CBANK", "EIATTR_CBANK_PARAM_SIZE":
			if hadParameters {
				t.Errorf("%s: added %s", k.Name, text)
			}
		default:
			t.Errorf("%s: added %s", k.Name, text)
		}
	}
	if found != 1 {
		t.Errorf("%s: %d hidden parameters", k.Name, found)
	}
}

// compareELF checks sections, symbols and program headers with the standard library's reader.
func compareELF(t *testing.T, image, out []byte, report Report, guard *Guard) {
	t.Helper()
	before, after := readELF(t, image), readELF(t, out)
	moved := make(map[int]uint64) // by code section
	delta := uint64(len(guard.code))
	symbols, fresh := elfSymbols(t, before), elfSymbols(t, after)
	for i, s := range symbols {
		if k := kernelOf(report, s.Name); k != nil && k.Guarded {
			moved[int(s.Section)] = delta
		}
		if s.Name != fresh[i].Name || s.Info != fresh[i].Info || s.Section != fresh[i].Section {
			t.Fatalf("symbol %d was %+v and is %+v", i, s, fresh[i])
		}
	}
	for i, s := range symbols {
		shift := moved[int(s.Section)]
		switch isKernel := kernelOf(report, s.Name) != nil; {
		case isKernel:
			s.Size += shift
		case elf.ST_TYPE(s.Info) != elf.STT_SECTION:
			s.Value += shift
		}
		if s.Value != fresh[i].Value || s.Size != fresh[i].Size {
			t.Errorf("symbol %s is at %#x+%#x, expected %#x+%#x", s.Name, fresh[i].Value, fresh[i].Size, s.Value, s.Size)
		}
	}
	for i, s := range after.Sections {
		old := before.Sections[i]
		checkFlags(t, before, old, s, moved[i] != 0, guard)
		if s.Name != old.Name || s.Type != old.Type || s.Link != old.Link || s.Addralign != old.Addralign {
			t.Fatalf("section %d was %+v and is %+v", i, old.SectionHeader, s.SectionHeader)
		}
		if s.Addralign > 1 && s.Type != elf.SHT_NOBITS && s.Offset%s.Addralign != 0 {
			t.Errorf("section %s is at %#x, not at a multiple of %d", s.Name, s.Offset, s.Addralign)
		}
		if strings.Contains(s.Name, ".merc.") || strings.Contains(s.Name, ".capmerc.") {
			t.Errorf("section %s is left", s.Name)
		}
		compareSection(t, before, after, i, moved)
	}
	compareSegments(t, before, after)
	checkMercury(t, before, after, out)
}

// checkMercury checks that nothing is left from which the driver could make code without a guard.
func checkMercury(t *testing.T, before, after *elf.File, out []byte) {
	t.Helper()
	for _, s := range before.Sections {
		if !strings.HasPrefix(s.Name, ".nv.capmerc.text.") {
			continue
		}
		data, err := s.Data()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(out, data) {
			t.Errorf("the contents of %s are left", s.Name)
		}
		compat, err := after.Section(".nv.compat").Data()
		if err != nil {
			t.Fatal(err)
		}
		list, err := parseAttributes(compat)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(list, func(a attribute) bool { return a.code == eicompatOpportunisticFinalization && a.value != 0 }) {
			t.Error("the driver may still make other code of it")
		}
	}
}

func readELF(t *testing.T, image []byte) *elf.File {
	t.Helper()
	image = bytes.Clone(image)
	image[6] = byte(elf.EV_CURRENT) // CUDA 12 has the version of something else there
	le.PutUint32(image[20:], uint32(elf.EV_CURRENT))
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func elfSymbols(t *testing.T, file *elf.File) []elf.Symbol {
	t.Helper()
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return symbols
}

// checkFlags checks what older generations keep in section headers: barriers and registers.
func checkFlags(t *testing.T, file *elf.File, old, fresh *elf.Section, moved bool, guard *Guard) {
	t.Helper()
	const barriers, registers = elf.SectionFlag(0x1f << 20), 0xff << 24
	flags, info := old.Flags, old.Info
	if moved && byte(file.OSABI) == osabiCUDA12 {
		flags = flags&^barriers | max(flags&barriers, elf.SectionFlag(guard.Barriers<<20))
	}
	if moved && info&registers != 0 {
		info = info&^registers | max(info&registers, uint32(guard.Registers<<24))
	}
	if fresh.Flags != flags || fresh.Info != info {
		t.Errorf("%s: flags %#x, info %#x, expected %#x, %#x", old.Name, fresh.Flags, fresh.Info, flags, info)
	}
}

// compareSection checks that contents are the same but where they must not be.
func compareSection(t *testing.T, before, after *elf.File, i int, moved map[int]uint64) {
	t.Helper()
	old, fresh := before.Sections[i], after.Sections[i]
	if old.Type == elf.SHT_NOBITS || old.Type == elf.SHT_NULL {
		if old.Size != fresh.Size {
			t.Errorf("%s: %d bytes, then %d", old.Name, old.Size, fresh.Size)
		}
		return
	}
	was, err := old.Data()
	if err != nil {
		t.Fatal(err)
	}
	is, err := fresh.Data()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.HasPrefix(old.Name, ".text.") && moved[i] != 0:
		is = is[moved[i]:]
	case old.Type == elf.SHT_REL || old.Type == elf.SHT_RELA:
		compareRelocations(t, before, after, i, moved)
		return
	case strings.HasPrefix(old.Name, ".nv.constant0.") && moved[int(old.Info)] != 0:
		if len(is) < len(was)+8 || len(is) > len(was)+15 {
			t.Errorf("%s: %d bytes, then %d", old.Name, len(was), len(is))
		}
		return
	case strings.HasPrefix(old.Name, ".nv.info") || old.Name == ".symtab" || old.Name == ".nv.compat":
		return // compared as attributes and symbols
	case strings.HasPrefix(old.Name, ".debug_") || strings.HasPrefix(old.Name, ".nv_debug"):
		if len(was) != len(is) {
			t.Errorf("%s: %d bytes, then %d", old.Name, len(was), len(is))
		}
		return // holds addends of relocations, which are compared as those
	}
	if !bytes.Equal(was, is) {
		t.Errorf("%s changed", old.Name)
	}
}

// compareRelocations checks every relocation's place and addend against the symbols' moves.
func compareRelocations(t *testing.T, before, after *elf.File, i int, moved map[int]uint64) {
	t.Helper()
	was, is := relocationsOf(t, before, i), relocationsOf(t, after, i)
	if len(was) != len(is) {
		t.Fatalf("%s: %d relocations, then %d", before.Sections[i].Name, len(was), len(is))
	}
	symbols := elfSymbols(t, before)
	for n, r := range was {
		r.offset += moved[int(before.Sections[i].Info)]
		if s := symbols[r.symbol-1]; s.Value == 0 && elf.ST_TYPE(s.Info) != elf.STT_OBJECT {
			r.addend += moved[int(s.Section)] // the kernel or its section
		}
		if r != is[n] {
			t.Errorf("%s: relocation %d is %+v, expected %+v", before.Sections[i].Name, n, is[n], r)
		}
	}
}

type plainRelocation struct {
	offset, kind, symbol, addend uint64
}

func relocationsOf(t *testing.T, file *elf.File, i int) (list []plainRelocation) {
	t.Helper()
	table := file.Sections[i]
	data, err := table.Data()
	if err != nil {
		t.Fatal(err)
	}
	target := file.Sections[table.Info]
	for ; len(data) > 0; data = data[table.Entsize:] {
		info := le.Uint64(data[8:])
		r := plainRelocation{offset: le.Uint64(data), kind: info & 0xffffffff, symbol: info >> 32}
		if table.Type == elf.SHT_RELA {
			r.addend = le.Uint64(data[16:])
		} else if target.Flags&elf.SHF_EXECINSTR == 0 {
			contents, err := target.Data()
			if err != nil {
				t.Fatal(err)
			}
			if r.addend = uint64(le.Uint32(contents[r.offset:])); r.kind == 2 {
				r.addend = le.Uint64(contents[r.offset:])
			}
		}
		list = append(list, r)
	}
	return list
}

// compareSegments checks that program headers cover the same sections.
func compareSegments(t *testing.T, before, after *elf.File) {
	t.Helper()
	if len(before.Progs) != len(after.Progs) {
		t.Fatalf("%d program headers, then %d", len(before.Progs), len(after.Progs))
	}
	for i, p := range after.Progs {
		old := before.Progs[i]
		if p.Memsz-p.Filesz != old.Memsz-old.Filesz {
			t.Errorf("program header %d: %#x of %#x bytes in the file, then %#x of %#x", i, old.Filesz, old.Memsz, p.Filesz, p.Memsz)
		}
		for n, s := range after.Sections {
			o := before.Sections[n]
			was := o.Type != elf.SHT_NOBITS && o.Size > 0 && o.Offset >= old.Off && o.Offset+o.FileSize <= old.Off+old.Filesz
			is := s.Type != elf.SHT_NOBITS && s.Size > 0 && s.Offset >= p.Off && s.Offset+s.FileSize <= p.Off+p.Filesz
			if was != is {
				t.Errorf("program header %d holds %s: %v, then %v", i, s.Name, was, is)
			}
		}
	}
}
