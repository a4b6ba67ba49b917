// meanwhile.c - who waits for work, or asks for it, hears nothing of what another thread does meanwhile (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuArrayCreate_v2, (handle *, const void *)) \
	F(cuArrayDestroy, (handle)) \
	F(cuDeviceGetDevResource, (int, struct resource *, int)) \
	F(cuDevSmResourceSplitByCount, \
	  (struct resource *, unsigned *, const struct resource *, struct resource *, unsigned, unsigned)) \
	F(cuDevResourceGenerateDesc, (handle *, struct resource *, unsigned)) \
	F(cuGreenCtxCreate, (handle *, handle, int, unsigned)) \
	F(cuGreenCtxStreamCreate, (handle *, handle, unsigned, int)) \
	F(cuCtxFromGreenCtx, (handle *, handle)) \
	F(cuCtxRecordEvent, (handle, handle)) \
	F(cuCtxWaitEvent, (handle, handle)) \
	F(cuGreenCtxDestroy, (handle)) \
	F(cuGreenCtxRecordEvent, (handle, handle)) \
	F(cuGreenCtxWaitEvent, (handle, handle))
struct resource { // CUdevResource
	char bytes[256];
};
#include "order.h"
#include <dlfcn.h>

// A thread waits for this, while another one launches a kernel that waits for the thread.
static struct meanwhile {
	handle stream;        // NULL: the legacy stream
	bool all;             // of the context
	_Atomic pid_t begins; // the thread; 0: not yet
	_Atomic bool over;
} meanwhile;

static void *wait_meanwhile(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	meanwhile.begins = gettid();
	if (meanwhile.all)
		OK(cuCtxSynchronize());
	else
		OK(cuStreamSynchronize(meanwhile.stream));
	meanwhile.over = true;
	return NULL;
}

// Where the thread loses the processor just before its call, it waits for the kernel, too, and that is right.
static void launched_meanwhile(bool all, handle on, handle stream, handle another, unsigned rounds)
{
	enum { LAUNCHES = 10, LAUNCH_US = 20000 };
	struct chained b = buffer();
	unsigned late = 0;
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		meanwhile.all = all;
		meanwhile.stream = stream;
		meanwhile.begins = 0;
		meanwhile.over = false;
		for (int i = 0; i < LAUNCHES; i++)
			launch(&b, on, r, LAUNCH_US);
		CHECK(!pthread_create(&thread, NULL, wait_meanwhile, NULL));
		until_it_waits(&meanwhile.begins);
		spin(another);
		late += !comes(&meanwhile.over);
		let_go();
		CHECK(!pthread_join(thread, NULL));
		copy(&b, on);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
	CHECK(late * 2 < rounds);
}

static void all_meanwhile(unsigned rounds)
{
	launched_meanwhile(true, stream_of(NON_BLOCKING), NULL, stream_of(NON_BLOCKING), rounds);
}

static void legacy_meanwhile(unsigned rounds) { launched_meanwhile(false, stream_of(0), NULL, stream_of(0), rounds); }

static void stream_meanwhile(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING);
	launched_meanwhile(false, one, one, one, rounds);
}

// A thread calls something, and another one does more meanwhile. True: the call returned before the program let W go, the kernel that was
// launched on a stream after the call had begun. All other work that was to end has ended by the time of this call.
static bool returns_before(pthread_t thread, _Atomic bool *over)
{
	bool returned = comes(over);
	let_go();
	CHECK(!pthread_join(thread, NULL));
	OK(cuCtxSynchronize());
	return returned;
}

static pthread_t begin_meanwhile(bool all, handle stream)
{
	pthread_t thread;
	meanwhile.all = all;
	meanwhile.stream = stream;
	meanwhile.begins = 0;
	meanwhile.over = false;
	CHECK(!pthread_create(&thread, NULL, wait_meanwhile, NULL));
	until_it_waits(&meanwhile.begins);
	return thread;
}

// More streams have work than a thread notes.
static void many_meanwhile(unsigned rounds)
{
	enum { STREAMS = 20, LAUNCHES = 10, LAUNCH_US = 20000 };
	struct chained b[STREAMS];
	handle of[STREAMS], another = stream_of(NON_BLOCKING);
	for (int i = 0; i < STREAMS; i++) {
		b[i] = buffer();
		of[i] = stream_of(NON_BLOCKING);
	}
	for (unsigned r = 0; r < rounds; r++) {
		for (int n = 0; n < LAUNCHES; n++)
			for (int i = 0; i < STREAMS; i++)
				launch(&b[i], of[i], r, LAUNCH_US);
		pthread_t thread = begin_meanwhile(true, NULL);
		spin(another);
		CHECK(returns_before(thread, &meanwhile.over));
	}
}

