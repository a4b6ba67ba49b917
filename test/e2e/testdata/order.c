// order.c - every order that CUDA promises (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuGraphCreate, (handle *, unsigned)) \
	F(cuGraphAddChildGraphNode, (handle *, handle, const handle *, size_t, handle)) \
	F(cuStreamWaitEvent_ptsz, (handle, handle, unsigned)) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuMemcpyDtoHAsync_v2_ptsz, (void *, ptr, size_t, handle)) \
	F(cuMemcpyDtoH_v2_ptds, (void *, ptr, size_t)) \
	F(cuLaunchKernelEx, (const struct launch_config *, handle, void **, void **)) \
	F(simcuda_most_urgent_kernel, (void))
#include "order.h"

enum { PLACES = 256, STREAMS = PLACES + 32, ENTRIES = 128 };
static _Atomic bool enough, busy;

// A capture that goes on until it is to end, on a stream of its own.
static struct {
	pthread_t thread;
	handle stream;
	int mode;
	_Atomic bool begun, end;
} elsewhere;

static void *capture_nothing(void *none)
{
	handle graph;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamBeginCapture_v2(elsewhere.stream, elsewhere.mode));
	elsewhere.begun = true;
	while (!elsewhere.end)
		usleep(50);
	OK(cuStreamEndCapture(elsewhere.stream, &graph));
	return none;
}

static void begin_capture(int mode, bool wait)
{
	if (!elsewhere.stream)
		elsewhere.stream = stream_of(NON_BLOCKING);
	elsewhere.begun = elsewhere.end = false;
	elsewhere.mode = mode;
	CHECK(!pthread_create(&elsewhere.thread, NULL, capture_nothing, NULL));
	while (wait && !elsewhere.begun)
		usleep(50);
}

static void end_capture(void)
{
	elsewhere.end = true;
	CHECK(!pthread_join(elsewhere.thread, NULL));
}

// Another thread begins to capture while a stream comes behind another by an event.
static void captures(unsigned rounds)
{
	static struct chained b;
	static handle background, urgent, event;
	if (!background) {
		b = buffer();
		background = stream_of(NON_BLOCKING), urgent = stream_of(NON_BLOCKING), event = new_event();
	}
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < 6; i++)
			launch(&b, background, i, 2000);
		OK(cuEventRecord(event, background));
		usleep((useconds_t)(rand() % 12000));
		begin_capture(r % 2 ? RELAXED : GLOBAL, r % 4 < 2);
		usleep(200);
		OK(cuStreamWaitEvent(urgent, event, 0));
		copy(&b, urgent);
		end_capture();
		OK(cuStreamSynchronize(urgent));
		CHECK(right(&b));
		OK(cuStreamSynchronize(background));
	}
}

// A stream joins a capture with work in flight, which is not to be launched again into the graph.
static void joins(unsigned rounds)
{
	struct chained b = buffer(), other = buffer();
	handle origin = stream_of(NON_BLOCKING), joined = stream_of(NON_BLOCKING), fork = new_event(),
	       join = new_event(), graph, exec;
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < 4; i++)
			launch(&b, joined, i, 1500);
		launch(&other, origin, 1, 1500);
		OK(cuStreamBeginCapture_v2(origin, RELAXED));
		OK(cuEventRecord(fork, origin));
		OK(cuStreamWaitEvent(joined, fork, 0));
		launch(&other, joined, r, 1000);
		usleep(3000);
		OK(cuEventRecord(join, joined));
		OK(cuStreamWaitEvent(origin, join, 0));
		OK(cuStreamEndCapture(origin, &graph));
		OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		OK(cuGraphLaunch(exec, origin));
		copy(&other, origin);
		copy(&b, joined);
		OK(cuCtxSynchronize());
		CHECK(right(&other) && right(&b));
	}
}

// A stream that the program stopped itself, while anything is captured.
static void stopped_beside(unsigned rounds)
{
	struct chained b = buffer();
	handle background = stream_of(0), event = new_event();
	OK(gpreempt_stream_enable((stream_t)background, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < 4; i++)
			launch(&b, background, i, 2000);
		OK(cuEventRecord(event, background));
		OK(gpreempt_stream_preempt((stream_t)background, 1));
		begin_capture(RELAXED, true);
		CHECK(cuStreamQuery(background) == NOT_READY);
		CHECK(cuEventQuery(event) == NOT_READY);
		launch(&b, background, 9, 100);
		OK(gpreempt_stream_restore((stream_t)background, 0));
		copy(&b, NULL); // behind it by the rules of the legacy stream
		end_capture();
		OK(cuStreamSynchronize(NULL));
		CHECK(right(&b));
	}
	OK(gpreempt_stream_disable((stream_t)background));
}

// The program's own thread on the CPU, which streams wait for.
// The legacy stream is not over while a blocking one that was stopped is not. While another is stopped, it is over when all
// blocking ones are.
static void asked(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle s = stream_of(0), one = stream_of(0), apart = stream_of(NON_BLOCKING);
	OK(gpreempt_stream_enable((stream_t)s, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_enable((stream_t)apart, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		launch(&c, NULL, r, 1);
		launch(&b, s, r, 5000);
		usleep(1000);
		OK(gpreempt_stream_preempt((stream_t)s, 1));
		CHECK(cuStreamQuery(NULL) == NOT_READY && cuStreamQuery(s) == NOT_READY);
		OK(gpreempt_stream_restore((stream_t)s, 0));
		OK(cuStreamSynchronize(NULL));
		CHECK(cuStreamQuery(NULL) == 0);
		OK(gpreempt_stream_preempt((stream_t)apart, 1));
		launch(&c, one, r, 300);
		while (cuStreamQuery(NULL) == NOT_READY)
			usleep(50);
		OK(gpreempt_stream_restore((stream_t)apart, 0));
	}
	OK(gpreempt_stream_disable((stream_t)s));
	OK(gpreempt_stream_disable((stream_t)apart));
	OK(cuStreamDestroy_v2(s));
	copy(&b, NULL);
	copy(&c, NULL);
	OK(cuCtxSynchronize());
	CHECK(right(&b) && right(&c));
}

static void after(struct chained *b, struct chained *c, handle first, handle last)
{
	copy(b, first);
	copy(c, last);
	release();
	OK(cuCtxSynchronize());
	CHECK(right(b) && right(c));
}

// By an event: what waits for it waits for the CPU, and so does what comes behind that.
static void events(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING),
	       event = new_event(), next = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		released = false;
		if (r % 2)
			wait_for_value(one);
		else
			OK(cuLaunchHostFunc(one, host_wait, NULL));
		launch(&c, two, r, 1000);
		OK(cuEventRecord(event, two));
		OK(cuStreamWaitEvent(one, event, 0));
		launch(&b, one, r, 1000);
		OK(cuEventRecord(next, one));
		OK(cuStreamWaitEvent(three, next, 0));
		launch(&b, three, r + 1, 1000);
		launch(&c, two, r, 100);
		after(&b, &c, three, two);
	}
}

