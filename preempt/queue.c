// queue.c - launches for which the program's thread would wait are made later, by a thread of ours.
//
// The log of block-level preemption bounds what the driver has of a stream, so that a stop has little to drain (blp/log.c). A program that
// runs ahead of the GPU by more would wait at each launch. The GPU would wait for the program in turn, where its launches come more slowly
// than kernels end. Training beside an idle service lost an eighth so, on an H200 under MPS (665c9a06). A launch that finds no room goes into
// this queue instead, and the program goes on. The feeder makes the queue's launches, as the program's thread would.
//
// The queue has launches and memsets of one stream. Another call comes behind those that were queued as it began (settle), unless it
// concerns other streams only: kernels of one stream may wait for those of another. A question gets its answer at once. Calls within a
// call, as a profiler's callbacks make them, neither wait nor are queued: the call around them may have what the feeder waits for.
//
// Writers: program threads append, under lock; the feeder takes an entry out once it has made the launch. Readers: program threads look at
// count without the lock. Pairing: count rises under lock, before the thread that appended returns to the program. Without that a call that
// comes behind a queued launch in the program could overtake it.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BYTES = 1 << 20, // of entries
	MOST_ENTRIES = 1024,
	MOST_ARGUMENTS = 8192, // bytes of one launch
	ALIGNED = 16,
};

struct entry {
	uint32_t bytes; // of all of it
	bool skipped;   // only up to the end of the ring
	enum gp_work work;
	union {
		struct {
			struct gp_launch launch;
			const struct gp_code *code;
		};
		typeof(((struct gp_operation *)0)->memory) memory;
	};
	_Alignas(ALIGNED) char arguments[]; // those of the kernel, then its attributes
};

static struct {
	pthread_mutex_t lock; // of what follows
	pthread_cond_t filled, taken;
	pthread_t feeder;
	// OFF -> OPEN: the feeder runs. OFF, OPEN -> ENDED: nothing is queued any more. ENDED -> LEFT: the process ends, and the feeder makes nothing.
	_Atomic enum { OFF, OPEN, ENDED, LEFT } state;
	_Atomic uint32_t count; // of entries, with the one whose launch is being made
	CUcontext context;      // of all of them
	CUstream stream;
	bool blocking;       // the stream is ordered with the legacy stream
	uint64_t head, tail; // bytes ever
	uint64_t appended;   // entries, ever
	_Alignas(ALIGNED) char ring[BYTES];
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .taken = PTHREAD_COND_INITIALIZER};
static _Atomic CUresult error; // of a launch that was queued: the next launch, or wait, returns it
GP_OF_THREAD bool answered;    // the calling thread's question: there is work

static struct entry *entry_at(uint64_t at) { return (struct entry *)&queue.ring[at % BYTES]; }

static bool is_feeder(void) { return pthread_equal(pthread_self(), queue.feeder); }

static bool is_nothing_to_wait_for(void)
{
	return !queue.count || queue.state == LEFT || is_feeder() || gp_blp_is_nested();
}

// Waits until the launches that are queued now have been made.
static void settle(void)
{
	if (is_nothing_to_wait_for())
		return;
	pthread_mutex_lock(&queue.lock);
	for (uint64_t upto = queue.appended; queue.appended - queue.count < upto;)
		gp_wait_changed(&queue.taken, &queue.lock, NULL);
	pthread_mutex_unlock(&queue.lock);
}

static bool is_default(CUstream stream) { return stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD; }

// Whether a stream is ordered with the legacy stream. False: the driver does not know the stream.
static bool ask_blocking(CUstream stream, bool *blocking)
{
	unsigned flags = 0;
	bool known = is_default(stream) || !gp_driver.cuStreamGetFlags(stream, &flags);
	*blocking = !(flags & CU_STREAM_NON_BLOCKING);
	return known;
}

// Whether a wait for the stream is one for entries of the queue, too; or, for work, whether the driver puts new work of the stream behind them.
// Work of a blocking stream that is behind entries of the legacy stream waited for these as it came.
static bool concerns(CUstream stream, bool work)
{
	CUcontext context = gp_current_handle();
	bool blocking = false;
	if (work)
		ask_blocking(stream, &blocking);
	pthread_mutex_lock(&queue.lock);
	bool here = context == queue.context || !is_default(stream); // a default stream is the current context's
	bool same = stream == queue.stream, legacy = stream == GP_STREAM_LEGACY && queue.blocking;
	bool behind = queue.count && here && (same || legacy || (queue.stream == GP_STREAM_LEGACY && blocking));
	pthread_mutex_unlock(&queue.lock);
	return behind;
}