// A stream is destroyed that a thread waits for, with the rest of the context. Its work is over soon.
static void destroyed_meanwhile(unsigned rounds)
{
	struct chained b = buffer();
	handle two = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		handle one = stream_of(NON_BLOCKING);
		launch(&b, one, r, 300000);
		spin_until(two, word + 4);
		pthread_t thread = begin_meanwhile(true, NULL);
		OK(cuStreamDestroy_v2(one));
		spin(another);
		write_word(word + 4);
		CHECK(returns_before(thread, &meanwhile.over));
	}
}

// A stream is destroyed that had a domain of its own, while the context has work that waits for the program. The memory of each is used
// again: of those whose own work is not over when they are destroyed, later.
static void own_destroyed(unsigned rounds)
{
	struct chained b = buffer();
	handle two = stream_of(NON_BLOCKING);
	size_t first = 0, left, total;
	for (unsigned r = 0; r < rounds; r++) {
		handle one = stream_of(NON_BLOCKING), still = stream_of(NON_BLOCKING);
		OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
		OK(gpreempt_stream_enable((stream_t)still, GPREEMPT_LEVEL_BLOCK));
		launch(&b, one, r, 100);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
		spin_until(still, word + 4);
		spin(two);
		OK(cuStreamDestroy_v2(one));
		OK(cuStreamDestroy_v2(still));
		write_word(word + 4);
		let_go();
		OK(cuCtxSynchronize());
		OK(cuMemGetInfo_v2(&left, &total));
		if (!first)
			first = left;
		CHECK(left == first);
	}
}

// A stream gets no domain of its own, since the driver refuses a call, while the context has work that waits for the program.
static void own_refused(unsigned rounds)
{
	struct chained b = buffer();
	handle two = stream_of(NON_BLOCKING);
	unsigned refused = 0;
	for (unsigned r = 0; r < rounds + 2; r++) { // from the second one on there is memory that is used again
		handle one = stream_of(NON_BLOCKING);
		spin(two);
		bool fails = gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK);
		refused += fails;
		let_go();
		if (fails)
			OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
		launch(&b, one, r, 100);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
		OK(cuStreamDestroy_v2(one));
		OK(cuCtxSynchronize());
	}
	CHECK(refused == 1);
}

// A copy comes behind a kernel that a thread waits for, and that waits for the program: the library lets the kernel run.
static void let_run_meanwhile(unsigned rounds)
{
	struct chained b = buffer();
	handle another = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		handle one = stream_of(NON_BLOCKING);
		spin_until(one, word + 4);
		pthread_t thread = begin_meanwhile(true, NULL);
		copy(&b, one);
		spin(another);
		write_word(word + 4);
		CHECK(returns_before(thread, &meanwhile.over));
	}
}

static struct renewed {
	handle event;
	_Atomic pid_t begins;
	_Atomic bool over;
} renewed;

static void *wait_for_event(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	renewed.begins = gettid();
	OK(cuEventSynchronize(renewed.event));
	renewed.over = true;
	return NULL;
}

// The event at the end of what a thread waits for is recorded anew, on another stream, or destroyed. Then the stream gets a kernel that
// waits for that thread.
static void renewed_meanwhile(unsigned rounds, bool destroyed, bool waits_for_event)
{
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		handle event = new_event();
		pthread_t thread;
		spin_until(one, word + 4);
		OK(cuEventRecord(event, one));
		if (waits_for_event) {
			renewed.event = event;
			renewed.begins = 0;
			renewed.over = false;
			CHECK(!pthread_create(&thread, NULL, wait_for_event, NULL));
			until_it_waits(&renewed.begins);
		} else {
			thread = begin_meanwhile(false, one);
		}
		if (destroyed)
			OK(cuEventDestroy_v2(event));
		else
			OK(cuEventRecord(event, two));
		spin(one);
		write_word(word + 4);
		CHECK(returns_before(thread, waits_for_event ? &renewed.over : &meanwhile.over));
	}
}

