// executor.c - the threads of each context, which carry out the operations on its streams.
//
// A stream is a queue (queues.c). Its head runs when the operations that it depends on are done. Kernels advance with the run clock of the
// context's TSG (engine.c), everything else with real time.
#define _GNU_SOURCE
#include "executor.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define UNKNOWN (UINT64_MAX / 4) // a kernel without any known end
#define POLL_NS 10000            // how often a running kernel without a known end looks at its word, at first.
#define POLL_MOST_NS 200000      // Later it looks each LOOK_PART of the time that it runs, and as often as this.
#define LOOK_NS 20000            // how often a word that something waits for is looked at, at first.
#define LOOK_PART 16 // Later it is looked at each such part of the time that it has waited, which costs less.
#define LOOK_MOST_NS 1000000
#define LIVENESS_NS 5000000 // longest sleep while another process has the engine

static uint64_t between(uint64_t ns, uint64_t least, uint64_t most)
{
	return ns < least ? least : ns < most ? ns : most;
}

void due_for_word(struct pass *p, uint64_t since_ns)
{
	uint64_t now = now_ns();
	due(p, now + between((now - since_ns) / LOOK_PART, LOOK_NS, LOOK_MOST_NS));
}

static void leave_channel(struct pass *p, struct CUstream_st *s)
{
	struct channel *h = channel_of(s);
	h->head->queued = false;
	h->head = h->head->channel_next;
	if (!h->head)
		h->tail = NULL;
	s->in_channel--;
	p->fetched = true;
}

static bool dependencies_done(struct op *o)
{
	for (int i = 0; i < o->deps; i++)
		if (!o->dep[i]->done)
			return false;
	return true;
}

static uint64_t kernel_ns(const struct work *w)
{
	return w->kernel->duration_ns(w->argument, blocks_of(w)) + machine.kernel_overhead_ns;
}

static bool hold_over(const struct kernel *k, const uint64_t *argument, uint64_t ran_ns)
{
	device_acts();
	bool over = k->over(argument, ran_ns);
	device_acted();
	return over;
}

// Says whether the kernel at the head of s is over.
static bool step_kernel(struct pass *p, struct CUstream_st *s, struct op *o)
{
	const struct kernel *k = o->work.kernel;
	if (p->c->error)
		return true; // nothing runs after a fault
	if (!o->started && p->turned && !o->with_previous) {
		p->unfetched = true;
		return false;
	}
	if (!o->started) {
		o->started = true;
		if (o->queued)
			leave_channel(p, s);
		o->start_run = o->chained && s->chain && !o->deps ? s->end_run : p->run;
		if (!k->over)
			o->end_run = o->start_run + kernel_ns(&o->work);
		else if (!address_valid(o->work.argument[0], 8) || !address_valid(o->work.argument[5], 4) ||
			 !address_valid(o->work.argument[6], 8)) {
			fault(p->c);
			return true;
		}
		if (p->c->sms && !k->over && !k->proceed) {
			begin_placed(p, o);
			p->fetched = true; // its blocks begin in the next round
		}
	}
	if (k->proceed) {
		if (!step_waiting(p, o))
			return false;
		s->end_run = o->end_run;
		s->chain = true;
		return true;
	}
	if (k->over) {
		if (!p->running)
			return false;
		if (!o->started_ns)
			o->started_ns = now_ns();
		if (!hold_over(o->work.kernel, o->work.argument, now_ns() - o->started_ns)) {
			if (p->holds < HOLDS)
				p->hold[p->holds++] = o;
			due(p, o->started_ns + k->limit_ns(o->work.argument));
			return false;
		}
		o->end_run = p->run;
	} else if (o->placed) {
		if (!step_placed(p, o))
			return false;
	} else if (o->work.hidden) {
		if (!step_guarded(p, o))
			return false;
	} else if (p->run < o->end_run) {
		if (p->running)
			due(p, engine_after(&p->engine, p->c->tsg, o->end_run - p->run));
		return false;
	}
	if (!o->work.hidden && !effect(&o->work, 0, blocks_of(&o->work)))
		fault(p->c);
	s->end_run = o->end_run;
	s->chain = true;
	return true;
}

static bool step_transfer(struct pass *p, struct op *o)
{
	struct work *w = &o->work;
	if (w->host && sim_bus_rate(w->from_device, false) > 0)
		return step_bus(p, o);
	if (!o->started) {
		o->started = true;
		uint64_t rate = w->host ? machine.host_bytes_per_us : machine.device_bytes_per_us;
		o->end_ns = now_ns() + machine.copy_latency_ns + w->bytes * 1000 / rate;
	}
	if (now_ns() < o->end_ns) {
		due(p, o->end_ns);
		return false;
	}
	transfer(p->c, w, 0, w->bytes);
	return true;
}

