// sms.c - the SMs of a context, from its first green context on: which blocks have room together, and which SMs a launch may use.
//
// As on a GPU, a block goes to the SM with the most room. Blocks of more urgent streams go first, then those of earlier launches; a launch
// that has no room holds up later ones for the same SMs. A block runs as long as in a launch that has the machine to itself. With n times
// as many blocks of its launch on its SM as then, it runs n times as long: together they get no more done there. Blocks of other launches
// beside it cost it only room. Kernels whose blocks wait for each other, and holds, take none.
//
// Blocks begin and end by the run clock, in its order, however late the thread looks (place).
#include "executor.h"

#include <stdlib.h>
#include <string.h>

#define SMS 132
#define WORD 64
_Static_assert(sizeof(struct sm_set) * 8 >= SMS, "a bit for each SM");

struct wave { // blocks of a launch that began together
	struct wave *next;
	struct op *op;
	uint64_t from, to, end_run;
	uint8_t on[SMS]; // how many on each SM
};
struct need { uint64_t threads, registers, shared; }; // of a block

struct sms {
	struct sm { uint64_t blocks, threads, registers, shared; } taken[SMS];
	struct wave *waves;
	struct op *launches; // that have begun, by urgency and number
	uint64_t run;        // blocks are placed up to here
};

static void forget(struct sms *m)
{
	for (struct wave *w; (w = m->waves); free(w))
		m->waves = w->next;
	*m = (struct sms){.run = m->run};
}

bool sms_make(struct CUctx_st *c)
{
	if (!c->sms)
		c->sms = calloc(1, sizeof *c->sms);
	return c->sms != NULL;
}

void sms_free(struct CUctx_st *c)
{
	if (c->sms)
		forget(c->sms);
	free(c->sms);
	c->sms = NULL;
}

// ---- sets of SMs

static bool is_all(const struct sm_set *s) { return !(s->bit[0] | s->bit[1] | s->bit[2]); }

static bool has(const struct sm_set *s, unsigned sm) { return is_all(s) || s->bit[sm / WORD] >> sm % WORD & 1; }

unsigned sms_in(const struct sm_set *s)
{
	unsigned n = 0;
	for (unsigned sm = 0; sm < SMS; sm++)
		n += has(s, sm);
	return n;
}

struct sm_set sms_from(const struct sm_set *s, unsigned first, unsigned count)
{
	struct sm_set part = {{0}};
	for (unsigned sm = 0, seen = 0; sm < SMS; sm++)
		if (has(s, sm) && seen++ >= first && seen <= first + count)
			part.bit[sm / WORD] |= 1ull << sm % WORD;
	return part;
}

static struct need need_of(const struct work *w)
{
	uint64_t threads = ((uint64_t)w->block[0] * w->block[1] * w->block[2] + 31) / 32 * 32;
	return (struct need){threads, threads * (uint64_t)w->kernel->registers,
			     (uint64_t)(w->kernel->shared_bytes + machine.shared_reserved) + w->shared_bytes};
}

static uint64_t per_sm(const struct work *w)
{
	int fit = kernel_blocks_per_sm(w->kernel, (uint64_t)w->block[0] * w->block[1] * w->block[2], w->shared_bytes);
	return fit > 0 ? (uint64_t)fit : 1;
}

uint64_t blocks_at_once(const struct work *w) { return sms_in(&w->sms) * per_sm(w); }

// Whether an SM has room for a block. An empty one takes any.
static bool fits(const struct sms *m, int sm, const struct need *n)
{
	const struct sm *t = &m->taken[sm];
	return !t->blocks || (t->blocks < (uint64_t)machine.blocks_per_sm &&
			      t->threads + n->threads <= (uint64_t)machine.threads_per_sm &&
			      t->registers + n->registers <= (uint64_t)machine.registers_per_sm &&
			      t->shared + n->shared <= (uint64_t)machine.shared_per_sm);
}

// The SM with the most room, of those that have enough for a block; -1: none.
static int roomiest(const struct sms *m, const struct sm_set *set, const struct need *n)
{
	int best = -1;
	for (int sm = 0; sm < SMS; sm++)
		if (has(set, (unsigned)sm) && fits(m, sm, n) && (best < 0 || m->taken[sm].threads < m->taken[best].threads))
			best = sm;
	return best;
}

static void change(struct sm *t, const struct need *n, int64_t blocks)
{
	t->blocks += (uint64_t)blocks;
	t->threads += (uint64_t)blocks * n->threads;
	t->registers += (uint64_t)blocks * n->registers;
	t->shared += (uint64_t)blocks * n->shared;
}

// ---- launches

void begin_placed(struct pass *p, struct op *o)
{
	const struct work *w = &o->work;
	uint64_t blocks = blocks_of(w), resident = (uint64_t)machine.sms * per_sm(w);
	struct op **at = &p->c->sms->launches;
	o->placed = true;
	o->wave_ns = w->kernel->duration_ns(w->argument, blocks) / ((blocks + resident - 1) / resident);
	o->next_begin_run = o->start_run + machine.kernel_overhead_ns;
	while (*at && ((*at)->priority < o->priority || ((*at)->priority == o->priority && (*at)->number < o->number)))
		at = &(*at)->placed_next;
	o->placed_next = *at;
	*at = o;
}

static bool is_over(const struct op *o) { return o->begun && o->next_block == blocks_of(&o->work) && !o->running; }

