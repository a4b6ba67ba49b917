// queue_test.c - with preempt/queue.c preempt/process/thread.c preempt/process/process.c.
//
// Launches that would wait are made by another thread, in their order and with their arguments; calls that come behind them wait for that,
// and no others do. The next launch returns a refusal. A full queue keeps its threads waiting.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "test/units/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct gp_driver gp_driver;
_Atomic uint32_t gp_captures;
void gp_thread_ends(void) {}

// Streams: even ones are blocking, odd ones are not.
#define STREAM_OF(n) ((CUstream)(uintptr_t)(0x100 + (n)))
enum { CONTEXT = 0x1000, MADE = 1 << 16, FUNCTION = 7, REFUSED = 1000000 };

static atomic_bool full, held, loads;
static __thread bool nested;
static __thread uintptr_t context = CONTEXT;
static atomic_uint made, forwarded, waits, ends;
static struct {
	uint32_t number;
	bool elsewhere; // not on the thread that called
	CUstream stream;
	enum gp_work work;
} order[MADE];
static __thread bool calls;

static struct {
	struct gp_code code;
	struct { uint16_t offset, size; } parameter[2];
} kernel = {{.guarded = true, .parameters = 2, .hidden = 16, .bytes = 24}, {{0, 4}, {8, 8}}};

bool gp_operation_begin(struct gp_operation *o)
{
	while (held && !calls)
		usleep(100);
	uint32_t n = o->work == GP_KERNEL ? *(uint32_t *)o->launch.parameters[0] : o->memory.value;
	if (o->work == GP_KERNEL)
		CHECK(*(uint64_t *)o->launch.parameters[1] == n * 3ull && o->launch.function == (CUfunction)FUNCTION);
	unsigned at = made++;
	order[at % MADE].number = n;
	order[at % MADE].elsewhere = !calls;
	order[at % MADE].stream = o->stream;
	order[at % MADE].work = o->work;
	o->result = n > REFUSED ? CUDA_ERROR_OUT_OF_MEMORY : n == REFUSED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	return false;
}
CUresult gp_operation_end(struct gp_operation *o, CUresult result) { return result; }
bool gp_wait_begin(enum gp_wait kind, void *what)
{
	waits++;
	return true;
}
CUresult gp_wait_end(enum gp_wait kind, void *what, CUresult result) { return result; }
void gp_ending(enum gp_thing thing, void *what) { ends++; }
void gp_capture_beginning(CUstream stream) { forwarded++; }
bool gp_unload_module(CUmodule module, CUresult *result) { return forwarded++; }
bool gp_unload_library(CUlibrary library, CUresult *result) { return forwarded++; }
void gp_code_forget(void) { forwarded++; }
void gp_unknown_function(const char *name) { forwarded++; }
void gp_checkpoint_begins(enum gp_checkpoint step) { forwarded++; }
bool gp_may_be_captured(CUstream stream) { return false; }
bool gp_blp_has_work(void) { return true; }
bool gp_blp_is_nested(void) { return nested; }
bool gp_blp_may_load(CUcontext where, CUfunction f) { return loads; }
bool gp_blp_is_full(CUcontext where, CUstream stream)
{
	CHECK(!nested); // it would take a lock that the call around may have
	return full;
}
const struct gp_code *gp_blp_takes_later(CUcontext where, CUstream stream, const struct gp_launch *l)
{
	return l->shared_bytes ? NULL : &kernel.code;
}
void gp_blp_pack(const struct gp_code *code, void **parameters, void **extra, char *to)
{
	CHECK(code == &kernel.code && !extra);
	for (int i = 0; i < 2; i++)
		memcpy(to + kernel.parameter[i].offset, parameters[i], kernel.parameter[i].size);
}
bool gp_blp_fills_later(CUcontext where, const struct gp_operation *o) { return true; }
CUresult gp_blp_take_late(void) { return CUDA_SUCCESS; }

