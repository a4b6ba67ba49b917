// waiters.c - who waits for work, or asks for it, hears of that work and of no other (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long)) \
	F(cuMemAddressFree, (ptr, size_t)) \
	F(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long)) \
	F(cuMemMap, (ptr, size_t, size_t, unsigned long long, unsigned long long)) \
	F(cuMemRelease, (unsigned long long)) \
	F(cuMemUnmap, (ptr, size_t)) \
	F(cuGraphLaunch_ptsz, (handle, handle)) \
	F(simcuda_without_room, (void))
#include "order.h"

static void unmapped(unsigned rounds)
{
	enum { PIECE = 2 << 20 };
	struct {
		int type, handles, location, id;
		char rest[32];
	} at = {1, 0, 1, 0, {0}};
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		unsigned long long memory;
		ptr address;
		OK(cuMemAddressReserve(&address, PIECE, 0, 0, 0));
		OK(cuMemCreate(&memory, PIECE, &at, 0));
		OK(cuMemMap(address, PIECE, 0, memory, 0));
		launch(&b, one, r, 300);
		spin(one);
		OK(cuMemUnmap(address, PIECE));
		OK(cuMemRelease(memory));
		OK(cuMemAddressFree(address, PIECE));
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// A stream that had work before it got a domain of its own is asked for, while others of its context have work.
static void moved(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), apart = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, apart, r, 300);
		OK(gpreempt_stream_enable((stream_t)apart, GPREEMPT_LEVEL_BLOCK));
		spin(one);
		launch(&b, apart, r, 30000);
		OK(gpreempt_stream_preempt((stream_t)apart, 1));
		CHECK(cuStreamQuery(apart) == NOT_READY);
		OK(gpreempt_stream_restore((stream_t)apart, 0));
		let_go();
		copy(&b, apart);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
		OK(gpreempt_stream_disable((stream_t)apart));
	}
}

// A kernel on the legacy stream is not logged, since no process could ask for a stop. The log has a record of the thread's own stream then.
static void own_behind_nothing(unsigned rounds)
{
	struct chained b = buffer();
	handle graph, exec, first = new_event(), second = new_event(), apart = stream_of(NON_BLOCKING);
	OK(cuStreamBeginCapture_v2(apart, RELAXED));
	launch(&b, apart, 1, 1);
	OK(cuStreamEndCapture(apart, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned r = 0; r < rounds; r++) {
		OK(cuGraphLaunch_ptsz(exec, NULL)); // is logged
		OK(cuEventRecord_ptsz(first, NULL));
		OK(cuEventRecord_ptsz(second, NULL));
		until_reached(first);
		OK(cuStreamSynchronize(apart)); // the library notices that nothing is left that could be cut
		spin(NULL);
		if (r % 2)
			while (cuStreamQuery_ptsz(NULL) == NOT_READY)
				usleep(50);
		OK(cuStreamSynchronize_ptsz(NULL));
		let_go();
		OK(cuCtxSynchronize());
	}
}

// Waits until a thread fills a stream's queue, and waits in a call for room there.
static void until_full(void)
{
	while (!simcuda_without_room())
		usleep(1000);
}

static void launch_small(handle stream, int launches)
{
	unsigned n = 1, add = 1, us = 1;
	static struct chained b;
	OK(cuCtxSetCurrent(context));
	if (!b.data)
		OK(cuMemAlloc_v2(&b.data, BLOCKS * 4));
	void *parameters[] = {&b.data, &n, &add, &us};
	for (int i = 0; i < launches; i++)
		OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static _Atomic pid_t begins; // the thread that the next wait is for; 0: not yet

static void *launch_more(void *stream)
{
	begins = gettid();
	launch_small(stream, 1000);
	return NULL;
}

// A thread launches more than a stream's queue holds, behind a kernel that waits for another thread. Launches are logged, as something
// waits for the program.
static void filled(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING),
	       event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		wait_for_value(two);
		OK(cuStreamQuery(one));
		*(_Atomic uint32_t *)(uintptr_t)(word + 4) = 7;
		spin_until(one, word + 4);
		CHECK(!pthread_create(&thread, NULL, launch_more, one));
		until_full();
		OK(cuEventRecord(event, three));
		OK(cuStreamSynchronize(three));
		write_word(word + 4);
		CHECK(!pthread_join(thread, NULL));
		release();
		OK(cuCtxSynchronize());
	}
}