// By the order of the legacy stream.
static void legacy(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(0), two = stream_of(0), three = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		released = false;
		OK(cuLaunchHostFunc(one, host_wait, NULL));
		if (r % 3 == 0)
			launch(&b, NULL, r, 300);
		else if (r % 3 == 1)
			OK(cuEventRecord(event, NULL));
		else
			OK(cuMemsetD32Async(word, 0, 1, NULL));
		launch(&b, two, r, 300);
		launch(&c, three, r, 300);
		after(&b, &c, two, three);
	}
}

static handle graph_with_host_function(handle stream, bool child)
{
	handle graph, exec;
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	OK(cuLaunchHostFunc(stream, host_wait, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	if (child) {
		handle parent, node;
		OK(cuGraphCreate(&parent, 0));
		OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
		graph = parent;
	}
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

// Graphs of kernels come and go, which waits for nothing.
static void rebuild(handle stream)
{
	static struct chained b;
	handle graph, exec;
	if (!b.data)
		OK(cuMemAlloc_v2(&b.data, BLOCKS * 4));
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	launch(&b, stream, 1, 100);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphExecDestroy(exec));
}

static void graphs(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), event = new_event();
	handle exec[] = {graph_with_host_function(one, false), graph_with_host_function(one, true)};
	for (unsigned r = 0; r < rounds; r++) {
		released = false;
		OK(cuGraphLaunch(exec[r % 2], one));
		rebuild(two);
		launch(&b, one, r, 300);
		OK(cuEventRecord(event, one));
		OK(cuStreamWaitEvent(two, event, 0));
		launch(&c, two, r, 300);
		after(&b, &c, one, two);
	}
}

// Per-thread default streams: of several threads at once, between which an event hands a buffer on, with the legacy stream.
// Through calls while another context is current than the stream's.
static void foreign(unsigned rounds)
{
	static handle other;
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING),
	       event = new_event(), next = new_event();
	if (!other)
		OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxSetCurrent(context));
	for (unsigned r = 0; r < rounds; r++) {
		wait_for_value(one);
		OK(cuCtxSetCurrent(other));
		OK(cuEventRecord(event, one));
		OK(cuStreamWaitEvent(two, event, 0));
		OK(cuCtxSetCurrent(context));
		launch(&c, two, r, 300);
		OK(cuEventRecord(next, two));
		OK(cuStreamWaitEvent(three, next, 0));
		launch(&b, three, r, 300);
		usleep(2000); // a stop may come
		launch(&b, three, r + 1, 300);
		after(&b, &c, three, two);
	}
}

// From one blocking stream to another by nothing but a wait on the legacy stream, for what is over.
static void hops(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(0), two = stream_of(0), event = new_event();
	OK(cuEventRecord(event, one));
	OK(cuEventSynchronize(event));
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 1000);
		OK(cuStreamWaitEvent(NULL, event, 0));
		launch(&b, two, r + 1, 300);
		OK(cuStreamWaitEvent(NULL, event, 0));
	}
	copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(right(&b));
}

static void *synchronize(void *none)
{
	OK(cuCtxSetCurrent(context));
	OK(cuCtxSynchronize());
	return none;
}

// A stream is destroyed while another thread waits for the context: for its work too, and for that of the others.
static void ended(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle last = stream_of(NON_BLOCKING);
	copy(&b, last); // the log has it first from here on, and then those of a round
	for (unsigned r = 0; r < rounds; r++) {
		handle one = stream_of(r % 2 ? NON_BLOCKING : 0), other = stream_of(NON_BLOCKING);
		pthread_t thread;
		for (unsigned i = 0; i < 3; i++) {
			launch(&b, one, i, 1000);
			launch(&c, other, i, 1500);
		}
		CHECK(!pthread_create(&thread, NULL, synchronize, NULL));
		usleep((useconds_t)(rand() % 3000));
		OK(cuStreamDestroy_v2(one));
		CHECK(!pthread_join(thread, NULL));
		copy(&b, last);
		copy(&c, last);
		OK(cuStreamSynchronize(last));
		CHECK(right(&b) && right(&c));
		OK(cuStreamDestroy_v2(other));
	}
	OK(cuStreamDestroy_v2(last));
}

// Instances of graphs end while a kernel of each waits for the program. When it has ended, there is room for the next one.
static void dropped(unsigned rounds)
{
	enum { KERNELS = 4000 }; // All graphs of a context have room for 16384.
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), graph, exec;
	unsigned n = 0, add = 0, us = 0;
	void *parameters[] = {&b.data, &n, &add, &us};
	for (unsigned r = 0; r < rounds; r++) {
		OK(cuStreamBeginCapture_v2(one, RELAXED));
		spin(one);
		for (int i = 1; i < KERNELS; i++)
			OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, one, parameters, NULL));
		OK(cuStreamEndCapture(one, &graph));
		OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
		OK(cuGraphLaunch(exec, one));
		OK(cuGraphExecDestroy(exec));
		let_go();
		OK(cuStreamSynchronize(one));
	}
}

// By the order in which one instance runs, whatever streams it is launched on.
static void instances(unsigned rounds)
{
	struct chained b = buffer(), c = buffer(), own = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), graph, exec;
	OK(cuStreamBeginCapture_v2(one, RELAXED));
	launch(&own, one, 1, 300);
	OK(cuStreamEndCapture(one, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned r = 0; r < rounds; r++) {
		wait_for_value(one);
		OK(cuGraphLaunch(exec, one));
		OK(cuGraphLaunch(exec, two));
		launch(&b, one, r, 300);
		launch(&c, two, r, 300);
		usleep(2000);
		launch(&c, two, r + 1, 300);
		after(&b, &c, one, two);
	}
}

