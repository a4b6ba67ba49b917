package cache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
)

func key(name string) Key { return sha256.Sum256([]byte(name)) }

var someKernels = []patch.Kernel{
	{Name: "second", Guarded: true, Layout: []patch.Parameter{{Offset: 0, Size: 8}, {Offset: 8, Size: 300}}, HiddenOffset: 312},
	{Name: "first", Guarded: true, Independent: true},
	{Name: "third", Reason: "because", Refusal: patch.RefusedPeers, Layout: []patch.Parameter{{Offset: 4, Size: 2}}},
	{Name: "fourth", Reason: "because"},
}

func encode(t testing.TB, k Key, kernels []patch.Kernel, image []byte) []byte {
	t.Helper()
	f := newFormat(kernels, image)
	data := make([]byte, f.size())
	f.put(data, k)
	if err := check(data, k); err != nil {
		t.Fatalf("what was made: %v", err)
	}
	return data
}

// decode reads as C does, by offsets of its own.
func decode(data []byte) (kernels []patch.Kernel, image []byte) {
	text := func(at uint32) string { return string(data[at : int(at)+bytes.IndexByte(data[at:], 0)]) }
	for i := range le.Uint32(data[12:]) {
		h := data[72+20*i:]
		k := patch.Kernel{Name: text(le.Uint32(h)), Guarded: le.Uint32(h[4:]) == 0, HiddenOffset: int(le.Uint16(h[14:]))}
		if !k.Guarded {
			k.Reason, k.Refusal = text(le.Uint32(h[4:])), patch.Refusal(le.Uint16(h[16:]))
		}
		k.Independent = le.Uint16(h[18:]) == 1
		for n := range uint32(le.Uint16(h[12:])) {
			at := data[le.Uint32(h[8:])+4*n:]
			k.Layout = append(k.Layout, patch.Parameter{Offset: le.Uint16(at), Size: le.Uint16(at[2:])})
		}
		kernels = append(kernels, k)
	}
	at, size := le.Uint64(data[24:]), le.Uint64(data[32:])
	return kernels, data[at : at+size]
}

func TestForm(t *testing.T) {
	sorted := []patch.Kernel{someKernels[1], someKernels[3], someKernels[0], someKernels[2]}
	for _, image := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("image"), 5000)} {
		for _, list := range [][]patch.Kernel{nil, someKernels} {
			data := encode(t, key("k"), list, image)
			got, gotImage := decode(data)
			if !bytes.Equal(gotImage, image) || list != nil && fmt.Sprint(got) != fmt.Sprint(sorted) || list == nil && got != nil {
				t.Errorf("%d bytes of image: got %v and %d bytes", len(image), got, len(gotImage))
			}
		}
	}
	reasons := maps.Collect(refused(encode(t, key("k"), someKernels, nil)))
	if want := map[string]string{"third": "because", "fourth": "because"}; !maps.Equal(reasons, want) {
		t.Errorf("refused %v, want %v", reasons, want)
	}
}

// The driver may take any of several cubins.
func TestIndependentInAll(t *testing.T) {
	of := func(independent bool) patch.FatbinEntry {
		return patch.FatbinEntry{Report: patch.Report{Kernels: []patch.Kernel{{Name: "k", Guarded: true, Independent: independent}}}}
	}
	for _, c := range []struct{ first, second, want bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		kernels, err := kernelsOf([]patch.FatbinEntry{of(c.first), of(c.second)})
		if err != nil || len(kernels) != 1 || kernels[0].Independent != c.want {
			t.Errorf("%v and %v: %+v %v", c.first, c.second, kernels, err)
		}
	}
}

// seal makes damaged data pass for whole: only its contents are to be judged.
func seal(data []byte) []byte {
	le.PutUint64(data[atBytes:], uint64(len(data)))
	le.PutUint32(data[atChecksum:], crc32.Checksum(data[atKernels:], castagnoli))
	return data
}