static void event_destroyed(unsigned rounds) { renewed_meanwhile(rounds, true, false); }
static void stream_renewed(unsigned rounds) { renewed_meanwhile(rounds, false, false); }
static void event_renewed(unsigned rounds) { renewed_meanwhile(rounds, false, true); }

static struct freed {
	ptr memory;
	void *pinned; // freed instead, if not NULL
	handle array; // the same
} freed;

static void *free_meanwhile(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	meanwhile.begins = gettid();
	if (freed.array)
		OK(cuArrayDestroy(freed.array));
	else if (freed.pinned)
		OK(cuMemFreeHost(freed.pinned));
	else
		OK(cuMemFree_v2(freed.memory));
	meanwhile.over = true;
	return NULL;
}

enum freed_kind { MEMORY, PINNED, ARRAY };

static pthread_t begin_freeing(enum freed_kind kind)
{
	enum { BYTES = 4 << 20 };
	static const struct {
		size_t width, height;
		int format;
		unsigned channels;
	} flat = {1024, 1024, 0x20, 1}; // float
	pthread_t thread;
	freed = (struct freed){.memory = 0};
	switch (kind) {
	case MEMORY: OK(cuMemAlloc_v2(&freed.memory, BYTES)); break;
	case PINNED: OK(cuMemHostAlloc(&freed.pinned, BYTES, 0)); break;
	case ARRAY: OK(cuArrayCreate_v2(&freed.array, &flat)); break;
	}
	meanwhile.begins = 0;
	meanwhile.over = false;
	CHECK(!pthread_create(&thread, NULL, free_meanwhile, NULL));
	until_it_waits(&meanwhile.begins);
	return thread;
}

// Work of any kind that comes beside a call that frees memory waits for that call, and not the call for the work. Where the thread loses the
// processor just before its call, that waits for the work, too, and that is right.
static void freed_meanwhile(unsigned rounds)
{
	enum { WAYS = 6 };
	unsigned late = 0;
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING), graph, exec;
	ptr at = word;
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&at, &at, &n, &us};
	OK(cuStreamBeginCapture_v2(another, RELAXED));
	spin(another);
	OK(cuStreamEndCapture(another, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned r = 0; r < rounds * WAYS; r++) {
		launch(&b, one, r, 300000);
		released = false;
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		pthread_t thread = begin_freeing(r % 3);
		switch (r % WAYS) {
		case 0: spin(another); break;
		case 1: spin(NULL); break;
		case 2: OK(cuLaunchKernel_ptsz(waits, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL)); break;
		case 3: OK(cuGraphLaunch(exec, another)); break;
		case 4: OK(cuLaunchHostFunc(another, host_wait, NULL)); break;
		case 5: OK(cuStreamWaitValue32_v2(another, word, 0, 1)); break; // equal
		}
		bool over = comes(&meanwhile.over);
		released = true; // else the host function would not end
		late += !(returns_before(thread, &meanwhile.over) && over);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
	CHECK(late <= rounds);
}

static struct copied {
	struct chained b;
	handle stream;
	_Atomic pid_t begins;
	_Atomic bool over;
} copied;

static void *copy_meanwhile(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	copied.begins = gettid();
	copy(&copied.b, copied.stream);
	OK(cuStreamSynchronize(copied.stream));
	copied.over = true;
	release();
	return NULL;
}

// A thread's copy waits for what it comes behind, in the library, as another thread begins to free memory: that waits for the copy, and not the
// copy for that. Something else waits until the copy is over.
static void freed_behind(unsigned rounds)
{
	enum { BEHIND = 10 };
	copied.b = buffer();
	copied.stream = stream_of(NON_BLOCKING);
	handle another = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds * BEHIND; r++) {
		pthread_t copies;
		copied.begins = 0;
		copied.over = false;
		wait_for_value(another);
		launch(&copied.b, copied.stream, r, 200000);
		CHECK(!pthread_create(&copies, NULL, copy_meanwhile, NULL));
		until_it_waits(&copied.begins);
		pthread_t frees = begin_freeing(MEMORY);
		comes(&meanwhile.over);
		bool over = copied.over;
		release();
		CHECK(!pthread_join(copies, NULL));
		CHECK(!pthread_join(frees, NULL));
		CHECK(over && right(&copied.b));
	}
}

// A green context, and a stream of it.
static struct { handle itself, context, stream; } green;