static CUresult current(CUcontext *now)
{
	*now = (CUcontext)context;
	return CUDA_SUCCESS;
}
static CUresult push(CUcontext pushed)
{
	return pushed == (CUcontext)CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult pop(CUcontext *popped) { return CUDA_SUCCESS; }
static CUresult exchange_mode(int *mode) { return CUDA_SUCCESS; }
static CUresult flags_of(CUstream stream, unsigned *flags)
{
	*flags = (uintptr_t)stream % 2 ? CU_STREAM_NON_BLOCKING : 0;
	return CUDA_SUCCESS;
}

static CUresult launch_on(CUstream stream, uint32_t n, bool later)
{
	uint32_t number = n;
	uint64_t thrice = n * 3ull;
	void *parameters[] = {&number, &thrice};
	struct gp_operation o = {.work = GP_KERNEL, .stream = stream, GP_NOTHING_FOUND};
	o.launch = (struct gp_launch){.function = (CUfunction)FUNCTION, .parameters = parameters, .shared_bytes = !later};
	calls = true;
	bool begins = gp_queue_begin(&o);
	calls = false;
	CHECK(!begins);
	number = thrice = UINT32_MAX; // the caller's memory is its own again
	return o.result;
}

static CUresult launch(CUstream stream, uint32_t n) { return launch_on(stream, n, true); }

static void operate(enum gp_work work, CUstream stream, uint32_t n)
{
	struct gp_operation o = {.work = work, .stream = stream, GP_NOTHING_FOUND};
	o.memory.value = n;
	o.memory.height = work == GP_COPY ? 2 : 1;
	calls = true;
	gp_queue_begin(&o);
	calls = false;
}

// Checks the numbers of launches that were made since, by the feeder or by their callers.
static void check_made(unsigned from, unsigned count, bool elsewhere, uint32_t first)
{
	for (unsigned i = 0; i < count; i++)
		CHECK(order[(from + i) % MADE].number == first + i && order[(from + i) % MADE].elsewhere == elsewhere);
}

static void *do_feed(void *none)
{
	gp_queue_feed();
	return none;
}

// Another thread lets the feeder go on, once a call of this one waits.
static void *let_go(void *what)
{
	usleep(20000); // if the call does not wait, what it is to be behind is not made yet, and the test finds that
	held = false;
	return what;
}

static void fill(CUstream stream, unsigned count, uint32_t first)
{
	held = full = true;
	for (unsigned i = 0; i < count; i++)
		CHECK(!launch(stream, first + i));
}

// A call that is to come behind count launches on a stream, and one of a kind that is not.
static void check_behind(CUstream of, void (*call)(void *), void *what, bool behind)
{
	enum { COUNT = 20 };
	pthread_t thread;
	unsigned from = made;
	fill(of, COUNT, 100);
	if (behind)
		pthread_create(&thread, NULL, let_go, NULL);
	call(what);
	unsigned so_far = made - from;
	CHECK(behind ? so_far >= COUNT : so_far <= 2); // its own, and one that the feeder had begun
	held = full = false;
	if (behind)
		pthread_join(thread, NULL);
	gp_queue_ending(GP_CONTEXT, NULL);
	if (behind)
		check_made(from, COUNT, true, 100);
}

static void record_on(void *stream) { operate(GP_RECORD, stream, 1); }
static void copy_on(void *stream) { operate(GP_COPY, stream, 1); }
static void launch_other(void *stream) { launch(stream, 1); }
static void wait_stream(void *stream) { gp_queue_begin_wait(GP_WAIT_STREAM, stream); }
static void ask_stream(void *stream) // of the queue: it answers at once
{
	CHECK(!gp_queue_begin_wait(GP_ASK_STREAM, stream));
	CHECK(gp_queue_end_wait(GP_ASK_STREAM, stream, CUDA_SUCCESS) == CUDA_ERROR_NOT_READY);
}
static void ask_other(void *stream)
{
	CHECK(gp_queue_begin_wait(GP_ASK_STREAM, stream) && !gp_queue_end_wait(GP_ASK_STREAM, stream, CUDA_SUCCESS));
}
static void copy_in_other_context(void *stream)
{
	context++;
	copy_on(stream);
	context--;
}
static void record_in_other_context(void *stream)
{
	context++;
	record_on(stream);
	context--;
}
static void wait_nested(void *stream)
{
	nested = true;
	gp_queue_begin_wait(GP_WAIT_ALL, GP_CURRENT);
	unsigned before = made;
	launch(stream, 1);
	CHECK(made > before); // at once
	nested = false;
}
static void launch_loads(void *stream)
{
	loads = true;
	launch_other(stream);
	loads = false;
}
static void launch_graph(void *stream) { operate(GP_GRAPH, stream, 1); }
static void unlock(void *none) { gp_queue_checkpoint_begins(GP_CHECKPOINT_UNLOCK); }
static void load(void *function) { gp_queue_begin_wait(GP_LOAD, function); }
static void wait_event(void *event) { gp_queue_begin_wait(GP_WAIT_EVENT, event); }
static void wait_all(void *none) { gp_queue_begin_wait(GP_WAIT_ALL, GP_CURRENT); }
static void take_memory(void *none) { gp_queue_begin_wait(GP_TAKE_MEMORY, none); }
static void end_stream(void *stream) { gp_queue_ending(GP_STREAM, stream); }
static void end_event(void *event) { gp_queue_ending(GP_EVENT, event); }
static void capture(void *stream) { gp_queue_capture_beginning(stream); }
static void unload(void *module) { gp_queue_module_unload(module, NULL); }
static void unload_library(void *library) { gp_queue_library_unload(library, NULL); }
static void change_clusters(void *none) { gp_queue_clusters_changed(); }
static void checkpoint(void *none) { gp_queue_checkpoint_begins(GP_CHECKPOINT_LOCK); }
static void launch_now(void *stream) { launch_on(stream, 1, false); }

static void check_calls(void)
{
	CUstream even = STREAM_OF(0), odd = STREAM_OF(1), legacy = GP_STREAM_LEGACY;
	const struct {
		CUstream of;
		void (*call)(void *);
		void *what;
		bool behind;
	} cases[] = {
		{odd, record_on, odd, true},
		{odd, record_on, STREAM_OF(3), false},
		{odd, record_on, even, false},
		{odd, record_on, legacy, false},
		{odd, copy_on, legacy, true}, // it may be between two devices
		{odd, launch_other, STREAM_OF(3), false},
		{odd, launch_now, odd, true},
		{even, record_on, legacy, true},
		{even, record_on, STREAM_OF(2), false},
		{legacy, record_on, even, true},
		{legacy, record_on, odd, false},
		{legacy, record_on, GP_STREAM_PER_THREAD, true},
		{legacy, copy_on, legacy, true},
		{odd, wait_stream, odd, true},
		{odd, ask_stream, odd, false},
		{legacy, ask_other, even, false}, // what is behind the queue there waited for it as it came
		{legacy, wait_stream, even, false},
		{legacy, ask_stream, legacy, false},
		{even, ask_stream, legacy, false},
		{odd, ask_other, even, false},
		{legacy, copy_in_other_context, legacy, true},
		{even, record_in_other_context, legacy, false},
		{odd, wait_nested, odd, false},
		{odd, launch_loads, STREAM_OF(3), true},
		{odd, launch_graph, STREAM_OF(3), true},
		{odd, load, NULL, false},
		{odd, unlock, NULL, false},
		{odd, wait_stream, even, false},
		{odd, wait_event, NULL, false},
		{odd, wait_all, NULL, true},
		{odd, take_memory, NULL, true},
		{odd, end_stream, even, true},
		{odd, end_event, NULL, false},
		{odd, capture, even, true},
		{odd, unload, NULL, true},
		{odd, unload_library, NULL, true},
		{odd, change_clusters, NULL, true},
		{odd, checkpoint, NULL, true},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_behind(cases[i].of, cases[i].call, cases[i].what, cases[i].behind);
}

static void check_errors(void)
{
	CUstream s = STREAM_OF(1);
	held = full = true;
	CHECK(!launch(s, REFUSED) && !launch(s, 1));
	held = full = false;
	gp_queue_ending(GP_CONTEXT, NULL);
	unsigned from = made;
	CHECK(launch(s, 2) == CUDA_ERROR_INVALID_VALUE && made == from); // told once
	CHECK(!launch(s, 3) && made == from + 1);

	held = full = true;
	CHECK(!launch(s, REFUSED + 1) && !launch(s, 1)); // a call that returned this very error would be made again
	held = full = false;
	CHECK(gp_queue_begin_wait(GP_WAIT_STREAM, s));
	CHECK(gp_queue_end_wait(GP_WAIT_STREAM, s, CUDA_SUCCESS) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	CHECK(gp_queue_begin_wait(GP_WAIT_ALL, GP_CURRENT) && !gp_queue_end_wait(GP_WAIT_ALL, GP_CURRENT, CUDA_SUCCESS));
}

enum { MOST = 1024 }; // entries of the queue
static atomic_uint filled;

static void *launch_till_full(void *none)
{
	for (uint32_t i = 0; i < 5000; i++) {
		CHECK(!launch(STREAM_OF(1), i));
		filled++;
	}
	return none;
}

// A thread of another stream does not wait where the queue is full.
static void check_full(void)
{
	pthread_t thread;
	unsigned before = made;
	held = full = true;
	pthread_create(&thread, NULL, launch_till_full, NULL);
	while (filled < MOST) // one is being made, and the next one waits
		usleep(100);
	CHECK(!launch(STREAM_OF(3), 1) && made - before <= 2);
	held = false;
	pthread_join(thread, NULL);
	full = false;
	gp_queue_ending(GP_CONTEXT, NULL);
	CHECK(made - before == 5001);
}

// More than the queue holds, and memsets among the launches. The threads share a stream: each finds its own in its order.
enum { THREADS = 3, LAUNCHES = 3000 };

static void *launch_many(void *argument)
{
	uintptr_t thread = (uintptr_t)argument;
	for (uint32_t i = 0; i < LAUNCHES; i++) {
		uint32_t n = (uint32_t)thread * LAUNCHES + i;
		if (i % 5)
			CHECK(!launch(STREAM_OF(1), n));
		else
			operate(GP_MEMSET, STREAM_OF(1), n);
		if (i % 1024 == 1023)
			operate(GP_RECORD, STREAM_OF(1), n);
	}
	return NULL;
}

static void check_many(void)
{
	pthread_t thread[THREADS];
	unsigned from = made, elsewhere = 0;
	uint32_t next[THREADS] = {0};
	full = true;
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, launch_many, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	full = false;
	gp_queue_ending(GP_CONTEXT, NULL);
	for (unsigned i = from; i != made; i++) {
		uint32_t n = order[i % MADE].number, t = n / LAUNCHES;
		if (order[i % MADE].work == GP_RECORD)
			CHECK(next[t] == n % LAUNCHES + 1); // behind the launch of that number
		else
			CHECK(n % LAUNCHES == next[t]++);
		elsewhere += order[i % MADE].elsewhere;
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(next[i] == LAUNCHES);
	CHECK(elsewhere == THREADS * LAUNCHES);
}

// A launch of several kernels comes before the feeder. In a process of its own: a queue that has ended stays so.
static void check_joint_first(void)
{
	int status;
	pid_t child = fork();
	if (child) {
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
		return;
	}
	pthread_t feeder;
	uint32_t number = 1;
	uint64_t thrice = 3;
	void *parameters[] = {&number, &thrice};
	struct gp_operation o = {.work = GP_KERNEL, .stream = STREAM_OF(1), .joint = true, GP_NOTHING_FOUND};
	o.launch = (struct gp_launch){.function = (CUfunction)FUNCTION, .parameters = parameters};
	CHECK(!gp_queue_begin(&o) && made == 1);
	CHECK(!pthread_create(&feeder, NULL, do_feed, NULL) && !pthread_join(feeder, NULL));
	full = true;
	CHECK(!launch(STREAM_OF(1), 2) && made == 2 && !order[1].elsewhere);
	_exit(0);
}

int main(void)
{
	pthread_t feeder;
	gp_driver.cuCtxGetCurrent = current;
	gp_driver.cuCtxPushCurrent = push;
	gp_driver.cuCtxPopCurrent = pop;
	gp_driver.cuStreamGetFlags = flags_of;
	gp_driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
	gp_settings.level = GP_LEVELS - 1;
	check_joint_first();

	CUstream s = STREAM_OF(1);
	full = true;
	CHECK(!launch(s, 1) && made == 1 && !order[0].elsewhere); // no thread to make it later
	pthread_create(&feeder, NULL, do_feed, NULL);
	for (unsigned i = 2; !order[(made - 1) % MADE].elsewhere; i++) {
		usleep(1000);
		CHECK(!launch(s, i));
		gp_queue_ending(GP_CONTEXT, NULL);
	}
	full = false;
	unsigned from = made;
	CHECK(!launch(s, 1) && made == from + 1 && !order[from % MADE].elsewhere); // there is room

	check_calls();
	check_errors();
	check_full();
	check_many();

	// In a process that is raised, and behind the end.
	gp_settings.level = 0;
	full = true;
	from = made;
	CHECK(!launch(s, 1) && made == from + 1 && !order[from % MADE].elsewhere);
	gp_settings.level = GP_LEVELS - 1;
	fill(s, 3, 50);
	held = false;
	gp_queue_unknown_function("cuNew");
	check_made(from + 1, 3, true, 50);
	CHECK(made == from + 4 && !launch(s, 1) && made == from + 5 && !order[(from + 4) % MADE].elsewhere);
	return 0;
}