static bool value_reached(const struct work *w)
{
	device_acts();
	uint32_t have = atomic_load((_Atomic uint32_t *)w->dst);
	device_acted();
	switch (w->flags & 3) {
	case 0: return (int32_t)(have - w->value) >= 0; // CU_STREAM_WAIT_VALUE_GEQ
	case 1: return have == w->value;                // CU_STREAM_WAIT_VALUE_EQ
	case 2: return (have & w->value) != 0;          // CU_STREAM_WAIT_VALUE_AND
	default: return ~(have | w->value) != 0;        // CU_STREAM_WAIT_VALUE_NOR
	}
}

static void write_value(const struct work *w)
{
	device_acts();
	atomic_store((_Atomic uint32_t *)w->dst, w->value);
	device_acted();
}

// Says whether the head of s is over.
static bool step(struct pass *p, struct CUstream_st *s, struct op *o)
{
	struct work *w = &o->work;
	if (!dependencies_done(o) || (o->queued && channel_of(s)->head != o))
		return false;
	if (w->kind == OP_KERNEL)
		return step_kernel(p, s, o);
	if (w->kind == OP_MARK) {
		s->chain = s->chain && !o->deps;
		return true;
	}
	s->chain = false;
	if (p->c->error && w->kind != OP_HOST)
		return true;
	switch (w->kind) {
	case OP_COPY:
	case OP_MEMSET:
		// Copy engines have TSGs of their own, which nothing takes off the runlist. The bell rings when this one is back.
		if ((w->kind == OP_MEMSET || w->inlined) && !o->started && !o->carried_ns && p->engine.tsg[p->c->tsg].off)
			return false;
		return step_transfer(p, o);
	case OP_HOST:
		if (!o->handed) {
			o->handed = true;
			struct op **end = &p->c->host_queue;
			while (*end)
				end = &(*end)->host_next;
			*end = op_ref(o);
			pthread_cond_signal(&p->c->host_work);
		}
		return o->returned;
	case OP_WAIT_VALUE:
		if (!address_valid(w->dst, 4)) {
			fault(p->c);
			return true;
		}
		if (value_reached(w))
			return true;
		if (!o->started_ns)
			o->started_ns = now_ns();
		due_for_word(p, o->started_ns);
		return false;
	case OP_WRITE_VALUE: // by the host engine
		if (p->turned) {
			p->unfetched = true;
			return false;
		}
		if (address_valid(w->dst, 4))
			write_value(w);
		else
			fault(p->c);
		return true;
	case OP_FREE: memory_remove(w->dst, MEMORY_DEVICE); return true;
	default: return true;
	}
}

static void complete(struct pass *p, struct CUstream_st *s)
{
	struct op *o = s->head;
	if (o->queued)
		leave_channel(p, s);
	s->head = o->next;
	s->length--;
	if (!s->head)
		s->tail = NULL;
	if (o->work.kind == OP_COPY)
		leave_bus(o, p->c->device);
	o->done = true;
	if (o->awaited || s->awaited)
		tell_done();
	o->done_ns = now_ns();
	for (int i = 0; i < o->deps; i++)
		op_unref(o->dep[i]);
	o->deps = 0;
	op_unref(o);
	p->completed = true;
}

struct publication {
	int tsg;
	uint64_t work_ns, hold_until, begun_ns, begun_until, methods_ns, methods_until;
	uint64_t rung_ns; // the first doorbell for what has not been fetched
};

static bool published(const struct tsg *t, const struct publication *n)
{
	return n->work_ns == t->work_ns && n->hold_until == t->hold_until && n->begun_ns == t->begun_ns &&
	       n->begun_until == t->begun_until && n->methods_ns == t->methods_ns && n->methods_until == t->methods_until;
}

static void publish(struct engine *e, void *argument)
{
	const struct publication *n = argument;
	struct tsg *t = &e->tsg[n->tsg];
	t->work_ns = n->work_ns;
	t->hold_until = n->hold_until;
	t->begun_ns = n->begun_ns;
	t->begun_until = n->begun_until;
	t->methods_ns = n->methods_ns;
	t->methods_until = n->methods_until;
	// This thread may hear of a doorbell late. One that rang before the engine turned was in time: the engine has not turned.
	if (engine_turned(e, n->tsg) && n->rung_ns < e->turned)
		e->dry = e->turned = 0;
}

static void later(uint64_t *end, uint64_t at)
{
	if (at > *end)
		*end = at;
}