static void make_green(void)
{
	enum { SM = 1, SMS = 64, DEFAULT_STREAM = 1 };
	struct resource all = {{0}}, part = {{0}}, left = {{0}};
	unsigned groups = 1;
	handle description;
	if (green.context)
		return;
	OK(cuDeviceGetDevResource(0, &all, SM));
	OK(cuDevSmResourceSplitByCount(&part, &groups, &all, &left, 0, SMS));
	OK(cuDevResourceGenerateDesc(&description, &part, 1));
	OK(cuGreenCtxCreate(&green.itself, description, 0, DEFAULT_STREAM));
	OK(cuCtxFromGreenCtx(&green.context, green.itself));
	OK(cuGreenCtxStreamCreate(&green.stream, green.itself, NON_BLOCKING, 0));
}

// The same with work of a green context beside a call that frees memory of the primary one: the driver waits for both, and locks them.
static void freed_green(unsigned rounds)
{
	enum { WAYS = 4 };
	unsigned late = 0;
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	make_green();
	for (unsigned r = 0; r < rounds * WAYS; r++) {
		launch(&b, one, r, 300000);
		released = false;
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		pthread_t thread = begin_freeing(MEMORY);
		OK(cuCtxSetCurrent(r % 2 ? context : green.context));
		if (r % WAYS < 2)
			spin(green.stream);
		else
			OK(cuLaunchHostFunc(green.stream, host_wait, NULL));
		OK(cuCtxSetCurrent(context));
		bool over = comes(&meanwhile.over);
		released = true; // else the host function would not end
		late += !(returns_before(thread, &meanwhile.over) && over);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
	CHECK(late <= rounds);
}

// A thread that waits for all of the primary context waits for its green ones, too.
static void green_awaited(unsigned rounds)
{
	struct chained b = buffer();
	make_green();
	for (unsigned r = 0; r < rounds; r++) {
		OK(cuCtxSetCurrent(green.context));
		launch(&b, green.stream, r, 20000);
		OK(cuCtxSetCurrent(context));
		OK(cuCtxSynchronize());
		OK(cuMemcpyDtoH_v2(b.have, b.data, BLOCKS * 4));
		CHECK(right(&b));
	}
}

// A green context ends, and the next one may have its handle: nothing of the first is taken for the next one's.
static void green_ended(unsigned rounds)
{
	CHECK(cuGreenCtxDestroy(NULL) != 0);
	for (unsigned r = 0; r < rounds; r++) {
		struct chained b = buffer();
		make_green();
		OK(cuCtxSetCurrent(green.context));
		handle event = new_event();
		for (unsigned i = 0; i < 4; i++)
			launch(&b, green.stream, r + i, 2000);
		OK(cuEventRecord(event, green.stream));
		OK(cuEventSynchronize(event));
		OK(cuEventDestroy_v2(event));
		OK(cuStreamDestroy_v2(green.stream));
		OK(cuCtxSetCurrent(context));
		OK(cuGreenCtxDestroy(green.itself));
		memset(&green, 0, sizeof green);
		OK(cuMemcpyDtoH_v2(b.have, b.data, BLOCKS * 4));
		CHECK(right(&b));
	}
}

// A thread that waits for an event that was recorded for a whole context waits for all of its streams.
static void whole_recorded(unsigned rounds)
{
	enum { WAYS = 4 };
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), event = new_event();
	make_green();
	for (unsigned r = 0; r < rounds; r++) {
		bool of_green = r / WAYS % 2;
		OK(cuCtxSetCurrent(of_green ? green.context : context));
		launch(&b, of_green ? green.stream : one, r, 20000);
		OK(cuCtxSetCurrent(context));
		if (of_green && r / WAYS % 4 < 2)
			OK(cuGreenCtxRecordEvent(green.itself, event));
		else
			OK(cuCtxRecordEvent(context, event));
		switch (r % WAYS) {
		case 0: OK(cuEventSynchronize(event)); break;
		case 1: until_reached(event); break;
		case 2: OK(cuStreamWaitEvent(two, event, 0)); break;
		case 3: OK(cuGreenCtxWaitEvent(green.itself, event)); break;
		}
		copy(&b, r % WAYS == 3 ? green.stream : two);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

// All work of a context comes behind an event that waits for the program. That work is on a stream that was there, that comes later, or
// that the program stops. The program lets the event go once it has seen work of another context. From the wait on nothing is stopped.
static void whole_awaited(unsigned way)
{
	enum { HERE, ELSEWHERE, NEW, GREEN, STOPPED };
	enum { LAUNCHES = 50, LAUNCH_US = 20000 };
	char line[64];
	struct chained b = buffer(), c;
	handle one = stream_of(NON_BLOCKING), held = stream_of(NON_BLOCKING), event = new_event(), here = chain;
	handle second, module, there, elsewhere, on = one;
	bool green_waits = way == GREEN, stops = way == STOPPED;
	if (green_waits)
		make_green();
	if (stops)
		OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuModuleLoad(&module, image));
	OK(cuModuleGetFunction(&there, module, "sim_chain"));
	c = buffer();
	elsewhere = stream_of(NON_BLOCKING);
	OK(cuCtxSetCurrent(context));
	released = false;
	OK(cuLaunchHostFunc(held, host_wait, NULL));
	OK(cuEventRecord(event, held));
	OK(cuCtxSetCurrent(way == ELSEWHERE ? second : context));
	if (green_waits)
		OK(cuGreenCtxWaitEvent(green.itself, event));
	else
		OK(cuCtxWaitEvent(context, event));
	OK(cuCtxSetCurrent(green_waits ? green.context : context));
	if (green_waits)
		on = green.stream;
	else if (way == NEW)
		on = stream_of(NON_BLOCKING);
	launch(&b, on, 1, 2000);
	if (stops) // nothing is stopped any more
		CHECK(gpreempt_stream_preempt((stream_t)one, 1) == GPREEMPT_ERROR_DRIVER);
	OK(cuCtxSetCurrent(second));
	chain = there;
	for (int n = 0; n < LAUNCHES; n++)
		launch(&c, elsewhere, 0, LAUNCH_US);
	chain = here;
	printf("until windows have opened\n");
	CHECK(fgets(line, sizeof line, stdin));
	copy(&c, elsewhere);
	OK(cuStreamSynchronize(elsewhere));
	CHECK(right(&c));
	released = true;
	OK(cuCtxSetCurrent(context));
	copy(&b, on);
	OK(cuCtxSynchronize());
	CHECK(right(&b));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(context));
}

