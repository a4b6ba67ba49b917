package patch

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// edge is memory that ends where the image does; behind it a read fails.
type edge struct{ data []byte }

var errEdge = errors.New("edge")

func (e edge) ReadAt(p []byte, offset int64) (int, error) {
	if offset > int64(len(e.data)) {
		return 0, errEdge
	}
	n := copy(p, e.data[offset:])
	if n < len(p) {
		return n, errEdge
	}
	return n, nil
}

func TestPickCubin(t *testing.T) {
	for name, image := range seeds(t, "*.cubin") {
		for _, reader := range []io.ReaderAt{edge{image}, edge{append(bytes.Clone(image), "more"...)}} {
			picked, err := Pick(reader, 90, nil)
			if err != nil || !bytes.Equal(picked.Data, image) || picked.Form != FormCubin {
				t.Errorf("%s: %d bytes of %d, %v", name, len(picked.Data), len(image), err)
			}
		}
	}
}

func TestPickFatbin(t *testing.T) {
	entry := func(kind, sm int, data string) []byte {
		h := make([]byte, entryHeaderSize)
		le.PutUint16(h[entryKind:], uint16(kind))
		le.PutUint32(h[entryHeader:], entryHeaderSize)
		le.PutUint64(h[entryStored:], uint64(len(data)))
		le.PutUint32(h[entrySM:], uint32(sm))
		return append(h, data...)
	}
	fatbin := func(list ...[]byte) []byte {
		all := bytes.Join(list, nil)
		h := make([]byte, fatbinHeaderSize)
		le.PutUint32(h, fatbinMagic)
		le.PutUint16(h[6:], fatbinHeaderSize)
		le.PutUint64(h[8:], uint64(len(all)))
		return append(h, all...)
	}
	elf80, elf86, elf90, lto := entry(2, 80, "cubin 80"), entry(2, 86, "cubin 86"), entry(2, 90, "cubin 90"), entry(8, 90, "lto")
	ptx70, ptx80 := entry(1, 70, "old text"), entry(1, 80, "new text")
	whole := fatbin(ptx70, elf80, elf86, lto, elf90, ptx80)
	for _, test := range []struct {
		sm   int
		want []byte
		form Form
	}{
		{80, fatbin(elf80), FormFatbin},
		{86, fatbin(elf80, elf86), FormFatbin},
		{89, fatbin(elf80, elf86), FormFatbin},
		{90, fatbin(elf90), FormFatbin},
		{100, fatbin(ptx70, ptx80), FormFatbinPTX},
	} {
		picked, err := Pick(edge{whole}, test.sm, nil)
		if err != nil || !bytes.Equal(picked.Data, test.want) || picked.Form != test.form {
			t.Errorf("sm_%d: %q, %+v, %v; want %q", test.sm, picked.Data, picked, err, test.want)
		}
	}
	if picked, err := Pick(edge{fatbin(lto, elf80)}, 90, nil); !errors.Is(err, ErrNothing) {
		t.Errorf("nothing for the GPU: %+v, %v", picked, err)
	}
	for size := range whole {
		if picked, err := Pick(edge{whole[:size]}, 100, nil); err == nil {
			t.Fatalf("cut to %d bytes: %+v", size, picked)
		}
	}
	endless := bytes.Clone(whole)
	le.PutUint64(endless[8:], 1<<39)
	if picked, err := Pick(edge{endless}, 90, nil); err == nil {
		t.Errorf("endless: %+v", picked)
	}
}

// Memory is asked for once, when it is known that the image is there; where there is none, that is the error.
func TestPickAllocates(t *testing.T) {
	lacks := errors.New("no memory")
	for name, image := range seeds(t, "*.*in") {
		asked := 0
		if _, err := Pick(edge{image}, 90, func(size int) ([]byte, error) { asked += size; return nil, lacks }); !errors.Is(err, lacks) || asked == 0 || asked > len(image) {
			t.Errorf("%s: %v, of %d bytes asked for %d", name, err, len(image), asked)
		}
		if _, err := Pick(edge{image[:len(image)-1]}, 90, func(int) ([]byte, error) { t.Errorf("%s: asked for memory", name); return nil, lacks }); err == nil {
			t.Errorf("%s, cut: picked", name)
		}
	}
	if _, err := Pick(edge{[]byte(".version\x00")}, 90, func(int) ([]byte, error) { return nil, lacks }); !errors.Is(err, lacks) {
		t.Errorf("text: %v", err)
	}
}

func TestPickText(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		text := "//\n.version 8.0\n" + strings.Repeat("x", random.IntN(1<<random.IntN(18)))
		for _, behind := range []string{"\x00", "\x00.version and more", "\x00" + strings.Repeat("y", 1<<18)} {
			picked, err := Pick(edge{[]byte(text + behind)}, 90, nil)
			if err != nil || string(picked.Data) != text+"\x00" || picked.Form != FormPTX {
				t.Fatalf("text of %d bytes: %d, %v", len(text), len(picked.Data), err)
			}
		}
		if picked, err := Pick(edge{[]byte(text)}, 90, nil); !errors.Is(err, errEdge) {
			t.Fatalf("without end: %+v, %v", picked, err)
		}
	}
	if picked, err := Pick(edge{[]byte("something else\x00")}, 90, nil); !errors.Is(err, ErrFormat) {
		t.Errorf("no PTX: %+v, %v", picked, err)
	}
}

func FuzzPick(f *testing.F) {
	for _, pattern := range []string{"*.cubin", "*.fatbin"} {
		for _, image := range seeds(f, pattern) {
			f.Add(image)
		}
	}
	f.Add([]byte(".version\x00"))
	f.Fuzz(func(t *testing.T, image []byte) {
		picked, err := Pick(edge{image}, 90, nil)
		if (err == nil) != (picked.Data != nil) || len(picked.Data) > len(image) {
			t.Fatalf("%d bytes of %d, %v", len(picked.Data), len(image), err)
		}
		if err == nil && picked.Form != FormPTX { // what was picked is picked again as a whole
			if again, err := Pick(edge{picked.Data}, 90, nil); err != nil || again.Form != picked.Form || !bytes.Equal(again.Data, picked.Data) {
				t.Fatalf("of %d picked bytes %d, %v", len(picked.Data), len(again.Data), err)
			}
		}
	})
}
