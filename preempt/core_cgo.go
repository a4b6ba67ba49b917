// Package preempt carries out preemption: it finds the TSGs of its process and sets their timeslices,
// opens and closes windows, launches and releases holds, gates submissions, and takes turns with peers.
//
// What happens at a launch is C (window.c, hold.c) and takes no lock while a window is open. Everything
// slower is done by two kinds of goroutines: the watcher, which closes windows, and one agent a GPU.
package preempt

// #cgo CFLAGS: -std=gnu11 -O2 -Wall
// #cgo LDFLAGS: -lpthread
// #include <stdlib.h>
// #include <sys/mman.h>
// #include <sys/prctl.h>
// #include "core.h"
//
// // cgo cannot read _Atomic fields.
// static uint32_t events(void) { return gp_events; }
// static void wait_events(uint32_t seen, uint64_t timeout) { gp_futex_wait(&gp_events, seen, timeout, false); }
// static void watch_forever(void)
// {
//	for (;;) {
//		uint32_t seen = gp_wake;
//		uint64_t next = gp_watch(); // 0: nothing until a window opens
//		gp_futex_wait(&gp_wake, seen, next, false);
//	}
// }
// // Unlike C.malloc, which ends the process, it fails.
// static void *allocate(size_t size) { return malloc(size); }
// static void *call_symbol(void *lookup, const char *name) { return ((void *(*)(const char *))lookup)(name); }
// static void no_timer_slack(void) { prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); }
// static int gpu_known(int i) { return gp_gpu[i].known; }
// static void gpu_attach(int i, void *segment, uint32_t slot)
// {
//	gp_gpu[i].slot = slot;
//	gp_gpu[i].segment = segment;
//	gp_gpu_attached(&gp_gpu[i]);
// }
// // Memory that nobody else has, for a process that has lost its place.
// static void *nobodys_memory(void)
// {
//	void *memory = mmap(NULL, sizeof(struct gp_segment), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
//	return memory == MAP_FAILED ? NULL : memory;
// }
// static int gpu_move(int i, void *memory, uint32_t slot, int owned) { return gp_gpu_move(&gp_gpu[i], memory, slot, owned); }
// static uint64_t gpu_busy_ns(int i) { return gp_gpu_busy_ns(&gp_gpu[i]); }
// static void gpu_probe(int i, int on) { gp_gpu_probe(&gp_gpu[i], on); }
// static const char *gpu_refused(int i, uint32_t *result)
// {
//	*result = gp_gpu[i].refusal;
//	return gp_gpu[i].refused;
// }
// static int gpu_worked(int i) { return gp_gpu[i].worked; }
// static int gpu_mps(int i) { return gp_gpu[i].mps; }
// static void copy_counters(_Atomic uint64_t *to, const _Atomic uint64_t *from, size_t bytes)
// {
//	for (size_t i = 0; i < bytes / sizeof *to; i++)
//		to[i] = from[i];
// }
// static void gpu_count_blp(int i)
// {
//	struct gp_slot *slot = gp_own_slot(&gp_gpu[i]);
//	if (!slot)
//		return;
//	copy_counters(&slot->kernels.images, &gp_kernels.images, sizeof gp_kernels);
//	copy_counters(&slot->stop.launches, &gp_gpu[i].stops.launches, sizeof slot->stop);
// }
// static void gpu_peers(int i, uint32_t lower_peers, uint32_t turn_peers, uint32_t between, uint32_t stoppable, uint64_t lower, uint64_t same, uint64_t higher)
// {
//	bool news = gp_gpu[i].higher != higher;
//	gp_gpu[i].stoppable = stoppable;
//	gp_gpu[i].lower = lower;
//	gp_gpu[i].same = same;
//	gp_gpu[i].higher = higher;
//	gp_gpu[i].between = between;
//	gp_gpu[i].ignored &= higher;
//	gp_gpu[i].turn_peers = turn_peers;
//	gp_gpu[i].lower_peers = lower_peers;
//	if (news && gp_gpu[i].segment) // the watcher of windows looks at it too
//		gp_ring_windows(gp_gpu[i].segment);
// }
// // Taken in C: &C.gp_context[i] would be the address of a copy.
// static CUresult prepare_hold(int i, const char **call) { return gp_hold_prepare(&gp_context[i], call); }
// static void rescind(int gpu) { gp_gpu_rescind(&gp_gpu[gpu]); }
// static int context_new(int i) { return gp_context[i].handle && !gp_context[i].prepared; }
// static void context_prepared(int i) { gp_context[i].prepared = 1; }
// static void context_unprepared(int i) { gp_context[i].prepared = 0; gp_context[i].hold.state = GP_HOLD_ABSENT; }
// static int contexts_busy(int gpu)
// {
//	for (int i = 0; i < GP_CONTEXTS; i++)
//		if (gp_context[i].handle && gp_context[i].gpu == &gp_gpu[gpu] && gp_context[i].open)
//			return 1;
//	return 0;
// }
// // One bit of the word; rewritten code has another (load.c).
// static void set_armed(void *armed, uint32_t on)
// {
//	if (on)
//		__atomic_fetch_or((uint32_t *)armed, 1, __ATOMIC_SEQ_CST);
//	else
//		__atomic_fetch_and((uint32_t *)armed, ~1u, __ATOMIC_SEQ_CST);
// }
// // The driver's symbols are looked up by their newest ABI names.
// static const char *resolve(void *lookup)
// {
// #define NEED(field, name) do { gp_driver.field = call_symbol(lookup, name); if (!gp_driver.field) return name; } while (0)
//	NEED(cuCtxGetCurrent, "cuCtxGetCurrent");
//	NEED(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
//	NEED(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
//	NEED(cuCtxGetDevice, "cuCtxGetDevice");
//	NEED(cuDeviceGetUuid, "cuDeviceGetUuid");
//	NEED(cuDeviceGetAttribute, "cuDeviceGetAttribute");
//	NEED(cuModuleLoadData, "cuModuleLoadData");
//	NEED(cuModuleGetFunction, "cuModuleGetFunction");
//	NEED(cuFuncGetAttribute, "cuFuncGetAttribute");
//	NEED(cuFuncSetAttribute, "cuFuncSetAttribute");
//	NEED(cuStreamCreateWithPriority, "cuStreamCreateWithPriority");
//	NEED(cuStreamQuery, "cuStreamQuery");
//	NEED(cuMemHostAlloc, "cuMemHostAlloc");
//	NEED(cuLaunchKernel, "cuLaunchKernel");
//	NEED(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
// #undef NEED
//	gp_driver.cuKernelGetFunction = call_symbol(lookup, "cuKernelGetFunction"); // CUDA 12
//	gp_driver.cuCtxGetStreamPriorityRange = call_symbol(lookup, "cuCtxGetStreamPriorityRange");
//	gp_driver.cuStreamGetPriority = call_symbol(lookup, "cuStreamGetPriority");
//	gp_driver.cuStreamWriteValue32 = call_symbol(lookup, "cuStreamWriteValue32_v2"); // CUDA 11.7
//	gp_driver.cuStreamIsCapturing = call_symbol(lookup, "cuStreamIsCapturing");
//	gp_driver.cuStreamGetCtx = call_symbol(lookup, "cuStreamGetCtx");
//	gp_driver.cuStreamSetAttribute = call_symbol(lookup, "cuStreamSetAttribute"); // CUDA 11
//	gp_driver.cuPointerGetAttributes = call_symbol(lookup, "cuPointerGetAttributes");
//	gp_driver.cuGraphGetNodes = call_symbol(lookup, "cuGraphGetNodes");
//	gp_driver.cuGraphNodeGetType = call_symbol(lookup, "cuGraphNodeGetType");
//	gp_driver.cuGraphChildGraphNodeGetGraph = call_symbol(lookup, "cuGraphChildGraphNodeGetGraph");
//	gp_driver.cuGraphKernelNodeGetAttribute = call_symbol(lookup, "cuGraphKernelNodeGetAttribute"); // CUDA 11
//	if (gp_driver.cuGraphGetNodes && gp_driver.cuGraphNodeGetType && gp_driver.cuGraphChildGraphNodeGetGraph &&
//	    gp_driver.cuGraphKernelNodeGetAttribute)
//		gp_driver.cuGraphKernelNodeGetParams = call_symbol(lookup, "cuGraphKernelNodeGetParams_v2"); // CUDA 12
//	return NULL;
// }
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"unsafe"

	"github.com/gpreempt/gpreempt/configs"
)

