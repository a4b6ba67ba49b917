// loads.c - who asks, waits or launches while another thread loads or unloads code (order.h says how it is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuCtxGetCurrent, (handle *)) \
	F(cuLibraryLoadFromFile, (handle *, const char *, int *, void **, unsigned, int *, void **, unsigned)) \
	F(cuLibraryGetKernel, (handle *, handle, const char *)) F(cuLibraryUnload, (handle))
#include "order.h"

static pthread_t begin(void *(*run)(void *), void *argument)
{
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, run, argument));
	return thread;
}

static struct begun {
	void *(*run)(void *);
	void *argument;
	_Atomic pid_t thread;
} begun;

static void *run_begun(void *unused)
{
	(void)unused;
	void *(*run)(void *) = begun.run, *argument = begun.argument;
	begun.thread = gettid();
	return run(argument);
}

// The thread waits in its call, or has ended.
static pthread_t begin_waiting(void *(*run)(void *), void *argument)
{
	begun.run = run;
	begun.argument = argument;
	begun.thread = 0;
	pthread_t thread = begin(run_begun, NULL);
	until_it_waits(&begun.thread);
	return thread;
}

static void join(pthread_t thread) { CHECK(!pthread_join(thread, NULL)); }

enum { CALLED_US = 100000 };

// Lets the kernel go when told to, or where that does not come for long: the test has failed by then.
static _Atomic bool told;

static void *let_go_when_told(void *unused)
{
	(void)unused;
	released |= !comes(&told);
	let_go();
	return NULL;
}

static pthread_t begin_to_let_go(void)
{
	told = false;
	return begin(let_go_when_told, NULL);
}

// Calls of a thread in which the driver waits with its lock.

static void *load_module(void *unused)
{
	handle module;
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, image));
	return NULL;
}

static handle fresh, freshly_on; // a kernel that was never launched

static void *launch_fresh(void *unused)
{
	ptr data = word + 4;
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&data, &n, &add, &us};
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(cuLaunchKernel(fresh, 1, 1, 1, 32, 1, 1, 0, freshly_on, parameters, NULL));
	return NULL;
}

static handle exec;

static void *launch_graph(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(cuGraphLaunch(exec, stream));
	return NULL;
}

static ptr freed;

static void *free_memory(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(cuMemFree_v2(freed));
	return NULL;
}

// Calls of another thread then, which wait for that lock.

static void *launch_one(void *stream)
{
	ptr data = word + 4;
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&data, &n, &add, &us};
	OK(cuCtxSetCurrent(context));
	OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
	return NULL;
}

static void *record_one(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(cuEventRecord(new_event(), stream));
	return NULL;
}

static handle awaited;

static void *await_one(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamWaitEvent(stream, awaited, 0));
	return NULL;
}

static void *launch_own(void *unused) // on the thread's own stream
{
	ptr data = word + 4;
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&data, &n, &add, &us};
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(cuLaunchKernel_ptsz(chain, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	return NULL;
}

static handle instantiate(handle kernel)
{
	handle graph, of, capturing = stream_of(NON_BLOCKING);
	ptr data = word + 4;
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&data, &n, &add, &us};
	OK(cuStreamBeginCapture_v2(capturing, RELAXED));
	OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, capturing, parameters, NULL));
	OK(cuStreamEndCapture(capturing, &graph));
	OK(cuGraphInstantiateWithFlags(&of, graph, 0));
	return of;
}

// A kernel waits for the program, and the driver for the kernel. Questions are answered, and waits for other work end, meanwhile.
struct asked {
	handle one, short_on;  // where the kernel is, and where what ends soon is
	handle reached, ended; // events behind the two
};

static struct asked begin_asked(void)
{
	struct asked a = {stream_of(NON_BLOCKING), stream_of(NON_BLOCKING), new_event(), new_event()};
	struct chained b = buffer();
	OK(cuStreamSynchronize(NULL));
	released = false;
	awaited = a.reached;
	spin(a.one);
	OK(cuEventRecord(a.reached, a.one));
	launch(&b, a.short_on, 1, 3 * CALLED_US);
	OK(cuEventRecord(a.ended, a.short_on));
	return a;
}

