package patch

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// FuzzStructure rewrites images that a generator makes and damages: tables that overlap, lie about sizes and offsets, point at each other.
// The corpus has one for each way in which they are refused, and for each form that is rewritten.
func FuzzStructure(f *testing.F) {
	guards := testGuards(f)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, by []byte) {
		c := &choices{by}
		image, tables := buildImage(c)
		image.Data = damage(c, image.Data, tables)
		if _, err := rewriteDamaged(image, guards); err != nil {
			t.Fatal(err)
		}
	})
}

// TestStructure does so with GPREEMPT_STRUCTURE_INPUTS random inputs (20000), from GPREEMPT_STRUCTURE_SEED (1) on, on all cores.
func TestStructure(t *testing.T) {
	number := func(name string, otherwise int64) int64 {
		n, err := strconv.ParseInt(os.Getenv(name), 10, 64)
		if err != nil {
			return otherwise
		}
		return n
	}
	chosen := func(source *rand.PCG) *choices {
		by := make([]byte, 64)
		for at := 0; at < len(by); at += 8 {
			le.PutUint64(by[at:], source.Uint64())
		}
		return &choices{by}
	}
	inputs, seed := number("GPREEMPT_STRUCTURE_INPUTS", 20000), number("GPREEMPT_STRUCTURE_SEED", 1)
	guards := testGuards(t)
	const threads, each = 2, 10 // of one image so many that are damaged
	var next atomic.Int64
	var mutex sync.Mutex
	outcomes := make(map[string]int64)
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			own := make(map[string]int64)
			for i := next.Add(1); (i-1)*each < inputs && !t.Failed(); i = next.Add(1) {
				source := rand.NewPCG(uint64(seed), uint64(i))
				whole, tables := buildImage(chosen(source))
				for range each {
					c := chosen(source)
					by := c.left
					image := Image{whole.Form, damage(c, bytes.Clone(whole.Data), tables)}
					outcome, err := rewriteDamaged(image, guards)
					if err != nil {
						t.Errorf("image %d, damaged by %x: %v", i, by, err)
					}
					own[outcome]++
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			for outcome, n := range own {
				outcomes[outcome] += n
			}
		})
	}
	group.Wait()
	rewritten := outcomes["rewritten"]
	if rewritten < inputs/10 || len(outcomes) < 10 {
		t.Errorf("of %d inputs %d were rewritten, others refused for %d reasons: the generator makes too few kinds", inputs, rewritten, len(outcomes)-1)
	}
	t.Logf("%d inputs: %v", inputs, outcomes)
}

// rewriteDamaged rewrites an image and says what came of it; the error says what must not come of it.
func rewriteDamaged(image Image, guards *Guards) (outcome string, err error) {
	original := bytes.Clone(image.Data)
	options := Options{Guards: guards, MaxSize: fuzzMaxSize}
	var out []byte
	var reports []FatbinEntry
	var failure error
	if image.Form == FormFatbin {
		out, reports, failure = rewriteFatbin(image.Data, options)
	} else {
		var report Report
		out, report, failure = rewriteCubin(image.Data, options)
		reports = []FatbinEntry{{Report: report}}
	}
	switch {
	case !bytes.Equal(image.Data, original):
		return "", errors.New("the image given was changed")
	case errors.Is(failure, ErrUnconfirmed):
		return "", failure
	case (failure == nil) != (out != nil):
		return "", fmt.Errorf("%d bytes and error %w", len(out), failure)
	case failure != nil:
		return reason(failure.Error()), nil
	}
	guarded := 0
	for _, r := range reports {
		if strings.Contains(r.Reason, ErrUnconfirmed.Error()) {
			return "", errors.New(r.Reason)
		}
		guarded += r.Report.Guarded()
		for _, k := range r.Report.Kernels {
			outcome = reason(k.Reason)
		}
		outcome += reason(r.Reason)
	}
	if guarded == 0 {
		if &out[0] != &image.Data[0] {
			return "", errors.New("nothing was guarded, and the image is a new one")
		}
		return "left: " + outcome, nil
	}
	return "rewritten", compareImages(image, out, reports, guards)
}

// reason is a text without its numbers and names.
func reason(text string) string {
	text, _, _ = strings.Cut(text, " at 0x")
	words := strings.Fields(text)
	for i, w := range words {
		if strings.ContainsAny(w, "0123456789.$") || i > 0 && (words[i-1] == "symbol" || words[i-1] == "in" && w != "its") {
			words[i] = "-"
		}
	}
	return strings.Join(words, " ")
}

