package cache

import (
	"crypto/sha256"
	"fmt"
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

// Rewrite returns what became of an image for a GPU of compute capability sm, by its key in the cache. The error is
// patch.ErrPTX where the driver's linker, with those options, has to make a cubin of it first, for RewriteLinked.
func (r *Rewriter) Rewrite(image patch.Image, sm int, options string) (Mapping, Key, error) {
	kind := "cubin"
	if image.PTX() {
		kind = "ptx " + options
	}
	key := r.key(kind, sm, image.Data)
	if r.Cache != nil {
		if m, ok := r.Cache.Get(key); ok {
			return m, key, nil
		}
	}
	m, err := r.rewrite(image, key)
	return m, key, err
}

// RewriteLinked is Rewrite for the cubin that the linker made of an image with that key.
func (r *Rewriter) RewriteLinked(cubin []byte, key Key) (Mapping, error) {
	return r.rewrite(patch.Image{Form: patch.FormCubin, Data: cubin}, key)
}

func (r *Rewriter) key(kind string, sm int, data []byte) (key Key) {
	r.identify.Do(func() { r.identity = fmt.Sprintf("%s %q %x", magic, r.Build, sha256.Sum256(r.Guards)) })
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %d %d ", r.identity, kind, sm, len(data))
	h.Write(data)
	h.Sum(key[:0])
	return key
}

func (r *Rewriter) rewrite(image patch.Image, key Key) (Mapping, error) {
	if image.PTX() {
		return Mapping{}, patch.ErrPTX
	}
	r.parse.Do(func() { r.guards, r.failure = patch.ParseGuards(r.Guards) })
	if r.failure != nil {
		return Mapping{}, r.failure
	}
	out, entries, err := patch.Rewrite(image, patch.Options{Guards: r.guards, Refuse: r.Refuse})
	if err != nil {
		return Mapping{}, err
	}
	kernels, err := kernelsOf(entries)
	if err != nil {
		return Mapping{}, err
	}
	if !slices.ContainsFunc(kernels, func(k patch.Kernel) bool { return k.Guarded }) {
		out = nil
	}
	f := newFormat(kernels, out)
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

// kernelsOf lists every kernel once, as independent if it is in all cubins. All must have been read: the driver may take any of them.
func kernelsOf(entries []patch.FatbinEntry) (kernels []patch.Kernel, err error) {
	listed := make(map[string]int)
	for _, e := range entries {
		if e.Reason != "" {
			return nil, fmt.Errorf("cubin for sm_%d: %s", e.SM, strings.TrimPrefix(e.Reason, patch.ErrFormat.Error()+": "))
		}
		for _, k := range e.Report.Kernels {
			if at, known := listed[k.Name]; known {
				kernels[at].Independent = kernels[at].Independent && k.Independent
				continue
			}
			listed[k.Name] = len(kernels)
			kernels = append(kernels, k)
		}
	}
	return kernels, nil
}
