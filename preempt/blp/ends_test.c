// ends_test.c - with preempt/blp/ends.c preempt/blp/domain.c preempt/blp/context.c preempt/blp/states.c preempt/objects/objects.c preempt/blp/records.c preempt/driver/environment.c.
//
// One thread destroys a stream that has a domain of its own, another one the stream's context, on a driver that is made up: what the domain
// had is given back once, and not when the context is gone. Ends well or says what is wrong.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "test/units/check.h"

#include <sched.h>

#define CONTEXT ((CUcontext)0x10)
#define STREAM ((CUstream)0x20)
#define ANOTHER ((CUstream)0x30)

__typeof__(gp_driver) gp_driver;
struct gp_context gp_context[GP_CONTEXTS];
struct gp_gpu gp_gpu[GP_GPUS];
_Atomic uint32_t gp_captures;
void (*gp_code_loading)(bool begins);
static _Atomic uint32_t stub;

// Stand-ins for functions that none of these files has, of domains that launch nothing.
bool gp_may_be_captured(CUstream s) { return false; }
struct gp_context *gp_find_context(CUcontext handle) { return handle == CONTEXT ? gp_context : NULL; }
CUcontext gp_primary_context(CUcontext handle) { return handle; }
bool gp_context_pin(struct gp_context *c, CUcontext handle) { return true; }
void gp_context_unpin(struct gp_context *c) { stub++; }
bool gp_driver_loads_lazily(void) { return false; }
bool gp_blp_wanted(void) { return true; }
bool gp_blp_unwant(void) { return false; }
void gp_ring_windows(struct gp_gpu *g) { stub++; }
void gp_notify(void) { stub++; }
void gp_log_line(const char *text) { stub++; }
void gp_blp_loading(bool begins) { stub++; }
void gp_blp_come_behind(CUstream s) { stub++; }
void blp_expect_stream(CUstream s, CUcontext context) { stub++; }
CUresult blp_wait_stream(CUstream s, CUcontext context) { return 0; }
void blp_graphs_leave(CUstream s) { stub++; }
void blp_drop_twins(struct gp_domain *d) { stub++; }
void blp_release_narrow(struct gp_domain *d) { stub++; }
struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream s, bool insert) { return NULL; }
void blp_end_host_block(struct gp_domain *d, struct blp_stream *s) { stub++; }
void blp_drop_markers(struct gp_domain *d, struct blp_stream *s) { stub++; }
void blp_forget(struct gp_domain *d, struct blp_stream *s) { stub++; }

// Graphs' twins: a thread that instantiates a graph has their lock.
static pthread_mutex_t twins = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool awaits_twins, has_twins;
static _Atomic uint32_t ended; // domains whose twins were forgotten
void blp_lock_twins(void)
{
	awaits_twins = true;
	pthread_mutex_lock(&twins);
	has_twins = true;
}
void blp_unlock_twins(void)
{
	has_twins = awaits_twins = false;
	pthread_mutex_unlock(&twins);
}
void blp_forget_twins(struct gp_domain *d)
{
	CHECK(has_twins && !d->context);
	ended++;
}

// The log: launches of another thread on one stream, which are complete once they are flushed.
static uint32_t flushes, to_come; // launches of a thread that found the domain before it began to end
static void log_launch(struct gp_domain *d)
{
	d->stream_of[0].handle = ANOTHER;
	d->stream_of[0].last = ++d->head;
	d->streams = 1;
	d->recorded++;
}
void gp_blp_flush_all(CUcontext context)
{
	CHECK(context == CONTEXT && !gp_context[0].domain); // a thread that comes now comes behind the log
	flushes++;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		d->stream_of[0].done = d->stream_of[0].last;
		d->recorded = 0;
		d->tail = d->head;
		if (to_come && d->context && !d->scope) {
			to_come--;
			log_launch(d);
		}
		pthread_mutex_unlock(&d->lock);
	}
}
void blp_forget_events(struct gp_domain *d) // its log is
{
	CHECK(!blp_pending(&d->stream_of[0]));
}

// The driver: things have numbers, and each is there until it is given back, or with its context.
enum { THINGS = 1 << 16 };
static _Atomic bool there[THINGS];
static _Atomic uint32_t things, twice, late;
static _Atomic bool gone;          // the context is
static void *(*meanwhile)(void *); // while the stream's place is recorded

static uintptr_t new_thing(void)
{
	uintptr_t thing = ++things;
	CHECK(thing < THINGS);
	there[thing] = true;
	return thing << 22; // as far from each other as arenas are large
}

