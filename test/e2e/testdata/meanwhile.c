// meanwhile.c - who waits for work, or asks for it, hears nothing of what another thread does meanwhile (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) F(cuEventDestroy_v2, (handle))
#include "order.h"
#include <dlfcn.h>

// What a thread waits for, while another one launches a kernel that waits for it.
static struct meanwhile {
	handle stream; // NULL: the legacy stream
	bool all;      // of the context
	_Atomic bool begins, over;
} meanwhile;

static void *wait_meanwhile(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	meanwhile.begins = true;
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
	enum { LAUNCHES = 10, LAUNCH_US = 20000, CALLED_US = 50000, PATIENCE_US = 10000000 };
	struct chained b = buffer();
	unsigned late = 0;
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		meanwhile.all = all;
		meanwhile.stream = stream;
		meanwhile.begins = meanwhile.over = false;
		for (int i = 0; i < LAUNCHES; i++)
			launch(&b, on, r, LAUNCH_US);
		CHECK(!pthread_create(&thread, NULL, wait_meanwhile, NULL));
		while (!meanwhile.begins)
			usleep(50);
		usleep(CALLED_US);
		spin(another);
		for (int us = 0; !meanwhile.over && us < PATIENCE_US; us += 1000)
			usleep(1000);
		late += !meanwhile.over;
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

// A thread calls something, and another one does more meanwhile. True: the call returned before the program let W go, the kernel that
// was launched on a stream after the call had begun. What else was to end has ended by the time of this call.
static bool returns_before(pthread_t thread, _Atomic bool *over)
{
	enum { PATIENCE_US = 5000000 };
	for (int us = 0; !*over && us < PATIENCE_US; us += 1000)
		usleep(1000);
	bool returned = *over;
	let_go();
	CHECK(!pthread_join(thread, NULL));
	OK(cuCtxSynchronize());
	return returned;
}

static pthread_t begin_meanwhile(bool all, handle stream)
{
	enum { CALLED_US = 100000 };
	pthread_t thread;
	meanwhile.all = all;
	meanwhile.stream = stream;
	meanwhile.begins = meanwhile.over = false;
	CHECK(!pthread_create(&thread, NULL, wait_meanwhile, NULL));
	while (!meanwhile.begins)
		usleep(50);
	usleep(CALLED_US);
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

// A stream is destroyed that a thread waits for, with the rest of the context. What was there is over soon.
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
	_Atomic bool begins, over;
} renewed;

static void *wait_for_event(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	renewed.begins = true;
	OK(cuEventSynchronize(renewed.event));
	renewed.over = true;
	return NULL;
}

// The event at the end of what a thread waits for is recorded anew, on another stream, or destroyed. Then the stream gets a kernel that
// waits for that thread.
static void renewed_meanwhile(unsigned rounds, bool destroyed, bool waits_for_event)
{
	enum { CALLED_US = 100000 };
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		handle event = new_event();
		pthread_t thread;
		spin_until(one, word + 4);
		OK(cuEventRecord(event, one));
		if (waits_for_event) {
			renewed.event = event;
			renewed.begins = renewed.over = false;
			CHECK(!pthread_create(&thread, NULL, wait_for_event, NULL));
			while (!renewed.begins)
				usleep(50);
			usleep(CALLED_US);
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

static void *free_meanwhile(void *memory)
{
	OK(cuCtxSetCurrent(context));
	meanwhile.begins = true;
	OK(cuMemFree_v2(*(ptr *)memory));
	meanwhile.over = true;
	return NULL;
}

// A launch beside a call that frees memory waits for that call, and not the call for the launch.
static void freed_meanwhile(unsigned rounds)
{
	enum { CALLED_US = 50000 };
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		ptr memory;
		OK(cuMemAlloc_v2(&memory, 4 << 20));
		launch(&b, one, r, 500000);
		meanwhile.begins = meanwhile.over = false;
		CHECK(!pthread_create(&thread, NULL, free_meanwhile, &memory));
		while (!meanwhile.begins)
			usleep(50);
		usleep(CALLED_US);
		spin(another);
		CHECK(returns_before(thread, &meanwhile.over));
	}
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
		{"let-run", let_run_meanwhile},
		{"event-destroyed", event_destroyed},
		{"stream-renewed", stream_renewed},
		{"event-renewed", event_renewed},
		{"freed", freed_meanwhile},
		{"asked-stream", stream_asked_before},
		{"asked-event", event_asked_before},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