static void ask(const struct asked *a, unsigned round)
{
	pthread_t late = begin_to_let_go();
	switch (round % 4) {
	case 0: CHECK(cuStreamQuery(a->one) == NOT_READY && !released); break;
	case 1: CHECK(cuEventQuery(a->reached) == NOT_READY && !released); break;
	case 2:
		OK(cuStreamSynchronize(a->short_on));
		CHECK(!released);
		break;
	case 3:
		OK(cuEventSynchronize(a->ended));
		CHECK(!released);
		break;
	}
	while (cuStreamQuery(a->short_on) && !released)
		usleep(1000);
	CHECK(!cuStreamQuery(a->short_on) && !released);
	told = true;
	join(late);
}

static void asked_while(unsigned rounds, void *(*waits_with_lock)(void *), void (*prepare)(void))
{
	static void *(*const beside[])(void *) = {launch_one, launch_graph, record_one, await_one, launch_own};
	enum { WAYS = sizeof beside / sizeof *beside };
	handle another = stream_of(NON_BLOCKING);
	exec = instantiate(chain);
	for (unsigned r = 0; r < rounds * WAYS * 4; r++) {
		if (prepare)
			prepare();
		struct asked a = begin_asked();
		pthread_t waits = begin_waiting(waits_with_lock, another);
		pthread_t other = begin_waiting(beside[r / 4 % WAYS], another);
		ask(&a, r);
		join(waits);
		join(other);
		OK(cuCtxSynchronize());
	}
}

static void asked_while_loading(unsigned rounds) { asked_while(rounds, load_module, NULL); }

static void find_fresh(void)
{
	handle module;
	freshly_on = stream_of(NON_BLOCKING);
	OK(cuModuleLoad(&module, image));
	OK(cuModuleGetFunction(&fresh, module, "sim_chain"));
}

static void find_fresh_of_library(void)
{
	handle library;
	freshly_on = stream_of(NON_BLOCKING);
	OK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&fresh, library, "sim_chain"));
}

// One of an image that is not rewritten.
static void find_fresh_plain(void)
{
	handle module;
	freshly_on = stream_of(NON_BLOCKING);
	OK(cuModuleLoadData(&module, "of no form that is known"));
	OK(cuModuleGetFunction(&fresh, module, "sim_chain"));
}

// Where the driver loads code with the first launch, that waits like a load.
static void asked_while_first(unsigned rounds) { asked_while(rounds, launch_fresh, find_fresh); }
static void asked_while_first_of_library(unsigned rounds) { asked_while(rounds, launch_fresh, find_fresh_of_library); }
static void asked_while_first_plain(unsigned rounds) { asked_while(rounds, launch_fresh, find_fresh_plain); }

static void find_fresh_graph(void)
{
	find_fresh();
	exec = instantiate(fresh);
}

// The driver loads a graph's kernels when it instantiates the graph, or at its first launch.
static void asked_while_first_graph(unsigned rounds)
{
	handle another = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds * 4; r++) {
		find_fresh_graph();
		struct asked a = begin_asked();
		pthread_t waits = begin_waiting(launch_graph, another);
		pthread_t other = begin_waiting(launch_one, another);
		ask(&a, r);
		join(waits);
		join(other);
		OK(cuCtxSynchronize());
	}
}

static void (*launch_waits)(_Atomic uint32_t *);
static _Atomic uint32_t pause_word;

static void *launch_slowly(void *stream)
{
	launch_waits(&pause_word);
	return launch_one(stream);
}