func TestDamage(t *testing.T) {
	k := key("k")
	whole := encode(t, k, someKernels, []byte("image"))
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x10
		if err := check(damaged, k); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	for n := range whole {
		if err := check(whole[:n], k); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if err := check(whole, key("other")); !errors.Is(err, ErrDamaged) {
		t.Errorf("of another image: %v", err)
	}
	for what, change := range map[string]func(data []byte){
		"too many kernels":       func(d []byte) { le.PutUint32(d[atKernels:], 1<<30) },
		"image beyond the end":   func(d []byte) { le.PutUint64(d[atImage:], 1<<40) },
		"image overlong":         func(d []byte) { le.PutUint64(d[atImageBytes:], 6) },
		"no end of texts":        func(d []byte) { d[imageAlignment-1] = 1 },
		"name in the header":     func(d []byte) { le.PutUint32(d[headerSize:], 8) },
		"name in the image":      func(d []byte) { le.PutUint32(d[headerSize:], imageAlignment) },
		"reason in the image":    func(d []byte) { le.PutUint32(d[headerSize+atReason:], imageAlignment) },
		"layout before the data": func(d []byte) { le.PutUint32(d[headerSize+atLayout:], 0) },
		"layout odd":             func(d []byte) { d[headerSize+atLayout]++ },
		"layout overlong":        func(d []byte) { le.PutUint16(d[headerSize+atParameters:], 0xffff) },
		"out of order": func(d []byte) {
			copy(d[headerSize:headerSize+4], d[headerSize+kernelSize:headerSize+kernelSize+4])
		},
	} {
		data := bytes.Clone(whole)
		change(data)
		if err := check(seal(data), k); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	k := key("k")
	f.Add(encode(f, k, someKernels, []byte("image")))
	f.Add(encode(f, k, nil, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < headerSize {
			return
		}
		copy(data, magic)
		copy(data[atKey:], k[:])
		if check(seal(data), k) != nil {
			return
		}
		decode(data) // panics where C would read elsewhere
		for range refused(data) {
		}
	})
}

func open(t *testing.T, directory string, limit int64) *Cache {
	t.Helper()
	c, err := Open(directory, limit)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Cache) names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(c.directory)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestCache(t *testing.T) {
	c := open(t, filepath.Join(t.TempDir(), "a/b"), 1<<20)
	k := key("k")
	if _, found := c.Get(k); found {
		t.Error("found before it was stored")
	}
	data := encode(t, k, someKernels, []byte("image"))
	for range 2 {
		if err := c.Put(k, data); err != nil {
			t.Fatal(err)
		}
	}
	m, found := c.Get(k)
	if !found || !m.Cached || !bytes.Equal(m.Data(), data) {
		t.Fatalf("got %+v, %v", m, found)
	}
	if err := os.Remove(c.path(k)); err != nil || !bytes.Equal(m.Data(), data) {
		t.Errorf("a mapping must outlive its file: %v", err)
	}
	m.Unmap()
	for what, damaged := range map[string][]byte{"torn": data[:len(data)-1], "empty": {}, "foreign": []byte("something else"), "misplaced": encode(t, key("o"), nil, nil)} {
		if err := os.WriteFile(c.path(k), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, found := c.Get(k); found || len(c.names(t)) != 0 {
			t.Errorf("%s: found %v, left %v", what, found, c.names(t))
		}
	}
	for _, make := range []func(string) error{
		func(path string) error { return os.Mkdir(path, 0o700) },
		func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		if err := make(c.path(k)); err != nil {
			t.Fatal(err)
		}
		if _, found := c.Get(k); found {
			t.Error("found what is no file")
		}
		_ = os.Remove(c.path(k))
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	link, file, wide := filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "wide")
	if err := errors.Join(os.Symlink(dir, link), os.WriteFile(file, nil, 0o600), os.Mkdir(wide, 0o700), os.Chmod(wide, 0o711)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, file, wide, "/proc/none/x"} {
		if _, err := Open(path, 1); err == nil {
			t.Errorf("%s: opened", path)
		}
	}
	c := open(t, filepath.Join(dir, "new"), 1)
	if info, err := os.Stat(c.directory); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made %v, %v", info, err)
	}
	for _, test := range []struct{ cache, home, want string }{
		{"/c", "/h", "/c/gpreempt"}, {"", "/h", "/h/.cache/gpreempt"}, {"relative", "/h", "/h/.cache/gpreempt"}, {"", "", ""}, {"", "relative", ""},
	} {
		got, err := Directory(func(name string) string {
			return map[string]string{"XDG_CACHE_HOME": test.cache, "HOME": test.home}[name]
		})
		if got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
}

func TestEviction(t *testing.T) {
	const size, fit = 10_000, 20
	c := open(t, filepath.Join(t.TempDir(), "cache"), fit*size)
	image := make([]byte, size-imageAlignment)
	for i := range 100 {
		k := key(fmt.Sprint(i))
		if err := c.Put(k, encode(t, k, nil, image)); err != nil {
			t.Fatal(err)
		}
		age := time.Now().Add(time.Duration(i-200) * time.Hour)
		if err := os.Chtimes(c.path(k), age, age); err != nil {
			t.Fatal(err)
		}
		if m, found := c.Get(key("0")); !found {
			t.Fatalf("what was used last is gone after %d more", i)
		} else {
			m.Unmap()
		}
		if names := c.names(t); len(names) > fit {
			t.Fatalf("%d files, room is for %d", len(names), fit)
		}
	}
	if names := c.names(t); len(names) < fit/2 {
		t.Errorf("only %d files are left", len(names))
	}
	for _, lost := range []string{"1", "50", "70"} {
		if _, found := c.Get(key(lost)); found {
			t.Errorf("%s is still there", lost)
		}
	}
	large := key("large")
	if err := c.Put(large, encode(t, large, nil, make([]byte, fit*size))); err != nil {
		t.Error(err)
	}
	if _, found := c.Get(large); found {
		t.Error("stored what has no room")
	}
	old, abandoned := filepath.Join(c.directory, temporary+"1-1-1"), time.Now().Add(-2*abandonedAfter)
	young := filepath.Join(c.directory, temporary+"1-1-2")
	if err := errors.Join(os.WriteFile(old, nil, 0o600), os.WriteFile(young, nil, 0o600), os.Chtimes(old, abandoned, abandoned)); err != nil {
		t.Fatal(err)
	}
	c.trim(0)
	if names := c.names(t); slices.Contains(names, filepath.Base(old)) || !slices.Contains(names, filepath.Base(young)) {
		t.Errorf("left %v", names)
	}
}

// Processes that store, read, damage and evict the same files at the same time get what was stored, or nothing.
func TestManyProcesses(t *testing.T) {
	const processes, rounds, keys = 4, 200, 8
	if dir := os.Getenv("GPREEMPT_TEST_CACHE"); dir != "" {
		c := open(t, dir, 40_000) // less than all
		for i := range rounds {
			name := fmt.Sprint((i*7 + os.Getpid()) % keys)
			k := key(name)
			want := encode(t, k, []patch.Kernel{{Name: name, Guarded: true}}, bytes.Repeat([]byte(name), 5000))
			if m, found := c.Get(k); found {
				if !bytes.Equal(m.Data(), want) {
					t.Fatalf("round %d: got other data", i)
				}
				m.Unmap()
			} else if err := c.Put(k, want); err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				torn := filepath.Join(dir, fmt.Sprintf("%storn-%d", temporary, os.Getpid()))
				if err := errors.Join(os.WriteFile(torn, want[:100], 0o600), os.Rename(torn, c.path(key(fmt.Sprint(i%keys+1))))); err != nil {
					t.Fatal(err)
				}
			}
		}
		return
	}
	dir := filepath.Join(t.TempDir(), "cache")
	var running []*exec.Cmd
	for range processes {
		cmd := exec.Command(os.Args[0], "-test.run=^TestManyProcesses$")
		cmd.Env = append(os.Environ(), "GPREEMPT_TEST_CACHE="+dir)
		cmd.Stdout = new(strings.Builder)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, cmd)
	}
	for _, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, cmd.Stdout)
		}
	}
	for _, name := range open(t, dir, 1).names(t) {
		if !strings.HasSuffix(name, extension) {
			t.Errorf("left %s", name)
		}
	}
}

