package cache

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/gpreempt/gpreempt/patch"
)

// Rewriter makes of images what is to be loaded in their place.
type Rewriter struct {
	Guards []byte // as patch.ParseGuards reads them
	Build  string // of this library: another may rewrite otherwise
	Refuse func(kernel string) (reason string)
	Cache  *Cache          // nil: nothing is kept
	Failed func(err error) // told that something could not be stored

	parse    sync.Once
	guards   *patch.Guards
	failure  error
	identify sync.Once
	identity string // of what rewrites
}

// Link is what the driver's linker is to make a cubin of, for RewriteLinked.
type Link struct {
	Size   int // of the image: PTX, or a fatbin with PTX
	Fatbin bool
	Key    Key
}

// Rewrite returns what became of the image for a GPU of compute capability sm, or what is to be linked first.
// What the linker makes of PTX depends on the options too.
func (r *Rewriter) Rewrite(image io.ReaderAt, sm int, options string) (Mapping, *Link, error) {
	picked, err := patch.Pick(image, sm)
	if err != nil {
		return Mapping{}, nil, err
	}
	kind := "cubin"
	if picked.PTX {
		kind = "ptx " + options
	}
	key := r.key(kind, sm, picked.Data)
	if r.Cache != nil {
		if m, ok := r.Cache.Get(key); ok {
			return m, nil, nil
		}
	}
	if picked.PTX {
		return Mapping{}, &Link{Size: picked.Size, Fatbin: picked.Fatbin, Key: key}, nil
	}
	m, err := r.rewrite(picked, sm, key)
	return m, nil, err
}

// RewriteLinked is Rewrite for the cubin that the linker made.
func (r *Rewriter) RewriteLinked(cubin io.ReaderAt, sm int, key Key) (Mapping, error) {
	picked, err := patch.Pick(cubin, sm)
	if err != nil {
		return Mapping{}, err
	}
	if picked.PTX {
		return Mapping{}, errors.New("the linker made no cubin")
	}
	return r.rewrite(picked, sm, key)
}

func (r *Rewriter) key(kind string, sm int, data []byte) (key Key) {
	r.identify.Do(func() { r.identity = fmt.Sprintf("%s %q %x", magic, r.Build, sha256.Sum256(r.Guards)) })
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %d %d ", r.identity, kind, sm, len(data))
	h.Write(data)
	h.Sum(key[:0])
	return key
}

func (r *Rewriter) rewrite(picked patch.Picked, sm int, key Key) (Mapping, error) {
	r.parse.Do(func() { r.guards, r.failure = patch.ParseGuards(r.Guards) })
	if r.failure != nil {
		return Mapping{}, r.failure
	}
	kernels, image, err := r.guard(picked, sm)
	if err != nil {
		return Mapping{}, err
	}
	f := newForm(kernels, image)
	m, err := Allocate(f.size())
	if err != nil {
		return Mapping{}, err
	}
	f.put(m.Data(), key)
	if r.Cache != nil {
		if err := r.Cache.Put(key, m.Data()); err != nil && r.Failed != nil {
			r.Failed(err)
		}
	}
	return m, nil
}

// guard rewrites an image; nil if nothing in it got a guard. Which of several cubins of a fatbin the driver takes is
// its own choice, so a kernel is guarded in all of them, with the same parameters, or in none.
func (r *Rewriter) guard(picked patch.Picked, sm int) ([]patch.Kernel, []byte, error) {
	different := make(map[string]bool)
	options := patch.Options{Guards: r.guards, SM: sm, Refuse: func(kernel string) string {
		if different[kernel] {
			return "not the same for all GPUs of the family"
		}
		if r.Refuse == nil {
			return ""
		}
		return r.Refuse(kernel)
	}}
	image, reports, err := rewriteOnce(picked, options)
	if err != nil {
		return nil, nil, err
	}
	kernels, found := merge(reports)
	if len(found) > 0 {
		for _, name := range found {
			different[name] = true
		}
		if image, reports, err = rewriteOnce(picked, options); err != nil {
			return nil, nil, err
		}
		if kernels, found = merge(reports); len(found) > 0 {
			return nil, nil, fmt.Errorf("kernel %s has a guard in some cubins only", found[0])
		}
	}
	if !slices.ContainsFunc(kernels, func(k patch.Kernel) bool { return k.Guarded }) {
		image = nil
	}
	return kernels, image, nil
}

func rewriteOnce(picked patch.Picked, options patch.Options) ([]byte, []patch.Report, error) {
	if !picked.Fatbin {
		image, report, err := patch.Cubin(picked.Data, options)
		return image, []patch.Report{report}, err
	}
	image, entries, err := patch.Fatbin(picked.Data, options)
	if err != nil {
		return nil, nil, err
	}
	var reports []patch.Report
	for _, e := range entries {
		if e.Reason != "" {
			return nil, nil, fmt.Errorf("cubin for sm_%d: %s", e.SM, strings.TrimPrefix(e.Reason, patch.ErrFormat.Error()+": "))
		}
		reports = append(reports, e.Report)
	}
	return image, reports, nil
}

// merge lists every kernel once, and the names of those of which the reports say different things.
func merge(reports []patch.Report) (kernels []patch.Kernel, different []string) {
	at := make(map[string]int)
	for _, report := range reports {
		for _, k := range report.Kernels {
			i, known := at[k.Name]
			if !known {
				at[k.Name] = len(kernels)
				kernels = append(kernels, k)
				continue
			}
			first := kernels[i]
			if first.Guarded != k.Guarded ||
				k.Guarded && (first.HiddenOffset != k.HiddenOffset || !slices.Equal(first.Layout, k.Layout)) {
				different = append(different, k.Name)
			}
		}
	}
	return kernels, different
}
