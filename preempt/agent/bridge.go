package agent

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/../..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../../build/core.a -lpthread
// #include "preempt/far/calls.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	maxGPUs = C.GP_GPUS
)

// Lanes of calls (preempt/far/far.h), which start when they are needed.
const (
	laneOfMover = C.GP_LANE_MOVER
)

// lane has the program start the thread of a lane.
func lane(i int) error {
	if segment.Of != nil && !C.far_lane_open(C.uint32_t(i)) {
		return errThreads
	}
	return nil
}

func laneOf(gpu int) int      { return C.GP_LANE_AGENT + gpu }
func laneOfMeter(gpu int) int { return C.GP_LANE_METER + gpu }

// Images are the library's own modules: with gpreempt_hold, and with the kernels of fill.cu.
type Images struct{ Hold, Fill []byte }

// configure hands the settings to the C side. The images are copied; they live as long as the process.
func configure(config configs.Config, level int, images Images) error {
	C.far_set_clock(C.int64_t(segment.ClockAhead()))
	m := config.Mechanisms
	var settings C.struct_gp_bridge_settings_told
	setLevel(config, level)
	setLimits(config, segment.Limits{})
	switch m.Where(configs.Gate) {
	case configs.UnderMPS:
		settings.gate = C.GP_GATE_UNDER_MPS
	case configs.Anywhere:
		settings.gate = C.GP_GATE_ON
	}
	settings.hold = bit(holdWanted(config))
	settings.mps = bit(m.Use(configs.MPS))
	settings.chain = C.uint32_t(config.Hold.Chain)
	settings.hold_synchronize = bit(config.Hold.WhileSynchronizing)
	settings.hold_step_ns = C.uint64_t(config.Hold.StepUs * 1e3)
	settings.grace_min_ns = C.uint64_t(config.Window.GraceMinUs * 1e3)
	settings.grace_max_ns = C.uint64_t(config.Window.GraceMaxUs * 1e3)
	settings.grace_equals_ns = C.uint64_t(config.Window.GraceEqualsUs * 1e3)
	settings.lower_share = C.double(config.Share.MinBE)
	setObjective(config.Objective)
	if m.Use(configs.Timeslice) {
		settings.fair_us = C.uint64_t(config.Timeslice.FairUs)
	}
	C.far_settings(&settings)
	if !hand(C.GP_IMAGE_HOLD, images.Hold) || !hand(C.GP_IMAGE_FILL, images.Fill) {
		return errNoMemory
	}
	if settings.mps != 0 && level == lowestLevel {
		C.far_lower_client()
	}
	return nil
}

// setObjective tells how slow the process may be, which may change that later (gpreempt_objective).
func setObjective(o configs.Objective) {
	w := wish(o)
	C.far_set_objective(&w, C.uint32_t(o.OverSteps), C.double(o.MinSlotMs*1e6), C.double(o.MaxSlotMs*1e6))
}

func wish(o configs.Objective) C.struct_gp_wish {
	return C.struct_gp_wish{C.double(o.Slowdown), C.double(o.StepMs * 1e6), C.double(o.FirstMs * 1e6), C.double(o.Percentile / 100)}
}

// tellObjective tells what others say instead; says is false where they say nothing.
func tellObjective(o configs.Objective, says bool) {
	w := wish(o)
	C.far_tell_objective(C.bool(says), &w)
}

// readObjective is the objective in force.
func readObjective() (o configs.Objective) {
	var w C.struct_gp_wish
	if C.far_read_objective(&w) {
		o.Slowdown, o.StepMs, o.FirstMs, o.Percentile = float64(w.slowdown), float64(w.step_ns)/1e6, float64(w.first_ns)/1e6, float64(w.percentile)*100
	}
	return o
}

// setLevel tells what level the process has, from now on.
func setLevel(config configs.Config, level int) {
	C.far_set_level(C.uint32_t(level), bit(config.Mechanisms.Use(configs.Turns) && level == lowestLevel))
}

// maxHoldNs is the least of what the settings and a broker say.
func maxHoldNs(config configs.Config, l segment.Limits) uint64 {
	if hold := config.Hold.MaxMs * 1e6; l.MaxHoldUs == 0 || hold < uint64(l.MaxHoldUs)*1e3 {
		return hold
	}
	return uint64(l.MaxHoldUs) * 1e3
}

// shareOf is the least part of the GPU's time that this process gets while higher levels work.
func shareOf(config configs.Config, l segment.Limits) float64 {
	return min(cmp.Or(l.Share, config.Share.MinBE), maxOf(config, l))
}