// A launch is on its way to the driver as a load comes, which is not to be ahead of it: the launch has the log in hand.
static void asked_late(unsigned rounds)
{
	handle another = stream_of(NON_BLOCKING);
	CHECK((launch_waits = (void (*)(_Atomic uint32_t *))dlsym(RTLD_DEFAULT, "simcuda_launch_waits")));
	for (unsigned r = 0; r < rounds * 4; r++) {
		struct asked a = begin_asked();
		pause_word = 0;
		pthread_t other = begin(launch_slowly, another);
		while (pause_word != 1)
			usleep(50);
		pthread_t loads = begin_waiting(load_module, NULL);
		pause_word = 2;
		usleep(CALLED_US / 2);
		ask(&a, r);
		join(loads);
		join(other);
		OK(cuCtxSynchronize());
	}
}

static _Atomic bool opened, passed;

static void pass_when_opened(void *none)
{
	(void)none;
	while (!opened)
		usleep(50);
	passed = true;
}

// The program has a stream stopped, so nothing is kept off while memory is freed. The kernel is behind a host function and not logged: the
// call that frees does not wait for it before it is in the driver.
static void asked_while_freeing(unsigned rounds)
{
	handle stopped = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING);
	OK(gpreempt_stream_enable((stream_t)stopped, GPREEMPT_LEVEL_BLOCK));
	for (unsigned r = 0; r < rounds * 2; r++) {
		handle one = stream_of(NON_BLOCKING), reached = new_event();
		released = opened = passed = false;
		OK(cuMemAlloc_v2(&freed, 4 << 20));
		OK(gpreempt_stream_preempt((stream_t)stopped, 1));
		OK(cuLaunchHostFunc(one, pass_when_opened, NULL));
		spin(one);
		OK(cuEventRecord(reached, one));
		opened = true;
		while (!passed)
			usleep(50);
		pthread_t frees = begin_waiting(free_memory, NULL);
		pthread_t other = begin_waiting(launch_one, another);
		pthread_t late = begin_to_let_go();
		CHECK((r % 2 ? cuEventQuery(reached) : cuStreamQuery(one)) == NOT_READY && !released);
		CHECK(cuStreamQuery(another) == NOT_READY || !released);
		CHECK(!released);
		told = true;
		join(late);
		join(frees);
		join(other);
		OK(gpreempt_stream_restore((stream_t)stopped, 0));
		OK(cuCtxSynchronize());
	}
	OK(gpreempt_stream_disable((stream_t)stopped));
}

static _Atomic bool loads_end;
static void *load_always(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	while (!loads_end) {
		handle module, function;
		OK(cuModuleLoad(&module, image));
		OK(cuModuleGetFunction(&function, module, "sim_chain"));
		OK(cuModuleUnload(module));
	}
	return NULL;
}

// Some thread always loads and unloads code. Others get on.
static void loaded_always(unsigned rounds)
{
	enum { THREADS = 4 };
	struct chained b = buffer();
	pthread_t thread[THREADS];
	handle one = stream_of(NON_BLOCKING);
	loads_end = false;
	for (int i = 0; i < THREADS; i++)
		thread[i] = begin(load_always, NULL);
	for (unsigned r = 0; r < rounds; r++)
		launch(&b, one, r, 1000);
	copy(&b, one);
	OK(cuStreamSynchronize(one));
	CHECK(right(&b));
	loads_end = true;
	for (int i = 0; i < THREADS; i++)
		join(thread[i]);
}

// Unloading.

enum { MOST = 12 };
static struct unloaded {
	handle context, module, library;
	int result;
	_Atomic pid_t begins; // the thread
	_Atomic bool over;
} unloaded[MOST];

static void *unload(void *unload)
{
	struct unloaded *u = unload;
	OK(cuCtxSetCurrent(u->context));
	u->begins = gettid();
	u->result = u->library ? cuLibraryUnload(u->library) : cuModuleUnload(u->module);
	u->over = true;
	return NULL;
}

static pthread_t begin_unload(struct unloaded *u)
{
	u->begins = 0;
	u->over = false;
	pthread_t thread = begin(unload, u);
	while (!u->begins)
		usleep(50);
	return thread;
}