// compareImages compares what was rewritten with its original, by a reader of its own.
func compareImages(image Image, out []byte, reports []FatbinEntry, guards *Guards) error {
	if image.Form == FormCubin {
		return comparePlainly(image.Data, out, reports[0].Report, guards)
	}
	before, err := entries(image.Data)
	if err != nil {
		return err
	}
	after, err := entries(out)
	if err != nil || len(after) != len(before) {
		return fmt.Errorf("%d entries became %d: %w", len(before), len(after), err)
	}
	for i, e := range before {
		if reports[i].Report.Guarded() == 0 {
			if !bytes.Equal(e.header, after[i].header) || !bytes.Equal(e.stored, after[i].stored) {
				return fmt.Errorf("entry %d changed", i)
			}
			continue
		}
		old, err := e.unpack(fuzzMaxSize)
		if err != nil {
			return err
		}
		if err := comparePlainly(old, after[i].stored, reports[i].Report, guards); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}

// plainSection is a section header and what it points at.
type plainSection struct {
	header []byte
	data   []byte
}

func plainSections(image []byte) (list []plainSection, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("unreadable: %v", r)
		}
	}()
	at, count := le.Uint64(image[40:]), int(le.Uint16(image[60:]))
	if count == 0 {
		count = int(le.Uint64(image[at+32:]))
	}
	for i := range count {
		h := image[at+uint64(i)*sectionHeaderSize:][:sectionHeaderSize]
		s := plainSection{header: h}
		if kind := le.Uint32(h[4:]); kind != shtNull && kind != shtNobits {
			s.data = image[le.Uint64(h[24:]):][:le.Uint64(h[32:])]
		}
		list = append(list, s)
	}
	return list, nil
}

// comparePlainly checks that code behind each guard, kernels without one, and all that no guard concerns are the same. It looks at bytes,
// not at what the reader of this package makes of them.
func comparePlainly(image, out []byte, report Report, guards *Guards) error {
	before, err := plainSections(image)
	if err != nil {
		return err
	}
	after, err := plainSections(out)
	if err != nil {
		return err
	}
	if len(after) > len(before) {
		return fmt.Errorf("%d sections became %d", len(before), len(after))
	}
	guarded := make(map[string]bool)
	for _, k := range report.Kernels {
		guarded[k.Name] = guarded[k.Name] || k.Guarded
	}
	names := before[le.Uint16(image[62:])].data
	guard := guards.bySM[report.SM]
	for i, a := range after {
		b := before[i]
		name, _, _ := bytes.Cut(names[le.Uint32(b.header):], []byte{0})
		kind, info := le.Uint32(b.header[4:]), le.Uint32(b.header[44:])
		if !bytes.Equal(a.header[:8], b.header[:8]) || !bytes.Equal(a.header[40:44], b.header[40:44]) || !bytes.Equal(a.header[48:], b.header[48:]) {
			return fmt.Errorf("the header of %s changed", name)
		}
		kernel, isCode := bytes.CutPrefix(name, []byte(".text."))
		switch {
		case isCode && guarded[string(kernel)] && bytes.HasSuffix(a.data, b.data) && len(a.data) == len(b.data)+len(guard.code) && guard.begins(a.data):
		case kind == shtSymtab || kind == shtRel || kind == shtRela:
			if len(a.data) != len(b.data) {
				return fmt.Errorf("the size of %s changed", name)
			}
		case kind == shtCUDAInfo || kind == shtCUDACompatInfo || bytes.HasPrefix(name, []byte(".debug_")) || bytes.HasPrefix(name, []byte(".nv_debug")):
		case bytes.HasPrefix(name, []byte(".nv.constant0.")) && info != 0 && bytes.HasPrefix(a.data, b.data) && len(a.data) <= len(b.data)+2*hiddenSize:
		case !bytes.Equal(a.data, b.data):
			return fmt.Errorf("%s changed", name)
		}
	}
	_, again, err := rewriteCubin(out, Options{Guards: guards, MaxSize: fuzzMaxSize * 2})
	if err != nil || len(again.Kernels) != len(report.Kernels) {
		return fmt.Errorf("read again: %d kernels became %d: %w", len(report.Kernels), len(again.Kernels), err)
	}
	for i, k := range report.Kernels {
		if fresh := again.Kernels[i]; k.Guarded && (fresh.Guarded || fresh.Reason != "has a guard" ||
			fresh.Parameters != k.Parameters+1 || fresh.ParameterBytes != k.HiddenOffset+hiddenSize) {
			return fmt.Errorf("%+v became %+v", k, fresh)
		}
	}
	return nil
}