// lessOf is the less of two limits, of which 0 is none.
func lessOf[T uint64 | float64](a, b T) T {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// setLimits tells what the settings and a broker say, from now on: the least of both, but for the share.
func setLimits(config configs.Config, l segment.Limits) {
	memory := lessOf(config.Memory.Limit.MB, uint64(l.MemoryMB)) << 20
	part := lessOf(config.Memory.Limit.Part, l.MemoryPart)
	C.far_set_limits(C.uint64_t(maxHoldNs(config, l)), C.uint64_t(memory), C.double(part), C.double(shareOf(config, l)))
}

var errNoMemory, errThreads = errors.New("out of memory"), errors.New("no more threads can be started")

// hand gives the program an image, which it keeps as long as it lives; false: it has no memory.
func hand(which C.uint32_t, image []byte) bool {
	const most = 32 << 10 // bytes of a call
	for at := 0; at < len(image); at += most {
		part := image[at:min(at+most, len(image))]
		if !C.far_image(which, C.uint32_t(at), unsafe.Pointer(&part[0]), C.uint32_t(len(part)), C.uint32_t(len(image))) {
			return false
		}
	}
	return true
}

// holdUnwanted returns why no hold can be used in this process; "" if one can.
// visibleDevices is what the program tells the driver of the GPUs that it may use.
func visibleDevices() string {
	var text [C.GP_FAR_TEXT]C.char
	C.far_environment(C.GP_VISIBLE_DEVICES, &text[0])
	return C.GoString(&text[0])
}

func holdUnwanted() string {
	var text [C.GP_FAR_TEXT]C.char
	if !C.far_hold_unwanted(&text[0]) {
		return ""
	}
	return C.GoString(&text[0])
}

func holdWanted(config configs.Config) bool {
	return config.Mechanisms.Use(configs.Hold) && holdUnwanted() == ""
}

func bit(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// Install has calls of the program reach the core; sockets: those of libc, too.
func Install(sockets bool) { C.far_install(C.bool(sockets)) }

// startThreads starts the threads of the core that live as long as the process; false: there are none.
func startThreads(hints, suspends bool) bool {
	return bool(C.far_start_threads(C.bool(hints), C.bool(suspends)))
}

// startWanted starts further threads of the core, which something has happened for.
func startWanted() { C.far_start_wanted() }

// joined says whether the process takes part: the driver has not locked it, and is not about to.
func joined(gpu int) bool { return C.far_membership(C.int(gpu)) == C.GP_JOINED }

// rejoined counts how often the process has joined again, or may have.
func rejoined(gpu int) uint32 { return uint32(C.far_rejoined(C.int(gpu))) }

// waitsBehind is a number that changes with each operation of the process on a GPU, while a call waits for the driver; 0: none does.
func waitsBehind(i int) uint64 { return uint64(C.far_waits_behind(C.int(i))) }

// doubt has the driver asked for the process's state.
func doubt(gpu int) { C.far_doubt(C.int(gpu)) }

// renew keeps what is off the runlist of a GPU there for another while. It returns false once after the while was over.
func renew(gpu int) bool { return bool(C.far_renew(C.int(gpu))) }

// linesWritten is how many such lines earlier helpers have written.
func linesWritten() uint32 { return uint32(C.far_log_written()) }

// logLine is the next line that a thread of the program left for the log, after so many.
func logLine(written uint32) (line string, ok bool) {
	var text [C.GP_FAR_TEXT]C.char
	ok = bool(C.far_log_next(C.uint32_t(written), &text[0]))
	return C.GoString(&text[0]), ok
}

func gpuKnown(i int) bool { return bool(C.far_gpu_known(C.int(i))) }
func rescind(i int)       { C.far_gpu_rescind(C.int(i)) }
func busy(i int) bool     { return bool(C.far_gpu_busy(C.int(i))) }

// gpuID is what the process shares with others: a GPU, or a slice. whole is the UUID of the GPU in any case.
func gpuID(i int) (id segment.GPU, whole [16]byte) {
	var ids [32]C.uint8_t
	C.far_gpu_id(C.int(i), &ids[0])
	for j := range whole {
		id.UUID[j], whole[j] = byte(ids[j]), byte(ids[16+j])
	}
	id.Slice = id.UUID != whole
	return id, whole
}

func gpuOf(i int) segment.GPU {
	id, _ := gpuID(i)
	return id
}

// busyNs is for how long this process has had unfinished work on the GPU, in nanoseconds.
func busyNs(i int) uint64 { return uint64(C.far_gpu_busy_ns(C.int(i))) }

// underMPS says whether contexts on the GPU are shared through an MPS server.
func underMPS(i int) bool { return bool(C.far_gpu_mps(C.int(i))) }

// worked says whether anything was submitted to the GPU.
func worked(i int) bool { return bool(C.far_gpu_worked(C.int(i))) }

// holdFailed says whether the driver refused the launch of a hold.
func holdFailed(i int) bool { return bool(C.far_gpu_hold_failed(C.int(i))) }

// probe asks for a turn although no work is known, or takes the request back.
func probe(i int, on bool) { C.far_gpu_probe(C.int(i), C.bool(on)) }

// countBLP copies the counters of block-level preemption to where others see them.
func countBLP(i int) { C.far_gpu_count_blp(C.int(i)) }

// refused is the driver's function that last made a domain be given up, and what it returned.
func refused(i int) (call string, result int) {
	var code C.uint32_t
	var text [C.GP_FAR_TEXT]C.char
	C.far_gpu_refused(C.int(i), &code, &text[0])
	return C.GoString(&text[0]), int(code)
}

// setPeers tells who else is on the GPU, and how many count as being there; turnPeers is how many turns are taken with.
func setPeers(i int, p, counted peers, turnPeers int) {
	count := func(slots uint64) C.uint32_t { return C.uint32_t(bits.OnesCount64(slots)) }
	told := C.struct_gp_bridge_peers{count(counted.lower), C.uint32_t(turnPeers), count(counted.between), count(counted.stoppable),
		C.uint64_t(p.lower), C.uint64_t(p.same), C.uint64_t(p.higher)}
	C.far_gpu_peers(C.int(i), &told)
}

// learntSwitch returns what a switch away from a lower level takes on a GPU, in nanoseconds, 0 until that is learnt. What others say (0:
// nothing) counts until then.
func learntSwitch(i int, toldNs uint64) uint64 {
	return uint64(C.far_gpu_switch_ns(C.int(i), C.uint64_t(toldNs)))
}

func arm(on bool) bool { return bool(C.far_set_armed(bit(on))) }

// refusals has a bit for each context that the driver refused something which was not told.
func refusals() uint64 { return uint64(C.far_refusals()) }

// refusedHold returns why a context could not have a hold, once.
func refusedHold(context int) error {
	var result C.uint32_t
	var text [C.GP_FAR_TEXT]C.char
	if !C.far_hold_refused(C.int(context), &result, &text[0]) {
		return nil
	}
	return refusal(&text[0], result)
}

// refusedBLP returns why the kernels of a context cannot be stopped, once. That a context or the process ends is no reason.
func refusedBLP(context int) error {
	var result C.uint32_t
	var text [C.GP_FAR_TEXT]C.char
	if !bool(C.far_blp_refused(C.int(context), &result, &text[0])) || bool(C.far_is_gone(C.int(result))) {
		return nil
	}
	return refusal(&text[0], result)
}

func refusal(call *C.char, result C.uint32_t) error {
	return fmt.Errorf("%s: CUDA error %d", C.GoString(call), int(result))
}

// TSG is a compute channel group of this process.
type TSG struct {
	fd                                int
	client, handle, device, subdevice uint32
	resets                            uint32 // counts controls of libcuda's own, which may have undone ours
	bornNs, madeNs                    uint64 // when libcuda made it; when it last did something to make it
	changedNs                         uint64 // when libcuda last did something to it
}

// tsgs lists the compute TSGs that libcuda has made.
func tsgs(gpu int) []TSG {
	var raw [64]C.struct_gp_tsg
	n := min(int(C.far_tsgs(C.int(gpu), &raw[0], C.uint32_t(len(raw)))), len(raw))
	list := make([]TSG, 0, n)
	for _, r := range raw[:n] {
		list = append(list, TSG{fd: int(r.fd), client: uint32(r.client), handle: uint32(r.handle), device: uint32(r.device), subdevice: uint32(r.subdevice), resets: uint32(r.resets), bornNs: uint64(r.born_ns), madeNs: uint64(r.made_ns), changedNs: uint64(r.changed_ns)})
	}
	return list
}

// StatusError is the status with which the resource manager refused a control (nvstatuscodes.h), or -1
// where the ioctl itself failed.
type StatusError int

// passing says whether a named object may be being freed or made: one channel of a TSG that libcuda takes apart is enough.
func (e StatusError) passing() bool {
	switch e {
	case NV_ERR_INVALID_CHANNEL, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT, NV_ERR_OBJECT_NOT_FOUND:
		return true
	}
	return false
}

func (e StatusError) Error() string { return fmt.Sprintf("status %#x", int(e)) }

// schedule puts the TSG's channels on the runlist of the GPU or takes them off, preempting what they run.
func (d driverDevice) schedule(t TSG, on bool) error {
	if status := C.far_runlist_set(C.int(d), C.uint32_t(t.client), C.uint32_t(t.handle), C.bool(on)); status != 0 {
		return fmt.Errorf("schedule TSG %#x (%t): %w", t.handle, on, StatusError(status))
	}
	return nil
}

func control[P any](gpu int, t TSG, object, command uint32, parameters *P) error {
	status := C.far_control(C.int(gpu), C.int(t.fd), C.uint32_t(t.client), C.uint32_t(object), C.uint32_t(command),
		unsafe.Pointer(parameters), C.uint32_t(unsafe.Sizeof(*parameters)))
	if status != 0 {
		return StatusError(status)
	}
	return nil
}