static struct {
	struct chained shared;
	handle turn[4];
	unsigned rounds;
	_Atomic unsigned next;
	pthread_mutex_t lock;
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *on_own_stream(void *which)
{
	unsigned me = (unsigned)(uintptr_t)which;
	OK(cuCtxSetCurrent(context));
	struct chained own = buffer();
	for (unsigned r = 0; r < threads.rounds; r++) {
		launch_by(cuLaunchKernel_ptsz, &own, NULL, r, 300);
		while (threads.next != 4 * r + me)
			usleep(20);
		OK(cuStreamWaitEvent_ptsz(NULL, threads.turn[(me + 3) % 4], 0));
		launch_by(r % 2 ? cuLaunchKernel_ptsz : cuLaunchKernel, &threads.shared, (handle)2, me,
			  200); // CU_STREAM_PER_THREAD
		OK(cuEventRecord_ptsz(threads.turn[me], NULL));
		threads.next++;
		launch_by(cuLaunchKernel_ptsz, &own, NULL, me, 100);
		switch (r % 4) {
		case 0:
			OK(cuMemcpyDtoHAsync_v2_ptsz(own.have, own.data, BLOCKS * 4, NULL));
			OK(cuStreamSynchronize_ptsz(NULL));
			CHECK(right(&own));
			break;
		case 1:
			OK(cuMemcpyDtoH_v2_ptds(own.have, own.data, BLOCKS * 4));
			CHECK(right(&own));
			break;
		case 2:
			launch(&own, NULL, r, 100); // on the legacy stream, behind it
			launch_by(cuLaunchKernel_ptsz, &own, NULL, me, 100);
			break;
		case 3:
			while (cuStreamQuery_ptsz(NULL) == NOT_READY)
				usleep(20);
			memcpy(own.have, (void *)(uintptr_t)own.data, BLOCKS * 4); // the simulated driver's memory is the CPU's
			CHECK(right(&own));
		}
	}
	return NULL;
}

static void own_streams(unsigned rounds)
{
	pthread_t thread[4];
	if (!threads.turn[0]) {
		threads.shared = buffer();
		for (int i = 0; i < 4; i++)
			threads.turn[i] = new_event();
	}
	threads.rounds = rounds;
	threads.next = 0;
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&thread[i], NULL, on_own_stream, (void *)i));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(thread[i], NULL));
	OK(cuCtxSynchronize());
	copy(&threads.shared, NULL);
	OK(cuStreamSynchronize(NULL));
	CHECK(right(&threads.shared));
}

// Launches alone, all of which can be stopped.
static void own_stream(unsigned rounds)
{
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++)
		launch_by(cuLaunchKernel_ptsz, &b, NULL, r, 300);
	OK(cuStreamSynchronize_ptsz(NULL));
	memcpy(b.have, (void *)(uintptr_t)b.data, BLOCKS * 4);
	CHECK(right(&b));
}

