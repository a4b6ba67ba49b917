// kept.c - a thread works in a context whose end another thread asks for, while it has other users: all goes on (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuCtxAttach, (handle *, unsigned)) \
	F(cuCtxDetach, (handle))
#include "order.h"

static struct worker {
	handle context, stream, event;
	struct chained b;
	_Atomic unsigned launches;
	_Atomic bool over;
} worker;

enum { MOST_AHEAD = 32 }; // of the GPU

static void *work(void *unused)
{
	OK(cuCtxSetCurrent(worker.context));
	while (!worker.over) {
		launch(&worker.b, worker.stream, 1, 300);
		OK(cuEventRecord(worker.event, worker.stream));
		if (++worker.launches % MOST_AHEAD == 0)
			until_reached(worker.event);
	}
	copy(&worker.b, worker.stream);
	OK(cuStreamSynchronize(worker.stream));
	OK(cuEventQuery(worker.event));
	return unused;
}

static void detached(unsigned rounds)
{
	enum { AHEAD = 10 };
	handle here = chain;
	for (unsigned r = 0; r < rounds; r++) {
		handle module, again;
		pthread_t thread;
		OK(cuCtxCreate_v2(&worker.context, 0, 0));
		OK(cuCtxAttach(&again, 0));
		CHECK(again == worker.context);
		OK(cuModuleLoad(&module, image));
		OK(cuModuleGetFunction(&chain, module, "sim_chain"));
		worker.b = buffer();
		worker.stream = stream_of(NON_BLOCKING);
		worker.event = new_event();
		worker.launches = 0;
		worker.over = false;
		CHECK(!pthread_create(&thread, NULL, work, NULL));
		while (worker.launches < AHEAD)
			usleep(50);
		OK(cuCtxDetach(worker.context));
		for (unsigned before = worker.launches; worker.launches < before + AHEAD;)
			usleep(50);
		worker.over = true;
		CHECK(!pthread_join(thread, NULL));
		CHECK(right(&worker.b));
		OK(cuCtxDetach(worker.context)); // the last user
		CHECK(cuCtxDestroy_v2(worker.context) != 0);
		OK(cuCtxSetCurrent(context));
	}
	chain = here;
}

int main(int argc, char **argv)
{
	static const struct task what[] = {{"plain", plain}, {"detached", detached}};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
