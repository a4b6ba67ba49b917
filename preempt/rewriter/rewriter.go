// Package rewriter makes the kernels of a program stoppable as their code is loaded: it answers the requests of
// preempt/code, each with the rewritten image, from the cache or new (patch/cache).
package rewriter

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../../build/core.a -lpthread
// #include "preempt/far/calls.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
	"github.com/gpreempt/gpreempt/patch/cache"
	"github.com/gpreempt/gpreempt/preempt/program"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Go's and C's forms of images have the same numbers.
var _ = [1]struct{}{}[patch.FormCubin-C.GP_CUBIN|patch.FormFatbin-C.GP_FATBIN|patch.FormPTX-C.GP_PTX|patch.FormFatbinPTX-C.GP_FATBIN_PTX]

const (
	// threads answer requests for as long as the process lives.
	threads = 2
	// Rewriting takes several times an image's memory, which is given back to the system when no more comes.
	releaseAfter = time.Second
	// In percent, of runtime/debug.SetGCPercent: while code is rewritten, and else.
	quickly, sparingly = 100, 25
)

type rewriter struct {
	images  func() *cache.Rewriter // made when code is loaded
	release *time.Timer
	log     zerolog.Logger
}

// Start answers requests in a process of a level whose code is to be rewritten. It is called once the driver's functions
// are known and before hooks are installed. armed is the word by which calls are handed to hooks (gp_armed); build
// identifies the library, as another one may rewrite otherwise.
func Start(config configs.Config, level int, build string, log zerolog.Logger) {
	when := wanted(config, level)
	if when == C.GP_BLP_OFF || !possible(when, log) {
		return
	}
	r := newRewriter(config, build, log)
	C.far_lane_open(C.GP_LANE_REWRITER) // without its thread another one carries its calls out
	for range threads {
		go func() {
			for {
				var request C.struct_gp_bridge_request
				seen := segment.Of.Seen(program.Requests)
				if C.far_request_take(&request) == 0 {
					segment.Of.Wait(program.Requests, seen, 0)
					continue
				}
				r.answer(&request)
			}
		}()
	}
	C.far_blp_set(when)
}

// rewriting is how many requests have code rewritten.
var rewriting atomic.Int32

// Release gives memory back, and keeps the heap small from then on: there is a helper beside each program.
func Release() {
	if rewriting.Load() > 0 {
		return // the end of that calls again
	}
	debug.SetGCPercent(sparingly)
	debug.FreeOSMemory()
	if rewriting.Load() > 0 {
		debug.SetGCPercent(quickly)
	}
}

func newRewriter(config configs.Config, build string, log zerolog.Logger) *rewriter {
	r := &rewriter{release: time.AfterFunc(releaseAfter, Release), log: log}
	r.images = sync.OnceValue(func() *cache.Rewriter {
		notKept := func(err error) { log.Debug().Err(err).Msg("rewritten code is not kept") }
		images := &cache.Rewriter{Guards: kernels.Guard, Build: build, Refuse: patch.WaitsForPeers, Failed: notKept}
		if config.BLP.CacheMB == 0 {
			return images
		}
		directory, err := config.BLP.CacheDirectory, error(nil)
		if directory == "" {
			directory, err = cache.Directory(os.Getenv)
		}
		if err == nil {
			images.Cache, err = cache.Open(directory, int64(config.BLP.CacheMB)<<20)
		}
		if err != nil {
			notKept(err)
		}
		return images
	})
	return r
}

// wanted decides whether loads rewrite code: in processes that may have to yield. The settings ask for it by name; under MPS it is the
// default, since nothing else stops a kernel there. No process is preferred to level 0. Only the program itself could stop its streams
// there, which it has to ask for.
func wanted(config configs.Config, level int) C.uint32_t {
	where := config.Mechanisms.Where(configs.BLP)
	switch {
	case level == 0 && !config.BLP.LCStreams:
		return C.GP_BLP_OFF
	case where == configs.Anywhere:
		return C.GP_BLP_ON
	case where == configs.UnderMPS:
		return C.GP_BLP_UNDER_MPS
	}
	return C.GP_BLP_OFF
}

// possible says whether this driver's kernels can be stopped, and in the log why they can not.
func possible(when C.uint32_t, log zerolog.Logger) bool {
	if version := int(C.far_driver_version()); version > C.GP_NEWEST_DRIVER {
		level := zerolog.WarnLevel
		if when == C.GP_BLP_UNDER_MPS { // where it may not be wanted
			level = zerolog.InfoLevel
		}
		log.WithLevel(level).Int("version", version).Int("newest", C.GP_NEWEST_DRIVER).Msg("the driver is newer than those known and may have functions that overtake stopped kernels: no kernel is made preemptible")
		return false
	}
	var text [C.GP_FAR_TEXT]C.char
	if C.far_start_blp(&text[0]) {
		log.Warn().Str("missing", C.GoString(&text[0])).Msg("the driver is too old: no kernel is made preemptible")
		return false
	}
	for _, variable := range []struct { // rewritten code is no PTX
		name  string
		which C.uint32_t
	}{{"CUDA_FORCE_PTX_JIT", C.GP_FORCE_PTX_JIT}, {"CUDA_FORCE_JIT", C.GP_FORCE_JIT}} {
		if C.far_environment(variable.which, &text[0]); C.GoString(&text[0]) != "" && C.GoString(&text[0]) != "0" {
			log.Warn().Str("variable", variable.name).Msg("the driver is told to compile all code itself: no kernel is made preemptible")
			return false
		}
	}
	return true
}