static void spins(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		spin(one);
		launch(&b, one, r, 100);
		copy(&b, one);
		if (r % 2) {
			OK(cuStreamDestroy_v2(one));
			one = stream_of(NON_BLOCKING);
		}
		let_go();
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

// The thread waits for an event, and only then lets the kernel behind it go on.
static void answers(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 100);
		OK(cuEventRecord(event, one));
		spin(one);
		OK(cuEventSynchronize(event));
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// A kernel on the legacy stream waits for the program. The program waits for blocking streams that have nothing behind that kernel, but
// something ahead of it.
static void ahead(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(0);
	for (unsigned r = 0; r < rounds; r++) {
		if (r % 3)
			launch(&b, one, r, 3000);
		spin(NULL);
		while (r % 3 == 2 && cuStreamQuery(one) == NOT_READY)
			usleep(50);
		OK(cuStreamSynchronize(one));
		OK(cuStreamSynchronize_ptsz(NULL));
		let_go();
		launch(&b, one, r, 100);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// The same, while windows open and close beside the kernel that waits for the program.
static void ahead_of_legacy(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 3000);
		OK(cuEventRecord(event, one));
		spin(NULL);
		until_stopped();
		if (r % 4 == 0)
			until_reached(event);
		else if (r % 4 == 1)
			OK(cuEventSynchronize(event));
		while (r % 4 == 2 && cuStreamQuery(one) == NOT_READY)
			usleep(50);
		OK(cuStreamSynchronize(one));
		let_go();
		launch(&b, one, r, 100);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// A stream waits for a kernel that waits for the program, and that waits for what the stream had before.
static void ahead_of_wait(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), before = new_event(), behind = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin(two);
		OK(cuEventRecord(behind, two));
		launch(&b, one, r, 5000);
		launch(&b, one, r + 1, 100);
		OK(cuEventRecord(before, one));
		OK(cuStreamWaitEvent(one, behind, 0));
		launch(&b, one, r + 2, r % 2 ? 100 : 5000);
		until_stopped();
		until_reached(before);
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// Two waits, with something between them that the program waits for, too.
static void ahead_of_waits(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING),
	       four = stream_of(NON_BLOCKING);
	handle first = new_event(), before = new_event(), behind = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin(two);
		OK(cuEventRecord(behind, two));
		launch(&c, three, r, 9000);
		OK(cuEventRecord(first, three));
		launch(&b, one, r, 5000);
		OK(cuStreamWaitEvent(one, first, 0));
		launch(&b, one, r + 1, 5000);
		OK(cuEventRecord(before, one));
		OK(cuStreamWaitEvent(one, behind, 0));
		launch(&b, one, r + 2, 100);
		OK(cuStreamWaitEvent(four, before, 0));
		copy(&b, four);
		until_stopped();
		until_reached(before);
		OK(cuStreamSynchronize(four));
		let_go();
		copy(&b, one);
		copy(&c, three);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// The wait is on another stream: the legacy stream comes behind that, and the stream behind the legacy one.
static void ahead_through_legacy(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(0), two = stream_of(NON_BLOCKING), three = stream_of(0), before = new_event(),
	       behind = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin(two);
		OK(cuEventRecord(behind, two));
		launch(&b, one, r, r % 2 ? 50000 : 5000);
		launch(&b, one, r, 100);
		OK(cuEventRecord(before, one));
		OK(cuStreamWaitEvent(three, behind, 0));
		launch(&c, NULL, r, 300);
		if (r % 2) // while the stream has nothing behind the legacy one
			until_stopped();
		launch(&b, one, r + 1, 100);
		if (r % 2 == 0)
			until_stopped();
		until_reached(before);
		let_go();
		copy(&b, one);
		copy(&c, three);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// The legacy stream comes behind a kernel that waits for the program, and behind the stream's launch. That launch comes behind another one
// by earlier work of the legacy stream.
static void ahead_of_record(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(0), two = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin_until(two, word);
		launch(&c, NULL, r, 5);
		spin_until(two, word + 4);
		launch(&b, one, r, 40);
		OK(cuEventRecord(event, NULL));
		until_stopped();
		write_word(word);
		if (r % 2)
			until_stopped();
		OK(cuStreamSynchronize(one));
		write_word(word + 4);
		copy(&b, one);
		copy(&c, NULL);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// A copy on the legacy stream comes behind two kernels that wait for the program, and behind work that was cut ahead of them. A thread that
// asks or waits for the stream of one of them hears of that kernel, and of nothing behind it.
static void ahead_of_copy(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(0), two = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread[2];
		struct wait ahead = {.stream = one}, behind = {.stream = one};
		spin_until(two, word);
		if (r % 2)
			launch(&b, one, r, 20000);
		spin_until(one, word + 4);
		OK(cuEventRecord(event, NULL));
		until_stopped();
		CHECK(!pthread_create(&thread[0], NULL, wait_for_stream, &ahead));
		copy(&c, NULL);
		CHECK(cuStreamQuery(one) == NOT_READY);
		CHECK(!pthread_create(&thread[1], NULL, wait_for_stream, &behind));
		usleep(2000); // a stop may come
		CHECK(!ahead.over && !behind.over);
		write_word(word + 4);
		for (int i = 0; i < 2; i++)
			CHECK(!pthread_join(thread[i], NULL));
		CHECK(cuStreamQuery(one) == 0);
		write_word(word);
		copy(&b, one);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// The same of a thread's own stream.
static void own_ahead_of_copy(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	pthread_t thread;
	handle two = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		ptr at = word + 4;
		int n = 0;
		unsigned us = 10;
		void *parameters[] = {&at, &at, &n, &us};
		spin_until(two, word);
		if (r % 2)
			launch_by(cuLaunchKernel_ptsz, &b, NULL, r, 20000);
		*(_Atomic uint32_t *)(uintptr_t)at = 7;
		OK(cuLaunchKernel_ptsz(waits, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
		OK(cuEventRecord(event, NULL));
		until_stopped();
		copy(&c, NULL);
		CHECK(cuStreamQuery_ptsz(NULL) == NOT_READY);
		CHECK(!pthread_create(&thread, NULL, write_later, (void *)(uintptr_t)at));
		OK(cuStreamSynchronize_ptsz(NULL));
		CHECK(!*(_Atomic uint32_t *)(uintptr_t)at && cuStreamQuery_ptsz(NULL) == 0);
		CHECK(!pthread_join(thread, NULL));
		write_word(word);
		copy(&b, NULL);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// A thread's own stream has a record that is not known to be reached. Then a copy comes on the legacy stream, which waits for the program.
static void own_ahead_of_waiting_copy(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle two = stream_of(0), apart = stream_of(NON_BLOCKING), first = new_event(), second = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		launch_by(cuLaunchKernel_ptsz, &b, NULL, r, 300);
		OK(cuEventRecord_ptsz(first, NULL));
		OK(cuEventRecord_ptsz(second, NULL));
		until_reached(first);
		OK(cuStreamSynchronize(apart));
		wait_for_value(two);
		copy(&c, NULL);
		if (r % 2)
			while (cuStreamQuery_ptsz(NULL) == NOT_READY)
				usleep(50);
		OK(cuStreamSynchronize_ptsz(NULL));
		release();
		copy(&b, NULL);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
}

// A thread waits for the legacy stream while the log has no launch, but a wait. Another one launches on a blocking stream meanwhile.
static void meanwhile(unsigned rounds)
{
	struct chained b = buffer(), c = buffer(), d = buffer();
	handle one = stream_of(0), two = stream_of(0), three = stream_of(NON_BLOCKING), four = stream_of(NON_BLOCKING),
	       before = new_event(), behind = new_event(), some = new_event();
	struct launch_attribute ignored = {LAUNCH_COMPLETION_EVENT, {0}, {0}}; // so that the launch is not logged
	struct launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, four, &ignored, 1};
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&word, &word, &n, &us};
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		struct wait all = {.stream = NULL};
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		OK(cuLaunchKernelEx(&config, waits, parameters, NULL));
		OK(cuEventRecord(behind, four));
		launch(&b, one, r, 3000);
		OK(cuEventRecord(before, one));
		OK(cuStreamWaitEvent(one, behind, 0));
		for (int i = 0; i < 31; i++) // the library records a marker behind the last of them
			OK(cuEventRecord(some, one));
		until_reached(before);
		OK(cuStreamSynchronize(three)); // the library notices that nothing is left that could be cut
		CHECK(!pthread_create(&thread, NULL, wait_for_stream, &all));
		usleep(3000); // it waits by then
		launch(&c, two, r, 30000);
		for (int i = 0; i < 20; i++) // are stopped
			launch(&d, three, i, 2000);
		write_word(word);
		CHECK(!pthread_join(thread, NULL));
		copy(&b, one);
		copy(&c, two);
		copy(&d, three);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c) && right(&d));
	}
}

// A wait on the legacy stream, or on a blocking one, orders the blocking streams, though its event is reached by then.
static void reached(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(0), two = stream_of(0), three = stream_of(0), apart = stream_of(NON_BLOCKING),
	       event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		wait_for_value(r % 2 ? three : two);
		launch(&c, apart, r, 300);
		OK(cuEventRecord(event, apart));
		launch(&b, r % 2 ? one : NULL, r, 3000);
		OK(cuStreamWaitEvent(r % 2 ? NULL : two, event, 0));
		if (r % 2) {
			copy(&b, two);
			release();
			OK(cuCtxSynchronize());
		} else {
			release();
			OK(cuStreamSynchronize(two));
			copy(&b, apart);
			OK(cuStreamSynchronize(apart));
		}
		CHECK(right(&b));
	}
}

// A stream and the legacy stream have launches when the stream comes to wait.
static void ahead_beside_legacy(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(0), two = stream_of(NON_BLOCKING), before = new_event(), behind = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin(two);
		OK(cuEventRecord(behind, two));
		launch(&b, one, r, 5000);
		launch(&b, NULL, r + 1, 5000);
		OK(cuEventRecord(before, NULL));
		OK(cuStreamWaitEvent(one, behind, 0));
		launch(&b, one, r + 2, 100);
		until_stopped();
		until_reached(before);
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// Blocks take longer than a stop waits. The event behind them is reached when all of them are over.
static void parted(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), event = new_event();
	while (rounds--) {
		launch(&b, one, 1, 3000000);
		OK(cuEventRecord(event, one));
		until_stopped();
		OK(cuEventSynchronize(event));
		memcpy(b.have, (void *)(uintptr_t)b.data, BLOCKS * 4); // the simulated driver's memory is the CPU's
		CHECK(right(&b));
	}
}

static void *hold(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(gpreempt_stream_preempt(stream, 1));
	return NULL;
}

// A thread waits until queued work has run that waits for the program, which waits for other streams. Windows stop these.
static void held(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING);
	pthread_t thread;
	char line[64];
	OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_QUEUE));
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 100);
		spin(one);
		CHECK(!pthread_create(&thread, NULL, hold, one));
		struct gpreempt_stream_state state = {.size = sizeof state};
		while (!state.preempted)
			CHECK(!gpreempt_stream_query((stream_t)one, &state));
		printf("until stopped\n");
		do {
			launch(&c, two, r, 1000);
			OK(cuStreamSynchronize(two));
		} while (!poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, 0));
		CHECK(fgets(line, sizeof line, stdin));
		let_go();
		CHECK(!pthread_join(thread, NULL));
		OK(gpreempt_stream_restore((stream_t)one, 1));
		copy(&b, one);
		copy(&c, two);
		OK(cuCtxSynchronize());
		CHECK(right(&b) && right(&c));
	}
	OK(gpreempt_stream_disable((stream_t)one));
}