const maxGPUs = C.GP_GPUS

// Driver is what the core needs of the interception layer.
type Driver struct {
	Symbol unsafe.Pointer // void *(*)(const char *): a function of the driver, or NULL
	Armed  unsafe.Pointer // _Atomic uint32_t: nonzero while submissions must be reported

	Rewriter Rewriter
}

// Images are the library's own modules: with gpreempt_hold, and with the kernels of fill.cu.
type Images struct{ Hold, Fill []byte }

// configure hands the settings to the C side. The images are copied; they live as long as the process.
func configure(config configs.Config, level int, driver Driver, images Images) error {
	if missing := C.resolve(driver.Symbol); missing != nil {
		return fmt.Errorf("look up %s in the driver: not there", C.GoString(missing))
	}
	m := config.Mechanisms
	settings := &C.gp_settings
	settings.level = C.uint32_t(level)
	switch {
	case m.Auto:
		settings.gate = C.GP_GATE_UNDER_MPS
	case m.Gate:
		settings.gate = C.GP_GATE_ON
	}
	settings.hold = bit(holdWanted(config))
	settings.turns = bit((m.Auto || m.Turns) && level == lowestLevel)
	settings.mps = bit(m.Auto || m.MPS)
	settings.chain = C.uint32_t(config.Hold.Chain)
	settings.max_hold_ns = C.uint64_t(config.Hold.MaxMs * 1e6)
	settings.hold_step_ns = C.uint64_t(config.Hold.StepUs * 1e3)
	settings.grace_min_ns = C.uint64_t(config.Window.GraceMinUs * 1e3)
	settings.grace_max_ns = C.uint64_t(config.Window.GraceMaxUs * 1e3)
	settings.lower_share = C.double(config.Share.MinBE)
	settings.hold_image, settings.fill_image = keep(images.Hold), keep(images.Fill)
	if settings.hold_image == nil || settings.fill_image == nil {
		return errNoMemory
	}
	if settings.mps != 0 && level == lowestLevel {
		C.gp_mps_lower_client()
	}
	return nil
}

