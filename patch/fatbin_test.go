package patch

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFatbin(t *testing.T) {
	guards := testGuards(t)
	for name, image := range seeds(t, "*.fatbin") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			out, reports, err := Fatbin(image, Options{Guards: guards})
			if err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, r := range reports {
				kinds = append(kinds, r.Kind)
				if r.Reason != "" || r.Kind == "elf" && r.Report.Guarded() != 2 {
					t.Errorf("%+v", r)
				}
			}
			if !slices.Equal(kinds, []string{"elf", "ptx", "elf"}) {
				t.Fatalf("entries %v", kinds)
			}
			compareEntries(t, image, out, guards)
		})
	}
}

// compareEntries checks that ELF entries hold the rewritten cubins, raw, and that others are the same.
func compareEntries(t *testing.T, image, out []byte, guards *Guards) {
	t.Helper()
	before, err := entries(image)
	if err != nil {
		t.Fatal(err)
	}
	after, err := entries(out)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range before {
		old, err := e.unpack(DefaultMaxSize)
		if err != nil {
			t.Fatal(err)
		}
		if le.Uint16(e.header[entryKind:]) != entryKindELF {
			if !bytes.Equal(e.header, after[i].header) || !bytes.Equal(e.stored, after[i].stored) {
				t.Errorf("entry %d changed", i)
			}
			continue
		}
		expected, _, err := Cubin(old, Options{Guards: guards})
		if err != nil {
			t.Fatal(err)
		}
		fresh := after[i]
		if le.Uint64(fresh.header[entryFlags:])&(entryFlagLZ4|entryFlagZstd) != 0 {
			t.Errorf("entry %d is still compressed", i)
		}
		if !bytes.HasPrefix(fresh.stored, expected) || len(fresh.stored)-len(expected) >= entryAlignment {
			t.Errorf("entry %d does not hold the rewritten cubin", i)
		}
	}
}

// TestFatbinCuobjdump lets cuobjdump take the cubins out of the rewritten fatbin.
func TestFatbinCuobjdump(t *testing.T) {
	guards := testGuards(t)
	image := seeds(t, "zstd.fatbin")["testdata/seeds/zstd.fatbin"]
	out, _, err := Fatbin(image, Options{Guards: guards})
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.WriteFile(folder+"/image.fatbin", out, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(cudaTools(t), "cuobjdump"), "-xelf", "all", "image.fatbin")
	command.Dir = folder
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	taken, err := filepath.Glob(folder + "/*.cubin")
	if err != nil || len(taken) != 2 {
		t.Fatalf("cuobjdump took out %v: %v", taken, err)
	}
	for _, path := range taken {
		cubin, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, report, err := Cubin(cubin, Options{Guards: guards})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range report.Kernels {
			if hasGuard := k.Reason == "has a guard"; !hasGuard {
				t.Errorf("sm_%d: %+v", report.SM, k)
			}
		}
	}
}