// An event is asked for whose stream waits, behind it, for a kernel that waits for the program.
static void waits_behind(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING);
	handle before = new_event(), behind = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, 5000);
		launch(&b, one, r, 100);
		spin(two);
		OK(cuEventRecord(before, one));
		OK(cuStreamWaitEvent(three, before, 0));
		OK(cuEventRecord(behind, two));
		OK(cuStreamWaitEvent(one, behind, 0));
		usleep(3000);
		while (cuEventQuery(before) == NOT_READY || cuStreamQuery(three) == NOT_READY)
			usleep(50);
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// A thread that keeps a stream busy, with some launches or graphs of one launch in flight at any time, until it is called again.
static void *keep_busy(void *graphs)
{
	enum { DEPTH = 16, US = 10000 };
	OK(cuCtxSetCurrent(context));
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), event[DEPTH], graph, exec = NULL;
	if (graphs) {
		OK(cuStreamBeginCapture_v2(one, RELAXED));
		launch(&b, one, 1, US);
		OK(cuStreamEndCapture(one, &graph));
		OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	}
	for (int i = 0; i < DEPTH; i++)
		event[i] = new_event();
	launch(&b, one, 1, US);
	for (unsigned n = 0; !enough; n++) {
		if (n >= DEPTH)
			OK(cuEventSynchronize(event[n % DEPTH]));
		if (exec)
			OK(cuGraphLaunch(exec, one));
		else
			launch(&b, one, n, US);
		OK(cuEventRecord(event[n % DEPTH], one));
		busy = n >= DEPTH;
	}
	if (!exec)
		copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(exec || right(&b));
	return NULL;
}

static void saturate(unsigned graphs)
{
	static pthread_t thread;
	static bool runs;
	if (runs) {
		enough = true;
		pthread_join(thread, NULL);
		runs = enough = busy = false;
		return;
	}
	runs = true;
	CHECK(!pthread_create(&thread, NULL, keep_busy, graphs ? &busy : NULL));
	while (!busy)
		usleep(1000);
}

// An event that is recorded behind kernels which are not logged, since nobody could ask for a stop. A record ahead of these is left in the
// log.
static struct {
	struct chained b, c;
	handle stream, other, event, exec;
} loose;

static void record_loosely(void)
{
	handle graph, left = new_event();
	int n = 0;
	unsigned us = 1;
	if (!loose.exec) {
		loose.b = buffer(), loose.c = buffer();
		loose.stream = stream_of(NON_BLOCKING), loose.other = stream_of(NON_BLOCKING), loose.event = new_event();
		OK(cuStreamBeginCapture_v2(loose.stream, RELAXED));
		launch(&loose.c, loose.stream, 1, 1);
		OK(cuStreamEndCapture(loose.stream, &graph));
		OK(cuGraphInstantiateWithFlags(&loose.exec, graph, 0));
	}
	OK(cuGraphLaunch(loose.exec, loose.stream)); // is logged
	OK(cuEventRecord(left, loose.stream));
	OK(cuEventRecord(loose.event, loose.stream));
	while (cuEventQuery(left) == NOT_READY)
		usleep(50);
	OK(cuStreamSynchronize(loose.other)); // the library notices that nothing is left that could be cut
	OK(cuEventDestroy_v2(left));
	void *parameters[] = {&word, &loose.c.data, &n, &us};
	*(_Atomic uint32_t *)(uintptr_t)word = 7;
	OK(cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, loose.stream, parameters, NULL));
	launch(&loose.b, loose.stream, 1, 1);
	OK(cuEventRecord(loose.event, loose.stream));
}

static void let_end(void)
{
	*(_Atomic uint32_t *)(uintptr_t)word = 0;
	OK(cuCtxSynchronize());
}

// Long enough for what does not wait.
static void run_another(void)
{
	launch(&loose.c, loose.other, 1, 2000);
	OK(cuStreamSynchronize(loose.other));
}

// A thread's own stream waits for the event, and comes behind it with kernels that are not logged, copies, and questions.
static void follows(unsigned rounds)
{
	for (unsigned r = 0; r < rounds; r++) {
		record_loosely();
		OK(cuStreamWaitEvent_ptsz(NULL, loose.event, 0));
		launch_by(cuLaunchKernel_ptsz, &loose.b, NULL, 2, 1);
		run_another();
		let_end();
		copy(&loose.b, NULL);
		OK(cuStreamSynchronize(NULL));
		CHECK(right(&loose.b));

		record_loosely();
		OK(cuStreamWaitEvent_ptsz(NULL, loose.event, 0));
		OK(cuMemcpyDtoHAsync_v2_ptsz(loose.b.have, loose.b.data, BLOCKS * 4, NULL));
		run_another();
		let_end();
		CHECK(right(&loose.b));

		record_loosely();
		OK(cuStreamWaitEvent_ptsz(NULL, loose.event, 0));
		copy(&loose.c, NULL); // the log forgets the wait
		CHECK(cuStreamQuery_ptsz(NULL) == NOT_READY);
		let_end();
		CHECK(cuStreamQuery_ptsz(NULL) == 0);
	}
}