static CUresult give_back(uintptr_t thing)
{
	sched_yield();
	late += gone;
	twice += !__atomic_exchange_n((bool *)&there[thing >> 22], false, __ATOMIC_SEQ_CST);
	return 0;
}

static CUresult get_current(CUcontext *c) { return *c = NULL, 0; }
static CUresult push(CUcontext c) { return gone ? CUDA_ERROR_INVALID_CONTEXT : 0; }
static CUresult pop(CUcontext *c) { return *c = CONTEXT, 0; }
static CUresult exchange(int *mode) { return 0; }
static CUresult priorities(int *least, int *greatest) { return *least = *greatest = 0; }
static CUresult make_stream(CUstream *s, unsigned flags, int priority) { return *s = (CUstream)new_thing(), 0; }
static CUresult make_event(CUevent *e, unsigned flags) { return *e = (CUevent)new_thing(), 0; }
static CUresult allocate_device(CUdeviceptr *p, size_t bytes) { return *p = new_thing(), 0; }
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) { return 0; }
static CUresult synchronize(CUstream s) { return 0; }
static CUresult flags_of(CUstream s, unsigned *flags) { return *flags = CU_STREAM_NON_BLOCKING, 0; }
static CUresult query(CUevent e) { return 0; }
static CUresult destroy_stream(CUstream s) { return give_back((uintptr_t)s); }
static CUresult destroy_event(CUevent e) { return give_back((uintptr_t)e); }
static CUresult free_device(CUdeviceptr p) { return give_back(p); }
static CUresult current(CUcontext *c) { return *c = CONTEXT, 0; }

static CUresult allocate_host(void **p, size_t bytes, unsigned flags)
{
	*p = malloc(bytes);
	return 0;
}

static CUresult free_host(void *p)
{
	late += gone;
	free(p);
	return 0;
}

static CUresult record(CUevent e, CUstream s)
{
	if (s == STREAM && meanwhile)
		meanwhile(NULL);
	return 0;
}

static void start(CUstream stream)
{
	const char *call;
	gone = false;
	gp_context[0] = (struct gp_context){.handle = CONTEXT, .gpu = gp_gpu};
	CHECK(!gp_blp_prepare(gp_context, &call));
	gp_driver.cuCtxGetCurrent = current;
	CHECK(!gp_blp_separate(stream));
	gp_driver.cuCtxGetCurrent = get_current;
}

static void *end_context(void *unused)
{
	gp_blp_context_destroying(CONTEXT);
	return NULL;
}

static void *destroy_context(void *unused)
{
	end_context(NULL);
	gone = true;
	return NULL;
}

// All of it is back, or went with the context; no domain counts as stopped.
static void check(void)
{
	CHECK(!twice);
	CHECK(!late);
	CHECK(!blp_stopped);
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		CHECK(!blp_domains[i]->context);
}

// The context ends while the stream's thread waits for room in its queue.
static void between(void)
{
	start(STREAM);
	meanwhile = end_context;
	gp_blp_stream_destroying(STREAM);
	meanwhile = NULL;
	check();
}

// And the next one, with the same handle, has its domains where those were.
static void *begin_anew(void *unused)
{
	destroy_context(NULL);
	meanwhile = NULL;
	start(ANOTHER);
	return NULL;
}

static void anew(void)
{
	start(STREAM);
	meanwhile = begin_anew;
	gp_blp_stream_destroying(STREAM);
	int domains = 0;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		domains += blp_domains[i]->context == CONTEXT;
	CHECK(domains == 2);
	CHECK(blp_is_special(CONTEXT, ANOTHER));
	gp_blp_stream_destroying(ANOTHER);
	destroy_context(NULL);
	check();
}

static struct gp_domain *separate(void)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->context && blp_domains[i]->scope)
			return blp_domains[i];
	return NULL;
}

// A thread that waits for a stop's end, or for that of calls for which the driver waits.
struct waiter {
	struct gp_domain *of;
	pthread_cond_t *on;
	_Atomic bool waits;
};

static void *wait_in_domain(void *waiter)
{
	enum { HUNG_s = 60 };
	struct waiter *w = waiter;
	struct timespec until;
	clock_gettime(w->on == &w->of->resumed ? CLOCK_MONOTONIC : CLOCK_REALTIME, &until);
	until.tv_sec += HUNG_s;
	pthread_mutex_lock(&w->of->lock);
	w->waits = true; // the next holder of the lock finds it waiting
	CHECK(!pthread_cond_timedwait(w->on, &w->of->lock, &until));
	CHECK(!w->of->context && w->of->state == BLP_ABSENT && !w->of->driver_waits);
	pthread_mutex_unlock(&w->of->lock);
	return NULL;
}