// The legacy stream has a record behind a kernel that waits for the program, and behind launches that are stopped again and again.
static void held_up(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(0), two = stream_of(0), event = new_event();
	for (unsigned r = 0; r < rounds; r++) {
		spin(two);
		for (int i = 0; i < 100; i++)
			launch(&b, one, r, 20000);
		OK(cuEventRecord(event, NULL));
		until_stopped();
		CHECK(cuEventQuery(event) == NOT_READY);
		let_go();
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(cuEventQuery(event) == 0 && right(&b));
	}
}

// Half as many launches as it takes until the library has used all records of a region, and zeroes another. Then the driver refuses a
// call: who started the program sees to that.
static void launch_many(struct chained *b, handle stream)
{
	enum { LAUNCHES = 3500 }; // all of which the log has room for
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&b->data, &n, &add, &us};
	for (int i = 0; i < LAUNCHES; i++)
		OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

// A launch that was repeated beside a stream is over before the stream is, also where nothing is stopped any more.
static void given_up(unsigned rounds)
{
	struct chained b = buffer(), c = buffer();
	pthread_t thread;
	handle one = stream_of(0), two = stream_of(0), apart = stream_of(NON_BLOCKING), event = new_event();
	CHECK(rounds == 1);
	launch_many(&c, apart);
	spin_until(two, word);
	launch(&b, one, 1, 20000);
	spin_until(one, word + 4);
	OK(cuEventRecord(event, NULL));
	until_stopped();
	launch_many(&c, apart);
	CHECK(cuStreamQuery(one) == NOT_READY);
	CHECK(!pthread_create(&thread, NULL, write_later, (void *)(uintptr_t)(word + 4)));
	OK(cuStreamSynchronize(one));
	CHECK(!*(_Atomic uint32_t *)(uintptr_t)(word + 4) && cuStreamQuery(one) == 0);
	CHECK(!pthread_join(thread, NULL));
	write_word(word);
	copy(&b, one);
	OK(cuCtxSynchronize());
	CHECK(right(&b));
}

// The same of what stands for a thread's own stream.
static void own_given_up(unsigned rounds)
{
	struct chained c = buffer();
	pthread_t thread;
	ptr at = word;
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&at, &at, &n, &us};
	handle apart = stream_of(NON_BLOCKING);
	CHECK(rounds == 1);
	launch_many(&c, apart);
	*(_Atomic uint32_t *)(uintptr_t)at = 7;
	OK(cuLaunchKernel_ptsz(waits, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	until_stopped();
	launch_many(&c, apart);
	CHECK(cuStreamQuery_ptsz(NULL) == NOT_READY);
	CHECK(!pthread_create(&thread, NULL, write_later, (void *)(uintptr_t)at));
	OK(cuStreamSynchronize_ptsz(NULL));
	CHECK(!*(_Atomic uint32_t *)(uintptr_t)at && cuStreamQuery_ptsz(NULL) == 0);
	CHECK(!pthread_join(thread, NULL));
}

static void *write_much_later(void *at)
{
	for (int i = 0; i < PATIENCE_S * 1000 && *(_Atomic uint32_t *)at; i++)
		usleep(1000);
	write_word((ptr)(uintptr_t)at);
	return NULL;
}

// A wait that the driver refuses, since a stream of the context is captured, leaves nothing behind: the thread's next wait is for
// another stream, while a kernel waits for the program.
static void refused_wait(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), captured = stream_of(NON_BLOCKING), graph;
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		spin(one);
		OK(cuStreamBeginCapture_v2(captured, RELAXED));
		CHECK(cuCtxSynchronize());
		cuStreamEndCapture(captured, &graph);
		CHECK(!pthread_create(&thread, NULL, write_much_later, (void *)(uintptr_t)word));
		OK(cuStreamSynchronize(two));
		CHECK(*(_Atomic uint32_t *)(uintptr_t)word); // the kernel still waits
		let_go();
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
	}
}

static void *launch_some(void *stream)
{
	launch_small(stream, 200);
	return NULL;
}

