// cancelled.c - threads that are cancelled in a call of the driver which waits.
#define _GNU_SOURCE
#include "order.h"
#include <dlfcn.h>

static void launch_first(void)
{
	ptr at = word;
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&at, &at, &n, &us};
	cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

static handle stream;
static void wait_for_context(void) { cuCtxSynchronize(); }
static void wait_for_stream_of_ours(void) { cuStreamSynchronize(stream); }

// The first point at which the thread can end is where the driver waits.
static void *end_in(void *call)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	OK(cuCtxSetCurrent(context));
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
	((void (*)(void))call)();
	return NULL;
}

static void cancelled(void (*call)(void), unsigned rounds)
{
	void *result;
	pthread_t thread;
	if (!stream)
		stream = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		wait_for_value(stream);
		CHECK(!pthread_create(&thread, NULL, end_in, (void *)call));
		CHECK(!pthread_join(thread, &result));
		CHECK(result == PTHREAD_CANCELED);
		release();
		OK(cuStreamSynchronize(stream));
	}
}

static void in_context(unsigned rounds) { cancelled(wait_for_context, rounds); }
static void in_stream(unsigned rounds) { cancelled(wait_for_stream_of_ours, rounds); }
static void in_first_launch(unsigned rounds) { cancelled(launch_first, rounds); }

static _Atomic uint32_t record_word;

static void *end_in_record(void *event)
{
	void (*record_waits)(_Atomic uint32_t *) =
		(void (*)(_Atomic uint32_t *))dlsym(RTLD_DEFAULT, "simcuda_record_waits");
	CHECK(record_waits);
	OK(cuCtxSetCurrent(context));
	record_waits(&record_word);
	cuEventRecord(event, stream);
	pthread_testcancel();
	return NULL;
}

// A thread that is cancelled where it records an event behind launches that may be stopped.
static void in_record(unsigned rounds)
{
	enum { LONG_US = 20000 };
	struct chained b = buffer();
	handle event = new_event();
	if (!stream)
		stream = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		void *result;
		pthread_t thread;
		record_word = 0;
		launch(&b, stream, r, LONG_US);
		CHECK(!pthread_create(&thread, NULL, end_in_record, event));
		while (record_word != 1)
			usleep(50);
		CHECK(!pthread_cancel(thread));
		record_word = 2;
		CHECK(!pthread_join(thread, &result));
		CHECK(result == PTHREAD_CANCELED);
		launch(&b, stream, r, 10);
		copy(&b, stream);
		OK(cuStreamSynchronize(stream));
		CHECK(right(&b));
	}
}

int main(int argc, char **argv)
{
	static const struct task what[] = {{"plain", plain},
					   {"context", in_context},
					   {"stream", in_stream},
					   {"launch", in_first_launch},
					   {"record", in_record}};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