// A kernel of code that is unloaded then, on a stream, and a buffer that it works on. Module or library.
static struct unloaded load_code(bool library, handle *kernel)
{
	struct unloaded u = {.module = NULL};
	OK(cuCtxGetCurrent(&u.context));
	if (library) {
		OK(cuLibraryLoadFromFile(&u.library, image, NULL, NULL, 0, NULL, NULL, 0));
		OK(cuLibraryGetKernel(kernel, u.library, "sim_chain"));
	} else {
		OK(cuModuleLoad(&u.module, image));
		OK(cuModuleGetFunction(kernel, u.module, "sim_chain"));
	}
	return u;
}

static void launch_kernel(handle kernel, struct chained *b, handle stream, unsigned add, unsigned us)
{
	handle usual = chain;
	chain = kernel;
	launch(b, stream, add, us);
	chain = usual;
}

static bool all_over(int count)
{
	for (int i = 0; i < count; i++)
		if (!comes(&unloaded[i].over))
			return false;
	return true;
}

// The driver waits without its lock for what was there before it unloads code. A thread launches a kernel meanwhile that waits for the thread
// that unloads. Several do, as many as never have a thread of the library's each.
static void unloaded_meanwhile(unsigned rounds, bool library, int count, bool captures)
{
	struct chained b[MOST];
	handle one[MOST], another = stream_of(NON_BLOCKING), captured = stream_of(NON_BLOCKING), graph;
	pthread_t thread[MOST];
	for (int i = 0; i < count; i++) {
		b[i] = buffer();
		one[i] = stream_of(NON_BLOCKING);
	}
	for (unsigned r = 0; r < rounds; r++) {
		for (int i = 0; i < count; i++) {
			handle kernel;
			unloaded[i] = load_code(library, &kernel); // waits for what is there
			launch_kernel(kernel, &b[i], one[i], r, 300000);
		}
		if (captures)
			OK(cuStreamBeginCapture_v2(captured, RELAXED));
		for (int i = 0; i < count; i++)
			thread[i] = begin_unload(&unloaded[i]);
		for (int i = 0; i < count; i++)
			until_waiting(unloaded[i].begins);
		spin(another);
		bool returned = all_over(count);
		let_go();
		for (int i = 0; i < count; i++)
			join(thread[i]);
		if (captures)
			OK(cuStreamEndCapture(captured, &graph));
		for (int i = 0; i < count; i++) {
			CHECK(!unloaded[i].result);
			copy(&b[i], one[i]);
		}
		OK(cuCtxSynchronize());
		for (int i = 0; i < count; i++)
			CHECK(right(&b[i]));
		CHECK(returned);
	}
}

static void module_unloaded(unsigned rounds) { unloaded_meanwhile(rounds, false, 1, false); }
static void library_unloaded(unsigned rounds) { unloaded_meanwhile(rounds, true, 1, false); }
static void many_unloaded(unsigned rounds) { unloaded_meanwhile(rounds, false, MOST, false); }
static void unloaded_while_captured(unsigned rounds) { unloaded_meanwhile(rounds, false, 1, true); }

// The unloaded kernels are in the log, and are cut again and again. Launches from before the call are over when it returns.
static void unloaded_in_use(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds * 2; r++) {
		handle kernel;
		unloaded[0] = load_code(r % 2, &kernel);
		for (int i = 0; i < 10; i++)
			launch_kernel(kernel, &b, one, r, 5000);
		unload(&unloaded[0]);
		OK(unloaded[0].result);
		OK(cuStreamQuery(one));
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
	}
}