// As filled, but most of what fills the queue was launched before anything was logged.
static void filled_before(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING),
	       event = new_event();
	wait_for_value(two);
	launch(&b, one, 1, 1); // the stream gets its place in the log
	OK(cuStreamSynchronize(one));
	release();
	OK(cuCtxSynchronize());
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		unsigned n = 1, add = 1, us = 1;
		void *parameters[] = {&b.data, &n, &add, &us};
		OK(cuStreamQuery(two));
		launch(&b, two, 1, 1);
		OK(cuStreamSynchronize(two));
		spin_until(one, word + 4);
		for (int i = 0; i < 400; i++)
			OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, one, parameters, NULL));
		wait_for_value(two);
		CHECK(!pthread_create(&thread, NULL, launch_some, one));
		until_full();
		pthread_t watch;
		CHECK(!pthread_create(&watch, NULL, write_much_later, (void *)(uintptr_t)(word + 4)));
		OK(cuEventRecord(event, three));
		launch(&b, three, 1, 1);
		CHECK(*(_Atomic uint32_t *)(uintptr_t)(word + 4));
		write_word(word + 4);
		CHECK(!pthread_join(watch, NULL));
		CHECK(!pthread_join(thread, NULL));
		release();
		OK(cuCtxSynchronize());
	}
}

// A stream whose queue is always full, until it can be stopped and a little later: who started the program says when.
static void deep(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	unsigned n = 1, add = 1, us = 1000;
	void *parameters[] = {&b.data, &n, &add, &us};
	struct pollfd input = {.events = POLLIN};
	char line[64];
	for (unsigned r = 0; r < rounds || !poll(&input, 1, 0); r++) {
		OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, one, parameters, NULL));
		if (r == rounds)
			printf("deep\n");
	}
	CHECK(fgets(line, sizeof line, stdin));
	OK(cuStreamSynchronize(one));
}

// As filled, behind a kernel that waits for another thread, while a host function ahead of that host-blocks the stream. The function ends first.
static void filled_behind(unsigned rounds)
{
	enum { LAUNCHES = 450 };
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread, watch;
		released = false;
		OK(cuLaunchHostFunc(one, host_wait, NULL));
		spin_until(one, word + 4);
		launch_small(one, LAUNCHES);
		released = true;
		usleep(100000); // time for the kernel to begin, which nobody sees: if it has not, the function is what the rest is behind
		CHECK(!pthread_create(&thread, NULL, launch_some, one));
		until_full();
		CHECK(!pthread_create(&watch, NULL, write_much_later, (void *)(uintptr_t)(word + 4)));
		launch(&b, three, 1, 1);
		CHECK(*(_Atomic uint32_t *)(uintptr_t)(word + 4));
		write_word(word + 4);
		CHECK(!pthread_join(watch, NULL));
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
	}
}

// As a launch of some 400 ms runs, and for a while of that.
static void *stop_for_a_while(void *stream)
{
	OK(cuCtxSetCurrent(context));
	usleep(100000);
	gpreempt_stream_preempt((stream_t)stream, 1); // where the library has given up it says so
	usleep(100000);
	gpreempt_stream_restore((stream_t)stream, 0);
	return NULL;
}

