package agent

// #include "preempt/bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
)

// Source is code that is loaded: at an address of this process, Bytes long (0: unknown), or in a file.
type Source struct {
	Address uintptr
	Bytes   int
	Path    string

	SM      int    // compute capability of the GPU, 90 for 9.0
	Options string // what else decides what the driver's linker makes of PTX

	Linked bool     // it is what the linker made
	Key    [32]byte // of what it was made of
}

// Link is what the driver's linker is to compile first: PTX, or a fatbin with PTX.
type Link struct {
	Address uintptr
	Bytes   int
	Fatbin  bool
	Key     [32]byte
}

// Mapping is memory outside of Go's, which whoever gets it unmaps.
type Mapping struct {
	Address unsafe.Pointer
	Bytes   int
	Cached  bool
}

// Rewriter makes kernels stoppable. Its methods are called by several goroutines.
type Rewriter interface {
	// Copy returns a copy of the code.
	Copy(Source) (Mapping, error)
	// Rewrite returns what preempt/code/code.h describes as struct gp_rewritten, or what is to be linked before.
	Rewrite(Source) (Mapping, *Link, error)
}

// blpWanted decides whether code is rewritten as it is loaded: in processes that may have to yield, where it is asked
// for by name, and by default under MPS, where nothing else stops a kernel. Nobody is preferred to level 0, so that only
// the program itself could stop its streams there, which it has to ask for.
func blpWanted(config configs.Config, level int) C.uint32_t {
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

func startLoads(config configs.Config, level int, driver Driver, log zerolog.Logger) {
	when := blpWanted(config, level)
	if when == C.GP_BLP_OFF {
		return
	}
	if version := int(C.gp_driver_version()); version > C.GP_NEWEST_DRIVER {
		level := zerolog.WarnLevel
		if when == C.GP_BLP_UNDER_MPS { // where it may not be wanted
			level = zerolog.InfoLevel
		}
		log.WithLevel(level).Int("version", version).Int("newest", C.GP_NEWEST_DRIVER).Msg("the driver is newer than those known, and may have functions that overtake stopped kernels: no kernel is made preemptible")
		return
	}
	if missing := C.gp_bridge_start_blp(driver.Armed); missing != nil {
		log.Warn().Str("missing", C.GoString(missing)).Msg("the driver is too old: no kernel is made preemptible")
		return
	}
	for _, name := range []string{"CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT"} { // rewritten code is no PTX
		if value := os.Getenv(name); value != "" && value != "0" {
			log.Warn().Str("variable", name).Msg("the driver is told to compile all code itself: no kernel is made preemptible")
			return
		}
	}
	C.gp_blp_set(when)
	for range rewriters {
		go rewrite(driver.Rewriter, log)
	}
}

// rewriters answer loads for as long as the process lives.
const rewriters = 2

func rewrite(rewriter Rewriter, log zerolog.Logger) {
	for {
		answer(C.gp_request_next(), rewriter, log)
	}
}

func answer(r *C.struct_gp_request, rewriter Rewriter, log zerolog.Logger) {
	result := C.int(C.GP_ANSWER_FAILED)
	defer func() { C.gp_request_answer(r, result) }()
	defer func() {
		if failure := recover(); failure != nil { // the program must not end because of it
			result = C.GP_ANSWER_FAILED
			fail(r, "fault in the rewriter")
			log.Error().Interface("fault", failure).Msg("rewriting code failed")
		}
	}()
	source := Source{Address: uintptr(r.image), Bytes: int(r.image_bytes), SM: int(r.sm), Linked: bool(r.linked)}
	if r.path != nil {
		source.Path = C.GoString(r.path)
	}
	if r.options != nil {
		source.Options = C.GoString(r.options)
	}
	source.Key = *(*[32]byte)(unsafe.Pointer(&r.key))
	var (
		mapping Mapping
		link    *Link
		err     error
	)
	if r.what == C.GP_REQUEST_COPY {
		mapping, err = rewriter.Copy(source)
	} else {
		mapping, link, err = rewriter.Rewrite(source)
	}
	switch {
	case errors.Is(err, ErrNothing):
	case err != nil:
		fail(r, err.Error())
	case link != nil:
		C.gp_bridge_answer_link(r, C.uintptr_t(link.Address), C.uint64_t(link.Bytes), C.bool(link.Fatbin), unsafe.Pointer(&link.Key))
		result = C.GP_ANSWER_LINK
	default:
		r.memory, r.bytes, r.cached = mapping.Address, C.uint64_t(mapping.Bytes), C.bool(mapping.Cached)
		result = C.GP_ANSWER_DONE
	}
}

// ErrNothing is a Rewriter's where an image has no code for the GPU: nothing of it can run, and nothing is said.
var ErrNothing = errors.New("no code for the GPU")

func fail(r *C.struct_gp_request, reason string) {
	for i := range min(len(reason), len(r.reason)-1) {
		r.reason[i] = C.char(reason[i])
	}
}

// stoppable says whether kernels of this process are rewritten, once the driver is initialised.
func stoppable() bool { return bool(C.gp_blp_wanted()) }

// prepareDomains makes what contexts need whose kernels are stopped. The error is that of the last one that could not
// have it; later says that one is not initialised yet.
func prepareDomains() (later bool, err error) {
	for i := range C.GP_CONTEXTS {
		if !bool(C.gp_bridge_blp_missing(C.int(i))) {
			continue
		}
		var call *C.char
		result := C.gp_bridge_prepare_blp(C.int(i), &call)
		if result == contextIsDestroyed {
			C.gp_bridge_prepare_blp_later(C.int(i))
			later = true
		} else if result != 0 && !bool(C.gp_bridge_is_gone(result)) { // it ends meanwhile, or the process does
			err = fmt.Errorf("%s: CUDA error %d", C.GoString(call), int(result))
		}
	}
	return later, err
}

// watchWindows stops and resumes what this process has on a GPU, for as long as the process lives.
func watchWindows(gpu int) {
	runtime.LockOSThread()
	C.gp_bridge_watch_windows(C.int(gpu)) // for good in C: a goroutine would wait for a processor of the scheduler's
}