// Threads that wait. The test that started the program reads in the driver's trace when one does, and says so.
static _Atomic bool over;

static void *sync_own(void *none)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamWaitEvent_ptsz(NULL, loose.event, 0));
	printf("%d in cuStreamSynchronize\n", gettid());
	OK(cuStreamSynchronize_ptsz(NULL));
	over = true;
	return none;
}

static void *wait_apart(void *stream)
{
	OK(cuCtxSetCurrent(context));
	printf("%d in cuStreamWaitEvent\n", gettid());
	OK(cuStreamWaitEvent(stream, loose.event, 0));
	over = true;
	return NULL;
}

static void begin_to_wait(pthread_t *thread, void *(*f)(void *), void *argument)
{
	char line[64];
	over = false;
	CHECK(!pthread_create(thread, NULL, f, argument));
	CHECK(fgets(line, sizeof line, stdin));
}

static void own_is_waited_for(unsigned rounds)
{
	pthread_t thread;
	for (unsigned r = 0; r < rounds; r++) {
		record_loosely();
		begin_to_wait(&thread, sync_own, NULL);
		CHECK(!over);
		let_end();
		CHECK(!pthread_join(thread, NULL));
	}
}

// A stream that stops by itself comes behind the record. The log forgets what it has of the first stream meanwhile.
static void forgets(unsigned rounds)
{
	static handle apart;
	pthread_t thread;
	if (!apart) {
		apart = stream_of(NON_BLOCKING);
		OK(gpreempt_stream_enable((stream_t)apart, GPREEMPT_LEVEL_QUEUE));
	}
	for (unsigned r = 0; r < rounds; r++) {
		record_loosely();
		begin_to_wait(&thread, wait_apart, apart);
		copy(&loose.b, loose.stream);
		CHECK(!pthread_join(thread, NULL));
		CHECK(cuStreamQuery(apart) == NOT_READY);
		let_end();
		CHECK(cuStreamQuery(apart) == 0 && right(&loose.b));
	}
}

// A stream that is stopped for long comes to wait for an event that the log does not have, and that is not reached.
static struct {
	struct chained b;
	handle stream, event;
} noted;

static void *wait_while_stopped(void *none)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamWaitEvent(noted.stream, noted.event, 0));
	launch(&noted.b, noted.stream, 2, 1);
	over = true;
	return none;
}

static void note(unsigned rounds)
{
	struct chained c = buffer();
	handle two = stream_of(NON_BLOCKING), before = new_event();
	struct launch_attribute ignored = {LAUNCH_COMPLETION_EVENT, {0}, {0}}; // so that the launch is not logged
	struct launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, two, &ignored, 1};
	int n = 1;
	unsigned us = 10;
	void *parameters[] = {&word, &noted.b.data, &n, &us};
	pthread_t thread;
	noted.stream = stream_of(NON_BLOCKING), noted.event = new_event();
	OK(gpreempt_stream_enable((stream_t)noted.stream, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		noted.b = buffer();
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		OK(cuLaunchKernelEx(&config, waits, parameters, NULL)); // then it adds 1 to the first word
		OK(cuEventRecord(noted.event, two));
		launch(&c, noted.stream, r, 20000);
		OK(cuEventRecord(before, noted.stream));
		OK(gpreempt_stream_preempt((stream_t)noted.stream, 1));
		over = false;
		CHECK(!pthread_create(&thread, NULL, wait_while_stopped, NULL));
		for (time_t since = time(NULL); !over && time(NULL) - since < 2;) // a call waits for less, then it notes that down
			run_another();
		OK(gpreempt_stream_restore((stream_t)noted.stream, 1));
		CHECK(!pthread_join(thread, NULL));
		until_reached(before);
		run_another();
		let_end();
		copy(&noted.b, noted.stream);
		copy(&c, noted.stream);
		OK(cuStreamSynchronize(noted.stream));
		CHECK(noted.b.have[0] == 3 + 2 && noted.b.have[1] == 2 && right(&c));
	}
	OK(gpreempt_stream_disable((stream_t)noted.stream));
}

// A launch that the driver has not queued yet while another thread launches on the same stream.
static struct {
	void (*waits)(_Atomic uint32_t *);
	_Atomic uint32_t word;
	struct chained b;
	handle stream, beside; // of the launch, and of those beside it
	handle context;        // NULL: the program's; the library does not know of another yet
	int (*enter)(handle *);
} slow;

static void *launch_slowly(void *none)
{
	OK(slow.context ? slow.enter(&slow.context) : cuCtxSetCurrent(context));
	slow.waits(&slow.word);
	launch(&slow.b, slow.stream, 7, 1);
	return none;
}

// Whether the slow launch came before some of the others, or behind all, as a whole.
static bool in_some_order(const uint32_t *have, unsigned others)
{
	bool known = false;
	for (unsigned at = 0; at <= others; at++) {
		uint32_t want = 0;
		for (unsigned i = 0; i <= others; i++)
			want = want * 3 + (i == at ? 7 : 5);
		known |= have[0] == want;
	}
	for (int i = 1; i < BLOCKS; i++)
		known &= have[i] == have[0];
	return known;
}

// CROSSES: on the legacy stream, beside a blocking stream that has a domain of its own. CROSSED: the other way round.
enum how { KERNELS, GRAPHS, WITHOUT_PLACE, IN_NEW_CONTEXT, OF_ANOTHER_DOMAIN, CROSSES, CROSSED };

// All places for streams are taken.
static void take_places(handle *streams)
{
	struct chained b = buffer();
	for (int i = 0; i < STREAMS; i++)
		streams[i] = stream_of(NON_BLOCKING);
	for (int twice = 0; twice < 2; twice++) { // then nothing keeps a place any more for a stream that was destroyed
		for (int i = 0; i < STREAMS; i++)
			launch(&b, streams[i], 1, 1);
		OK(cuCtxSynchronize());
	}
}