func image(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRewriter(t *testing.T) {
	fatbin, cubin := image(t, "test/simcuda/kernels/sim.fatbin"), image(t, "test/simcuda/kernels/sim.cubin")
	c := open(t, filepath.Join(t.TempDir(), "cache"), 1<<20)
	r := Rewriter{Guards: kernels.Guard, Cache: c, Refuse: func(kernel string) string {
		if kernel == "sim_chain" {
			return "for the test"
		}
		return ""
	}}
	picked := func(data []byte, sm int) patch.Image {
		t.Helper()
		image, err := patch.Pick(bytes.NewReader(data), sm, nil)
		if err != nil {
			t.Fatal(err)
		}
		return image
	}
	rewrite := func(r *Rewriter, data []byte, sm int) Mapping {
		t.Helper()
		m, _, err := r.Rewrite(picked(data, sm), sm, "-O0")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := rewrite(&r, cubin, 90)
	list, out := decode(m.Data())
	guarded := map[string]bool{}
	for _, k := range list {
		guarded[k.Name] = k.Guarded
	}
	if want := map[string]bool{"sim_chain": false, "sim_increment": true, "sim_unknown": true,
		"sim_marlin": true, "sim_lamport": true, "sim_barrier": true}; !maps.Equal(guarded, want) || m.Cached {
		t.Errorf("guarded %v, want %v; %+v", guarded, want, m)
	}
	if _, report, err := patch.Cubin(out, patch.Options{Guards: r.guards}); err != nil || report.Guarded() != 1 {
		t.Errorf("in what was made, %d kernels lack a guard, want 1: %v", report.Guarded(), err)
	}
	again := rewrite(&r, cubin, 90)
	if !again.Cached || !bytes.Equal(again.Data(), m.Data()) {
		t.Error("not found again")
	}
	for what, other := range map[string]*Rewriter{
		"build":  {Guards: kernels.Guard, Cache: c, Build: "other"},
		"guards": {Guards: append(bytes.Clone(kernels.Guard), '\n'), Cache: c},
	} {
		if m := rewrite(other, cubin, 90); m.Cached {
			t.Errorf("found what another %s made", what)
		}
	}
	if m := rewrite(&r, fatbin, 90); m.Cached {
		t.Error("a fatbin is no cubin")
	}

	ptx := picked([]byte(".version 8.0\n.target sm_90\n\x00"), 90)
	_, linked, err := r.Rewrite(ptx, 90, "")
	_, other, errOther := r.Rewrite(ptx, 90, "-O0")
	if !errors.Is(err, patch.ErrPTX) || !errors.Is(errOther, patch.ErrPTX) || linked == other {
		t.Fatalf("%v, with other options %v; keys %x and %x", err, errOther, linked, other)
	}
	if m, err := r.RewriteLinked(cubin, linked); err != nil || m.Cached {
		t.Errorf("linked: %+v, %v", m, err)
	}
	if m, _, err := r.Rewrite(ptx, 90, ""); err != nil || !m.Cached {
		t.Errorf("linked before: %+v, %v", m, err)
	}

	refuse := Rewriter{Guards: kernels.Guard, Refuse: func(string) string { return "all" }}
	if m := rewrite(&refuse, cubin, 90); le.Uint64(m.Data()[atImageBytes:]) != 0 || le.Uint32(m.Data()[atKernels:]) != 6 {
		t.Errorf("nothing is guarded: %+v", m)
	}
	for what, data := range map[string][]byte{"no image": []byte("no image"), "cut short": cubin[:2000], "nothing": nil} {
		if m, _, err := r.Rewrite(patch.Image{Form: patch.FormCubin, Data: data}, 90, ""); err == nil {
			t.Errorf("%s: %+v", what, m)
		}
	}
}

// The driver chooses one of several cubins: what is said of a kernel must hold for each.
func TestKernelsOfSeveralCubins(t *testing.T) {
	old, new := image(t, "patch/testdata/seeds/sm_80.cubin"), image(t, "patch/testdata/seeds/sm_80_cuda12.cubin")
	var names []string
	entries, err := patch.Describe(old)
	for _, e := range entries {
		names = append(names, e.Name)
	}
	if err != nil || len(names) == 0 {
		t.Fatalf("kernels %v, %v", names, err)
	}
	renamed := bytes.ReplaceAll(new, []byte(".text."+names[0]+"\x00"), []byte(".tixt."+names[0]+"\x00")) // in an unexpected section
	for _, test := range []struct {
		second  []byte
		guarded bool
	}{{new, true}, {renamed, false}} {
		r := Rewriter{Guards: kernels.Guard}
		m, _, err := r.Rewrite(patch.Image{Form: patch.FormFatbin, Data: fatbinOf(old, test.second)}, 86, "")
		if err != nil {
			t.Fatal(err)
		}
		list, _ := decode(m.Data())
		for _, k := range list {
			if k.Name == names[0] && k.Guarded != test.guarded {
				t.Errorf("%+v, want guarded %v", k, test.guarded)
			}
		}
	}
	r := Rewriter{Guards: kernels.Guard}
	if m, _, err := r.Rewrite(patch.Image{Form: patch.FormFatbin, Data: fatbinOf(old, new[:500])}, 86, ""); err == nil {
		t.Errorf("a cubin that cannot be read: %+v", m)
	}
}

func fatbinOf(cubins ...[]byte) []byte {
	out := make([]byte, 16)
	le.PutUint32(out, 0xba55ed50)
	le.PutUint16(out[4:], 1)
	le.PutUint16(out[6:], 16)
	for _, c := range cubins {
		header := make([]byte, 64)
		le.PutUint16(header, 2)
		le.PutUint32(header[4:], 64)
		le.PutUint32(header[28:], 80)
		padded := append(bytes.Clone(c), make([]byte, align(len(c), 8)-len(c))...)
		le.PutUint64(header[8:], uint64(len(padded)))
		out = append(append(out, header...), padded...)
	}
	le.PutUint64(out[8:], uint64(len(out)-16))
	return out
}

// A file that is not mapped is read whole, or not used.
func TestReadFile(t *testing.T) {
	contents := bytes.Repeat([]byte("contents "), 10000)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read := func(fd, size int) (Mapping, error) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		return readFile(fd, size)
	}
	m, err := read(int(file.Fd()), len(contents))
	if err != nil || !bytes.Equal(m.Data(), contents) {
		t.Fatalf("%d of %d bytes: %v", len(m.Data()), len(contents), err)
	}
	m.Unmap()
	if _, err := read(int(file.Fd()), len(contents)+1); !errors.Is(err, ErrDamaged) {
		t.Errorf("a file that is too short: %v", err)
	}
	if _, err := read(-1, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
}