static void *launch_urgent(void *over)
{
	OK(cuCtxSetCurrent(context));
	struct chained b = buffer();
	handle urgent = stream_of(NON_BLOCKING);
	launch(&b, urgent, 1, 10);
	copy(&b, urgent);
	OK(cuStreamSynchronize(urgent));
	CHECK(right(&b));
	*(_Atomic bool *)over = true;
	return NULL;
}

// A program stops a stream for urgent work on another one, while a thread frees memory: that comes behind what was stopped. The stop comes
// before the urgent work, or after it had come and waited for that thread.
static void freed_while_stopped(unsigned rounds)
{
	enum { CALLED_US = 50000 };
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING);
	OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds * 2; r++) {
		pthread_t thread;
		_Atomic bool over = false;
		bool before = r % 2;
		launch(&b, one, r, 400000);
		launch(&c, two, r, 400000);
		if (before)
			OK(gpreempt_stream_preempt((stream_t)one, 1));
		pthread_t frees = begin_freeing(MEMORY);
		CHECK(!pthread_create(&thread, NULL, launch_urgent, &over));
		if (!before) {
			usleep(CALLED_US);
			OK(gpreempt_stream_preempt((stream_t)one, 1));
		}
		CHECK(!pthread_join(thread, NULL));
		CHECK(over);
		OK(gpreempt_stream_restore((stream_t)one, 0));
		CHECK(!pthread_join(frees, NULL));
		copy(&b, one);
		copy(&c, two);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
	OK(gpreempt_stream_disable((stream_t)one));
}

static _Atomic bool frees_end;
static void *free_always(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	while (!frees_end) {
		ptr memory;
		OK(cuMemAlloc_v2(&memory, 4096));
		OK(cuMemFree_v2(memory));
	}
	return NULL;
}

// Some thread always frees memory. Others get on.
static void freed_always(unsigned rounds)
{
	enum { THREADS = 4 };
	struct chained b = buffer();
	pthread_t thread[THREADS];
	handle one = stream_of(NON_BLOCKING);
	frees_end = false;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, free_always, NULL));
	for (unsigned r = 0; r < rounds; r++)
		launch(&b, one, r, 1000);
	copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(right(&b));
	frees_end = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));
}