// Whether the channel has methods behind the kernel. Records of events, and nodes of the same graph, are none.
static bool followed(const struct op *kernel)
{
	for (const struct op *o = kernel->next; o; o = o->next)
		switch (o->work.kind) {
		case OP_MARK:
			if (o->deps)
				return true;
			break;
		case OP_KERNEL:
			if (!o->with_previous)
				return true;
			break;
		case OP_MEMSET:
		case OP_WAIT_VALUE:
		case OP_WRITE_VALUE: return true;
		default: return false;
		}
	return false;
}

// Until when a kernel without a known end may run.
static uint64_t last_moment(const struct pass *p, const struct op *o, uint64_t start_run)
{
	uint64_t now = now_ns();
	if (o->work.kernel->proceed)
		return UNKNOWN;
	uint64_t until = (o->started_ns ? o->started_ns : now + (start_run - p->run)) +
			 o->work.kernel->limit_ns(o->work.argument);
	if (until < now + 2 * LIVENESS_NS && !p->running)
		until = now + 2 * LIVENESS_NS; // it has to run once more to notice its limit
	return until;
}

static void stream_outlook(const struct pass *p, struct CUstream_st *s, struct publication *n)
{
	uint64_t end = p->run;
	for (struct op *o = s->head; o && dependencies_done(o); o = o->next) {
		if (o->work.kind == OP_MARK)
			continue;
		if (o->work.kind != OP_KERNEL)
			break;
		if (o->queued && o->number > channel_of(s)->closed)
			break;
		if (!o->started && !o->with_previous) {
			later(&n->methods_ns, end);
			if (o->rung_ns < n->rung_ns)
				n->rung_ns = o->rung_ns;
		}
		if (!o->work.kernel->duration_ns || o->work.kernel->proceed) {
			uint64_t until = last_moment(p, o, end);
			later(&n->hold_until, until);
			if (o->started)
				later(&n->begun_until, until);
			if (followed(o))
				later(&n->methods_until, until);
			break;
		}
		end = o->started ? o->end_run : end + kernel_ns(&o->work);
		if (o->started)
			later(&n->begun_ns, end);
		bool kernel_next = o->next && o->next->work.kind == OP_KERNEL; // which tells the engine itself
		if (!kernel_next && followed(o))
			later(&n->methods_ns, end);
	}
	later(&n->work_ns, end);
}

// Marks the operations that wait for nothing but kernels before them.
static void unblock(struct CUstream_st *s)
{
	for (struct op *o = s->head; o && dependencies_done(o); o = o->next) {
		if (o->work.kind != OP_MARK && o->work.kind != OP_KERNEL)
			break;
		if (o->blocked)
			o->rung_ns = now_ns();
		o->blocked = false;
	}
}

// Our TSG's news for the engine: what it has to run until the host has to do something.
static struct publication outlook(const struct pass *p)
{
	struct publication n = {.tsg = p->c->tsg, .rung_ns = NEVER};
	for (struct CUstream_st *s = p->c->streams; s; s = s->next)
		unblock(s);
	for (int i = 0; i < MOST_CONNECTIONS; i++) {
		const struct op *o = p->c->channel[i].head;
		while (o && !o->blocked)
			o = o->channel_next;
		p->c->channel[i].closed = o ? o->number : NEVER;
	}
	for (struct CUstream_st *s = p->c->streams; s; s = s->next)
		stream_outlook(p, s, &n);
	return n;
}

static void look(struct pass *p, struct publication *n)
{
	engine_update(p->c->device, n ? publish : NULL, n, &p->engine);
	p->running = engine_running(&p->engine, p->c->tsg);
	p->run = p->engine.tsg[p->c->tsg].ran_ns;
	p->turned = engine_turned(&p->engine, p->c->tsg);
}

static void run_streams(struct pass *p)
{
	for (bool again = true; again;) {
		again = false;
		p->holds = 0; // holds of the round before may have ended in it
		place(p);
		for (struct CUstream_st **at = &p->c->streams; *at;) {
			struct CUstream_st *s = *at;
			while (s->head && step(p, s, s->head)) {
				complete(p, s);
				again = true;
			}
			again |= p->fetched;
			p->fetched = false;
			if (s->destroyed && !s->head) {
				// New streams are put in front, so our place is looked for again.
				for (at = &p->c->streams; *at != s;)
					at = &(*at)->next;
				*at = s->next;
				op_unref(s->last);
				free(s);
				continue;
			}
			at = &s->next;
		}
	}
}