func (r *rewriter) answer(request *C.struct_gp_bridge_request) {
	answer := C.struct_gp_bridge_answer{request: request.request, answer: C.GP_FAILED, key: request.key}
	defer func() { C.far_request_answer(&answer) }()
	defer func() {
		if failure := recover(); failure != nil { // the program must not end because of it
			answer.answer = C.GP_FAILED
			setReason(&answer, "fault in the rewriter")
			r.log.Error().Interface("fault", failure).Msg("rewriting code failed")
		}
	}()
	err := r.carryOut(request, &answer)
	switch {
	case err == nil:
		answer.answer = C.GP_DONE
	case errors.Is(err, patch.ErrPTX):
		answer.answer = C.GP_LINK
	case !errors.Is(err, patch.ErrNothing):
		setReason(&answer, err.Error())
	}
}

func setReason(answer *C.struct_gp_bridge_answer, reason string) {
	for i := range min(len(reason), len(answer.reason)-1) {
		answer.reason[i] = C.char(reason[i])
	}
}

// carryOut picks what the request names, unless that was done before, and rewrites it if that is asked for.
func (r *rewriter) carryOut(request *C.struct_gp_bridge_request, answer *C.struct_gp_bridge_answer) error {
	from := memory{at: uint64(request.image)}
	var image patch.Image
	if request.picked_form == C.GP_NOT_PICKED {
		path := ""
		if request.has_path != 0 {
			path = C.GoString(&request.path[0])
		}
		var err error
		if image, err = pick(from, path, int(request.sm)); err != nil {
			return err
		}
		defer unmap(image)
		address, err := give(image.Data)
		if err != nil {
			return err
		}
		answer.picked, answer.picked_bytes, answer.picked_form = C.uint64_t(address), C.uint64_t(len(image.Data)), C.uint32_t(image.Form)
	} else if request.linked == 0 {
		data, err := from.copy(uint64(request.picked_bytes))
		if err != nil {
			return err
		}
		image = patch.Image{Form: patch.Form(request.picked_form), Data: data}
	}
	if request.what == C.GP_PICK {
		return nil
	}
	rewriting.Add(1)
	debug.SetGCPercent(quickly)
	defer func() {
		rewriting.Add(-1)
		r.release.Reset(releaseAfter)
	}()
	m, err := r.rewrite(request, image, answer)
	if err != nil {
		return err
	}
	defer m.Unmap()
	address, err := give(m.Data())
	if err != nil {
		return err
	}
	answer.rewritten, answer.cached = C.uint64_t(address), 0
	if m.Cached {
		answer.cached = 1
	}
	if r.log.GetLevel() <= zerolog.DebugLevel {
		for kernel, reason := range m.Refused() {
			r.log.Debug().Str("kernel", kernel).Str("reason", reason).Msg("kernel is not preemptible")
		}
	}
	return nil
}

func (r *rewriter) rewrite(request *C.struct_gp_bridge_request, image patch.Image, answer *C.struct_gp_bridge_answer) (cache.Mapping, error) {
	key := (*cache.Key)(unsafe.Pointer(&answer.key))
	if request.linked != 0 {
		cubin, err := memory{at: uint64(request.linked)}.copy(uint64(request.linked_bytes))
		if err != nil {
			return cache.Mapping{}, err
		}
		return r.images().RewriteLinked(cubin, *key)
	}
	options := ""
	if request.options != 0 {
		var err error
		if options, err = (memory{at: uint64(request.options)}).text(); err != nil {
			return cache.Mapping{}, err
		}
	}
	m, made, err := r.images().Rewrite(image, int(request.sm), options)
	*key = made
	return m, err
}

// give maps a copy of data in the program, which unmaps it.
func give(data []byte) (address uint64, err error) {
	fd, err := unix.MemfdCreate("gpreempt-code", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("make memory: %w", err)
	}
	defer unix.Close(fd)
	for done := 0; done < len(data); {
		n, err := unix.Pwrite(fd, data[done:], int64(done))
		if err != nil {
			return 0, fmt.Errorf("write memory: %w", err)
		}
		done += n
	}
	if address, err = segment.Of.Memory(fd, len(data)); err != nil {
		return 0, fmt.Errorf("map it in the program: %w", err)
	}
	return address, nil
}