static struct question {
	handle what;
	bool event;
	_Atomic uint32_t word;
	int answer;
} question;

static void *ask(void *answer_waits)
{
	OK(cuCtxSetCurrent(context));
	((void (*)(_Atomic uint32_t *))answer_waits)(&question.word);
	question.answer = question.event ? cuEventQuery(question.what) : cuStreamQuery(question.what);
	return NULL;
}

// A question is asked during a stop, and its answer comes late: the stop is over, and the library has let the kernel run.
static void asked_before(unsigned rounds, bool event)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), reached = new_event();
	void *answer_waits = dlsym(RTLD_DEFAULT, "simcuda_answer_waits");
	CHECK(answer_waits);
	OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		OK(gpreempt_stream_preempt((stream_t)one, 1));
		spin(one);
		OK(cuEventRecord(reached, one));
		question.what = event ? reached : one;
		question.event = event;
		question.word = 0;
		CHECK(!pthread_create(&thread, NULL, ask, answer_waits));
		while (question.word != 1)
			usleep(50);
		OK(gpreempt_stream_restore((stream_t)one, 0));
		copy(&b, one); // behind the kernel: the library lets that run
		question.word = 2;
		CHECK(!pthread_join(thread, NULL));
		CHECK(question.answer == NOT_READY);
		let_go();
		OK(cuCtxSynchronize());
	}
	OK(gpreempt_stream_disable((stream_t)one));
}

// Code of the primary context is unloaded while a green one uses it.
static void green_unloaded(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), usual = chain;
	make_green();
	for (unsigned r = 0; r < rounds; r++) {
		bool uses_green = r % 2;
		handle module, on = uses_green ? green.stream : one;
		OK(cuModuleLoad(&module, image));
		OK(cuModuleGetFunction(&chain, module, "sim_chain"));
		OK(cuCtxSetCurrent(uses_green ? green.context : context));
		launch(&b, on, r, 20000);
		chain = usual;
		OK(cuCtxSetCurrent(context));
		OK(cuModuleUnload(module));
		OK(cuCtxSynchronize());
		OK(cuMemcpyDtoH_v2(b.have, b.data, BLOCKS * 4));
		CHECK(right(&b));
	}
}

static _Atomic bool recorded, forced;

// Lets a stream go that is stopped, where nobody else does.
static void *restore_late(void *stream)
{
	OK(cuCtxSetCurrent(context));
	forced = !comes(&recorded);
	OK(gpreempt_stream_restore(stream, 0));
	return NULL;
}

// A context has nothing to do with a stream of another one that the program has stopped.
static void whole_elsewhere(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), own, event;
	pthread_t thread;
	OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 100000);
		OK(gpreempt_stream_preempt((stream_t)one, 1));
		OK(cuCtxCreate_v2(&own, 0, 0));
		event = new_event();
		recorded = false;
		CHECK(!pthread_create(&thread, NULL, restore_late, one));
		OK(cuCtxRecordEvent(own, event));
		recorded = true;
		CHECK(!pthread_join(thread, NULL) && !forced);
		OK(cuEventSynchronize(event));
		OK(cuCtxDestroy_v2(own));
		OK(cuCtxSetCurrent(context));
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
	OK(gpreempt_stream_disable((stream_t)one));
}

static void stream_asked_before(unsigned rounds) { asked_before(rounds, false); }
static void event_asked_before(unsigned rounds) { asked_before(rounds, true); }

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"plain", plain},
		{"all", all_meanwhile},
		{"legacy", legacy_meanwhile},
		{"stream", stream_meanwhile},
		{"many", many_meanwhile},
		{"destroyed", destroyed_meanwhile},
		{"own-destroyed", own_destroyed},
		{"own-refused", own_refused},
		{"let-run", let_run_meanwhile},
		{"event-destroyed", event_destroyed},
		{"stream-renewed", stream_renewed},
		{"event-renewed", event_renewed},
		{"freed", freed_meanwhile},
		{"freed-stopped", freed_while_stopped},
		{"freed-always", freed_always},
		{"freed-green", freed_green},
		{"freed-behind", freed_behind},
		{"green", green_awaited},
		{"green-ended", green_ended},
		{"whole", whole_recorded},
		{"whole-awaited", whole_awaited},
		{"whole-elsewhere", whole_elsewhere},
		{"green-unloaded", green_unloaded},
		{"asked-stream", stream_asked_before},
		{"asked-event", event_asked_before},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