static void settle_stream(CUstream stream, bool work)
{
	if (!is_nothing_to_wait_for() && concerns(stream, work))
		settle();
}

// Bytes of an entry; 0: the operation cannot be made later.
static uint32_t bytes_of(const struct gp_operation *o, CUcontext context, const struct gp_code **code)
{
	const struct gp_launch *l = &o->launch;
	size_t bytes = sizeof(struct entry);
	if (o->work == GP_KERNEL) {
		if (o->joint || !(*code = gp_blp_takes_later(context, o->stream, l)))
			return 0;
		bytes += (*code)->bytes + ALIGNED + l->attribute_count * sizeof *l->attributes;
	} else if (o->memory.height != 1 || !gp_blp_fills_later(context, o)) {
		return 0;
	}
	return bytes > MOST_ARGUMENTS ? 0 : (uint32_t)(bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static size_t attributes_at(const struct gp_code *code) { return (code->bytes + ALIGNED - 1u) / ALIGNED * ALIGNED; }

// Makes an entry of so many bytes at the head. The lock is held.
static struct entry *append(uint32_t bytes)
{
	uint32_t left = BYTES - (uint32_t)(queue.head % BYTES);
	if (left < bytes) {
		entry_at(queue.head)->bytes = left; // the end of the ring may have no room for more of an entry
		entry_at(queue.head)->skipped = true;
		queue.head += left;
	}
	struct entry *e = entry_at(queue.head);
	e->bytes = bytes;
	e->skipped = false;
	queue.head += bytes;
	queue.appended++;
	queue.count++;
	pthread_cond_signal(&queue.filled);
	return e;
}

static void fill_in(struct entry *e, const struct gp_operation *o, const struct gp_code *code)
{
	e->work = o->work;
	if (o->work == GP_MEMSET) {
		e->memory = o->memory;
		return;
	}
	struct gp_launch *l = &e->launch;
	*l = o->launch;
	e->code = code;
	gp_blp_pack(code, l->parameters, l->extra, e->arguments);
	char *attributes = e->arguments + attributes_at(code);
	memcpy(attributes, l->attributes, l->attribute_count * sizeof *l->attributes);
	l->attributes = (struct gp_launch_attribute *)attributes;
	l->parameters = l->extra = NULL;
}

static bool has_room(uint32_t bytes)
{
	uint64_t used = queue.head - queue.tail;
	return queue.count < MOST_ENTRIES &&
	       used + 2 * bytes + ALIGNED < BYTES; // with what is skipped at the end: less than bytes
}

// A thread of another stream does not wait for room: the queue's kernels may wait for what that thread launches.
static bool is_of_queue(CUcontext context, CUstream stream)
{
	return queue.context == context && queue.stream == stream;
}

static pid_t process; // that has the exit handler; 0: none has
static void empty_at_exit(void);
static void register_exit(void) { process = atexit(empty_at_exit) ? 0 : getpid(); }

// The program would have waited at its last launch. Without a bound it might be for a kernel that never ends, which an exit ends.
static void empty_at_exit(void)
{
	static const uint64_t MOST_NS = 2000000000, NAP_NS = 1000000;
	if (getpid() != process) // in a forked child
		return;
	queue.state = ENDED;
	for (uint64_t end = gp_now_ns() + MOST_NS; queue.count && gp_now_ns() < end;)
		gp_nap(NAP_NS);
	queue.state = LEFT; // whatever else runs as the process ends waits for nothing here
}

// Registered behind the driver's exit handler, to run before it.
static bool empties_at_exit(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, register_exit);
	return process;
}

// The queue takes the operation, which its thread would make now with a wait, or which comes behind others there. False: it is to be made now.
static bool take(struct gp_operation *o)
{
	if (queue.state != OPEN || gp_settings.level != GP_LEVELS - 1 || o->stream == GP_STREAM_PER_THREAD ||
	    (!queue.count && !gp_blp_has_work()) || gp_blp_is_nested())
		return false;
	CUcontext context = gp_current_handle();
	const struct gp_code *code = NULL;
	if (!context || gp_is_captured(o->stream) || (gp_capturing() && o->stream == GP_STREAM_LEGACY))
		return false;
	if (!queue.count && !gp_blp_is_full(context, o->stream))
		return false;
	uint32_t bytes = bytes_of(o, context, &code);
	bool blocking;
	if (!bytes || !ask_blocking(o->stream, &blocking) || !empties_at_exit())
		return false;
	pthread_mutex_lock(&queue.lock);
	while (queue.state == OPEN && queue.count && is_of_queue(context, o->stream) && !has_room(bytes))
		gp_wait_changed(&queue.taken, &queue.lock, NULL);
	if (!queue.count) {
		queue.context = context;
		queue.stream = o->stream;
		queue.blocking = blocking;
	}
	bool takes = queue.state == OPEN && is_of_queue(context, o->stream);
	if (takes)
		fill_in(append(bytes), o, code);
	pthread_mutex_unlock(&queue.lock);
	return takes;
}

// Whether an operation may come behind work of any stream. The driver waits for the whole context while it loads the code of a kernel, or of a
// graph's kernels. A copy between two devices, on a default stream of one, comes behind work of both.
static bool concerns_all(const struct gp_operation *o)
{
	switch (o->work) {
	case GP_KERNEL: return queue.count && gp_blp_may_load(gp_current_handle(), o->launch.function);
	case GP_COPY: return is_default(o->stream);
	case GP_RECORD:
	case GP_AWAIT: return o->whole || o->whole_green;
	case GP_GRAPH:
	case GP_FRAME: return true;
	default: return false;
	}
}

bool gp_queue_begin(struct gp_operation *o)
{
	if (__builtin_expect(queue.state == OFF, 1)) {
		if (o->joint)
			gp_queue_end();
		return gp_operation_begin(o);
	}
	if (is_feeder())
		return gp_operation_begin(o);
	if (o->work == GP_KERNEL && !o->joint && error &&
	    (o->result = __atomic_exchange_n((CUresult *)&error, 0, __ATOMIC_ACQ_REL)))
		return false;
	if ((o->work == GP_KERNEL || o->work == GP_MEMSET) && take(o)) {
		o->result = CUDA_SUCCESS;
		return false;
	}
	if (o->joint) // its thread counts in the gate of memory from the first kernel on, where it must not wait
		gp_queue_end();
	else if (concerns_all(o))
		settle();
	else
		settle_stream(o->stream, true);
	return gp_operation_begin(o);
}

bool gp_queue_begin_wait(enum gp_wait kind, void *object)
{
	switch (kind) {
	case GP_WAIT_EVENT: // it is recorded behind what was queued
	case GP_ASK_EVENT: break;
	case GP_WAIT_STREAM: settle_stream(object, false); break;
	case GP_ASK_STREAM:
		if (!is_nothing_to_wait_for() && concerns(object, false)) {
			*GP_MINE(answered) = true;
			return false;
		}
		break;
	case GP_LOAD:
		if (queue.count && gp_blp_may_load(gp_current_handle(), object))
			settle();
		break;
	default: settle();
	}
	return gp_wait_begin(kind, object);
}

CUresult gp_queue_end_wait(enum gp_wait kind, void *object, CUresult result)
{
	bool *mine = kind == GP_ASK_STREAM ? GP_MINE(answered) : NULL;
	if (mine && *mine) {
		*mine = false;
		return CUDA_ERROR_NOT_READY;
	}
	result = gp_wait_end(kind, object, result);
	bool waited = kind == GP_WAIT_STREAM || kind == GP_WAIT_EVENT || kind == GP_WAIT_ALL;
	return !result && waited && error ? __atomic_exchange_n((CUresult *)&error, 0, __ATOMIC_ACQ_REL) : result;
}

void gp_queue_ending(enum gp_thing thing, void *handle)
{
	if (thing == GP_CONTEXT || thing == GP_STREAM)
		settle();
	gp_ending(thing, handle);
}

void gp_queue_capture_beginning(CUstream stream)
{
	settle();
	gp_capture_beginning(stream);
}

bool gp_queue_module_unload(CUmodule module, CUresult *result)
{
	settle();
	return gp_unload_module(module, result);
}

bool gp_queue_library_unload(CUlibrary library, CUresult *result)
{
	settle();
	return gp_unload_library(library, result);
}

void gp_queue_clusters_changed(void)
{
	settle();
	gp_code_forget();
}

void gp_queue_unknown_function(const char *name)
{
	gp_queue_end();
	gp_unknown_function(name);
}

void gp_queue_checkpoint_begins(enum gp_checkpoint step)
{
	if (step == GP_CHECKPOINT_LOCK && gp_membership == GP_JOINED) // once it is locked the feeder may wait in the driver
		settle();
	gp_checkpoint_begins(step);
}

// As the interceptor of the call does it (exports/intercept.c).
static CUresult submit(struct gp_operation *o)
{
	if (!gp_operation_begin(o))
		return o->result;
	const struct gp_launch *l = &o->launch;
	CUresult result;
	if (o->work == GP_KERNEL) {
		struct gp_launch_config config = {{l->grid[0], l->grid[1], l->grid[2]},
						  {l->block[0], l->block[1], l->block[2]},
						  l->shared_bytes,
						  o->stream,
						  l->attributes,
						  l->attribute_count};
		result = l->attribute_count ? gp_driver.cuLaunchKernelEx(&config, l->function, l->parameters, NULL) :
			 l->cooperative     ? gp_driver.cuLaunchCooperativeKernel(
						      l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
						      l->block[1], l->block[2], l->shared_bytes, o->stream, l->parameters) :
					      gp_driver.cuLaunchKernel(l->function, l->grid[0], l->grid[1], l->grid[2],
								       l->block[0], l->block[1], l->block[2],
								       l->shared_bytes, o->stream, l->parameters, NULL);
	} else if (o->memory.element_bytes == 1) {
		result = gp_driver.cuMemsetD8Async(o->memory.to, (unsigned char)o->memory.value, o->memory.width,
						   o->stream);
	} else if (o->memory.element_bytes == 2) {
		result = gp_driver.cuMemsetD16Async(o->memory.to, (unsigned short)o->memory.value, o->memory.width,
						    o->stream);
	} else {
		result = gp_driver.cuMemsetD32Async(o->memory.to, o->memory.value, o->memory.width, o->stream);
	}
	return gp_operation_end(o, result);
}

static CUresult make(const struct entry *e)
{
	uint16_t count = e->work == GP_KERNEL ? e->code->parameters : 0;
	void *parameters[count + 1];
	for (uint16_t i = 0; i < count; i++)
		parameters[i] = (char *)e->arguments + e->code->parameter[i].offset;
	struct gp_operation o = {.work = e->work, .stream = queue.stream};
	if (e->work == GP_KERNEL) {
		o.launch = e->launch;
		o.launch.parameters = parameters;
	} else {
		o.memory = e->memory;
	}
	return submit(&o);
}

// The first error of a launch is kept for the program. Where memory for its local variables lacks, another error says so: for this one the call
// that returns it would be made again (exports/layer.h). The feeder does not wait for room, since calls that free memory wait for it.
static void keep(CUresult result)
{
	CUresult none = CUDA_SUCCESS;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (result && !gp_blp_is_gone(result))
		__atomic_compare_exchange_n((CUresult *)&error, &none, result, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

// The lock is held, and given up while the launch is made. Entries of the queue's stream and context stay the same meanwhile.
static void feed_one(void)
{
	struct entry *e = entry_at(queue.tail);
	if (e->skipped) {
		queue.tail += e->bytes;
		e = entry_at(queue.tail);
	}
	CUcontext context = queue.context, popped;
	pthread_mutex_unlock(&queue.lock);
	CUresult result = gp_driver.cuCtxPushCurrent(context);
	static bool relaxed; // as all threads of ours: a capture elsewhere must not forbid its calls
	if (!result && !relaxed)
		gp_relax_captures();
	relaxed |= !result;
	if (!result) {
		keep(gp_blp_take_late()); // else the launch would return it, and not be made
		result = make(e);
		gp_driver.cuCtxPopCurrent(&popped);
	}
	keep(result);
	pthread_mutex_lock(&queue.lock);
	queue.tail += e->bytes;
	queue.count--;
	pthread_cond_broadcast(&queue.taken);
}

void gp_queue_feed(void)
{
	pthread_mutex_lock(&queue.lock);
	if (queue.state != OFF) {
		pthread_mutex_unlock(&queue.lock);
		return;
	}
	queue.feeder = pthread_self(); // first: threads read it once the queue is open
	queue.state = OPEN;
	for (;;) {
		if (queue.count && queue.state != LEFT)
			feed_one();
		else
			pthread_cond_wait(&queue.filled, &queue.lock);
	}
}

void gp_queue_end(void)
{
	pthread_mutex_lock(&queue.lock);
	if (queue.state != LEFT)
		queue.state = ENDED;
	pthread_cond_broadcast(&queue.taken);
	pthread_mutex_unlock(&queue.lock);
	settle();
}