static void enter_new_context(void)
{
	CHECK((slow.enter = (int (*)(handle *))dlsym(RTLD_DEFAULT, "simcuda_enter")));
	OK(slow.enter(&slow.context));
	load();
}

static void leave_new_context(void)
{
	OK(cuCtxDestroy_v2(slow.context));
	slow.context = NULL;
	OK(cuCtxSetCurrent(context));
	load();
}

static void *wait_slowly(void *event)
{
	OK(cuCtxSetCurrent(context));
	slow.waits(&slow.word);
	OK(cuStreamWaitEvent(slow.stream, event, 0));
	return NULL;
}

// An event is recorded anew, behind a host function, while a stream's wait for it is on its way to the driver.
static void anew(unsigned rounds)
{
	handle other = stream_of(NON_BLOCKING), event = new_event();
	pthread_t thread;
	char line[32];
	CHECK((slow.waits = (void (*)(_Atomic uint32_t *))dlsym(RTLD_DEFAULT, "simcuda_launch_waits")));
	for (unsigned r = 0; r < rounds; r++) {
		slow.word = 0;
		slow.b = buffer(), slow.stream = stream_of(NON_BLOCKING);
		released = false;
		OK(cuEventRecord(event, other));
		OK(cuEventSynchronize(event));
		CHECK(!pthread_create(&thread, NULL, wait_slowly, event));
		while (!slow.word)
			usleep(50);
		OK(cuLaunchHostFunc(other, host_wait, NULL));
		OK(cuEventRecord(event, other));
		slow.word = 2;
		CHECK(!pthread_join(thread, NULL));
		launch(&slow.b, slow.stream, r, 100);
		printf("launched\n");
		CHECK(fgets(line, sizeof line, stdin));
		released = true;
		copy(&slow.b, slow.stream);
		OK(cuStreamSynchronize(slow.stream));
		CHECK(right(&slow.b));
	}
}

// Each line "more" of the input is another launch, of a kernel or a graph; any other line lets the slow one go on.
static void launch_beside(enum how how)
{
	pthread_t thread;
	handle captured, exec = NULL, others_of[STREAMS];
	bool graph = how == GRAPHS;
	char line[32];
	unsigned others = 0;
	slow.word = 0;
	if (how == IN_NEW_CONTEXT)
		enter_new_context();
	slow.b = buffer(), slow.stream = slow.beside = stream_of(how >= CROSSES ? 0 : NON_BLOCKING);
	if (how == CROSSES)
		slow.stream = NULL;
	if (how == CROSSED)
		slow.beside = NULL;
	if (how >= CROSSES) {
		OK(gpreempt_stream_enable((stream_t)slow.beside, GPREEMPT_LEVEL_BLOCK));
		launch(&(struct chained){.data = slow.b.data}, slow.beside, 0, 1); // nothing of it is in its former domain then
		OK(cuStreamSynchronize(slow.beside));
	}
	CHECK((slow.waits = (void (*)(_Atomic uint32_t *))dlsym(RTLD_DEFAULT, "simcuda_launch_waits")));
	if (graph) {
		OK(cuStreamBeginCapture_v2(slow.stream, RELAXED));
		launch(&slow.b, slow.stream, 5, 100000);
		OK(cuStreamEndCapture(slow.stream, &captured));
		OK(cuGraphInstantiateWithFlags(&exec, captured, 0));
	}
	if (how == WITHOUT_PLACE)
		take_places(others_of);
	CHECK(!pthread_create(&thread, NULL, launch_slowly, NULL));
	while (!slow.word)
		usleep(50);
	if (how == WITHOUT_PLACE) // one is free now
		OK(cuStreamDestroy_v2(others_of[0]));
	if (how == OF_ANOTHER_DOMAIN)
		OK(gpreempt_stream_enable((stream_t)slow.stream, GPREEMPT_LEVEL_BLOCK));
	if (how == IN_NEW_CONTEXT) // the library hears of it
		OK(cuCtxSetCurrent(slow.context));
	printf("it waits\n");
	for (; fgets(line, sizeof line, stdin) && !strcmp(line, "more\n"); others++) {
		if (graph)
			OK(cuGraphLaunch(exec, slow.stream));
		else
			launch(&slow.b, slow.beside, 5, 100000);
		printf("launched\n");
	}
	slow.word = 2;
	CHECK(!pthread_join(thread, NULL));
	copy(&slow.b, slow.stream);
	OK(cuStreamSynchronize(slow.stream));
	CHECK(in_some_order(slow.b.have, others));
	if (how >= OF_ANOTHER_DOMAIN)
		OK(gpreempt_stream_disable((stream_t)slow.beside));
	if (how == IN_NEW_CONTEXT)
		leave_new_context();
	for (int i = 1; i < STREAMS && how == WITHOUT_PLACE; i++)
		OK(cuStreamDestroy_v2(others_of[i]));
}

static void beside(unsigned rounds)
{
	while (rounds--)
		launch_beside(KERNELS);
}

static void twins_beside(unsigned rounds)
{
	while (rounds--)
		launch_beside(GRAPHS);
}

static void placeless_beside(unsigned rounds)
{
	while (rounds--)
		launch_beside(WITHOUT_PLACE);
}

static void domain_beside(unsigned rounds)
{
	while (rounds--)
		launch_beside(OF_ANOTHER_DOMAIN);
}

static void launch_block(void)
{
	unsigned n = 1, add = 0, us = 1;
	void *parameters[] = {&slow.b.data, &n, &add, &us};
	OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, slow.stream, parameters, NULL));
}

// The library has a log for a launch with such an attribute, and no queue: the driver might refuse it.
static void *wait_for_room(void *none)
{
	unsigned n = 1, add = 0, us = 1;
	void *parameters[] = {&slow.b.data, &n, &add, &us};
	struct launch_attribute policy = {SYNCHRONIZATION_POLICY, {0}, {0}};
	struct launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, slow.stream, &policy, 1};
	OK(cuCtxSetCurrent(context));
	printf("%d in cuEventQuery\n", gettid());
	OK(cuLaunchKernelEx(&config, chain, parameters, NULL));
	return none;
}

