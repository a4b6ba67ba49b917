// synchronize.c - who waits for a context finds all of its work done, whatever streams it has (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) F(cuMemcpyDtoHAsync_v2_ptsz, (void *, ptr, size_t, handle))
#include "order.h"

enum { LAUNCHES = 3, LAUNCH_US = 200, LONG_US = 1000 };

static void work(struct chained *b, handle stream, unsigned add, unsigned us)
{
	for (int i = 0; i < LAUNCHES; i++)
		launch(b, stream, add, us);
	copy(b, stream);
}

// Blocking and non-blocking streams in turn take longer.
static void many(unsigned rounds)
{
	enum { STREAMS = 12 };
	static struct chained b[STREAMS + 1];
	static handle stream[STREAMS + 1]; // the last is the legacy stream
	for (int i = 0; i <= STREAMS && !stream[0]; i++)
		b[i] = buffer();
	for (int i = 0; i < STREAMS && !stream[i]; i++)
		stream[i] = stream_of(i % 2 ? NON_BLOCKING : 0);
	for (unsigned r = 0; r < rounds; r++) {
		for (int i = 0; i <= STREAMS; i++)
			if ((r >> i % 3) % 2 == 0)
				work(&b[i], stream[i], r, (unsigned)i % 2 == r % 2 ? LONG_US : LAUNCH_US);
		OK(cuCtxSynchronize());
		for (int i = 0; i <= STREAMS; i++)
			CHECK(right(&b[i]));
	}
}

// A stream that is destroyed while it has work.
static void destroyed(unsigned rounds)
{
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		handle one = stream_of(NON_BLOCKING);
		work(&b, one, r, LAUNCH_US);
		OK(cuStreamDestroy_v2(one));
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

static struct chained others;

static void *on_its_own(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < LAUNCHES; i++)
		launch_by(cuLaunchKernel_ptsz, &others, NULL, 1, LAUNCH_US);
	OK(cuMemcpyDtoHAsync_v2_ptsz(others.have, others.data, BLOCKS * 4, NULL));
	return NULL;
}

// Work of another thread on its own default stream.
static void own(unsigned rounds)
{
	others = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, on_its_own, NULL));
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
		CHECK(right(&others));
	}
}

static void captured(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), graph;
	for (unsigned r = 0; r < rounds; r++) {
		work(&b, one, r, LAUNCH_US);
		OK(cuStreamBeginCapture_v2(two, RELAXED));
		CHECK(cuCtxSynchronize() != 0); // the driver's own answer
		CHECK(cuStreamEndCapture(two, &graph) != 0);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

// A stream that the driver does not destroy, since it is captured. The next wait asks the driver, and those behind it know the stream as before.
static void refused(unsigned rounds)
{
	static handle one;
	static struct chained b;
	handle graph;
	if (!one) {
		b = buffer();
		one = stream_of(NON_BLOCKING);
		OK(cuStreamBeginCapture_v2(one, RELAXED));
		CHECK(cuStreamDestroy_v2(one) != 0);
		CHECK(cuStreamEndCapture(one, &graph) != 0);
	}
	for (unsigned r = 0; r < rounds; r++) {
		work(&b, one, r, LONG_US);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

// A context that the driver does not destroy, since it is the primary one. No thread makes it current again. Its stream is known as before.
static void kept(unsigned rounds)
{
	static handle one;
	static struct chained b;
	if (!one) {
		b = buffer();
		one = stream_of(NON_BLOCKING);
		CHECK(cuCtxDestroy_v2(context) != 0);
	}
	for (unsigned r = 0; r < rounds; r++) {
		work(&b, one, r, LONG_US);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

// Calls that destroy NULL, or a handle that is destroyed already. The library knows all existing objects as before.
static void invalid(unsigned rounds)
{
	static handle one;
	static struct chained b;
	if (!one) {
		b = buffer();
		handle gone = stream_of(NON_BLOCKING);
		one = stream_of(NON_BLOCKING);
		OK(cuStreamDestroy_v2(gone));
		CHECK(cuStreamDestroy_v2(gone) != 0);
		CHECK(cuStreamDestroy_v2(NULL) != 0);
		CHECK(cuCtxDestroy_v2(NULL) != 0);
	}
	for (unsigned r = 0; r < rounds; r++) {
		work(&b, one, r, LONG_US);
		OK(cuCtxSynchronize());
		CHECK(right(&b));
	}
}

int main(int argc, char **argv)
{
	static const struct task what[] = {{"plain", plain}, {"many", many},         {"destroyed", destroyed},
					   {"own", own},     {"captured", captured}, {"refused", refused},
					   {"kept", kept},   {"invalid", invalid}};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
