// generate.c - random programs, and fewer operations of one.
#include "plan.h"

#include <stdlib.h>
#include <string.h>

struct generator {
	uint64_t state;
	struct program *program;
	struct plan plan;
	int burst_thread, burst; // a thread goes on for a while
};

static uint64_t draw(struct generator *g)
{ // splitmix64
	uint64_t z = g->state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static int below(struct generator *g, int n) { return (int)(draw(g) % (unsigned)n); }

static bool one_in(struct generator *g, int n) { return below(g, n) == 0; }

static bool with(const struct generator *g, uint32_t feature) { return g->program->features & feature; }

static enum verdict append(struct generator *g, struct operation *o, set *missing)
{
	if (g->plan.count >= OPERATIONS)
		return SENSELESS;
	o->id = (uint8_t)g->plan.count;
	return plan_add(&g->plan, o, missing);
}

static bool appended(struct generator *g, struct operation o)
{
	set missing;
	return append(g, &o, &missing) == ACCEPTED;
}

static int some_stream(struct generator *g, int t)
{
	int s = below(g, 8);
	if (s == 0)
		return with(g, WITH_legacy) ? 0 : 1 + THREADS;
	if (s == 1)
		return with(g, WITH_perthread) ? 1 + t : 1 + THREADS;
	return 1 + THREADS + s % CREATED;
}

static int some_buffer(struct generator *g, int device)
{
	return with(g, WITH_pinned) && one_in(g, 4) ? DEVICES * BUFFERS + below(g, BUFFERS) :
						      device * BUFFERS + below(g, BUFFERS);
}

static void some_cells(struct generator *g, struct operation *o)
{
	if (one_in(g, 3)) {
		o->first = (uint8_t)below(g, CELLS);
		o->count = (uint8_t)(1 + below(g, CELLS - o->first));
	} else {
		o->first = 0;
		o->count = CELLS;
	}
}

static uint32_t some_us(struct generator *g)
{
	static const uint32_t us[] = {1, 5, 10, 20, 40, 80, 150};
	return us[below(g, 7)];
}

static uint8_t some_wait(struct generator *g) { return with(g, WITH_spins) && one_in(g, 2) ? BY_KERNEL : BY_STREAM; }

// A word that a kernel of the thread spins on, or has; -1: there is none.
static int spun_on(struct generator *g, int t, bool now)
{
	for (int n = 0, w = below(g, WORDS); n < WORDS; n++, w = (w + 1) % WORDS) {
		const struct word *word = &g->plan.word[w];
		const struct operation *waiter = word->waiter >= 0 ? &g->plan.operation[word->waiter] : NULL;
		if (waiter && waiter->kind == WAIT_VALUE && waiter->form == BY_KERNEL && waiter->thread == t &&
		    (word->writer < 0) == now)
			return w;
	}
	return -1;
}

// Operations of a program that is about kernels that spin: such kernels, and operations that bring work of the legacy stream and of
// threads' own streams behind them. Also operations that take long enough to be stopped ahead of that, and queries of a stream or waits for
// it meanwhile.
static void about_spins(struct generator *g, struct operation *o, int t)
{
	static const uint8_t kinds[] = {WAIT_VALUE,  WAIT_VALUE,   KERNEL,      KERNEL,      RECORD,  COPY,  COPY,
					EVENT_QUERY, STREAM_QUERY, STREAM_SYNC, STREAM_SYNC, RELEASE, PAUSE, PAUSE};
	int where = below(g, 4), w;
	o->kind = kinds[below(g, sizeof kinds)];
	o->form = 0;
	o->stream = (uint8_t)(where == 0 ? 0 : where == 1 ? 1 + t : 1 + THREADS + (below(g, CREATED) | 1)); // blocking
	switch (o->kind) {
	case WAIT_VALUE:
		o->form = one_in(g, 5) ? BY_STREAM : BY_KERNEL;
		o->stream = (uint8_t)(where ? o->stream : 1 + t);
		break;
	case KERNEL: o->us = 20u << below(g, 10); break;
	case COPY:
		o->stream = (uint8_t)(where < 3 ? 0 : o->stream);
		o->buffer = (uint8_t)(DEVICES * BUFFERS + below(g, BUFFERS));
		o->source = (uint8_t)(o->device * BUFFERS + below(g, BUFFERS));
		o->source_first = (uint8_t)below(g, CELLS - o->count + 1);
		break;
	case RELEASE:
		if ((w = spun_on(g, t, true)) >= 0)
			o->word = (uint8_t)w;
		break;
	case STREAM_QUERY:
	case STREAM_SYNC:
		if ((w = spun_on(g, t, one_in(g, 2))) >= 0) {
			const struct operation *waiter = &g->plan.operation[g->plan.word[w].waiter];
			o->stream = waiter->stream;
			o->reads = o->kind == STREAM_QUERY && !device_buffer(waiter->buffer);
			o->buffer = waiter->buffer;
			o->first = waiter->first;
		}
		o->form = o->kind == STREAM_SYNC || o->reads ? ONCE : POLL;
		break;
	case EVENT_QUERY: o->form = POLL; break;
	case PAUSE: o->value = 500u + (uint32_t)below(g, 3000); break;
	}
}

static struct operation some_operation(struct generator *g, int t)
{
	struct operation o = {.thread = (uint8_t)t};
	o.device = (uint8_t)(g->program->devices > 1 ? below(g, g->program->devices) : 0);
	o.variant = (uint8_t)draw(g);
	o.value = (uint32_t)draw(g);
	o.us = some_us(g);
	o.stream = (uint8_t)some_stream(g, t);
	o.event = (uint8_t)below(g, EVENTS);
	o.word = (uint8_t)below(g, WORDS);
	o.graph = (uint8_t)below(g, GRAPHS);
	o.buffer = (uint8_t)some_buffer(g, o.device);
	some_cells(g, &o);
	int capture = g->plan.capturing[t];
	if (capture) {
		o.device = (uint8_t)(g->plan.capture_stream[t] / STREAMS);
		o.buffer = (uint8_t)some_buffer(g, o.device);
		if (!one_in(g, 3))
			o.stream = (uint8_t)(g->plan.capture_stream[t] % STREAMS);
		int what = below(g, 12);
		if (what == 0) {
			o.kind = FORK;
			o.stream2 = (uint8_t)(1 + THREADS + below(g, CREATED));
			return o;
		}
		if (what == 1) {
			o.kind = JOIN;
			o.stream2 = (uint8_t)(1 + THREADS + below(g, CREATED));
			return o;
		}
		if (what == 2) {
			o.kind = END;
			o.stream = (uint8_t)(g->plan.capture_stream[t] % STREAMS);
			return o;
		}
	}
	if (g->program->about_spins && !one_in(g, 4)) {
		about_spins(g, &o, t);
		return o;
	}
	switch (below(g, 42)) {
	default:
		o.kind = KERNEL;
		o.form = (uint8_t)below(g, KERNEL_FORMS);
		if ((o.form == PLAIN && !with(g, WITH_plain)) || (o.form == COOPERATIVE && !with(g, WITH_cooperative)))
			o.form = PARAMETERS;
		if (o.form >= MARLIN && !(with(g, WITH_waiting) && one_in(g, 2)))
			o.form = INCREMENT;
		if (with(g, WITH_modules) && o.form <= EXTENDED && !capture && one_in(g, 2))
			o.module = (uint8_t)(1 + below(g, MODULES));
		break;
	case 0:
	case 1:
		o.kind = MEMSET;
		o.form = (uint8_t)below(g, MEMSET_FORMS);
		if (o.form == AT_ONCE) {
			o.form = with(g, WITH_legacy) ? AT_ONCE : BY_32;
			o.stream = with(g, WITH_legacy) ? 0 : o.stream;
		}
		break;
	case 2:
	case 3:
	case 4:
		o.kind = COPY;
		o.form = (uint8_t)below(g, COPY_FORMS);
		o.source = (uint8_t)some_buffer(g, o.device);
		o.source_first = (uint8_t)below(g, CELLS - o.count + 1);
		if (!with(g, WITH_copies) || (o.form == SYNCHRONOUS && !with(g, WITH_legacy)))
			o.form = TYPED;
		if (o.form == SYNCHRONOUS)
			o.stream = 0;
		break;
	case 5:
		o.kind = with(g, WITH_plain) ? KERNEL_COPY : COPY;
		o.form = 0;
		o.source = (uint8_t)some_buffer(g, o.device);
		o.source_first = (uint8_t)below(g, CELLS - o.count + 1);
		break;
	case 6:
		o.kind = with(g, WITH_copies) ? UPLOAD : MEMSET;
		o.form = 0;
		if (o.kind == UPLOAD && with(g, WITH_legacy) && one_in(g, 2)) {
			o.form = SYNCHRONOUS;
			o.stream = 0;
		}
		break;
	case 7:
		o.kind = with(g, WITH_copies) && with(g, WITH_legacy) ? READ : KERNEL;
		o.form = 0;
		if (o.kind == READ)
			o.stream = 0;
		break;
	case 8:
	case 9:
		o.kind = with(g, WITH_host) ? HOST_FUNCTION : KERNEL;
		o.form = (uint8_t)(o.kind == KERNEL ? PACKED : below(g, WAITS));
		if (o.kind == HOST_FUNCTION)
			o.buffer = (uint8_t)(DEVICES * BUFFERS + below(g, BUFFERS));
		break;
	case 10:
		o.kind = with(g, WITH_cpu) ? (with(g, WITH_host) && one_in(g, 3) ? HOST_FUNCTION : WAIT_VALUE) : KERNEL;
		o.form = o.kind == HOST_FUNCTION ? WAITS : o.kind == WAIT_VALUE ? some_wait(g) : 0;
		break;
	case 11:
	case 12: o.kind = RECORD; break;
	case 13:
	case 14: o.kind = WAIT_EVENT; break;
	case 15: o.kind = EVENT_SYNC; break;
	case 16:
	case 17:
		o.kind = with(g, WITH_queries) ? (one_in(g, 2) ? EVENT_QUERY : STREAM_QUERY) : STREAM_SYNC;
		o.form = (uint8_t)below(g, 2);
		o.reads = o.kind != STREAM_SYNC && o.form == ONCE;
		if (o.reads)
			o.buffer = (uint8_t)(DEVICES * BUFFERS + below(g, BUFFERS));
		break;
	case 18: o.kind = STREAM_SYNC; break;
	case 19: o.kind = with(g, WITH_contexts) ? CONTEXT_SYNC : STREAM_SYNC; break;
	case 20: o.kind = with(g, WITH_endings) ? (one_in(g, 2) ? STREAM_RENEW : EVENT_RENEW) : RECORD; break;
	case 21:
		o.kind = with(g, WITH_values) ? WRITE_VALUE : KERNEL;
		o.form = 0;
		break;
	case 22:
		o.kind = with(g, WITH_values) ? WAIT_VALUE : KERNEL;
		o.form = 0;
		for (int w = 0; w < WORDS && o.kind == WAIT_VALUE; w++) // that will be, or is, written
			if (g->plan.word[w].writer >= 0 && g->plan.word[w].waiter < 0 && one_in(g, 2))
				o.word = (uint8_t)w;
		if (o.kind == WAIT_VALUE && g->plan.word[o.word].writer < 0 && !with(g, WITH_cpu))
			o.kind = WRITE_VALUE;
		o.form = o.kind == WAIT_VALUE ? some_wait(g) : 0;
		break;
	case 23:
		o.kind = with(g, WITH_frees) ? (one_in(g, 2) ? FREE : FREE_ASYNC) : KERNEL;
		o.form = 0;
		break;
	case 24:
	case 25:
		o.kind = CPU;
		o.form = (uint8_t)(CHECKS + below(g, 2));
		o.buffer = (uint8_t)(DEVICES * BUFFERS + below(g, BUFFERS));
		break;
	case 26:
		o.kind = with(g, WITH_captures) ? BEGIN : KERNEL;
		o.form = 0;
		break;
	case 27:
	case 28:
	case 29:
		o.kind = with(g, WITH_captures | WITH_built) ? LAUNCH : KERNEL;
		o.form = 0;
		if (o.kind == LAUNCH)
			o.device = (uint8_t)g->plan.graph[o.graph].device;
		break;
	case 30:
		o.kind = with(g, WITH_episodes) && one_in(g, 10) ? EPISODE : PAUSE;
		o.value = (uint32_t)below(g, 200);
		break;
	case 31:
		o.kind = with(g, WITH_hints) ? HINT : KERNEL;
		o.form = 0;
		break;
	case 34:
		o.kind = with(g, WITH_modules) ? MODULE_RENEW : KERNEL;
		o.form = 0;
		o.module = (uint8_t)(o.kind == MODULE_RENEW ? 1 + below(g, MODULES) : 0);
		break;
	case 33:
		o.kind = with(g, WITH_built) ? (one_in(g, 2) ? BUILD : one_in(g, 2) ? CHANGE : UPDATE) : KERNEL;
		o.form = 0;
		o.nodes = (uint8_t)(o.kind == CHANGE ? below(g, 3) : 1 + below(g, 4));
		if (o.kind == CHANGE || o.kind == UPDATE)
			o.device = (uint8_t)g->plan.graph[o.graph].device;
		if (o.kind != KERNEL)
			o.buffer = (uint8_t)some_buffer(g, o.device);
		break;
	case 32: { // ends a wait of this thread
		o.kind = KERNEL;
		o.form = 0;
		for (int w = 0; w < WORDS; w++) {
			int waiter = g->plan.word[w].waiter;
			if (waiter >= 0 && g->plan.word[w].writer < 0 && g->plan.operation[waiter].thread == t) {
				o.kind = with(g, WITH_values) && one_in(g, 2) ? WRITE_VALUE : RELEASE;
				o.word = (uint8_t)w;
			}
		}
		break;
	}
	}
	return o;
}

// Puts behind the thread's calls what another thread has called. False: not now.
static bool learn(struct generator *g, int t, int moment)
{
	int other = g->plan.operation[moment / 2].thread;
	if (other == t || plan_knows(&g->plan, t, moment & ~1))
		return true;
	if (g->plan.open[t])
		return false;
	struct operation post = {.kind = POST, .thread = (uint8_t)other}, await = {.kind = AWAIT, .thread = (uint8_t)t};
	if (!appended(g, post))
		return false;
	await.other = (uint8_t)(g->plan.count - 1);
	return appended(g, await);
}

// Makes a moment certain before what is to come on the thread and stream, in one of the ways that there are.
static bool repair(struct generator *g, const struct operation *o, int moment)
{
	const struct operation *other = &g->plan.operation[moment / 2];
	int t = o->thread, owner = g->plan.owner[other->device * STREAMS + other->stream];
	bool call = moment % 2 == 0;
	if (call)
		return learn(g, t, moment);
	// The thread that does something on the other stream.
	int by = owner >= 0 ? owner : other->stream >= 1 && other->stream <= THREADS ? other->stream - 1 : t;
	if (!learn(g, by, moment))
		return false;
	struct operation p = {.thread = (uint8_t)by,
			      .device = other->device,
			      .stream = other->stream,
			      .variant = (uint8_t)draw(g),
			      .event = (uint8_t)below(g, EVENTS),
			      .word = (uint8_t)below(g, WORDS)};
	struct operation q = {.thread = (uint8_t)t, .device = o->device, .stream = o->stream, .variant = (uint8_t)draw(g)};
	switch (below(g, 7)) {
	case 0: p.kind = STREAM_SYNC; return appended(g, p) && learn(g, t, 2 * (g->plan.count - 1));
	case 1:
		p.kind = with(g, WITH_contexts) ? CONTEXT_SYNC : STREAM_SYNC;
		return appended(g, p) && learn(g, t, 2 * (g->plan.count - 1));
	case 2:
		p.kind = with(g, WITH_queries) ? STREAM_QUERY : STREAM_SYNC;
		p.form = p.kind == STREAM_QUERY ? POLL : 0;
		return appended(g, p) && learn(g, t, 2 * (g->plan.count - 1));
	case 3:
		if (with(g, WITH_values)) {
			for (int i = 0; i < WORDS; i++, p.word = (uint8_t)((p.word + 1) % WORDS))
				if (g->plan.word[p.word].writer < 0 && g->plan.word[p.word].waiter < 0)
					break;
			p.kind = WRITE_VALUE;
			q.kind = WAIT_VALUE;
			q.word = p.word;
			return appended(g, p) && learn(g, t, 2 * (g->plan.count - 1)) && appended(g, q);
		}
		// fall through
	default:
		p.kind = RECORD;
		q.event = p.event;
		q.kind = below(g, 4) ? WAIT_EVENT : with(g, WITH_queries) && below(g, 2) ? EVENT_QUERY : EVENT_SYNC;
		q.form = q.kind == EVENT_QUERY ? POLL : 0;
		if (!appended(g, p) || !learn(g, t, 2 * (g->plan.count - 1)))
			return false;
		q.device = p.device; // an event is its context's
		if (q.kind == WAIT_EVENT && q.device != o->device)
			q.kind = EVENT_SYNC;
		return appended(g, q);
	}
}

static void settle(struct generator *g)
{
	for (int t = 0; t < g->program->threads; t++) {
		for (int w = 0; w < WORDS; w++)
			if (g->plan.word[w].waiter >= 0 && g->plan.word[w].writer < 0 &&
			    g->plan.operation[g->plan.word[w].waiter].thread == t)
				appended(g, (struct operation){.kind = RELEASE, .thread = (uint8_t)t, .word = (uint8_t)w});
		if (!g->plan.capturing[t])
			continue;
		int at = g->plan.capture_stream[t], d = at / STREAMS;
		struct operation end = {
			.kind = END, .thread = (uint8_t)t, .device = (uint8_t)d, .stream = (uint8_t)(at % STREAMS)};
		for (int s = 0; s < STREAMS; s++)
			if (g->plan.stream_captured[d * STREAMS + s] == g->plan.capturing[t] && s != end.stream)
				appended(g, (struct operation){.kind = JOIN,
							       .thread = (uint8_t)t,
							       .device = (uint8_t)d,
							       .stream = end.stream,
							       .stream2 = (uint8_t)s});
		if (!g->plan.captured_operations[t])
			appended(g, (struct operation){.kind = HOST_FUNCTION,
						       .thread = (uint8_t)t,
						       .device = (uint8_t)d,
						       .stream = end.stream});
		appended(g, end);
	}
}

static void finished(struct program *p, const struct plan *m)
{
	p->count = m->count;
	memcpy(p->operation, m->operation, sizeof p->operation);
	memcpy(p->final, m->value, sizeof p->final);
	memcpy(p->known, m->known, sizeof p->known);
}

void generate(struct program *p, uint64_t seed, uint32_t features, unsigned spins_in)
{
	static struct generator g;
	static struct plan scratch;
	for (int attempt = 0;; attempt++) {
		memset(p, 0, sizeof *p);
		g.state = seed * 0x2545f4914f6cdd1du + (uint64_t)attempt;
		g.program = p;
		g.burst = 0;
		p->seed = seed;
		p->features = features & (uint32_t)(draw(&g) | draw(&g)); // not all at once
		if (p->features & WITH_spins && !one_in(&g, (int)spins_in))
			p->features &= ~(uint32_t)WITH_spins;
		if (p->features & WITH_cpu) // streams that wait live on: run.c
			p->features &= ~(uint32_t)(one_in(&g, 2) ? WITH_cpu : WITH_endings);
		if (spins_in == 1 && one_in(&g, 2)) {
			p->about_spins = true;
			p->features |= WITH_spins | WITH_cpu | WITH_legacy | WITH_perthread | WITH_queries |
				       WITH_pinned | WITH_copies;
			p->features &= ~(uint32_t)(WITH_endings | WITH_threads | WITH_devices | WITH_captures);
		}
		p->threads = p->features & WITH_threads ? 2 + below(&g, THREADS - 1) : 1;
		p->devices = p->features & WITH_devices ? DEVICES : 1;
		for (int s = 0; s < DEVICES * STREAMS; s++)
			p->owner[s] = (int8_t)(s % STREAMS > THREADS && below(&g, 3) ? below(&g, p->threads) : -1);
		for (int c = 0; c < ALL_BUFFERS * CELLS; c++)
			p->initial[c] = (uint32_t)draw(&g);
		g.plan.scratch = &scratch;
		plan_begin(&g.plan, p);
		int length = 10 + below(&g, 50);
		for (int tries = 0; g.plan.count < length && tries < 2000; tries++) {
			if (g.burst <= 0) {
				g.burst_thread = below(&g, p->threads);
				g.burst = 1 + below(&g, 8);
			}
			g.burst--;
			struct operation o = some_operation(&g, g.burst_thread);
			set missing;
			for (int repairs = 0; repairs < 5; repairs++) {
				enum verdict v = append(&g, &o, &missing);
				if (v != RACES || (repairs == 0 && one_in(&g, 4)) || !repair(&g, &o, plan_first(&missing)))
					break;
			}
		}
		settle(&g);
		if (plan_whole(&g.plan))
			break;
	}
	finished(p, &g.plan);
}

bool reduce(struct program *p, const bool *without)
{
	static struct plan plan, scratch;
	plan.scratch = &scratch;
	plan_begin(&plan, p);
	for (int i = 0; i < p->count; i++) {
		set missing;
		struct operation o = p->operation[i];
		if (!without[o.id])
			plan_add(&plan, &o, &missing);
	}
	finished(p, &plan);
	return plan_whole(&plan);
}

// ---- text

static const char *stream_name(int d, int s)
{
	static char name[8][32];
	static int next;
	char *n = name[next++ % 8];
	if (s == 0)
		snprintf(n, 32, "%d:legacy", d);
	else if (s <= THREADS)
		snprintf(n, 32, "%d:thread", d);
	else
		snprintf(n, 32, "%d:s%d%s", d, s - 1 - THREADS, blocking_stream(s) ? "b" : "n");
	return n;
}

static void buffer_name(char *to, int b, int first, int count)
{
	if (device_buffer(b))
		sprintf(to, "%d:m%d[%d+%d]", b / BUFFERS, b % BUFFERS, first, count);
	else
		sprintf(to, "pinned%d[%d+%d]", b - DEVICES * BUFFERS, first, count);
}

void describe_operation(FILE *f, const struct operation *o)
{
	static const char *kernel[] = {"chain",     "chain (packed)",      "chain (extended)", "chain (cooperative)",
				       "increment", "add (not rewritten)", "marlin",           "lamport",
				       "barrier"};
	static const char *memset_form[] = {"memset 32", "memset 8", "memset 16", "memset (rows)", "memset 32 (no stream)"};
	static const char *copy_form[] = {"copy", "copy (any)", "copy (rows)", "copy (synchronous)"};
	static const char *function[] = {"host function", "host function checks", "host function updates",
					 "host function waits for word"};
	char to[64], from[64];
	const char *s = stream_name(o->device, o->stream), *captured = o->captured ? " (captured)" : "";
	buffer_name(to, o->buffer, o->first, o->count);
	buffer_name(from, o->source, o->source_first, o->count);
	fprintf(f, "%3d thread %d: ", o->id, o->thread);
	switch (o->kind) {
	case KERNEL:
		fprintf(f, "%s %s on %s, %u us, add %u%s", kernel[o->form], to, s, o->us, o->value, captured);
		if (o->module)
			fprintf(f, ", of module %d", o->module - 1);
		break;
	case KERNEL_COPY: fprintf(f, "copy kernel %s = %s on %s%s", to, from, s, captured); break;
	case MEMSET: fprintf(f, "%s %s = %u on %s%s", memset_form[o->form], to, o->value, s, captured); break;
	case COPY: fprintf(f, "%s %s = %s on %s%s", copy_form[o->form], to, from, s, captured); break;
	case UPLOAD: fprintf(f, "%s %s = pageable %u on %s", copy_form[o->form], to, o->value, s); break;
	case READ: fprintf(f, "read %s", to); break;
	case HOST_FUNCTION:
		fprintf(f, "%s", function[o->form]);
		if (o->form == WAITS)
			fprintf(f, " %d", o->word);
		else if (o->form != EMPTY)
			fprintf(f, " %s", to);
		fprintf(f, " on %s%s", s, captured);
		break;
	case RECORD: fprintf(f, "record %d:e%d on %s", o->device, o->event, s); break;
	case WAIT_EVENT: fprintf(f, "%s waits for %d:e%d", s, o->device, o->event); break;
	case EVENT_SYNC: fprintf(f, "synchronise with %d:e%d", o->device, o->event); break;
	case EVENT_QUERY:
		fprintf(f, "query %d:e%d %s", o->device, o->event, o->form == POLL ? "until complete" : "once");
		break;
	case EVENT_RENEW: fprintf(f, "destroy and create %d:e%d", o->device, o->event); break;
	case STREAM_SYNC: fprintf(f, "synchronise with %s", s); break;
	case STREAM_QUERY: fprintf(f, "query %s %s", s, o->form == POLL ? "until complete" : "once"); break;
	case CONTEXT_SYNC: fprintf(f, "synchronise with context %d", o->device); break;
	case STREAM_RENEW: fprintf(f, "destroy and create %s", s); break;
	case WAIT_VALUE:
		if (o->form == BY_KERNEL)
			fprintf(f, "marlin spins on word %d, then increments %s on %s, %u us", o->word, to, s, o->us);
		else
			fprintf(f, "%s waits for word %d", s, o->word);
		break;
	case WRITE_VALUE: fprintf(f, "%s writes word %d", s, o->word); break;
	case RELEASE: fprintf(f, "the CPU writes word %d", o->word); break;
	case FREE: fprintf(f, "free and allocate %s", to); break;
	case FREE_ASYNC: fprintf(f, "free and allocate %s on %s", to, s); break;
	case POST: fprintf(f, "post"); break;
	case AWAIT: fprintf(f, "await post %d", o->other); break;
	case CPU: fprintf(f, "the CPU %s %s", o->form == CHECKS ? "checks" : "updates", to); break;
	case BEGIN: fprintf(f, "begin to capture %s, mode %d", s, o->variant % 3); break;
	case END: fprintf(f, "end the capture of %s, graph %d", s, o->graph); break;
	case FORK: fprintf(f, "%s joins the capture of %s", stream_name(o->device, o->stream2), s); break;
	case JOIN: fprintf(f, "%s is joined by %s", s, stream_name(o->device, o->stream2)); break;
	case LAUNCH: fprintf(f, "launch graph %d on %s%s", o->graph, s, captured); break;
	case BUILD:
		fprintf(f, "build graph %d of %d kernels: chain %s, %u us, add %u ...", o->graph, o->nodes, to, o->us,
			o->value);
		break;
	case CHANGE:
		fprintf(f, "change kernel %d of graph %d: chain %s, %u us, add %u", o->nodes, o->graph, to, o->us,
			o->value);
		break;
	case UPDATE: fprintf(f, "update graph %d: chain %s, %u us, add %u ...", o->graph, to, o->us, o->value); break;
	case MODULE_RENEW: fprintf(f, "unload and load module %d:%d", o->device, o->module - 1); break;
	case EPISODE: fprintf(f, "a context of its own comes and goes on device %d", o->device); break;
	case PAUSE: fprintf(f, "pause %u us", o->value); break;
	case HINT: fprintf(f, "hint"); break;
	}
	if (o->reads)
		fprintf(f, ", then %s is read", to);
	if (o->must)
		fprintf(f, ", which must be complete");
	fprintf(f, "\n");
}

void describe(FILE *f, const struct program *p)
{
	fprintf(f, "seed %llu: %d operations, %d threads, %d devices\n", (unsigned long long)p->seed, p->count,
		p->threads, p->devices);
	for (int i = 0; i < p->count; i++)
		describe_operation(f, &p->operation[i]);
}