// A copy comes behind a launch that is stopped, and the driver refuses a call of the library's meanwhile: who started the program sees
// to that.
static void behind_a_refusal(unsigned rounds)
{
	enum { LAUNCH_US = 400000 };
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	OK(gpreempt_stream_enable((stream_t)one, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		launch(&b, one, r + 1, LAUNCH_US);
		CHECK(!pthread_create(&thread, NULL, stop_for_a_while, one));
		copy(&b, one);
		int result = cuStreamSynchronize(one);
		CHECK(!pthread_join(thread, NULL));
		CHECK(result || right(&b)); // an error says that launches were lost
	}
}

static struct launches {
	handle exec, stream;
	_Atomic pid_t begins;
} launches;

static void *launch_instance(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	launches.begins = gettid();
	OK(cuGraphLaunch(launches.exec, launches.stream));
	return NULL;
}

// Begins to let go of a word late, so that the program ends where it hangs. True: it does not hang, if it is still there to ask.
static bool goes_on(void (*what)(void *), void *argument, ptr at)
{
	pthread_t watch;
	CHECK(!pthread_create(&watch, NULL, write_much_later, (void *)(uintptr_t)at));
	what(argument);
	bool before = *(_Atomic uint32_t *)(uintptr_t)at;
	write_word(at);
	CHECK(!pthread_join(watch, NULL));
	return before;
}

static void launch_on(void *stream)
{
	static struct chained b;
	if (!b.data)
		b = buffer();
	launch(&b, stream, 1, 1);
}

// An instance of a graph runs to its end, since something that is not logged comes behind it. It is launched on a stream whose queue is
// full.
static void filled_ahead(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING), graph;
	OK(cuStreamBeginCapture_v2(one, RELAXED));
	spin(one);
	OK(cuStreamEndCapture(one, &graph));
	OK(cuGraphInstantiateWithFlags(&launches.exec, graph, 0));
	launch_on(three);
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t fills, launcher;
		*(_Atomic uint32_t *)(uintptr_t)word = 7;
		OK(cuGraphLaunch(launches.exec, one));
		copy(&b, one);
		spin_until(two, word + 4);
		CHECK(!pthread_create(&fills, NULL, launch_more, two));
		until_full();
		launches.stream = two;
		launches.begins = 0;
		CHECK(!pthread_create(&launcher, NULL, launch_instance, NULL));
		until_it_waits(&launches.begins); // for room
		CHECK(goes_on(launch_on, three, word + 4));
		let_go();
		CHECK(!pthread_join(fills, NULL));
		CHECK(!pthread_join(launcher, NULL));
		OK(cuCtxSynchronize());
	}
}

// A stream has a wait that lasts, and a record behind it, behind a launch that was logged and is over: nothing of it can be cut.
static struct {
	handle one, event; // the record
	handle logged;     // an instance of a graph, whose launches are always logged
	handle apart, ahead, reached;
} left;

// more: records behind another launch and wait, on a stream of their own.
static void leave_events(handle more, unsigned records)
{
	handle graph, behind = new_event();
	if (!left.one) {
		left.one = stream_of(NON_BLOCKING);
		left.apart = stream_of(NON_BLOCKING);
		left.event = new_event();
		left.ahead = new_event();
		left.reached = new_event();
		OK(cuStreamBeginCapture_v2(left.one, RELAXED));
		spin(left.one);
		OK(cuStreamEndCapture(left.one, &graph));
		OK(cuGraphInstantiateWithFlags(&left.logged, graph, 0));
	}
	*(_Atomic uint32_t *)(uintptr_t)word = 0;
	OK(cuGraphLaunch(left.logged, left.apart)); // the stream gets its place
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(left.apart));
	spin_until(left.apart, word + 4); // is not logged
	OK(cuEventRecord(left.ahead, left.apart));
	*(_Atomic uint32_t *)(uintptr_t)word = 7;
	OK(cuGraphLaunch(left.logged, left.one));
	if (records)
		launch_on(more);
	OK(cuEventRecord(left.reached, left.one));
	OK(cuStreamWaitEvent(left.one, left.ahead, 0));
	OK(cuEventRecord(left.event, left.one));
	if (records)
		OK(cuStreamWaitEvent(more, left.ahead, 0));
	for (unsigned i = 0; i < records; i++)
		OK(cuEventRecord(behind, more));
	let_go();
	until_reached(left.reached);
	handle another = stream_of(NON_BLOCKING);
	OK(cuStreamSynchronize(another)); // the library notices that nothing is left that could be cut
	OK(cuStreamDestroy_v2(another));
}

static void ask_for_event(void *event) { CHECK(cuEventQuery(event) == NOT_READY); }

// Launches that are not logged fill the queue of such a stream. Then somebody comes who stops the program: who started it says when.
static void filled_past(unsigned rounds)
{
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t fills;
		leave_events(NULL, 0);
		CHECK(!pthread_create(&fills, NULL, launch_more, left.one));
		until_full();
		until_stopped();
		CHECK(goes_on(ask_for_event, left.event, word + 4));
		CHECK(!pthread_join(fills, NULL));
		OK(cuCtxSynchronize());
	}
}

static handle other_context;

static void *wait_in_other(void *stream)
{
	begins = gettid();
	OK(cuCtxSetCurrent(other_context));
	OK(cuStreamWaitEvent(stream, left.event, 0));
	return NULL;
}