var errNoMemory = errors.New("out of memory")

// keep copies to memory that lives as long as the process; nil where there is none.
func keep(image []byte) unsafe.Pointer {
	memory := C.allocate(C.size_t(len(image)))
	if memory != nil {
		copy(unsafe.Slice((*byte)(memory), len(image)), image)
	}
	return memory
}

// holdUnwanted is why no hold can be used in this process, "" where it can.
func holdUnwanted() string { return C.GoString(C.gp_hold_unwanted()) }

func holdWanted(config configs.Config) bool {
	return (config.Mechanisms.Auto || config.Mechanisms.Hold) && holdUnwanted() == ""
}

func bit(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// Hooks is the const struct gp_hooks * for the interception layer.
func Hooks() unsafe.Pointer { return unsafe.Pointer(C.gp_core_hooks()) }

// watch closes windows for as long as the process lives.
func watch() {
	runtime.LockOSThread()
	// Windows are closed to the microsecond: the default slack of 50 us would be GPU time lost.
	C.no_timer_slack()
	// For good in C: a goroutine that comes back from a wait waits again, for a processor of the scheduler's, and
	// windows closed milliseconds late.
	C.watch_forever()
}

func eventsSeen() uint32 { return uint32(C.events()) }

// waitEvents waits for the next event, or for the limit in nanoseconds (0: none).
func waitEvents(seen uint32, limit uint64) { C.wait_events(C.uint32_t(seen), C.uint64_t(limit)) }

func gpuKnown(i int) bool { return C.gpu_known(C.int(i)) != 0 }
func rescind(i int)       { C.rescind(C.int(i)) }
func busy(i int) bool     { return C.contexts_busy(C.int(i)) != 0 }

func gpuUUID(i int) (uuid [16]byte) {
	for j := range uuid {
		uuid[j] = byte(C.gp_gpu[i].uuid[j])
	}
	return uuid
}

func attachGPU(i int, segment unsafe.Pointer, slot int) {
	C.gpu_attach(C.int(i), segment, C.uint32_t(slot))
}

// moveGPU puts other memory, mapped for this alone, in the place of a GPU's segment; owned says whether the slot there is
// still this process's.
func moveGPU(i int, memory unsafe.Pointer, slot int, owned bool) bool {
	return C.gpu_move(C.int(i), memory, C.uint32_t(slot), C.int(bit(owned))) != 0
}

// isolateGPU lets this process talk to itself: its slot is another's.
func isolateGPU(i int) bool {
	memory := C.nobodys_memory()
	return memory != nil && moveGPU(i, memory, 0, false)
}

// busyNs is how long this process had unfinished work on the GPU, ever.
func busyNs(i int) uint64 { return uint64(C.gpu_busy_ns(C.int(i))) }

// underMPS says whether contexts on the GPU are shared through an MPS server.
func underMPS(i int) bool { return C.gpu_mps(C.int(i)) != 0 }

// worked says whether anything was submitted to the GPU.
func worked(i int) bool { return C.gpu_worked(C.int(i)) != 0 }

// probe asks for a turn although no work is known, or takes the request back.
func probe(i int, on bool) { C.gpu_probe(C.int(i), C.int(bit(on))) }

// countBLP copies the counters of block-level preemption to where others see them.
func countBLP(i int) { C.gpu_count_blp(C.int(i)) }

// refused is the driver's function that last made a domain be given up, and what it returned.
func refused(i int) (call string, result int) {
	var code C.uint32_t
	name := C.gpu_refused(C.int(i), &code)
	return C.GoString(name), int(code)
}

// setPeers tells who else is on the GPU; turnPeers is how many of them turns are taken with.
func setPeers(i int, p peers, turnPeers int) {
	count := func(slots uint64) C.uint32_t { return C.uint32_t(bits.OnesCount64(slots)) }
	C.gpu_peers(C.int(i), count(p.lower), C.uint32_t(turnPeers), count(p.between), count(p.stoppable), C.uint64_t(p.lower), C.uint64_t(p.same), C.uint64_t(p.higher))
}

func arm(driver Driver, on bool) { C.set_armed(driver.Armed, bit(on)) }

// contextIsDestroyed (cuda.h) is also what a retained primary context answers before it is initialised.
const contextIsDestroyed = 709

// prepareHolds loads the hold into contexts that lack it. The error is that of the last one that could
// not; later says that one is not initialised yet.
func prepareHolds() (later bool, err error) {
	for i := range C.GP_CONTEXTS {
		if C.context_new(C.int(i)) == 0 {
			continue
		}
		C.context_prepared(C.int(i)) // first: a context that replaces it meanwhile is new again
		var call *C.char
		result := C.prepare_hold(C.int(i), &call)
		if result == contextIsDestroyed {
			C.context_unprepared(C.int(i))
			later = true
		} else if result != 0 {
			err = fmt.Errorf("%s: CUDA error %d", C.GoString(call), int(result))
		}
	}
	return later, err
}

// TSG is a compute channel group of this process.
type TSG struct {
	fd                                int
	client, handle, device, subdevice uint32
	resets                            uint32 // libcuda's own controls, which may have undone ours
	changedNs                         uint64 // when libcuda last did something to it
	channels                          []uint32
}

// tsgs lists the compute TSGs that libcuda has made.
func tsgs() []TSG {
	var raw [64]C.struct_gp_tsg
	n := min(int(C.gp_rm_tsgs(&raw[0], C.uint32_t(len(raw)))), len(raw))
	list := make([]TSG, 0, n)
	for _, r := range raw[:n] {
		t := TSG{fd: int(r.fd), client: uint32(r.client), handle: uint32(r.handle), device: uint32(r.device), subdevice: uint32(r.subdevice), resets: uint32(r.resets), changedNs: uint64(r.changed_ns)}
		for _, c := range r.channel[:r.channels] {
			t.channels = append(t.channels, uint32(c))
		}
		list = append(list, t)
	}
	return list
}

// StatusError is the status with which the resource manager refused a control (nvstatuscodes.h), or -1
// where the ioctl itself failed.
type StatusError int

// passing says whether what was named may just be freed, or made: one channel of a TSG that libcuda takes apart is enough.
func (e StatusError) passing() bool {
	switch e {
	case NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_OBJECT_NOT_FOUND:
		return true
	}
	return false
}

func (e StatusError) Error() string { return fmt.Sprintf("status %#x", int(e)) }

func control[P any](t TSG, object, command uint32, parameters *P) error {
	// No copy in C memory, which may lack where a process must come back to the GPU. The parameters hold no pointers.
	status := C.gp_rm_control(C.int(t.fd), C.uint32_t(t.client), C.uint32_t(object), C.uint32_t(command),
		unsafe.Pointer(parameters), C.uint32_t(unsafe.Sizeof(*parameters)))
	if status != 0 {
		return StatusError(status)
	}
	return nil
}
