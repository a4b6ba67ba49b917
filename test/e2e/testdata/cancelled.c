// cancelled.c - threads that are cancelled in a call of the driver which waits.
#define _GNU_SOURCE
#include "order.h"

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

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"plain", plain}, {"context", in_context}, {"stream", in_stream}, {"launch", in_first_launch}};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