// How long the blocks of a wave take, the last of its launch, where that has so many on their SMs.
static uint64_t stretched(const struct sms *m, const struct wave *latest)
{
	const struct op *o = latest->op;
	uint64_t blocks = blocks_of(&o->work), alone = (blocks + SMS - 1) / SMS, on[SMS] = {0}, most = 0;
	alone = alone < per_sm(&o->work) ? alone : per_sm(&o->work);
	for (const struct wave *w = m->waves; w; w = w->next)
		for (int sm = 0; w->op == o && sm < SMS; sm++)
			on[sm] += w->on[sm];
	for (int sm = 0; sm < SMS; sm++) {
		uint64_t load = latest->on[sm] ? (on[sm] > alone ? on[sm] : alone) : 0;
		most = load > most ? load : most;
	}
	return o->wave_ns * most / alone;
}

// Hands out blocks of a launch while there is room. False: its record is not one.
static bool hand_out(struct sms *m, struct op *o)
{
	const struct need need = need_of(&o->work);
	uint64_t blocks = blocks_of(&o->work);
	if (o->work.hidden && !guard_valid(&o->work))
		return false;
	// A block that exits at once needs room, too.
	if (o->work.hidden && !o->next_block && roomiest(m, &o->work.sms, &need) >= 0)
		o->next_block = guard_begins(&o->work);
	o->begun = true;
	struct wave *w = calloc(1, sizeof *w);
	if (!w)
		abort();
	w->op = o;
	w->from = o->next_block;
	for (int sm; o->next_block < blocks && (sm = roomiest(m, &o->work.sms, &need)) >= 0;) {
		if (o->work.hidden && guard_exits(&o->work, o->next_block)) {
			w->to = o->next_block;
			o->next_block = blocks; // the record is frozen: all later blocks exit too
			break;
		}
		change(&m->taken[sm], &need, 1);
		w->on[sm]++;
		w->to = ++o->next_block;
		o->running++;
	}
	if (w->to > w->from) {
		w->next = m->waves;
		m->waves = w;
		w->end_run = m->run + stretched(m, w);
	} else {
		free(w);
	}
	return true;
}

// Ends the waves that are over by now. False: what one reaches is not there.
static bool end_waves(struct sms *m)
{
	bool valid = true;
	for (struct wave **at = &m->waves; *at;) {
		struct wave *w = *at;
		if (w->end_run > m->run) {
			at = &w->next;
			continue;
		}
		const struct need need = need_of(&w->op->work);
		for (int sm = 0; sm < SMS; sm++)
			change(&m->taken[sm], &need, -(int64_t)w->on[sm]);
		w->op->running -= w->to - w->from;
		valid &= !w->op->work.hidden || effect(&w->op->work, w->from, w->to);
		*at = w->next;
		free(w);
	}
	return valid;
}

static bool held_up(const struct sms *m, const struct op *o)
{
	for (const struct op *b = m->launches; b != o; b = b->placed_next)
		if (b->begun && b->next_block < blocks_of(&b->work) &&
		    memcmp(&b->work.sms, &o->work.sms, sizeof o->work.sms) == 0)
			return true;
	return false;
}

// Lets blocks begin and end up to now, or until a launch is over. False: an illegal address.
static bool carry_on(struct pass *p, struct sms *m)
{
	for (;;) {
		if (!end_waves(m))
			return false;
		uint64_t next = NEVER;
		bool over = false;
		for (struct op *o = m->launches; o; o = o->placed_next) {
			if (o->next_begin_run <= m->run && (!o->begun || o->next_block < blocks_of(&o->work)) &&
			    !held_up(m, o) && !hand_out(m, o))
				return false;
			if (o->next_begin_run > m->run && o->next_begin_run < next)
				next = o->next_begin_run;
			over |= is_over(o);
		}
		for (const struct wave *w = m->waves; w; w = w->next)
			next = w->end_run < next ? w->end_run : next;
		if (!over && next != NEVER && next > p->run && p->running)
			due(p, engine_after(&p->engine, p->c->tsg, next - p->run));
		if (over || next > p->run)
			break;
		m->run = next;
	}
	return true;
}

// The time when a launch ends, judged by the blocks that run now.
static uint64_t expected(const struct sms *m, const struct op *o)
{
	uint64_t left = blocks_of(&o->work) - o->next_block, first = NEVER, end = m->run;
	for (const struct wave *w = m->waves; w; w = w->next) {
		if (w->op == o && w->end_run > end)
			end = w->end_run;
		first = w->end_run < first ? w->end_run : first;
	}
	if (left && end == m->run && first != NEVER)
		end = first;
	end = end > o->next_begin_run ? end : o->next_begin_run;
	return end + (left + blocks_at_once(&o->work) - 1) / blocks_at_once(&o->work) * o->wave_ns;
}

void place(struct pass *p)
{
	struct sms *m = p->c->sms;
	bool over = false;
	if (!m)
		return;
	if (!p->c->error && !carry_on(p, m))
		fault(p->c);
	if (p->c->error) { // nothing runs after that
		forget(m);
		return;
	}
	for (struct op *o = m->launches; o; o = o->placed_next) {
		o->end_run = expected(m, o);
		over |= is_over(o);
	}
	if (!over && m->run < p->run) // else what comes behind it in its stream may begin at that time
		m->run = p->run;
}

bool step_placed(struct pass *p, struct op *o)
{
	struct sms *m = p->c->sms;
	if (!is_over(o))
		return false;
	o->end_run = m->run;
	for (struct op **at = &m->launches; *at; at = &(*at)->placed_next)
		if (*at == o) {
			*at = o->placed_next;
			break;
		}
	return true;
}