func TestFatbinDamaged(t *testing.T) {
	options := Options{Guards: testGuards(t)}
	image := seeds(t, "zstd.fatbin")["testdata/seeds/zstd.fatbin"]
	list, err := entries(image)
	if err != nil {
		t.Fatal(err)
	}
	first := fatbinHeaderSize
	for name, damage := range map[string]func([]byte){
		"magic":             func(d []byte) { d[0]++ },
		"size":              func(d []byte) { le.PutUint64(d[8:], uint64(len(d))) },
		"huge size":         func(d []byte) { le.PutUint64(d[8:], 1<<63) },
		"entry header size": func(d []byte) { le.PutUint32(d[first+entryHeader:], 8) },
		"stored size":       func(d []byte) { le.PutUint64(d[first+entryStored:], 1<<63) },
	} {
		damaged := bytes.Clone(image)
		damage(damaged)
		if out, _, err := Fatbin(damaged, options); out != nil || !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
	// Damage within an entry leaves it unchanged, and the report says so.
	for name, damage := range map[string]func([]byte){
		"compressed size":   func(d []byte) { le.PutUint32(d[first+entryCompressed:], 1<<31) },
		"uncompressed size": func(d []byte) { le.PutUint64(d[first+entryUncompressed:], 77) },
		"bomb":              func(d []byte) { le.PutUint64(d[first+entryUncompressed:], 1<<50) },
		"data":              func(d []byte) { d[first+len(list[0].header)+40] ^= 0xff },
	} {
		damaged := bytes.Clone(image)
		damage(damaged)
		out, reports, err := Fatbin(damaged, options)
		if err != nil || reports[0].Reason == "" || reports[0].Report.Guarded() != 0 || reports[2].Report.Guarded() != 2 {
			t.Errorf("%s: %+v %v", name, reports, err)
			continue
		}
		after, err := entries(out)
		if err != nil || !bytes.Equal(after[0].stored, damaged[first+len(list[0].header):][:len(list[0].stored)]) {
			t.Errorf("%s: the damaged entry is not as it was: %v", name, err)
		}
	}
}

// TestMaxSize checks that no more comes out than was allowed.
func TestMaxSize(t *testing.T) {
	guards := testGuards(t)
	cubin := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	out, _, err := Cubin(cubin, Options{Guards: guards})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Cubin(cubin, Options{Guards: guards, MaxSize: len(out)}); err != nil {
		t.Errorf("with just enough: %v", err)
	}
	if _, _, err := Cubin(cubin, Options{Guards: guards, MaxSize: len(out) - 1}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("with a byte less: %v", err)
	}
	if _, _, err := Cubin(cubin, Options{Guards: guards, MaxSize: len(cubin) - 1}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("with less than the image: %v", err)
	}
	fatbin := seeds(t, "zstd.fatbin")["testdata/seeds/zstd.fatbin"]
	if out, _, err = Fatbin(fatbin, Options{Guards: guards}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Fatbin(fatbin, Options{Guards: guards, MaxSize: len(out) - 1}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("fatbin: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	cubin := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	out, report, err := Cubin(cubin, Options{Guards: testGuards(t), Refuse: func(kernel string) string {
		return strings.TrimPrefix("not empty", "not "+kernel+"!")
	}})
	if err != nil {
		t.Fatal(err)
	}
	if report.Guarded() != 0 || &out[0] != &cubin[0] {
		t.Errorf("%+v", report)
	}
	for _, k := range report.Kernels {
		if k.Reason != "not empty" {
			t.Errorf("%+v", k)
		}
	}
}

// TestImages finds fatbins in a host library that the host compiler makes.
func TestImages(t *testing.T) {
	one, two := seeds(t, "zstd.fatbin")["testdata/seeds/zstd.fatbin"], seeds(t, "lz4.fatbin")["testdata/seeds/lz4.fatbin"]
	section := append(bytes.Clone(one), make([]byte, -len(one)&7)...)
	section = append(append(section, make([]byte, 16)...), two...)
	folder := t.TempDir()
	if err := os.WriteFile(folder+"/fatbins", section, 0o644); err != nil {
		t.Fatal(err)
	}
	source := `__asm__(".section .nv_fatbin,\"a\"\n.balign 8\n.incbin \"` + folder + `/fatbins\"\n.previous");`
	if err := os.WriteFile(folder+"/library.c", []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("gcc", "-shared", "-fPIC", "-o", folder+"/library.so", folder+"/library.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	library, err := os.ReadFile(folder + "/library.so")
	if err != nil {
		t.Fatal(err)
	}
	images, err := Images(library)
	if err != nil || len(images) != 2 || !bytes.Equal(images[0].Data, one) || !bytes.Equal(images[1].Data, two) {
		t.Fatalf("%d images: %v", len(images), err)
	}
	if _, err := Images([]byte("#!/bin/sh\n")); !errors.Is(err, ErrFormat) {
		t.Errorf("of a script: %v", err)
	}
	if images, err := Images(one); err != nil || len(images) != 1 || images[0].Form != FormFatbin {
		t.Errorf("of a fatbin: %v %v", images, err)
	}
	cubin := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	if images, err := Images(cubin); err != nil || len(images) != 1 || images[0].Form != FormCubin {
		t.Errorf("of a cubin: %v %v", images, err)
	}
}

// TestImageSize finds where images end from their headers alone.
func TestImageSize(t *testing.T) {
	for name, image := range seeds(t, "*.*in") {
		size, err := ImageSize(bytes.NewReader(image))
		if err != nil || size != len(image) {
			t.Errorf("%s: %d of %d bytes: %v", name, size, len(image), err)
		}
	}
	text := make([]byte, elfHeaderSize)
	copy(text, ".version 8.7\n.target sm_90\n")
	if _, err := ImageSize(bytes.NewReader(text)); !errors.Is(err, ErrFormat) {
		t.Errorf("of PTX: %v", err)
	}
}

func TestWaitsForPeers(t *testing.T) {
	for kernel, expected := range map[string]bool{
		"_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE": true,
		"_Z13gen_sequencedI17curandStateXORWOW":                                          false,
	} {
		if refused := WaitsForPeers(kernel) != ""; refused != expected {
			t.Errorf("%s: refused %v", kernel, refused)
		}
	}
}

// TestRefusals changes one thing at a time in a cubin, each of which makes a kernel impossible to
// rewrite.
func TestRefusals(t *testing.T) {
	cubin := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	parsed, err := parseCubin(cubin)
	if err != nil {
		t.Fatal(err)
	}
	find := func(name string) *section {
		for _, s := range parsed.sections {
			if s.name == name {
				return s
			}
		}
		t.Fatalf("no section %s", name)
		return nil
	}
	header := func(name string) int { return int(parsed.sectionOffset) + find(name).index*sectionHeaderSize }
	// attributeAt finds an attribute's header in the file.
	attributeAt := func(code byte) int {
		info := find(".nv.info.seed")
		for at := 0; at < len(info.data); at += 4 {
			if info.data[at+1] == code {
				return int(info.offset) + at
			}
			if info.data[at] == eifmtSVAL {
				at += int(le.Uint16(info.data[at+2:]))
			}
		}
		t.Fatalf("no attribute %#x", code)
		return 0
	}
	symbolAt := func(name string) int {
		for _, s := range parsed.symbols {
			if s.name == name {
				return int(parsed.symtab.offset) + s.index*symbolSize
			}
		}
		t.Fatalf("no symbol %s", name)
		return 0
	}
	for reason, damage := range map[string]func([]byte){
		"attribute 0x7f":                       func(d []byte) { d[attributeAt(eiattrExitInstrOffsets)+1] = 0x7f },
		"EIATTR_JUMPTABLE_RELOCS":              func(d []byte) { d[attributeAt(eiattrExitInstrOffsets)+1] = 0x03 },
		"bad attributes":                       func(d []byte) { d[attributeAt(eiattrExitInstrOffsets)] = 9 },
		"points outside the code":              func(d []byte) { d[attributeAt(eiattrExitInstrOffsets)+7] = 1 },
		"parameters are numbered with gaps":    func(d []byte) { d[attributeAt(eiattrKparamInfo)+8] = 5 },
		"parameters beyond their size":         func(d []byte) { d[attributeAt(eiattrKparamInfo)+10] = 0x77 },
		"parameter sizes contradict":           func(d []byte) { d[attributeAt(eiattrCbankParamSize)+2]++ },
		"parameters at 0x310":                  func(d []byte) { d[attributeAt(eiattrParamCbank)+9]++ },
		"constant bank 0 of unexpected size":   func(d []byte) { d[header(".nv.constant0.seed")+32] -= 4 },
		"code of unexpected extent":            func(d []byte) { d[symbolAt("seed")+8] = 16 },
		"limited to 8 registers":               func(d []byte) { d[attributeAt(eiattrMaxregCount)+2] = 8 },
		"no register count":                    func(d []byte) { d[find(".nv.info").offset+1] = 0x7f },
		"symbol empty in its code":             nil,
		"relocation of type":                   nil,
		"its address is taken in .nv.constant": nil,
	} {
		t.Run(reason, func(t *testing.T) {
			damaged := bytes.Clone(cubin)
			switch {
			case damage != nil:
				damage(damaged)
			case reason == "symbol empty in its code": // a second entry in one section
				entry := le.Uint16(damaged[symbolAt("seed")+6:])
				le.PutUint16(damaged[symbolAt("empty")+6:], entry)
			case reason == "relocation of type": // beyond the debugging section's function
				le.PutUint64(damaged[find(".rela.debug_frame").offset+16:], 1<<40)
			default: // a table's relocation now means the kernel
				table := find(".rela.nv.constant4")
				for _, s := range parsed.symbols {
					if s.name == "seed" {
						le.PutUint32(damaged[table.offset+12:], uint32(s.index))
					}
				}
			}
			_, report, err := Cubin(damaged, Options{Guards: testGuards(t)})
			if err != nil {
				t.Fatal(err)
			}
			refused := slices.ContainsFunc(report.Kernels, func(k Kernel) bool {
				return !k.Guarded && strings.Contains(k.Reason, reason)
			})
			if !refused {
				t.Errorf("%+v", report)
			}
		})
	}
}

// TestRecovered checks that a panic becomes an error.
func TestRecovered(t *testing.T) {
	cubin := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	fatbin := seeds(t, "zstd.fatbin")["testdata/seeds/zstd.fatbin"]
	options := Options{Guards: testGuards(t), Refuse: func(string) string { panic("fault") }}
	if out, report, err := Cubin(cubin, options); out != nil || report.Kernels != nil || !errors.Is(err, ErrFormat) {
		t.Errorf("cubin: %v", err)
	}
	if out, reports, err := Fatbin(fatbin, options); out != nil || reports != nil || !errors.Is(err, ErrFormat) {
		t.Errorf("fatbin: %v", err)
	}
}

// TestOtherArchitectures leaves kernels alone for which there is no guard.
func TestOtherArchitectures(t *testing.T) {
	cubin := bytes.Clone(seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"])
	binary.LittleEndian.PutUint32(cubin[48:], 75<<8)
	out, report, err := Cubin(cubin, Options{Guards: testGuards(t)})
	if err != nil || report.Guarded() != 0 || !bytes.Equal(out, cubin) {
		t.Fatalf("%+v %v", report, err)
	}
	for _, k := range report.Kernels {
		if k.Reason != "no guard for sm_75" {
			t.Errorf("%+v", k)
		}
	}
	le.PutUint16(cubin[16:], uint16(elf.ET_REL))
	if out, _, err := Cubin(cubin, Options{Guards: testGuards(t)}); out != nil || !errors.Is(err, ErrFormat) {
		t.Errorf("relocatable: %v", err)
	}
}

// fatbinOf puts cubins into a fatbin.
func fatbinOf(cubins ...[]byte) []byte {
	out := make([]byte, fatbinHeaderSize)
	le.PutUint32(out, fatbinMagic)
	le.PutUint16(out[6:], fatbinHeaderSize)
	for _, c := range cubins {
		header := make([]byte, entryHeaderSize)
		le.PutUint16(header[entryKind:], entryKindELF)
		le.PutUint32(header[entryHeader:], entryHeaderSize)
		out = entryData{header: header}.appendRaw(out, c)
	}
	le.PutUint64(out[8:], uint64(len(out)-fatbinHeaderSize))
	return out
}

// The driver takes one of several cubins: a kernel has a guard in all those of a family, or in none.
func TestKernelsOfSeveralCubins(t *testing.T) {
	seed := func(name string) []byte { return seeds(t, name)["testdata/seeds/"+name] }
	spoilt := func(cubin []byte) []byte { // the code of one kernel is in an unexpected section
		return bytes.ReplaceAll(cubin, []byte(".text.seed\x00"), []byte(".tixt.seed\x00"))
	}
	for _, test := range []struct {
		name          string
		first, second []byte
		guarded       [2]bool // seed, in each
	}{
		{"alike", seed("sm_80.cubin"), seed("sm_80_cuda12.cubin"), [2]bool{true, true}},
		{"of one family", seed("sm_80.cubin"), spoilt(seed("sm_80_cuda12.cubin")), [2]bool{false, false}},
		{"of two families", seed("sm_80.cubin"), spoilt(seed("sm_90.cubin")), [2]bool{true, false}},
	} {
		_, entries, err := Rewrite(Image{FormFatbin, fatbinOf(test.first, test.second)}, Options{Guards: testGuards(t)})
		if err != nil || len(entries) != 2 {
			t.Fatalf("%s: %d entries, %v", test.name, len(entries), err)
		}
		for i, e := range entries {
			for _, k := range e.Report.Kernels {
				if k.Guarded != (k.Name != "seed" || test.guarded[i]) {
					t.Errorf("%s: cubin %d: %+v", test.name, i, k)
				}
			}
		}
	}
	for _, form := range []Form{FormPTX, FormFatbinPTX} {
		if out, _, err := Rewrite(Image{Form: form, Data: []byte("x")}, Options{Guards: testGuards(t)}); out != nil || !errors.Is(err, ErrPTX) {
			t.Errorf("form %d: %v", form, err)
		}
	}
}