// A launch with such an attribute cannot be stopped. It waits for what is ahead of it, then on its way.
static void *wait_for_all(void *none)
{
	unsigned n = 1, add = 0, us = 1;
	void *parameters[] = {&slow.b.data, &n, &add, &us};
	struct launch_attribute event = {LAUNCH_COMPLETION_EVENT, {0}, {0}};
	struct launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, slow.stream, &event, 1};
	OK(cuCtxSetCurrent(context));
	slow.waits(&slow.word);
	printf("%d in cuEventQuery\n", gettid());
	OK(cuLaunchKernelEx(&config, chain, parameters, NULL));
	return none;
}

// As many launches are in flight on a stream as may be. One waits for room in the log, and meanwhile another one comes that is not
// logged.
static void full(unsigned rounds)
{
	unsigned n = 0, us = 1;
	pthread_t first, second;
	CHECK((slow.waits = (void (*)(_Atomic uint32_t *))dlsym(RTLD_DEFAULT, "simcuda_launch_waits")));
	for (unsigned r = 0; r < rounds; r++) {
		slow.word = 0;
		slow.b = buffer(), slow.stream = stream_of(NON_BLOCKING);
		void *parameters[] = {&word, &slow.b.data, &n, &us};
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		OK(cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, slow.stream, parameters, NULL));
		for (int i = 1; i < ENTRIES; i++)
			launch_block();
		begin_to_wait(&first, wait_for_room, NULL);
		begin_to_wait(&second, wait_for_all, NULL);
		*(_Atomic uint32_t *)(uintptr_t)word = 0;
		CHECK(!pthread_join(first, NULL));
		while (!slow.word)
			usleep(50);
		slow.word = 2;
		CHECK(!pthread_join(second, NULL));
		OK(cuStreamSynchronize(slow.stream));
	}
}

// With the arguments of chain in one buffer.
static int launch_packed(handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
			 unsigned shared, handle stream, void **parameters, void **none)
{
	struct {
		ptr data;
		unsigned n, add, us;
	} arguments = {*(ptr *)parameters[0], *(unsigned *)parameters[1], *(unsigned *)parameters[2],
		       *(unsigned *)parameters[3]};
	size_t bytes = sizeof arguments;
	void *extra[] = {(void *)1, &arguments, (void *)2, &bytes, NULL}; // CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE
	CHECK(!none);
	return cuLaunchKernel(f, x, y, z, bx, by, bz, shared, stream, NULL, extra);
}

// More launches and memsets than may be in flight, behind a kernel that waits until all calls have returned. What comes behind them in the
// program waits for them.
static void far_ahead(unsigned rounds)
{
	for (unsigned r = 0; r < rounds; r++) {
		struct chained b = buffer();
		handle stream = stream_of(r % 2 ? 0 : NON_BLOCKING), event = new_event();
		spin(stream);
		for (unsigned i = 0; i < 3 * ENTRIES; i++)
			if (i % 50 == 49) {
				OK(cuMemsetD32Async(b.data, i, BLOCKS, stream));
				b.want = i;
			} else {
				launch_by(i % 5 ? cuLaunchKernel : launch_packed, &b, stream, i, 1);
			}
		let_go();
		if (r % 3 == 0) {
			OK(cuEventRecord(event, stream));
			OK(cuEventSynchronize(event));
		} else if (r % 3 == 1) {
			while (cuStreamQuery(stream) == NOT_READY)
				usleep(50);
		}
		copy(&b, stream);
		OK(cuStreamSynchronize(stream));
		CHECK(right(&b));
	}
}

static void beside_in_new_context(unsigned rounds)
{
	while (rounds--)
		launch_beside(IN_NEW_CONTEXT);
}

static void crosses(unsigned rounds)
{
	while (rounds--)
		launch_beside(CROSSES);
}

static void crossed(unsigned rounds)
{
	while (rounds--)
		launch_beside(CROSSED);
}

// All streams of this program have the least priority. So no kernel has had a higher one, wherever the library put it.
static void least(unsigned unused)
{
	(void)unused;
	CHECK(!simcuda_most_urgent_kernel());
}

// In a window, launches with an attribute because of which they cannot be stopped.
static void unstoppable(unsigned rounds)
{
	struct chained b = buffer();
	unsigned n = 1, add = 1, us = 100;
	void *parameters[] = {&b.data, &n, &add, &us};
	struct launch_attribute event = {LAUNCH_COMPLETION_EVENT, {0}, {0}};
	struct launch_config config = {{BLOCKS, 1, 1}, {256, 1, 1}, 0, stream_of(NON_BLOCKING), &event, 1};
	for (unsigned r = 0; r < rounds; r++) {
		until_stopped();
		OK(cuLaunchKernelEx(&config, chain, parameters, NULL));
		b.want = b.want * 3 + add;
		printf("launched\n");
	}
	copy(&b, config.stream);
	OK(cuCtxSynchronize());
	CHECK(right(&b));
}

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"least", least},
		{"plain", plain},
		{"captures", captures},
		{"joins", joins},
		{"stopped", stopped_beside},
		{"events", events},
		{"legacy", legacy},
		{"graphs", graphs},
		{"foreign", foreign},
		{"instances", instances},
		{"hops", hops},
		{"ended", ended},
		{"dropped", dropped},
		{"asked", asked},
		{"spins", spins},
		{"answers", answers},
		{"ahead", ahead},
		{"waits", waits_behind},
		{"ahead-of-legacy", ahead_of_legacy},
		{"ahead-of-wait", ahead_of_wait},
		{"ahead-of-waits", ahead_of_waits},
		{"ahead-through-legacy", ahead_through_legacy},
		{"ahead-beside-legacy", ahead_beside_legacy},
		{"ahead-of-record", ahead_of_record},
		{"reached", reached},
		{"ahead-of-copy", ahead_of_copy},
		{"own-ahead-of-copy", own_ahead_of_copy},
		{"own-ahead", own_ahead_of_waiting_copy},
		{"meanwhile", meanwhile},
		{"parted", parted},
		{"held", held},
		{"anew", anew},
		{"saturate", saturate},
		{"threads", own_streams},
		{"thread", own_stream},
		{"forgets", forgets},
		{"notes", note},
		{"follows", follows},
		{"own", own_is_waited_for},
		{"beside", beside},
		{"twins", twins_beside},
		{"placeless", placeless_beside},
		{"domain", domain_beside},
		{"crosses", crosses},
		{"crossed", crossed},
		{"full", full},
		{"unstoppable", unstoppable},
		{"far-ahead", far_ahead},
		{"context", beside_in_new_context},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