// Polls, without sim_lock, until a hold ends, something else is due, or the bell rings.
static void poll_holds(struct pass *p, uint32_t seen)
{
	const struct kernel *k[HOLDS];
	uint64_t argument[HOLDS][KERNEL_PARAMETERS], started[HOLDS];
	for (int i = 0; i < p->holds; i++) {
		k[i] = p->hold[i]->work.kernel;
		memcpy(argument[i], p->hold[i]->work.argument, sizeof argument[i]);
		started[i] = p->hold[i]->started_ns;
	}
	sim_unlock();
	uint64_t since = now_ns();
	for (bool over = false; !over && atomic_load(p->c->bell) == seen;) {
		struct timespec t = {0, (long)between((now_ns() - since) / LOOK_PART, POLL_NS, POLL_MOST_NS)};
		clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
		uint64_t now = now_ns();
		over = now >= p->deadline;
		for (int i = 0; i < p->holds; i++)
			over |= hold_over(k[i], argument[i], now - started[i]);
	}
	pthread_mutex_lock(&sim_lock);
}

static void block_signals(void)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
}

static bool has_work(const struct CUctx_st *c)
{
	const struct CUstream_st *s = c->streams;
	while (s && !s->head)
		s = s->next;
	return s;
}

static void *executor(void *argument)
{
	struct CUctx_st *c = argument;
	prctl(PR_SET_TIMERSLACK, 1);
	pthread_setname_np(pthread_self(), "simcuda");
	memory_user = c;
	pthread_mutex_lock(&sim_lock);
	while (!c->stop && !sim_dead) {
		pause_gpu();
		uint32_t seen = atomic_load(c->bell);
		struct pass p = {.c = c, .deadline = NEVER};
		look(&p, NULL);
		run_streams(&p);
		for (struct CUctx_st *other = sim_contexts; p.completed && other; other = other->next)
			if (other != c && has_work(other)) // which may wait for events of ours
				tell_executor(other->bell);
		struct publication n = outlook(&p);
		const struct tsg *t = &p.engine.tsg[c->tsg];
		bool was_running = p.running, was_turned = p.turned;
		uint64_t ran_ns = t->ran_ns;
		if (!published(t, &n)) {
			look(&p, &n);
			// The TSG has had the engine since the first look: the loop computes anew what is due or done.
			bool ran = p.running || p.engine.tsg[c->tsg].ran_ns > ran_ns;
			if ((!was_running && ran) || (was_turned && !p.turned))
				continue;
		}
		t = &p.engine.tsg[c->tsg];
		bool work = t->work_ns > t->ran_ns || t->hold_until > p.engine.at;
		uint64_t transition = engine_next(&p.engine);
		if (work && !p.running) {
			due(&p, transition);
			due(&p, p.engine.at + LIVENESS_NS);
		} else if (p.holds || p.unfetched) {
			due(&p, transition);
		}
		if (p.running && p.holds) {
			poll_holds(&p, seen);
			continue;
		}
		sim_unlock();
		engine_sleep(c->bell, seen, p.deadline);
		pthread_mutex_lock(&sim_lock);
	}
	c->threads--;
	tell_done();
	sim_unlock();
	return NULL;
}

static void *host_functions(void *argument)
{
	struct CUctx_st *c = argument;
	pthread_setname_np(pthread_self(), "simcuda-host");
	pthread_mutex_lock(&sim_lock);
	while (!c->stop && !sim_dead) {
		struct op *o = c->host_queue;
		if (!o) {
			sim_wait(&c->host_work);
			continue;
		}
		c->host_queue = o->host_next;
		sim_unlock();
		o->work.callback(o->work.user);
		pthread_mutex_lock(&sim_lock);
		o->returned = true;
		op_unref(o);
		tell_executor(c->bell);
	}
	c->threads--;
	tell_done();
	sim_unlock();
	return NULL;
}

int context_start(struct CUctx_st *c)
{
	pthread_cond_init(&c->host_work, NULL);
	c->bell = engine_bell(c->device, c->tsg);
	sigset_t before;
	pthread_sigmask(SIG_BLOCK, NULL, &before);
	block_signals();
	int failed = pthread_create(&c->executor, NULL, executor, c);
	c->threads += !failed;
	if (!failed && (failed = pthread_create(&c->host_thread, NULL, host_functions, c)) == 0)
		c->threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed)
		return -1;
	pthread_detach(c->executor);
	pthread_detach(c->host_thread);
	return 0;
}

void context_stop(struct CUctx_st *c)
{
	c->stop = true;
	tell_executor(c->bell);
	pthread_cond_signal(&c->host_work);
	while (c->threads > 0 && !sim_dead)
		sim_wait(&sim_done);
}
