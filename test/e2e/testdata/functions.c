// functions.c - streams with many host functions, which may wait for the program (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) F(cuLaunchHostFunc_ptsz, (handle, void (*)(void *), void *))
#include "order.h"

static void nothing(void *unused) { (void)unused; }

// So many host functions behind a kernel that waits for the program, that the queue would be full if each needed two places.
static void host_functions(unsigned rounds)
{
	enum { FUNCTIONS = 350 };
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++) {
		spin(one);
		for (int i = 0; i < FUNCTIONS; i++)
			OK(cuLaunchHostFunc(one, nothing, NULL));
		let_go();
		OK(cuStreamSynchronize(one));
	}
	for (int i = 0; i < FUNCTIONS; i++) // and it may be destroyed while it has them
		OK(cuLaunchHostFunc(one, nothing, NULL));
	OK(cuStreamDestroy_v2(one));
	OK(cuCtxSynchronize());
}

enum { MANY_FUNCTIONS = 200 };

// Launches on a stream that nothing else concerns.
static void apart(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds; r++)
		launch(&b, one, r, 20000);
	copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(right(&b));
}

// A stream is captured that had many host functions, while a graph with a host function is launched on another one.
static void captured_after_functions(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), graph, exec;
	OK(cuStreamBeginCapture_v2(two, RELAXED));
	OK(cuLaunchHostFunc(two, nothing, NULL));
	OK(cuStreamEndCapture(two, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned r = 0; r < rounds; r++) {
		spin(one);
		for (int i = 0; i < MANY_FUNCTIONS; i++)
			OK(cuLaunchHostFunc(one, nothing, NULL));
		let_go();
		OK(cuStreamSynchronize(one));
		OK(cuStreamBeginCapture_v2(one, RELAXED));
		launch(&b, one, r, 10);
		OK(cuGraphLaunch(exec, two));
		int result = cuStreamEndCapture(one, &graph);
		if (result)
			printf("cuStreamEndCapture returned %d\n", result);
		CHECK(!result);
		OK(cuCtxSynchronize());
	}
}

// A thread that had many host functions on its own stream ends.
static void *own_functions(void *unused)
{
	(void)unused;
	ptr at = word;
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&at, &at, &n, &us};
	OK(cuCtxSetCurrent(context));
	*(_Atomic uint32_t *)(uintptr_t)at = 7;
	OK(cuLaunchKernel_ptsz(waits, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	for (int i = 0; i < MANY_FUNCTIONS; i++)
		OK(cuLaunchHostFunc_ptsz(NULL, nothing, NULL));
	let_go();
	OK(cuStreamSynchronize_ptsz(NULL));
	return NULL;
}

static void thread_of_functions(unsigned rounds)
{
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, own_functions, NULL));
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
	}
}

// A stream that had many host functions is never idle afterwards.
static void busy(unsigned rounds)
{
	enum { AHEAD = 4, LAUNCH_US = 5000 };
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING), done[AHEAD];
	for (int i = 0; i < AHEAD; i++)
		done[i] = new_event();
	spin(one);
	for (int i = 0; i < MANY_FUNCTIONS; i++)
		OK(cuLaunchHostFunc(one, nothing, NULL));
	for (int i = 0; i < AHEAD; i++) {
		launch(&b, one, 1, LAUNCH_US);
		OK(cuEventRecord(done[i], one));
	}
	let_go();
	for (unsigned r = 0; r < rounds; r++) {
		OK(cuEventSynchronize(done[r % AHEAD]));
		launch(&b, one, r, LAUNCH_US);
		OK(cuEventRecord(done[r % AHEAD], one));
	}
	copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(right(&b));
}

static _Atomic unsigned functions_done;
static void count_function(void *unused)
{
	(void)unused;
	functions_done++;
}