// Two threads unload the same: the driver answers one of them that it is unknown.
static void unloaded_twice(unsigned rounds)
{
	struct chained b = buffer();
	handle one = stream_of(NON_BLOCKING);
	for (unsigned r = 0; r < rounds * 2; r++) {
		handle kernel;
		unloaded[0] = unloaded[1] = load_code(r % 2, &kernel);
		launch_kernel(kernel, &b, one, r, 50000);
		pthread_t first = begin_unload(&unloaded[0]), second = begin_unload(&unloaded[1]);
		join(first);
		join(second);
		CHECK(!unloaded[0].result != !unloaded[1].result);
	}
}

// A context ends while code of it is being unloaded.
static void unloaded_and_destroyed(unsigned rounds)
{
	for (unsigned r = 0; r < rounds * 2; r++) {
		handle own, kernel, late_module;
		released = false;
		OK(cuCtxCreate_v2(&own, 0, 0));
		OK(cuModuleLoad(&late_module, image));
		handle one = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING), usual = waits;
		OK(cuModuleGetFunction(&waits, late_module, "sim_marlin"));
		struct chained b = buffer();
		unloaded[0] = load_code(r % 2, &kernel);
		launch_kernel(kernel, &b, one, r, 300000);
		pthread_t unloads = begin_unload(&unloaded[0]);
		until_waiting(unloaded[0].begins);
		spin(another);
		waits = usual;
		CHECK(all_over(1));
		join(unloads);
		copy(&b, one);
		OK(cuStreamSynchronize(one));
		CHECK(right(&b));
		pthread_t late = begin_to_let_go();
		told = true;
		OK(cuCtxDestroy_v2(own));
		join(late);
		CHECK(!released);
		OK(cuCtxSetCurrent(context));
	}
	plain(1);
}

// The program ends while code is being unloaded.
static void unloaded_at_exit(unsigned rounds)
{
	struct chained b = buffer();
	handle kernel, one = stream_of(NON_BLOCKING), another = stream_of(NON_BLOCKING);
	(void)rounds;
	unloaded[0] = load_code(false, &kernel);
	launch_kernel(kernel, &b, one, 1, 300000);
	pthread_t unloads = begin_unload(&unloaded[0]);
	until_waiting(unloaded[0].begins);
	spin(another);
	join(unloads);
	CHECK(!unloaded[0].result && *(_Atomic uint32_t *)(uintptr_t)word);
}

static void tell_and_hear(const char *what)
{
	char line[64];
	puts(what);
	CHECK(fgets(line, sizeof line, stdin));
}

// A load puts off the stop of a window that opens then, and a launch waits at the gate. The load ends, then the launch returns, then the window
// closes.
static void gated_while_loading(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), two = stream_of(NON_BLOCKING);
	(void)rounds;
	launch_one(two);
	OK(cuStreamSynchronize(two));
	spin(one);
	pthread_t loads = begin_waiting(load_module, NULL);
	tell_and_hear("loading");
	pthread_t launches = begin(launch_one, two);
	tell_and_hear("launching");
	let_go();
	join(loads);
	join(launches);
	tell_and_hear("launched");
	OK(cuStreamSynchronize(two));
}

int main(int argc, char **argv)
{
	static const struct task what[] = {
		{"plain", plain},
		{"gated-while-loading", gated_while_loading},
		{"asked-loading", asked_while_loading},
		{"asked-first", asked_while_first},
		{"asked-first-library", asked_while_first_of_library},
		{"asked-first-plain", asked_while_first_plain},
		{"asked-first-graph", asked_while_first_graph},
		{"asked-late", asked_late},
		{"asked-freeing", asked_while_freeing},
		{"loaded-always", loaded_always},
		{"unloaded", module_unloaded},
		{"unloaded-library", library_unloaded},
		{"unloaded-many", many_unloaded},
		{"unloaded-captured", unloaded_while_captured},
		{"unloaded-in-use", unloaded_in_use},
		{"unloaded-twice", unloaded_twice},
		{"unloaded-destroyed", unloaded_and_destroyed},
		{"unloaded-at-exit", unloaded_at_exit},
	};
	return serve(argc, argv, what, sizeof what / sizeof *what);
}
