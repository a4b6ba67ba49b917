// Package rewriter makes the kernels of a program stoppable as their code is loaded: it answers the requests of
// preempt/code, each with the rewritten image, from the cache or new (patch/cache).
package rewriter

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../../build/core.a -lpthread
// #include "preempt/bridge.h"
// #include "preempt/code/request.h"
import "C"

import (
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/patch"
	"github.com/gpreempt/gpreempt/patch/cache"
)

// Go's and C's forms of images have the same numbers.
var _ = [1]struct{}{}[patch.FormCubin-C.GP_CUBIN|patch.FormFatbin-C.GP_FATBIN|patch.FormPTX-C.GP_PTX|patch.FormFatbinPTX-C.GP_FATBIN_PTX]

const (
	// threads answer requests for as long as the process lives.
	threads = 2
	// Rewriting takes several times an image's memory, which is given back to the program when no more comes.
	releaseAfter = time.Second
)

type rewriter struct {
	images  func() *cache.Rewriter // made when code is loaded
	release *time.Timer
	log     zerolog.Logger
}

// Start answers requests in a process of a level whose code is to be rewritten. It is called once the driver's functions
// are known and before hooks are installed. armed is the word by which calls are handed to hooks (gp_armed); build
// identifies the library, as another one may rewrite otherwise.
func Start(config configs.Config, level int, armed unsafe.Pointer, build string, log zerolog.Logger) {
	when := wanted(config, level)
	if when == C.GP_BLP_OFF || !possible(when, armed, log) {
		return
	}
	r := newRewriter(config, build, log)
	C.gp_blp_set(when)
	for range threads {
		go func() {
			for {
				r.answer(C.gp_request_next())
			}
		}()
	}
}

func newRewriter(config configs.Config, build string, log zerolog.Logger) *rewriter {
	r := &rewriter{release: time.AfterFunc(releaseAfter, debug.FreeOSMemory), log: log}
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
func possible(when C.uint32_t, armed unsafe.Pointer, log zerolog.Logger) bool {
	if version := int(C.gp_driver_version()); version > C.GP_NEWEST_DRIVER {
		level := zerolog.WarnLevel
		if when == C.GP_BLP_UNDER_MPS { // where it may not be wanted
			level = zerolog.InfoLevel
		}
		log.WithLevel(level).Int("version", version).Int("newest", C.GP_NEWEST_DRIVER).Msg("the driver is newer than those known and may have functions that overtake stopped kernels: no kernel is made preemptible")
		return false
	}
	if missing := C.gp_bridge_start_blp(armed); missing != nil {
		log.Warn().Str("missing", C.GoString(missing)).Msg("the driver is too old: no kernel is made preemptible")
		return false
	}
	for _, variable := range []struct { // rewritten code is no PTX
		name  string
		value *C.char
	}{{"CUDA_FORCE_PTX_JIT", C.gp_environment(C.GP_FORCE_PTX_JIT)}, {"CUDA_FORCE_JIT", C.gp_environment(C.GP_FORCE_JIT)}} {
		if value := C.GoString(variable.value); value != "" && value != "0" {
			log.Warn().Str("variable", variable.name).Msg("the driver is told to compile all code itself: no kernel is made preemptible")
			return false
		}
	}
	return true
}

func (r *rewriter) answer(request *C.struct_gp_request) {
	answer := C.int(C.GP_FAILED)
	defer func() { C.gp_request_answer(request, answer) }()
	defer func() {
		if failure := recover(); failure != nil { // the program must not end because of it
			answer = C.GP_FAILED
			setReason(request, "fault in the rewriter")
			r.log.Error().Interface("fault", failure).Msg("rewriting code failed")
		}
	}()
	err := r.carryOut(request)
	switch {
	case err == nil:
		answer = C.GP_DONE
	case errors.Is(err, patch.ErrPTX):
		answer = C.GP_LINK
	case !errors.Is(err, patch.ErrNothing):
		setReason(request, err.Error())
	}
}

func setReason(request *C.struct_gp_request, reason string) {
	for i := range min(len(reason), len(request.reason)-1) {
		request.reason[i] = C.char(reason[i])
	}
}

// carryOut picks what the request names, unless that was done before, and rewrites it if that is asked for.
func (r *rewriter) carryOut(request *C.struct_gp_request) error {
	if request.picked.form == C.GP_NOT_PICKED {
		image, err := pick(uintptr(request.image), C.GoString(request.path), int(request.sm))
		if err != nil {
			return err
		}
		request.picked.form = C.enum_gp_form(image.Form)
		request.picked.memory, request.picked.bytes = unsafe.Pointer(unsafe.SliceData(image.Data)), C.uint64_t(len(image.Data))
	}
	if request.what == C.GP_PICK {
		return nil
	}
	defer r.release.Reset(releaseAfter)
	m, err := r.rewrite(request)
	if err != nil {
		return err
	}
	request.rewritten, request.cached = (*C.struct_gp_rewritten)(m.Address), C.bool(m.Cached)
	if r.log.GetLevel() <= zerolog.DebugLevel {
		for kernel, reason := range m.Refused() {
			r.log.Debug().Str("kernel", kernel).Str("reason", reason).Msg("kernel is not preemptible")
		}
	}
	return nil
}

func (r *rewriter) rewrite(request *C.struct_gp_request) (cache.Mapping, error) {
	key := (*cache.Key)(unsafe.Pointer(&request.key))
	if request.linked != nil {
		cubin := unsafe.Slice((*byte)(request.linked), request.linked_bytes)
		return r.images().RewriteLinked(cubin, *key)
	}
	image := patch.Image{Form: patch.Form(request.picked.form), Data: unsafe.Slice((*byte)(request.picked.memory), request.picked.bytes)}
	m, made, err := r.images().Rewrite(image, int(request.sm), C.GoString(request.options))
	*key = made
	return m, err
}