// A domain ends while it is stopped and the driver waits with its lock. All threads that wait for either end go on, and find it over.
static void stopped(void)
{
	enum { WAITERS = 4 };
	for (int by_stream = 0; by_stream < 2; by_stream++) {
		start(STREAM);
		struct gp_domain *d = separate();
		CHECK(d);
		d->reasons = GP_BLP_ASKED; // as gp_blp_stop leaves it
		blp_become(d, BLP_CLOSING);
		blp_become(d, BLP_HELD);
		d->driver_waits = 1;
		uint32_t changes = blp_changes;
		pthread_t thread[WAITERS];
		struct waiter waiter[WAITERS] = {
			{d, &d->resumed}, {d, &d->resumed}, {d, &d->driver_left}, {d, &d->driver_left}};
		for (int i = 0; i < WAITERS; i++) {
			CHECK(!pthread_create(&thread[i], NULL, wait_in_domain, &waiter[i]));
			while (!waiter[i].waits)
				sched_yield();
		}
		if (by_stream)
			gp_blp_stream_destroying(STREAM);
		destroy_context(NULL);
		for (int i = 0; i < WAITERS; i++)
			CHECK(!pthread_join(thread[i], NULL));
		CHECK(blp_changes == changes + 1); // the driver's answers of before are not taken for true
		CHECK(d->state == BLP_ABSENT && !d->reasons);
		check();
	}
}

// A launch that comes behind the flush of the log is flushed too, before the domain ends.
static void behind_flush(void)
{
	enum { LAUNCHES = 3 };
	start(STREAM);
	log_launch(gp_context[0].domain);
	flushes = 0;
	to_come = LAUNCHES;
	destroy_context(NULL);
	CHECK(flushes > LAUNCHES && !to_come);
	check();
}

// While a thread has the twins' lock, another that ends a domain waits for it without the domain's control: the watcher goes on.
static void beside_twins(void)
{
	pthread_t thread;
	start(STREAM);
	blp_lock_twins();
	awaits_twins = false;
	uint32_t before = ended;
	CHECK(!pthread_create(&thread, NULL, destroy_context, NULL));
	while (!awaits_twins)
		sched_yield();
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		CHECK(blp_domains[i]->context == CONTEXT && !pthread_mutex_trylock(&blp_domains[i]->control));
		pthread_mutex_unlock(&blp_domains[i]->control);
	}
	blp_unlock_twins();
	CHECK(!pthread_join(thread, NULL));
	CHECK(ended == before + 2); // the context's, and the stream's
	check();
}

static pthread_barrier_t both;
static void *end_stream(void *unused)
{
	pthread_barrier_wait(&both);
	gp_blp_stream_destroying(STREAM);
	return NULL;
}

static void at_once(void)
{
	enum { ROUNDS = 100 };
	pthread_barrier_init(&both, NULL, 2);
	for (int r = 0; r < ROUNDS; r++) {
		pthread_t thread;
		start(STREAM);
		CHECK(!pthread_create(&thread, NULL, end_stream, NULL));
		pthread_barrier_wait(&both);
		for (int n = 0; n < r % 50; n++)
			sched_yield();
		destroy_context(NULL);
		CHECK(!pthread_join(thread, NULL));
		check();
	}
}

int main(void)
{
	gp_driver.cuCtxGetCurrent = get_current;
	gp_driver.cuCtxPushCurrent = push;
	gp_driver.cuCtxPopCurrent = pop;
	gp_driver.cuThreadExchangeStreamCaptureMode = exchange;
	gp_driver.cuCtxGetStreamPriorityRange = priorities;
	gp_driver.cuStreamCreateWithPriority = make_stream;
	gp_driver.cuStreamDestroy = destroy_stream;
	gp_driver.cuStreamSynchronize = synchronize;
	gp_driver.cuStreamGetFlags = flags_of;
	gp_driver.cuEventCreate = make_event;
	gp_driver.cuEventDestroy = destroy_event;
	gp_driver.cuEventRecord = record;
	gp_driver.cuEventQuery = query;
	gp_driver.cuMemAlloc = allocate_device;
	gp_driver.cuMemFree = free_device;
	gp_driver.cuMemHostAlloc = allocate_host;
	gp_driver.cuMemFreeHost = free_host;
	gp_driver.cuMemcpyAsync = copy;
	between();
	anew();
	stopped();
	behind_flush();
	beside_twins();
	at_once();
	return 0;
}