static void *launch_in(void *other)
{
	handle stream, graph, exec;
	ptr memory;
	void *pinned;
	OK(cuCtxSetCurrent(other));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuMemAlloc_v2(&memory, 4096));
	OK(cuMemHostAlloc(&pinned, 4096, 0));
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	OK(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	return NULL;
}

// A launch on the legacy stream comes behind many host functions, the last of which waits for the program. It is not stopped before that
// has happened, also where a thread with another context looks at host blocks meanwhile.
static void functions_elsewhere(unsigned rounds)
{
	struct chained b = buffer();
	handle other;
	char line[64];
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxSetCurrent(context));
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		functions_done = 0;
		released = false;
		spin(NULL);
		for (unsigned i = 0; i < MANY_FUNCTIONS; i++)
			OK(cuLaunchHostFunc(NULL, count_function, NULL));
		OK(cuLaunchHostFunc(NULL, host_wait, NULL));
		let_go();
		while (functions_done < MANY_FUNCTIONS)
			usleep(50);
		CHECK(!pthread_create(&thread, NULL, launch_in, other));
		CHECK(!pthread_join(thread, NULL));
		launch(&b, NULL, r, 10);
		printf("launched\n");
		CHECK(fgets(line, sizeof line, stdin));
		released = true;
		OK(cuCtxSynchronize());
	}
}

static void *wait_then_release(void *over)
{
	for (int ms = 0; !*(_Atomic bool *)over && ms < PATIENCE_S * 1000; ms++)
		usleep(1000);
	released = true;
	return NULL;
}

// An instance is launched on another stream while the first one has a host function behind it that waits for that launch.
static void instance_ahead_of_function(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING), graph, exec;
	OK(cuStreamBeginCapture_v2(one, RELAXED));
	spin_until(one, word + 4);
	OK(cuStreamEndCapture(one, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread;
		_Atomic bool over = false;
		released = false;
		*(_Atomic uint32_t *)(uintptr_t)(word + 4) = 7;
		OK(cuGraphLaunch(exec, one));
		OK(cuLaunchHostFunc(one, host_wait, NULL));
		CHECK(!pthread_create(&thread, NULL, wait_then_release, &over));
		OK(cuGraphLaunch(exec, two));
		write_word(word + 4);
		OK(cuStreamSynchronize(two));
		CHECK(!released);
		over = true;
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
	}
}

static _Atomic pid_t begins; // of the thread; 0: not yet

static void *functions_to_the_end(void *stream)
{
	begins = gettid();
	enum { LAUNCHES = 509 }; // of a queue of 512: with both functions there is room for one call more
	unsigned n = 1, add = 1, us = 1;
	static struct chained b;
	OK(cuCtxSetCurrent(context));
	if (!b.data)
		OK(cuMemAlloc_v2(&b.data, BLOCKS * 4));
	void *parameters[] = {&b.data, &n, &add, &us};
	OK(cuLaunchHostFunc(stream, host_wait, NULL));
	for (int i = 0; i < LAUNCHES; i++)
		OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
	OK(cuLaunchHostFunc(stream, nothing, NULL));
	return NULL;
}

// As filled, behind a host function that waits for another thread, and up to another one.
static void filled_by_functions(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), three = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		pthread_t thread, watch;
		_Atomic bool over = false;
		released = false;
		begins = 0;
		CHECK(!pthread_create(&thread, NULL, functions_to_the_end, one));
		until_it_waits(&begins);
		CHECK(!pthread_create(&watch, NULL, wait_then_release, &over));
		launch(&b, three, 1, 1);
		CHECK(!released);
		over = true;
		CHECK(!pthread_join(watch, NULL));
		CHECK(!pthread_join(thread, NULL));
		OK(cuCtxSynchronize());
	}
}

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"plain", plain},
		{"functions", host_functions},
		{"apart", apart},
		{"captured", captured_after_functions},
		{"own-functions", thread_of_functions},
		{"busy", busy},
		{"functions-elsewhere", functions_elsewhere},
		{"instance", instance_ahead_of_function},
		{"filled-functions", filled_by_functions},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
