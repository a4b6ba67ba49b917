package patch

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// planned rewrites a cubin and returns the plans too.
func planned(t testing.TB, image []byte) (out []byte, plans []*plan) {
	t.Helper()
	c, err := parseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Guards: testGuards(t)}
	plans = c.plan(options)
	if out, err = c.apply(plans, options); err != nil {
		t.Fatal(err)
	}
	if err := confirm(image, out, plans); err != nil {
		t.Fatal(err)
	}
	return out, plans
}

// TestConfirmSeesEveryBit changes one bit of a rewritten cubin at a time. All that a reader looks at is compared: what may change unseen
// lies between sections, or says where sections are that are not in the file.
func TestConfirmSeesEveryBit(t *testing.T) {
	images := seeds(t, "*.cubin")
	for i := range byte(6) { // with debugging information, with and without addends; two and three kernels
		images[fmt.Sprintf("built %d", i)] = buildCubin(&choices{bytes.Repeat([]byte{i, i >> 1, 1, i * 5}, 24)})
	}
	for name, image := range images {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			out, plans := planned(t, image)
			c, err := parseCubin(out)
			if err != nil {
				t.Fatal(err)
			}
			const padding, seen, either = 0, 1, 2
			of := make([]byte, len(out))
			mark := func(at, size uint64, as byte) {
				for i := range size {
					of[at+i] = as
				}
			}
			mark(0, elfHeaderSize, seen)
			mark(c.sectionOffset, uint64(len(c.sections))*sectionHeaderSize, seen)
			mark(c.segmentOffset, uint64(c.segments)*segmentSize, seen)
			for _, s := range c.sections {
				mark(s.offset*uint64(min(1, len(s.data))), uint64(len(s.data)), seen)
				mark(c.sectionOffset+uint64(s.index)*sectionHeaderSize+24, 8, either) // the same contents may stand there too
			}
			for i := range uint64(c.segments) { // or the same sections between
				mark(c.segmentOffset+i*segmentSize+8, 8, either)
				mark(c.segmentOffset+i*segmentSize+32, 16, either)
			}
			for at := range out {
				bit := byte(1) << (at % 8)
				out[at] ^= bit
				err := confirm(image, out, plans)
				if of[at] != either && (err != nil) != (of[at] == seen) || err != nil && !errors.Is(err, ErrUnconfirmed) {
					t.Errorf("bit %#x of byte %#x (%s): %v", bit, at, placeOf(c, uint64(at)), err)
				}
				out[at] ^= bit
			}
		})
	}
}

// placeOf names what stands at an offset.
func placeOf(c *cubin, at uint64) string {
	for _, s := range c.sections {
		if at >= s.offset && at < s.offset+uint64(len(s.data)) {
			return s.name
		}
		if h := c.sectionOffset + uint64(s.index)*sectionHeaderSize; at >= h && at < h+sectionHeaderSize {
			return fmt.Sprintf("header of %s, byte %d", s.name, at-h)
		}
	}
	return "no section"
}

// Images that differ from the plan are not confirmed: another guard, another place of the hidden parameter, a kernel less, and one that
// shares its sections.
func TestConfirmByPlan(t *testing.T) {
	image := seeds(t, "sm_90.cubin")["testdata/seeds/sm_90.cubin"]
	for name, change := range map[string]func([]*plan) []*plan{
		"hidden offset":     func(p []*plan) []*plan { p[0].HiddenOffset += 8; return p },
		"registers":         func(p []*plan) []*plan { p[0].GuardedRegisters++; return p },
		"attributes":        func(p []*plan) []*plan { p[0].attributes = p[0].attributes[1:]; return p },
		"layout":            func(p []*plan) []*plan { p[1].Layout = nil; p[0].Layout = nil; return p },
		"not guarded":       func(p []*plan) []*plan { p[0].Guarded = false; return p },
		"no plan":           func([]*plan) []*plan { return nil },
		"shared code":       func(p []*plan) []*plan { p[0].text = p[1].text; return p },
		"shared attributes": func(p []*plan) []*plan { p[0].info = p[1].info; return p },
		"shared constants":  func(p []*plan) []*plan { p[0].constants = p[1].constants; return p },
	} {
		out, plans := planned(t, image)
		if err := confirm(image, out, change(plans)); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	out, plans := planned(t, image)
	for _, other := range [][]byte{nil, image, out[:len(out)-1], out[:elfHeaderSize]} {
		if err := confirm(image, other, plans); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("%d bytes: %v", len(other), err)
		}
	}
	if err := confirm(image[:elfHeaderSize], out, plans); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("no original: %v", err)
	}
}

// A guard for parameters at a place that no attribute can name: what is written is not what was planned, and the original is used.
func TestUnconfirmed(t *testing.T) {
	const far = 1<<16 + 0x210
	guards := testGuards(t)
	guards.bySM[90].Parameters = []uint32{far}
	cubin := (&builder{choices: &choices{}, base: far}).cubin(1)
	if out, _, err := Cubin(cubin, Options{Guards: guards}); out != nil || !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("cubin: %d bytes, %v", len(out), err)
	}
	fatbin := fatbinOf(cubin)
	out, reports, err := Fatbin(fatbin, Options{Guards: guards})
	if err != nil || !bytes.Equal(out, fatbin) || !strings.Contains(reports[0].Reason, ErrUnconfirmed.Error()) {
		t.Errorf("fatbin: %+v, %v", reports, err)
	}
}