// The same, and a stream of another context waits for the event.
static void filled_awaited(unsigned rounds)
{
	handle other;
	OK(cuCtxCreate_v2(&other_context, 0, 0));
	other = stream_of(NON_BLOCKING);
	OK(cuCtxSetCurrent(context));
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t fills, waiter;
		leave_events(NULL, 0);
		CHECK(!pthread_create(&fills, NULL, launch_more, left.one));
		until_full();
		begins = 0;
		CHECK(!pthread_create(&waiter, NULL, wait_in_other, other));
		until_it_waits(&begins);
		usleep(1500000); // the time is what matters: the library's patience, a second, is over
		CHECK(goes_on(ask_for_event, left.event, word + 4));
		CHECK(!pthread_join(fills, NULL));
		CHECK(!pthread_join(waiter, NULL));
		OK(cuCtxSynchronize());
	}
}

static void *record_more(void *stream)
{
	begins = gettid();
	OK(cuCtxSetCurrent(context));
	handle event = new_event();
	for (int i = 0; i < 3; i++)
		OK(cuEventRecord(event, stream));
	return NULL;
}

// The same, and another stream gets more records than the library has room for.
static void filled_recorded(unsigned rounds)
{
	enum { RECORDS = 127 }; // and a wait: as many as a stream may have in the log
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t fills, records;
		handle more = stream_of(NON_BLOCKING);
		leave_events(more, RECORDS);
		CHECK(!pthread_create(&fills, NULL, launch_more, left.one));
		until_full();
		begins = 0;
		CHECK(!pthread_create(&records, NULL, record_more, more));
		until_it_waits(&begins); // for room in the log
		CHECK(goes_on(ask_for_event, left.event, word + 4));
		CHECK(!pthread_join(fills, NULL));
		CHECK(!pthread_join(records, NULL));
		OK(cuCtxSynchronize());
	}
}

static _Atomic uint32_t record_word;
static _Atomic bool left_over;
static void *wait_for_left(void *record_waits)
{
	begins = gettid();
	OK(cuCtxSetCurrent(context));
	((void (*)(_Atomic uint32_t *))record_waits)(&record_word);
	OK(cuEventSynchronize(left.event));
	left_over = true;
	return NULL;
}

static void *record_left(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(cuEventRecord(left.event, stream));
	return NULL;
}

static void ask_for_reached(void *event) { CHECK(cuEventQuery(event) == 0); }

// A thread waits for the event, which is recorded anew, so that the library marks its stream. Just before the library does, another thread
// fills the queue. Where the thread began to wait too late, it goes on at once.
static void filled_marked(unsigned rounds)
{
	handle another = stream_of(NON_BLOCKING);
	void *record_waits = dlsym(RTLD_DEFAULT, "simcuda_record_waits");
	unsigned late = 0;
	CHECK(record_waits);
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t fills, waiter, recorder;
		leave_events(NULL, 0);
		record_word = 0;
		left_over = false;
		begins = 0;
		CHECK(!pthread_create(&waiter, NULL, wait_for_left, record_waits));
		until_it_waits(&begins);
		CHECK(!pthread_create(&recorder, NULL, record_left, another)); // the waiter may hold it up
		while (record_word != 1 && !left_over)
			usleep(50);
		late += record_word != 1;
		begins = 0;
		CHECK(!pthread_create(&fills, NULL, launch_more, left.one));
		until_it_waits(&begins); // for room, or for who records
		record_word = 2;
		CHECK(goes_on(ask_for_reached, left.reached, word + 4));
		CHECK(!pthread_join(fills, NULL));
		CHECK(!pthread_join(waiter, NULL));
		CHECK(!pthread_join(recorder, NULL));
		OK(cuCtxSynchronize());
	}
	CHECK(late < rounds);
}

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"plain", plain},
		{"unmapped", unmapped},
		{"moved", moved},
		{"own-past", own_behind_nothing},
		{"filled", filled},
		{"held-up", held_up},
		{"given-up", given_up},
		{"own-given-up", own_given_up},
		{"refused", refused_wait},
		{"filled-before", filled_before},
		{"filled-behind", filled_behind},
		{"filled-ahead", filled_ahead},
		{"filled-past", filled_past},
		{"filled-awaited", filled_awaited},
		{"filled-recorded", filled_recorded},
		{"filled-marked", filled_marked},
		{"deep", deep},
		{"behind-refusal", behind_a_refusal},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