// TestConfirmEntries changes one bit of a rewritten fatbin at a time.
func TestConfirmEntries(t *testing.T) {
	image := seeds(t, "lz4.fatbin")["testdata/seeds/lz4.fatbin"]
	options := Options{Guards: testGuards(t)}
	list, err := entries(image)
	if err != nil {
		t.Fatal(err)
	}
	rewritten := make([][]byte, len(list))
	for i, e := range list {
		rewritten[i], _ = e.rewrite(options)
	}
	out, _, err := rewriteFatbin(image, options)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range list {
		at := bytes.Index(out, e.header[:entryStored])
		for n := range len(e.header) {
			// Fields of a rewritten entry say how it is stored; those of others are the original's.
			free := rewritten[i] != nil && n >= entryStored && (n < entrySM || n >= entrySM+4)
			out[at+n] ^= 1
			if err := confirmEntries(list, rewritten, out); err == nil && !free {
				t.Errorf("entry %d: byte %d of its header changed", i, n)
			}
			out[at+n] ^= 1
		}
		out[at+len(e.header)+8] ^= 1
		if err := confirmEntries(list, rewritten, out); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("entry %d: its contents changed: %v", i, err)
		}
		out[at+len(e.header)+8] ^= 1
		if err := confirmEntries(list, rewritten, out); err != nil {
			t.Fatal(err)
		}
	}
	if err := confirmEntries(list[1:], rewritten[1:], out); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("an entry more: %v", err)
	}
	if err := confirmEntries(list, rewritten, out[:len(out)-1]); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("cut short: %v", err)
	}
}

// TestTables lets tables of a cubin stand over each other, each over each: refused, in both orders.
func TestTables(t *testing.T) {
	for name, image := range seeds(t, "*.cubin") {
		c, err := parseCubin(image)
		if err != nil {
			t.Fatal(err)
		}
		type place struct {
			name         string
			field        int // where its offset stands
			offset, size uint64
		}
		places := []place{
			{"ELF header", -1, 0, elfHeaderSize},
			{"section headers", 40, c.sectionOffset, uint64(len(c.sections)) * sectionHeaderSize},
			{"program headers", 32, c.segmentOffset, uint64(c.segments) * segmentSize},
		}
		for _, s := range c.sections[:c.kept] {
			if len(s.data) > 0 {
				places = append(places, place{s.name, int(c.sectionOffset) + s.index*sectionHeaderSize + 24, s.offset, s.size})
			}
		}
		tried := 0
		for _, moved := range places[1:] {
			for _, over := range places {
				for _, offset := range []uint64{over.offset, over.offset + over.size - 1, over.offset - moved.size + 1} {
					if moved.name == over.name || offset > uint64(len(image))-moved.size {
						continue
					}
					damaged := bytes.Clone(image)
					le.PutUint64(damaged[moved.field:], offset)
					out, _, err := Cubin(damaged, Options{Guards: testGuards(t)})
					if tried++; out != nil || !errors.Is(err, ErrFormat) {
						t.Errorf("%s: %s at %#x, over %s: %d bytes, %v", filepath.Base(name), moved.name, offset, over.name, len(out), err)
					}
				}
			}
		}
		if tried < 300 {
			t.Errorf("%s: %d tries", name, tried)
		}
	}
}

// Mercury sections share all bytes with a section of the first form, or none.
func TestMercuryShares(t *testing.T) {
	image := seeds(t, "sm_100.cubin")["testdata/seeds/sm_100.cubin"]
	c, err := parseCubin(image)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(c.sections, func(s *section) bool { return s.shared })
	if at < c.kept {
		t.Fatal("no mercury section shares bytes with another one")
	}
	for name, change := range map[string]func(h []byte){
		"one byte less": func(h []byte) { le.PutUint64(h[32:], c.sections[at].size-1) },
		"one byte more": func(h []byte) { le.PutUint64(h[32:], c.sections[at].size+1) },
		"a byte beside": func(h []byte) { le.PutUint64(h[24:], c.sections[at].offset+1) },
	} {
		damaged := bytes.Clone(image)
		change(damaged[int(c.sectionOffset)+at*sectionHeaderSize:])
		if out, _, err := Cubin(damaged, Options{Guards: testGuards(t)}); out != nil || !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "overlap") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkConfirm is what reading again costs, beside all of the rewriting, for a cubin of 30 MB with 1000 kernels.
func BenchmarkConfirm(b *testing.B) {
	image := (&builder{choices: &choices{}, length: 30 << 20 / 1000 / instructionSize}).cubin(1000)
	options := Options{Guards: testGuards(b)}
	out, plans := planned(b, image)
	b.Logf("%d bytes become %d", len(image), len(out))
	b.Run("rewrite", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := rewriteCubin(image, options); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("confirm", func(b *testing.B) {
		for b.Loop() {
			if err := confirm(image, out, plans); err != nil {
				b.Fatal(err)
			}
		}
	})
}
